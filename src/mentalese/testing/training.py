"""Promises of training for every model: resuming changes nothing, and two processes equal one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mentalese.recipe import Recipe
from mentalese.testing.runs import (
    assert_same,
    checkpoint,
    checkpoint_steps,
    finish,
    launch,
    losses,
    power_cut,
    weights,
)
from mentalese.training.loop import train


def test_an_interrupted_run_resumes_bit_for_bit(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(recipe, tmp_path / "whole", show=False)
    with power_cut(monkeypatch, at_step=5):
        train(recipe, tmp_path / "cut", show=False)
    resumed = train(recipe, tmp_path / "cut", resume=True, show=False)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert_same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert checkpoint_steps(tmp_path / "cut") == checkpoint_steps(tmp_path / "whole") == [4, 6]
    assert_same(checkpoint(tmp_path / "cut"), checkpoint(tmp_path / "whole"))
    assert resumed["test"] == whole["test"]
    assert resumed["flops"] == whole["flops"]


def test_two_processes_equal_one(recipe: Recipe, tmp_path: Path) -> None:
    model = recipe.model | {name: 0.0 for name in recipe.model if name.endswith(("dropout", "pdrop"))}
    phases = tuple(
        dataclasses.replace(p, model={k: v for k, v in p.model.items() if not k.endswith("dropout")})
        for p in recipe.phases
    )
    recipe = dataclasses.replace(recipe, model=model, phases=phases)
    one = train(recipe, tmp_path / "one", show=False)
    two = finish(launch(recipe, tmp_path / "two", processes=2), tmp_path / "two")
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    assert two["test"]["nll"] == pytest.approx(one["test"]["nll"], rel=1e-4)
    assert two["tokens"] == one["tokens"]
    if recipe.layout.kind in ("packed", "marked"):  # rows of other lengths are padded to their rank's longest
        assert two["flops"] == one["flops"]
