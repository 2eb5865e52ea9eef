"""Thought Gestalt, sentence by sentence: what the paper says of it, and that generation keeps its promises."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from mentalese.errors import InputError
from mentalese.families.thought_gestalt.blocks import CrossAttention
from mentalese.families.thought_gestalt.config import ThoughtGestaltConfig
from mentalese.families.thought_gestalt.model import ThoughtGestaltForCausalLM
from mentalese.families.thought_gestalt.plain import ThoughtGestalt
from mentalese.families.thought_gestalt.plan import plan_pass, sent
from mentalese.families.thought_gestalt.repeated import Unit, uses
from mentalese.families.thought_gestalt.streams import find_sentences
from mentalese.models.base import count_parameters
from mentalese.models.build import check_context
from mentalese.models.trace import ThoughtTrace
from mentalese.registry import get_recipe, match_recipes
from mentalese.suite.texts import composed, recall
from references import linear_cross_entropy_reference
from support import training_losses

PAD, BOS, EOS, EOD = 0, 1, 2, 3
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def make(seed: int = 0, **fields: Any) -> ThoughtGestaltForCausalLM:
    """A small untied model with weights large enough to tell right from wrong."""
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
    defaults = {"max_sentence_tokens": 6, "memory_size": 3, "attention_dropout": 0.0, "tie_word_embeddings": False}
    torch.manual_seed(seed)
    model = ThoughtGestaltForCausalLM(ThoughtGestaltConfig(**sizes | defaults | fields)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                parameter.mul_(8)
            elif name.endswith("bias"):
                parameter.normal_(std=0.3)
    return model


def stream(*lengths: int, seed: int = 0, closed: bool = True) -> list[int]:
    """Sentences of random words; with `closed=False` the last one lacks its EOS."""
    generator = torch.Generator().manual_seed(seed + 1000 * sum(lengths))
    ids: list[int] = []
    for n in lengths:
        ids += [BOS, *torch.randint(4, 40, (n,), generator=generator).tolist(), EOS]
    return ids if closed else ids[:-1]


def batch_of(*rows: list[int], left: bool = True) -> dict[str, Tensor]:
    """Padded rows; the labels are the words, EOS and EOD."""
    width = max(map(len, rows))
    padded = [[PAD] * (width - len(row)) + row if left else row + [PAD] * (width - len(row)) for row in rows]
    ids = torch.tensor(padded)
    labels = ids.masked_fill((ids == PAD) | (ids == BOS), -100)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


def logits(model: ThoughtGestaltForCausalLM, row: list[int]) -> Tensor:
    return model(torch.tensor([row])).logits[0]


# ------------------------------------------------------------------------------------------------- sizes and settings


@pytest.mark.parametrize(
    ("width", "heads", "parameters", "label"),
    [(48, 3, 341_718, "340K"), (96, 6, 1_351_590, "1.3M"), (192, 6, 5_375_814, "5.4M"), (384, 6, 21_442_182, "21.3M"),
     (768, 12, 85_646_598, "85M")],
)  # fmt: skip
def test_sizes_are_the_paper_s(width: int, heads: int, parameters: int, label: str) -> None:
    for sentence_head in ("normalized", "linear"):
        config = ThoughtGestaltConfig(hidden_size=width, num_attention_heads=heads, sentence_head=sentence_head)
        with torch.device("meta"):
            model = ThoughtGestaltForCausalLM(config)
        assert count_parameters(model)["non_embedding"] == parameters, label


def test_defaults_are_the_paper_s_equation() -> None:
    """s = W_sent h at the end of a sentence, and what is read from the memory is added unscaled (section 2.2, C)."""
    model, row = make(), stream(3, 2)
    states: list[Tensor] = []
    model.sentence_head.register_forward_pre_hook(lambda module, args: states.append(args[0]))
    vectors = model.read(torch.tensor([row])).vectors
    torch.testing.assert_close(
        vectors, torch.cat(states) @ model.sentence_head.linear.weight.T + model.sentence_head.linear.bias
    )
    assert {float(module.gate.detach()) for module in model.modules() if isinstance(module, CrossAttention)} == {1.0}
    assert model.training_loss(batch_of(row)).metrics.keys() == {"nll", "memory_gate.1", "memory_gate.3"}


def test_recipes_with_results_state_the_release_s_head() -> None:
    """Those of the paper's tables have its equation, without a switch of the release."""
    tables = [r for r in match_recipes("thought_gestalt/*") if r.paper or "ablation-" in r.name]
    assert len(tables) == 28
    switches = {"sentence_head", "gate_init"}
    assert not {name for recipe in tables for name in recipe.model} & switches
    others = [r for r in match_recipes("thought_gestalt/*") if r not in tables]
    methods = [m.recipe for task in (recall, composed) for m in task(1).methods]
    others += [r for r in methods if r.model["model_type"] == "thought_gestalt" and r.model.get("memory") != "none"]
    assert len(others) == 5 + 7
    papers = {r.name for r in others if r.model.get("sentence_head") != "normalized"}
    assert papers == {"recall/thought_gestalt", "recall/thought_gestalt-swapped"}


def test_tables_drop_as_much_as_their_gpt2() -> None:
    """B.2's 0.2 in attention, and 0.1 of residuals and embeddings, of which the paper says nothing (the release's)."""
    names = {"attention_dropout": "attn_pdrop", "residual_dropout": "resid_pdrop", "embedding_dropout": "embd_pdrop"}
    for recipe in (r for r in match_recipes("thought_gestalt/*") if r.paper):
        config = ThoughtGestaltConfig(**{name: value for name, value in recipe.model.items() if name != "model_type"})
        twin = get_recipe(recipe.baseline or "").model
        rates = [getattr(config, name) for name in names]
        assert rates == [twin[name] for name in names.values()] == [0.2, 0.1, 0.1]


