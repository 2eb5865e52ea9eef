"""ConceptLM, ContextLM and MTP: against their plain form on every kind of backbone, cached, padded, grown, refused."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, LlamaModel

from mentalese import get_recipe
from mentalese.errors import InputError
from mentalese.families.conceptlm.chunks import Chunks
from mentalese.families.conceptlm.codebook import nearest_codes, usage
from mentalese.families.conceptlm.config import ConceptLMConfig, MTPConfig
from mentalese.families.conceptlm.model import ConceptLMForCausalLM, Concepts, explained
from mentalese.families.conceptlm.mtp import MTPForCausalLM
from mentalese.families.conceptlm.plain import ConceptLM, run
from mentalese.model_fields import config_class
from mentalese.models.backbone import attention_width
from mentalese.models.base import as_model
from mentalese.models.checkpoints import load_model
from mentalese.models.grow import grow
from mentalese.models.places import places
from mentalese.training.loop import train
from support import assert_same, finish, launch, losses, padded, rotary_flops, sharing, shrink, training_losses

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
BACKBONES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 16, "n_layer": 3, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "gpt_neox": SIZES,
    "llama": SIZES | {"num_key_value_heads": 2},
}
ROWS = [[5, 9, 2, 7, 7, 1, 8, 4, 30, 21, 3], [6, 6, 40, 3], [11, 12], [13, 50, 15, 16, 17, 18, 33, 20, 41]]


def made(backbone: str = "gpt2", **fields: Any) -> ConceptLMForCausalLM:
    """A random model whose every part says something."""
    torch.manual_seed(0)
    inner = {"model_type": backbone, "max_position_embeddings": 64} | BACKBONES.get(backbone, SIZES)
    inner |= fields.pop("inner", {})
    config = ConceptLMConfig(backbone=inner, vocab_size=60, **({"num_codes": 5} | fields))
    model = ConceptLMForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                parameter.mul_({"codebook.up": 1, "codebook.down": 30, "heads.weight": 30}.get(name, 8))
            elif "norm" not in name and "ln_" not in name:
                parameter.normal_(std=0.1)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def plain_of(model: ConceptLMForCausalLM) -> ConceptLM:
    """The plain model with the very weights of the fast one."""
    return sharing(ConceptLM(model.config), model)


def plain_losses(plain: ConceptLM, rows: list[list[int]]) -> dict[str, Tensor]:
    """Means over rows of several lengths, each read alone and weighted by its targets."""
    total: dict[str, Tensor] = {}
    targets = dict.fromkeys(("ntp", "ncp", "vq"), 0)
    for row in rows:
        chunks = len(row) // plain.config.chunk_size
        count = {"ntp": len(row) - 1, "ncp": max(chunks - 1, 0), "vq": chunks}
        for name, value in plain.losses(torch.tensor([row])).items():
            total[name] = total.get(name, torch.zeros(())) + count[name] * value
            targets[name] += count[name]
    return {name: value / max(targets[name], 1) for name, value in total.items()}


def batch(rows: list[list[int]], left: bool = False) -> dict[str, Tensor]:
    """Every token but a row's first, which nothing precedes, is a target."""
    ids, mask = padded(rows, left)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask.cumsum(1) * mask < 2, -100)}


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((backbone, {"insert_depth": depth}) for backbone in BACKBONES for depth in (0, 1, 2)),
    ("gpt2", {"insert_depth": 0, "fusion": "norm_sum", "inner": {"tie_word_embeddings": False}}),
    ("llama", {"fusion": "norm_sum", "insert_depth": 0}),
    ("gpt2", {"ncp_weight": 0.0}),
    ("gpt2", {"vq_weight": 0.0}),
    ("gpt_neox", {"ncp_weight": 0.0, "vq_weight": 0.0}),
    ("gpt2", {"ncp_weight": 2.0, "vq_weight": 3.0}),
    ("gpt2", {"codebook": "linear"}),
    ("gpt2", {"codebook": "learned"}),
    ("gpt2", {"codebook": None, "ncp_weight": 0.0, "vq_weight": 0.0}),
    ("gpt2", {"codebook": None, "vq_weight": 0.0}),
    ("gpt2", {"concept_norm": True}),
    ("gpt_neox", {"concept_norm": False}),
    ("llama", {"concept_norm": True, "chunk_size": 3, "num_segments": 2, "num_codes": 7, "concept_layers": 3}),
    ("gpt2", {"chunk_size": 2, "num_segments": 16, "concept_layers": 1}),
    ("llama", {"detach_concept": True}),
    ("gpt2", {"detach_concept": True, "fusion": "norm_sum", "insert_depth": 0}),
]


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(("backbone", "fields"), VARIANTS)
def test_padded_batch_equals_its_rows(backbone: str, fields: dict[str, Any], left: bool) -> None:
    model = made(backbone, **dict(fields))
    text = batch(ROWS, left)
    plain, hidden = plain_of(model), model.final_hidden_states(text)
    for i, row in enumerate(ROWS):
        expected = plain.read(torch.tensor([row])).hidden[0]
        torch.testing.assert_close(hidden[i, text["attention_mask"][i].bool()], expected, atol=1e-5, rtol=1e-5)
    output = model.training_loss(text)
    plainly = plain_losses(plain, ROWS)
    for name, value in plainly.items():
        torch.testing.assert_close(output.metrics[name], value.detach(), atol=1e-5, rtol=1e-5)
    weighed = sum(getattr(model.config, f"{name}_weight", 1.0) * value for name, value in plainly.items())
    assert isinstance(weighed, Tensor)
    torch.testing.assert_close(output.loss, weighed, atol=1e-5, rtol=1e-5)
    wanted = gradients(model, weighed)
    for name, found in gradients(model, output.loss).items():
        torch.testing.assert_close(found, wanted[name], atol=2e-5, rtol=2e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(("backbone", "fields"), VARIANTS)
def test_the_loss_of_a_batch_is_the_plain_one(backbone: str, fields: dict[str, Any]) -> None:
    model, ids = made(backbone, **dict(fields)), torch.tensor([ROWS[0], ROWS[0][::-1]])
    plain = plain_of(model)
    expected = plain.loss(ids)
    torch.testing.assert_close(model.training_loss({"input_ids": ids, "labels": ids}).loss, expected)
    torch.testing.assert_close(model(ids).logits, plain(ids), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("backbone", "fields"), [("gpt2", {}), ("gpt_neox", {"codebook": "linear"}), ("llama", {})])
def test_the_plain_model_trains_by_itself(backbone: str, fields: dict[str, Any]) -> None:
    torch.manual_seed(0)
    plain, ids = ConceptLM(made(backbone, **fields).config), torch.tensor([ROWS[0], ROWS[0][::-1]])
    course = training_losses(plain, lambda _: plain.loss(ids), steps=30)
    assert course[-1] < 0.5 * course[0]


def test_a_silent_start_of_the_plain_model_is_its_decoder() -> None:
    ids = torch.tensor([ROWS[0]])
    for silent in (True, False):
        plain = ConceptLM(made(silent_start=silent).config).eval()
        assert torch.allclose(plain(ids), plain.backbone(ids).logits, rtol=0, atol=1e-6) == silent


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(("backbone", "depth"), [("gpt2", 0), ("gpt2", 2), ("gpt_neox", 1), ("llama", 1)])
def test_cached_steps_equal_the_full_pass(backbone: str, depth: int, left: bool, implementation: str) -> None:
    model = made(backbone, insert_depth=depth)
    model.set_attn_implementation(implementation)
    rows = [[*row, *range(42, 57)] for row in ROWS]
    rows = [row[:longest] for row, longest in zip(rows, (26, 19, 14, 24))]
    ids, mask = padded(rows, left)
    whole = model(ids, attention_mask=mask).logits
    for pieces in ([1] * 26, [5, *[1] * 21], [4, 9, 1, 12], [26], [3, 1, 8, 8, 6]):
        cache, start = model.new_cache(), 0
        for size in pieces:
            end = start + size
            with torch.no_grad():
                step = model(ids[:, start:end], attention_mask=mask[:, :end], past_key_values=cache).logits
            real = mask[:, start:end].bool()
            torch.testing.assert_close(step[real], whole[:, start:end][real], atol=1e-5, rtol=1e-5)
            start = end
        assert cache.get_seq_length() == ids.shape[1]


def test_cache_without_padding_needs_no_mask() -> None:
    model = made(insert_depth=1)
    ids = torch.randint(60, (3, 22), generator=torch.Generator().manual_seed(1))
    whole, cache = model(ids).logits, model.new_cache()
    steps = [model(ids[:, t : t + 1], past_key_values=cache).logits for t in range(22)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, atol=1e-5, rtol=1e-5)
    assert cache.layers[0].keys.shape[2] == 22
    assert [cache.state[f"concept_keys.{layer}"].shape[2] for layer in (0, 1)] == [5, 5]
    mask, padding = torch.ones_like(ids), model.new_cache()
    mask[1, :3] = 0
    for t in range(22):
        model(ids[:, t : t + 1], attention_mask=mask[:, : t + 1], past_key_values=padding)
    assert padding.state["concept_keys.0"].shape[2] == 5


def test_a_cache_may_go_on_from_a_prompt_with_no_mask_at_all() -> None:
    model = made()
    ids, mask = padded(ROWS, left=True)
    more = torch.tensor([[3, 4, 5, 6, 7]] * len(ROWS))
    cache = model.new_cache()
    model(ids, attention_mask=mask, past_key_values=cache)
    after = model(more, past_key_values=cache).logits
    whole = model(torch.cat((ids, more), 1), attention_mask=torch.cat((mask, torch.ones_like(more)), 1)).logits
    torch.testing.assert_close(after, whole[:, ids.shape[1] :], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_no_token_reads_a_later_one(backbone: str, depth: int) -> None:
    model = made(backbone, insert_depth=depth)
    ids = torch.tensor([ROWS[0]])
    embedded = []
    model.get_input_embeddings().register_forward_hook(lambda m, i, out: embedded.append(out) or out.retain_grad())
    encoded = model.encode(ids)
    hidden, concepts = encoded.hidden, encoded.concepts
    for t in range(ids.shape[1]):
        [read] = torch.autograd.grad(hidden[0, t].sum(), embedded[0], retain_graph=True)
        assert not read[0, t + 1 :].any()
        assert read[0, : t + 1].any(1).all()
    assert concepts is not None
    for t in range(ids.shape[1]):
        [read] = torch.autograd.grad(hidden[0, t].sum(), concepts.predicted, retain_graph=True)
        seen = read[0].any(1).tolist()  # through attention, earlier ones too
        assert seen == [j <= (t + 1) // 4 - 1 for j in range(2)]


@settings(deadline=None, max_examples=60)
@given(
    st.integers(2, 5),
    st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=1, max_size=3),
    st.lists(st.integers(0, 9), max_size=3),
)
def test_chunks_ignore_padding_and_cuts(size: int, rows: list[list[bool]], cuts: list[int]) -> None:
    real = torch.tensor(rows)
    tokens = torch.arange(1.0, 10)[None, :, None].expand(len(rows), -1, 1)
    held, seen, ended = None, torch.zeros(len(rows), dtype=torch.long), [[] for _ in rows]
    edges = [0, *sorted(cuts), 9]
    for start, end in pairwise(edges):
        if start == end:
            continue
        chunks = Chunks.of(size, end - start, seen, real[:, start:end])
        sums = chunks.sums(tokens[:, start:end], held)
        valid = chunks.valid(len(rows), real.device)
        assert valid is not None
        for found, row, own in zip(ended, sums, valid):
            found += row[:-1, 0][own].tolist()
        held, seen = chunks.last(sums), seen + real[:, start:end].sum(1)
    for found, row, rest in zip(ended, real, held if held is not None else ()):
        own = (torch.arange(1.0, 10)[row]).tolist()
        whole = len(own) // size
        assert found == [sum(own[j * size : (j + 1) * size]) for j in range(whole)]
        assert rest.item() == sum(own[whole * size :])


@pytest.mark.parametrize("rows", [[[5, 9, 2]], [[5], [6]], [[5, 9, 2, 7]], [[5, 9, 2, 7, 7, 1]]])
def test_texts_without_a_next_concept_have_zero_loss(rows: list[list[int]]) -> None:
    model = made(insert_depth=0)
    output = model.training_loss(batch(rows) if len(rows[0]) > 1 else batch(rows) | {"labels": torch.tensor(rows)})
    assert output.metrics["ncp"] == output.metrics["code_ce"] == output.metrics["code_accuracy"] == 0
    assert (output.metrics["vq"] == 0) == (len(rows[0]) < 4)
    output.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    if len(rows[0]) < 4:  # zeros are fused
        ids = torch.tensor(rows)
        plain = model.backbone(ids).logits
        assert torch.equal(model(ids).logits, plain)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("rows", [ROWS, [ROWS[0], ROWS[0][::-1]]])
def test_r2_is_the_predicted_share_of_concept_variance(rows: list[list[int]], left: bool) -> None:
    model = made(insert_depth=1)
    read = [plain_of(model).read(torch.tensor([row])) for row in rows]
    targets = torch.cat([reading.pooled[0, 1:] for reading in read]).double()
    guesses = torch.cat([reading.predicted[0, :-1] for reading in read]).double()
    expected = 1 - (guesses - targets).square().sum() / (targets - targets.mean(0)).square().sum()
    found = model.training_loss(batch(rows, left)).metrics
    torch.testing.assert_close(found["concept_r2"].double(), expected, rtol=1e-4, atol=1e-5)
    joint = torch.stack([guesses - guesses.mean(0), targets - targets.mean(0)]).flatten(1)
    best = torch.nan_to_num((joint[0] * joint[1]).sum() ** 2 / joint.square().sum(1).prod())
    torch.testing.assert_close(found["concept_r2_rescaled"].double(), best, rtol=1e-4, atol=1e-5)


def test_r2_is_1_if_right_and_0_for_the_mean() -> None:
    targets = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))

    def both(pooled: Tensor, predicted: Tensor) -> list[float]:
        concepts = Concepts(pooled, predicted, None, None)
        return [float(x) for x in explained(concepts, (predicted[:, :-1] - pooled[:, 1:]).square().mean()).values()]

    def r2(pooled: Tensor, predicted: Tensor) -> float:
        return both(pooled, predicted)[0]

    assert r2(targets, targets.roll(-1, 1)) == 1
    assert r2(targets, targets[:, 1:].mean((0, 1)).expand_as(targets)) == pytest.approx(0, abs=1e-6)
    assert r2(targets, -targets.roll(-1, 1)) < -1
    assert r2(targets[:1, :2], targets[:1, :2]) == 0
    assert r2(targets[:1, :1].expand(3, 5, 8), targets) == 0
    raw, rescaled = both(targets, 100 + 9 * targets.roll(-1, 1))
    assert raw < -1
    assert rescaled == pytest.approx(1)
    assert both(targets, -targets.roll(-1, 1))[1] == pytest.approx(1), "whatever the sign"
    assert both(targets, torch.ones_like(targets))[1] == 0


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("rows", [[ROWS[0] * 3, ROWS[2], ROWS[3] * 2], [ROWS[0], ROWS[0][::-1]]])
def test_predicted_codes_are_scored_against_the_nearest(rows: list[list[int]], left: bool) -> None:
    model = made(insert_depth=1)
    with torch.no_grad():  # codes as large as concepts: otherwise all have the smallest one
        model.get_parameter("codebook.down").div_(10)
    codebook = plain_of(model).codebook
    assert codebook is not None
    right, errors = [], []
    for row in rows:
        concepts = model.encode(torch.tensor([row])).concepts
        assert concepts is not None
        assert concepts.logits is not None
        for j in range(len(row) // 4 - 1):
            heads = concepts.logits[0, j].detach().view(4, 5)  # segments, codes
            for a, code in zip(heads, codebook.nearest(concepts.pooled[0, j + 1])[0].tolist()):
                right.append(float(a.argmax() == code))
                errors.append(float(a.exp().sum().log() - a[code]))
    metrics = model.training_loss(batch(rows, left)).metrics
    assert 0 < sum(right) < len(right)
    assert float(metrics["code_accuracy"]) == pytest.approx(sum(right) / len(right))
    assert float(metrics["code_ce"]) == pytest.approx(sum(errors) / len(errors), rel=1e-5)


def test_a_detached_concept_is_not_trained_by_the_tokens() -> None:
    """The release's Llama; in the paper the tokens' loss trains what predicts concepts too."""
    for detached in (False, True):
        model, text = made(insert_depth=1, detach_concept=detached), batch(ROWS)
        encoded = model.encode(text["input_ids"], text["attention_mask"])
        loss, _ = model.next_token_loss(encoded.hidden, text["labels"], model.target_weights(text))
        found = gradients(model, loss)
        new = [value for name, value in found.items() if name.startswith(("concept_layers", "heads", "codebook"))]
        assert any(bool(value.any()) for value in new) != detached
        assert found["backbone.transformer.h.0.mlp.c_fc.weight"].any()


def test_losses_train_only_their_parameters() -> None:
    text = batch(ROWS)

    def moved(name: str) -> set[str]:
        model = made(insert_depth=1)
        concepts = model.encode(text["input_ids"], text["attention_mask"]).concepts
        assert concepts is not None
        found = gradients(model, model.concept_losses(concepts)[name])
        return {parameter for parameter, value in found.items() if value.abs().max() > 0}

    assert moved("vq") == {f"codebook.{name}" for name in ("up", "up_bias", "down", "down_bias")}
    prediction = moved("ncp")
    assert {"codebook.up", "heads.weight", "backbone.transformer.h.0.mlp.c_fc.weight"} <= prediction
    assert any(name.startswith("concept_layers.1") for name in prediction)
    assert not any(name.startswith(("backbone.transformer.h.1", "backbone.transformer.ln_f")) for name in prediction)


def test_only_continuous_or_detached_targets_are_regressed_to() -> None:
    model = made(insert_depth=0)
    concepts = model.encode(torch.tensor([ROWS[0]])).concepts
    assert concepts is not None
    concepts.pooled.retain_grad()
    last = concepts.pooled[:, -1].detach()
    model.concept_losses(concepts)["ncp"].backward()
    assert concepts.pooled.grad is not None
    assert not concepts.pooled.grad[:, -1].any()  # the last concept is a target alone
    expected = (concepts.predicted[:, :-1] - torch.cat((concepts.pooled[:, 1:-1], last[:, None]), 1)).square().mean()
    torch.testing.assert_close(model.concept_losses(concepts)["ncp"], expected)


def test_the_backbone_called_by_itself_is_the_plain_decoder() -> None:
    model = made()
    plain = type(model.backbone)(model.backbone.config).eval()
    plain.load_state_dict(model.backbone.state_dict())
    ids = torch.tensor([ROWS[0]])
    assert torch.equal(model.backbone(ids).logits, plain(ids).logits)
    assert not torch.equal(model(ids).logits, plain(ids).logits)


GROUPED = {"num_key_value_heads": 2}
EXPERTS = GROUPED | {"num_experts_per_tok": 2}
WINDOW = {"sliding_window": 5}
DECODERS: dict[str, dict[str, Any]] = {
    "apertus": GROUPED,
    "arcee": GROUPED | {"head_dim": 4, "bos_token_id": None, "eos_token_id": None},
    "cohere": GROUPED | {"logit_scale": 3.0, "bos_token_id": None, "eos_token_id": None},
    "ernie4_5": GROUPED,
    "exaone4": GROUPED | WINDOW | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "gemma": GROUPED | {"head_dim": 4},
    "gemma2": GROUPED | WINDOW | {"head_dim": 4, "final_logit_softcapping": 0.1},
    "gemma3_text": GROUPED | WINDOW | {"head_dim": 4},
    "glm": GROUPED | {"head_dim": 4, "pad_token_id": None},
    "granite": GROUPED | {"logits_scaling": 0.2},
    "mistral": GROUPED | WINDOW,
    "mixtral": EXPERTS | {"num_local_experts": 4},
    "nemotron": GROUPED,
    "olmo": GROUPED,
    "olmo2": GROUPED,
    "olmo3": WINDOW | {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    "phi3": GROUPED | {"pad_token_id": None},
    "qwen2": GROUPED,
    "qwen3": GROUPED,
    "qwen3_moe": EXPERTS | {"num_experts": 4, "moe_intermediate_size": 8},
    "seed_oss": GROUPED,
    "smollm3": GROUPED | {"pad_token_id": None},
    "stablelm": GROUPED,
    "starcoder2": GROUPED | WINDOW | {"bos_token_id": None, "eos_token_id": None},
}
LONG = [[*row, *range(42, 57)][:length] for row, length in zip(ROWS, (26, 19, 14, 24))]


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("backbone", DECODERS)
def test_any_supported_decoder_runs_by_rows_and_steps(backbone: str) -> None:
    """Windows of 5 columns too, and rotary positions by the kind of attention."""
    model = made(backbone, inner=DECODERS[backbone])
    for left in (True, False):
        ids, mask = padded(LONG, left)
        whole, cache = model(ids, attention_mask=mask).logits, model.new_cache()
        for i, row in enumerate(LONG):
            alone = model(torch.tensor([row])).logits[0]
            torch.testing.assert_close(whole[i, mask[i].bool()], alone, atol=1e-5, rtol=1e-5)
            changed = torch.tensor([[*row[:9], 59, *row[10:]]])
            torch.testing.assert_close(model(changed).logits[0, :9], alone[:9], atol=1e-5, rtol=1e-5)
        for start, end in ((0, 7), (7, 12), *((t, t + 1) for t in range(12, 26))):
            step = model(ids[:, start:end], attention_mask=mask[:, :end], past_key_values=cache).logits
            real = mask[:, start:end].bool()
            torch.testing.assert_close(step[real], whole[:, start:end][real], atol=1e-5, rtol=1e-5)
    assert model.heads is not None
    ids = torch.tensor(LONG[:1])
    plain = model.backbone(ids).logits
    assert not torch.allclose(model(ids).logits, plain, atol=1e-2)
    model.heads.weight.zero_()
    model.heads.bias.zero_()
    torch.testing.assert_close(model(ids).logits, plain, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_padding_between_tokens_is_refused_if_a_window_counts_it() -> None:
    model = made("mistral", inner=DECODERS["mistral"])
    for length in (4, 6):
        ids, mask = torch.arange(length)[None], torch.ones(1, length, dtype=torch.long)
        mask[0, 2] = 0
        if length <= 5:
            real = torch.tensor([[0, 1, 3]])
            torch.testing.assert_close(model(ids, attention_mask=mask).logits[:, -1], model(real).logits[:, -1])
            continue
        with pytest.raises(InputError, match=r"padding between the tokens of a row of 6 columns: .* window of 5"):
            model(ids, attention_mask=mask)


def test_unsupported_decoder_layers_are_refused() -> None:
    class Louder(LlamaModel):
        """Doubles what its layers read."""

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            handles = [layer.register_forward_hook(lambda m, i, out: 2 * out) for layer in self.layers]
            output = super().forward(*args, **kwargs)
            for handle in handles:
                handle.remove()
            return output

    class LouderForCausalLM(LlamaForCausalLM):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.model = Louder(config)

    config = LlamaConfig(vocab_size=60, **SIZES)
    plain, louder = LlamaForCausalLM(config), LouderForCausalLM(config)
    state = torch.get_rng_state()
    assert places("x", plain).norm == "norm"
    with pytest.raises(InputError, match=r"x.model_type is 'llama': its layers by themselves do something else than"):
        places("x", louder)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("backbone", ["mistral", "qwen2", "qwen3"])
def test_each_known_decoder_has_its_layers_at_their_place(backbone: str) -> None:
    inner = {"sliding_window": None} if backbone == "mistral" else {}
    model = made(backbone, inner=inner | {"num_key_value_heads": 2})
    text = batch(ROWS, left=True)
    plain, hidden = plain_of(model), model.final_hidden_states(text)
    for i, row in enumerate(ROWS):
        expected = plain.read(torch.tensor([row])).hidden[0]
        torch.testing.assert_close(hidden[i, text["attention_mask"][i].bool()], expected, atol=1e-5, rtol=1e-5)


def test_trace_has_concepts_with_tokens_codes_and_predictions() -> None:
    model = made(insert_depth=0)
    ids, mask = padded(ROWS, left=True)
    traces = model(ids, attention_mask=mask, output_thoughts=True).thoughts
    spans = [[(t.start, t.end, t.label.split()[0]) for t in trace.thoughts] for trace in traces]
    assert spans[0] == [(0, 4, "concept"), (4, 8, "concept"), (4, 8, "predicted")]
    assert spans[1] == [(7, 11, "concept")]
    assert spans[2] == []
    assert spans[3] == [(2, 6, "concept"), (6, 10, "concept"), (6, 10, "predicted")]
    _, [pooled], [predicted] = plain_of(model).read(torch.tensor([ROWS[3]]))
    torch.testing.assert_close(traces[3].thoughts[1].vector, pooled[1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(traces[3].thoughts[2].vector, predicted[0], atol=1e-5, rtol=1e-5)
    assert model.codebook is not None
    for thought, vector in zip(traces[3].thoughts[1:], (pooled[1], predicted[0])):
        assert list(thought.codes) == nearest_codes(vector[None], model.codebook())[0].tolist()
    error = (predicted[0] - pooled[1]).square().mean()
    torch.testing.assert_close(traces[3].curves["concept_error"], error[None], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(traces[3].scores["concept_error"][6:10], error.expand(4), atol=1e-5, rtol=1e-5)
    assert traces[3].scores["concept_error"][:6].isnan().all()


def test_learned_codes_move_singly_and_mapped_codes_together() -> None:
    def moved(kind: str) -> Tensor:
        model = made(codebook=kind, num_codes=16)
        assert model.codebook is not None
        before = model.codebook().detach().clone()
        concepts = model.encode(torch.tensor([ROWS[0][:4]])).concepts
        assert concepts is not None
        model.concept_losses(concepts)["vq"].backward()
        torch.optim.SGD(model.codebook.parameters(), lr=1.0).step()
        return (model.codebook() - before).abs().amax(-1) > 0

    assert moved("learned").sum(1).tolist() == [1] * 4
    assert moved("mlp").all()


def test_codes_are_counted_by_segment() -> None:
    chosen = torch.tensor([[0, 3], [1, 3], [0, 3], [1, 3]])
    used = usage(chosen, 4)
    assert used.counts.tolist() == [[2, 2, 0, 0], [0, 0, 0, 4]]
    assert used.utilisation.tolist() == [0.5, 0.25]
    torch.testing.assert_close(used.perplexity, torch.tensor([2.0, 1.0]))


@pytest.mark.parametrize("kind", ["mlp", "linear", "learned"])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_codes_stay_as_they_are_in_a_model_of_half_precision(half: torch.dtype, kind: str, tmp_path: Path) -> None:
    model = made(codebook=kind)
    assert model.codebook is not None
    exact = model.codebook()
    model.save_pretrained(tmp_path)
    opened = ConceptLMForCausalLM.from_pretrained(tmp_path, dtype=half).eval()
    model.to(half)
    for found in (model, opened):
        assert found.codebook is not None
        assert found.heads is not None
        assert found.heads.weight.dtype == half
        assert torch.equal(found.codebook(), exact)
        loss = found.training_loss(batch(ROWS)).loss
        loss.backward()
        assert loss.isfinite()
        more = found.generate(torch.tensor([ROWS[0]]), max_new_tokens=9, do_sample=False, pad_token_id=0)
        assert more.shape == (1, 20)
    model.double()
    assert model.codebook().dtype == torch.float64


def test_a_collapsed_codebook_is_said_once() -> None:
    model = made(insert_depth=0, num_codes=30)
    with torch.no_grad():  # one code is near, the others are far
        model.codebook.down.zero_()
    text = batch(ROWS)
    one_code, inputs = usage(torch.zeros(7, 4, dtype=torch.long), 30), torch.randn(7, 8)
    for _ in range(99):
        model._watch(one_code, inputs)
    with pytest.warns(UserWarning, match="the last 100 steps used 3% of the codes"):
        model._watch(one_code, inputs)
    for _ in range(200):
        model._watch(one_code, inputs)
    assert float(model.training_loss(text).metrics["codebook_utilisation"]) == pytest.approx(1 / 30)


def test_a_quantity_of_codes_in_use_says_nothing() -> None:
    model = made(num_codes=30)
    for step in range(200):
        model._watch(usage(torch.full((2, 4), step % 9), 30), torch.randn(2, 8))


def test_few_codes_of_few_different_inputs_are_no_collapse() -> None:
    model = made(num_codes=30)
    chosen = torch.arange(3).repeat(20)[:, None].expand(-1, 4)
    inputs = torch.randn(3, 8).repeat(20, 1)
    for _ in range(200):
        model._watch(usage(chosen, 30), inputs)
    for _ in range(99):
        model._watch(usage(chosen, 30), inputs)
    with pytest.warns(UserWarning, match="used 10% of the codes"):
        model._watch(usage(chosen, 30), torch.randn(60, 8))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"backbone": {"model_type": "gpt2", "n_embed": 8}}, r"backbone.n_embed: gpt2 has no such field.*n_embd"),
        ({"chunk_size": 1}, r"conceptlm.chunk_size is 1: "),
        ({"num_codes": 1}, r"conceptlm.num_codes is 1: "),
        ({"num_segments": 7}, r"conceptlm.num_segments is 7: use a divisor of the backbone's width \(768\)"),
        ({"insert_depth": 12}, r"conceptlm.insert_depth is 12: the backbone has 12 layers, set at most 11"),
        ({"insert_depth": -1}, r"conceptlm.insert_depth is -1: "),
        ({"concept_layers": 0}, r"conceptlm.concept_layers is 0: "),
        ({"vq_weight": -1}, r"conceptlm.vq_weight is -1: "),
        (
            {"detach_concept": True, "ncp_weight": 0},
            r"detach_concept is True: with ncp_weight 0 nothing trains concepts",
        ),
        ({"codebook": None}, r"conceptlm.vq_weight is 1.0: without a codebook set 0.0"),
        ({"codebook": "conv"}, r"conceptlm.codebook is 'conv'"),
        ({"silent_start": True, "fusion": "norm_sum"}, r"with fusion 'norm_sum'"),
        (
            {"backbone": {"model_type": "qwen2", "num_hidden_layers": 2}, "concept_layers": 3},
            r"conceptlm.concept_layers is 3: the backbone has a kind of attention for each",
        ),
        ({"hidden": 1}, r"conceptlm.hidden: no such field"),
        (
            {"hidden_size": 128},
            r"conceptlm.hidden_size is 128: it is the backbone's, 768; set it in conceptlm.backbone",
        ),
        ({"tie_word_embeddings": False}, r"conceptlm.tie_word_embeddings is False: it is the backbone's, True"),
        ({"initializer_range": 0.1}, r"conceptlm.initializer_range is 0.1: it is the backbone's, 0.02"),
    ],
)
def test_a_config_that_cannot_be_built_says_which_field(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        ConceptLMConfig(**fields)


@pytest.mark.parametrize("config_class", [ConceptLMConfig, MTPConfig])
@pytest.mark.parametrize(
    ("backbone", "says"),
    [
        ("bloom", "'bloom': it does not hand keywords to its layers"),
        ("falcon", "'falcon': it does not hand keywords to its layers"),
        ("gptj", "'gptj': its layers cannot be called by themselves"),
        ("opt", "'opt': its layers or its final norm were not found"),
    ],
)
def test_a_decoder_of_other_layers_is_refused_by_name(config_class: Any, backbone: str, says: str) -> None:
    inner = {"model_type": backbone, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 3}
    with pytest.raises(InputError, match=says):
        AutoModelForCausalLM.from_config(config_class(backbone=inner, vocab_size=60))


def test_config_with_derived_fields_from_a_tool_opens(tmp_path: Path) -> None:
    made().save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text()) | {"max_position_embeddings": 2048, "is_decoder": True}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    opened = AutoModelForCausalLM.from_pretrained(tmp_path).config
    assert opened.max_position_embeddings == 64, "the backbone's"
    assert opened.is_decoder
    with pytest.raises(InputError, match=r"conceptlm.max_position_embeddings is 64: it follows from others"):
        ConceptLMConfig(max_position_embeddings=64)


def test_what_a_pass_cannot_read_is_refused() -> None:
    model = made()
    ids = torch.tensor([ROWS[0]])
    with pytest.raises(InputError, match=r"inputs_embeds is set: .* pass only input_ids"):
        model(inputs_embeds=torch.zeros(1, 3, 16))
    cache = model(ids, use_cache=True).past_key_values
    with pytest.raises(InputError, match="output_thoughts is True with a cache in use"):
        model(ids, past_key_values=cache, output_thoughts=True)
    with pytest.raises(InputError, match="attention_mask is"):
        model(ids, attention_mask=torch.ones(1, 3))


# ------------------------------------------------------------------------------------------------------ on trained ones


def saved_base(kind: str, tokenizer: Any, folder: Path) -> Path:
    """A decoder as another project saves it."""
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](vocab_size=len(tokenizer), **BACKBONES[kind]))
    base.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("backbone", BACKBONES)
