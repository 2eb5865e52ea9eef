"""The working memory (section 2.2): keys and values of sentence vectors, and which vectors each sentence reads.

Letters in shapes: n sentences, R streams of a step, m vectors that are read, M at most, C cross-attention layers, d.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mentalese.families.thought_gestalt.config import ThoughtGestaltConfig
from mentalese.families.thought_gestalt.streams import Layout
from mentalese.models.hf import ThoughtCache
from mentalese.nn.linear import is_plain
from mentalese.nn.ragged import first_rows, within


def memory_positions(size: int, hidden_size: int, scale: str, device: torch.device | None = None) -> Tensor:
    """PE [size, d] by rank, 0 the oldest: alternating sines and cosines, base 10,000; of length 1 or sqrt(d / 2)."""
    pairs = torch.arange(0, hidden_size, 2, device=device, dtype=torch.float32)
    angles = torch.arange(size, device=device)[:, None] * torch.exp(pairs * (-math.log(10_000) / hidden_size))
    table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
    return table * math.sqrt(2 / hidden_size) if scale == "unit" else table


class MemoryMap:
    """Keys and values of a sentence vector in some cross-attention layers: K = W_K (s + PE[rank]), V = W_V s (2.2).

    W_K s and V are computed once per vector, W_K PE is a table. Without such layers (`memory` = `prefix`) vectors stay
    as they are. Created in each call, because it contains the current weights of all its layers, concatenated.
    """

    def __init__(self, maps: Sequence[nn.Module], positions: Tensor, dtype: torch.dtype) -> None:
        self.maps, self.positions, self.dtype = maps, positions, dtype  # positions: [M, C, d], or [M, d]
        self.weight: Tensor | None = None
        if maps and all(map(is_plain, maps)):
            linear: list[Any] = list(maps)
            self.weight = _autocast(torch.cat([m.weight for m in linear]))
            self.bias = _autocast(torch.cat([m.bias for m in linear]))
            keys = torch.cat([m.weight[: m.in_features] for m in linear])
            self.positions = F.linear(positions.to(keys.dtype), keys).unflatten(-1, (len(maps), -1))
        elif maps:  # adapted or quantised: W_K PE is what the map says of PE, without its bias
            none = torch.zeros_like(positions)
            self.positions = (self.entries(positions) - self.entries(none))[..., 0, :]

    def entries(self, vectors: Tensor) -> Tensor:
        """[.., d] to [.., C, 2, d]: the memory's entry for a vector."""
        if self.weight is not None:
            whole = F.linear(vectors.to(self.weight.dtype), self.weight, self.bias)
        elif self.maps:
            whole = torch.cat([m(vectors.to(self.dtype)) for m in self.maps], dim=-1)
        else:
            return vectors
        return whole.unflatten(-1, (-1, 2, vectors.shape[-1]))

    def keys_and_values(self, entries: Tensor, ranks: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
        """[n, m, C, 2, d] to C pairs of [n, m, d]; `ranks` [n or 1, m] on the CPU, below 0 in unused slots."""
        keys, values = entries.unbind(-2)
        return tuple(zip((keys + self.at(ranks)).unbind(-2), values.unbind(-2)))

    def at(self, ranks: Tensor) -> Tensor:
        """The positions of `ranks`; one row of them if all rows are the same."""
        if bool((ranks[:, 0] == 0).all()):
            return self.positions[: ranks.shape[1]]
        return self.positions[ranks.clamp(min=0).to(self.positions.device)]


class Memory:
    """The latest vectors of each stream, oldest first, as the recurrent layers read them.

    Streams are in the order of a `Layout`. `count` [R], on the CPU, is the number of slots in use, the last ones of m;
    vectors older than the gradient window are read from `constant`, which sends no gradient into them. A cache keeps,
    by row of the batch: `memory`, `count`, `seed`, and `ready`, keys and values as they are read. The window does not
    cut gradients through a cache.

    Args:
        make_map: makes the map of the layers that read; only called if it is needed, which it is not between two tokens
            of a sentence.
    """

    def __init__(
        self,
        config: ThoughtGestaltConfig,
        make_map: Callable[[], MemoryMap],
        layout: Layout,
        cache: ThoughtCache | None,
        like: Tensor,
    ) -> None:
        self.size, self._make_map = config.memory_size, make_map
        window = config.memory_gradient_window
        self.window = self.size if window is None else min(window, self.size)
        self.streams = layout.streams[: layout.counts[0] if layout.counts else 0]
        self.ready: Tensor | None = None
        if cache is not None and "count" in cache.state:
            self.count = cache.state["count"].cpu()[self.streams]
            self.seed, self.live, self.ready = (self._of_streams(cache.state[n]) for n in ("seed", "memory", "ready"))
        else:
            self.count = torch.zeros(len(self.streams), dtype=torch.long)
            self.seed = like.new_zeros(len(self.streams), config.hidden_size)  # the latest vector of each stream
            # One unused slot: every weight takes part in every step, whatever sentences a rank has (FSDP2).
            self.live = self.map.entries(like.new_zeros(len(self.streams), 1, config.hidden_size))
        self.constant = self.live

    @cached_property
    def map(self) -> MemoryMap:
        return self._make_map()

    def _of_streams(self, rows: Tensor) -> Tensor:
        everything = torch.equal(self.streams, torch.arange(len(rows)))
        return rows if everything else rows[self.streams.to(rows.device)]

    def entries(self, streams: int) -> Tensor:
        """[streams, m, ..], the memory of the first streams."""
        entries = first_rows(self.live, streams)
        if self.window < entries.shape[1] and self.window > 0:
            old = first_rows(self.constant, streams)[:, : -self.window]
            entries = torch.cat((old, entries[:, -self.window :]), dim=1)
        return entries

    def ranks(self, streams: int) -> Tensor:
        """[streams, m], rank of each slot in its stream's memory, 0 the oldest vector; negative if unused."""
        slots = self.live.shape[1]
        return torch.arange(slots) - (slots - self.count[:streams, None])

    def keys_and_values(self, streams: int) -> tuple[tuple[Tensor, Tensor], ...]:
        """C pairs of [streams, m, d]."""
        if self.ready is not None:
            keys, values = first_rows(self.ready, streams).unbind(-2)
            return tuple(zip(keys.unbind(-2), values.unbind(-2)))
        return self.map.keys_and_values(self.entries(streams), self.ranks(streams))

    def write(self, vectors: Tensor, ended: Tensor, keep: bool) -> None:
        """Appends the vectors [R, d] of the first R streams, with their graph; the oldest falls out of a full memory.

        Args:
            ended: bool [R] on the CPU, which of the sentences have ended and so have a vector.
            keep: whether the other streams are needed after this; if not, only those of these R that have ended are.
        """
        vectors = vectors if self.window else vectors.detach()
        writes = F.pad(ended, (0, len(self.count) - len(ended))) if keep else ended
        self.count = (self.count[: len(writes)] + writes).clamp(max=self.size)
        everywhere = not keep or bool(writes.all())
        mask = writes.to(vectors.device)

        def put(old: Tensor, new: Tensor) -> Tensor:
            """`old` [streams, ..], replaced by `new` [R, ..] for streams that write."""
            if everywhere:
                return new
            spread = torch.cat((new, torch.zeros_like(old[len(new) :])))
            return torch.where(mask.view(-1, *[1] * (old.ndim - 1)), spread, old)

        def append(old: Tensor, new: Tensor) -> Tensor:
            moved = torch.cat((first_rows(old, len(new)), new[:, None]), dim=1)
            return put(pad_slots(old, 1), moved)[:, -max(1, int(self.count.max())) :]

        self.seed = put(self.seed, vectors.to(self.seed.dtype))
        self.live = append(self.live, self.map.entries(vectors))
        self.ready = None
        if 0 < self.window < self.size:
            self.constant = append(self.constant, self.map.entries(vectors.detach()))

    def save(self, cache: ThoughtCache, layout: Layout) -> None:
        """Writes everything to the cache; rows without a sentence in `layout` stay as they are."""
        if self.ready is not None or not len(self.streams):
            return  # nothing was written
        states = {"memory": self.live, "count": self.count, "seed": self.seed, "ready": self._ready()}
        streams = self.streams.to(self.live.device)
        for name, new in states.items():
            old = cache.state.get(name)
            if old is None:
                old = new.new_zeros(len(layout.last_position), *new.shape[1:], device=streams.device)
            if name in ("memory", "ready"):
                slots = max(new.shape[1], old.shape[1])
                new, old = (pad_slots(x, slots - x.shape[1]) for x in (new, old))
            cache.state[name] = old.index_copy(0, streams, new.to(old.device))

    def _ready(self) -> Tensor:
        """[R, m, C, 2, d], or the entries as they are if no layer has keys of its own."""
        if not self.map.maps:
            return self.live
        keys, values = zip(*self.keys_and_values(len(self.streams)))
        return torch.stack((torch.stack(keys, dim=2), torch.stack(values, dim=2)), dim=3)


def windows(layout: Layout, size: int, steps: range) -> tuple[Tensor, Tensor]:
    """Which vectors each sentence of these steps of fresh streams reads: the latest `size` of its stream.

    Returns:
        read, age: [n, m], the sentences whose vectors are read, oldest first, and how many sentences ago each was;
        0 in the unused slots, which come last.
    """
    counts, starts = torch.tensor(layout.counts)[steps.start : steps.stop], torch.tensor(layout.sentences)
    step = torch.arange(steps.start, steps.stop).repeat_interleave(counts)[:, None]
    place = within(counts)[:, None]  # the same stream has the same place in each step
    slot = torch.arange(max(1, min(steps.stop - 1, size)))
    age = (step.clamp(max=size) - slot).clamp(min=0)
    return torch.where(age > 0, starts[step - age] + place, 0), age


def readable(used: Tensor) -> Tensor:
    """The slots [n, m] that attention may read: the used ones, or all if none is used, whose result is discarded."""
    return used | ~used.any(dim=1, keepdim=True)


def _autocast(weight: Tensor) -> Tensor:
    """In autocast's dtype if it is on, which only caches casts of parameters and would cast this in each use."""
    device = weight.device.type
    return weight.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else weight


def pad_slots(entries: Tensor, slots: int) -> Tensor:
    """[R, m, ..] with `slots` unused slots before the others."""
    return torch.cat((torch.zeros_like(entries[:, :1]).expand(-1, slots, *entries.shape[2:]), entries), dim=1)