def test_vector_comes_from_layer_seven_of_twelve() -> None:
    assert [ThoughtGestaltConfig(num_hidden_layers=n).vector_layer for n in (1, 2, 6, 12, 24)] == [0, 0, 3, 6, 13]
    assert ThoughtGestaltConfig(hidden_size=96, activation="swiglu").mlp_width == 256
    assert ThoughtGestaltConfig(hidden_size=100, num_attention_heads=4, activation="swiglu").mlp_width == 272


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"memory_size": 0}, r"memory_size is 0: "),
        ({"memory_gradient_window": -1}, r"memory_gradient_window is -1: "),
        (
            {"memory": "none", "attention_layout": "parallel"},
            r"attention_layout is 'parallel': memory 'none' has no",
        ),
        ({"hidden_size": "wide"}, r"hidden_size is 'wide': "),
        ({"hidden_size": 17, "num_attention_heads": 1}, r"hidden_size is 17: set an even number"),
        ({"sentence_head": "mlp"}, r"sentence_head is 'mlp': "),
        ({"sentence_layer": 12}, r"sentence_layer is 12: set a layer from 0 to 11"),
        ({"attention_dropout": 1.0}, r"attention_dropout is 1.0: "),
        ({"sentence_end_token_id": 1}, r"sentence_start_token_id is 1: use a different id"),
        ({"layer_norm_eps": 0.0}, r"layer_norm_eps is 0.0: "),
        ({"next_vector_weight": -1.0}, r"next_vector_weight is -1.0: "),
        ({"memory": "none", "next_vector_weight": 0.5}, r"next_vector_weight is 0.5: memory 'none' has no vectors"),
        ({"num_hidden_layers": 1, "context_seeding": False}, r"num_hidden_layers is 1: .* in every second layer"),
        ({"layers_per_turn": 5}, r"layers_per_turn is 5: set a divisor of num_hidden_layers \(12\), or None"),
        ({"layers_per_turn": 3}, r"layers_per_turn is 3: attention_layout 'alternate' has layers in pairs"),
        ({"memory_sise": 3}, r"memory_sise: no such field; did you mean 'memory_size'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ThoughtGestaltConfig(**fields)


def test_each_ablation_changes_what_it_says_and_nothing_else() -> None:
    """Table 1, at 30 million tokens; sizes are the paper's, where a model without memory has no sentence head."""
    base = get_recipe("thought_gestalt/table2-30m").to_dict()
    sizes = {}
    for recipe in match_recipes("thought_gestalt/ablation-*"):
        fields = recipe.to_dict()
        for name in ("name", "description", "paper"):
            del fields[name]
        changed = [name for name, value in fields.items() if value != base[name]]
        assert set(changed) <= {"model", "data", "layout", "phases"}, recipe.name
        assert changed, recipe.name
        assert recipe.baseline == "gpt2/table2-30m"
        with torch.device("meta"):
            model = ThoughtGestaltForCausalLM(
                ThoughtGestaltConfig(**{k: v for k, v in recipe.model.items() if k != "model_type"})
            )
        sizes[recipe.name.removeprefix("thought_gestalt/ablation-")] = count_parameters(model)["non_embedding"]
    both = ("self-cross", "cross-self", "parallel")
    assert len(sizes) == 11
    assert {sizes.pop(name) for name in both} == {114_013_452}
    assert (sizes.pop("no-memory"), sizes.pop("in-context")) == (85_056_000, 85_646_592)
    assert set(sizes.values()) == {85_646_598}


def test_all_norms_have_the_epsilon_of_the_config() -> None:
    """With an epsilon so large that a norm is a division by its root, outputs are those of the plain form of it."""
    model = make(layer_norm_eps=1e6, sentence_head="normalized")
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 2 * 4 + 1  # a block has two, and the last one is before the head
    assert {norm.eps for norm in norms} == {1e6}
    h = torch.randn(3, 16)
    head = model.sentence_head
    expected = head.linear((h - h.mean(1, keepdim=True)) / 1e3)
    torch.testing.assert_close(head(h, 0.0)[1], expected.norm(dim=1), rtol=1e-5, atol=0)


def test_spans_change_the_segmentation_alone() -> None:
    for recipe in match_recipes("thought_gestalt/table4-*"):
        span, subset = recipe.name.removeprefix("thought_gestalt/table4-span").split("-")
        base = get_recipe(f"thought_gestalt/table2-{subset}")
        assert recipe.model == base.model | {"max_sentence_tokens": int(span)}
        assert dataclasses.replace(recipe.data, sentences="sat", max_sentence_tokens=64) == base.data
        assert recipe.data.max_sentence_tokens >= int(span)  # or the text could not be prepared
        assert recipe.layout == base.layout
        assert (recipe.phases, recipe.train, recipe.optimizer) == (base.phases, base.train, base.optimizer)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"max_sentence_tokens": 65}, "data.max_sentence_tokens is 65: the model has positions for sentences of 64"),
        ({"sentences": "fixed:75"}, "data.sentences is 'fixed:75': the model has positions for sentences of 64 tokens"),
        ({"sentences": "none"}, "data.sentences is 'none': the model has positions for sentences of 64 tokens"),
    ],
)
def test_sentences_longer_than_the_position_table_are_refused(data: dict[str, Any], message: str) -> None:
    config, recipe = make(max_sentence_tokens=64).config, get_recipe("thought_gestalt/tiny")
    check_context(config, recipe)
    changed = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, **data))
    with pytest.raises(InputError, match=message):
        check_context(config, changed)


# --------------------------------------------------------------------------------------------------- what it computes


