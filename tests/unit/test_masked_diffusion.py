"""Masked diffusion against brute force: bounds by enumeration of masks and orders, scores by their definition."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mentalese import InputError, get_recipe
from mentalese.data.batch import Batch
from mentalese.data.layouts import Marked
from mentalese.families.masked_diffusion.config import MaskedDiffusionConfig
from mentalese.families.masked_diffusion.model import (
    MaskedDiffusionLM,
    schedule,
    score_entropy,
    training_times,
    uniform,
)
from mentalese.families.masked_diffusion.plain import MaskedDiffusion
from mentalese.models.base import count_parameters
from mentalese.models.generation import generate_text, stream_text
from mentalese.nn.loss import IGNORED
from mentalese.nn.noise import Noise, shared_seed
from support import opened, training_losses

OBJECTIVES = ("mdlm", "md4", "sedd")
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "conditioning_size": 6}
PAD, EOS = 0, 1
CLOSE = {"atol": 1e-5, "rtol": 1e-4}


def build(objective: str = "mdlm", vocab_size: int = 11, **fields: Any) -> MaskedDiffusionLM:
    """A model with weights so large that everything it reads matters."""
    torch.manual_seed(0)
    config = MaskedDiffusionConfig(
        vocab_size=vocab_size, objective=objective, pad_token_id=PAD, eos_token_id=EOS, **(SIZES | fields)
    )
    model = MaskedDiffusionLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def tokens(rows: int, length: int, vocab_size: int = 11) -> Tensor:
    return torch.randint(2, vocab_size, (rows, length), generator=torch.Generator().manual_seed(1))


def text(ids: Tensor) -> Batch:
    return {"input_ids": ids, "labels": ids.clone()}


# -- the plain model ---------------------------------------------------------------------------------------------------


def plain_of(model: MaskedDiffusionLM) -> MaskedDiffusion:
    """The plain model with the same weights."""
    plain = MaskedDiffusion(model.config)
    plain.load_state_dict(model.state_dict())
    return plain


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_logits_are_those_of_the_plain_model(objective: str, tied: bool) -> None:
    model, rows = build(objective, tie_word_embeddings=tied), tokens(3, 6)
    masked = torch.rand(rows.shape, generator=torch.Generator().manual_seed(2)) < 0.5
    p = torch.tensor([0.2, 0.5, 0.9])
    found = model(rows.masked_fill(masked, model.config.mask_token_id), mask_probability=p).logits
    torch.testing.assert_close(found, plain_of(model)(rows, masked, p), **CLOSE)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the error shows where the seed is sent")
def test_a_seed_is_sent_on_the_device_of_the_backend() -> None:
    """Accelerate opens NCCL without gloo beside it, which sends no tensor of the host."""
    dist.init_process_group("cuda:gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        with pytest.raises((RuntimeError, AssertionError), match=r"CUDA|NVIDIA"):
            shared_seed()
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("noise_schedule", ["linear", "cosine"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_loss_and_gradients_are_those_of_the_plain_model(objective: str, noise_schedule: str) -> None:
    model, rows = build(objective, noise_schedule=noise_schedule), tokens(4, 7)
    torch.manual_seed(3)
    seed = shared_seed()
    times = training_times(len(rows), seed, rows.device)
    targets = torch.cat((torch.full((len(rows), 1), IGNORED), rows[:, 1:]), dim=1)
    masked = uniform(Noise.of(targets, seed), 0, rows.shape[1]) < schedule(noise_schedule, times)[0][:, None]
    torch.manual_seed(3)
    loss, plain = model.training_loss(text(rows)).loss, plain_of(model)
    expected = plain.loss_at(rows, times, masked)
    torch.testing.assert_close(loss, expected, **CLOSE)
    loss.backward()
    expected.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, **CLOSE, msg=name)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_plain_model_trains_by_itself(objective: str) -> None:
    rows, generator = tokens(4, 8), torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = MaskedDiffusion(build(objective).config)
    losses = training_losses(model, lambda _: model.loss(rows, generator), steps=120, learning_rate=2e-2)
    assert np.mean(losses[-20:]) < 0.5 * np.mean(losses[:5])


# -- the bounds --------------------------------------------------------------------------------------------------------


def losses_behind(model: MaskedDiffusionLM, row: Tensor, masked: tuple[int, ...], p: Tensor) -> Tensor:
    """l of each masked position of a row [N] at mask probabilities [n], from logits and the papers' definitions."""
    places = list(masked)
    ids = row.repeat(len(p), 1)
    ids[:, places] = model.config.mask_token_id
    logits = model(ids, mask_probability=p.float()).logits[:, places].double()
    behind = row[places].expand(len(p), -1)[..., None]
    if model.config.objective != "sedd":
        return -logits.log_softmax(-1).gather(-1, behind)[..., 0]
    # Score entropy: the ratio is e^-sigma / (1 - e^-sigma), sigma = -log(1 - p), and d sigma = dp / (1 - p); the
    # integral's own p' / p is taken out.
    ratio = ((1 - p) / p)[:, None]
    scores = ratio[..., None] * logits.exp() / logits.shape[-1]
    right = scores.gather(-1, behind)[..., 0]
    entropy = scores.sum(-1) - ratio * right.log() + ratio * (ratio.log() - 1)
    return entropy * (p / (1 - p))[:, None]


