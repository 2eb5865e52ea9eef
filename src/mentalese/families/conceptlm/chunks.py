"""Chunks of k tokens with any padding: sums of their states, and the concept for each token.

Letters in shapes: B rows of L tokens, d hidden size, C the most chunks of any row that end in a call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Chunks:
    """The division of a call's tokens into chunks of k.

    A call may begin inside a chunk: `first` counts the tokens of that chunk before it, so that token r of a row takes
    slot `first + r`. Where all rows are alike, `first` is one number and no gather is needed.

    Attributes:
        size: k.
        first: slots filled before this call, fewer than k; [B] or one number.
        before: number of concepts before this call; [B] or one number.
        ended: number of concepts that end in this call; [B] or one number.
        count: C, the maximum of `ended` over rows.
        begun: the maximum of `before` over rows.
        slot: [B, L], the slot of each token; `None` where all rows are alike.
        real: bool [B, L], tokens that are not padding; `None` without padding.
    """

    size: int
    first: Tensor | int
    before: Tensor | int
    ended: Tensor | int
    count: int
    begun: int
    slot: Tensor | None = None
    real: Tensor | None = None

    @classmethod
    def of(
        cls, size: int, length: int, seen: Tensor | int, real: Tensor | None = None, on_host: Tensor | None = None
    ) -> Chunks:
        """Return the chunks of a call of `length` tokens a row, after `seen` tokens; see `TokenLayout`.

        Without `on_host`, padding makes the host wait for a GPU.
        """
        if real is None:
            assert isinstance(seen, int)
            ended = (seen + length) // size - seen // size
            return cls(size, seen % size, seen // size, ended, ended, seen // size)
        seen = seen if isinstance(seen, Tensor) else torch.full((len(real),), seen, device=real.device)
        counts = real.sum(1)
        ends = (seen + counts) // size - seen // size
        slot = (seen % size)[:, None] + (real.cumsum(1) - 1)
        before, now = torch.stack((seen, counts)).cpu() if on_host is None else on_host
        count = int(((before + now) // size - before // size).max())
        return cls(size, seen % size, seen // size, ends, count, int((before // size).max()), slot, real)

    def valid(self, rows: int, device: torch.device) -> Tensor | None:
        """Return the mask [B, C] of concepts that a row has; `None` if all rows have all of them."""
        if isinstance(self.ended, int) and self.ended == self.count:
            return None
        ended = self.ended if isinstance(self.ended, Tensor) else torch.full((rows,), self.ended, device=device)
        return torch.arange(self.count, device=device) < ended[:, None]

    def sums(self, hidden: Tensor, held: Tensor | None) -> Tensor:
        """Return the sum [B, C + 1, d] of the states [B, L, d] of each chunk so far, including unfinished chunks.

        `held` [B, d] is the sum so far of the chunk in which the call begins.
        """
        width = (self.count + 1) * self.size
        if self.slot is None:
            assert isinstance(self.first, int)
            laid = F.pad(hidden, (0, 0, self.first, width - self.first - hidden.shape[1]))
        else:
            assert self.real is not None
            trash = self.slot.masked_fill(~self.real, width)[..., None].expand_as(hidden)
            laid = hidden.new_zeros(len(hidden), width + 1, hidden.shape[2]).scatter(1, trash, hidden)[:, :-1]
        sums = laid.unflatten(1, (-1, self.size)).sum(2)
        return sums if held is None else torch.cat((sums[:, :1] + held[:, None], sums[:, 1:]), dim=1)

    def spread(self, table: Tensor, length: int) -> Tensor:
        """Return each token's entry [B, L, d] of the last concept before this call and this call's [B, 1 + C, d]."""
        if self.slot is None:
            assert isinstance(self.first, int)
            repeated = table[:, :, None].expand(-1, -1, self.size, -1).flatten(1, 2)
            return repeated[:, self.first + 1 : self.first + 1 + length]
        index = (self.slot + 1).clamp(min=0).div(self.size, rounding_mode="floor")
        return table.gather(1, index[..., None].expand(-1, -1, table.shape[2]))

    def last(self, table: Tensor) -> Tensor:
        """Return from a table [B, C + 1, d] each row's entry [B, d] after its last complete chunk."""
        if isinstance(self.ended, int):
            return table[:, self.ended]
        return table[torch.arange(len(table), device=table.device), self.ended]
