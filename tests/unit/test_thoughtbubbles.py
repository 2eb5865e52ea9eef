"""Thoughtbubbles: held to its plainest form, honest about what is a likelihood, and the same token by token."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import Tensor

from mentalese import get_recipe
from mentalese.errors import InputError
from mentalese.families.thoughtbubbles.blocks import CALIBRATION, UNKNOWN, ForkDecision
from mentalese.families.thoughtbubbles.config import ThoughtbubblesConfig
from mentalese.families.thoughtbubbles.forking import (
    Streams,
    fork,
    lowest_kept,
    select_block,
    within_budget,
)
from mentalese.families.thoughtbubbles.model import ThoughtbubblesForCausalLM
from mentalese.families.thoughtbubbles.plain import Thoughtbubbles, best
from mentalese.families.thoughtbubbles.readout import mixture_cross_entropy, mixture_log_probabilities
from mentalese.models.base import count_parameters
from mentalese.training.step import TrainStep
from support import sharing

CLOSE = {"atol": 2e-5, "rtol": 1e-4}
VOCABULARY = 40


def config(**fields: Any) -> ThoughtbubblesConfig:
    defaults = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": 5,
        "num_attention_heads": 2,
        "max_position_embeddings": 12,
        "fork_layers": (1, 2, 4),
    }
    return ThoughtbubblesConfig(**(defaults | fields))


def model(**fields: Any) -> ThoughtbubblesForCausalLM:
    """Weights large enough for decisions to differ from token to token."""
    torch.manual_seed(0)
    made = ThoughtbubblesForCausalLM(config(**fields)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(6)
        for seed in range(3):
            made.encode(text(rows=8, seed=seed), selection="block", calibrate=True)
            made.after_step()
    return made.eval()


def plain_of(model: ThoughtbubblesForCausalLM) -> Thoughtbubbles:
    """The plain model with the same weights."""
    return sharing(Thoughtbubbles(model.config), model)


def text(rows: int = 2, length: int = 12, seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def batch(ids: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    labels = ids if mask is None else ids.masked_fill(mask == 0, -100)
    return {"input_ids": ids, "labels": labels} | ({} if mask is None else {"attention_mask": mask})


VARIANTS: dict[str, dict[str, Any]] = {
    "no forks": {"fork_layers": ()},
    "copies": {"fork_layers": (), "copies": 3, "readout": "rightmost"},
    "mixture": {},
    "residual": {"readout": "residual"},
    "residual_ln": {"readout": "residual_ln"},
    "rightmost": {"readout": "rightmost"},
    "scale of Eq. 8": {"score_scale": "model"},
    "overwritten channel": {"score_scale": "overwrite"},
    "rotation by forks": {"rotation": "forks"},
    "rotation by forks, causal": {"rotation": "forks", "selection": "causal"},
    "rotation of copies": {"rotation": "forks", "fork_layers": (), "copies": 3, "readout": "rightmost"},
    "small budget": {"budget": 1.25},
    "large budget": {"budget": 4.0},
    "scores without forks": {"budget": 1.0},
    "fork before the first block": {"fork_layers": (0, 3)},
    "tanh": {"activation": "gelu_tanh"},
    "causal": {"selection": "causal"},
    "causal, small budget": {"selection": "causal", "budget": 1.5},
    "turns": {"num_hidden_layers": 4, "layers_per_turn": 2, "fork_layers": (2, 3), "selection": "causal"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_and_gradients_are_those_of_the_plain_model(variant: str) -> None:
    made, ids = model(**VARIANTS[variant]), text(length=9)
    plain = plain_of(made)
    expected = torch.stack([plain(row) for row in ids])
    torch.testing.assert_close(made(ids).logits.log_softmax(-1), expected, **CLOSE)
    nll = F.nll_loss(expected[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(len(ids), -1)
    torch.testing.assert_close(made.token_nll(batch(ids))[:, 1:], nll, **CLOSE)
    output, loss = made.training_loss(batch(ids)), plain.loss(ids)
    assert output.weight == nll.numel()
    torch.testing.assert_close(loss, nll.mean())
    torch.testing.assert_close(output.loss, loss, **CLOSE)
    wanted, got = (
        torch.autograd.grad(x, list(made.parameters()), allow_unused=True, materialize_grads=True)
        for x in (loss, output.loss)
    )
    for (name, _), one, other in zip(made.named_parameters(), got, wanted):
        torch.testing.assert_close(one, other, **CLOSE, msg=name)


def trained(
    model: ThoughtbubblesForCausalLM | Thoughtbubbles, loss: Callable[[Tensor], Tensor], steps: int = 12
) -> list[float]:
    """Losses of steps on two micro-batches, the second of shorter rows."""
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        found = loss(text()) + loss(text(length=6))
        found.backward()
        optimizer.step()
        model.after_step()
        losses.append(found.item())
    return losses


@pytest.mark.parametrize("selection", ["block", "causal"])
def test_the_plain_model_trains_by_itself(selection: str) -> None:
    torch.manual_seed(0)
    made = Thoughtbubbles(config(selection=selection))
    losses = trained(made, made.loss, steps=20)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"selection": "block"},
        {"selection": "causal"},
        {"selection": "causal", "budget": 2.0},  # at the first fork everything stays
    ],
    ids=str,
)
def test_training_is_that_of_the_plain_model(fields: dict[str, Any]) -> None:
    """Thresholds of the causal selection too, from before the first step on."""
    torch.manual_seed(0)
    made = ThoughtbubblesForCausalLM(config(**{"budget": 1.5} | fields))
    plain = copy.deepcopy(plain_of(made))
    losses, expected = trained(made, lambda ids: made.training_loss(batch(ids)).loss), trained(plain, plain.loss)
    assert losses == pytest.approx(expected, rel=1e-4)
    for one, other in zip(made.fork_decisions.values(), plain.fork_decisions.values()):
        assert other.threshold != UNKNOWN
        torch.testing.assert_close(one.threshold, other.threshold, atol=1e-4, rtol=1e-4)


def test_the_plain_model_starts_as_the_fast_one_does() -> None:
    """By the mean and the spread of each weight."""
    torch.manual_seed(0)
    wide = config(hidden_size=256)
    fast, plain = ThoughtbubblesForCausalLM(wide).state_dict(), Thoughtbubbles(wide).state_dict()
    assert fast.keys() == plain.keys()
    for name, weight in fast.items():
        assert plain[name].mean().item() == pytest.approx(weight.mean().item(), abs=0.02), name
        assert plain[name].std(correction=0).item() == pytest.approx(weight.std(correction=0).item(), rel=0.2), name


# ------------------------------------------------------------------------------------------------------------- forking


merits = st.lists(
    st.lists(st.sampled_from([-3.0, -1.0, -0.5, math.inf]), min_size=6, max_size=6), min_size=1, max_size=4
)


@given(merits=merits, data=st.data())
def test_the_best_stay_and_among_equals_the_earlier(merits: list[list[float]], data: st.DataObject) -> None:
    quota = torch.tensor(data.draw(st.lists(st.integers(0, 6), min_size=len(merits), max_size=len(merits))))
    merit = torch.tensor(merits)
    expected = torch.zeros_like(merit, dtype=torch.bool)
    for row, keep in enumerate(quota):
        expected[row, best(merit[row], int(keep))] = True
    assert torch.equal(select_block(merit, quota), expected)


@given(data=st.data())
def test_best_candidates_of_each_token_fit_the_budget(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    token = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))[None]
    merit = torch.tensor(
        [data.draw(st.lists(st.sampled_from([-3.0, -1.0, -0.5]), min_size=len(token[0]), max_size=len(token[0])))]
    )
    keep = torch.tensor([[data.draw(st.booleans()) for _ in token[0]]])
    own = token.diff(dim=1, append=torch.full((1, 1), len(counts))) > 0
    merit, keep = merit.masked_fill(own, math.inf), keep | own
    added = data.draw(st.lists(st.integers(1, 3), min_size=len(counts), max_size=len(counts)))
    room = torch.tensor([added]).cumsum(1)
    chosen, expected = within_budget(merit, keep, token, room), torch.zeros_like(keep)
    for number, most in enumerate(room[0]):
        of_token = (keep[0] & (token[0] == number)).nonzero()[:, 0]
        expected[0, of_token[best(merit[0, of_token], int(most - expected.sum()))]] = True
    assert torch.equal(chosen, expected)
    assert (own <= chosen).all()


def streams(x: Tensor) -> Streams:
    rows, count, _ = x.shape
    return Streams(
        x=x,
        scores=torch.zeros(rows, count),
        token=torch.arange(count).expand(rows, -1),
        own=torch.ones(rows, count, dtype=torch.bool),
        real=None,
        counts=torch.ones(rows, count, dtype=torch.long),
        before=torch.zeros(rows, 1, dtype=torch.long),
    )


@given(keep=st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=3))
@example(keep=[[True, True, True, True], [False, True, False, True]])
def test_fork_stands_left_of_its_source(keep: list[list[bool]]) -> None:
    assume(any(map(any, keep)))  # a token's own stream always stays
    mask = torch.tensor(keep)
    x = torch.randn(len(keep), 2, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    decisions, embedding = torch.arange(4.0).expand(len(keep), -1), torch.tensor([10.0, 20.0, 30.0], requires_grad=True)
    made = fork(streams(x), decisions, mask, embedding)
    for row, kept in enumerate(keep):
        places = [i for i in range(4) if kept[i]]
        size = len(places)
        assert made.real is None or made.real[row].sum() == size
        expected = [x[row, i // 2] + (embedding if i % 2 == 0 else 0) for i in places]
        assert torch.equal(made.x[row, :size], torch.stack(expected) if expected else x[row, :0])
        assert made.scores is not None
        assert made.scores[row, :size].tolist() == [float(i) for i in places]
        assert made.token[row, :size].tolist() == [i // 2 for i in places]
        assert made.own[row, :size].tolist() == [i % 2 == 1 for i in places]
        assert made.counts[row].tolist() == [kept[0] + kept[1], kept[2] + kept[3]]
    real = torch.ones_like(made.own) if made.real is None else made.real
    (gradient,) = torch.autograd.grad(made.x.masked_fill(~real[..., None], 0.0).sum(), x)
    assert gradient[..., 0].tolist() == [[kept[0] + kept[1], kept[2] + kept[3]] for kept in keep]


def test_partial_rotations_follow_the_number_of_forks() -> None:
    """Eq. 13: a token's streams share the way from the token before it."""
    keep = torch.tensor([[True, True, False, True]])
    made = fork(streams(torch.zeros(1, 2, 3)), torch.zeros(1, 4), keep, torch.zeros(3))
    assert made.positions("streams").tolist() == [[0.5, 1.0, 2.0]]
    assert made.positions("forks").tolist() == [[0.0, 1.0, 2.0]]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 9))