@torch.no_grad()
def bound(model: MaskedDiffusionLM, row: Tensor) -> float:
    """The integral over p of the sum over all masks of the tokens behind the first one."""
    nodes, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(700))  # MD4's waves are short
    p, total, labels = (nodes + 1) / 2, 0.0, len(row) - 1
    for size in range(1, labels + 1):
        chance = weights / 2 * p**size * (1 - p) ** (labels - size) / p
        for masked in itertools.combinations(range(1, len(row)), size):
            total += float(chance @ losses_behind(model, row, masked, p).sum(-1))
    return total


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_scores_add_up_to_the_bound(objective: str) -> None:
    model, rows = build(objective, vocab_size=4, score_times=64), tokens(2, 4, 4)
    found = torch.stack([model.token_nll(text(rows), seed=seed).sum(1) for seed in range(24)]).double()
    error = found.std(0) / math.sqrt(len(found))
    assert (error < 0.02 * found.mean(0)).all()
    for row, mean, uncertain in zip(rows, found.mean(0), error):
        assert mean == pytest.approx(bound(model, row), abs=3 * float(uncertain))


@pytest.mark.parametrize("noise_schedule", ["linear", "cosine"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_training_loss_averages_to_the_bound(objective: str, noise_schedule: str) -> None:
    model, rows = build(objective, vocab_size=4, noise_schedule=noise_schedule), tokens(4, 3, 4)
    found = []
    for seed in range(400):
        torch.manual_seed(seed)
        with torch.no_grad():
            output = model.training_loss(text(rows))
        assert float(output.weight) == 8
        found.append(float(output.loss))
    spread = torch.tensor(found).std() / math.sqrt(len(found))
    expected = sum(bound(model, row) for row in rows) / 8
    assert torch.tensor(found).mean() == pytest.approx(expected, abs=3 * float(spread))


@torch.no_grad()
def test_timeless_bound_is_the_mean_over_all_orders() -> None:
    model, row = build(vocab_size=5), tokens(1, 4, 5)[0]
    orders = []
    for order in itertools.permutations(range(1, 4)):
        nats = 0.0
        for step, place in enumerate(order):
            hidden = tuple(sorted(order[step:]))
            nats += float(losses_behind(model, row, hidden, torch.tensor([0.5]))[0, hidden.index(place)])
        orders.append(nats)
    mean = sum(orders) / len(orders)
    assert bound(model, row) == pytest.approx(mean, rel=1e-6)
    likelihood = -math.log(sum(math.exp(-nats) for nats in orders) / len(orders))
    assert mean > likelihood + 1e-3


def test_score_entropy_is_cross_entropy_plus_score_error() -> None:
    logits, targets = torch.randn(6, 9), torch.randint(0, 9, (6,))
    scores = logits.exp() / 9
    expected = -scores.gather(-1, targets[:, None])[:, 0].log() + scores.sum(-1) - 1
    torch.testing.assert_close(score_entropy(logits, targets), expected)
    normalised = logits.log_softmax(-1) + math.log(9)
    nll = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(score_entropy(normalised, targets), nll)
    assert (score_entropy(logits, targets) > nll).all()
    assert score_entropy(logits, torch.full((6,), IGNORED)).eq(0).all()


def test_schedules_rise_from_no_masks_to_all() -> None:
    t = torch.linspace(0.01, 0.99, 50, dtype=torch.float64).requires_grad_()
    for kind in ("linear", "cosine"):
        p, weight = schedule(kind, t)
        (slope,) = torch.autograd.grad(p.sum(), t)
        torch.testing.assert_close(weight, slope / p)
        ends = schedule(kind, torch.tensor([0.0, 1.0]))[0]
        torch.testing.assert_close(ends, torch.tensor([0.0, 1.0]))


def test_times_are_stratified_and_independent_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = training_times(6, 12345, torch.device("cpu"))
    assert sorted((alone * 6).int().tolist()) == list(range(6))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    for rank in (0, 1):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        torch.testing.assert_close(training_times(3, 12345, torch.device("cpu")), alone[rank::2])
    monkeypatch.undo()
    first = torch.stack([training_times(4, 2**20 * seed, torch.device("cpu"))[0] for seed in range(16)])
    assert sorted((first * 16).int().tolist()) == list(range(16))


# -- what is read ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_what_has_no_label_is_given(objective: str) -> None:
    model, batch = build(objective), text(tokens(2, 10))
    batch["labels"][:, :5] = IGNORED
    batch["labels"][:, 7] = IGNORED
    seen: list[Tensor] = []
    hidden = model.hidden
    model.hidden = lambda ids, *args: (seen.append(ids), hidden(ids, *args))[1]  # type: ignore[method-assign]
    scores = model.token_nll(batch)
    masked = torch.stack(seen) == model.config.mask_token_id
    assert torch.equal(masked.any(0), batch["labels"] != IGNORED)
    assert torch.equal(scores != 0, batch["labels"] != IGNORED)
    changed = batch | {"input_ids": batch["input_ids"].clone()}
    changed["input_ids"][:, 7] = 2 + (batch["input_ids"][:, 7] - 1) % 9
    moved = (model.token_nll(changed) - scores)[:, [5, 6, 8, 9]]
    assert (moved.abs() > 1e-4).all(), "it reads what stands before and after"


def test_the_first_token_of_a_row_is_given() -> None:
    model, ids = build(), tokens(2, 6)
    assert model.token_nll(text(ids))[:, 0].eq(0).all()
    padded = {name: torch.nn.functional.pad(value, (2, 0), value=PAD) for name, value in text(ids).items()}
    padded["attention_mask"] = (torch.arange(8) >= 2).long().expand(2, 8)
    assert model.token_nll(padded)[:, :3].eq(0).all()


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_row_equals_the_row_alone(objective: str, side: str) -> None:
    model, ids = build(objective), tokens(3, 9)
    ids[:, 4] = model.config.mask_token_id
    lengths = [9, 6, 5]
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        mask[row, slice(9 - length, None) if side == "left" else slice(length)] = 1
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, IGNORED)}
    batch["labels"][:, 4] = IGNORED
    logits, scores = model(ids, attention_mask=mask).logits, model.token_nll(batch)
    for row in range(3):
        real = mask[row] == 1
        alone = {name: value[row : row + 1, real] for name, value in batch.items() if name != "attention_mask"}
        torch.testing.assert_close(logits[row, real], model(alone["input_ids"]).logits[0], **CLOSE)
        torch.testing.assert_close(scores[row, real], model.token_nll(alone)[0], **CLOSE)
        assert scores[row, ~real].eq(0).all()