VARIANTS: list[dict[str, Any]] = [
    {}, {"sentence_head": "normalized"}, {"context_seeding": False},
    {"memory_size": 1, "gate_init": 0.7}, {"activation": "swiglu"}, {"sentence_layer": 3}, {"sentence_layer": 0},
    {"attention_layout": "self_cross"}, {"attention_layout": "cross_self"}, {"attention_layout": "parallel"},
    {"memory": "prefix"}, {"memory": "prefix", "memory_gradient_window": 1}, {"memory": "none"},
    {"memory_gradient_window": 0}, {"memory_gradient_window": 1}, {"memory_gradient_window": 2},
    {"memory_gradient_window": 2, "attention_layout": "self_cross"}, {"next_vector_weight": 0.7},
    {"next_vector_weight": 0.7, "memory_gradient_window": 0}, {"next_vector_weight": 0.7, "memory": "prefix"},
    {"layers_per_turn": 2}, {"layers_per_turn": 1, "attention_layout": "cross_self"},
    {"layers_per_turn": 1, "memory": "prefix"},
]  # fmt: skip
ONLY_TRAINING = {"memory_gradient_window", "next_vector_weight"}
INFERENCE = [fields for fields in VARIANTS if not ONLY_TRAINING & fields.keys()]


def plain_of(model: ThoughtGestaltForCausalLM) -> ThoughtGestalt:
    """The plain model with the same weights, and gradients of its own."""
    plain = ThoughtGestalt(model.config)
    plain.load_state_dict(model.state_dict())
    return plain.train(model.training)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_outputs_and_gradients_are_those_of_the_plain_model(fields: dict[str, Any]) -> None:
    """Sentence by sentence, padded to the maximum, everything projected anew: the paper's equations as they stand."""
    batch = batch_of(stream(3, 1, 6, 2, 4, 3, 5), stream(2, 5), stream(6), stream(1, 2, 3, 4, 5, closed=False))
    fast = make(**fields)
    plain, ids = plain_of(fast), batch["input_ids"]
    torch.testing.assert_close(fast.final_hidden_states(batch), plain.hidden_states(ids), **CLOSE)
    torch.testing.assert_close(fast(**batch).logits, plain(ids), **CLOSE)
    output, expected = fast.training_loss(batch, eos_weight=0.3), plain.loss(ids, eos_weight=0.3)
    torch.testing.assert_close(output.loss, expected, **CLOSE)
    output.loss.backward()
    expected.backward()
    torch.testing.assert_close(gradients(fast), gradients(plain), atol=1e-5, rtol=1e-3)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=8), min_size=1, max_size=5),
    window=st.sampled_from([None, 0, 2]),
    ahead=st.sampled_from([0.0, 0.7]),
    head=st.sampled_from(["linear", "normalized"]),
    left=st.booleans(),
)
def test_streams_of_any_lengths_equal_the_plain_model(
    rows: list[list[int]], window: int | None, ahead: float, head: str, left: bool
) -> None:
    batch = batch_of(*(stream(*lengths, seed=i) for i, lengths in enumerate(rows)), left=left)
    fast = make(memory_gradient_window=window, next_vector_weight=ahead, sentence_head=head)
    plain = plain_of(fast)
    loss, expected = fast.training_loss(batch).loss, plain.loss(batch["input_ids"])
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-3)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(gradients(fast), gradients(plain), atol=1e-5, rtol=1e-3)


DROPOUTS = ("attention_dropout", "residual_dropout", "embedding_dropout")
ALL = 1 - 1e-9  # a dropout that leaves nothing, so that two models agree on it


@pytest.mark.parametrize(
    ("fields", "rates"),
    [
        ({"attention_dropout": ALL}, {}),
        ({"residual_dropout": ALL}, {}),
        ({"embedding_dropout": ALL}, {}),
        ({}, {"token_dropout": ALL}),
        ({}, {"sentence_dropout": ALL}),
        ({"sentence_head": "normalized"}, {"sentence_dropout": ALL}),
        ({"memory": "prefix", "embedding_dropout": ALL}, {}),
    ],
    ids=str,
)
def test_dropouts_are_where_the_plain_model_has_them(fields: dict[str, Any], rates: dict[str, float]) -> None:
    ends = [*stream(3, 1, 2)[:-1], EOD, EOS]
    batch = batch_of(ends, stream(2, 5))
    fast = make(**fields).train()
    plain, ids = plain_of(fast), batch["input_ids"]
    loss, expected = fast.training_loss(batch, **rates).loss, plain.loss(ids, **rates)
    torch.testing.assert_close(loss, expected, **CLOSE)
    without = make(**fields | dict.fromkeys(DROPOUTS, 0.0))
    torch.testing.assert_close(plain.eval()(ids), without(ids).logits, **CLOSE)
    assert abs(plain.loss(ids, **rates) - expected) > 1e-3, "the test shows nothing if nothing is dropped"


def test_the_plain_model_trains_by_itself() -> None:
    torch.manual_seed(0)
    model = ThoughtGestalt(make(sentence_head="normalized", attention_dropout=0.1, next_vector_weight=0.1).config)
    rows = batch_of(stream(3, 1, 6, 2), stream(2, 5))["input_ids"]
    losses = training_losses(
        model, lambda _: model.loss(rows, eos_weight=0.5, token_dropout=0.1, sentence_dropout=0.1), steps=30
    )
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("tied", [True, False])
def test_the_plain_model_starts_as_the_fast_one_does(tied: bool) -> None:
    """By the mean and the spread of each weight."""
    torch.manual_seed(0)
    fields = {"vocab_size": 100, "hidden_size": 256, "num_hidden_layers": 2, "gate_init": 0.7}
    config = ThoughtGestaltConfig(**fields, tie_word_embeddings=tied, num_attention_heads=2, next_vector_weight=1.0)
    fast, plain = ThoughtGestaltForCausalLM(config).state_dict(), ThoughtGestalt(config).state_dict()
    assert fast.keys() == plain.keys()
    for name, weight in fast.items():
        assert plain[name].mean().item() == pytest.approx(weight.mean().item(), abs=0.01), name
        assert plain[name].std(correction=0).item() == pytest.approx(weight.std(correction=0).item(), rel=0.1), name
    for weights in (fast, plain):
        assert torch.equal(weights["lm_head.weight"], weights["embed.weight"]) == tied