def test_streams_of_a_token_are_evenly_spaced(counts: list[int], before: int) -> None:
    """Eq. 13 under both meanings of q."""
    token = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))[None]
    own = token.diff(dim=1, append=torch.full((1, 1), len(counts))) > 0
    made = Streams(
        x=torch.zeros(*token.shape, 1),
        scores=None,
        token=token,
        own=own,
        real=None,
        counts=torch.tensor([counts]),
        before=torch.tensor([[before]]),
    )
    for rotation in ("streams", "forks"):
        positions = made.positions(rotation)[0]
        assert (positions.diff() >= 0).all()
        for number, count in enumerate(counts):
            each = positions[token[0] == number]
            end, q = before + number + 1, count if rotation == "streams" else max(count - 1, 1)
            torch.testing.assert_close(each, end - torch.arange(count - 1, -1, -1) / q)


def test_a_threshold_is_the_lowest_score_that_a_top_k_keeps() -> None:
    merit = torch.tensor([[-1.0, math.inf, -3.0, -2.0], [-1.0, math.inf, -math.inf, -math.inf]])
    assert lowest_kept(merit, torch.tensor([3, 2])).tolist() == [-2.0, -math.inf]
    assert lowest_kept(merit, torch.tensor([1, 9])).tolist() == [math.inf, -math.inf]
    decision = ForkDecision(config())
    decision.threshold.fill_(UNKNOWN)
    found = []
    for lowest in (-2.0, -4.0, -math.inf, -1.0):
        decision.observe(torch.tensor([lowest]))
        decision.after_step(CALIBRATION)
        found.append(round(decision.threshold.item(), 4))
    assert found == [-2.0, -2.04, -math.inf, -1.0], "the first as it is, then slowly, and no mean with infinity"


