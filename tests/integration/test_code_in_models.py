"""Code beside a model's weights is not run by any command, and no weights are unpickled, whatever a folder names."""

from __future__ import annotations

import ast
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, dynamic_module_utils

from mentalese import InputError, cli, get_recipe, load, override
from support import keep_changes, saved, shrink

SOURCE = Path(__file__).parents[2] / "src" / "mentalese"
CODE = """
from pathlib import Path
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

Path({marker!r}).touch()

class Config(GPT2Config):
    model_type = {kind!r}

class Model(GPT2LMHeadModel):
    config_class = Config

class Tokenizer(PreTrainedTokenizerFast):
    pass
"""
AUTO_MAPS: dict[str, Any] = {
    "config.json": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
    "tokenizer_config.json": {"AutoTokenizer": ["code.Tokenizer", "code.Tokenizer"]},
}
COMMANDS = {
    "eval": "eval {folder} --data {text} --documents 2",
    "answer": "answer {folder} --data {questions} --documents 1",
    "generate": "generate {folder} --prompt She --max-new-tokens 2",
    "sample": "sample {folder} --samples 2 --sample-tokens 4 --judge {sound}",
    "judge": "sample {sound} --samples 2 --sample-tokens 4 --judge {folder}",
    "think": "think {folder} --text She --out {out}/page.html",
    "against": "think {sound} --text She --against {folder} --out {out}/page.html",
    "diff": "diff {sound} {folder} --data {text}",
    "ablate": "ablate {folder} --data {text}",
    "play": "play {folder}",
    "push": "push {folder} name/name --dry-run",
    "figure": "figure positions {folder} --data {text} --documents 2 --out {out}/figure.svg",
    "grow": "grow {folder} --family coconut --out {out}/grown",
    "init": "train {out}/one.json --train.init {folder} --out {out}/run",
    "tokenizer": "train {out}/one.json --out {out}/run",
    "dry run": "train {out}/one.json --train.init {folder} --dry-run",
    "compare": "compare {out}/one.json {out}/two.json --out {out}/compared",
    "prepare": "data prepare {text} --tokenizer {folder} --out {out}/store",
    "hub": "eval hub:{folder} --data {text}",
    "hub tokenizer": "data prepare {text} --tokenizer hub:{folder} --out {out}/hub",
    "source": "data prepare hub:{folder} --out {out}/source",
    "file": "data prepare file:{folder} --out {out}/file",
}
"""Every command that opens a model, a tokenizer or a data set."""
NO_MODEL = {"tokenizer", "compare", "prepare", "hub tokenizer", "push"}
"""Commands that open only the tokenizer, or upload files as they are."""
REFUSED = {
    "ablate": "has no thoughts of its own|is defined by code of its own",
    "hub": "hub cannot be reached",
    "source": "hub cannot be reached",
    "file": "is not a JSON object",
}


@pytest.fixture(scope="module")
def sound(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("sound") / "run", shrink(get_recipe("gpt2/tiny"), corpus)) / "model"


@pytest.fixture(params=["gpt2", "unknown"])
def folder(request: pytest.FixtureRequest, sound: Path, tmp_path: Path) -> Path:
    """A model with code in its folder, of a type that transformers has and of one that only the code defines."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in sound.iterdir():
        if file.name != "mentalese.json":
            (folder / file.name).write_bytes(file.read_bytes())
    for name, auto_map in AUTO_MAPS.items():
        content = json.loads((folder / name).read_text()) | {"auto_map": auto_map}
        if name == "config.json":
            content["model_type"] = request.param
        (folder / name).write_text(json.dumps(content))
    (folder / "README.md").write_text("A model.")
    code = CODE.format(marker=str(tmp_path / "marker"), kind=request.param)
    for name in ("code.py", f"{folder.name}.py"):  # the second is what loaded data sets once
        (folder / name).write_text(code)
    return folder


def never(*_: Any, **__: Any) -> Any:
    raise AssertionError("a prompt offers to run the code")


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_runs_code_of_a_folder(
    folder: Path,
    sound: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    monkeypatch.setattr("builtins.input", never)
    monkeypatch.setattr("mentalese.viewer.play.play", lambda *_: None)  # what opens the model comes before
    recipe = override(shrink(get_recipe("gpt2/tiny"), corpus, steps=1), f"data.tokenizer={folder}")
    for number in ("one", "two"):
        (tmp_path / f"{number}.json").write_text(json.dumps(recipe.to_dict() | {"name": f"small/{number}"}))
    places = {"folder": folder, "sound": sound, "out": tmp_path, "text": f"file:{corpus}"}
    places["questions"] = f"file:{corpus.with_name('questions.jsonl')}"
    code = cli.main([word.format(**places) for word in COMMANDS[name].split()])
    said = capsys.readouterr().err
    assert not (tmp_path / "marker").exists()
    if name in REFUSED:
        assert code == 2
        assert re.search(REFUSED[name], said), said
    elif json.loads((folder / "config.json").read_text())["model_type"] == "gpt2" or name in NO_MODEL:
        assert code == 0, said
    else:
        assert code == 2
        assert "is defined by code of its own, which is not run" in said


@pytest.mark.parametrize("kind", ["config", "model", "tokenizer"])
def test_with_consent_the_code_runs(folder: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Show that the marker would be seen."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    opener: Any = {"config": AutoConfig, "model": AutoModelForCausalLM, "tokenizer": AutoTokenizer}[kind]
    opener.from_pretrained(folder, trust_remote_code=True)
    assert (tmp_path / "marker").exists()


def test_every_auto_class_is_called_without_consent() -> None:
    """Check the argument without which transformers offers to run the code."""
    calls = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or "testing" in path.parts:  # which opens what it has saved itself
                continue
            if re.fullmatch(r"Auto\w+\.from_(pretrained|config)", ast.unparse(node.func)):
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                calls.append((f"{path.name}:{node.lineno}", given.get("trust_remote_code")))
    assert len(calls) > 8
    assert [place for place, given in calls if given != "False"] == []


# -- pickles -----------------------------------------------------------------------------------------------------------


class Payload:
    """Touches a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def as_only_weights(folder: Path) -> str:
    (folder / "model.safetensors").unlink()
    return "pytorch_model.bin"


def as_named_weights(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": "weights.pt"}))
    return "weights.pt"


def as_shard(folder: Path) -> str:
    (folder / "model.safetensors").rename(folder / "model-00001.safetensors")
    index = {"metadata": {}, "weight_map": {"transformer.wte.weight": "model-00002.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return "model-00002.bin"


def as_adapter(folder: Path) -> str:
    adapter = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "target_modules": ["c_attn"]}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    return "adapter_model.bin"


@pytest.mark.parametrize("place", [as_only_weights, as_named_weights, as_shard, as_adapter])
def test_weights_in_a_pickle_are_refused(sound: Path, tmp_path: Path, place: Any) -> None:
    folder, marker = tmp_path / "model", tmp_path / "marker"
    folder.mkdir()
    for file in sound.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    keep_changes(folder / "mentalese.json")
    about = json.loads((folder / "mentalese.json").read_text())
    (folder / "mentalese.json").write_text(json.dumps(about | {"weights": {}}))
    name = place(folder)
    (folder / name).write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(InputError, match=f"model/{name} is a pickle, which may contain code: save"):
        load(folder, "cpu")
    assert not marker.exists()
    pickle.loads((folder / name).read_bytes())
    assert marker.exists(), "the pickle does nothing, and the test could not fail"
