"""What a result says of its origin: the commit of this package, and a command line that trains the same recipe."""

from __future__ import annotations

import dataclasses
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mentalese import cli, get_recipe, provenance
from mentalese.provenance import train_command
from mentalese.recipe import Recipe


def changed(name: str, **sections: dict[str, Any]) -> Recipe:
    recipe = get_recipe(name)
    model = sections.pop("model", {})
    new = {section: dataclasses.replace(getattr(recipe, section), **fields) for section, fields in sections.items()}
    return dataclasses.replace(recipe, model=recipe.model | model, **new)


LENGTH = {"steps": None, "epochs": None, "tokens": 5000, "seed": 2, "early_stopping_patience": None}


@pytest.mark.parametrize(
    "recipe",
    [
        get_recipe("gpt2/tiny"),
        changed(
            "gpt2/tiny", train=LENGTH, model={"n_embd": 96}, optimizer={"betas": (0.8, 0.9), "max_grad_norm": None}
        ),
        changed("thought_gestalt/tiny", train=LENGTH | {"compile": True}, model={"context_seeding": False}),
        changed(
            "latent_thought/tiny",
            data={"source": "file:a b.txt", "text_column": "it's", "detokenizer": None},
            evaluation={"sample_prompts": ("One day,", "$HOME"), "max_documents": 3},
        ),
    ],
    ids=lambda recipe: recipe.name,
)
def test_the_command_line_trains_the_same_recipe(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[Recipe, Path]] = []

    def train(recipe: Recipe, out: Path, **_: Any) -> dict[str, Any]:
        found.append((recipe, out))
        return {
            "test": {"perplexity": 1.0, "bits_per_byte": 1.0, "protocol": {}},
            "steps": 1,
            "tokens": 1,
            "seconds": 1,
        }

    monkeypatch.setattr("mentalese.training.loop.train", train)
    command = train_command(recipe, Path("runs/of a/seed-2"))
    assert command is not None
    assert cli.main(shlex.split(command)[1:]) == 0
    [(again, out)] = found
    assert again.fingerprint() == recipe.fingerprint()
    assert out == Path("runs/of a/seed-2")


def test_a_recipe_as_it_is_needs_no_option() -> None:
    assert train_command(get_recipe("gpt2/tiny"), Path("a")) == "mentalese train gpt2/tiny --out a"


def test_what_no_option_can_say_has_no_command() -> None:
    recipe = get_recipe("gpt2/tiny")
    gestalt = get_recipe("thought_gestalt/tiny")
    assert gestalt.phases
    for other in (
        dataclasses.replace(recipe, name="mine/tiny"),
        dataclasses.replace(gestalt, phases=()),
        dataclasses.replace(recipe, model={"model_type": "gpt2"}),
    ):
        assert train_command(other, Path("a")) is None


# -- the commit --------------------------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's repository with a commit, and inside it an environment with the package, which is not tracked."""
    package = tmp_path / ".venv" / "lib" / "site-packages" / "mentalese"
    package.mkdir(parents=True)
    (package / "provenance.py").write_text("")
    (tmp_path / "experiment.py").write_text("import mentalese")
    git(tmp_path, "init")
    git(tmp_path, "add", "experiment.py")
    git(tmp_path, "commit", "-m", "my work")
    monkeypatch.setattr(provenance, "__file__", str(package / "provenance.py"))
    return tmp_path


def test_repository_of_an_environment_is_not_the_package(project: Path) -> None:
    assert provenance.commit.__wrapped__() is None


def test_tracked_package_states_its_commit_and_changes(project: Path) -> None:
    git(project, "add", "-f", ".venv")
    git(project, "commit", "-m", "the package too")
    head = git(project, "rev-parse", "HEAD")
    assert provenance.commit.__wrapped__() == head
    Path(provenance.__file__).write_text("changed = True")
    assert provenance.commit.__wrapped__() == f"{head}+changes"