def test_training_finds_thresholds_that_meet_the_budget() -> None:
    made, ids = model(budget=1.5), text(rows=64, seed=9)
    for selection in ("block", "causal"):
        counts = made.encode(ids, selection=selection).streams.counts
        assert counts.sum(1).float().mean() / 12 == pytest.approx(1.5, abs=0.2)


def test_causal_selection_starts_near_its_budget() -> None:
    torch.manual_seed(0)
    made = ThoughtbubblesForCausalLM(config(selection="causal", budget=1.5)).train()
    output = made.training_loss(batch(text(rows=64)))
    assert 1.35 < output.metrics["streams_per_token"].item() <= 1.5


@pytest.mark.parametrize(("fork_bias", "share"), [(0.0, 1 / 3), (-20.0, 0.0)])
def test_forks_without_weight_have_no_share(fork_bias: float, share: float) -> None:
    """A fork is made within the budget, also if nothing is read from it."""
    made = model(budget=1.5, fork_layers=[1])
    for decision in made.decisions.values():
        torch.nn.init.zeros_(decision.decide.weight)
        decision.decide.bias = torch.nn.Parameter(torch.tensor([fork_bias, 0.0]))
    metrics = made.training_loss(batch(text(rows=4))).metrics
    assert metrics["streams_per_token"].item() == pytest.approx(1.5)
    assert metrics["fork_share"].item() == pytest.approx(share, abs=1e-6)


