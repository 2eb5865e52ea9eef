"""The cases of the contract tests: small versions of recipes, an untrained model of each, and a small text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from mentalese.data.batch import Batch, to_device
from mentalese.data.store import prepare
from mentalese.errors import InputError
from mentalese.models.build import build_model
from mentalese.models.hf import LatentThoughtModel
from mentalese.recipe import Recipe
from mentalese.registry import Tested, families, get_recipe
from mentalese.testing.runs import DEVICE, shrink
from mentalese.training.plan import Plan

TOLERANCE: dict[str, Any] = {"atol": 2e-5, "rtol": 2e-5}
ROUGH: dict[str, Any] = {"atol": 1e-3, "rtol": 1e-3}  # after an inner optimisation
TESTED = {name: ways for family in families().values() for name, ways in family.tested.items()}
MODES = tuple(name for name in TESTED if not name.endswith("/tiny"))
"""Other ways through a family's code than its `tiny` recipe takes."""
PROMPTS = [
    "The first",
    "She had a son. He was old and lived in",
    "A father. His",
    "Who is it? They went to the town. There",
]


def ways_of(recipe: Recipe) -> Tested:
    """Return the ways of the tests with a recipe, by its family."""
    return TESTED.get(recipe.name, {})


@dataclass
class Case:
    """A recipe, an untrained model of it in eval mode, its tokenizer, and the plan of its batches."""

    recipe: Recipe
    model: Any
    tokenizer: Any
    plan: Plan

    def batch(self, step: int = 0) -> Batch:
        return to_device(self.plan.batch(step), DEVICE)

    def logits(self, batch: Batch) -> torch.Tensor:
        return self.model(batch["input_ids"], attention_mask=batch.get("attention_mask"), use_cache=False).logits

    def prompts(self, texts: list[str]) -> Batch:
        return to_device(self.recipe.layout.encode_prompts(texts, self.tokenizer, self.recipe.data), DEVICE)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of the module that imports it runs on every recipe of the module's `RECIPES`."""
    for name in {"case", "recipe"} & set(metafunc.fixturenames):
        recipes = getattr(metafunc.module, "RECIPES", None)
        if not recipes:
            raise InputError(
                f"{metafunc.module.__file__} sets no RECIPES: name the recipes to test, e.g. "
                "RECIPES = ['my_family/tiny']"
            )
        metafunc.parametrize(name, recipes, indirect=True)


@pytest.fixture(scope="session")
def contract_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Store and tokenizers that the tests prepare never touch the user's cache, and nothing is fetched."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MENTALESE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patched.setenv("TOKENIZERS_PARALLELISM", "false")
        yield


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `write_corpus`."""
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def write_corpus(folder: Path) -> Path:
    """120 short generated documents as jsonl, and beside them 120 `questions.jsonl`, the same in every run."""
    from mentalese.data.generated import arithmetic
    from mentalese.data.sources import open_source

    path = folder / "families.jsonl"
    documents = open_source("builtin:families").documents("train")
    texts = [next(documents).text for _ in range(120)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    records = [document.segments for document in arithmetic()[:400] if document.segments]
    short = [[part.strip() for part in record] for record in records if len(record[0]) <= 120][:120]
    rows = [{"question": row[0], "steps": row[1:-1], "answer": row[-1].removeprefix("### ")} for row in short]
    path.with_name("questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def enlarged(model: Any) -> float:
    """Return the factor for weights of a standard deviation of 0.06.

    Smaller ones repeat one token and do not distinguish caches; larger ones distinguish rounding errors.
    """
    return 0.06 / (getattr(model.config, "initializer_range", None) or 0.02)


@pytest.fixture
def case(request: pytest.FixtureRequest, corpus: Path, contract_cache: None) -> Case:
    recipe = shrink(get_recipe(request.param), corpus)
    store, tokenizer = prepare(recipe.data, recipe.layout, show=False)
    model: Any = build_model(recipe.model, tokenizer, seed=0).to(DEVICE).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(enlarged(model))
    plan = Plan(store.splits["train"], recipe, tokenizer)
    return Case(recipe, model, tokenizer, plan)


@pytest.fixture
def causal(case: Case) -> Case:
    """Return the case in its causal form, with thresholds from a training step."""
    if not case.model.causal:
        pytest.skip("it reads in both directions: a later token changes what it says of an earlier one")
    for name, value in ways_of(case.recipe).get("causal", {}).items():
        with torch.no_grad():
            case.model.train().training_loss(case.batch())
            case.model.after_step()
        setattr(case.model.eval().config, name, value)
    return case


@pytest.fixture
def family(case: Case) -> Case:
    """Return the case of a family's model; skip models of transformers' own class."""
    if not isinstance(case.model, LatentThoughtModel):
        pytest.skip("another project's model")
    return case


@pytest.fixture
def recipe(request: pytest.FixtureRequest, corpus: Path, contract_cache: None) -> Recipe:
    """Return the small version of a recipe, for training with checkpoints."""
    return shrink(get_recipe(request.param), corpus, checkpoint_every=2)
