"""Shared by all tests: a small corpus, tiny versions of every `tiny` recipe, and no network."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from mentalese import Recipe, TrainConfig, recipes

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Stores and tokenizers that tests prepare never touch the user's cache."""
    os.environ["MENTALESE_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 short generated documents as jsonl, the same in every run."""
    from mentalese.data.sources import open_source

    path = tmp_path_factory.mktemp("corpus") / "families.jsonl"
    documents = open_source("builtin:families").documents("train")
    texts = [next(documents).text for _ in range(120)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real corpora beside the repository; the test is skipped where they are missing."""
    if not SHARED_DATA.is_dir():
        pytest.skip("needs the real corpora in ../shared/data")
    return SHARED_DATA


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