def test_training_under_the_causal_selection_sees_no_later_token() -> None:
    """Not by the threshold either, with however few rows, before the first step and after some."""
    torch.manual_seed(0)
    made = ThoughtbubblesForCausalLM(config(selection="causal", budget=1.5)).train()
    for step in range(3):
        ids = text(rows=4, seed=step)
        earlier = ids.clone()
        earlier[:, -1] = -100
        for rows in (1, 2, 4):
            losses = [
                made.training_loss({"input_ids": x[:rows], "labels": earlier[:rows]}).loss
                for x in (ids, changed_at_the_end(ids))
            ]
            torch.testing.assert_close(*losses, atol=1e-6, rtol=0)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.mul_(1.5)
        made.after_step()


def test_micro_batches_equal_one_batch_under_causal_selection() -> None:
    """Thresholds too, which move once per step, whatever part of the batch came first."""
    whole = model(selection="causal", budget=1.5).train()
    parts, ids = copy.deepcopy(whole), text(rows=6, seed=5)
    loss = whole.training_loss(batch(ids)).loss
    pieces = [parts.training_loss(batch(piece)).loss * len(piece) for piece in (ids[:1], ids[1:3], ids[3:])]
    torch.testing.assert_close(sum(pieces) / len(ids), loss, **CLOSE)
    for made in (whole, parts):
        made.after_step()
    for one, other in zip(whole.fork_decisions.values(), parts.fork_decisions.values()):
        torch.testing.assert_close(one.threshold, other.threshold, **CLOSE)
        assert one.observed is None


def test_controls_have_only_scores_or_only_a_constant() -> None:
    """After the third fork every stream of the constant has weight 1/8, whatever its weights say."""
    for name, constant in (("1l", False), ("constant", True)):
        recipe = get_recipe(f"thoughtbubbles/small-{name}")
        assert recipe.baseline == "thoughtbubbles/small-regular"
        assert get_recipe(recipe.baseline).layout == recipe.layout
        fields = {field: recipe.model[field] for field in ("budget", "thought_control") if field in recipe.model}
        made = model(**fields)
        encoded = made.encode(text())
        assert encoded.streams.counts.eq(1).all()
        weights = encoded.streams.scores.exp()
        assert bool((weights - 1 / 8).abs().max() < 1e-6) == constant
        made.train().training_loss(batch(text())).loss.backward()
        assert bool(made.fork_decisions["1"].decide.weight.grad.any()) != constant


@pytest.mark.parametrize("rows", [3, 8, 24])
def test_equal_scores_keep_their_forks(rows: int) -> None:
    """The float32 mean of many times 3 log(1/2), the threshold of the third fork, is above it."""
    torch.manual_seed(0)
    made = ThoughtbubblesForCausalLM(config(selection="causal", budget=2.0, thought_control="removed")).train()
    for _ in range(3):
        made.training_loss(batch(text(rows=rows)))
        made.after_step()
        counts = made.encode(text(rows=rows)).streams.counts
        assert counts.sum(1).eq(24).all()


def test_equal_scores_keep_their_forks_in_the_plain_model() -> None:
    torch.manual_seed(0)
    plain = Thoughtbubbles(config(selection="causal", budget=2.0))
    for decision in plain.fork_decisions.values():
        torch.nn.init.zeros_(decision.decide.weight)
    plain.loss(text())
    with torch.no_grad():
        assert len(plain.read(text()[0], "causal").token) == 24


