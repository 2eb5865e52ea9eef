"""Latent Thought Models: held to their plainest form, honest about what is a bound, and the same row by row."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedTokenizerFast
from transformers.generation.streamers import BaseStreamer

from mentalese import get_recipe, recipes
from mentalese.data.tokenizers import special_token_ids
from mentalese.errors import InputError
from mentalese.families import latent_thought
from mentalese.families.latent_thought.config import LTMConfig
from mentalese.families.latent_thought.inference import fit, infer, inference_config, schedule
from mentalese.families.latent_thought.model import LTMForCausalLM
from mentalese.families.latent_thought.plain import LatentThought
from mentalese.families.latent_thought.recipes import ALGORITHM_1
from mentalese.models.base import count_parameters
from mentalese.nn.attention import flex_attend
from mentalese.nn.noise import Noise
from mentalese.training.loop import train
from mentalese.training.step import TrainStep
from support import finish, launch, losses, sharing, shrink, training_losses

CLOSE = {"atol": 1e-5, "rtol": 1e-4}
EXACT = {"atol": 1e-6, "rtol": 1e-6}
VAE: dict[str, Any] = {"inference": "amortised", "encoder_layers": 2}
VOCABULARY = 40


def config(**fields: Any) -> LTMConfig:
    defaults = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
        "window_size": 6,
        "num_latents": 6,
        "fast_steps": 4,
    }
    return LTMConfig(**(defaults | fields))


def model(**fields: Any) -> LTMForCausalLM:
    """Weights large enough for thoughts to matter."""
    torch.manual_seed(0)
    made = LTMForCausalLM(config(**fields)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(5)
    return made


def plain_of(made: LTMForCausalLM) -> LatentThought:
    """The plain model with the very weights of the fast one."""
    return sharing(LatentThought(made.config), made)


def text(rows: int = 2, length: int = 40, seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def batch(ids: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    labels = ids if mask is None else ids.masked_fill(mask == 0, -100)
    return {"input_ids": ids, "labels": labels} | ({} if mask is None else {"attention_mask": mask})


def padded(ids: Tensor) -> Tensor:
    """A mask of the first row whole, the second with padding before it, the third with padding behind it."""
    mask = torch.ones_like(ids)
    mask[1, :9], mask[2, 25:] = 0, 0
    return mask


VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "release": {
        "noise": "fixed",
        "fast_optimizer": "adamw",
        "fast_schedule": "cosine",
        "fast_learning_rate": 0.34,
        "slow_grad": "accumulate",
    },
    "linear": {"fast_schedule": "linear"},
    "shared": {"shared_latents": True, "num_latents": 5},
    "langevin": {"inference": "langevin", "langevin_step_size": 0.02},
    "langevin, accumulated": {"inference": "langevin", "slow_grad": "accumulate"},
    "one layer": {"num_hidden_layers": 1, "window_size": 1},
    "whole window": {"window_size": 64},
    "one step": {"fast_steps": 1},
}

# ------------------------------------------------------------------------------------------------------ the plain form


@pytest.mark.parametrize("variant", VARIANTS)
def test_thoughts_losses_and_gradients_equal_the_plain_form(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In double precision, so that what is left is rounding: of rotary tables and of the loss's weights."""
    made, ids = model(**VARIANTS[variant]).double(), text()
    monkeypatch.setattr("mentalese.families.latent_thought.model.shared_seed", lambda: 7)
    plain = plain_of(made)
    posterior, expected = infer(made, batch(ids), seed=7), plain.infer(ids, seed=7)
    torch.testing.assert_close(posterior.mu, expected.mu, **EXACT)
    torch.testing.assert_close(posterior.log_var, expected.log_var, **EXACT)
    torch.testing.assert_close(posterior.sample(), expected.sample(), **EXACT)
    torch.testing.assert_close(posterior.nll, torch.stack(expected.nll), **EXACT)
    torch.testing.assert_close(posterior.kl, torch.stack(expected.kl), **EXACT)
    loss, output = plain.loss(ids, seed=7), made.training_loss(batch(ids))
    torch.testing.assert_close(output.loss, loss, **EXACT)
    output.loss.backward()
    check_gradients(made, torch.autograd.grad(loss, list(made.parameters())))


@pytest.mark.parametrize("fields", [{}, {"shared_latents": True, "num_latents": 5}, {"window_size": 64}], ids=str)
def test_encoder_posterior_and_gradients_equal_the_plain_form(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, ids = model(**VAE | fields).double(), text()
    monkeypatch.setattr("mentalese.families.latent_thought.model.shared_seed", lambda: 7)
    plain = plain_of(made)
    posterior, expected = infer(made, batch(ids), seed=7), plain.infer(ids, seed=7)
    torch.testing.assert_close(posterior.mu, expected.mu, **EXACT)
    torch.testing.assert_close(posterior.log_var, expected.log_var, **EXACT)
    torch.testing.assert_close(posterior.sample(), expected.sample(), **EXACT)
    loss, output = plain.loss(ids, seed=7, kl_weight=0.3), made.training_loss(batch(ids), kl_weight=0.3)
    torch.testing.assert_close(output.loss, loss, **EXACT)
    output.loss.backward()
    check_gradients(made, torch.autograd.grad(loss, list(made.parameters())))


@pytest.mark.parametrize("fields", [{}, {"inference": "langevin", "slow_grad": "accumulate"}, VAE], ids=str)
def test_the_plain_model_trains_by_itself(fields: dict[str, Any]) -> None:
    torch.manual_seed(0)
    plain, ids = LatentThought(config(**fields)), text()
    course = training_losses(plain, lambda seed: plain.loss(ids, seed), steps=30)
    assert course[-1] < 0.5 * course[0]


def test_the_plain_model_starts_as_the_fast_one() -> None:
    made = LTMForCausalLM(config(hidden_size=64, **VAE))
    plain = LatentThought(made.config)
    for name, parameter in made.named_parameters():
        expected = parameter.std()
        torch.testing.assert_close(plain.get_parameter(name).std(), expected, atol=0, rtol=0.2, msg=name)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, thoughts = text(), torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1))
    calls: list[Tensor] = []
    monkeypatch.setattr(
        "mentalese.nn.window.flex_attend", lambda *x, **o: calls.append(flex_attend(*x, **o)) or calls[-1]
    )
    with torch.no_grad():
        ours, flex = (
            made.decode(*_read(made, ids, thoughts)) for made in (model(), model(attn_implementation="flex_attention"))
        )
    assert len(calls) == 3, "once per layer"
    torch.testing.assert_close(flex, ours, **CLOSE)


