"""SIM-CoT: the fast step loss is the plain one; the decoder is trained, and no prediction knows of it."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mentalese import get_recipe, load
from mentalese.data.batch import to_device
from mentalese.data.layouts import QuestionAnswer
from mentalese.data.store import prepare
from mentalese.errors import InputError
from mentalese.families.coconut.config import CoconutConfig
from mentalese.families.coconut.model import CoconutForCausalLM
from mentalese.families.coconut.plain import Coconut
from mentalese.families.coconut.questions import QuestionSteps
from mentalese.models.build import build_model
from mentalese.nn.loss import IGNORED
from mentalese.training.loop import train
from pretended_device import DEVICE, PretendedDevice
from support import metrics, rotary_flops, saved, sharing, shrink

START, LATENT, END = 1, 2, 3
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
BACKBONES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "llama": SIZES | {"num_key_value_heads": 2},
    "qwen2": SIZES | {"num_key_value_heads": 2, "use_sliding_window": True, "max_window_layers": 1},
}
# Rows, two latents a step; and the steps of each.
ROWS = [
    ([10, 11, 12, START, LATENT, LATENT, LATENT, LATENT, END, 20, 21, 22], [[30, 31, 32], [33, 34, 35, 36, 37]]),
    ([13, 14, 15, 16, 17, 18, START, END, 23, 24], []),
    ([10, START, LATENT, LATENT, END, 25, 26], [[40]]),
]


def made(backbone: str = "gpt2", layers: int | None = 2, **fields: Any) -> CoconutForCausalLM:
    """An untrained model with weights large enough that its latents differ."""
    torch.manual_seed(0)
    inner = {"model_type": backbone, "max_position_embeddings": 64} | BACKBONES[backbone]
    config = CoconutConfig(
        backbone=inner, vocab_size=60, latent_token_id=LATENT, pad_token_id=0, step_decoder_layers=layers, **fields
    )
    model = CoconutForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(3)
    return model


def batch() -> dict[str, Tensor]:
    """`ROWS` as a layout makes them."""
    length = max(len(row) for row, _ in ROWS)
    ids, mask = torch.zeros(2, len(ROWS), length, dtype=torch.long)
    flat = [(i, number, step) for i, (_, steps) in enumerate(ROWS) for number, step in enumerate(steps)]
    steps = torch.full((len(flat), max(len(step) for _, _, step in flat)), IGNORED)
    for i, (row, _) in enumerate(ROWS):
        ids[i, : len(row)], mask[i, : len(row)] = torch.tensor(row), 1
    for i, (_, _, step) in enumerate(flat):
        steps[i, : len(step)] = torch.tensor(step)
    labels = torch.where((ids >= 20) & (mask > 0), ids, IGNORED)
    which = torch.tensor([[2 * number, 2 * number + 1] for _, number, _ in flat])
    rows = torch.tensor([row for row, _, _ in flat])
    read = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return read | {"steps": steps, "step_rows": rows, "step_latents": which}


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("mode", ["coconut", "agclr"])
def test_the_step_loss_and_gradients_match_the_plain_model(backbone: str, mode: str) -> None:
    model = made(backbone, mode=mode, step_weight=2.0)
    output = model.training_loss(batch())
    with_steps = torch.autograd.grad(output.loss, list(model.parameters()), allow_unused=True)
    plain = sharing(Coconut(model.config), model)
    nll = [plain.step_nll(torch.tensor(row), list(map(torch.tensor, s)), 2) for row, s in ROWS if s]
    expected = torch.cat(nll).mean()
    torch.testing.assert_close(output.metrics["step_nll"], expected.detach(), atol=1e-5, rtol=1e-5)
    hidden = model.encode(batch()["input_ids"], batch()["attention_mask"]).hidden
    answers, _ = model.next_token_loss(hidden, batch()["labels"])
    torch.testing.assert_close(output.metrics["ntp"], answers.detach())
    whole = answers + 2 * expected
    torch.testing.assert_close(output.loss, whole, atol=1e-5, rtol=1e-5)
    plain_gradients = torch.autograd.grad(whole, list(model.parameters()), allow_unused=True)
    for (name, parameter), fast, slow in zip(model.named_parameters(), with_steps, plain_gradients):
        expected = torch.zeros_like(parameter) if slow is None else slow
        torch.testing.assert_close(fast if fast is not None else expected, expected, atol=5e-4, rtol=5e-4, msg=name)


def test_a_step_decoder_explains_own_latents_under_a_control() -> None:
    """Each row's first latent is made before one is read, so its steps cost what they cost without the control."""
    model, text = made(), batch()
    text["step_latents"] = torch.zeros_like(text["step_latents"])
    own = model.training_loss(text).metrics
    model.config.thought_control = "swapped"
    other = model.training_loss(text).metrics
    torch.testing.assert_close(other["step_nll"], own["step_nll"])
    assert not torch.isclose(other["ntp"], own["ntp"])


