"""Losses and their gradients: what they depend on, and what training by them reaches."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from mentalese.data.batch import Batch
from mentalese.data.tokenizers import special_token_ids
from mentalese.models.base import LanguageModel
from mentalese.models.build import build_model
from mentalese.nn.loss import IGNORED
from mentalese.testing.cases import TOLERANCE, Case, ways_of
from mentalese.testing.runs import DEVICE

SHARES = (1, 2, 4)
"""Ranks times micro-batches that share a batch of four rows: 4, 2 and 1 rows each."""


def test_a_training_loss_sees_no_later_token(causal: Case) -> None:
    """Check that the cost of a row's targets does not depend on later tokens, however few rows a micro-batch has."""
    _skip_bounds(causal)
    batch, model = causal.batch(), causal.model.train()
    targets = _targets(causal, batch)
    for changed_at in (targets[len(targets) // 2], targets[-1]):
        changed = batch | {"input_ids": _with_another_token(causal, batch, changed_at)}
        for share in SHARES:
            costs = [_cost(model, _first_row_until(part, changed_at), share) for part in (batch, changed)]
            torch.testing.assert_close(*costs, **TOLERANCE, msg=partial(_shared, share))
        if changed_at != targets[-1]:
            assert _cost(model, batch, 1) != _cost(model, changed, 1), "it changes nothing, which proves nothing"


def test_a_rows_training_loss_is_its_score_whatever_rows_it_is_trained_with(causal: Case) -> None:
    """Check that micro-batches and ranks add up to the whole batch, and that the training loss is the score."""
    _skip_bounds(causal)
    batch, model = causal.batch(), causal.model
    for name, value in ways_of(causal.recipe).get("steady", {}).items():
        setattr(model.config, name, value)
    weights = model.target_weights(batch)
    if weights is not None and not bool((weights[batch["labels"] != IGNORED] == 1).all()):
        pytest.skip("its targets have weights in training, and none in a score")
    row = _first_row_until(batch, batch["labels"].shape[1])
    scored = model.eval().token_nll(row).sum()
    for share in SHARES:
        cost = _cost(model.train(), row, share)
        torch.testing.assert_close(cost, scored, rtol=1e-4, atol=1e-3, msg=partial(_shared, share))


def _shared(share: int, text: str) -> str:
    return f"the batch in {share} shares: {text}"


def _skip_bounds(case: Case) -> None:
    if case.model.estimators[0].endswith("-bound"):
        pytest.skip("its thoughts are inferred from the whole text: it trains a bound, not a likelihood")


def _targets(case: Case, batch: Batch) -> list[int]:
    """Return the columns of the first row's targets that are text."""
    special = set(special_token_ids(case.tokenizer).values())
    row = zip(batch["input_ids"][0].tolist(), batch["labels"][0].tolist())
    return [column for column, (token, label) in enumerate(row) if label != IGNORED and token not in special][1:]


def _with_another_token(case: Case, batch: Batch, column: int) -> torch.Tensor:
    ids = batch["input_ids"].clone()
    taken = {*special_token_ids(case.tokenizer).values(), int(ids[0, column])}
    ids[0, column] = next(token for token in range(len(case.tokenizer)) if token not in taken)
    return ids


def _first_row_until(batch: Batch, column: int) -> Batch:
    """Return the batch with only the first row's targets before a column."""
    labels = torch.full_like(batch["labels"], IGNORED)
    labels[0, :column] = batch["labels"][0, :column]
    return batch | {"labels": labels}


@torch.no_grad()
def _cost(model: LanguageModel, batch: Batch, share: int) -> torch.Tensor:
    """Return the cost of all targets, in training mode, in the share of the batch that contains the first row."""
    torch.manual_seed(0)
    model.before_step(0)
    output = model.training_loss({name: rows[::share] for name, rows in batch.items()})
    # Other training objectives than the next token may look ahead: their targets are later tokens.
    ntp = next((output.metrics[name] for name in ("ntp", "nll") if name in output.metrics), output.loss)
    return ntp * output.weight


def test_a_small_batch_is_learnt_by_heart(case: Case) -> None:
    model: Any = build_model(case.recipe.model, case.tokenizer, seed=0).to(DEVICE).train()
    batch = case.batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=ways_of(case.recipe).get("learning_rate", 3e-3))
    torch.manual_seed(0)
    # Masks hide other words at each step: learning a row takes longer, and one loss is a weak measure. The limits leave
    # a margin: rounding differs from one processor to another, and with it the step at which a row is learnt.
    steps, share, averaged = (160, 0.35, 1) if model.causal else (250, 0.45, 20)
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