def _read(made: LTMForCausalLM, ids: Tensor, thoughts: Tensor) -> tuple[Tensor, Tensor, Any]:
    x, packed = made.read(ids)
    return x, thoughts, packed


def check_gradients(made: LTMForCausalLM, expected: Sequence[Tensor]) -> None:
    for (name, parameter), gradient in zip(made.named_parameters(), expected):
        size = gradient.abs().max()
        torch.testing.assert_close(parameter.grad / size, gradient / size, atol=1e-6, rtol=0, msg=name)


def test_a_fast_step_leaves_no_gradient_in_the_weights() -> None:
    made = model()
    infer(made, batch(text()))
    made.token_nll(batch(text()))
    assert all(parameter.grad is None and parameter.requires_grad for parameter in made.parameters())


def test_accumulated_gradients_outweigh_the_slow_one() -> None:
    """Where the release goes wrong: sums over tokens and steps beside a mean over tokens."""
    norms = []
    for slow_grad in ("final", "accumulate"):
        made = model(slow_grad=slow_grad)
        made.training_loss(batch(text())).loss.backward()
        norms.append(torch.cat([p.grad.flatten() for p in made.parameters()]).norm())
    assert norms[1] > 20 * norms[0]


@pytest.mark.parametrize("fields", [{}, {"slow_grad": "accumulate"}, VAE], ids=str)
def test_a_batch_without_targets_has_a_gradient_of_zero(fields: dict[str, Any]) -> None:
    """What a rank is given where there are fewer rows than ranks."""
    made, ids = model(**fields), text()
    output = made.training_loss({"input_ids": ids, "labels": torch.full_like(ids, -100)})
    output.loss.backward()
    assert output.loss == output.weight == 0
    assert not any(parameter.grad.any() for parameter in made.parameters() if parameter.grad is not None)


def test_a_phase_sets_the_fast_learning_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mentalese.families.latent_thought.model.shared_seed", lambda: 0)
    made, ids = model(), text()
    loss = made.training_loss(batch(ids), fast_learning_rate=0.1).loss
    plain = sharing(LatentThought(config(fast_learning_rate=0.1)), made)
    torch.testing.assert_close(loss, plain.loss(ids, 0), **CLOSE)
    assert abs(loss - model().training_loss(batch(ids)).loss) > 1e-3
    with pytest.raises(InputError, match=r"fast_learning_rate is 0.1: LTMForCausalLM has no such"):
        model(num_latents=0).training_loss(batch(ids), fast_learning_rate=0.1)


def test_scores_take_the_fast_rate_that_training_has_reached(tmp_path: Path) -> None:
    made, data = model(), batch(text())
    made.training_loss(data, fast_learning_rate=0.34)
    reached = made.token_nll(data)
    assert torch.equal(reached, model(fast_learning_rate=0.34).token_nll(data))
    assert not torch.equal(reached, model().token_nll(data))
    made.save_pretrained(tmp_path)
    again = LTMForCausalLM.from_pretrained(tmp_path)
    assert again.config.fast_learning_rate == 0.34
    assert again.scoring_protocol("elbo-bound")["inference"]["fast_learning_rate"] == 0.34


def test_a_schedule_ends_at_a_tenth() -> None:
    for kind, last in (("constant", 1.0), ("linear", 0.1), ("cosine", 0.1)):
        assert [schedule(kind, step, 5) for step in (0, 4)] == pytest.approx([1.0, last])
        assert schedule(kind, 0, 1) == 1.0


# --------------------------------------------------------------------------------------------------------- rows alone


@pytest.mark.parametrize("fields", [{}, {"inference": "langevin"}, VAE], ids=str)
def test_a_row_has_the_same_posterior_alone_and_behind_padding(fields: dict[str, Any]) -> None:
    made, ids = model(**fields), text(rows=3)
    together = infer(made, batch(ids, padded(ids)))
    for row, alone in enumerate((ids[:1], ids[1:2, 9:], ids[2:, :25])):
        posterior = infer(made, batch(alone))
        torch.testing.assert_close(together.sample()[row], posterior.sample()[0], atol=1e-4, rtol=1e-4)
        steps = len(posterior.nll)
        torch.testing.assert_close(together.elbo[:steps, row], posterior.elbo[:, 0], atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("estimator", ["elbo-bound", "prefix"])
@pytest.mark.parametrize("fields", [{}, VAE], ids=["", "VAE"])
def test_padding_changes_no_score(estimator: str, fields: dict[str, Any]) -> None:
    made, ids = model(**fields), text(rows=3)
    nll = made.token_nll(batch(ids, padded(ids)), estimator)
    for row, alone in ((0, slice(0, 40)), (1, slice(9, 40)), (2, slice(0, 25))):
        expected = made.token_nll(batch(ids[row : row + 1, alone]), estimator)[0]
        torch.testing.assert_close(nll[row, alone], expected, atol=1e-4, rtol=1e-4)
    assert nll[1, :10].tolist() == [0.0] * 10
    assert nll[2, 25:].tolist() == [0.0] * 15


def test_noise_is_normal_and_belongs_to_a_row_and_a_draw() -> None:
    targets = text(rows=6, length=20)
    numbers = Noise.of(targets, seed=1).draw(0, (200, 100))
    assert numbers.mean().item() == pytest.approx(0, abs=0.01)
    assert numbers.var().item() == pytest.approx(1, abs=0.01)
    assert numbers.pow(4).mean().item() == pytest.approx(3, abs=0.1)
    others = [
        Noise.of(targets, seed=2).draw(0, (200, 100)),
        Noise.of(targets, seed=1).draw(1, (200, 100)),
        numbers.roll(1, 0),
        numbers.roll(1, 1),
    ]
    for other in others:
        assert abs(torch.corrcoef(torch.stack((numbers.flatten(), other.flatten())))[0, 1]) < 0.02
    alone = Noise.of(F.pad(targets[2:3], (0, 5), value=-100), seed=1).draw(0, (200, 100))
    assert torch.equal(alone[0], numbers[2])


# ------------------------------------------------------------------------------------------------------ the likelihood


def test_thoughts_that_are_not_read_cost_nothing_in_the_bound() -> None:
    made, ids = model(), text(rows=3)
    assert made.nll_parts(batch(ids), "elbo-bound")["kl"].sum() > 0
    for control in ("removed", "swapped"):
        made.config.thought_control = control
        parts = made.nll_parts(batch(ids), "elbo-bound")
        assert not parts["kl"].any()
        assert torch.equal(made.token_nll(batch(ids), "elbo-bound"), parts["nll"])
    made.config.thought_control = "noisy"
    assert made.nll_parts(batch(ids), "elbo-bound")["kl"].sum() > 0


@pytest.mark.parametrize("fields", [{}, VAE], ids=["", "VAE"])
def test_the_bound_is_likelihood_plus_divergence(fields: dict[str, Any]) -> None:
    made, ids = model(**fields), text()
    posterior = infer(made, batch(ids))
    mu, log_var = posterior.mu.double(), posterior.log_var.double()
    q = torch.distributions.Normal(mu, (0.5 * log_var).exp())
    kl = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 1.0)).sum((1, 2))
    log_p = made(ids, z=posterior.sample()).logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None]).sum((1, 2))
    torch.testing.assert_close(made.token_nll(batch(ids)).sum(1), (kl - log_p).float(), **CLOSE)
    torch.testing.assert_close(posterior.kl_by_layer(3).sum(1), kl.float(), **CLOSE)


