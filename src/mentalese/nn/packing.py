"""Rows without their padding: a row's tokens move to its front, in order, and back again.

Letters in shapes: B rows of `width` columns; N places in a packed row, the number of tokens of the longest row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mentalese.nn.loss import IGNORED


def front(keep: Tensor, size: int) -> Tensor:
    """Return the columns [B, size] in which `keep` [B, width] is true, in order, filled up with other columns."""
    return (~keep).to(torch.uint8).sort(dim=1, stable=True).indices[:, :size]


def filled(keep: Tensor, size: int) -> Tensor:
    """Return bool [B, size], true at the places of `front` with a column of `keep`."""
    return torch.arange(size, device=keep.device) < keep.sum(1)[:, None]


def pack(keep: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return `front` and `filled` for the longest row of `keep`; the latter is `None` if all places are filled.

    Waits for a GPU once.
    """
    counts = keep.sum(1).tolist()
    size = max(counts)
    return front(keep, size), None if min(counts) == size else filled(keep, size)


@dataclass
class PackedRows:
    """The places of the tokens of padded rows. Padding can be anywhere: left, right or between tokens.

    Attributes:
        columns: [B, N], the column of each token; after a row's last token, columns of padding. `None`: there is no
            padding, and packed rows are the rows.
        lengths: [B], tokens of each row.
        width: columns of a row.
        on_host: `lengths`, on the host.
    """

    columns: Tensor | None
    lengths: Tensor
    width: int
    on_host: list[int]

    @classmethod
    def of(cls, real: Tensor) -> PackedRows:
        """Return rows whose tokens are where `real` [B, width] is true; N is at least 1. Waits for a GPU once."""
        lengths, width = real.sum(1), real.shape[1]
        on_host = lengths.tolist()
        columns = None if min(on_host) == width else front(real, max(*on_host, 1))
        return cls(columns, lengths, width, on_host)

    @classmethod
    def unpadded(cls, input_ids: Tensor) -> PackedRows:
        """Return rows [B, width] without padding; nothing is read back from the device."""
        rows, width = input_ids.shape
        return cls(None, torch.full((rows,), width, device=input_ids.device), width, [width] * rows)

    @property
    def real(self) -> Tensor:
        """Places that have a token, bool [B, N]."""
        places = self.width if self.columns is None else self.columns.shape[1]
        return torch.arange(places, device=self.lengths.device) < self.lengths[:, None]

    @property
    def ragged(self) -> Tensor | None:
        """The same, or `None` if all rows have as many tokens."""
        return self.real if min(self.on_host) < max(self.on_host) else None

    def gather(self, values: Tensor, padding: int | None = None) -> Tensor:
        """Return values of columns [B, width] packed, [B, N]; `padding` replaces what follows a row's last token."""
        if self.columns is None:
            return values
        values = values.gather(1, self.columns)
        return values if padding is None else values.masked_fill(~self.real, padding)

    def spread(self, values: Tensor) -> Tensor:
        """Return values of packed tokens [B, N, ..] in their columns, zero at padding: [B, width, ..]."""
        if self.columns is None:
            return values
        shape = (*self.columns.shape, *(1,) * (values.ndim - 2))
        values = values.masked_fill(~self.real.view(shape), 0)
        out = values.new_zeros(len(values), self.width, *values.shape[2:])
        return out.scatter(1, self.columns.view(shape).expand_as(values), values)

    def targets(self, labels: Tensor) -> Tensor:
        """Return the target of each packed token but the last, from labels [B, width]: [B, N - 1], -100 for nothing.

        A token predicts the next token of its row, whatever padding is between the two.
        """
        return self.gather(labels, IGNORED)[:, 1:]
