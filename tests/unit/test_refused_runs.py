"""A run and its dry run refuse the same values, before anything is built or written."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from mentalese import InputError, get_recipe
from mentalese.cli import main
from mentalese.models.build import build_model
from mentalese.training import memory
from support import shrink

REFUSED = {
    "model.n_layer=0": "model.n_layer is 0: set 1 or more",
    "model.n_layer=-1": "model.n_layer is -1: set 1 or more",
    "model.num_hidden_layers=0": "model.n_layer is 0: set 1 or more",
    "model.n_layer=100000000": "model.n_layer is 100000000: set at most 50,000",
    "model.n_head=-4": "model.n_head is -4: set 1 or more",
    "model.n_embd=0": "model.n_embd is 0: set 1 or more",
    "model.n_inner=0": "model.n_inner is 0: set 1 or more",
    "train.steps=1000000000": "in an epoch, set at most 1,000,000 epochs",
    "model.n_inner=-1": "model.n_inner is -1: set 1 or more",
    "model.layer_norm_epsilon=-1": "model.layer_norm_epsilon is -1.0: set 0 or more",
    "model.initializer_range=-1": "model.initializer_range is -1.0: set 0 or more",
    "train.trackers=nope": "train.trackers is 'nope': no tracker",
    "train.init=nope": "nope contains no model",
    "evaluation.estimator=x": "evaluation.estimator is 'x': this model has exact; use one of them",
    "evaluation.sample_tokens=100000": "evaluation.sample_tokens is 100000: the model's context is",
    "evaluation.metric=accuracy": "evaluation.metric is 'accuracy'",
}


@pytest.fixture(scope="module")
def recipe(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipes") / "recipe.json"
    path.write_text(json.dumps(shrink(get_recipe("gpt2/tiny"), corpus, steps=2).to_dict()))
    return path


@pytest.mark.parametrize("setting", REFUSED)
@pytest.mark.parametrize("words", [[], ["--dry-run"], ["--dry-run", "--flops-per-second", "1e12"]])
def test_runs_and_dry_runs_refuse_the_same(
    words: list[str], setting: str, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    out = tmp_path / "run"
    assert main(["train", str(recipe), setting, "--out", str(out), *words]) == 2
    assert REFUSED[setting] in capsys.readouterr().err
    assert not out.exists()
    assert time.monotonic() - began < 30


def test_a_dry_run_refuses_the_folder_of_another_run(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").touch()
    assert main(["train", str(recipe), "--out", str(tmp_path), "--dry-run"]) == 2
    assert "is not empty and contains no run" in capsys.readouterr().err


def test_a_dry_run_refuses_a_loss_that_is_not_finite(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(recipe), "model.initializer_range=1e30", "--dry-run"]) == 1
    assert "at step 0" in capsys.readouterr().err


def test_a_model_beyond_the_memory_is_refused(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = ["train", str(recipe), "model.n_embd=400000", "--out", str(tmp_path / "run")]
    for words in (wide, [*wide, "--dry-run"]):
        assert main(words) == 2
        assert "GiB of the" in (said := capsys.readouterr().err)
        assert "that this device has: use a smaller model" in said
    assert main([*wide, "--dry-run", "--flops-per-second", "1e20"]) == 0  # of another machine
    monkeypatch.setattr(memory, "device_memory", lambda device: 1000)
    assert main(["train", str(recipe), "--out", str(tmp_path / "run")]) == 2
    assert not (tmp_path / "run").exists()


def test_a_model_of_too_many_tensors_is_refused(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mentalese.models.build.MOST_TENSORS", 20)
    with pytest.raises(InputError, match="more than 20 tensors of weights"):
        build_model({"model_type": "gpt2", "n_layer": 4, "n_embd": 8, "n_head": 2}, tokenizer, 0)


def test_a_decoder_whose_heads_cannot_share_keys_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    sizes = {"model_type": "llama", "hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 4}
    with pytest.raises(InputError, match=r"model.num_key_value_heads is 4: set a divisor of num_attention_heads \(6\)"):
        build_model(sizes, tokenizer, 0)
