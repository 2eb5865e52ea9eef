"""The influence of a thought: the nats that tokens of its text lose if only this thought is replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mentalese.errors import require
from mentalese.models.base import LanguageModel
from mentalese.models.config import require_own_thoughts
from mentalese.models.generation import seeded
from mentalese.models.hf import LatentThoughtModel
from mentalese.nn.controls import OneThought
from mentalese.values import temporarily

ROWS = 16
"""Copies of a text that are read at once."""


def influence(
    model: LanguageModel, input_ids: Tensor, values: Sequence[Tensor] | None = None, **options: object
) -> Tensor:
    """Return what each token loses if one thought is replaced, in nats [thoughts, length]; NaN without a score.

    Batches contain the text once for each thought. Thoughts are in the order in which the model makes them: sentence
    vectors, latents, predicted concepts, thought vectors, turns; of Thoughtbubbles the decisions about each token.

    Args:
        model: a model with thoughts of its own.
        input_ids: [length].
        values: the thoughts of another text, see `thoughts_of`, which take the place of those with the same number;
            `None`: the constant of the control `removed`. There are only as many as both texts have.
        options: the model's `forward_options`.

    Raises:
        InputError: the model has no thoughts of its own, or none that could have these values.
    """
    made = OneThought(-1)
    own = _read(model, input_ids, made, options)
    count = made.count if values is None else min(made.count, len(values))
    remedy = "its thoughts are decisions about each token, which another text does not have"
    require(values is None or bool(made.made), "model", model.config.model_type, remedy)
    require(values is None or len(values) > 0, "the other text", "a text without thoughts", "use one that has some")
    for mine, other in zip(made.made.values(), values or ()):
        remedy = "its thoughts are as long as their text, use another text of that length"
        require(mine.shape == other.shape, "the shape of a thought of the other text", [*other.shape], remedy)
    changed = []
    for first in range(0, count, ROWS):
        numbers = torch.arange(first, min(first + ROWS, count), device=input_ids.device)
        others = None if values is None else torch.cat([values[number] for number in numbers.tolist()])
        changed.append(_read(model, input_ids, OneThought(numbers, values=others), options) - own)
    return torch.cat(changed) if changed else own[:0]


def thoughts_of(model: LanguageModel, input_ids: Tensor, **options: object) -> list[Tensor]:
    """Return the thoughts [1, ..] that a model makes of a text [length], in their order."""
    made = OneThought(-1)
    _read(model, input_ids, made, options)
    return [*made.made.values()]


def _read(model: LanguageModel, input_ids: Tensor, one: OneThought, options: Mapping[str, object]) -> Tensor:
    """Return the surprisal [rows, length] of the text in each row of the control."""
    require_own_thoughts(model.config, "model", model.config.model_type)
    assert isinstance(model, LatentThoughtModel)
    copies = input_ids.expand(len(one.number) if isinstance(one.number, Tensor) else 1, -1)
    with torch.no_grad(), seeded(model, 0), temporarily(model.config, thought_control=one):
        return model.surprisal_of_copies(copies, **options)
