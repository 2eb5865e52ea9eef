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
from mentalese.families.thought_gestalt.plan import Plan, Write
from mentalese.families.thought_gestalt.repeated import Part, in_autocast, parts
from mentalese.models.cache import ThoughtCache
from mentalese.nn.linear import is_plain
from mentalese.nn.ragged import first_rows


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
            self.weight = in_autocast(torch.cat([m.weight for m in linear]))
            self.bias = in_autocast(torch.cat([m.bias for m in linear]))
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

    def parts(self, ranks: Tensor, sizes: list[int]) -> list[Part] | None:
        """Parts of `entries`, flat and with positions, for vectors [N, d] whose `ranks` [N] do not change."""
        if self.weight is None:
            return None
        positions = torch.stack((self.positions, torch.zeros_like(self.positions)), dim=2).flatten(1)
        return parts(self.weight, in_autocast((self.bias + positions)[ranks]), sizes)

    def keys_and_values(self, entries: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
        """[n, m, C, 2, d], by rank from the oldest, to C pairs of [n, m, d]."""
        keys, values = entries.unbind(-2)
        keys = keys + self.positions[: entries.shape[1]]
        return tuple(zip(keys.unbind(-2), values.unbind(-2)))


class Memory:
    """The latest vectors of each stream, as the recurrent layers read them: the slot of a vector is its rank, 0 oldest.

    Streams are in the order of a `Layout`; how many slots of each are in use is the plan's. Vectors older than the
    gradient window are read from `constant`, which sends no gradient into them. A cache keeps, by row of the batch:
    `memory`, `count`, `seed`, and `ready`, keys and values as they are read. The window does not cut gradients through
    a cache.

    Args:
        make_map: makes the map of the layers that read; only called if it is needed, which it is not between two tokens
            of a sentence.
        count: [R] on the host, the vectors of each stream that the cache has; `None`: no cache is in use.
    """

    def __init__(
        self,
        config: ThoughtGestaltConfig,
        make_map: Callable[[], MemoryMap],
        plan: Plan,
        cache: ThoughtCache | None,
        count: Tensor | None,
        like: Tensor,
    ) -> None:
        self.size, self._make_map = config.memory_size, make_map
        window = config.memory_gradient_window
        self.window = self.size if window is None else min(window, self.size)
        self.ready: Tensor | None = None
        if cache is not None and "count" in cache.state:
            assert count is not None
            slots = max(1, int(count.max())) if len(count) else 1
            seed, live, ready = (cache.state[n] for n in ("seed", "memory", "ready"))
            if plan.streams is not None:
                seed, live, ready = (x[plan.streams] for x in (seed, live, ready))
            self.seed, self.live, self.ready = seed, live[:, :slots], ready[:, :slots]
        else:
            rows = len(plan.last_position) if plan.streams is None else len(plan.streams)
            self.seed = like.new_zeros(rows, config.hidden_size)  # the latest vector of each stream
            # One unused slot: every weight takes part in every step, whatever sentences a rank has (FSDP2).
            self.live = self.map.entries(like.new_zeros(rows, 1, config.hidden_size))
        self.constant = self.live
        self.parts: list[Part] | None = None

    def repeat(self, plan: Plan) -> None:
        """For training: the map is used once a step, and makes its entries with their positions if ranks stay."""
        sizes = [len(of.last) for of in plan.steps if of.write is not None]
        if plan.ranks is not None and self.window in (0, self.size) and self.map.maps and sizes:
            self.parts = self.map.parts(plan.ranks, sizes)

    @cached_property
    def map(self) -> MemoryMap:
        return self._make_map()

    def entries(self, streams: int, young: Tensor | None = None) -> Tensor:
        """[streams, m, ..], the memory of the first streams; see `StepPlan.young`."""
        entries = first_rows(self.live, streams)
        if young is not None:
            return torch.where(young.view(*young.shape, *[1] * (entries.ndim - 2)), entries, self.constant[:streams])
        if self.window < entries.shape[1] and self.window > 0:
            old = first_rows(self.constant, streams)[:, : -self.window]
            entries = torch.cat((old, entries[:, -self.window :]), dim=1)
        return entries

    def keys_and_values(self, streams: int, young: Tensor | None = None) -> tuple[tuple[Tensor, Tensor], ...]:
        """C pairs of [streams, m, d]; see `StepPlan.young`."""
        if self.ready is not None:
            keys, values = first_rows(self.ready, streams).unbind(-2)
            return tuple(zip(keys.unbind(-2), values.unbind(-2)))
        if self.parts is not None:
            both = first_rows(self.live, streams).flatten(2, 3).unbind(2)
            return tuple(zip(both[::2], both[1::2]))
        return self.map.keys_and_values(self.entries(streams, young))

    def write(self, vectors: Tensor, how: Write, step: int) -> None:
        """Appends the vectors [n, d] of the first n streams with their graph; a full memory loses its oldest ones."""
        vectors = vectors if self.window else vectors.detach()

        def append(old: Tensor, new: Tensor) -> Tensor:
            if how.source is None:
                kept = first_rows(old, len(new))
                kept = kept[:, how.dropped :] if how.dropped else kept
                return torch.cat((kept, new[:, None]), dim=1) if kept.shape[1] else new[:, None]
            everything = torch.cat((old.flatten(0, 1), new))
            return everything[how.source].unflatten(0, (-1, how.slots))

        seeds = vectors.to(self.seed.dtype)
        self.seed = seeds if how.seeds is None else torch.cat((self.seed, seeds))[how.seeds]
        entries = self.map.entries(vectors) if self.parts is None else self.parts[step](vectors)
        self.live = append(self.live, entries.view(len(vectors), *self.live.shape[2:]))
        self.ready = None
        if 0 < self.window < self.size:
            self.constant = append(self.constant, self.map.entries(vectors.detach()))

    def save(self, cache: ThoughtCache, plan: Plan) -> None:
        """Writes everything to the cache; rows without a sentence in the plan stay as they are."""
        if self.ready is not None or not len(self.seed):
            return  # nothing was written
        assert plan.count is not None
        states = {"memory": self.live, "count": plan.count, "seed": self.seed, "ready": self._ready()}
        for name, new in states.items():
            if name in ("memory", "ready"):
                new = torch.cat((new, new.new_zeros(len(new), self.size - new.shape[1], *new.shape[2:])), dim=1)
            if plan.streams is not None:
                old = cache.state.get(name)
                if old is None:
                    old = new.new_zeros(len(plan.last_position), *new.shape[1:])
                new = old.index_copy(0, plan.streams, new)
            cache.state[name] = new

    def _ready(self) -> Tensor:
        """[R, m, C, 2, d], or the entries as they are if no layer has keys of its own."""
        if not self.map.maps:
            return self.live
        keys, values = zip(*self.keys_and_values(len(self.live)))
        return torch.stack((torch.stack(keys, dim=2), torch.stack(values, dim=2)), dim=3)