def test_without_room_for_forks_no_threshold_is_needed() -> None:
    made = ThoughtbubblesForCausalLM(config(selection="causal", budget=1.0)).eval()
    assert made.encode(text()).streams.counts.eq(1).all()


def test_the_causal_selection_never_exceeds_its_budget() -> None:
    """Not even in a text that repeats one token, all of whose scores may be above the threshold."""
    made = model(selection="causal", budget=1.5)
    for decision in made.fork_decisions.values():
        decision.threshold.fill_(-1e9)
    ids = torch.full((1, 12), 7)
    for length in range(1, 13):
        counts = made.encode(ids[:, :length]).streams.counts
        assert counts.sum() <= math.ceil(1.5 * length)
        assert counts.min() >= 1
    assert made.encode(ids).streams.counts.sum() == 18


def test_a_causal_selection_without_thresholds_is_refused() -> None:
    made = ThoughtbubblesForCausalLM(config(selection="causal")).eval()
    with pytest.raises(InputError, match="no thresholds: train it first"):
        made(text())


# ------------------------------------------------------------------------------------------------------ the likelihood


def changed_at_the_end(ids: Tensor) -> Tensor:
    changed = ids.clone()
    changed[:, -1] = (ids[:, -1] + 1) % VOCABULARY
    return changed


@pytest.mark.parametrize("estimator", ["block-not-causal", "prefix-dynamic", "prefix-fixed", "causal"])
def test_only_the_block_wise_score_changes_with_a_later_token(estimator: str) -> None:
    """The leak of the paper's selection, and its absence from every other score."""
    made, ids = model(max_position_embeddings=32), text(rows=4, length=32)
    before, after = (made.token_nll(batch(x), estimator)[:, :-1] for x in (ids, changed_at_the_end(ids)))
    if estimator == "block-not-causal":
        assert (before - after).abs().max() > 1e-2
    else:
        torch.testing.assert_close(before, after, atol=1e-5, rtol=0)


@pytest.mark.parametrize("mode", ["dynamic", "fixed"])
@pytest.mark.parametrize("readout", ["mixture", "residual"])
def test_a_prefix_score_is_a_pass_over_each_prefix(mode: str, readout: str) -> None:
    made, ids = model(readout=readout), text(rows=1)
    got = made.token_nll(batch(ids), f"prefix-{mode}")[0]
    for t in range(1, ids.shape[1]):
        encoded = made.encode(ids[:, :t], fixed_budget=mode == "fixed")
        expected = -made.logits(encoded, slice(-1, None))[0, -1].log_softmax(-1)[ids[0, t]]
        torch.testing.assert_close(got[t], expected, **CLOSE)


@pytest.mark.parametrize("estimator", ["block-not-causal", "prefix-dynamic", "causal"])
def test_padding_never_competes_for_streams(estimator: str) -> None:
    made, ids = model(), text(rows=3)
    mask = torch.ones_like(ids)
    mask[1, :5], mask[2, 7:] = 0, 0
    nll = made.token_nll(batch(ids, mask), estimator)
    torch.testing.assert_close(nll[1, 6:], made.token_nll(batch(ids[1:2, 5:]), estimator)[0, 1:], **CLOSE)
    torch.testing.assert_close(nll[2, :7], made.token_nll(batch(ids[2:, :7]), estimator)[0], **CLOSE)


@pytest.mark.parametrize("fields", [{}, {"budget": 4.0}, {"fork_layers": (1,)}, {"selection": "causal"}], ids=str)
@pytest.mark.parametrize("short", [1, 2, 5])
def test_gradients_of_a_ragged_batch_are_those_of_its_rows(fields: dict[str, Any], short: int) -> None:
    made, ids = model(**fields), text()
    mask = torch.ones_like(ids)
    mask[1, short:] = 0
    parameters = list(made.parameters())

    def gradients(*batches: dict[str, Tensor]) -> tuple[Tensor, ...]:
        outputs = [made.eval().training_loss(b) for b in batches]
        total = sum((o.loss * o.weight for o in outputs), torch.zeros(()))
        return torch.autograd.grad(total, parameters, allow_unused=True, materialize_grads=True)

    together, apart = gradients(batch(ids, mask)), gradients(batch(ids[:1]), batch(ids[1:, :short]))
    for one, other in zip(together, apart):
        torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize("readout", ["mixture", "residual"])