@pytest.mark.parametrize("noise", ["resampled", "fixed"])
def test_the_fitted_draw_scores_the_noise_of_inference(noise: str) -> None:
    """The release's score: one draw for all fast steps and for what follows them."""
    made, data = model(noise=noise, fast_steps=16), batch(text(rows=4))
    parts, bound = made.nll_parts(data, "fitted-draw"), made.nll_parts(data, "elbo-bound")
    posterior = infer(model(noise="fixed", fast_steps=16), data)
    seen = posterior.mu + (0.5 * posterior.log_var).exp() * posterior.noise.draw(0, posterior.mu.shape[1:])
    nats = -made(data["input_ids"], z=seen).logits.log_softmax(-1)[:, :-1]
    nats = nats.gather(-1, data["input_ids"][:, 1:, None])[..., 0]
    torch.testing.assert_close(parts["nll"][:, 1:], nats.detach(), **CLOSE)
    torch.testing.assert_close(parts["kl"].sum(1), posterior.kl_by_layer(1)[:, 0], **CLOSE)
    assert parts["nll"].sum() < bound["nll"].sum(), "thoughts fit their draw better than another one"
    assert made.scoring_protocol("fitted-draw")["inference"]["noise"] == "fixed"
    assert made.scoring_protocol("elbo-bound")["inference"]["noise"] == noise
    assert "fitted-draw" not in model(**VAE).estimators


def test_inference_raises_the_bound_with_more_steps() -> None:
    made, data = model(), batch(text(rows=8))
    scores = [made.token_nll(data, fast_steps=steps).mean().item() for steps in (1, 8, 32)]
    assert scores[0] > scores[1] > scores[2]
    elbo = infer(made, data, fast_steps=32).elbo.mean(1)
    assert elbo.shape == (32,)
    assert elbo[-1] > elbo[0]


@pytest.mark.parametrize("fields", [{}, VAE], ids=["", "VAE"])
def test_a_prefix_score_knows_nothing_of_what_it_scores(fields: dict[str, Any]) -> None:
    made, ids = model(**fields), text(rows=4, length=41)
    changed = ids.clone()
    changed[:, -1] = (ids[:, -1] + 1) % VOCABULARY
    before, after = (made.token_nll(batch(x), "prefix") for x in (ids, changed))
    torch.testing.assert_close(before[:, :-1], after[:, :-1], atol=1e-5, rtol=0)
    assert (before[:, :21] == 0).all(), "the first half of 40 labels is what thoughts are inferred from"
    assert (before[:, 21:] > 0).all()
    z = infer(made, batch(ids[:, :21])).sample()
    nll = F.cross_entropy(made(ids, z=z).logits[:, 20:-1].transpose(1, 2), ids[:, 21:], reduction="none")
    torch.testing.assert_close(before[:, 21:], nll, atol=1e-4, rtol=1e-4)
    bound = [made.token_nll(batch(x))[:, :-1] for x in (ids, changed)]
    assert (bound[0] - bound[1]).abs().max() > 1e-3, "the bound reads the whole row, which its KL is there to pay for"


@pytest.mark.parametrize("estimator", ["prefix", "context"])
def test_what_follows_a_scored_token_is_no_evidence(estimator: str) -> None:
    """An end of a document that is not scored is predicted from tokens that are."""
    made, ids = model(), text(rows=4)
    data = batch(ids)
    data["labels"] = ids.index_fill(1, torch.tensor([*range(20), 36]), -100)
    changed = ids.index_fill(1, torch.tensor([35]), 7)
    before, after = (made.token_nll(data | {"input_ids": x}, estimator) for x in (ids, changed))
    assert (before[:, 31:36] > 0).all()
    assert torch.equal(before[:, :36], after[:, :36])


def test_scored_labels_are_what_a_score_is_a_mean_over() -> None:
    made, ids = model(), text(rows=3)
    mask = padded(ids)
    assert (made.scored_labels(batch(ids, mask), "elbo-bound") != -100).sum(1).tolist() == [39, 30, 24]
    assert (made.scored_labels(batch(ids, mask), "prefix") != -100).sum(1).tolist() == [20, 15, 12]
    assert torch.equal(
        made.scored_labels(batch(ids, mask), "prefix") != -100, made.token_nll(batch(ids, mask), "prefix") > 0
    )


@pytest.mark.parametrize("fields", [{}, VAE], ids=["", "VAE"])
def test_only_given_labels_are_evidence(fields: dict[str, Any]) -> None:
    """A window's context is read, and says nothing about the thoughts but through what it makes of the labels."""
    made, ids = model(**fields), text(length=20)
    labels = ids.clone()
    labels[:, :12] = -100
    nll = made.token_nll({"input_ids": ids, "labels": labels})
    assert (nll[:, :12] == 0).all()
    assert (nll[:, 12:] > 0).all()
    labels[:] = -100
    assert (made.token_nll({"input_ids": ids, "labels": labels}) == 0).all()


def test_every_score_has_its_name() -> None:
    assert model().estimators == ("elbo-bound", "prefix", "context", "fitted-draw")
    assert model(num_latents=0).estimators == ("exact", "prefix")
    with pytest.raises(
        InputError, match="estimator is 'exact': this model has elbo-bound, prefix, context, fitted-draw"
    ):
        model().token_nll(batch(text()), "exact")


def test_a_bound_is_a_likelihood_and_what_its_thoughts_cost() -> None:
    made, data = model(), batch(text(rows=3))
    parts = made.nll_parts(data)
    torch.testing.assert_close(parts["nll"] + parts["kl"], made.token_nll(data))
    posterior = infer(made, data)
    torch.testing.assert_close(parts["kl"].sum(1), posterior.kl_by_layer(1)[:, 0], **CLOSE)
    assert [*made.nll_parts(data, "prefix")] == ["nll"]


