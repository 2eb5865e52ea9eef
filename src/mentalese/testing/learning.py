"""The effect of training steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mentalese.models.build import build_model
from mentalese.nn.loss import IGNORED
from mentalese.testing.cases import Case, tested
from mentalese.testing.runs import DEVICE


def test_a_small_batch_is_learnt_by_heart(case: Case) -> None:
    model: Any = build_model(case.recipe.model, case.tokenizer, seed=0).to(DEVICE).train()
    batch = case.batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=tested(case.recipe).get("learning_rate", 3e-3))
    torch.manual_seed(0)
    # Masks hide other words at each step: learning a row takes longer, and one loss is a weak measure.
    steps, share, averaged = (80, 0.35, 1) if model.causal else (250, 0.45, 20)
    steps = tested(case.recipe).get("steps", steps)
    losses: list[float] = []
    while len(losses) < steps and not _is_learnt(losses, share, averaged):
        output = model.training_loss(batch)
        # Other objectives (quantisation) follow the next token's, and do not measure what was learnt.
        losses.append(output.metrics.get("ntp", output.loss).item())
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert _is_learnt(losses, share, averaged), losses


def _is_learnt(losses: list[float], share: float, averaged: int) -> bool:
    return len(losses) >= averaged and sum(losses[-averaged:]) / averaged < share * losses[0]


def test_every_parameter_gets_a_gradient(case: Case) -> None:
    case.model.training_loss(case.batch()).loss.backward()
    missing = [name for name, p in case.model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not missing


def test_an_unknown_training_setting_is_refused(case: Case) -> None:
    with pytest.raises((TypeError, ValueError), match="no_such_setting"):
        case.model.training_loss(case.batch(), no_such_setting=1.0)


def test_the_weight_of_a_loss_is_that_of_its_targets(case: Case) -> None:
    """Micro-batches and ranks are added by it: a wrong one trains another mean than the whole batch's."""
    batch = case.batch()
    first_row_out = batch | {"labels": batch["labels"].index_fill(0, torch.tensor([0]).to(DEVICE), IGNORED)}
    for part in (batch, first_row_out):
        weights = case.model.target_weights(part)
        weights = torch.ones_like(part["labels"]) if weights is None else weights
        expected = (weights * (part["labels"] != IGNORED))[:, 1:].sum()
        torch.testing.assert_close(case.model.training_loss(part).weight.float(), expected.float())
