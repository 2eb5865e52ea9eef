"""Half precision trains as float32 does: under autocast, and with weights in bfloat16."""

from __future__ import annotations

import fnmatch
import statistics
from pathlib import Path

import pytest
import torch

from mentalese.training.step import build_optimizer
from support import by_hand, tiny_recipes

pytestmark = pytest.mark.slow

STEPS = 6
FLOAT32 = {"thoughtbubbles/tiny": "fork_decisions.*.threshold", "conceptlm/tiny": "codebook.*"}
"""What stays float32 in a model whose weights are halved, by patterns of names: what is compared with, or searched for
the nearest, by values that differ little."""


@pytest.mark.parametrize("name", tiny_recipes())
def test_half_precision_trains_to_within_a_percent_of_float32(name: str, corpus: Path) -> None:
    exact = losses(name, corpus)
    assert statistics.fmean(exact[-2:]) < exact[0]
    for kind in ("autocast", "weights"):
        found = losses(name, corpus, kind)
        assert found != exact
        assert statistics.fmean(found[-2:]) == pytest.approx(statistics.fmean(exact[-2:]), rel=0.01), kind


def losses(name: str, corpus: Path, kind: str = "") -> list[float]:
    """Of each step; `kind`: what is halved."""
    run = by_hand(name, corpus, steps=STEPS, precision="bf16" if kind == "autocast" else "fp32")
    if kind == "weights":
        run.model.to(torch.bfloat16)
        run.optimizer = build_optimizer(run.model.parameters(), run.recipe.optimizer)
        kept = {key for key, value in run.model.state_dict().items() if value.dtype == torch.float32}
        assert kept == set(fnmatch.filter(run.model.state_dict(), FLOAT32.get(name, "none")))
    for _ in range(STEPS):
        run.one_step()
    return [float(loss) for loss in run.buffer.losses]