def test_a_bound_is_under_noise_that_was_not_fitted() -> None:
    made, data = model(noise="fixed", fast_steps=32), batch(text(rows=8))
    posterior = infer(made, data)
    logits = made(data["input_ids"], z=posterior.sample(fresh=True)).logits
    nll = F.cross_entropy(logits[:, :-1].transpose(1, 2), data["labels"][:, 1:], reduction="none")
    torch.testing.assert_close(made.nll_parts(data)["nll"][:, 1:], nll, **CLOSE)
    fitted = made(data["input_ids"], z=posterior.sample(), labels=data["labels"]).loss
    assert nll.mean() > fitted + 1e-3


def test_continuation_is_scored_under_thoughts_of_its_context() -> None:
    made, ids, mask = model(), text(rows=3), padded(text(rows=3))
    data = batch(ids, mask)
    data["labels"] = data["labels"].index_fill(1, torch.arange(30), -100)
    scored = made.token_nll(data, **made.continuation_scoring())
    logits = made(**made.continuation_inputs(data)).logits
    nll = F.cross_entropy(logits[:, :-1].transpose(1, 2), data["labels"][:, 1:], reduction="none")
    torch.testing.assert_close(scored[:, 1:], nll, **CLOSE)
    for row, alone in enumerate((slice(0, 40), slice(9, 40), slice(0, 25))):
        context = ids[row : row + 1, alone]
        z = infer(made, batch(context[:, : int((data["labels"][row, alone] == -100).sum())])).sample()
        torch.testing.assert_close(made.continuation_inputs(data)["z"][row], z[0], atol=1e-4, rtol=1e-4)


def test_without_thoughts_the_same_second_halves_can_be_scored() -> None:
    made, data = model(num_latents=0), batch(text(), padded(text(rows=3))[:2])
    whole, second = made.token_nll(data), made.token_nll(data, "prefix")
    counted = made.scored_labels(data, "prefix") != -100
    assert counted.sum(1).tolist() == [20, 15]
    torch.testing.assert_close(second, whole * counted)


