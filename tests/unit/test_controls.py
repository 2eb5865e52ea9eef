"""A control takes the content of thoughts away, keeps their cost, and is refused where there are none."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from mentalese import get_recipe
from mentalese.data.store import prepare
from mentalese.errors import InputError
from mentalese.models.build import build_model
from mentalese.nn.controls import CONTROLS, controlled
from mentalese.training.plan import Plan
from support import shrink

WITH_THOUGHTS = [
    "coconut/tiny", "coconut/tiny-coconut", "codi/tiny", "conceptlm/tiny", "conceptlm/tiny-context",
    "latent_thought/tiny", "latent_thought/tiny-vae", "looped/tiny", "thought_gestalt/tiny", "thoughtbubbles/tiny",
]  # fmt: skip
WITHOUT = [
    "coconut/tiny-pause", "conceptlm/tiny-mtp", "latent_thought/tiny-ar", "looped/tiny-once", "mdlm/tiny",
    "thoughtbubbles/tiny-regular",
]  # fmt: skip


def made(name: str, corpus: Path, control: str | None) -> tuple[Any, Any]:
    recipe = shrink(get_recipe(name), corpus)
    fields = {} if control is None else {"thought_control": control}
    recipe = dataclasses.replace(recipe, model=recipe.model | fields)
    store, tokenizer = prepare(recipe.data, recipe.layout, show=False)
    model = build_model(recipe.model, tokenizer, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(3)
    layouts = recipe.layouts() if recipe.layout.questions else [recipe.layout]
    recipe = dataclasses.replace(recipe, layout=layouts[-1], phases=())  # questions with all their latents
    return model, Plan(store.splits["train"], recipe, tokenizer).batch(0)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_THOUGHTS)
def test_controls_change_training_and_scores_but_not_cost(name: str, corpus: Path) -> None:
    losses, scores, costs = [], [], []
    for control in (None, *CONTROLS):
        model, batch = made(name, corpus, control)
        torch.manual_seed(0)
        losses.append(float(model.train().training_loss(batch).loss.detach()))
        torch.manual_seed(0)
        scores.append(float(model.eval().token_nll(batch).sum()))
        costs.append((model.training_flops(batch), sum(p.numel() for p in model.parameters())))
    assert len(set(costs)) == 1
    assert all(torch.tensor(values).isfinite().all() for values in (losses, scores))
    assert len({round(value, 4) for value in losses}) == len(losses), losses
    assert len({round(value, 2) for value in scores}) == len(scores), scores


@pytest.mark.slow
@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("name", WITH_THOUGHTS)
def test_every_weight_has_a_gradient_under_every_control(name: str, control: str, corpus: Path) -> None:
    """Processes that share a model wait for all gradients."""
    model, batch = made(name, corpus, None)
    model.train().training_loss(batch).loss.backward()
    own = {n for n, p in model.named_parameters() if p.grad is not None}
    model, batch = made(name, corpus, control)
    model.train().training_loss(batch).loss.backward()
    assert {n for n, p in model.named_parameters() if p.grad is not None} >= own


@pytest.mark.parametrize("name", WITHOUT)
def test_a_model_without_thoughts_refuses_a_control(name: str, corpus: Path) -> None:
    with pytest.raises(InputError, match=r"thought_control is 'swapped': a model with this config has no thoughts"):
        made(name, corpus, "swapped")


def test_what_each_control_makes_of_thoughts() -> None:
    thoughts = torch.arange(6.0).view(3, 2) + 1
    assert controlled(thoughts, None) is thoughts
    assert controlled(thoughts, "removed").tolist() == [[0, 0]] * 3
    assert controlled(thoughts, "removed", torch.tensor([7.0, 8.0])).tolist() == [[7, 8]] * 3
    assert controlled(thoughts, "swapped").tolist() == [[5, 6], [1, 2], [3, 4]]
    assert controlled(thoughts[:1], "swapped", 9.0).tolist() == [[9, 9]]  # no other row
    noisy = torch.stack([controlled(thoughts, "noisy") for _ in range(2000)]) - thoughts
    rms = float(thoughts.square().mean().sqrt())
    assert abs(float(noisy.std()) / rms - 1) < 0.05
    assert abs(float(noisy.mean())) < 0.1 * rms
