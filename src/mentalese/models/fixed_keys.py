"""Keys and values in tensors whose size stays: a layer has the same shapes at every token, and is compiled once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from mentalese.errors import InputError


class FixedKeys(DynamicLayer):
    """A layer's keys and values with room for later columns, which are written into the same tensors.

    Args:
        keys, values: [B, n, m, d / n], what there is so far.
        columns: how many there is room for, those included.

    Attributes:
        at: int64 [L], the columns that the layer writes next, see `write_at`. It is a tensor, since a compiler would
            take a number for a part of the program.
        written: columns that hold something.
    """

    def __init__(self, keys: Tensor, values: Tensor, columns: int) -> None:
        super().__init__()
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self.at = torch.arange(0, device=keys.device)
        self.written = keys.shape[2]
        self.keys, self.values = (_with_room(held, columns) for held in (keys, values))

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """All columns, those that hold nothing included: the mask leaves them out."""
        self.keys.index_copy_(2, self.at, keys)
        self.values.index_copy_(2, self.at, values)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.written

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """In place: a captured graph reads these addresses."""
        for held in (self.keys, self.values):
            held.copy_(held.index_select(0, beam_idx.to(held.device)))

    def reset(self) -> None:
        """Empty, in the same tensors."""
        self.keys.zero_()
        self.values.zero_()
        self.written = 0


def _with_room(held: Tensor, columns: int) -> Tensor:
    room = held.new_zeros(*held.shape[:2], columns, held.shape[3])
    room[:, :, : held.shape[2]] = held
    torch._dynamo.mark_static_address(room)  # or a CUDA graph would not write to it
    return room


def fixed_columns(layers: Sequence[Any], needed: int) -> int | None:
    """Columns that the layers of a cache have room for; `None` if they grow.

    Raises:
        InputError: fewer than are needed.
    """
    if not layers or not isinstance(layers[0], FixedKeys):
        return None
    columns = layers[0].keys.shape[2]
    if needed > columns:
        raise InputError(
            f"past_key_values has a fixed size of {columns} columns: with input_ids there are {needed}, so generate "
            "fewer tokens, or use a cache that grows"
        )
    return columns


def write_at(layers: Sequence[FixedKeys], start: int, end: int) -> None:
    """What layers are told next goes into the columns from `start` to `end`."""
    at = torch.arange(start, end, device=layers[0].keys.device)
    for layer in layers:
        layer.at, layer.written = at, end