def test_concept_layers_grow_as_copies_of_the_bases_first_two(backbone: str, tokenizer: Any, tmp_path: Path) -> None:
    base = saved_base(backbone, tokenizer, tmp_path / "base")
    grow(str(base), "conceptlm", tmp_path / "grown", chunk_size=2)
    model, grown_tokenizer = load_model(tmp_path / "grown")
    assert model.config.chunk_size == 2
    assert len(grown_tokenizer) == len(tokenizer), "no marker of latents is needed"
    for copy, layer in zip(model.concept_layers, model.layers):
        assert_same(copy.state_dict(), layer.state_dict())
    assert_same(model.backbone.state_dict(), AutoModelForCausalLM.from_pretrained(base).state_dict())


@pytest.mark.parametrize("backbone", BACKBONES)
def test_silent_start_equals_the_base_and_then_learns(backbone: str, tokenizer: Any, tmp_path: Path) -> None:
    base = saved_base(backbone, tokenizer, tmp_path / "base")
    grow(str(base), "conceptlm", tmp_path / "grown", silent_start=True)
    model, _ = load_model(tmp_path / "grown")
    plain = AutoModelForCausalLM.from_pretrained(base).eval()
    ids = torch.randint(len(tokenizer), (2, 19), generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(ids).logits, plain(ids).logits)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        model.training_loss({"input_ids": ids, "labels": ids}).loss.backward()
        optimizer.step()
    assert all(p.grad.abs().max() > 0 for p in model.concept_layers.parameters() if p.grad is not None and p.ndim > 1)


