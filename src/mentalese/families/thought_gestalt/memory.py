"""The working memory (section 2.2): the latest vectors of each stream, and their keys and values.

Letters in shapes: n sentences of a step, m vectors to read, at most M, C cross-attention layers, d hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mentalese.families.thought_gestalt.config import ThoughtGestaltConfig
from mentalese.families.thought_gestalt.repeated import Use, in_autocast, uses
from mentalese.nn.linear import is_plain
from mentalese.nn.ragged import first_rows


def memory_positions(size: int, hidden_size: int, device: torch.device | None = None) -> Tensor:
    """Return PE [size, d] by rank, 0 the oldest: alternating sines and cosines, of length 1 (the release)."""
    pairs = torch.arange(0, hidden_size, 2, device=device, dtype=torch.float32)
    angles = torch.arange(size, device=device)[:, None] * torch.exp(pairs * (-math.log(10_000) / hidden_size))
    table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
    return table * math.sqrt(2 / hidden_size)


class MemoryMap:
    """The map of sentence vectors to keys and values of cross-attention: K = W_K (s + PE[rank]), V = W_V s (2.2).

    W_K s and V are computed once per vector, W_K PE is a table. Without such layers (`memory` = `prefix`) vectors
    are not mapped.
    """

    def __init__(self, maps: Sequence[nn.Module], positions: Tensor, dtype: torch.dtype) -> None:
        self.maps, self.positions, self.dtype = maps, positions, dtype  # positions: [M, C, d], or [M, d]
        self.weight: Tensor | None = None
        if maps and all(map(is_plain, maps)):
            linear: list[Any] = list(maps)
            self.weight = in_autocast(torch.cat([m.weight for m in linear]))
            self.bias = in_autocast(torch.cat([m.bias for m in linear]))
            keys = torch.cat([m.weight[: m.in_features] for m in linear])
            self.positions = F.linear(positions.to(keys.dtype), keys).unflatten(-1, (len(maps), -1))
        elif maps:  # adapted or quantised: W_K PE is the map's output for PE, without its bias
            none = torch.zeros_like(positions)
            self.positions = (self.entries(positions) - self.entries(none))[..., 0, :]

    def entries(self, vectors: Tensor) -> Tensor:
        """Return the memory's entries [.., C, 2, d] for vectors [.., d]."""
        if self.weight is not None:
            whole = F.linear(vectors.to(self.weight.dtype), self.weight, self.bias)
        elif self.maps:
            whole = torch.cat([m(vectors.to(self.dtype)) for m in self.maps], dim=-1)
        else:
            return vectors
        return whole.unflatten(-1, (-1, 2, vectors.shape[-1]))

    def uses(self, ranks: Tensor, sizes: list[int]) -> list[Use] | None:
        """Return uses of `entries`, flat and with positions, for vectors [N, d] whose `ranks` [N] do not change."""
        if self.weight is None:
            return None
        positions = torch.stack((self.positions, torch.zeros_like(self.positions)), dim=2).flatten(1)
        return uses(self.weight, in_autocast((self.bias + positions)[ranks]), sizes)

    def keys_and_values(self, entries: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
        """Return C pairs of [n, m, d] for entries [n, m, C, 2, d], by rank from the oldest."""
        keys, values = entries.unbind(-2)
        keys = keys + self.positions[: entries.shape[1]]
        return tuple(zip(keys.unbind(-2), values.unbind(-2)))


class Memory:
    """The latest vectors of each stream, the oldest first, as the recurrent layers of a step read them.

    All streams of a step have equally many vectors, and are the first streams of the previous step. Vectors older than
    the gradient window are read from `constant`, which sends no gradient into them.

    Attributes:
        seed: [n, d], the latest vector of each stream.
        entries: [n, m, C, 2, d]; at first one unused slot, so that every weight takes part in every step on every
            rank (FSDP2).
    """

    def __init__(self, config: ThoughtGestaltConfig, memory_map: MemoryMap, streams: int, like: Tensor) -> None:
        self.map, self.size, self.count = memory_map, config.memory_size, 0
        window = config.memory_gradient_window
        self.window = self.size if window is None else min(window, self.size)
        self.seed = like.new_zeros(streams, config.hidden_size)
        self.entries = self.constant = memory_map.entries(self.seed[:, None])
        self.uses: list[Use] | None = None

    def repeat(self, ranks: Tensor | None, sizes: list[int]) -> None:
        """Compute entries with positions by one map for all steps, if ranks do not change. For training."""
        if ranks is not None and self.window in (0, self.size) and self.map.maps:
            self.uses = self.map.uses(ranks, sizes)

    def read(self, streams: int) -> Tensor:
        """Return the entries [streams, m, ..] of the first streams."""
        entries = first_rows(self.entries, streams)
        if 0 < self.window < entries.shape[1]:
            old = first_rows(self.constant, streams)[:, : -self.window]
            entries = torch.cat((old, entries[:, -self.window :]), dim=1)
        return entries

    def keys_and_values(self, streams: int) -> tuple[tuple[Tensor, Tensor], ...]:
        """Return C pairs of [streams, m, d]."""
        if self.uses is None:
            return self.map.keys_and_values(self.read(streams))
        both = first_rows(self.entries, streams).flatten(2, 3).unbind(2)
        return tuple(zip(both[::2], both[1::2]))

    def write(self, vectors: Tensor) -> None:
        """Append the vectors [n, d] of the first n streams with their graph; a full memory drops its oldest vectors."""
        vectors = vectors if self.window else vectors.detach()
        self.seed = vectors.to(self.seed.dtype)
        new = self.map.entries(vectors) if self.uses is None else self.uses[self.count](vectors)
        self.entries = self._appended(self.entries, new)
        if 0 < self.window < self.size:
            self.constant = self._appended(self.constant, self.map.entries(vectors.detach()))
        self.count += 1

    def _appended(self, entries: Tensor, new: Tensor) -> Tensor:
        new = new.view(len(new), 1, *entries.shape[2:])
        if not self.count:
            return new
        current = first_rows(entries, len(new))
        return torch.cat((current[:, 1:] if self.count >= self.size else current, new), dim=1)
