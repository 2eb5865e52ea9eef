"""Rows of the papers' tables beside the recipes that are called after them; `test_tables_FAMILY.py` states the rows.

Numbers are texts as a paper prints them ("38M", "2.5B", "4e-5"): a recipe's number is right if it rounds to the text.
A field that the paper does not state stays `None`, and is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mentalese import Recipe, families, get_recipe
from mentalese.commands.cost import table_cost
from mentalese.models.base import count_parameters
from mentalese.training.step import learning_rate

GPT2_VOCABULARY = 50_257
DOCUMENT_TOKENS = {"openwebtext": 1107}
"""Tokens of the mean document: nanoGPT counts 4,434,897 GPT-2 tokens in 4,007 documents of OpenWebText."""
_UNITS = {"K": 3, "M": 6, "G": 9, "B": 9, "T": 12}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a paper's table.

    Attributes:
        recipe: name of the recipe.
        cited: where the paper states these numbers, e.g. "Table 1; A.2".
        parameters: of the whole model.
        vocabulary: tokens of the paper's tokenizer, for recipes whose `model` does not state them.
        fields: further fields of the model's config that a run's tokenizer fills in, such as ids of markers.
        tokens: what the run trains on.
        steps: of the optimiser; "13.4K" and the like if the paper's follow from tokens and batch.
        tokens_per_step: of the whole batch.
        epochs: length of a run that is counted in epochs.
        peak_rate, middle_rate, last_rate: learning rate after the warm-up, half-way and at the end of the schedule.
        schedule_tokens: of the whole schedule, if the run is the beginning of a longer one.
        warmup: steps of the linear warm-up.
        train_text: `data.train_tokens`, the tokens of the corpus that are read.
        evaluation: tokens of one validation, from its documents and `DOCUMENT_TOKENS`.
        test: the same of the test after training.
        context: tokens that are read at once when text is scored.
        joined: documents are joined when text is scored.
    """

    recipe: str
    cited: str
    parameters: str | None = None
    vocabulary: int = GPT2_VOCABULARY
    fields: tuple[tuple[str, Any], ...] = ()
    tokens: str | None = None
    steps: str | None = None
    tokens_per_step: int | None = None
    epochs: float | None = None
    peak_rate: str | None = None
    middle_rate: str | None = None
    last_rate: str | None = None
    warmup: int | None = None
    schedule_tokens: str | None = None
    train_text: str | None = None
    evaluation: str | None = None
    test: str | None = None
    context: int | None = None
    joined: bool | None = None


def check(row: Row) -> None:
    """Compare a row with its recipe; fails at the first number that differs."""
    recipe = get_recipe(row.recipe)
    _same(row, "parameters", row.parameters and parameters(recipe, row.vocabulary, **dict(row.fields)))
    _same(row, "tokens", row.tokens and tokens(recipe))
    _same(row, "steps", row.steps and steps(recipe))
    _same(row, "schedule_tokens", row.schedule_tokens and tokens(recipe) / recipe.train.schedule_share)
    _same(row, "tokens_per_step", row.tokens_per_step and tokens_per_step(recipe))
    _same(row, "epochs", recipe.train.epochs)
    _same(row, "train_text", recipe.data.train_tokens)
    _check_rates(row, recipe)
    for name, documents in (
        ("evaluation", recipe.evaluation.max_documents),
        ("test", recipe.evaluation.max_test_documents),
    ):
        if getattr(row, name) is not None:
            assert documents is not None, f"{row.recipe}: {name} is not bounded ({row.cited})"
            _same(row, name, documents * _document(recipe))
    window = row.context and recipe.layout.window(recipe.evaluation)
    _same(row, "context", window[0] if window else None)
    _same(row, "joined", recipe.evaluation.joined)


