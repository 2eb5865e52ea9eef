"""The cost of a run from its recipe: FLOPs of training and evaluation, before any text is read.

Rows of joined documents are all full, so the cost of one row and their number are the run's. Runs of other rows (of
sentences or questions) depend on their text; `mentalese train NAME --dry-run` reads it and counts them.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache

import torch
from transformers import AutoModelForCausalLM

from mentalese.data.batch import Batch
from mentalese.data.config import EvaluationConfig
from mentalese.data.layouts import Packed
from mentalese.families.baselines.recipes import OPENWEBTEXT
from mentalese.model_fields import config_class
from mentalese.models.base import as_model
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
    """FLOPs of all steps, and of all validations and the test; `None` if the size of the text is unknown."""

    training: float
    evaluation: float | None

    def __str__(self) -> str:
        total = self.training + (self.evaluation or 0)
        hours, more = total / SPEED / 3600, "" if self.evaluation is not None else " + evaluation"
        return f"{total:.2e} FLOPs, {hours:,.{1 if hours < 100 else 0}f} h{more}"


def table_cost(recipe: Recipe) -> Cost | None:
    """Return the cost of a run, without early stopping; `None` if it depends on the text."""
    layout, train, tokenizer = recipe.layout, recipe.train, recipe.data.tokenizer
    vocabulary = VOCABULARIES.get(tokenizer)
    if tokenizer.startswith("bpe:"):
        vocabulary = int(tokenizer.removeprefix("bpe:"))
    if type(layout) is not Packed or vocabulary is None:
        return None
    tokens = train.tokens
    if train.epochs is not None and train.epoch_documents is None and recipe.data.train_tokens is not None:
        tokens = round(train.epochs * recipe.data.train_tokens)
    steps = train.steps
    if steps is None and tokens is not None:
        steps = math.ceil(tokens / (layout.batch_size * (layout.sequence_length - 1)))
    if steps is None:
        return None
    model = json.dumps({"vocab_size": vocabulary} | recipe.model, sort_keys=True)
    training, scoring = _row_flops(model, layout.sequence_length)
    evaluation = None
    if recipe.data.source in CORPORA:
        evaluation = _scored_rows(recipe, layout, steps) * scoring
    return Cost(steps * layout.batch_size * training, evaluation)


@cache
def _row_flops(model: str, length: int) -> tuple[int, int]:
    """Return FLOPs of training on a full row and of scoring one, for a recipe's `model` section as JSON."""
    fields = json.loads(model)
    config = config_class(fields.pop("model_type"))(**fields)
    with torch.device("meta"):
        empty = as_model(AutoModelForCausalLM.from_config(config, trust_remote_code=False))
    ids = torch.zeros(1, length, dtype=torch.long)
    batch: Batch = {"input_ids": ids, "labels": ids}
    return empty.training_flops(batch), empty.scoring_flops(batch)


def _scored_rows(recipe: Recipe, layout: Packed, steps: int) -> float:
    """Return the rows of all validations and the test, in full training rows."""
    documents, tokens = CORPORA[recipe.data.source]
    held_out, every = recipe.data.held_out, recipe.train.eval_every
    each = int((held_out if held_out >= 1 else held_out * documents) / 2)
    validations = math.ceil(steps / every) if every is not None else math.ceil(recipe.train.epochs or 1)
    length, stride = layout.window(recipe.evaluation)

    def rows(evaluation: EvaluationConfig) -> float:
        count = evaluation.documents(each)
        if evaluation.joined:
            return count * tokens / stride
        return count * (1 + max(0, math.ceil((tokens + 1 - length) / stride)))

    scored = validations * rows(recipe.evaluation) + rows(recipe.evaluation.of_test())
    return scored * length / layout.sequence_length