# ----------------------------------------------------------------------------------------------- what is compared with


def mtp(backbone: str = "gpt2", **fields: Any) -> MTPForCausalLM:
    torch.manual_seed(0)
    config = MTPConfig(backbone={"model_type": backbone, **BACKBONES[backbone]}, vocab_size=60, **fields)
    return MTPForCausalLM(config).eval()


@pytest.mark.parametrize("backbone", BACKBONES)
def test_multi_token_prediction_adds_heads_to_the_backbone(backbone: str) -> None:
    model = mtp(backbone, num_future_tokens=3)
    text = batch(ROWS[:1])
    ids, body = text["input_ids"], model.backbone.base_model
    assert torch.equal(model(ids).logits, model.backbone(ids).logits)
    inputs: list[Tensor] = []
    handle = model.layers[-1].register_forward_pre_hook(
        lambda layer, args, kwargs: inputs.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )
    body(ids)
    handle.remove()
    total = F.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:])
    positions = torch.arange(ids.shape[1])
    for ahead, head in enumerate(model.future_layers, 2):
        state = model.final_norm(run(model.backbone, [head], inputs[0], positions)[0])
        logits = state @ model.get_output_embeddings().weight.T
        total = total + F.cross_entropy(logits[:-ahead], ids[0, ahead:])
    torch.testing.assert_close(model.training_loss(text).loss, total, atol=1e-5, rtol=1e-5)