@pytest.mark.parametrize("fields", INFERENCE, ids=str)
@pytest.mark.parametrize("tokens", [1, 12, 40])
def test_document_is_scored_in_parts_that_keep_only_memory(
    fields: dict[str, Any], tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sentences of later parts read vectors of earlier ones; no layer ever sees more tokens than a part or a step."""
    batch = batch_of(stream(3, 1, 6, 2, 4, 3, 5, 2, 6), stream(2, 5), stream(6, 1, 1, 4), stream(1, 2, 3, closed=False))
    model = make(**fields)
    whole = model.token_nll(batch)
    seen: list[int] = []
    model.final_norm.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    monkeypatch.setattr("mentalese.families.thought_gestalt.model.SCORED_AT_ONCE", tokens)
    torch.testing.assert_close(model.token_nll(batch), whole, **CLOSE)
    assert len(seen) == {1: 9, 12: 7, 40: 3}[tokens]
    assert sum(seen) == int((batch["labels"] >= 0).sum())


def test_many_sentences_are_padded_in_groups_and_change_nothing() -> None:
    model = make()
    rows = [stream(*((i * j) % 6 + 1 for j in range(1, 5)), seed=i) for i in range(1, 60)]
    batch = batch_of(*rows)
    torch.testing.assert_close(
        model.final_hidden_states(batch), plain_of(model).hidden_states(batch["input_ids"]), **CLOSE
    )


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=6), min_size=1, max_size=4), left=st.booleans())
def test_a_row_does_not_depend_on_its_batch(rows: list[list[int]], left: bool) -> None:
    model = make()
    streams = [stream(*lengths, seed=i, closed=i % 2 == 0) for i, lengths in enumerate(rows)]
    batch = batch_of(*streams, left=left)
    with torch.no_grad():
        together = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        for i, row in enumerate(streams):
            torch.testing.assert_close(together[i][batch["attention_mask"][i].bool()], logits(model, row), **CLOSE)


def test_padding_is_inert_with_or_without_a_mask() -> None:
    model = make()
    row = stream(3, 2, 4)
    holes = [PAD, *row[:2], PAD, PAD, *row[2:9], PAD, *row[9:], PAD]
    real = torch.tensor(holes) != PAD
    torch.testing.assert_close(logits(model, holes)[real], logits(model, row), **CLOSE)


@pytest.mark.parametrize("training", [False, True])
def test_a_word_behind_padding_has_its_loss_and_no_surprisal(training: bool) -> None:
    """The last token before the padding predicts it; the column before it, which a trace shows, does not."""
    model, row = make(), stream(3, 2)
    model.train(training)
    ids = torch.tensor([[*row[:2], PAD, *row[2:]]])
    labels = ids.masked_fill((ids == PAD) | (ids == BOS), -100)
    loss = model(ids, attention_mask=(ids != PAD).long(), labels=labels).loss
    torch.testing.assert_close(loss, model(ids, labels=labels).loss)
    whole = torch.tensor([row])
    torch.testing.assert_close(loss, model(whole, labels=whole.masked_fill(whole == BOS, -100)).loss, **CLOSE)
    [trace] = model.eval()(ids, output_thoughts=True).thoughts
    [expected] = model(whole, output_thoughts=True).thoughts
    assert trace.scores["surprisal"][:4].isnan().tolist() == [True, False, True, True]
    torch.testing.assert_close(trace.scores["surprisal"][4:], expected.scores["surprisal"][3:], equal_nan=True, **CLOSE)


def test_empty_memory_adds_exactly_nothing() -> None:
    model = make()
    first = stream(4)
    expected = logits(model, first)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, CrossAttention):
                for parameter in module.parameters():
                    parameter.fill_(100.0)
    assert torch.equal(logits(model, first), expected)


def test_seeding_replaces_start_markers_after_the_first() -> None:
    ids = torch.tensor([stream(3, 3)])
    for seeding in (True, False):
        model = make(context_seeding=seeding)
        entering: list[Tensor] = []
        model.blocks[0].register_forward_pre_hook(lambda module, args, kept=entering: kept.append(args[0][0]))
        vectors = model.read(ids).vectors
        start, position = model.embed.weight[BOS], model.position_embed.weight[0]
        torch.testing.assert_close(entering[0], start + position)
        torch.testing.assert_close(entering[1], (vectors[0] if seeding else start) + position)


# ---------------------------------------------------------------------------------------------------------- gradients


def gradient_at_sentences(model: ThoughtGestaltForCausalLM, row: list[int]) -> list[float]:
    """How much a prediction in the last sentence depends on the tokens of each sentence."""
    embedded: list[Tensor] = []

    def keep(module: Any, args: Any, output: Tensor) -> None:
        output.retain_grad()
        embedded.append(output)

    handle = model.embed.register_forward_hook(keep)
    output = model.read(torch.tensor([row]))
    handle.remove()
    model.lm_head(output.hidden[-2])[7].backward()
    assert embedded[0].grad is not None
    return [of_tokens.abs().sum().item() for of_tokens in embedded[0].grad.split(output.sentences.lengths.tolist())]


def test_gradients_reach_sentences_that_have_left_the_memory() -> None:
    row = stream(3, 3, 3, 3, 3)
    kept = gradient_at_sentences(make(memory_size=2, context_seeding=False), row)
    assert all(size > 0 for size in kept)  # sentences 0 to 2 have been evicted when sentence 4 is read
    detached = gradient_at_sentences(make(memory_size=2, memory_gradient_window=0), row)
    assert detached[:4] == [0.0] * 4
    assert detached[4] > 0


def test_gradient_window_reaches_earlier_vectors() -> None:
    row = stream(3, 3, 3, 3, 3)
    chained = gradient_at_sentences(make(memory_size=4, memory_gradient_window=1, context_seeding=False), row)
    assert all(size > 0 for size in chained)  # 4 reads 3, 3 reads 2, ..
    sizes = [
        gradient_at_sentences(make(memory_size=4, memory_gradient_window=w, context_seeding=False), row)[0]
        for w in (1, 2, 3, 4, None)
    ]
    assert len(set(sizes[:4])) == 4
    assert sizes[3] == sizes[4]


def test_the_gradient_window_changes_gradients_only() -> None:
    row = stream(3, 2, 4)
    for window in (0, 1):
        torch.testing.assert_close(logits(make(memory_gradient_window=window), row), logits(make(), row))


# --------------------------------------------------------------------------------------------------------------- loss


def test_loss_is_the_weighted_mean_of_words_and_ends() -> None:
    model = make()
    batch = batch_of(stream(3, 2, seed=1), [*stream(4, 5)[:-1], EOD, EOS])
    ids, labels = batch["input_ids"], batch["labels"]
    table = model(ids, attention_mask=batch["attention_mask"]).logits[:, :-1].flatten(0, 1)
    targets = labels[:, 1:].flatten()
    nll = torch.nn.functional.cross_entropy(table, targets, reduction="none", ignore_index=-100)
    for eos_weight in (1.0, 0.05):
        weights = torch.where(targets == EOS, eos_weight, 1.0) * (targets != -100)
        output = model.training_loss(batch, eos_weight=eos_weight)
        torch.testing.assert_close(output.loss, (weights * nll).sum() / weights.sum())
        torch.testing.assert_close(output.weight, weights.sum())
    all_labels = ids.masked_fill(ids == PAD, -100)  # starts of sentences are never targets, labelled or not
    torch.testing.assert_close(
        model.training_loss(batch | {"labels": all_labels}).loss, model.training_loss(batch).loss
    )
    torch.testing.assert_close(model(ids, labels=labels).loss, model.training_loss(batch).loss)


def test_hinge_pulls_lengths_to_one_by_sentence_weight() -> None:
    model = make(sentence_head="normalized")
    one, two = batch_of(stream(3, 2, seed=1)), batch_of(stream(4, 5, 6))
    outside = [max(0, n - 1.1, 0.9 - n) ** 2 for n in model.read(one["input_ids"]).norms.tolist()]
    expected = (4 * outside[0] + 3 * outside[1]) / 7
    output = model.training_loss(one)
    assert output.metrics["norm_hinge"].item() == pytest.approx(expected, rel=1e-4)
    plain = linear_cross_entropy_reference(
        model.final_hidden_states(one)[:, :-1].flatten(0, 1), model.output_weight(), one["labels"][:, 1:].flatten()
    )
    assert output.loss.item() == pytest.approx(plain.item() + 0.01 * expected, rel=1e-5)
    both = model.training_loss(
        batch_of(stream(3, 2, seed=1), stream(4, 5, 6))
    )  # a mean over shares is the whole's mean
    parts = [model.training_loss(part) for part in (one, two)]
    mean = sum(part.loss * part.weight for part in parts) / both.weight
    torch.testing.assert_close(mean, both.loss, atol=1e-5, rtol=1e-5)


def test_the_share_of_the_next_vectors_that_is_predicted() -> None:
    """1 where the map is right, 0 where it says the mean; a sentence counts as often as it has targets."""
    model = make(next_vector_weight=0.5)
    batch = batch_of(stream(3, 2, 5, seed=1), stream(4, 1, closed=False))
    output = model.read(batch["input_ids"], batch["attention_mask"])
    first, second, third = output.vectors[[0, 2, 4]].detach()  # step by step: the first stream's, the second's, ..
    weight = torch.tensor([[3.0], [6.0]])  # with their ends
    mean = (weight * torch.stack((second, third))).sum(0) / weight.sum()

    def r2(says: Tensor, bias: Tensor) -> float:
        with torch.no_grad():
            model.next_vector.weight.copy_(says)
            model.next_vector.bias.copy_(bias)
        return model.training_loss(batch).metrics["next_vector_r2"].item()

    assert r2(torch.zeros(16, 16), mean) == pytest.approx(0.0, abs=1e-5)
    right = torch.stack((second, third)).T @ torch.linalg.pinv(torch.stack((first, second)).T)
    assert r2(right, torch.zeros(16)) == pytest.approx(1.0, abs=1e-4)
    assert r2(torch.zeros(16, 16), -mean) < 0
    alone = batch_of(stream(3), stream(4))
    assert model.training_loss(alone).metrics["next_vector"] == 0


def test_next_vector_loss_adds_up_over_parts() -> None:
    model = make(next_vector_weight=1.0, sentence_head="normalized")
    rows = [stream(3, 2, 5, 4, seed=i)[: 18 - i] for i in range(4)]
    batch = batch_of(*rows)
    parts = [model.training_loss(batch_of(row)) for row in rows]
    whole = model.training_loss(batch)
    expected = sum(part.loss * part.weight for part in parts) / sum(part.weight for part in parts)
    torch.testing.assert_close(whole.loss, expected, **CLOSE)
    assert whole.loss > whole.metrics["nll"] + whole.metrics["next_vector"]
    plain = make()
    assert not [name for name in plain.state_dict() if "next_vector" in name]
    assert (
        model.training_flops(batch) - plain.training_flops(batch) == 3 * 2 * 10 * 16 * 16
    )  # of ten sentences with one before


def test_token_dropout_zeroes_words_and_never_markers() -> None:
    model = make().train()
    seen = []
    model.blocks[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model.read(torch.tensor([[BOS, 5, 6, 7, EOD, EOS]]), token_dropout=0.999999)
    zeroed = (seen[0] == 0).all(-1).tolist()
    assert zeroed == [False, True, True, True, False, False]
    model.eval().read(torch.tensor([[BOS, 5, 6, 7, EOS]]), token_dropout=0.999999)
    assert not (seen[1] == 0).all(-1).any()


def test_sentence_dropout_acts_on_the_vector_in_training_alone() -> None:
    model = make().train()
    row = torch.tensor([stream(3, 3)])
    vectors = [model.read(row, sentence_dropout=p).vectors for p in (0.0, 0.0, 0.5)]
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.allclose(vectors[0], vectors[2], atol=1e-3)
    assert torch.equal(model.eval().read(row, sentence_dropout=0.5).vectors, vectors[0])


# --------------------------------------------------------------------------------------------------------------- cost


@pytest.mark.parametrize("fields", [*VARIANTS, {"activation": "swiglu", "num_hidden_layers": 3}], ids=str)
def test_the_flops_formula_is_what_pytorch_counts(fields: dict[str, Any]) -> None:
    model = make(**fields)
    rows = [stream(3, 2, seed=1), stream(4, 5, 1, 1, 6, closed=False), stream(1), *[stream(4, 2)] * 50]
    batch = batch_of(*rows, left=False)
    # The counter knows matrix products but not the CPU's fused attention: count the unfused form.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False)
    assert model.forward_flops(batch) == counter.get_total_flops()
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model.token_nll(batch)
    assert model.scoring_flops(batch) == counter.get_total_flops()


# --------------------------------------------------------------------------------------------------------- generation

PROMPTS = [stream(3, 2, 5, 1, 2, closed=False), stream(2, closed=False), stream(6, 1), stream(4, 3, 3, closed=False)]


def generate(model: ThoughtGestaltForCausalLM, rows: list[list[int]], **options: Any) -> Any:
    batch = batch_of(*rows)
    torch.manual_seed(0)
    return model.generate(
        batch["input_ids"],
        attention_mask=batch["attention_mask"],
        output_logits=True,
        return_dict_in_generate=True,
        **{"max_new_tokens": 25, "do_sample": False} | options,
    )


@pytest.mark.parametrize("fields", INFERENCE, ids=str)
def test_cached_logits_are_uncached_logits_for_ragged_rows(fields: dict[str, Any]) -> None:
    for seed in range(2):
        model = make(seed, **fields)
        options = {"min_new_tokens": 25, "do_sample": True, "temperature": 2.0}
        cached, uncached = (generate(model, PROMPTS, use_cache=use, **options) for use in (True, False))
        assert torch.equal(cached.sequences, uncached.sequences)
        torch.testing.assert_close(torch.stack(cached.logits), torch.stack(uncached.logits), **CLOSE)
        new = cached.sequences[:, -25:]
        assert ((new == EOS).sum(1) > 0).any(), "no sentence ended: nothing was tested"
        assert len(new.unique()) > 10


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_half_precision_weights_read_train_and_generate(fields: dict[str, Any]) -> None:
    precise, half = make(**fields), make(**fields).to(torch.bfloat16)
    with torch.no_grad():  # large weights are for telling right from wrong, not for rounding
        for parameter in (p for model in (precise, half) for p in model.parameters() if p.ndim >= 2):
            parameter.div_(8)
    batch = batch_of(*PROMPTS)
    expected, found = (model.training_loss(batch).loss for model in (precise, half))
    torch.testing.assert_close(found.float(), expected, atol=0.02, rtol=0.02)
    found.backward()
    output = generate(half, PROMPTS, max_new_tokens=8, min_new_tokens=8)
    assert torch.stack(output.logits).isfinite().all()


@settings(max_examples=50, deadline=None)
@given(cuts=st.lists(st.integers(1, 24), max_size=4), seed=st.integers(0, 3), fields=st.sampled_from(VARIANTS))
def test_a_text_may_be_read_in_pieces(cuts: list[int], seed: int, fields: dict[str, Any]) -> None:
    model = make(seed, **fields)
    batch = batch_of(stream(3, 2, 6, 1, seed=seed), stream(5, 4, 2, closed=False), stream(1, 1, 1))
    ids, mask = batch["input_ids"], batch["attention_mask"]
    with torch.no_grad():
        whole = model(ids, attention_mask=mask).logits
        cache, pieces = model.new_cache(), []
        bounds = sorted({0, *(cut for cut in cuts if cut < ids.shape[1]), ids.shape[1]})
        for start, end in pairwise(bounds):
            pieces.append(model(ids[:, start:end], attention_mask=mask[:, :end], past_key_values=cache).logits)
    assert cache.get_seq_length() == ids.shape[1]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, **CLOSE)


def test_generate_may_prefill_in_chunks_and_go_on_from_its_cache() -> None:
    model = make(1)
    whole = generate(model, PROMPTS, min_new_tokens=25)
    chunked = generate(model, PROMPTS, min_new_tokens=25, prefill_chunk_size=4)
    assert torch.equal(whole.sequences, chunked.sequences)
    first = generate(model, PROMPTS, min_new_tokens=10, max_new_tokens=10)
    mask = (first.sequences != PAD).long()
    options = {"past_key_values": first.past_key_values, "min_new_tokens": 15, "max_new_tokens": 15}
    rest = model.generate(first.sequences, attention_mask=mask, do_sample=False, **options)
    assert torch.equal(rest, whole.sequences)


def test_beams_and_samples_carry_their_thoughts() -> None:
    model = make(2)
    for options in ({"num_beams": 3}, {"do_sample": True, "num_return_sequences": 3, "temperature": 0.7}):
        cached, uncached = (generate(model, PROMPTS, use_cache=use, **options) for use in (True, False))
        assert torch.equal(cached.sequences, uncached.sequences)


def test_rows_that_are_done_wait_without_a_trace() -> None:
    model = make()
    with torch.no_grad():  # EOD is likely: rows end at different times and are padded
        model.lm_head.weight[EOD] *= 3
    output = generate(model, PROMPTS, do_sample=True, temperature=3.0, max_new_tokens=40)
    new = output.sequences[:, max(map(len, PROMPTS)) :]
    ends = [(row == EOD).nonzero()[:, 0].tolist() for row in new]
    assert len({tuple(end) for end in ends}) > 1, "all rows ended at once: nothing was tested"
    for row, end in zip(new, ends):
        assert len(end) <= 1
        if end:
            assert (row[end[0] + 1 :] == PAD).all()


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_markers_are_seen_to(use_cache: bool) -> None:
    model = make(3)
    output = generate(model, PROMPTS, do_sample=True, temperature=5.0, max_new_tokens=60, use_cache=use_cache)
    for row in output.sequences.tolist():
        tokens = [t for t in row if t != PAD]
        position = 0
        for i, token in enumerate(tokens):
            assert (token == BOS) == (position == 0)
            position = 0 if token == EOS else position + 1
            lexical = position - 1 - (token == EOD)
            assert lexical <= 6
            if token == EOD:
                assert i == len(tokens) - 1


def test_sampled_beams_are_refused() -> None:
    with pytest.raises(InputError, match="do_sample is True with num_beams 2: beams cannot be sampled"):
        generate(make(), PROMPTS, num_beams=2, do_sample=True)


def test_a_text_is_generated_without_a_prompt() -> None:
    assert make().generate(max_new_tokens=5, do_sample=False)[0, 0] == BOS


def test_words_are_counted_whatever_padding_stands_between_them() -> None:
    model = make()
    holes = torch.tensor([[BOS, 4, 5, 6, 7, 8, *[PAD] * 12, 9]])
    assert model.generate(holes, max_new_tokens=1, do_sample=False)[0, -1] in (EOS, EOD)


@pytest.mark.parametrize("end", [EOS, EOD])
def test_no_generated_sentence_is_empty(end: int) -> None:
    model = make(1)
    with torch.no_grad():  # the end is by far the likeliest token everywhere
        model.final_norm.bias.add_(model.lm_head.weight[end] * 10)
    output = generate(model, [stream(2), [BOS], stream(2, 3)], max_new_tokens=12)
    assert all(row.argmax() == end for logits in output.logits for row in logits), "nothing wanted an empty sentence"
    for row in output.sequences.tolist():
        tokens = [t for t in row if t != PAD]
        assert not {(BOS, EOS), (BOS, EOD)} & set(pairwise(tokens))
        assert tokens.count(end) >= (3 if end == EOS else 1)


def test_document_end_is_followed_by_sentence_end() -> None:
    model = make(eos_token_id=3)
    ids = torch.tensor([[*stream(3, 2)[:-1], EOD]])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=False)
    assert output[0, -1] == EOS


class AsOnAGpu(TorchFunctionMode):
    """Every tensor says that it is on a GPU, so that the ways for one are taken, on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.device.__get__:
            return torch.device("cuda", 0)
        if func is torch.Tensor.is_cuda.__get__:
            return True
        there = lambda value: "cpu" if isinstance(value, torch.device) else value  # noqa: E731
        return func(*tree_map(there, args), **tree_map(there, kwargs or {}))


@pytest.mark.parametrize(
    "fields",
    [{"memory_size": 40}, {"memory_gradient_window": 2}, {"attention_layout": "self_cross"}, {"memory": "prefix"}],
    ids=str,
)
def test_the_ways_of_a_gpu_compute_the_same(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences filled up in some steps and gathered in others, one copy of the plan, masks in place of slices."""
    monkeypatch.setattr("mentalese.families.thought_gestalt.plan.FILLERS", 6)
    batch = batch_of(stream(3, 1, 6, 2, 4, 3, 5), stream(2, 5), stream(6), stream(1, 2, 3, 4, 5, closed=False))
    results, scores, made = [], [], []
    for ways in (nullcontext(), AsOnAGpu()):
        model = make(**fields)
        with ways:
            loss = model.training_loss(batch, eos_weight=0.3).loss
            loss.backward()
            scores.append(model.token_nll(batch))
            made.append(generate(model, PROMPTS, min_new_tokens=25))
        results.append({"loss": loss.detach()} | gradients(model))
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(*scores, **CLOSE)
    assert torch.equal(made[0].sequences, made[1].sequences)
    torch.testing.assert_close(*(torch.stack(output.logits) for output in made), **CLOSE)


def test_a_plan_is_sent_in_one_copy() -> None:
    model = make()
    sentences = find_sentences(batch_of(stream(3, 1, 6), stream(2))["input_ids"], None, model.config)
    plan = plan_pass(model.config, sentences, range(3), depth=2, ends=False, fill=True)
    copies: list[Tensor] = []

    class Copies(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.Tensor.to:
                copies.append(args[0])
                return args[0].clone()
            return func(*args, **(kwargs or {}))

    with Copies():
        there = sent(plan, torch.device("cuda"))
    assert len(copies) == 1
    for found, expected in zip(tensors_of(there), tensors_of(plan), strict=True):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


def tensors_of(value: Any) -> list[Tensor]:
    """All tensors in dataclasses and lists."""
    if dataclasses.is_dataclass(value):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, list):
        return [tensor for entry in value for tensor in tensors_of(entry)]
    return [value] if isinstance(value, Tensor) else []


@pytest.mark.parametrize("own_bias", [False, True])
def test_repeated_weights_get_the_gradients_of_all_uses(own_bias: bool) -> None:
    sizes, (w, b, x) = (
        [2, 3, 1],
        (torch.randn(4, 5), torch.randn(6, 4) if own_bias else torch.randn(4), torch.randn(6, 5)),
    )
    plain, fast = ([t.clone().requires_grad_() for t in (w, b, x)] for _ in range(2))
    expected = plain[2] @ plain[0].t() + plain[1]
    found = torch.cat([use(of) for use, of in zip(uses(fast[0], fast[1], sizes), fast[2].split(sizes))])
    torch.testing.assert_close(found, expected)
    (found.square().sum()).backward()
    (expected.square().sum()).backward()
    torch.testing.assert_close([t.grad for t in fast], [t.grad for t in plain])


def test_unit_vector_gradients_equal_the_quotient() -> None:
    s = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Unit.apply, (s,))
    vectors, lengths = Unit.apply(s)
    torch.testing.assert_close(vectors * lengths[:, None], s)
    assert torch.equal(Unit.apply(torch.zeros(1, 4))[0], torch.zeros(1, 4))


# ------------------------------------------------------------------------------------------- thoughts, files, errors


def test_a_trace_shows_a_thought_a_sentence_and_what_it_read(tmp_path: Path) -> None:
    model = make(memory_size=2)
    rows = [stream(3, 2, 4, 1, closed=False), stream(2, 2)]
    batch = batch_of(*rows)
    output = model(batch["input_ids"], attention_mask=batch["attention_mask"], output_thoughts=True)
    first, second = output.thoughts
    assert [(t.start, t.end) for t in first.thoughts] == [(0, 5), (5, 9), (9, 15)]
    assert [(t.start, t.end) for t in second.thoughts] == [(9, 13), (13, 17)]
    torch.testing.assert_close(first.links["memory"].sum(1), torch.tensor([0.0, 1.0, 1.0]))
    assert (first.links["memory"].triu() == 0).all()
    assert (first.links["memory"][2, :2] > 0).all()
    nll, starts = model.token_nll(batch)[0], first.scores["surprisal"].isnan()
    assert torch.equal(starts, first.input_ids == model.config.sentence_start_token_id)
    torch.testing.assert_close(first.scores["surprisal"][~starts], nll[~starts])
    assert (first.scores["memory_attention"][:5] == 0).all()
    torch.testing.assert_close(first.scores["memory_attention"][5:9], torch.ones(4))  # one sentence to read: all of it
    assert first.curves["memory_gate"].tolist() == [1.0, 1.0]
    first.save(tmp_path)
    torch.testing.assert_close(ThoughtTrace.load(tmp_path).links, first.links)


def test_a_saved_model_opens_from_the_meta_device_the_same(tmp_path: Path) -> None:
    import mentalese  # noqa: F401 (registers the Auto classes)

    for tied in (True, False):
        model = make(tie_word_embeddings=tied, gate_init=0.3)
        model.save_pretrained(tmp_path)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
        assert loaded.config.to_dict() == AutoModelForCausalLM.from_pretrained(tmp_path).config.to_dict()
        torch.testing.assert_close(logits(loaded.eval(), stream(3, 2, 2)), logits(model, stream(3, 2, 2)), **CLOSE)
        for (name, tensor), expected in zip(loaded.state_dict().items(), model.state_dict().values()):
            assert torch.equal(tensor, expected), name
        assert (loaded.lm_head.weight is loaded.embed.weight) == tied


def test_a_fresh_model_has_open_gates_and_small_residual_maps() -> None:
    config = ThoughtGestaltConfig(hidden_size=128, num_attention_heads=4, num_hidden_layers=8, gate_init=0.5)
    model = ThoughtGestaltForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("gate"):
            assert parameter.tolist() == [0.5]
        elif name.endswith(".out.weight"):
            assert parameter.std().item() == pytest.approx(0.02 / 4, rel=0.1), name
        elif parameter.ndim == 2:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.1), name


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([stream(2), [5, 6]], r"input_ids\[1, 2\] is 5: a sentence must begin with sentence_start_token_id \(1\)"),
        ([[*stream(2), 7]], r"input_ids\[0, 4\] is 7: a sentence must begin"),
        ([[*stream(2), EOS]], r"input_ids\[0, 4\] is 2: a sentence must begin"),
        ([[BOS, 5, BOS, 6]], r"input_ids\[0, 2\] is 1: a sentence begins inside another"),
        ([stream(10)], r"input_ids\[0, 9\] is \d+: the sentence has more than the 9 tokens"),
    ],
)
def test_unbalanced_markers_are_refused_by_row_and_position(rows: list[list[int]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()(batch_of(*rows)["input_ids"])


@pytest.mark.parametrize("row", [[5, *stream(2)], [*stream(2), 7], [*stream(2), EOS], [BOS, 5, BOS, 6]], ids=str)
def test_the_plain_model_refuses_unbalanced_markers_too(row: list[int]) -> None:
    with pytest.raises(ValueError, match="row 0: markers of sentences are unbalanced"):
        ThoughtGestalt(make().config).sentences(torch.tensor([row]))


def test_what_cannot_be_read_is_refused() -> None:
    from transformers import DynamicCache

    model, ids = make(), torch.tensor([stream(3)])
    with pytest.raises(InputError, match="pass only input_ids"):
        model(inputs_embeds=torch.zeros(1, 3, 16))
    with pytest.raises(InputError, match="needs a SentenceCache"):
        model(ids, past_key_values=DynamicCache())
    cache = model(ids, use_cache=True).past_key_values
    with pytest.raises(InputError, match="pass the whole text in one call"):
        model(ids, past_key_values=cache, output_thoughts=True)


@pytest.mark.parametrize("width", [-1, 1])
@pytest.mark.parametrize("use", ["training_loss", "token_nll", "final_hidden_states", "forward_flops"])
def test_a_mask_of_another_width_is_refused(use: str, width: int) -> None:
    """A wider one would be read from its right end, by which the padding of other columns is left out."""
    batch = batch_of(stream(2, 3), stream(4))
    batch["attention_mask"] = torch.nn.functional.pad(batch["attention_mask"], (width, 0), value=1)
    with pytest.raises(InputError, match=r"attention_mask has \d+ columns: pass 9"):
        getattr(make(), use)(batch)


# -------------------------------------------------------------------------------------------------------------- memory


def saved_bytes(sentences: int) -> int:
    """What a training step keeps for its backward pass."""
    model = make(hidden_size=64, memory_size=40, num_hidden_layers=6, max_sentence_tokens=30).train()
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    batch = batch_of(*(stream(*[20] * sentences, seed=i) for i in range(2)))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model.training_loss(batch).loss
    assert loss.requires_grad
    return sum(kept.values())


def test_memory_grows_with_the_number_of_sentences_and_no_faster() -> None:
    base, double, triple = (saved_bytes(sentences) for sentences in (42, 84, 126))  # all above memory_size
    assert triple - double < 1.05 * (double - base)
