"""What the training loop promises, one run of a two-layer GPT-2 at a time."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

import mentalese
from mentalese import Phase, Recipe, Saved, TrainConfig, get_recipe
from mentalese.commands.dry_run import print_dry_run
from mentalese.data.batch import Batch
from mentalese.data.layouts import Packed, PerDocument
from mentalese.data.sources import open_source
from mentalese.data.store import prepare
from mentalese.data.tokenizers import open_tokenizer
from mentalese.errors import InputError
from mentalese.files import read_json
from mentalese.models.base import LanguageModel, LossOutput
from mentalese.models.checkpoints import load_model, saved_recipe
from mentalese.models.scoring import Perplexity
from mentalese.training import loop
from mentalese.training.loop import Run, train
from mentalese.training.parallel import Parallel, gradient_shares
from mentalese.training.signals import Interrupted
from mentalese.training.validation import Validation, openings
from support import (
    assert_same,
    checkpoint,
    checkpoint_steps,
    finish,
    keep_changes,
    launch,
    losses,
    metrics,
    shrink,
    weights,
)


@pytest.fixture(scope="module")
def recipe(corpus: Path) -> Recipe:
    recipe = shrink(get_recipe("gpt2/tiny"), corpus)
    return dataclasses.replace(recipe, model=recipe.model | {"n_layer": 2})


def changed(recipe: Recipe, section: str, **fields: object) -> Recipe:
    """The recipe with other fields in one section: `changed(recipe, "train", steps=4)`."""
    return dataclasses.replace(recipe, **{section: dataclasses.replace(getattr(recipe, section), **fields)})


@pytest.fixture(scope="module")
def finished(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that is over; tests that write take a copy."""
    out = tmp_path_factory.mktemp("finished") / "run"
    train(recipe, out, show=False)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- a step ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [Packed, PerDocument])
def test_two_micro_batches_equal_one_batch(recipe: Recipe, tmp_path: Path, layout: type[Packed]) -> None:
    """Rows of `per_document` hold unequal numbers of targets, and so do the micro-batches."""
    recipe = dataclasses.replace(recipe, layout=layout(**vars(recipe.layout)))
    one = train(recipe, tmp_path / "one", show=False)
    two = train(changed(recipe, "train", gradient_accumulation_steps=2), tmp_path / "two", show=False)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    assert two["test"]["nll"] == pytest.approx(one["test"]["nll"], rel=1e-5)
    assert two["tokens"] == one["tokens"]
    if layout is Packed:
        assert two["flops"] == one["flops"]
    else:  # rows are padded to the longest of their micro-batch, not of the whole batch
        assert 0.5 * one["flops"] < two["flops"] <= one["flops"]


def test_bf16_trains_and_is_evaluated_in_float32(recipe: Recipe, finished: Path, tmp_path: Path) -> None:
    result = train(changed(recipe, "train", precision="bf16"), tmp_path / "run", show=False)
    found = losses(tmp_path / "run")
    assert all(map(math.isfinite, found))
    assert found[-1] < found[0] - 0.2
    assert found != losses(finished)
    assert found == pytest.approx(losses(finished), rel=1e-3)
    assert {tensor.dtype for tensor in weights(tmp_path / "run").values()} == {torch.float32}
    evaluated = mentalese.evaluate(tmp_path / "run", show=False)["perplexity"]
    assert {name: evaluated[name] for name in result["test"]} == result["test"]


