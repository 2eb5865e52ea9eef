"""Tiny versions of every `tiny` recipe, for tests that run on all of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from mentalese import Recipe, TrainConfig, recipes


def tiny_recipes() -> list[str]:
    """Every family's `tiny` recipe, found by discovery."""
    return [name for name in recipes() if name.endswith("/tiny")]


def shrink(recipe: Recipe, corpus: Path, *, steps: int = 6, **train: object) -> Recipe:
    """The recipe on the small corpus, a few hundred tokens a step, for a few steps."""
    data = dataclasses.replace(
        recipe.data,
        source=f"file:{corpus}",
        tokenizer="bpe:512",
        batch_size=4,
        sequence_length=min(recipe.data.sequence_length, 64),
        tokens_per_batch=400,
        max_sentences=6,
    )
    config = TrainConfig(steps=steps, log_every=1, device="cpu", **train)  # type: ignore[arg-type]
    evaluation = dataclasses.replace(recipe.evaluation, max_documents=4, sample_tokens=8)
    return dataclasses.replace(recipe, data=data, train=config, evaluation=evaluation)
