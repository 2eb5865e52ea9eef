"""What `train --dry-run` says of memory, held against what small models keep."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
import torch

from mentalese import override
from mentalese.commands.dry_run import estimate, kept_bytes
from mentalese.recipe import Phase
from mentalese.training.memory import LiveBytes, limit_kernel_cache
from support import by_hand, quiet_run, tiny_recipes


def test_live_bytes_are_those_that_something_needs() -> None:
    known = torch.zeros(10)
    with LiveBytes([known]) as tensors:
        kept = known + 1
        view = (kept * 2).view(5, 2)
        assert tensors.live == 80
        del view
        assert tensors.live == 40
        known.add_(1)
        assert tensors.live == 40


def test_a_dry_run_counts_the_longest_rows_of_a_curriculum(corpus: Path) -> None:
    """The memory of the first, shortest rows would not be enough for the last ones."""
    short = override(
        by_hand("gpt2/tiny", corpus, steps=40).recipe, "layout.sequence_length=16", "data.train_tokens=1000"
    )
    longer = dataclasses.replace(short, phases=(Phase(start=1, clock="epochs", layout={"sequence_length": 64}),))
    long = dataclasses.replace(short, layout=dataclasses.replace(short.layout, sequence_length=64))
    estimated = [estimate(recipe).memory["activations"] for recipe in (short, longer, long)]
    assert estimated[0] < estimated[1] == estimated[2]
    kept = [kept_bytes(quiet_run(recipe, corpus.with_name("run"))) for recipe in (short, longer, long)]
    assert kept[0] < kept[1] == kept[2]


@pytest.mark.parametrize("name", tiny_recipes())
def test_dry_run_memory_estimate_falls_with_checkpointing(name: str, corpus: Path) -> None:
    measured = []
    for checkpointing in (False, True):
        run = by_hand(name, corpus, checkpointing=checkpointing)
        measured.append(kept_bytes(run))
        assert 0.4 < measured[-1] / estimate(run.recipe).memory["activations"] < 2
    assert measured[1] < 0.5 * measured[0]


def test_a_number_of_kernels_in_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.delenv(name, raising=False)
    for given, kept in ((None, "64"), ("7", "7")):
        if given is not None:
            monkeypatch.setenv(name, given)
        limit_kernel_cache()
        assert os.environ[name] == kept