def test_a_token_behind_padding_is_no_target(readout: str) -> None:
    made, ids = model(readout=readout), text()
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    output = made.training_loss(batch(ids, mask))
    assert output.weight == 11 + 6
    assert made.token_nll(batch(ids, mask))[1, :6].tolist() == [0.0] * 6


def test_a_short_row_does_not_open_the_thresholds_of_all() -> None:
    made, ids = model(budget=1.5), text(rows=2)
    before = [decision.threshold.item() for decision in made.fork_decisions.values()]
    mask = torch.ones_like(ids)
    mask[1, 1:] = 0
    made.encode(ids, mask, calibrate=True)
    made.after_step()
    assert all(math.isfinite(decision.threshold.item()) for decision in made.fork_decisions.values())
    assert [decision.threshold.item() for decision in made.fork_decisions.values()] == pytest.approx(before, abs=0.1)


def test_adapters_are_trained_with_the_thresholds_of_their_base() -> None:
    """`adapter/` has none, so that its base's are read with it."""
    made = model(selection="causal").train()
    for adapted in (True, False):
        before = [decision.threshold.item() for decision in made.fork_decisions.values()]
        made.peft_config = {"default": object()} if adapted else {}
        made.training_loss(batch(text()))
        made.after_step()
        assert ([decision.threshold.item() for decision in made.fork_decisions.values()] == before) is adapted


def test_scoring_moves_no_threshold_even_in_training_mode() -> None:
    made = model().train()
    before = [decision.threshold.item() for decision in made.fork_decisions.values()]
    made.token_nll(batch(text()), "prefix-dynamic")
    made.token_nll(batch(text()), "causal")
    assert [decision.threshold.item() for decision in made.fork_decisions.values()] == before


def test_every_score_has_its_name() -> None:
    assert model().estimators[0] == "block-not-causal"
    assert model(selection="causal").estimators[0] == "causal"
    assert model(fork_layers=()).estimators == model(budget=1.0).estimators == ("exact",)
    with pytest.raises(InputError, match="estimator is 'exact': this model has block-not-causal"):
        model().token_nll(batch(text()), "exact")


# ---------------------------------------------------------------------------------------------------------- read-out


def test_mixture_loss_equals_its_log_probabilities() -> None:
    made = model()
    found = made.encode(text()).streams
    hidden, weight = found.x.detach().requires_grad_(), made.lm_head.weight.detach().clone().requires_grad_()
    scores = found.scores.detach().requires_grad_()
    found.scores = scores
    targets = text(seed=1)
    targets[0, 3] = -100
    loss, nll = mixture_cross_entropy(hidden, weight, targets, found)
    mixed = mixture_log_probabilities(hidden, lambda x: x @ weight.T, found)
    expected = F.nll_loss(mixed.flatten(0, 1), targets.flatten(), ignore_index=-100)
    torch.testing.assert_close(loss, expected, **CLOSE)
    torch.testing.assert_close(nll.sum() / (targets >= 0).sum(), expected.detach(), **CLOSE)
    for one, other in zip(*(torch.autograd.grad(x, [hidden, weight, scores]) for x in (loss, expected))):
        torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize(("tokens", "calls"), [(5, 9), (12, 3), (24, 2)])
def test_stream_tables_are_made_in_parts(tokens: int, calls: int) -> None:
    """Values and gradients are those of all at once, with padding, rows of other lengths, and without a gradient."""
    made, ids = model(), text(rows=3, length=12)
    mask = torch.ones_like(ids)
    mask[0, :5] = mask[2, 7:] = 0
    streams = made.encode(ids, mask).keep(torch.arange(12))
    hidden = streams.x.detach().requires_grad_()
    sizes: list[int] = []

    def head(x: Tensor) -> Tensor:
        sizes.append(x.shape[:-1].numel())
        return made.lm_head(x)

    whole = mixture_log_probabilities(hidden, head, streams)
    seen, real = sizes.pop(), mask.bool()
    parts = mixture_log_probabilities(hidden, head, streams, tokens=tokens)
    assert len(sizes) == calls
    assert sum(sizes) == seen  # no stream is computed twice
    torch.testing.assert_close(parts[real], whole[real])
    with torch.no_grad():
        torch.testing.assert_close(mixture_log_probabilities(hidden, head, streams, tokens=tokens)[real], whole[real])
    pull = torch.randn(parts[real].shape)
    for one, other in zip(*(torch.autograd.grad((x[real] * pull).sum(), hidden) for x in (parts, whole))):
        torch.testing.assert_close(one, other, **CLOSE)