def test_a_score_is_a_function_of_row_and_seed() -> None:
    model, ids = build(), tokens(5, 8)
    together = model.token_nll(text(ids))
    torch.testing.assert_close(model.token_nll(text(ids[3:4])), together[3:4], **CLOSE)
    assert torch.equal(model.token_nll(text(ids)), together)
    assert not torch.allclose(model.token_nll(text(ids), seed=1), together)


def test_mdlm_alone_does_not_see_the_time() -> None:
    ids = tokens(1, 6)
    ids[:, 3] = 11
    for objective in OBJECTIVES:
        model = build(objective)
        low, high = (model(ids, mask_probability=torch.tensor([p])).logits for p in (0.1, 0.9))
        assert torch.equal(low, high) == (objective == "mdlm")
        default = model(ids, mask_probability=torch.tensor([1 / 6])).logits
        torch.testing.assert_close(model(ids).logits, default)


def test_the_loss_of_given_labels_is_of_those_behind_masks() -> None:
    model, labels = build(), tokens(2, 6)
    ids = labels.clone()
    ids[:, 2:4] = model.config.mask_token_id
    output = model(ids, labels=labels)
    expected = torch.nn.functional.cross_entropy(output.logits[:, 2:4].flatten(0, 1), labels[:, 2:4].flatten())
    torch.testing.assert_close(output.loss, expected)