def test_without_thoughts_it_is_an_autoregressive_model() -> None:
    made, ids = model(num_latents=0), text()
    assert not any("cross" in name for name, _ in made.named_parameters())
    nll = F.cross_entropy(made(ids).logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    torch.testing.assert_close(made.token_nll(batch(ids))[:, 1:], nll, **CLOSE)
    assert made.training_loss(batch(ids)).loss.item() == pytest.approx(nll.mean().item(), rel=1e-5)


def test_training_watches_for_collapse() -> None:
    metrics = model().training_loss(batch(text(rows=4))).metrics
    assert metrics["elbo"].item() == pytest.approx(-metrics["nll"].item() - metrics["kl"].item(), rel=1e-5)
    assert metrics["kl"].item() == pytest.approx(sum(metrics[f"kl.layer_{i}"].item() for i in range(3)), rel=1e-5)
    assert 0 < metrics["active_units"] <= 1
    assert set(model(inference="langevin").training_loss(batch(text())).metrics) == {"nll", "active_units"}
    output = model(**VAE).training_loss(batch(text(rows=4)), kl_weight=0.25)
    assert metrics.keys() == output.metrics.keys()
    nll, kl = output.metrics["nll"].item(), output.metrics["kl"].item()
    assert output.metrics["elbo"].item() == pytest.approx(-nll - kl, rel=1e-5)
    assert output.loss.item() == pytest.approx(nll + 0.25 * kl, rel=1e-5)


def test_an_encoder_takes_no_steps() -> None:
    made, data = model(**VAE), batch(text())
    assert infer(made, data).elbo.shape == (0, 2)
    assert infer(made, data, inference="variational").elbo.shape == (4, 2), "Algorithm 1 knows its decoder too"
    for setting in ({"fast_steps": 3}, {"fast_learning_rate": 0.1}):
        with pytest.raises(InputError, match=r"is (3|0.1): amortised inference does not use it, so remove it"):
            infer(made, data, **setting)
    with pytest.raises(InputError, match="inference is 'amortised': this model has variational, langevin"):
        infer(model(), data, inference="amortised")


def test_a_phase_anneals_the_divergence_of_a_vae_alone() -> None:
    made, data = model(**VAE), batch(text())
    with pytest.raises(InputError, match=r"phases.model.fast_learning_rate is .* no such training setting"):
        made.training_loss(data, fast_learning_rate=0.1)
    with pytest.raises(InputError, match=r"phases.model.kl_weight is .* no such training setting"):
        model().training_loss(data, kl_weight=0.5)
    for recipe in ("tiny-vae", "table4-vae"):
        assert get_recipe(f"latent_thought/{recipe}").phases[0].model == {"kl_weight": [0.0, 1.0]}


# ---------------------------------------------------------------------------------------------------- thoughts outside


def test_forward_without_thoughts_uses_the_prior_mean() -> None:
    made, ids = model(), text()
    z = torch.randn(2, 6, 16)
    assert made(ids).z_given is False
    assert made(ids, z=z).z_given is True
    plain = plain_of(made)
    torch.testing.assert_close(made(ids).logits, plain(ids, torch.zeros(2, 6, 16)), **CLOSE)
    torch.testing.assert_close(made(ids).logits, plain(ids), **CLOSE)
    torch.testing.assert_close(made(ids, z=z).logits, plain(ids, z), **CLOSE)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("pieces", [[40], [15, 25], [10, *[1] * 30], [10, 1, 1, 12, 1, 15]], ids=len)
def test_a_text_read_in_pieces_is_the_text(pieces: list[int], given: bool) -> None:
    """Padding on either side, and pieces longer and shorter than the window."""
    made, ids = model(), text(rows=3)
    mask = padded(ids)
    z = torch.randn(3, 6, 16) if given else None
    expected = made(ids, attention_mask=mask, z=z).logits
    cache, end, logits = made.new_cache(), 0, []
    for piece in pieces:
        start, end = end, end + piece
        output = made(
            ids[:, start:end], attention_mask=mask[:, :end], past_key_values=cache, z=z if start == 0 else None
        )
        assert output.z_given is given
        logits.append(output.logits)
    real = mask.bool()
    torch.testing.assert_close(torch.cat(logits, dim=1)[real], expected[real], **CLOSE)
    assert cache.state["k.0"].shape[2] == made.config.window_size


def test_generation_uses_thoughts_inferred_from_prompts() -> None:
    made, ids = model(), text(length=12)
    options: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    z = infer(made, batch(ids)).sample()
    out = made.generate(ids, **options)
    assert torch.equal(out[:, 12:], plain_of(made).generate(ids, 20))
    assert torch.equal(out, made.generate(ids, z=z, **options))
    assert torch.equal(out, made.generate(input_ids=ids, use_cache=False, **options))
    assert not torch.equal(out, made.generate(ids, z=-z, **options))
    seeds = [made.generate(ids, z=infer(made, batch(ids), seed=seed).sample(), **options) for seed in (0, 5)]
    assert torch.equal(seeds[1], made.generate(ids, posterior_seed=5, **options))


def talkative(**fields: Any) -> LTMForCausalLM:
    """A model whose tied weights do not make it repeat one token."""
    return model(tie_word_embeddings=False, **fields)


PROMPTS = text(length=12, rows=3)
PADDING = torch.ones_like(PROMPTS)
PADDING[1, :5] = 0


@pytest.mark.parametrize("fields", [{}, VAE], ids=["", "VAE"])
@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": False},
        {"do_sample": False, "use_cache": False},
        {"do_sample": False, "posterior_seed": 3},
        {"do_sample": True, "posterior_seed": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("given", [None, PADDING], ids=["", "padded"])
def test_thoughts_inferred_anew_are_those_of_the_text_so_far(
    given: Tensor | None, options: dict[str, Any], fields: dict[str, Any]
) -> None:
    """As by calls that go on with what the one before them gave."""
    made, ids, mask = talkative(**fields), PROMPTS, given
    options = options | {"pad_token_id": 0}
    torch.manual_seed(0)
    out = made.generate(ids, attention_mask=mask, infer_every=4, max_new_tokens=11, **options)
    torch.manual_seed(0)
    for new in (4, 4, 3):
        ids = made.generate(ids, attention_mask=mask, max_new_tokens=new, **options)
        mask = None if mask is None else F.pad(mask, (0, new), value=1)
    assert torch.equal(out, ids)
    if not options["do_sample"]:
        once = made.generate(PROMPTS, attention_mask=given, max_new_tokens=11, **options)
        assert not torch.equal(out, once), "other thoughts matter"


def test_a_row_that_has_ended_changes_nothing_for_the_others() -> None:
    made = talkative()
    options: dict[str, Any] = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0, "infer_every": 3}
    free = made.generate(PROMPTS, **options)
    end = int(free[0, 17])
    assert (free[:, 12:] != end).all(1).any(), "a row goes on"
    out = made.generate(PROMPTS, eos_token_id=end, **options)
    for row, expected in zip(out, free):
        length = 13 + (expected[12:] == end).tolist().index(True) if end in expected[12:] else 28
        assert torch.equal(row[:length], expected[:length])
        assert (row[length:] == 0).all()


def test_beams_carry_the_thoughts_inferred_anew_for_each() -> None:
    made = talkative()
    options: dict[str, Any] = {"max_new_tokens": 10, "num_beams": 3, "do_sample": False, "pad_token_id": 0}
    cached = made.generate(PROMPTS, infer_every=3, num_return_sequences=2, **options)
    assert cached.shape == (6, 22)
    assert torch.equal(
        cached, made.generate(PROMPTS, infer_every=3, num_return_sequences=2, use_cache=False, **options)
    )
    assert not torch.equal(cached[::2], made.generate(PROMPTS, **options))


def test_a_streamer_is_given_each_token_once() -> None:
    class Streamer(BaseStreamer):
        tokens: ClassVar[list[int]] = []
        ends = 0

        def put(self, value: Tensor) -> None:
            self.tokens.extend(value.flatten().tolist())

        def end(self) -> None:
            self.ends += 1

    streamer = Streamer()
    options: dict[str, Any] = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    out = talkative().generate(PROMPTS[:1], infer_every=2, streamer=streamer, **options)
    assert streamer.tokens == out[0].tolist()
    assert streamer.ends == 1


@pytest.mark.parametrize("infer_every", [None, 4])
def test_each_sampled_sequence_has_an_inference_of_its_own(infer_every: int | None) -> None:
    """Of the likeliest token alone, so that sequences differ by their thoughts."""
    made = talkative()
    options: dict[str, Any] = {"max_new_tokens": 9, "pad_token_id": 0, "infer_every": infer_every}
    sampled = made.generate(
        PROMPTS, attention_mask=PADDING, do_sample=True, top_k=1, num_return_sequences=3, posterior_seed=5, **options
    )
    for k in range(3):
        alone = made.generate(PROMPTS, attention_mask=PADDING, do_sample=False, posterior_seed=5 + k, **options)
        assert torch.equal(sampled[k::3], alone)
    assert len(sampled.unique(dim=0)) > 3


def test_sampling_draws_its_inference_from_torchs_generator() -> None:
    made = talkative()
    options: dict[str, Any] = {"max_new_tokens": 9, "pad_token_id": 0, "do_sample": True, "top_k": 1}

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return made.generate(PROMPTS, **options)

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    greedy = [made.generate(PROMPTS, **options | {"do_sample": False, "top_k": None}) for _ in range(2)]
    assert torch.equal(*greedy)


def test_the_familys_readme_does_what_it_says(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    end = special_token_ids(tokenizer)["eos_token_id"]
    for part in (talkative(vocab_size=len(tokenizer), eos_token_id=end, pad_token_id=end), tokenizer):
        part.save_pretrained("runs/latent_thought-tiny")
    document = Path(latent_thought.__file__).with_name("README.md").read_text()
    program = "".join(re.findall(r"```python\n(.*?)```", document, re.DOTALL))
    exec(program, shown := {})
    assert shown["model"].generate(shown["end"], z=shown["z"], max_new_tokens=5).shape[0] == 8


def test_text_goes_on_between_two_thoughts_and_from_the_prior() -> None:
    made, a, b = talkative(), text(length=20), text(length=15, seed=1)
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    ends = [infer(made, batch(ids)).mu for ids in (a, b)]
    ways = [made.generate(PROMPTS[:2], z=torch.lerp(*ends, t), **options) for t in (0.0, 0.5, 1.0)]
    for way, end in zip(ways[::2], ends):
        assert torch.equal(way, made.generate(PROMPTS[:2], z=end, **options))
    assert not torch.equal(ways[1], ways[0])
    assert not torch.equal(ways[1], ways[2])
    z = torch.randn(2, made.config.num_latents, made.config.hidden_size)
    assert made.generate(PROMPTS[:2, :1], z=z, **options).shape == (2, 13)


def test_a_prompt_of_one_token_has_the_prior() -> None:
    made, ids = model(), text(length=1)
    posterior = infer(made, batch(ids))
    assert not posterior.mu.any()
    assert not posterior.log_var.any()
    assert posterior.sample().std() > 0.8
    assert made.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0).shape == (2, 4)


def test_a_prompt_read_in_pieces_may_begin_with_padding() -> None:
    made, ids = talkative(), text(rows=3, length=21)
    mask = padded(ids)
    mask[1, :17] = 0
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "posterior_seed": 3}
    whole = made.generate(ids, attention_mask=mask, **options)
    assert torch.equal(made.generate(ids, attention_mask=mask, prefill_chunk_size=4, **options), whole)