@pytest.mark.parametrize(
    ("capabilities", "says"), [({"avx512_bf16": False}, True), ({"avx512_bf16": True}, False), ({}, False)]
)
def test_a_cpu_without_bf16_is_said_at_the_start(
    capabilities: dict[str, bool], says: bool, recipe: Recipe, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    recipe = changed(recipe, "train", precision="bf16")
    Run(recipe, tmp_path, Parallel(0, 1, torch.device("cpu")), show=True)
    print_dry_run(recipe, None)
    out, err = capsys.readouterr()
    for shown in (out, err):
        assert ("no instructions for bfloat16" in shown) == says


def test_phase_that_resets_the_optimizer_clears_its_moments(recipe: Recipe, tmp_path: Path) -> None:
    recipe = changed(recipe, "train", steps=4, checkpoint_every=4)
    reset = dataclasses.replace(recipe, phases=(Phase(start=3, reset_optimizer=True),))
    for name, each in {"plain": recipe, "reset": reset}.items():
        train(each, tmp_path / name, show=False)
    plain, after = checkpoint(tmp_path / "plain"), checkpoint(tmp_path / "reset")
    assert losses(tmp_path / "reset") == losses(tmp_path / "plain")  # the reset acts on the last update
    assert {int(value) for name, value in plain.items() if name.endswith(".step")} == {4}
    assert {int(value) for name, value in after.items() if name.endswith(".step")} == {1}
    first, second = (1 - beta for beta in recipe.optimizer.betas)
    for name in [name for name in after if name.endswith(".exp_avg")]:  # both moments are of one gradient
        gradient, squared = after[name] / first, after[f"{name}_sq"] / second
        torch.testing.assert_close(gradient.square(), squared, rtol=1e-4, atol=1e-12)


# -- watching ----------------------------------------------------------------------------------------------------------


class Script:
    """Gives scripted validation perplexities, and keeps the weights that each of them was asked for."""

    def __init__(self, values: list[float]) -> None:
        self.values, self.seen = values, []  # type: tuple[list[float], list[dict[str, Tensor]]]

    def perplexity(self, saved: Saved, *args: Any, **kwargs: Any) -> Perplexity:
        if not isinstance(kwargs["before_batch"], MethodType):  # the run's, but for the test split at the end
            return Perplexity(1.0, 1, 1, math.e, 1.0, {})
        state = saved.model.state_dict()
        self.seen.append({name: value.clone() for name, value in state.items()})
        value = self.values[len(self.seen) - 1]
        return Perplexity(math.log(value), 1, 1, value, 1.0, {})


@pytest.mark.parametrize(
    ("values", "end", "best"),
    [
        ([100, 80, 85, 90, 95, 70], 5, 2),
        ([100, 90, 89.8, 89.7, 89.6, 70], 5, 5),  # gains below min_delta do not count, and the best is still the best
        ([100, 99.7, 99.4, 99.1, 98.8, 98.5, 98.2, 97.9], 8, 8),  # small gains that add up do
        ([80, 90, 85, 79, 81, 82, 83, 70], 7, 4),
    ],
)
def test_early_stopping_ends_the_run_and_keeps_the_best_model(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[float], end: int, best: int
) -> None:
    script = Script(values)
    monkeypatch.setattr(Saved, "perplexity", lambda *args, **options: script.perplexity(*args, **options))
    patience = {"early_stopping_patience": 3, "early_stopping_min_delta": 0.5}
    result = train(changed(recipe, "train", steps=8, eval_every=1, **patience), tmp_path / "run", show=False)
    assert (result["steps"], result["best_step"]) == (end, best)
    assert result["validation"]["perplexity"] == min(values[:end])
    assert len(losses(tmp_path / "run")) == end
    saved = weights(tmp_path / "run")
    assert_same(saved, {name: script.seen[best - 1][name] for name in saved})
    if best < end:
        assert any(not torch.equal(saved[name], script.seen[-1][name]) for name in saved)


def nan_loss(loss: Tensor, weight: Tensor) -> Tensor:
    return loss * math.nan


def infinite_gradient(loss: Tensor, weight: Tensor) -> Tensor:
    """The loss stays as it is: the root of zero is zero, and infinitely steep."""
    return loss + (weight.sum() - weight.sum().detach()).sqrt()


def overflowing_gradient(loss: Tensor, weight: Tensor) -> Tensor:
    """Every gradient is finite and their norm is not: clipping would turn the update into zeros."""
    return loss + 1e30 * (weight - weight.detach()).sum()


def test_run_logs_gradient_shares_that_its_model_names(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def groups(model: LanguageModel) -> dict[str, list[list[torch.nn.Parameter]]]:
        blocks = model.transformer.h
        return {name: [list(getattr(block, name).parameters()) for block in blocks] for name in ("attn", "mlp")}

    monkeypatch.setattr(LanguageModel, "gradient_groups", groups)
    train(dataclasses.replace(changed(recipe, "train", log_every=4)), tmp_path / "run", show=False)
    logged = [record for record in metrics(tmp_path / "run") if "loss" in record]
    assert [record["step"] for record in logged] == [4, 6]
    for record in logged:
        attention, mlp = record["gradient_share.attn"], record["gradient_share.mlp"]
        assert 0 < attention < 1
        assert attention + mlp == pytest.approx(1)
        assert record["sentence_steps"] == record["step"]


def test_parts_of_a_loss_are_means_over_the_interval(corpus: Path, tmp_path: Path) -> None:
    recipe = shrink(get_recipe("conceptlm/tiny"), corpus)
    logged = {}
    for every in (1, 3):
        train(changed(recipe, "train", log_every=every), tmp_path / str(every), show=False)
        logged[every] = [record for record in metrics(tmp_path / str(every)) if "loss" in record]
    assert [record["step"] for record in logged[3]] == [3, 6]
    for record in logged[3]:
        steps = [one for one in logged[1] if record["step"] - 3 < one["step"] <= record["step"]]
        for name in ("loss", "ntp", "ncp", "vq", "concept_r2", "codebook_utilisation"):
            assert record[name] == pytest.approx(sum(one[name] for one in steps) / 3, rel=1e-6), name
    curve = json.loads((tmp_path / "3" / "result.json").read_text())["curve"]
    assert [point["ntp"] for point in curve if "loss" in point] == [record["ntp"] for record in logged[3]]


def test_a_share_is_the_mean_norm_of_a_components_layers() -> None:
    def parameter(*gradient: float) -> torch.nn.Parameter:
        made = torch.nn.Parameter(torch.zeros(len(gradient)))
        made.grad = torch.tensor(gradient)
        return made

    idle = torch.nn.Parameter(torch.zeros(2))
    components = {"a": [[parameter(3.0), parameter(0.0, 4.0)], [parameter(1.0), idle]], "b": [[parameter(9.0)]]}
    assert gradient_shares(components | {"none": []}) == pytest.approx({"a": 3 / 12, "b": 9 / 12})
    assert gradient_shares({"idle": [[idle]]}) == {"idle": 0}
    assert gradient_shares({}) == {}


def test_every_checkpoint_of_a_run_opens_as_a_model(recipe: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(changed(recipe, "train", checkpoint_every=3, keep_checkpoints=9, eval_every=6), out, show=False)
    checkpoints = [out / "checkpoints" / f"step-{step:08}" for step in checkpoint_steps(out)]
    first, last = (load_model(path)[0].state_dict() for path in checkpoints)
    assert_same(last, load_model(out)[0].state_dict())
    assert any(not torch.equal(first[name], last[name]) for name in first)
    assert saved_recipe(checkpoints[0]) == saved_recipe(out)
    [validation] = [record["validation"] for record in metrics(out) if "validation" in record]
    opened = dataclasses.replace(mentalese.load(checkpoints[1], "cpu"), evaluation=recipe.evaluation)
    evaluated = mentalese.evaluate(opened, split="validation", show=False)["perplexity"]
    assert evaluated["perplexity"] == pytest.approx(validation["perplexity"], rel=1e-6)


def test_a_checkpoint_is_read_as_its_step_of_a_curriculum(corpus: Path, tmp_path: Path) -> None:
    recipe, out = shrink(get_recipe("coconut/tiny-coconut"), corpus), tmp_path / "run"
    phases = tuple(Phase(start=stage, clock="epochs", layout={"stage": stage}) for stage in (1, 2))
    recipe = dataclasses.replace(recipe, phases=phases, layout=dataclasses.replace(recipe.layout, stage=0))
    recipe = changed(recipe, "train", steps=None, epochs=3, checkpoint_every=1, keep_checkpoints=99, eval_every=1)
    recipe = changed(recipe, "evaluation", metric="perplexity")
    train(recipe, out, show=False)
    validations = {record["step"]: record["validation"] for record in metrics(out) if "validation" in record}
    stages = {step: validation["protocol"]["stage"] for step, validation in validations.items()}
    assert {*stages.values()} == {0, 1, 2}
    for step in checkpoint_steps(out):
        assert mentalese.load(out / "checkpoints" / f"step-{step:08}", "cpu").layout.stage == stages[step]


def test_a_run_whose_validation_was_lost_by_a_power_cut_ends(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints are on the disk when they are there, lines of `metrics.jsonl` need not be."""
    out, steps = tmp_path / "run", changed(recipe, "train", checkpoint_every=2, eval_every=4, steps=8)
    steps = changed(
        steps, "optimizer", learning_rate=1e-30, schedule="constant", warmup=0
    )  # the first one stays the best
    own = loop.Run.one_step

    def cut(run: loop.Run) -> None:
        if run.state.step == 5:
            raise OSError("power")
        own(run)

    monkeypatch.setattr(loop.Run, "one_step", cut)
    with pytest.raises(OSError, match="power"):
        train(steps, out, show=False)
    monkeypatch.setattr(loop.Run, "one_step", own)
    path = out / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if json.loads(line)["step"] < 4))
    assert train(steps, out, resume=True, show=False)["best_step"] in (4, 8)


def test_a_checkpoint_that_cannot_be_opened_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(changed(recipe, "train", checkpoint_every=6), out, show=False)
    path = out / "checkpoints" / "step-00000006"
    config = json.loads((out / "model" / "config.json").read_text())
    (out / "model" / "config.json").write_text(json.dumps(config | {"n_inner": 8}))
    with pytest.raises(InputError, match=r"model/config\.json is missing or has changed .* remove 'files'"):
        load_model(path)
    keep_changes(out / "model" / "mentalese.json")
    with pytest.raises(InputError, match="another model's"):
        load_model(path)
    (out / "model").rename(out / "away")
    for place in (path, out):
        with pytest.raises(InputError, match="has no model/ yet"):
            load_model(place)
    (out / "away").rename(out / "model")
    file = next(path.glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match="is damaged"):
        load_model(path)


@pytest.mark.parametrize("max_grad_norm", [1.0, None])
@pytest.mark.parametrize("log_every", [1, 4])
@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (nan_loss, "the loss is nan"),
        (infinite_gradient, "the gradients' norm is inf"),
        (overflowing_gradient, "the gradients' norm is inf"),
    ],
)
def test_what_is_not_finite_ends_the_run_and_names_the_batch(
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Tensor, Tensor], Tensor],
    what: str,
    log_every: int,
    max_grad_norm: float | None,
) -> None:
    """Step 5 (from 0; epochs are of four batches) is bad; it is found when its window of steps is logged."""
    training_loss, calls = LanguageModel.training_loss, []

    def spoilt(model: LanguageModel, batch: Batch, **settings: Any) -> LossOutput:
        output = training_loss(model, batch, **settings)
        calls.append(batch)
        if len(calls) == 6:
            output.loss = spoil(output.loss, model.output_weight())
        return output

    monkeypatch.setattr(LanguageModel, "training_loss", spoilt)
    recipe = changed(recipe, "data", train_tokens=800)
    recipe = changed(recipe, "optimizer", max_grad_norm=max_grad_norm)
    every = {"log_every": log_every, "checkpoint_every": log_every, "eval_every": 100, "keep_checkpoints": 9}
    with pytest.raises(FloatingPointError) as error:
        train(changed(recipe, "train", steps=12, seed=3, **every), tmp_path / "run", show=False)
    data_hash = json.loads((tmp_path / "run" / "config.json").read_text())["data_hash"]
    where = f"at step 5 (epoch 1, batch 1 of the epoch, data {data_hash[:12]}, seed 3)"
    assert str(error.value).startswith(f"{what} {where}: ")
    assert checkpoint_steps(tmp_path / "run") == ([4] if log_every == 4 else [1, 2, 3, 4, 5])
    assert not (tmp_path / "run" / "model").exists()


# -- what is refused, and when -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"context_length": 300}, r"evaluation.context_length is 300: the model's context is 256"),
        ({"sample_prompts": ("word " * 400,)}, r"evaluation.sample_prompts is .*: one has \d+ tokens"),
        ({"sample_prompts": (" ",)}, r"prompts\[0\] is ' ': use a prompt with some text"),
        ({"stride": 64}, r"evaluation.stride is 64: .* \(64\)"),
    ],
)
def test_impossible_evaluation_is_refused_before_writing(
    recipe: Recipe, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        train(changed(recipe, "evaluation", **fields), tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("gpt2/tiny", {"dropout": 0.1}, "phases.model.dropout is 0.1: GPT2LMHeadModel has no such training setting"),
        ("looped/tiny", {"turn": [1, 4]}, "has no such training setting; did you mean 'turns'"),
        ("looped/tiny", {"turns": [4, 0]}, r"phases.model.turns is \[4, 0\]: set a number of 1 or more"),
        ("thought_gestalt/tiny", {"token_dropout": 1.5}, "phases.model.token_dropout is 1.5: set a number from 0 to 1"),
        (
            "thought_gestalt/tiny",
            {"eos_weight": "0.05"},
            "phases.model.eos_weight is '0.05': set a number of 0 or more",
        ),
        ("latent_thought/tiny", {"kl_weight": 1.0}, "phases.model.kl_weight is 1.0: .* has no such training setting"),
        (
            "latent_thought/tiny-vae",
            {"kl_weight": [0, 1, 2]},
            r"kl_weight is \[0, 1, 2\]: set a number .* two for a ramp",
        ),
    ],
)
def test_a_phase_that_comes_late_is_refused_before_the_start(
    name: str, setting: dict[str, Any], message: str, corpus: Path, tmp_path: Path
) -> None:
    recipe = dataclasses.replace(shrink(get_recipe(name), corpus, steps=9), phases=(Phase(start=8, model=setting),))
    with pytest.raises(InputError, match=message):
        train(recipe, tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


def test_impossible_later_layout_is_refused_before_the_start(recipe: Recipe, tmp_path: Path) -> None:
    phase = Phase(start=1, clock="epochs", layout={"batch_size": 100_000})
    late = dataclasses.replace(recipe, phases=(phase,), train=TrainConfig(steps=500, device="cpu"))
    with pytest.raises(InputError, match="batch"):
        train(late, tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


def test_samples_begin_with_test_documents_that_begin_with_words(recipe: Recipe) -> None:
    store, tokenizer = prepare(recipe.data, recipe.layout, show=False)
    split, blank = store.splits["test"], tokenizer("\n")["input_ids"][0]
    first = int(np.flatnonzero(np.diff(split.documents) > 24)[0])
    tokens = split.tokens.copy()
    tokens[split.documents[first] : split.documents[first] + 12] = blank
    blanked = dataclasses.replace(store, splits=store.splits | {"test": dataclasses.replace(split, tokens=tokens)})
    before, after = openings(store, tokenizer, 50), openings(blanked, tokenizer, 50)
    assert before
    assert after == (before[1:] or ["The"])


@pytest.mark.parametrize(("name", "place"), [("gpt2/tiny", "model"), ("looped/tiny", "model.backbone")])
def test_weights_of_another_precision_are_refused(name: str, place: str, corpus: Path, tmp_path: Path) -> None:
    """As a model's own `config.json` has it: AdamW would have moments of eight bits, which `train.precision` denies."""
    recipe = shrink(get_recipe(name), corpus)
    dtype = {"dtype": "bfloat16"}
    other = dtype if place == "model" else {"backbone": recipe.model["backbone"] | dtype}
    with pytest.raises(InputError, match=rf"^{place}.dtype is 'bfloat16': .* set train.precision=bf16"):
        train(dataclasses.replace(recipe, model=recipe.model | other), tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


def test_a_finished_run_returns_its_result_without_training(
    recipe: Recipe, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("nothing is to be built")

    monkeypatch.setattr(loop, "Run", never)
    before = contents(finished)
    assert train(recipe, finished, resume=True, show=False) == read_json(finished / "result.json")
    assert contents(finished) == before


def test_a_finished_run_on_text_that_has_changed_is_refused(recipe: Recipe, corpus: Path, tmp_path: Path) -> None:
    text = shutil.copy(corpus, tmp_path / "text.jsonl")
    recipe = changed(recipe, "data", source=f"file:{text}")
    train(recipe, tmp_path / "run", show=False)
    text.write_text(text.read_text() + json.dumps({"text": "One more document."}) + "\n")
    before = contents(tmp_path / "run")
    with pytest.raises(InputError, match=r"was trained with other text than .* contains now: use another --out"):
        train(recipe, tmp_path / "run", resume=True, show=False)
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize("kind", ["folder", "store"])
def test_a_finished_run_on_another_tokenizer_is_refused(
    recipe: Recipe, corpus: Path, tmp_path: Path, kind: str
) -> None:
    source, folder, out = open_source(f"file:{corpus}"), tmp_path / "place", tmp_path / "run"
    data = recipe.data

    def write(tokenizer: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        if kind == "store":
            prepare(dataclasses.replace(data, tokenizer=tokenizer), out=folder, show=False)
        else:
            open_tokenizer(tokenizer, source, cache=tmp_path / "cache", show=False).save_pretrained(folder)

    write("bpe:512")
    place = {"source": f"store:{folder}"} if kind == "store" else {"tokenizer": str(folder)}
    recipe = changed(recipe, "data", **place)
    result = train(recipe, out, show=False)
    write("bpe:500")
    with pytest.raises(InputError, match=r"was trained with other tokenizer than .*place contains now: use another"):
        train(recipe, out, resume=True, show=False)
    write("bpe:512")
    assert train(recipe, out, resume=True, show=False) == result


def test_a_run_whose_start_has_been_trained_again_is_refused(recipe: Recipe, finished: Path, tmp_path: Path) -> None:
    start, out = shutil.copytree(finished, tmp_path / "start"), tmp_path / "run"
    recipe = changed(recipe, "train", init=str(start))
    result = train(recipe, out, show=False)
    train(changed(recipe, "train", init=None, seed=1), tmp_path / "other", show=False)
    shutil.rmtree(start)
    assert train(recipe, out, resume=True, show=False) == result  # it may go
    shutil.copytree(tmp_path / "other", start)
    for _ in ("finished", "interrupted"):
        with pytest.raises(
            InputError, match=r"run was trained with other weights than .*start contains now: use another"
        ):
            train(recipe, out, resume=True, show=False)
        (out / "result.json").unlink(missing_ok=True)


def test_resuming_removes_a_half_written_model(recipe: Recipe, finished: Path, tmp_path: Path) -> None:
    out = shutil.copytree(finished, tmp_path / "run")
    (out / "result.json").unlink()
    for remains in (".model-gz2g_s03", ".model.old"):
        shutil.copytree(out / "model", out / remains)
    train(recipe, out, resume=True, show=False)
    assert contents(out).keys() == contents(finished).keys()


def test_a_validation_that_was_cut_is_made_again_alike(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the last step's fast learning rate, which is not a weight; and memory is noted of the whole run."""
    recipe = shrink(get_recipe("latent_thought/tiny"), corpus, steps=4, eval_every=2)
    recipe = dataclasses.replace(recipe, phases=(Phase(model={"fast_learning_rate": (0.1, 2.0)}),))
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(recipe, whole, show=False)

    def stop(*_: object, **__: object) -> None:
        raise Interrupted(signal.SIGTERM)

    def stop_at_once(run: Run) -> None:
        raise MemoryError  # in place of a SIGKILL

    with monkeypatch.context() as patched:
        patched.setattr(Validation, "score", stop)
        patched.setattr(loop, "peak_memory", lambda _: 10**15)
        with pytest.raises(Interrupted):
            train(recipe, cut, show=False)
    killed = tmp_path / "killed"
    shutil.copytree(cut, killed)
    with monkeypatch.context() as patched:
        patched.setattr(Run, "one_step", stop_at_once)
        with pytest.raises(MemoryError):  # after the validation, which has no checkpoint
            train(recipe, killed, resume=True, show=False)
    train(recipe, killed, resume=True, show=False)
    resumed = train(recipe, cut, resume=True, show=False)
    killed_rates, rates, expected = (
        [record["validation"]["protocol"]["inference"] for record in metrics(out) if "validation" in record]
        for out in (killed, cut, whole)
    )
    assert killed_rates == rates == expected
    assert rates[0] != rates[1]
    assert resumed["test"] == read_json(whole / "result.json")["test"]
    assert resumed["peak_memory_bytes"] == 10**15


def test_a_run_that_was_killed_before_its_first_checkpoint_says_so(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    whole = train(recipe, out, show=False)
    (out / "result.json").unlink()
    shutil.rmtree(out / "model")
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    capsys.readouterr()
    assert train(recipe, out, resume=True)["test"] == whole["test"]
    assert f"{out} contains no checkpoint: its run begins again at step 0" in capsys.readouterr().err


def test_one_process_at_a_time_trains_in_a_folder(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one would cut the metrics back, remove half-written checkpoints, and finish with the first one's."""
    out, own, refused = tmp_path / "run", loop.Run.one_step, []

    def step(run: loop.Run) -> None:
        if run.state.step == 1 and not refused:
            with pytest.raises(InputError, match=r"another process trains in .*run: wait until it ends") as found:
                train(recipe, out, resume=True, show=False)
            refused.append(found)
        own(run)

    monkeypatch.setattr(loop.Run, "one_step", step)
    result = train(recipe, out, show=False)
    assert len(refused) == 1
    assert len(losses(out)) == len([point for point in result["curve"] if "loss" in point])
    assert train(recipe, out, resume=True, show=False) == result  # the folder is free again


@pytest.mark.parametrize("resume", [False, True])
def test_the_folder_of_a_saved_model_is_not_trained_into(recipe: Recipe, finished: Path, resume: bool) -> None:
    before = contents(finished / "model")
    with pytest.raises(InputError, match="contains a model and no run, use another folder") as error:
        train(recipe, finished / "model", resume=resume, show=False)
    assert "\n" not in str(error.value)
    assert contents(finished / "model") == before


# -- saved models ------------------------------------------------------------------------------------------------------


def truncate(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def truncate_without_checksum(model: Path) -> None:
    truncate(model)
    (model / "mentalese.json").unlink()


def flip_one_byte(model: Path) -> None:
    file = model / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)


def remove_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()


@pytest.mark.parametrize("damage", [truncate, truncate_without_checksum, flip_one_byte, remove_weights])
def test_damaged_weights_are_refused(finished: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    shutil.copytree(finished / "model", tmp_path / "model")
    load_model(tmp_path)
    damage(tmp_path / "model")
    with pytest.raises(InputError, match=r"has changed since it was saved|cannot be loaded") as error:
        load_model(tmp_path)
    assert "\n" not in str(error.value)


def test_another_tokenizer_of_the_same_size_is_refused(finished: Path, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "model", tmp_path / "model")
    other = tmp_path / "other.jsonl"
    other.write_text(corpus.read_text().replace("e", "q"))
    tokenizer = open_tokenizer("bpe:512", open_source(f"file:{other}"), cache=tmp_path / "cache", show=False)
    assert len(tokenizer) == len(load_model(tmp_path)[1])
    tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(InputError, match=r"tokenizer.* is missing or has changed .* remove 'files'"):
        load_model(tmp_path)
    keep_changes(tmp_path / "model" / "mentalese.json")
    with pytest.raises(InputError, match=r"the tokenizer .* is not the one the model .* was trained with"):
        load_model(tmp_path)


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_that_share_the_weights_equal_one(recipe: Recipe, tmp_path: Path) -> None:
    """FSDP2; validations in between gather the weights, and training goes on with them shared."""
    recipe = changed(recipe, "train", parallel="fsdp", eval_every=2)
    one = train(recipe, tmp_path / "one", show=False)
    two = finish(launch(recipe, tmp_path / "two", processes=2), tmp_path / "two")
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    assert two["test"]["nll"] == pytest.approx(one["test"]["nll"], rel=1e-5)
    assert (two["flops"], two["tokens"], two["best_step"]) == (one["flops"], one["tokens"], one["best_step"])
    left, right = (AutoModelForCausalLM.from_pretrained(tmp_path / name / "model") for name in ("two", "one"))
    assert type(left) is GPT2LMHeadModel
    ids = torch.arange(32)[None]
    torch.testing.assert_close(left(ids).logits, right(ids).logits, rtol=0, atol=1e-3)


# -- trackers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tracker", "missing", "message"),
    [
        ("trackoi", None, "train.trackers is 'trackoi': no tracker is called that.*'trackio'"),
        ("trackio", "trackio", r"'trackio', which is not installed: pip install 'mentalese\[trackio\]"),
        ("wandb", "wandb", r"'wandb', which is not installed: pip install 'mentalese\[wandb\]"),
        ("tensorboard", "torch.utils.tensorboard", r"not installed: pip install 'mentalese\[tensorboard\]"),
    ],
)
def test_missing_tracker_is_refused_before_writing(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str, missing: str | None, message: str
) -> None:
    if missing is not None:
        monkeypatch.setitem(sys.modules, missing, None)  # importing it raises ImportError
    with pytest.raises(InputError, match=message):
        train(changed(recipe, "train", trackers=(tracker,)), tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


def numbers(record: dict[str, Any]) -> dict[str, float]:
    """A line of `metrics.jsonl` as trackers get it: only numbers, those of a validation under its name."""
    flat = {name: value for name, value in record.items() if isinstance(value, int | float)}
    validation = record.get("validation", {})
    flat |= {f"validation/{name}": value for name, value in validation.items() if isinstance(value, int | float)}
    if validation:
        flat["validation/protocol/documents"] = validation["protocol"]["documents"]
    return flat


@pytest.mark.parametrize("tracker", ["trackio", "wandb"])
def test_a_tracker_receives_what_the_metrics_file_receives(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str
) -> None:
    begun, logged, ended = [], [], []
    run = SimpleNamespace(log=lambda figures, step: logged.append((step, figures)), finish=lambda: ended.append(True))
    fake = SimpleNamespace(init=lambda **about: begun.append(about) or run)
    monkeypatch.setitem(sys.modules, tracker, fake)
    recipe = changed(recipe, "train", trackers=(tracker,), eval_every=3)
    train(recipe, tmp_path / "run", show=False)
    assert begun == [{"project": "mentalese", "name": str(tmp_path / "run"), "config": recipe.to_dict()}]
    records = metrics(tmp_path / "run")
    assert len(records) == 6 + 2
    assert logged == [(record["step"], numbers(record)) for record in records]
    assert ended == [True]


def test_tensorboard_receives_what_the_metrics_file_receives(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[tuple[str, float, int]] = []
    folders, ended = [], []
    writer = SimpleNamespace(add_scalar=lambda *figure: logged.append(figure), close=lambda: ended.append(True))
    fake = SimpleNamespace(SummaryWriter=lambda folder: folders.append(folder) or writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    train(changed(recipe, "train", trackers=("tensorboard",), eval_every=3), tmp_path / "run", show=False)
    records = metrics(tmp_path / "run")
    assert logged == [(name, value, r["step"]) for r in records for name, value in numbers(r).items()]
    assert (folders, ended) == ([tmp_path / "run" / "tensorboard"], [True])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # the compiler's own, while it loads
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # and where the loss breaks its graph
def test_a_compiled_run_equals_an_eager_one(corpus: Path, tmp_path: Path) -> None:
    recipe = shrink(get_recipe("gpt2/tiny"), corpus, steps=3)
    recipe = dataclasses.replace(recipe, model=recipe.model | {"n_layer": 1})
    train(recipe, tmp_path / "eager", show=False)
    compiled = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, compile=True))
    train(compiled, tmp_path / "compiled", show=False)
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "eager"), rel=1e-4)