def test_read_outs_are_not_interchangeable() -> None:
    scores = [model(readout=name).token_nll(batch(text())).mean() for name in ("mixture", "residual", "rightmost")]
    assert min(abs(a - b) for a, b in pairwise(scores)) > 1e-3


# ---------------------------------------------------------------------------------------------------------- generation


@pytest.mark.parametrize(
    "fields",
    [{}, {"readout": "residual"}, {"score_scale": "overwrite"}, {"budget": 1.0}, {"layers_per_turn": 1}],
    ids=str,
)
@pytest.mark.parametrize("pieces", [[12], [5, 7], [1] * 12, [4, 1, 1, 6]])
def test_a_text_read_in_pieces_is_the_text(fields: dict[str, Any], pieces: list[int]) -> None:
    made, ids = model(selection="causal", **fields), text(rows=3)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    expected, got, cache, end = made(ids, attention_mask=mask).logits, [], made.new_cache(), 0
    for size in pieces:
        end += size
        output = made(ids[:, end - size : end], attention_mask=mask[:, :end], past_key_values=cache, use_cache=True)
        got.append(output.logits)
    assert cache.get_seq_length() == 12
    torch.testing.assert_close(torch.cat(got, dim=1)[mask.bool()], expected[mask.bool()], **CLOSE)


def test_cache_has_the_streams_of_its_longest_row() -> None:
    """Each step's streams follow those of their own row; padded to the most of all rows they took 1.8 times as much."""
    made, ids = model(selection="causal", max_position_embeddings=64), text(rows=16, length=32)
    cache = made.new_cache()
    with torch.no_grad():
        for column in range(32):
            made(ids[:, column : column + 1], past_key_values=cache, use_cache=True)
    most = int(made.encode(ids).streams.counts.sum(1).max())
    assert 1.5 * 32 < most <= 2 * 32
    assert most <= cache.state["k.4"].shape[2] < 2 * (most + 8)  # room for twice as much as there was at some step
    assert cache.state["used.3"].max() == most


def test_block_wise_generation_reads_all_for_each_token() -> None:
    made, prompt = model(max_position_embeddings=24), text(rows=2, length=6)
    out = made.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=False, pad_token_id=0
    )
    for t in range(6, 14):
        assert torch.equal(out[:, t], made(out[:, :t]).logits[:, -1].argmax(-1))


def test_cache_is_refused_if_later_tokens_change_streams() -> None:
    made = model()
    with pytest.raises(InputError, match="so a new token may change earlier streams"):
        made(text(), past_key_values=made.new_cache())


def test_cache_is_refused_if_rows_swap_their_decisions() -> None:
    """A place in a row has another token in another row, and another number in a piece of the text."""
    made = model(selection="causal", thought_control="swapped")
    with pytest.raises(InputError, match="rows fork different tokens"):
        made(text(), past_key_values=made.new_cache())


# ------------------------------------------------------------------------------------------------------ what it costs


@pytest.mark.parametrize(
    ("size", "regular", "forks"),
    [
        ("150m", 152_040_960, 152_052_480),
        ("319m", 353_822_720, 353_838_080),
        ("772m", 772_779_520, 772_798_720),
    ],
)
def test_the_papers_sizes(size: str, regular: int, forks: int) -> None:
    for name, count in (("regular", regular), ("2l", forks), ("4l", forks)):
        fields = get_recipe(f"thoughtbubbles/table1-openwebtext-{size}-{name}").model
        with torch.device("meta"):
            made = ThoughtbubblesForCausalLM(
                ThoughtbubblesConfig(**{k: v for k, v in fields.items() if k != "model_type"})
            )
        assert count_parameters(made)["total"] == count, name


def test_backward_keeps_nothing_of_all_stream_pairs() -> None:
    made, shapes = model(hidden_size=8, num_attention_heads=1).train(), []

    def pack(x: Tensor) -> Tensor:
        shapes.append(x.shape)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        made.training_loss(batch(text(rows=1, length=300)))
    assert shapes
    assert max(math.prod(shape) for shape in shapes) < 600 * 600 // 4


