"""Which thought matters: what the scores of a text lose if only one of its thoughts is replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mentalese.errors import require
from mentalese.models.generation import seeded
from mentalese.nn.controls import OneThought
from mentalese.values import temporarily

ROWS = 16
"""Copies of a text that are read at once."""


def influence(model: Any, input_ids: Tensor, values: Sequence[Tensor] | None = None) -> Tensor:
    """Return what each token loses if one thought is replaced, in nats [thoughts, length]; NaN without a score.

    A batch contains the text once for each thought. Thoughts are in the order in which the model makes them: sentence
    vectors, latents, predicted concepts, thought vectors, turns; of Thoughtbubbles the decisions about each token.

    Args:
        model: a model with thoughts of its own.
        input_ids: [length].
        values: the thoughts of another text, see `thoughts_of`, which take the place of those with the same number;
            `None`: the constant of the control `removed`. There are only as many as both texts have.

    Raises:
        InputError: the model has no thoughts of its own, or they are as long as their text, and `values` has another.
    """
    config = model.config
    has_thoughts = getattr(config, "has_thoughts", False)
    require(has_thoughts, "model", config.model_type, "it has no thoughts, use a model of a family that thinks")
    remedy = "its thoughts are already replaced, use a model that was trained without it"
    require(config.thought_control is None, "thought_control", config.thought_control, remedy)
    own, made = _read(model, input_ids, OneThought(-1))
    count = made.count if values is None else min(made.count, len(values))
    for mine, other in zip(made.made.values(), values or ()):
        remedy = "its thoughts are as long as their text, use another text of that length"
        require(mine.shape == other.shape, "the shape of a thought of the other text", [*other.shape], remedy)
    changed = []
    for first in range(0, count, ROWS):
        numbers = torch.arange(first, min(first + ROWS, count), device=input_ids.device)
        others = None if values is None else torch.cat([values[number] for number in numbers.tolist()])
        changed.append(_read(model, input_ids, OneThought(numbers, values=others))[0] - own)
    return torch.cat(changed) if changed else own[:0]


def thoughts_of(model: Any, input_ids: Tensor) -> list[Tensor]:
    """Return the thoughts [1, ..] that a model makes of a text [length], in their order."""
    return [*_read(model, input_ids, OneThought(-1))[1].made.values()]


def _read(model: Any, input_ids: Tensor, one: OneThought) -> tuple[Tensor, OneThought]:
    """Return the surprisal [rows, length] of the text in each row of the control."""
    copies = input_ids.expand(len(one.number) if isinstance(one.number, Tensor) else 1, -1)
    with torch.no_grad(), seeded(model, 0), temporarily(model.config, thought_control=one):
        return model.surprisal_of_copies(copies), one