def test_greedy_continuation_is_likeliest_behind_masks(tokenizer: Any) -> None:
    pytest.importorskip("lm_eval", reason="needs lm-eval: pip install '.[tasks]'")
    from mentalese.evaluation.harness import MentaleseLM

    model, ids = build(vocab_size=len(tokenizer)), tokens(2, 7)
    labels = ids.masked_fill(torch.arange(7) < 4, IGNORED)
    batch = {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}
    masked = model.continuation_inputs(batch)
    assert masked["input_ids"][:, 4:].eq(model.config.mask_token_id).all()
    assert torch.equal(masked["input_ids"][:, :4], ids[:, :4])
    labels[0, 4:] = model(**masked).logits[0, 4:].argmax(-1)
    _, missed = MentaleseLM(opened(model, tokenizer))._read(batch, greedy=True)
    assert missed.any(1).tolist() == [False, True]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_flops_of_a_training_step_are_what_pytorch_counts(objective: str) -> None:
    model, batch = build(objective), text(tokens(3, 12))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model.training_loss(batch).loss.backward()
    assert model.training_flops(batch) == counter.get_total_flops()


# -- generation --------------------------------------------------------------------------------------------------------


def sample(model: MaskedDiffusionLM, prompts: Tensor, seed: int = 0, **options: Any) -> Tensor:
    torch.manual_seed(seed)
    options = {"max_new_tokens": 8, "do_sample": True, "pad_token_id": PAD} | options
    return model.generate(prompts, **options)[:, prompts.shape[1] :]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("do_sample", [True, False])
def test_a_left_padded_prompt_gives_what_it_gives_alone(objective: str, do_sample: bool) -> None:
    model, prompts = build(objective), tokens(3, 6)
    mask = (torch.arange(6) >= torch.tensor([[0], [2], [5]])).long()
    prompts = prompts.masked_fill(mask == 0, PAD)
    options: dict[str, Any] = {"do_sample": do_sample, "min_new_tokens": 8, "repetition_penalty": 1.2}
    together = sample(model, prompts, attention_mask=mask, **options)
    for row, start in enumerate((0, 2, 5)):
        assert torch.equal(sample(model, prompts[row : row + 1, start:], **options)[0], together[row])
    assert len(together.unique(dim=0)) == 3, "a model that repeats itself proves nothing"


def test_seeds_vary_texts_and_greedy_texts_do_not_vary() -> None:
    model, prompts = build(), tokens(1, 4).expand(6, 4)
    texts = sample(model, prompts)
    assert len(texts.unique(dim=0)) == 6
    assert torch.equal(sample(model, prompts), texts)
    assert not torch.equal(sample(model, prompts, seed=1), texts)
    several = sample(model, prompts[:1], num_return_sequences=6)
    assert torch.equal(several, texts)
    greedy = [sample(model, prompts[:1], seed=seed, do_sample=False) for seed in (0, 1)]
    assert torch.equal(*greedy)