def check_costs(family: str) -> None:
    """Compare what a family's README says of the cost of its recipes; fails if it says nothing."""
    text = Path(families.__file__).with_name(family).joinpath("README.md").read_text()
    stated = re.findall(r"\| `([\w-]+)` \| ([\d.e+]+ FLOPs, [\d.,]+ h[^|]*) \|", text)
    assert stated, f"the README of {family} states no cost"
    for name, cost in stated:
        assert str(table_cost(get_recipe(f"{family}/{name}"))) == cost, f"{family}/{name}"


def names(rows: Iterable[Row]) -> Any:
    """The decorator that runs a test once for each row."""
    return pytest.mark.parametrize("row", [pytest.param(row, id=row.recipe) for row in rows])


def parameters(recipe: Recipe, vocabulary: int, **fields: Any) -> int:
    """Weights of a recipe's model, counted without memory for them."""
    values = {"vocab_size": vocabulary} | fields | recipe.model
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device("meta"):
        return count_parameters(AutoModelForCausalLM.from_config(config))["total"]


def tokens_per_step(recipe: Recipe) -> int:
    """Tokens of a batch of full rows, as papers count them: a row of n tokens has n, not its n - 1 targets."""
    length, rows = recipe.layout.sequence_length, getattr(recipe.layout, "batch_size", None)
    assert length is not None, f"{recipe.name}: layout {recipe.layout.kind!r} has rows of any length"
    assert rows is not None, f"{recipe.name}: layout {recipe.layout.kind!r} has batches of any size"
    return length * rows


def steps(recipe: Recipe) -> int:
    """Optimiser steps of a run of full rows."""
    if recipe.train.steps is not None:
        return recipe.train.steps
    assert recipe.train.tokens is not None, f"{recipe.name}: the number of steps follows from its text"
    return -(-recipe.train.tokens // tokens_per_step(recipe))


def tokens(recipe: Recipe) -> int:
    """Tokens that a run trains on."""
    return recipe.train.tokens or steps(recipe) * tokens_per_step(recipe)


def matches(number: float, printed: str) -> bool:
    """Test if a number rounds to what a paper prints; at a half either neighbour is right."""
    digits = printed.replace(",", "")
    exponent = _UNITS.get(digits[-1], 0)
    expected = Decimal(digits[:-1] if exponent else digits).scaleb(exponent)
    place = Decimal(digits[:-1] if exponent else digits).as_tuple().exponent
    assert isinstance(place, int), printed
    unit = Decimal(1).scaleb(place + exponent)
    if not expected:
        return number == 0
    value = Decimal(repr(number)) / unit
    return any(value.quantize(Decimal(1), rule) * unit == expected for rule in (ROUND_HALF_UP, ROUND_HALF_EVEN))


def _check_rates(row: Row, recipe: Recipe) -> None:
    config, stated = recipe.optimizer, (row.peak_rate, row.middle_rate, row.last_rate, row.warmup)
    if all(value is None for value in stated):
        return
    # Runs counted in epochs have schedules of the same shape, whatever their number of steps.
    count = 100_000 if recipe.train.epochs is not None else round(steps(recipe) / recipe.train.schedule_share)
    warm = int(config.warmup) if config.warmup >= 1 else round(config.warmup * count)
    _same(row, "warmup", row.warmup and warm)
    for name, step in (("peak_rate", warm), ("middle_rate", (warm + count) // 2), ("last_rate", count)):
        _same(row, name, getattr(row, name) and learning_rate(config, step, count, step / count))


def _document(recipe: Recipe) -> int:
    found = [count for corpus, count in DOCUMENT_TOKENS.items() if corpus in recipe.data.source]
    assert found, f"{recipe.name}: state the tokens of a document of {recipe.data.source} in DOCUMENT_TOKENS"
    return found[0]


def _same(row: Row, name: str, number: Any) -> None:
    """Fails if the row states a number that the recipe does not have."""
    stated = getattr(row, name)
    if stated is None:
        return
    right = number is not None and matches(number, stated) if isinstance(stated, str) else number == stated
    assert right, f"{row.recipe}: {name} is {number}, and {row.cited} has {stated}"