@pytest.mark.parametrize("options", [{"do_sample": False}, {"do_sample": True, "top_k": 1}], ids=str)
def test_texts_from_nothing_have_each_their_own_thoughts(options: dict[str, Any]) -> None:
    """Of the likeliest tokens alone, so that texts differ by their thoughts."""
    made, ends = talkative(), torch.zeros(6, 1, dtype=torch.long)
    options = options | {"max_new_tokens": 5, "pad_token_id": 0}

    def drawn(seed: int, ids: Tensor = ends, mask: Tensor | None = None, **more: Any) -> Tensor:
        torch.manual_seed(seed)
        return made.generate(ids, attention_mask=mask, **options, **more)

    assert len(drawn(1).unique(dim=0)) > 3
    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    mask = torch.tensor([[0, 0, 1]]).expand(6, -1)
    assert torch.equal(drawn(1, F.pad(ends, (2, 0)), mask)[:, 2:], drawn(1)), "padding is no prompt"
    assert len(drawn(1, posterior_seed=5).unique(dim=0)) == 1


def test_equal_prompts_are_sampled_under_thoughts_of_their_own() -> None:
    made, ids = talkative(), PROMPTS[:1].repeat(6, 1)
    options: dict[str, Any] = {"max_new_tokens": 9, "pad_token_id": 0}
    assert len(made.generate(ids, do_sample=True, top_k=1, **options).unique(dim=0)) > 3
    before = torch.get_rng_state()
    assert len(made.generate(ids, do_sample=False, **options).unique(dim=0)) == 1
    assert torch.equal(torch.get_rng_state(), before)


def test_inference_works_under_inference_mode() -> None:
    made, ids = model(), text()
    with torch.inference_mode():
        inside = infer(made, batch(text())).mu
        scores = [made.token_nll(batch(text()), estimator) for estimator in made.estimators]
    assert torch.equal(inside, infer(made, batch(ids)).mu)
    for estimator, score in zip(made.estimators, scores):
        assert torch.equal(score, made.token_nll(batch(ids), estimator))


@pytest.mark.parametrize("fields", [{}, VAE], ids=["", "VAE"])
def test_half_precision_weights_keep_single_precision_thoughts(fields: dict[str, Any]) -> None:
    made, data = model(**fields), batch(text())
    expected = made.token_nll(data).mean().item()
    made.bfloat16()
    assert infer(made, data).mu.dtype == torch.float32
    assert made.token_nll(data).mean().item() == pytest.approx(expected, rel=0.03)
    assert made.generate(data["input_ids"], max_new_tokens=3, do_sample=False, pad_token_id=0).shape == (2, 43)


def test_a_trace_shows_thoughts_and_how_they_were_found() -> None:
    made, ids = model(), text(rows=3)
    traces = made(ids, attention_mask=padded(ids), output_thoughts=True).thoughts
    assert [(t.thoughts[0].start, t.thoughts[0].end) for t in traces] == [(0, 40), (9, 40), (0, 25)]
    assert [thought.label for thought in traces[0].thoughts] == [f"layer {i}" for i in (0, 0, 1, 1, 2, 2)]
    assert {name: len(curve) for name, curve in traces[0].curves.items()} == {
        "elbo": 4,
        "nll": 4,
        "kl": 4,
        "kl_by_layer": 3,
    }
    z = torch.randn(3, 6, 16)
    given = made(ids, z=z, output_thoughts=True).thoughts
    assert torch.equal(torch.stack([thought.vector for thought in given[1].thoughts]), z[1])
    assert not given[1].curves
    assert made(ids, output_thoughts=True).z_given is False, "a trace puts nothing into the logits"
    encoded = model(**VAE)
    trace = encoded(ids, output_thoughts=True).thoughts[0]
    assert torch.equal(torch.stack([thought.vector for thought in trace.thoughts]), infer(encoded, batch(ids)).mu[0])
    assert [*trace.curves] == ["kl_by_layer"]


def test_trace_shows_the_text_from_early_layers() -> None:
    made, ids = model(tie_word_embeddings=False), text(rows=3)
    given = 5 * torch.randn(3, 6, 16, generator=torch.Generator().manual_seed(0))
    traces = made(ids, attention_mask=padded(ids), z=given, output_thoughts=True).thoughts
    *partial, last = traces[1].readings.items()
    blocks = ["no thoughts", *(f"the thoughts of block{end}" for end in (" 0", "s 0 to 1", "s 0 to 2"))]
    assert [name for name, _ in partial] == blocks
    assert last[0] == "predicted"
    row, z = ids[1:2, 9:], given[1:2]
    for count, (_, said) in enumerate(partial):
        kept = torch.cat((z[:, : 2 * count], torch.zeros_like(z[:, 2 * count :])), dim=1)
        spoken = made.generate(row[:, :1], z=kept, max_new_tokens=30, do_sample=False, pad_token_id=0)
        assert torch.equal(said[9:], spoken[0])
        assert torch.equal(said[:9], ids[1, :9])
    assert len({tuple(said.tolist()) for _, said in partial}) == 4, "thoughts that say nothing prove nothing"


def test_a_trace_takes_fast_steps_where_thoughts_are_inferred() -> None:
    made, ids = model(), text()
    assert [len(trace.curves["elbo"]) for trace in made.traces(batch(ids), fast_steps=7)] == [7, 7]
    with pytest.raises(InputError, match="fast_steps is 7, and nothing is to be inferred: remove it"):
        made(ids, fast_steps=7)
    with pytest.raises(InputError, match="fast_steps is 7, and nothing is to be inferred: remove it"):
        model(num_latents=0).traces(batch(ids), fast_steps=7)


# -------------------------------------------------------------------------------------------------------- cost and size