def test_heads_that_look_further_are_of_the_last_layers_kind() -> None:
    kinds = ["full_attention", "full_attention", "sliding_attention"]
    inner = SIZES | WINDOW | {"model_type": "olmo3", "layer_types": kinds}
    model = MTPForCausalLM(MTPConfig(backbone=inner, vocab_size=60)).eval()
    last = model.layers[-1]
    for head in model.future_layers:
        head.load_state_dict(last.state_dict())
        assert head.self_attn.sliding_window == last.self_attn.sliding_window == 5
    encoded = model.encode(torch.tensor(LONG[:1]), trace=True)
    for hidden in encoded.future:
        torch.testing.assert_close(hidden, encoded.hidden)


def test_heads_that_look_further_do_not_see_what_they_predict() -> None:
    model = mtp()
    ids = torch.tensor([ROWS[0]])
    changed = ids.clone()
    changed[0, 6] = 59
    first, second = (model.encode(tokens, trace=True) for tokens in (ids, changed))
    for before, after in zip((first.hidden, *first.future), (second.hidden, *second.future)):
        torch.testing.assert_close(before[:, :6], after[:, :6])
        assert not torch.allclose(before[:, 6:], after[:, 6:], atol=1e-3)


def test_no_head_predicts_from_padding_wherever_it_stands() -> None:
    model = mtp()
    left, right = (model.training_loss(batch(ROWS, side)) for side in (True, False))
    torch.testing.assert_close(left.metrics, right.metrics)
    torch.testing.assert_close(gradients(model, left.loss), gradients(model, right.loss), atol=1e-6, rtol=1e-5)
    ids, mask = padded(ROWS, left=True)
    surprisal = model(ids, attention_mask=mask, output_thoughts=True).thoughts[2].scores["surprisal.2"]
    assert surprisal.isnan().all(), "a row of two tokens has none that is two ahead"


