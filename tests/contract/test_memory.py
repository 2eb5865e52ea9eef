"""What `train --dry-run` says of memory, held against what small models keep."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from mentalese import get_recipe
from mentalese.commands.dry_run import estimate, kept_bytes
from mentalese.testing.runs import shrink
from mentalese.training.loop import Run
from mentalese.training.memory import LiveBytes
from mentalese.training.parallel import Parallel
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
    recipe = shrink(get_recipe(name), corpus)
    measured = []
    for checkpointing in (False, True):
        asked = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, checkpointing=checkpointing))
        run = Run(asked, corpus.with_name("run"), Parallel(0, 1, 0, torch.device("cpu")), show=False)
        measured.append(kept_bytes(run))
        assert 0.4 < measured[-1] / estimate(asked)["memory"]["activations"] < 2
    assert measured[1] < 0.5 * measured[0]
