"""Agreement of training and evaluation about the tokens that a token may see."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from mentalese.data.batch import Batch
from mentalese.data.tokenizers import special_token_ids
from mentalese.models.base import LanguageModel
from mentalese.nn.loss import IGNORED
from mentalese.testing.cases import TOLERANCE, Case, tested

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
    for name, value in tested(causal.recipe).get("steady", {}).items():
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