def test_scores_stay_in_float32_under_bf16() -> None:
    made = model()
    with torch.autocast("cpu", torch.bfloat16):
        encoding = made.encode(text())
    assert encoding.streams.scores is not None
    assert encoding.streams.scores.dtype == torch.float32


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"budget": 0.5}, "budget is 0.5: "),
        ({"budget": 1e300}, r"budget is 1e\+300: "),
        ({"layers_per_turn": 2}, r"layers_per_turn is 2: set a divisor of num_hidden_layers \(5\), or None"),
        ({"fork_layers": (1, 5)}, r"fork_layers is \(1, 5\): set 0-based blocks below num_hidden_layers \(5\)"),
        ({"fork_layers": (2, 1)}, "in rising order"),
        ({"fork_layers": (1, 1)}, "each once, in rising order"),
        ({"copies": 3}, "copies is 3: copies are a baseline"),
        ({"copies": 0}, "copies is 0"),
        ({"readout": "mean"}, "readout is 'mean': "),
        ({"num_attention_heads": 16}, "rotary positions need heads of even width"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
    ],
)
def test_a_config_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**fields)


def test_text_over_a_fixed_budget_is_refused() -> None:
    with pytest.raises(InputError, match="13 tokens and the fixed budget is for 12"):
        model().encode(text(length=13), fixed_budget=True)
    assert model()(text(length=13)).logits.shape == (2, 13, VOCABULARY)


@pytest.mark.parametrize("readout", ["mixture", "residual"])
def test_any_logits_may_be_kept(readout: str) -> None:
    made, ids = model(readout=readout), text()
    kept = torch.tensor([3, 3, -1, 0])
    torch.testing.assert_close(made(ids, logits_to_keep=kept).logits, made(ids).logits[:, kept], **CLOSE)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # the compiler's own, while it loads
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # and where it breaks its graph
def test_a_step_can_be_compiled_and_trained_in_half_precision() -> None:
    made = model().train()
    expected = made.training_loss(batch(text()))
    step = TrainStep(copy.deepcopy(made))
    step.compile(backend="aot_eager")
    compiled = step(batch(text()), {})
    torch.testing.assert_close(compiled.loss, expected.loss, **CLOSE)
    expected.loss.backward()
    compiled.loss.backward()
    for one, other in zip(made.parameters(), step.model.parameters()):
        torch.testing.assert_close(other.grad, one.grad, **CLOSE)
    half = copy.deepcopy(made).to(torch.bfloat16)
    half.training_loss(batch(text())).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in half.parameters())


def test_a_row_of_padding_is_refused() -> None:
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1] = 0
    with pytest.raises(InputError, match=r"attention_mask\[1\] is 0 throughout"):
        model()(text(), attention_mask=mask)


def test_a_score_that_is_not_a_number_is_named_by_its_layer() -> None:
    made = model()
    with torch.no_grad():
        made.blocks[1].mlp.out.bias.fill_(math.nan)
    with pytest.raises(FloatingPointError, match=r"fork_decisions\.2"):
        made(text())


@pytest.mark.parametrize("selection", ["block", "causal"])
def test_a_trace_holds_all_that_each_fork_chose_from(selection: str) -> None:
    made = model(selection=selection)
    ids, mask = text(rows=3), torch.ones(3, 12, dtype=torch.long)
    mask[1, :4], mask[2, 9:] = 0, 0
    for row, trace in enumerate(made(ids, attention_mask=mask, output_thoughts=True).thoughts):
        table = trace.streams
        layer, parent, kept, fork_ = (table[name] for name in ("layer", "parent", "kept", "fork"))
        assert layer.unique().tolist() == [1, 2, 4, 5]
        first, (real,) = layer == 1, mask[row].nonzero(as_tuple=True)
        assert table["token"][first & ~fork_].tolist() == real.tolist()
        assert (parent[first] == -1).all()
        for before, after in pairwise((1, 2, 4, 5)):
            own, stayed = layer == after, (layer == before) & kept
            each = 1 if after == 5 else 2  # a stream and the fork that it could make
            assert parent[own].tolist() == [i for i in stayed.nonzero()[:, 0].tolist() for _ in range(each)]
            assert torch.equal(table["token"][own], table["token"][parent[own]])
            assert (table["weight"][own] <= table["weight"][parent[own]] + 1e-6).all()
            streams = trace.scores["streams" if before == 4 else f"streams.{before}"]
            assert torch.equal(table["token"][stayed].bincount(minlength=12)[real], streams[real].long())
        end = layer == 5
        assert table["token"][end].tolist() == [thought.start for thought in trace.thoughts]
        torch.testing.assert_close(table["weight"][end], trace.curves["stream_weight"])
        assert (kept & fork_).any()
        assert (~kept).any()
