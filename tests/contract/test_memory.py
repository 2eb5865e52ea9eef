"""What `train --dry-run` says of memory, held against what small models keep."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mentalese.commands.dry_run import estimate, kept_bytes
from mentalese.testing.runs import by_hand
from mentalese.training.memory import LiveBytes
from support import tiny_recipes


def test_live_bytes_are_those_that_something_needs() -> None:
    known = torch.zeros(10)
    with LiveBytes([known]) as tensors:
        kept = known + 1
        view = (kept * 2).view(5, 2)
        assert (tensors.live, tensors.peak) == (80, 80)
        del view
        assert (tensors.live, tensors.peak) == (40, 80)
        known.add_(1)
        assert tensors.live == 40


@pytest.mark.parametrize("name", tiny_recipes())
def test_a_dry_run_estimates_what_is_kept_and_checkpointing_keeps_less(name: str, corpus: Path) -> None:
    measured = []
    for checkpointing in (False, True):
        run = by_hand(name, corpus, checkpointing=checkpointing)
        measured.append(kept_bytes(run))
        assert 0.4 < measured[-1] / estimate(run.recipe)["memory"]["activations"] < 2
    assert measured[1] < 0.5 * measured[0]
