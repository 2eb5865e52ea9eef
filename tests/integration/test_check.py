"""`mentalese new` and `mentalese check`: a family to start from, and ways of being wrong that the contract catches."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mentalese import cli
from mentalese.commands.new import EXAMPLE, TEMPLATE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EMBEDDED = "        x = self.embed(input_ids) * real\n"
LAYERS = "        self.up, self.down = nn.Linear(2 * d, 4 * d), nn.Linear(4 * d, d)\n"
MEAN = "        mean = controlled(total / count.clamp(min=1), self.config.thought_control)\n"
RETURNED = "return Encoded(hidden=x + "
ONE_WEIGHT = """

def _loss(model, batch, **settings):
    output = LatentThoughtModel.training_loss(model, batch, **settings)
    output.weight = torch.ones(())
    return output


RunningMeanForCausalLM.training_loss = _loss
"""
TARGET_WEIGHTS = """

from mentalese import LossOutput


def _weights(model, batch, **settings):
    return batch["input_ids"] % 2 * 0.5 + 0.5


def _loss(model, batch, **settings):
    return LossOutput(*model.next_token_loss(model.final_hidden_states(batch), batch["labels"]))


RunningMeanForCausalLM.target_weights, RunningMeanForCausalLM.training_loss = _weights, _loss
"""
BY_HAND = "decoding_by_hand_equals"
Changes = list[tuple[str, str]]  # text of the model -> other text; of an empty one the other is put at the end
MUTANTS: dict[str, tuple[str, Changes]] = {
    "ignores_its_cache": (
        f"{BY_HAND}_one_call_on_the_whole_text",
        [("        state = {} if cache is None else cache.state\n", "        state = {}\n")],
    ),
    "never_fills_its_cache": (f"{BY_HAND}_generate", [("        if cache is not None:\n", "        if False:\n")]),
    "sees_the_future": (
        "a_token_never_changes_what_was_predicted_before_it",
        [(MEAN, "        mean = (total[:, -1:] / count[:, -1:].clamp(min=1)).expand_as(x)\n")],
    ),
    "sees_padding": (
        "a_left_padded_batch_equals_its_rows_alone",
        [(EMBEDDED, "        x, real = self.embed(input_ids), torch.ones_like(real)\n")],
    ),
    "weighs_every_batch_the_same": ("the_weight_of_a_loss_is_that_of_its_targets", [("", ONE_WEIGHT)]),
    "ignores_target_weights": ("the_weight_of_a_loss_is_that_of_its_targets", [("", TARGET_WEIGHTS)]),
    "has_an_idle_parameter": (
        "every_parameter_gets_a_gradient",
        [(LAYERS, f"{LAYERS}        self.idle = nn.Linear(d, d)\n")],
    ),
    "forgets_when_saved": (
        "a_saved_model_opens_with_the_auto_class_and_predicts_the_same",
        [
            (LAYERS, f"{LAYERS}        self.register_buffer('noise', torch.randn(d), persistent=False)\n"),
            (RETURNED, f"{RETURNED}self.noise + "),
        ],
    ),
}
"""Name -> the test that is to fail, and what is changed in the model of the template."""
SHOWS_IN_SEVERAL = {"ignores_its_cache", "never_fills_its_cache", "sees_the_future"}


def new(folder: Path, name: str, changes: Changes | None = None) -> Path:
    """The package that `mentalese new family` writes, with changes to its model."""
    package = folder / name
    assert cli.main(["new", "family", name, "--out", str(package)]) == 0
    model = package / name / "model.py"
    text = model.read_text()
    for before, after in changes or ():
        assert before in text
        after = after.replace("RunningMean", "".join(part.capitalize() for part in name.split("_")))
        text = text.replace(before, after) if before else text + after
    model.write_text(text)
    return package


def install(folder: Path, *packages: Path) -> dict[str, str]:
    """The environment in which packages are installed: their entry points, and their folders to import from."""
    lines = []
    for package in packages:
        project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
        lines += [f"{k} = {v}\n" for k, v in project["entry-points"]["mentalese.families"].items()]
    info = folder / "installed-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[mentalese.families]\n{''.join(lines)}")
    return environment(folder, *packages)


def environment(*folders: Path) -> dict[str, str]:
    paths = [*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def run(*words: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mentalese", *words]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def test_every_wrong_family_fails_in_the_right_test(tmp_path: Path) -> None:
    packages = [new(tmp_path, "as_it_is"), *(new(tmp_path, name, changes) for name, (_, changes) in MUTANTS.items())]
    recipes = [f"{package.name}/tiny" for package in packages]
    tests = {right for right, _ in MUTANTS.values()}
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_all.py").write_text(f"from mentalese.testing import *\nRECIPES = {recipes}\n")
    options = ["--junit-xml", "report.xml", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", " or ".join(tests)]
    command = [sys.executable, "-m", "pytest", "--quiet", "test_all.py", *options]
    env = install(tmp_path, *packages)
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    asked: set[tuple[str, str]] = set()
    failed: dict[str, set[str]] = defaultdict(set)
    for outcome in ElementTree.parse(tmp_path / "report.xml").iter("testcase"):
        test, _, recipe = outcome.get("name", "").removeprefix("test_").partition("[")
        name = recipe.partition("/")[0]
        asked.add((name, test))
        if outcome.find("failure") is not None or outcome.find("error") is not None:
            failed[name].add(test)
    assert asked == {(package.name, test) for package in packages for test in tests}, done.stdout
    for name, (right, _) in MUTANTS.items():
        assert right in failed[name], f"{name} passes\n{done.stdout}"
        assert name in SHOWS_IN_SEVERAL or failed[name] == {right}, done.stdout
    assert not failed["as_it_is"], done.stdout


def test_a_new_family_is_small() -> None:
    lines = {path.stem: len(path.read_text().splitlines()) for path in (TEMPLATE / EXAMPLE).glob("*.txt")}
    assert lines["model.py"] < 50
    assert sum(lines.values()) <= 80


def test_a_new_family_is_installed_checked_and_trained(tmp_path: Path, corpus: Path) -> None:
    package = new(tmp_path, "my_family")
    written = [path for path in package.rglob("*") if path.is_file()]
    assert {"pyproject.toml", "README.md", "model.py", "recipes.py", "test_contract.py"} < {p.name for p in written}
    assert not any("running_mean" in path.read_text().lower() for path in written)
    env = install(tmp_path, package)
    checked = run("check", "my_family", cwd=tmp_path, env=env)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "failed" not in checked.stdout.splitlines()[-1]
    assert re.search(r"test_two_processes_equal_one\[my_family/tiny\] PASSED", checked.stdout)
    words = ["train", "my_family/tiny", "--train.steps", "2", "--data", f"file:{corpus}", "--data.tokenizer", "bpe:512"]
    trained = run(*words, "--out", "run", cwd=tmp_path, env=env)
    assert trained.returncode == 0, trained.stderr
    assert "my_family/tiny: test perplexity" in trained.stdout


def test_uninstalled_family_is_checked_by_folder_or_module(tmp_path: Path) -> None:
    package = new(tmp_path, "my_family")
    only = ("--only", "every_parameter_gets_a_gradient")
    done = run("check", "my_family/__init__.py", *only, cwd=package)  # the next test checks the folder
    assert done.returncode == 0, done.stderr
    assert "1 passed" in done.stdout.splitlines()[-1]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = run("check", "my_family", *only, cwd=elsewhere, env=environment(package))
    assert done.returncode == 0, done.stderr


def test_a_failure_is_shown_and_ends_in_exit_code_1(tmp_path: Path) -> None:
    package = new(tmp_path, "my_family", MUTANTS["has_an_idle_parameter"][1])
    done = run("check", ".", "--only", "gradient or aligned", cwd=package)
    assert done.returncode == 1
    assert "test_every_parameter_gets_a_gradient[my_family/tiny] FAILED" in done.stdout
    assert "idle.weight" in done.stdout
    assert "1 failed, 1 passed" in done.stdout.splitlines()[-1]
    recipes = package / "my_family" / "recipes.py"
    recipes.write_text(recipes.read_text().replace("my_family/tiny", "my_family/large"))
    done = run("check", ".", cwd=package)
    assert done.returncode == 2
    assert "add a small one called NAME/tiny" in done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import mentalese\nFAMILY = (", "broken.py, line 2: '(' was never closed: mend that line"),
        (
            "from mentalese import Family\n"
            "FAMILY = Family(name='b', description='', recipes='broken:RECIPES', classes={})\n",
            "'broken:RECIPES', which cannot be imported (module 'broken' has no attribute 'RECIPES')",
        ),
    ],
)
def test_a_mistake_in_a_family_is_one_sentence(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "broken.py").write_text(text)
    assert cli.main(["check", str(tmp_path / "broken.py")]) == 2
    assert says in capsys.readouterr().err
    sys.modules.pop("broken", None)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("new", "NAME"),
        ("new layout x", "family"),
        ("new family My-Family", "NAME is 'My-Family': use lower-case letters"),
        ("new family class", "NAME is 'class': use lower-case letters"),
        ("new family json", "NAME is 'json': a family, model or Python module has this name"),
        ("new family coconut", "NAME is 'coconut': a family"),
        ("new family gpt2", "NAME is 'gpt2': a family"),
        ("new family bert", "NAME is 'bert': a family"),
        ("new family there", "--out is 'there': it exists"),
        ("check", "FAMILY"),
        ("check coconutt", "; did you mean 'coconut'"),
        ("check there", "neither pyproject.toml nor __init__.py"),
        ("check json", "json declares no family: set FAMILY"),
        ("check coconut --only no_such_test", "--only is 'no_such_test': no test has that in its name"),
    ],
)
def test_what_cannot_be_made_or_checked_is_one_sentence(
    words: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    assert cli.main(words.split()) == 2
    assert says in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_without_pytest_check_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pytest" else find_spec(name))
    assert cli.main(["check", "coconut"]) == 2
    assert "needs pytest: pip install pytest" in capsys.readouterr().err


def test_pytest_is_imported_by_nothing_else() -> None:
    code = "import sys, mentalese, mentalese.api, mentalese.commands.check; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