@pytest.mark.parametrize(
    ("layers", "latents", "fields", "parameters"),
    [
        (3, 24, {}, 38_368_768),
        (6, 24, {}, 51_005_440),
        (12, 24, {}, 76_278_784),
        (12, 0, {}, 63_689_728),
        (16, 0, {}, 76_342_272),
        (12, 24, {"inference": "amortised"}, 114_773_504),
    ],
)
def test_sizes_are_the_papers(layers: int, latents: int, fields: dict[str, Any], parameters: int) -> None:
    """38M, 51M, 76M; the blocks of Large without thoughts, the paper's AR-Retrained, and its VAE of 114M."""
    sizes = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": layers, "num_latents": latents}
    with torch.device("meta"):
        made = LTMForCausalLM(LTMConfig(vocab_size=50_257, **sizes, **fields))
    assert count_parameters(made)["total"] == parameters


@pytest.mark.parametrize("fields", [{}, {"shared_latents": True}, {"num_latents": 0}, {"fast_steps": 9}, VAE], ids=str)
def test_the_cost_of_training_is_what_pytorch_counts(fields: dict[str, Any]) -> None:
    made, data = model(**{"num_hidden_layers": 6, **fields}), batch(text(length=64))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        made.training_loss(data).loss.backward()
    # The head reads one position fewer, and the first block's queries of thoughts need no gradient in a fast step.
    assert made.training_flops(data) == pytest.approx(counter.get_total_flops(), rel=0.03)


@pytest.mark.parametrize(("size", "gigaflops"), [("small", 4.07), ("medium", 5.52), ("large", 32.2)])
def test_a_token_costs_two_thirds_of_what_the_paper_counts(size: str, gigaflops: float) -> None:
    """Table 1 counts T_fast + 1 whole steps, and attention between all of 1024 tokens."""
    recipe = get_recipe(f"latent_thought/table1-{size}")
    fields = {k: v for k, v in recipe.model.items() if k != "model_type"} | {"vocab_size": 50_257}
    with torch.device("meta"):
        made, whole = (LTMForCausalLM(LTMConfig(**fields | other)) for other in ({}, {"window_size": 1024}))
        data = {"input_ids": torch.zeros(1, 1024, dtype=torch.long)}
    paper = (fields["fast_steps"] + 1) * 3 * whole.forward_flops(data)
    assert paper / 1024 == pytest.approx(gigaflops * 1e9, rel=0.01)
    assert 0.6 < made.training_flops(data) / paper < 0.68


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_latents": 7}, r"ltm.num_latents is 7: set a multiple of num_hidden_layers \(3\)"),
        ({"num_latents": -3}, "ltm.num_latents is -3: "),
        ({"num_latents": 66}, "ltm.num_latents is 66: set at most max_position_embeddings"),
        ({"window_size": 65}, r"ltm.window_size is 65: set at most max_position_embeddings \(64\)"),
        ({"window_size": 0}, "ltm.window_size is 0: "),
        ({"fast_steps": 0}, "ltm.fast_steps is 0: "),
        ({"fast_learning_rate": -1.0}, "ltm.fast_learning_rate is -1.0: "),
        ({"langevin_step_size": float("nan")}, "ltm.langevin_step_size is nan: "),
        ({"encoder_layers": 0}, "ltm.encoder_layers is 0: "),
        (VAE | {"num_latents": 0}, "ltm.num_latents is 0: an encoder needs thoughts to infer"),
        (VAE | {"slow_grad": "accumulate"}, "is 'accumulate': an encoder infers without steps, so set 'final'"),
        ({"inference": "vae"}, "ltm.inference is 'vae': "),
        ({"fast_schedule": "step"}, "ltm.fast_schedule is 'step': "),
        ({"fast_optimizer": "sgd"}, "ltm.fast_optimizer is 'sgd': "),
        ({"noise": "none"}, "ltm.noise is 'none': "),
        ({"slow_grad": "all"}, "ltm.slow_grad is 'all': "),
        ({"intermediate_size": 0}, "ltm.intermediate_size is 0: "),
        ({"hidden_size": 6}, "ltm.num_attention_heads is 2: rotary positions need heads of even width"),
    ],
)
def test_settings_that_cannot_be_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        config(**fields)


def test_arguments_that_cannot_be_are_refused() -> None:
    made, ids = model(), text()
    with pytest.raises(InputError, match=r"z.shape is \[2, 5, 16\]: pass \[2, 6, 16\]"):
        made(ids, z=torch.zeros(2, 5, 16))
    with pytest.raises(InputError, match=r"z.shape is \[1, 6, 16\]: pass \[2, 6, 16\]"):
        made.generate(ids, z=torch.zeros(1, 6, 16), max_new_tokens=2)
    with pytest.raises(InputError, match="this model has no thoughts"):
        model(num_latents=0)(ids, z=torch.zeros(2, 6, 16))
    with pytest.raises(InputError, match="num_latents is 0: this model has no thoughts to infer"):
        infer(model(num_latents=0), batch(ids))
    with pytest.raises(InputError, match="fast_steps is 0"):
        infer(made, batch(ids), fast_steps=0)
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        for call in (infer, LTMForCausalLM.training_loss):
            with pytest.raises(InputError, match=f"fast_learning_rate is {rate}"):
                call(made, batch(ids), fast_learning_rate=rate)
    with pytest.raises(InputError, match=r"fast_learning_rate is 0.1: langevin inference does not use it"):
        infer(made, batch(ids), inference="langevin", fast_learning_rate=0.1)
    with pytest.raises(InputError, match="inference is 'vae': this model has variational, langevin"):
        infer(made, batch(ids), inference="vae")
    with pytest.raises(InputError, match=r"attention_mask\[1\] is 0 throughout"):
        made(ids, attention_mask=torch.tensor([[1] * 40, [0] * 40]), use_cache=False)
    with pytest.raises(InputError, match="attention_mask is"):
        made(ids, attention_mask=torch.ones(2, 3))
    with pytest.raises(InputError, match="pass only input_ids"):
        made(inputs_embeds=torch.zeros(2, 3, 16))
    with pytest.raises(InputError, match="input_ids is None"):
        made.generate()
    for name, value in (("infer_every", 1.5), ("posterior_seed", "a"), ("posterior_seed", 1.5)):
        with pytest.raises(InputError, match=f"{name} is {value!r}: it should be a valid int"):
            made.generate(ids, **{name: value})
    with pytest.raises(InputError, match="infer_every is 0"):
        made.generate(ids, infer_every=0)
    with pytest.raises(InputError, match="fast_steps is 2: amortised inference does not use it"):
        model(**VAE).generate(ids, fast_steps=2)
    with pytest.raises(InputError, match="infer_every is 2, and num_latents is 0: nothing is to be inferred"):
        model(num_latents=0).generate(ids, infer_every=2)
    with pytest.raises(InputError, match="fast_steps is 2, and z is set: nothing is to be inferred"):
        made.generate(ids, z=torch.zeros(2, 6, 16), fast_steps=2)
    kept = made.generate(ids, max_new_tokens=2, do_sample=False, pad_token_id=0, return_dict_in_generate=True)
    with pytest.raises(InputError, match="posterior_seed is 1, and the cache has its thoughts"):
        made.generate(kept.sequences, past_key_values=kept.past_key_values, posterior_seed=1)
    all_padding = torch.tensor([[1] * 40, [0] * 40])
    for call in (made.generate, made.token_nll, made.training_loss, infer):
        arguments = (
            {"inputs": ids, "attention_mask": all_padding}
            if call == made.generate
            else {"batch": batch(ids, all_padding)}
        )
        with pytest.raises(InputError, match=r"attention_mask\[1\] is 0 throughout"):
            call(**arguments | ({"model": made} if call is infer else {}))