def test_a_step_beyond_the_backbones_positions_is_refused() -> None:
    text = batch()
    text["steps"] = torch.full((len(text["steps"]), 64), 40)
    with pytest.raises(InputError, match="written step with its latents is 65: the backbone reads at most 64"):
        made().training_loss(text)


def test_steps_train_what_makes_their_latents() -> None:
    """Without labels the step loss alone reaches the backbone, through the latents."""
    model = made()
    text = batch()
    text["labels"] = torch.full_like(text["labels"], IGNORED)
    model.training_loss(text).loss.backward()
    assert model.backbone.base_model.h[0].attn.c_attn.weight.grad.abs().sum() > 0
    assert all(p.grad is not None for p in model.parameters())


def test_no_prediction_knows_of_the_step_decoder() -> None:
    with_decoder, without = made(), made(layers=None)
    without.load_state_dict({n: v for n, v in with_decoder.state_dict().items() if not n.startswith("step_decoder.")})
    text = batch()
    read = {name: text[name] for name in ("input_ids", "attention_mask")}
    assert torch.equal(with_decoder(**read).logits, without(**read).logits)
    prompt = torch.tensor([[10, 11, START, LATENT, LATENT, END]])
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    with_decoder.step_decoder.forward = None  # type: ignore[union-attr, method-assign, assignment]
    assert torch.equal(with_decoder.generate(prompt, **options), without.generate(prompt, **options))
    assert with_decoder.forward_flops(text) == without.forward_flops(text)


@pytest.mark.parametrize("backbone", ["gpt2", "llama"])
def test_training_counts_what_the_step_decoder_costs(backbone: str) -> None:
    model, text = made(backbone, layers=1), batch()
    decoder, latents = model.step_decoder, torch.randn(3, 2, 32)
    assert decoder is not None
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model.get_output_embeddings()(decoder(latents, model.get_input_embeddings()(text["steps"].clamp(min=0))))
    counted = counter.get_total_flops() - rotary_flops(counter)
    assert model.training_flops(text) == 3 * (model.forward_flops(text) + counted)


def test_a_step_with_a_step_decoder_waits_for_a_gpu_once() -> None:
    device, model, text = PretendedDevice(), made().train(), batch()
    with device:
        model.to(DEVICE)
        there = to_device(text, DEVICE)
        counts = device.count(lambda: model.training_loss(there).loss.backward())
    assert counts.waits.total() == 1, counts.waits


def test_a_batch_needs_the_field_steps_which_may_be_empty() -> None:
    model, text = made(), batch()
    with pytest.raises(InputError, match=r"coconut.step_decoder_layers is 2: the batch has no .* layout 'qa_steps'"):
        model.training_loss({name: text[name] for name in ("input_ids", "attention_mask", "labels")})
    none = {
        "steps": text["steps"][:0, :0],
        "step_rows": text["step_rows"][:0],
        "step_latents": text["step_latents"][:0],
    }
    output = model.training_loss(text | none)
    output.loss.backward()
    assert output.metrics["step_nll"] == 0
    assert all(p.grad is not None for p in model.parameters())
    assert model.training_flops(text | none) == 3 * model.forward_flops(text)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable. is deprecated")
def test_checkpointed_layers_train_the_same() -> None:
    model, text = made("llama").train(), batch()

    def step() -> list[Tensor]:
        return list(torch.autograd.grad(model.training_loss(text).loss, list(model.parameters()), allow_unused=True))

    expected = step()
    model.gradient_checkpointing_enable()
    for gradient, other in zip(step(), expected, strict=True):
        torch.testing.assert_close(gradient, other)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_step_decoder_starts_as_the_first_layers(backbone: str) -> None:
    model = made(backbone, layers=1)
    model.start_from_backbone()
    assert model.step_decoder is not None
    own, theirs = model.step_decoder.body.state_dict(), model.backbone.base_model.state_dict()
    assert own
    assert all(torch.equal(value, theirs[name]) for name, value in own.items())
    assert not any(isinstance(m, nn.Embedding) and m.num_embeddings == 60 for m in model.step_decoder.modules())


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"step_decoder_layers": 0}, "coconut.step_decoder_layers is 0"),
        ({"step_decoder_layers": 3}, "coconut.step_decoder_layers is 3"),
        ({"step_decoder_layers": 1, "mode": "pause"}, "step_decoder_layers is 1: latents of mode 'pause'"),
        ({"step_weight": 2.0}, "coconut.step_weight is 2.0"),
        ({"step_decoder_layers": 1, "step_weight": -1.0}, "coconut.step_weight is -1.0"),
    ],
)
def test_a_step_decoder_that_cannot_be_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        CoconutConfig(backbone={"model_type": "gpt2"} | BACKBONES["gpt2"], vocab_size=60, **fields)


# -- the layout -------------------------------------------------------------------------------------------------------


def test_a_layout_needs_latents_that_stand_for_steps() -> None:
    with pytest.raises(InputError, match=r"layout.latents_per_step is None: steps are predicted from latents"):
        QuestionSteps()
    with pytest.raises(InputError, match=r"layout.removal is 'tokens': latents replace whole steps"):
        QuestionSteps(latents_per_step=1, removal="tokens")