def test_tokens_are_drawn_from_the_softmax() -> None:
    model, prompt = build(vocab_size=5), tokens(1, 3, 5)
    masked = torch.cat((prompt, torch.tensor([[5]])), dim=1)
    expected = model(masked).logits[0, -1].softmax(-1)
    found = sample(model, prompt.expand(4000, 3), max_new_tokens=1)[:, 0].bincount(minlength=5) / 4000
    error = (expected * (1 - expected) / 4000).sqrt()
    assert ((found - expected).abs() < 4 * error + 1e-9).all()
    best = sample(model, prompt.expand(50, 3), max_new_tokens=1, top_k=1)
    assert best.eq(expected.argmax()).all()


@pytest.mark.parametrize(("objective", "steps"), [("mdlm", 1), ("mdlm", 3), ("md4", 3), ("sedd", None), ("md4", 40)])
def test_masks_fall_over_the_steps_asked_for(objective: str, steps: int | None) -> None:
    model, passes = build(objective), []
    model.blocks[0].register_forward_hook(lambda *_: passes.append(1))
    new = sample(model, tokens(2, 3), max_new_tokens=10, num_steps=steps, min_new_tokens=10)
    assert len(passes) <= (10 if steps is None else min(steps, 20))
    assert len(passes) == steps or steps not in (1, 3)
    assert (new < model.config.vocab_size).all()


def test_what_follows_the_end_of_a_text_is_padding() -> None:
    model = build()
    with torch.no_grad():
        model.lm_head.weight[EOS] += 3 * model.lm_head.weight[5]
    new = sample(model, tokens(40, 3), max_new_tokens=12)
    ends = [row.tolist().index(EOS) for row in new if EOS in row]
    assert len(ends) > 3
    for row in new:
        if EOS in row:
            assert row[row.tolist().index(EOS) + 1 :].eq(PAD).all()
    assert not (sample(model, tokens(40, 3), max_new_tokens=12, min_new_tokens=12) == EOS).any()


def test_a_text_can_begin_from_nothing() -> None:
    model = build(bos_token_id=EOS)
    torch.manual_seed(0)
    ids = model.generate(max_new_tokens=5, do_sample=True, pad_token_id=PAD)
    assert ids.shape == (1, 6)
    assert ids[0, 0] == EOS


# -- filling in --------------------------------------------------------------------------------------------------------


def fill(model: MaskedDiffusionLM, prompts: Tensor, seed: int = 0, **options: Any) -> Tensor:
    """The whole rows."""
    torch.manual_seed(seed)
    options = {"max_new_tokens": 0, "do_sample": True, "pad_token_id": PAD} | options
    return model.generate(prompts, **options)


def with_holes() -> tuple[Tensor, Tensor]:
    """Prompts with masks anywhere, the first place too, padded on the left, and their attention mask [3, 7]."""
    prompts = tokens(3, 7)
    for row, columns in enumerate(((1, 2, 5), (3, 4, 5, 6), (4,))):
        prompts[row, list(columns)] = 11
    mask = (torch.arange(7) >= torch.tensor([[0], [3], [2]])).long()
    return prompts.masked_fill(mask == 0, PAD), mask


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(
    "options", [{}, {"do_sample": False}, {"max_new_tokens": 4, "min_new_tokens": 4}, {"num_steps": 2}]
)
def test_masks_in_a_prompt_are_filled_in_place(objective: str, options: dict[str, Any]) -> None:
    model, (prompts, mask) = build(objective), with_holes()
    filled = fill(model, prompts, attention_mask=mask, **options)
    given = prompts != model.config.mask_token_id
    assert filled.shape == (3, 7 + options.get("max_new_tokens", 0))
    assert torch.equal(filled[:, :7][given], prompts[given])
    assert (filled < model.config.vocab_size).all()
    for row, start in enumerate((0, 3, 2)):
        alone = fill(model, prompts[row : row + 1, start:], **options)
        assert torch.equal(alone[0], filled[row, start:]), "in a batch and behind padding it is what it is alone"
    if options == {}:
        assert torch.equal(fill(model, prompts, attention_mask=mask), filled)
        others = torch.stack([fill(model, prompts, seed, attention_mask=mask) for seed in range(1, 9)])
        assert (others != filled).any(0).equal(~given)


