"""The result of a pass over a batch: streams after the last block, columns of tokens, and forks.

Letters in shapes: B rows of L columns and n tokens at most, N streams, d hidden size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mentalese.families.thoughtbubbles.forking import Streams
from mentalese.nn.loss import IGNORED
from mentalese.nn.packing import PackedRows


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
        predicts = F.pad(self.rows.spread(self.rows.real)[:, :-1], (1, 0))
        return labels.masked_fill(~predicts, IGNORED)

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
