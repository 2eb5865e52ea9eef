"""Keys, values and named states that generation passes from token to token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicLayer

from mentalese.errors import require
from mentalese.models.transformers_seam import CACHE


class FixedKeys(DynamicLayer):
    """A layer's keys and values [B, n, m, d / n] with room for `columns` in all, written into the same tensors.

    Attributes:
        at: int64 [L], the columns that the layer writes next; a compiler would compile again for each number.
        written: number of columns that are not empty.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, keys: Tensor, values: Tensor, columns: int) -> None:
        super().__init__()
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self.at = torch.arange(0, device=keys.device)
        self.written = keys.shape[2]
        self.keys, self.values = (_with_room(states, columns) for states in (keys, values))

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Return all columns, including empty ones, which the mask excludes."""
        self.keys.index_copy_(2, self.at, key_states)
        self.values.index_copy_(2, self.at, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.written

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder rows in place: a captured graph reads these addresses."""
        for states in (self.keys, self.values):
            states.copy_(states.index_select(0, beam_idx.to(states.device)))

    def reset(self) -> None:
        """Empty the layer, in the same tensors."""
        self.keys.zero_()
        self.values.zero_()
        self.written = 0


def _with_room(held: Tensor, columns: int) -> Tensor:
    room = held.new_zeros(*held.shape[:2], columns, held.shape[3])
    room[:, :, : held.shape[2]] = held
    torch._dynamo.mark_static_address(room)  # otherwise a CUDA graph would not write to it
    return room


def fixed_columns(layers: Sequence[object], needed: int) -> int | None:
    """Return the columns that a cache's layers have room for, at least `needed`; `None` if they grow."""
    if not layers or not isinstance(layers[0], FixedKeys):
        return None
    columns = layers[0].keys.shape[2]
    require(needed <= columns, f"the length with {CACHE}", needed, f"it has room for {columns}, use a larger one")
    return columns


def write_at(layers: Sequence[FixedKeys], start: int, end: int) -> None:
    """Set the columns of the next update of the layers: from `start` to `end`."""
    at = torch.arange(start, end, device=layers[0].keys.device)
    for layer in layers:
        layer.at, layer.written = at, end


class ThoughtCache(Cache):
    """Keys and values by layer, and named states by row, which generation passes from token to token.

    `state[name]` is a tensor whose first dimension is the batch, so that beam search, repetition and selection of rows
    move keys, values and thoughts together. `seen_tokens` counts tokens of the *stream*; a model whose keys and values
    contain more (forks) or less (one sentence) than the stream keeps them in `state` and leaves the layers empty.
    `shared` has what all rows share, by name.
    `max_tokens` is the number of tokens that a cache of fixed size has room for, `None` if it grows; it is set before
    the first call, which determines the number of keys.
    """

    is_croppable = False
    is_compileable = False  # transformers would compile a whole call; `compile_parts` compiles its parts
    layers: list[Any]

    def __init__(self, num_hidden_layers: int = 0) -> None:
        super().__init__(layers=[DynamicLayer() for _ in range(num_hidden_layers)])
        self.state: dict[str, Tensor] = {}
        self.shared: dict[str, Any] = {}
        self.seen_tokens = 0
        self.max_tokens: int | None = None

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens read from the stream, left padding included, as `generate` counts them."""
        return self.seen_tokens

    @property
    def is_linear(self) -> list[bool]:
        """`False` for each layer, or once: transformers would else assume linear attention and read a text again."""
        return [False] * max(len(self.layers), 1)

    def advance(self, tokens: int) -> None:
        """End a call that read `tokens` more tokens; after the first one a fixed size gets its room."""
        self.seen_tokens += tokens
        if self.max_tokens is not None and not any(isinstance(layer, FixedKeys) for layer in self.layers):
            columns = self.max_tokens + max(self.layers[0].get_seq_length() - self.seen_tokens, 0)
            self.layers = [FixedKeys(layer.keys, layer.values, columns) for layer in self.layers]

    def check_room(self, tokens: int) -> None:
        """Raise `InputError` if a cache of fixed size has no room for `tokens` more."""
        length, most = self.seen_tokens + tokens, self.max_tokens
        fits = most is None or length <= most
        require(fits, f"the length with {CACHE}", length, f"it has room for {most}, use a larger one")

    def _move(self, select: Callable[[Tensor], Tensor]) -> None:
        self.state = {name: select(value) for name, value in self.state.items()}

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        super().reorder_cache(beam_idx)
        self._move(lambda value: value.index_select(0, beam_idx.to(value.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._move(lambda value: value.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._move(lambda value: value[indices.to(value.device)])

    def reset(self) -> None:
        super().reset()
        self.state, self.shared = {}, {}
        self.seen_tokens = 0


def check_cache_kind(model: nn.Module, kind: str | None, limit: str | None) -> None:
    """Raise `InputError` for a `cache_implementation` that a model lacks; `limit` is its `Limits.static_cache`."""
    kinds = (None, "dynamic", "static") if limit is None else (None, "dynamic")
    remedy = f"{type(model).__name__} has no such cache ({limit or 'it grows, or is static'}), so remove it"
    require(kind in kinds, "cache_implementation", kind, remedy)