def chain(model: MaskedDiffusionLM) -> Tensor:
    """The model says the true conditionals of a Markov chain over 3 tokens, [3, 3], found by enumeration."""
    moves = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.1, 0.4], [0.15, 0.25, 0.6]])

    def hidden(ids: Tensor, *_: Any) -> Tensor:
        kinds, which = ids.unique(dim=0, return_inverse=True)
        said = torch.zeros(*kinds.shape, 3)
        for kind, row in zip(kinds, said):
            for text in itertools.product(*([x] if x < 3 else range(3) for x in kind.tolist())):
                chance = math.prod(float(moves[a, b]) for a, b in itertools.pairwise(text))
                row[range(len(text)), list(text)] += chance
        return said.log()[which]

    model.hidden, model.lm_head = hidden, torch.nn.Identity()  # type: ignore[method-assign, assignment]
    return moves


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("steps", [1, 5, 200])
def test_filled_masks_follow_the_distribution_of_both_sides(objective: str, steps: int) -> None:
    """Of two masks that fall at one step each is blind to the other; at steps of their own they are drawn exactly."""
    model, rows = build(objective, vocab_size=3), 3000
    moves = chain(model)
    prompt = torch.tensor([[1, 3, 3, 2]]).expand(rows, 4)
    filled = fill(model, prompt, attention_mask=torch.ones_like(prompt), num_steps=steps)
    found = (3 * filled[:, 1] + filled[:, 2]).bincount(minlength=9).view(3, 3) / rows
    exact = moves[1][:, None] * moves * moves[:, 2]
    exact = exact / exact.sum()
    blind = exact.sum(1)[:, None] * exact.sum(0)
    times = schedule("cosine" if objective == "md4" else "linear", torch.linspace(0, 1, steps + 1))[0]
    together = times.diff().square().sum()
    expected = together * blind + (1 - together) * exact
    assert (expected - blind).abs().max() > 0.03 or steps == 1
    assert ((found - expected).abs() < 4.5 * (expected * (1 - expected) / rows).sqrt()).all()


def test_a_prompt_of_text_says_where_tokens_are_missing(tokenizer: Any) -> None:
    model = build(vocab_size=len(tokenizer))
    letters = set(tokenizer.convert_tokens_to_ids([chr(i) for i in range(97, 123)]))
    options: dict[str, Any] = {"suppress_tokens": [i for i in range(len(tokenizer)) if i not in letters]}
    prompts = ["A <|mask|><|mask|> son.", "<|mask|> was Paul<|mask|>"]
    first, second = generate_text(opened(model, tokenizer), prompts, max_new_tokens=0, **options)
    assert re.fullmatch(r"A[a-z]{2} son\.", first), "the mask's own word begins with its space"
    assert re.fullmatch(r"[a-z] was Paul[a-z]", second)
    longer, plain = generate_text(opened(model, tokenizer), [prompts[1], "A son"], max_new_tokens=3, **options)
    assert re.fullmatch(r"[a-z] was Paul[a-z]{4}", longer)
    assert re.fullmatch(r"A son[a-z]{3}", plain)
    with pytest.raises(InputError, match="max_new_tokens is 0: set at least 1"):
        generate_text(opened(model, tokenizer), [*prompts, "A son"], max_new_tokens=0)
    with pytest.raises(InputError, match=r"prompts\[0\] is .*: this model reads whole sentences"):
        generate_text(opened(model, tokenizer, Marked()), prompts)
    with pytest.raises(InputError, match="streamer is set and a prompt contains masks"):
        list(stream_text(opened(model, tokenizer), prompts[0]))


# -- streams -----------------------------------------------------------------------------------------------------------