def test_an_elbo_that_is_not_finite_is_named_by_step_and_row() -> None:
    made, ids = model(tie_word_embeddings=False), text().clamp(min=1)
    ids[1, 20] = 0
    with torch.no_grad():
        made.embed.weight[0] = float("inf")
    with pytest.raises(FloatingPointError, match="the ELBO of row 1 is nan at fast step 0"):
        made.training_loss(batch(ids))
    made = model(tie_word_embeddings=False, **VAE)
    with torch.no_grad():
        made.embed.weight[0] = float("inf")
    with pytest.raises(FloatingPointError, match=r"the ELBO of row 1 is nan: lower optimizer.learning_rate"):
        made.training_loss(batch(ids))
    with pytest.raises(FloatingPointError, match=r"at fast step 1: lower model.fast_learning_rate"):
        infer(model(), batch(ids), fast_learning_rate=1e20)


# -------------------------------------------------------------------------------------------------------------- recipes


def test_a_tiny_model_and_its_baseline_differ_in_thoughts_alone() -> None:
    tiny, plain = get_recipe("latent_thought/tiny"), get_recipe("latent_thought/tiny-ar")
    assert tiny.baseline == plain.name
    assert plain.model["num_latents"] == 0
    assert plain.model.items() <= (tiny.model | {"num_latents": 0}).items()
    for part in ("data", "layout", "optimizer", "train", "evaluation"):
        assert getattr(tiny, part) == getattr(plain, part)


def test_the_defaults_are_algorithm_1_and_recipes_rely_on_none() -> None:
    config = LTMConfig()
    assert {name: getattr(config, name) for name in ALGORITHM_1} == ALGORITHM_1
    thinking = [recipe for recipe in recipes().values() if recipe.model.get("num_latents")]
    assert {recipe.name.partition("/")[0] for recipe in thinking} >= {"latent_thought", "topics", "text-thoughts"}
    for recipe in thinking:
        assert ALGORITHM_1.keys() <= recipe.model.keys(), recipe.name
    for recipe in recipes().values():
        if recipe.model["model_type"] == "ltm" and not recipe.model["num_latents"]:
            assert not ALGORITHM_1.keys() & recipe.model.keys(), recipe.name


def test_every_recipe_is_a_model_that_can_be() -> None:
    made = [recipe for recipe in recipes().values() if recipe.name.startswith("latent_thought/")]
    assert len(made) > 50
    for recipe in made:
        fields = {k: v for k, v in recipe.model.items() if k != "model_type"}
        LTMConfig(**fields)
        length = recipe.layout.sequence_length
        assert length is not None
        assert length <= recipe.model["max_position_embeddings"]
        assert recipe.evaluation.stride == length - 1, "blocks do not overlap"


def test_only_fast_steps_give_gradients_to_weights_and_streams() -> None:
    made, ids = model(), text()
    x, packed = made.read(ids)
    weights = list(made.parameters())
    posterior, gradients = fit(made, x, packed, ids[:, 1:], inference_config(made), seed=3, weights=weights)
    made.config.slow_grad = "accumulate"
    steps = plain_of(made).infer(ids, seed=3)
    torch.testing.assert_close(posterior.mu, steps.mu, **CLOSE)
    expected = torch.autograd.grad(torch.stack(steps.nll).sum(), weights)
    names = [name for name, _ in made.named_parameters()]
    for name, one, other in zip(names, gradients[1:], expected):
        if not name.startswith(("embed", "blocks.0.attention")):  # these work through the stream too
            torch.testing.assert_close(one / other.abs().max(), other / other.abs().max(), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"slow_grad": "accumulate"}, VAE | {"encoder_layers": 3}], ids=str)
def test_sharded_weights_stay_gathered_through_the_fast_steps(
    fields: dict[str, Any], corpus: Path, tmp_path: Path
) -> None:
    recipe = shrink(get_recipe("latent_thought/tiny"), corpus)
    recipe = dataclasses.replace(recipe, model=recipe.model | fields)
    sharded = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, parallel="fsdp"))
    train(recipe, tmp_path / "one", show=False)
    finish(launch(sharded, tmp_path / "two", processes=2), tmp_path / "two")
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


# ------------------------------------------------------------------------------------------------------------- compile


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # the compiler's own, while it loads
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("slow_grad", ["final", "accumulate"])
def test_compiled_fast_step_is_one_graph_and_equals_eager(
    slow_grad: str,
) -> None:
    torch._dynamo.reset()
    calls: list[bool] = []

    def counting(graph: Any, inputs: list[Any]) -> Any:
        def run(*given: Any) -> Any:
            weights = [x for x in given if isinstance(x, torch.nn.Parameter)]
            calls.append(any(weight.requires_grad for weight in weights))
            return graph(*given)

        return run

    compiled, eager = (model(slow_grad=slow_grad, fast_steps=4).train() for _ in range(2))
    step = TrainStep(compiled)
    step.compile(backend=counting)
    for seed, length in enumerate((40, 33)):
        values = []
        for each in (step, TrainStep(eager)):
            torch.manual_seed(seed)
            values.append(each(batch(text(3, length)), {}).loss)
            values[-1].backward()
        torch.testing.assert_close(*values, **EXACT)
    for (name, p), q in zip(compiled.named_parameters(), eager.parameters()):
        assert float((p.grad - q.grad).abs().max()) < 1e-6 * max(1.0, float(q.grad.abs().max())), name
    assert calls == [*([slow_grad == "accumulate"] * 4), True] * 2
    assert all(p.requires_grad for p in compiled.parameters())
