"""Streams and the fork operator: selection of streams and forks, and their positions (sections 2.3 and D).

Letters in shapes: B rows, N streams before and K after a fork, L tokens. Streams are at the front of a row, a token's
streams next to each other and its own stream rightmost; places after them are unused (`real`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mentalese.nn.loss import predictable_labels
from mentalese.nn.packing import PackedRows, filled, front, pack


@dataclass
class Streams:
    """Residual streams between two forks.

    Attributes:
        x: [B, N, d].
        scores: float32 [B, N], log cumulative scores; `None` while all are 0.
        token: [B, N], the token of a stream, counted from the first one of this call.
        own: bool [B, N], True for the original stream of a token.
        real: bool [B, N], the places in use; `None`: all.
        counts: [B, L], number of streams of each token.
        before: [B, 1], number of tokens of earlier calls.
        held: number of streams of each row on the host; `None` if unknown there.
    """

    x: Tensor
    scores: Tensor | None
    token: Tensor
    own: Tensor
    real: Tensor | None
    counts: Tensor
    before: Tensor
    held: list[int] | None = None

    def positions(self, rotation: str) -> Tensor:
        """Return positions [B, N]: i + 1 - p/q for the stream p places left of token i's original stream (Eq. 13).

        For q see `ThoughtbubblesConfig.rotation`; a token without forks is at i + 1.
        """
        counts = self.counts.gather(1, self.token)
        first = (self.counts.cumsum(1) - self.counts).gather(1, self.token)
        place = torch.arange(self.token.shape[1], device=self.token.device) - first
        if rotation == "streams":
            return self.before + self.token + (place + 1) / counts.clamp(min=1)
        return self.before + self.token + 1 - (counts - 1 - place) / (counts - 1).clamp(min=1)

    def renumbered(self, token: Tensor, length: int) -> Streams:
        """Return the streams whose number in `token` [B, N] is below `length`, as streams of `length` tokens."""
        keep = token < length
        if bool(keep.all()):
            index, real = torch.arange(keep.shape[1], device=keep.device).expand_as(keep), self.real
        else:
            index, real = pack(keep if self.real is None else keep & self.real)
        token = token.gather(1, index).clamp(max=length - 1)
        counts = self.counts.new_zeros(len(token), length)
        return replace(
            self,
            x=_rows(self.x, index),
            scores=None if self.scores is None else self.scores.gather(1, index),
            token=token,
            own=self.own.gather(1, index),
            real=real,
            counts=counts.scatter_add_(1, token, torch.ones_like(token) if real is None else real.long()),
        )

    def parts(self, tokens: int) -> Iterator[tuple[slice, slice, slice, Streams]]:
        """Yield rows, places and tokens of disjoint parts of at most this many tokens, and their streams."""
        count, length = self.counts.shape
        if length <= tokens:
            step, places = tokens // max(1, length), slice(0, self.token.shape[1])
            for first in range(0, count, step):
                yield self._part(slice(first, first + step), places, slice(0, length))
            return
        for row, ends in enumerate(self.counts.cumsum(1).tolist()):
            place = 0
            for start in range(0, length, tokens):
                stop = min(start + tokens, length)
                end = self.token.shape[1] if stop == length else ends[stop - 1]
                yield self._part(slice(row, row + 1), slice(place, end), slice(start, stop))
                place = end

    def _part(self, rows: slice, places: slice, tokens: slice) -> tuple[slice, slice, slice, Streams]:
        part = replace(
            self,
            x=self.x[rows, places],
            scores=None if self.scores is None else self.scores[rows, places],
            token=(self.token[rows, places] - tokens.start).clamp(0, tokens.stop - tokens.start - 1),
            own=self.own[rows, places],
            real=None if self.real is None else self.real[rows, places],
            counts=self.counts[rows, tokens],
            before=self.before[rows],
        )
        return rows, places, tokens, part

    def sum_by_token(self, values: Tensor) -> Tensor:
        """Sum `values` [B, N, ..] of real streams by token: [B, L, ..]."""
        if self.real is not None:
            values = values.masked_fill(~self.real.view(*self.real.shape, *[1] * (values.ndim - 2)), 0.0)
        index = self.token.view(*self.token.shape, *[1] * (values.ndim - 2)).expand_as(values)
        return values.new_zeros(len(values), self.counts.shape[1], *values.shape[2:]).scatter_add(1, index, values)

    def mixture_weights(self) -> Tensor:
        """Return log of p / sum of p over the streams of a token [B, N] (Eq. 11); -inf in unused places."""
        scores = torch.zeros_like(self.token, dtype=torch.float32) if self.scores is None else self.scores
        if self.real is not None:
            scores = scores.masked_fill(~self.real, -math.inf)
        weights = scores - self.log_sum_exp(scores).gather(1, self.token)
        # Sums of padding tokens are not finite.
        return weights if self.real is None else weights.masked_fill(~self.real, -math.inf)

    def log_sum_exp(self, scores: Tensor) -> Tensor:
        """Return the log-sum-exp [B, L, ..] of scores [B, N, ..] over the streams of each token."""
        index = self.token.view(*self.token.shape, *[1] * (scores.ndim - 2)).expand_as(scores)
        empty = scores.new_full((*self.counts.shape, *scores.shape[2:]), -math.inf)
        top = empty.scatter_reduce(1, index, scores.detach(), "amax").clamp(min=torch.finfo(scores.dtype).min)
        return top + self.sum_by_token((scores - top.gather(1, index)).exp()).log()


@dataclass
class Candidates:
    """The candidates of a forking layer: for every stream, its fork and then the stream itself.

    Attributes:
        scores: float32 [B, 2 N], log cumulative scores.
        merit: float32 [B, 2 N], the ranking of the selection; -inf in unused places.
        keep: bool [B, 2 N], the selected candidates: the streams after the fork, in order.
        token: [B, N], the streams' tokens, counted without padding.
    """

    layer: int
    scores: Tensor
    merit: Tensor
    keep: Tensor
    token: Tensor


@dataclass
class Encoding:
    """The streams of a batch after the last block, and the columns of its tokens.

    Attributes:
        streams: the streams of packed tokens.
        rows: the columns of tokens; L is `rows.width`.
        forks: [B, n] per forking layer, the streams of each token after it.
        attention: attention of the blocks after the last fork, see `StreamState`.
        candidates: candidates per forking layer, only for a trace.
    """

    streams: Streams
    rows: PackedRows
    forks: list[Tensor]
    attention: list[Tensor]
    candidates: list[Candidates]
    hidden_states: None = None

    def predictable(self, labels: Tensor) -> Tensor:
        """Return labels [B, L] without labels directly after padding, which are not predicted."""
        if self.rows.columns is None:
            return labels
        return predictable_labels(labels, self.rows.spread(self.rows.real))

    def keep(self, kept: Tensor) -> Streams:
        """Return the streams of the tokens in columns [m] or [B, m]; tokens are renumbered by these columns."""
        streams, width = self.streams, self.rows.width
        rows, device = len(streams.token), streams.token.device
        slots = torch.full((rows, width), kept.shape[-1], device=device)
        slots.scatter_(1, kept.expand(rows, -1), torch.arange(kept.shape[-1], device=device).expand(rows, -1))
        return streams.renumbered(slots.gather(1, self.columns(streams.token)), kept.shape[-1])

    def columns(self, token: Tensor) -> Tensor:
        """Return the columns of packed tokens [B, N]."""
        return token if self.rows.columns is None else self.rows.columns.gather(1, token)

    def genealogy(self, row: int, layers: int) -> dict[str, Tensor]:
        """Return the table `ThoughtTrace.streams` of a row in a model with `layers` blocks."""
        streams, parts, count = self.streams, [], 0
        parents = torch.empty(0, dtype=torch.long, device=streams.token.device)
        for chosen_from in self.candidates:
            real, keep = chosen_from.merit[row] > -math.inf, chosen_from.keep[row]
            place = torch.arange(len(keep), device=keep.device)
            part = {
                "layer": torch.full_like(place, chosen_from.layer),
                "token": chosen_from.token[row].repeat_interleave(2),
                "parent": F.pad(parents, (0, len(keep) // 2 - len(parents)), value=-1).repeat_interleave(2),
                "weight": chosen_from.scores[row].exp(),
                "kept": keep,
                "fork": place % 2 == 0,
            }
            parts.append({name: values[real] for name, values in part.items()})
            parents = (count + real.cumsum(0) - 1)[keep]
            count += int(real.sum())
        assert streams.scores is not None
        end = slice(len(parents))
        parts.append(
            {
                "layer": torch.full_like(parents, layers),
                "token": streams.token[row, end],
                "parent": parents,
                "weight": streams.scores[row, end].exp(),
                "kept": torch.ones_like(parents, dtype=torch.bool),
                "fork": torch.zeros_like(parents, dtype=torch.bool),
            }
        )
        table = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        if self.rows.columns is not None:
            table["token"] = self.rows.columns[row, table["token"]]
        return table


def fork(
    streams: Streams,
    log_decisions: Tensor,
    keep: Tensor,
    embedding: Tensor,
    size: int | None = None,
    held: list[int] | None = None,
) -> Streams:
    """Apply a selection: forks are left of their source and add `embedding` (Eq. 5, 6).

    Args:
        log_decisions: float32 [B, 2 N], log cumulative scores of the candidates, each stream's fork before itself.
        keep: bool [B, 2 N], the selected candidates.
        embedding: [d].
        size: K, if it is known on the host; `None`: the maximum over rows, which waits for a GPU.
        held: number of selected streams of each row, if it is known on the host.
    """
    if size is None:
        index, real = pack(keep)
    else:
        alike = held is not None and min(held) == size
        index, real = front(keep, size), None if alike else filled(keep, size)
    source, is_fork = index // 2, index % 2 == 0
    x = _Gather.apply(streams.x, index, keep) if torch.is_grad_enabled() else _rows(streams.x, source)
    token = streams.token.gather(1, source)
    counts = torch.zeros_like(streams.counts)
    counts.scatter_add_(1, token, torch.ones_like(token) if real is None else real.long())
    return replace(
        streams,
        x=x + torch.where(is_fork[..., None], embedding.to(x.dtype), torch.zeros_like(embedding, dtype=x.dtype)),
        scores=log_decisions.gather(1, index),
        token=token,
        own=streams.own.gather(1, source) & ~is_fork,
        real=real,
        counts=counts,
        held=held,
    )


class _Gather(torch.autograd.Function):
    """The function x[index // 2], whose gradient is a gather from at most two successors, not a scatter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, keep: Tensor) -> Tensor:
        ctx.save_for_backward(keep)
        return _rows(x, index // 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (keep,) = ctx.saved_tensors
        place = (keep.cumsum(1) - 1).clamp(min=0).unflatten(1, (-1, 2))
        keep = keep.unflatten(1, (-1, 2))[..., None]
        parts = [_rows(gradient, place[..., i]).masked_fill(~keep[:, :, i], 0.0) for i in (0, 1)]
        return parts[0] + parts[1], None, None


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Return the rows [B, K, d] of x [B, N, d] at index [B, K]."""
    start = torch.arange(len(x), device=x.device)[:, None] * x.shape[1]
    return x.flatten(0, 1).index_select(0, (start + index).flatten()).view(*index.shape, x.shape[2])


# ------------------------------------------------------------------------------------------------------ selection rules


def _order(merit: Tensor) -> Tensor:
    """Return the candidates of each row by merit [B, n], the best first, the earlier one among equals."""
    return merit.sort(dim=1, descending=True, stable=True).indices


def _places(order: Tensor) -> Tensor:
    """Return the place of each candidate in an order [B, n]."""
    place = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.zeros_like(order).scatter_(1, order, place)


def select_block(merit: Tensor, quota: Tensor) -> Tensor:
    """Return the best `quota` [B] candidates of each row of `merit` [B, n], the earlier one among equals."""
    return _places(_order(merit)) < quota[:, None]


def within_budget(merit: Tensor, keep: Tensor, token: Tensor, room: Tensor) -> Tensor:
    """Return the candidates that fit the room, token by token, the best of each token; the earlier among equals.

    Args:
        merit: [B, n].
        keep: bool [B, n], the candidates to choose from; one or more of each token.
        token: [B, n], the tokens of the candidates, in order.
        room: [B, L], the largest total for the first tokens; each token adds at least 1.
    """
    order = _order(merit.masked_fill(~keep, -math.inf))
    if room.shape[1] == 1:
        return keep & (_places(order) < room)
    demand = torch.zeros_like(room).scatter_add_(1, token, keep.long()).cumsum(1)
    totals = demand + (room - demand).cummin(1).values.clamp(max=0)
    quota = totals.diff(dim=1, prepend=torch.zeros_like(totals[:, :1])).gather(1, token)
    order = order.gather(1, token.gather(1, order).sort(dim=1, stable=True).indices)
    first = torch.zeros_like(room).scatter_add_(1, token, torch.ones_like(token)).cumsum(1).roll(1, 1)
    first[:, 0] = 0
    return keep & (_places(order) - first.gather(1, token) < quota)


def lowest_kept(merit: Tensor, quota: Tensor) -> Tensor:
    """Return the merit [B] of the last of the best `quota` [B] candidates; -inf if all stay."""
    candidates = (merit > -math.inf).sum(1)
    last = (quota[:, None] - 1).clamp(max=merit.shape[1] - 1)
    lowest = merit.sort(dim=1, descending=True).values.gather(1, last)[:, 0]
    return lowest.masked_fill(candidates <= quota, -math.inf)