def test_streamed_text_equals_the_text_and_can_be_stopped(tokenizer: Any) -> None:
    model = build(vocab_size=len(tokenizer))
    options: dict[str, Any] = {"max_new_tokens": 12, "seed": 3, "do_sample": True, "top_p": 0.9}
    (whole,) = generate_text(opened(model, tokenizer), ["A son"], **options)
    assert "A son" + "".join(stream_text(opened(model, tokenizer), "A son", **options)) == whole
    passes: list[int] = []
    model.blocks[0].register_forward_hook(lambda *_: passes.append(1))
    asked = [lambda ids, scores, **kwargs: torch.ones(len(ids), dtype=torch.bool)]
    new = sample(model, torch.tensor([[5, 6]]), stopping_criteria=asked)
    assert len(passes) == 1
    assert (new == PAD).any()


# -- refusals and recipes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"objective": "d3pm"}, "objective is 'd3pm'"),
        ({"noise_schedule": "sqrt"}, "noise_schedule is 'sqrt'"),
        ({"score_times": 0}, "score_times is 0"),
        ({"conditioning_size": 0}, "conditioning_size is 0"),
        ({"intermediate_size": 0}, "intermediate_size is 0"),
        ({"hidden_size": 6, "num_attention_heads": 2}, "heads of even width"),
    ],
)
def test_a_config_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        MaskedDiffusionConfig(**({"vocab_size": 11} | SIZES | fields))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2, "do_sample": False}, "num_beams is 2"),
        ({"num_steps": 0}, "num_steps is 0: set 1 or more"),
        ({"stop_strings": ["a"]}, r"stop_strings is \['a'\]: masks fall in any order"),
        ({"return_dict_in_generate": True}, "return_dict_in_generate is True"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0: no prompt contains a mask"),
    ],
)
def test_what_generation_has_no_use_for_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sample(build(), tokens(1, 3), **options)


def test_a_cache_and_unknown_ways_to_score_are_refused() -> None:
    model, ids = build(), tokens(1, 4)
    with pytest.raises(InputError, match=r"(cache|past_key_values) is set: a bidirectional model has no cache"):
        model(ids, past_key_values=model.new_cache())
    with pytest.raises(InputError, match="estimator is 'exact': this model has elbo-bound"):
        model.token_nll(text(ids), "exact")
    with pytest.raises(InputError, match="input_ids is None"):
        model()
    with pytest.raises(InputError, match=r"attention_mask\[0\] is 0 throughout"):
        model(ids, attention_mask=torch.zeros_like(ids))


@pytest.mark.parametrize("size", ["tiny", "openstax"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_small_runs_differ_from_their_twin_only_in_the_model(objective: str, size: str) -> None:
    recipe = get_recipe(f"{objective}/{size}")
    assert recipe.baseline == f"latent_thought/{size}-ar"
    twin = get_recipe(recipe.baseline)
    for part in ("data", "optimizer", "train", "evaluation", "phases"):
        assert getattr(recipe, part) == getattr(twin, part)


def _meta(name: str) -> MaskedDiffusionLM:
    fields = get_recipe(name).model | {"vocab_size": 50_260}  # GPT-2's and three markers
    fields.pop("model_type")
    with torch.device("meta"):
        return MaskedDiffusionLM(MaskedDiffusionConfig(**fields))


@pytest.mark.parametrize(
    ("name", "total", "flops"),
    [
        ("mdlm/table1", 123_554_304, 0.85e9),
        ("sedd/table1-110m", 130_935_040, 0.85e9),
        ("sedd/table1", 374_415_616, 2.42e9),
        ("md4/table1", 374_415_616, 2.42e9),
    ],
)
def test_the_models_of_table_1_have_its_cost_a_token(name: str, total: int, flops: float) -> None:
    model = _meta(name)
    assert count_parameters(model)["total"] == total
    batch = {"input_ids": torch.empty(1, 1024, device="meta")}
    assert model.training_flops(batch) / 1024 == pytest.approx(flops, rel=0.02)
