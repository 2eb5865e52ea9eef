"""The cost of a run from its recipe: FLOPs of training and evaluation, before any text is read.

Rows of joined documents are all full, so the cost of one row and their number are the run's. Runs of other rows (of
sentences or questions) depend on their text; `mentalese train NAME --dry-run` reads it and counts them.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from mentalese.data.batch import Batch
from mentalese.data.config import EvaluationConfig
from mentalese.data.layouts import Packed
from mentalese.families.baselines.recipes import OPENWEBTEXT
from mentalese.models.base import LanguageModel, as_model
from mentalese.models.build import config_class
from mentalese.recipe import Recipe

SPEED = 4e14
"""FLOPs per second behind the printed hours: 40% of an H100's peak in bfloat16."""
VOCABULARIES = {
    "hub:openai-community/gpt2": 50_257,
    "hub:EleutherAI/pythia-70m": 50_277,
    "hub:meta-llama/Llama-3.2-1B": 128_256,
    "hub:meta-llama/Llama-3.1-8B": 128_256,
    "hub:meta-llama/Meta-Llama-3-8B": 128_256,
}
CORPORA = {OPENWEBTEXT: (8_013_769, 1128)}
"""Documents, and tokens of the mean one: nanoGPT counts 9.04B GPT-2 tokens in OpenWebText."""


@dataclass(frozen=True)
class Cost:
    """FLOPs of a run.

    Attributes:
        training: FLOPs of all steps.
        evaluation: FLOPs of all validations and the test; `None`: the size of the text is unknown.
    """

    training: float
    evaluation: float | None

    @property
    def total(self) -> float:
        """Training, and evaluation as far as it is known."""
        return self.training + (self.evaluation or 0)

    def __str__(self) -> str:
        hours, more = self.total / SPEED / 3600, "" if self.evaluation is not None else " + evaluation"
        return f"{self.total:.2e} FLOPs, {hours:,.{1 if hours < 100 else 0}f} h{more}"


def table_cost(recipe: Recipe) -> Cost | None:
    """Return the cost of a run; `None` if it depends on the text."""
    layout, vocabulary = recipe.layout, _vocabulary(recipe)
    if type(layout) is not Packed or vocabulary is None:
        return None
    row = Row.of(json.dumps(recipe.model, sort_keys=True), vocabulary, layout.sequence_length)
    targets = layout.batch_size * (layout.sequence_length - 1)
    if (steps := _steps(recipe, targets)) is None:
        return None
    return Cost(steps * layout.batch_size * row.training, _evaluation(recipe, layout, row, steps))


@dataclass(frozen=True)
class Row:
    """FLOPs of training on a full row, and of scoring one."""

    training: int
    scoring: int

    @staticmethod
    @cache
    def of(model: str, vocabulary: int, length: int) -> Row:
        """Return a row of this length for a recipe's `model` section, as JSON."""
        empty = _empty(json.loads(model), vocabulary)
        ids = torch.zeros(1, length, dtype=torch.long)
        batch: Batch = {"input_ids": ids, "labels": ids}
        return Row(empty.training_flops(batch), empty.scoring_flops(batch))


def _empty(fields: dict[str, Any], vocabulary: int) -> LanguageModel:
    """Return a model without memory for its weights."""
    values = {"vocab_size": vocabulary} | fields
    config = config_class(values.pop("model_type"))(**values)
    with torch.device("meta"):
        return as_model(AutoModelForCausalLM.from_config(config, trust_remote_code=False))


def _vocabulary(recipe: Recipe) -> int | None:
    tokenizer = recipe.data.tokenizer
    if tokenizer.startswith("bpe:"):
        return int(tokenizer.removeprefix("bpe:"))
    return VOCABULARIES.get(tokenizer)


def _steps(recipe: Recipe, targets: int) -> int | None:
    """Count steps of `targets` tokens, without early stopping and without the ends of documents."""
    train, train_tokens = recipe.train, recipe.data.train_tokens
    if train.steps is not None:
        return train.steps
    tokens = train.tokens
    if train.epochs is not None and train_tokens is not None:
        tokens = round(train.epochs * train_tokens)
    return None if tokens is None else math.ceil(tokens / targets)


def _evaluation(recipe: Recipe, layout: Packed, row: Row, steps: int) -> float | None:
    if recipe.data.source not in CORPORA:
        return None
    documents, tokens = CORPORA[recipe.data.source]
    held_out = recipe.data.held_out
    each = int((held_out if held_out >= 1 else held_out * documents) / 2)
    every, epochs = recipe.train.eval_every, math.ceil(recipe.train.epochs or 1)
    validations = math.ceil(steps / every) if every is not None else epochs
    length, stride = layout.window(recipe.evaluation)

    def rows(evaluation: EvaluationConfig) -> float:
        count = evaluation.documents(each)
        if evaluation.joined:
            return count * tokens / stride
        return count * (1 + max(0, math.ceil((tokens + 1 - length) / stride)))

    scored = validations * rows(recipe.evaluation) + rows(recipe.evaluation.of_test())
    return scored * row.scoring * length / layout.sequence_length