@pytest.mark.parametrize(
    ("layout", "per_step"),
    [
        (QuestionSteps(stage=1, stages=2, latents_per_step=2), 2),
        (QuestionSteps(stage=3, stages=2, latents_per_step=2), 2),
        (QuestionSteps(stage=1, latents=3), 1),
        (QuestionSteps(stage=0, stages=2, latents_per_step=2), 2),
    ],
)
def test_a_batch_has_the_steps_that_latents_stand_for(layout: QuestionSteps, per_step: int, corpus: Path) -> None:
    recipe = shrink(get_recipe("coconut/tiny-sim-cot"), corpus)
    store, tokenizer = prepare(recipe.data, layout, show=False)
    split = store.splits["train"]
    rows = layout.training_rows(split, np.random.default_rng(0))[np.arange(12)]
    found = layout.assemble(split, rows, tokenizer)
    said: dict[int, list[tuple[list[int], str]]] = {i: [] for i in range(12)}
    for step, row, latents in zip(found["steps"], found["step_rows"].tolist(), found["step_latents"].tolist()):
        said[row].append((latents, tokenizer.decode(step[step != IGNORED])))
    for row in range(12):
        parts = tokenizer.decode(split.tokens[rows.start[row] : rows.stop[row]]).splitlines(keepends=True)
        steps = parts[1:-1] if layout.stage > layout.stages else parts[1:-1][: layout.stage]
        latents = int((found["input_ids"][row] == tokenizer.convert_tokens_to_ids("<|latent|>")).sum())
        groups = latents // per_step
        expected = steps if len(steps) <= groups else [*steps[: groups - 1], "".join(steps[groups - 1 :])]
        which = [list(range(per_step * n, per_step * (n + 1))) for n in range(len(expected))]
        assert said[row] == list(zip(which, expected))
    read = QuestionAnswer.assemble(layout, split, rows, tokenizer)
    assert all(torch.equal(read[name], found[name]) for name in read)
    assert "steps" not in layout.assemble(split, rows, tokenizer, "lexical")


@pytest.mark.parametrize(("stage", "replaced"), [(1, {1}), (3, {1, 2, 3})])
def test_the_loss_of_a_layouts_row_is_the_plain_one(stage: int, replaced: set[int], corpus: Path) -> None:
    """With two latents a step, and fewer or more steps than the four latents of the last stage."""
    recipe = shrink(get_recipe("coconut/tiny-sim-cot"), corpus)
    layout = QuestionSteps(stage=stage, stages=2, latents_per_step=2)
    store, tokenizer = prepare(recipe.data, layout, show=False)
    split = store.splits["train"]
    model = build_model(recipe.model, tokenizer, seed=0).eval()
    assert isinstance(model, CoconutForCausalLM)
    plain = sharing(Coconut(model.config), model)
    seen = set()
    for row in range(12):
        rows = layout.training_rows(split, np.random.default_rng(0))[np.array([row])]
        batch = layout.assemble(split, rows, tokenizer)
        start, target, rest = (int(bounds[0]) for bounds in (rows.start, rows.target, rows.rest))
        bounds = [bound for bound in split.segments.tolist() if target <= bound <= rest]
        steps = [torch.from_numpy(split.tokens[a:b].astype(np.int64)) for a, b in pairwise(bounds)]
        expected = model.training_loss(batch).loss
        torch.testing.assert_close(plain.loss(batch["input_ids"][0], target - start, steps, 2), expected)
        seen.add(len(steps))
    assert seen == replaced


def test_a_trained_coconut_continues_with_a_step_decoder(corpus: Path, tmp_path: Path) -> None:
    base = saved(tmp_path / "base", shrink(get_recipe("coconut/tiny-coconut"), corpus))
    recipe = shrink(get_recipe("coconut/tiny-sim-cot"), corpus)
    data = dataclasses.replace(recipe.data, tokenizer=str(base / "model"))
    config = dataclasses.replace(recipe.train, init=str(base), steps=1)
    train(dataclasses.replace(recipe, data=data, train=config), tmp_path / "run", show=False)
    trained = load(tmp_path / "run", "cpu").model
    before = load(base, "cpu").model
    weights = trained.state_dict()
    for name, old in before.state_dict().items():
        torch.testing.assert_close(weights[name], old, atol=0.01, rtol=0)  # a step of 3e-3
    assert trained.step_decoder is not None


def test_a_run_trains_the_decoder_and_logs_its_loss(corpus: Path, tmp_path: Path) -> None:
    train(shrink(get_recipe("coconut/tiny-sim-cot"), corpus, steps=10), tmp_path / "run", show=False)
    logged = [line for line in metrics(tmp_path / "run") if "step_nll" in line]
    assert logged[-1]["step_nll"] < 0.95 * logged[0]["step_nll"]
    assert logged[0]["loss"] == pytest.approx(logged[0]["ntp"] + logged[0]["step_nll"], rel=1e-5)
    assert load(tmp_path / "run", "cpu").model.step_decoder is not None