@pytest.mark.parametrize("length", range(1, 6))
def test_rows_shorter_than_the_look_ahead_have_own_losses(length: int) -> None:
    model, ids = mtp(num_future_tokens=6), torch.tensor([ROWS[0][:length]] * 2)
    output = model.training_loss({"input_ids": ids, "labels": ids})
    assert [float(output.metrics[f"mtp.{n}"]) > 0 for n in range(2, 7)] == [n < length for n in range(2, 7)]
    for trace in model(ids, output_thoughts=True).thoughts:
        assert {len(values) for values in trace.scores.values()} == {length}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"num_future_tokens": 1}, "mtp.num_future_tokens is 1: "),
    ],
)
def test_multi_token_prediction_that_cannot_be_built_says_why(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        MTPConfig(**fields)


# ------------------------------------------------------------------------------------------------------------ the paper


def empty(name: str) -> Any:
    """A recipe's model without memory for its weights, its vocabulary GPT-2's, Pythia's or Llama's."""
    fields = dict(get_recipe(name).model)
    vocabulary = 50_257 if "gpt2" in name else 128_256 if "llama" in name else 50_304
    config = config_class(fields.pop("model_type"))(**fields, vocab_size=vocabulary)
    with torch.device("meta"):
        return as_model(AutoModelForCausalLM.from_config(config))


def test_two_concept_layers_save_nearly_47_percent() -> None:
    # Llama's layers have wider MLPs and fewer key heads than appendix C counts; it does not count heads and codes.
    ids = {"input_ids": torch.zeros(1, 8192, dtype=torch.long)}
    ours, pm = empty("conceptlm/table3-llama-8b"), empty("conceptlm/table3-llama-8b-pm")
    head = 2 * 8192 * pm.output_weight().numel()
    with_codes = 1 - (ours.forward_flops(ids) - head) / (pm.forward_flops(ids) - head)
    ours.codebook = ours.heads = None
    layers_alone = 1 - (ours.forward_flops(ids) - head) / (pm.forward_flops(ids) - head)
    assert layers_alone == pytest.approx(0.0467, abs=5e-5)
    assert with_codes == pytest.approx(0.0463, abs=1e-3)


@pytest.mark.parametrize(("size", "share"), [("124m", 0.0057), ("355m", 0.0035), ("774m", 0.0024), ("1.5b", 0.0018)])
def test_two_token_layers_match_two_concept_layers_in_size(size: str, share: float) -> None:
    ours, matched = (empty(f"conceptlm/table1-gpt2-{size}{suffix}") for suffix in ("", "-pm"))
    total, of_matched = (sum(p.numel() for p in model.parameters()) for model in (ours, matched))
    left_out = sum(p.numel() for part in (ours.heads, ours.codebook) for p in part.parameters())
    assert total - of_matched == left_out
    assert left_out / of_matched == pytest.approx(share, abs=5e-5)
    assert sum(p.numel() for p in ours.codebook.parameters()) < 2_000_000  # section 4.2


@pytest.mark.parametrize("suffix", ["", "-pm", "-base"])
def test_table_3_runs_on_8_processes_that_share_its_weights(suffix: str) -> None:
    recipe = get_recipe(f"conceptlm/table3-llama-8b{suffix}")
    assert recipe.layout.batch_size % (8 * recipe.train.gradient_accumulation_steps) == 0
    weights = sum(p.numel() for p in empty(recipe.name).parameters())
    bytes_each = 16 * weights / (8 if recipe.train.parallel == "fsdp" else 1)  # weights, gradients, two moments
    assert bytes_each < 80e9


@pytest.mark.parametrize("backbone", ["llama", "mixtral", "qwen3_moe"])
def test_flops_are_those_of_the_experts_that_a_token_goes_to(backbone: str) -> None:
    model = made(backbone, inner=DECODERS.get(backbone, {}))
    ids = torch.tensor([ROWS[0]])
    model.backbone.set_experts_implementation("eager")  # the counter knows no grouped product
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.backbone(ids)
    products = sum(n for name, n in counter.get_flop_counts()["Global"].items() if "mm" in str(name))
    products -= rotary_flops(counter)
    attention = 2 * ids.shape[1] * attention_width(model.backbone.config)
    assert products == model.backbone_flops(*ids.shape) - 2 * ids.numel() * attention


def test_new_layers_start_as_layers_of_the_backbone_do() -> None:
    """GPT-2 scales what is added to the residual stream by 1 / sqrt(2 layers), in its own layers and in new ones."""
    inner = {"model_type": "gpt2", "n_embd": 128, "n_layer": 8, "n_head": 4}
    for config in (ConceptLMConfig(backbone=inner, vocab_size=60), MTPConfig(backbone=inner, vocab_size=60)):
        model = AutoModelForCausalLM.from_config(config)
        layers = model.concept_layers if isinstance(model, ConceptLMForCausalLM) else model.future_layers
        for layer in (*model.layers, *layers):
            for part in (layer.attn, layer.mlp):
                assert part.c_proj.weight.std().item() == pytest.approx(0.02 / (2 * 8) ** 0.5, rel=0.05)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable. is deprecated")
@pytest.mark.parametrize("backbone", BACKBONES)
def test_checkpointed_layers_give_the_same_gradients(backbone: str) -> None:
    model = made(backbone, insert_depth=1).train()
    text = batch(ROWS)
    expected = gradients(model, model.training_loss(text).loss)
    model.gradient_checkpointing_enable()
    assert all(layer.gradient_checkpointing for layer in (*model.layers, *model.concept_layers))
    assert_same(gradients(model, model.training_loss(text).loss), expected)
    with pytest.raises(InputError, match="gradient checkpointing in training"):
        model(text["input_ids"], use_cache=True)


@pytest.mark.slow
def test_two_processes_with_sharded_weights_learn_what_one_does(corpus: Path, tmp_path: Path) -> None:
    recipe = shrink(get_recipe("conceptlm/tiny-llama"), corpus, steps=3)
    one = train(recipe, tmp_path / "one", show=False)
    sharded = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, parallel="fsdp"))
    two = finish(launch(sharded, tmp_path / "two", processes=2), tmp_path / "two")
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    assert two["test"]["nll"] == pytest.approx(one["test"]["nll"], rel=1e-4)
