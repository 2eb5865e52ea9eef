"""Where the tokens of a batch lie in the passes of Coconut, see `model`; its shapes are known on the host.

Letters in shapes: B rows of L tokens, P columns of questions, N of latents and R of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mentalese.errors import InputError


@dataclass
class Layout:
    """Where the tokens of a batch lie in the passes.

    Attributes:
        source: [B, P + N + R], the column of the batch that each place holds; 0 at padding.
        real: bool [B, P + N + R], places that hold a token.
        place: [B, L], where each token lies; 0 at padding.
        latents: [B], latents of each row.
        prompt, passes: P and N.
        first: bool [B], rows whose latents have no token before them in this call.
        begins: whether there is such a row.
        full: how many of the first columns hold a token in every row.
    """

    source: Tensor
    real: Tensor
    place: Tensor
    latents: Tensor
    prompt: int
    passes: int
    first: Tensor
    begins: bool
    full: int

    def in_place(self, states: Tensor) -> Tensor:
        """[B, P + N + R, d] in the columns of the batch, [B, L, d]."""
        return states.gather(1, self.place[..., None].expand(-1, -1, states.shape[-1]))


@dataclass
class Rows:
    """Where the latents of a batch are, and what the host knows of it.

    Attributes:
        rank: [B, L], of each token among its row's.
        start, latents, tokens: [B], the first latent's rank, or L; latents; and tokens of a row.
        on_host: start, the last latent's rank + 1 or 0, latents and tokens, a list of rows each.
        passes: N, the most latents of a row.
    """

    rank: Tensor
    start: Tensor
    latents: Tensor
    tokens: Tensor
    on_host: tuple[list[int], ...]
    passes: int

    @classmethod
    def of(cls, is_latent: Tensor, real: Tensor, *, together: bool = False) -> Rows:
        """Of latents and tokens, both bool [B, L]; a GPU is waited for once.

        Args:
            together: `passes` is the most of all ranks, which under FSDP must run alike.
        """
        rank = real.cumsum(1) - 1
        start = torch.where(is_latent, rank, real.shape[1]).amin(1)
        end = torch.where(is_latent, rank, -1).amax(1) + 1
        latents, tokens = is_latent.sum(1), real.sum(1)
        passes = latents.max()
        if together and torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(passes, torch.distributed.ReduceOp.MAX)
        *on_host, most = torch.stack((start, end, latents, tokens, passes.expand_as(start))).tolist()
        return cls(rank, start, latents, tokens, tuple(on_host), most[0])


def lay_out(is_latent: Tensor, real: Tensor, rows: Rows | None = None) -> Layout:
    """The layout of a batch by its latents and its tokens, both bool [B, L].

    A row without latents is cut where the longest question ends; without any in the batch all tokens are rest.

    Raises:
        InputError: latents of a row that do not stand side by side.
    """
    rows = Rows.of(is_latent, real) if rows is None else rows
    starts, ends, counts, lengths = rows.on_host
    if any(count and end - start != count for start, end, count in zip(starts, ends, counts)):
        raise InputError(
            "input_ids has latent tokens apart from each other in a row: put them side by side, or read one group a "
            "call, with the cache of the call before"
        )
    prompt, passes = max(start if count else 0 for start, count in zip(starts, counts)), rows.passes
    starts = [start if count else min(length, prompt) for start, count, length in zip(starts, counts, lengths)]
    rest = [length - start - count for start, count, length in zip(starts, counts, lengths)]
    full = 0
    if min(starts) == prompt:
        full = prompt + (min(counts) if min(counts) < passes else passes + min(rest))

    has = rows.latents > 0
    start = torch.where(has, rows.start, rows.tokens.clamp(max=prompt))
    after = rows.rank - (start + rows.latents)[:, None]
    place = torch.where(
        rows.rank < start[:, None],
        prompt - start[:, None] + rows.rank,
        torch.where(after < 0, prompt + rows.rank - start[:, None], prompt + passes + after),
    )
    width = prompt + passes + max(rest)
    trash = place.masked_fill(~real, width)
    columns = torch.arange(real.shape[1], device=real.device).expand_as(real)
    source = columns.new_zeros(len(real), width + 1).scatter_(1, trash, columns)[:, :-1]
    filled = torch.zeros(len(real), width + 1, dtype=torch.bool, device=real.device).scatter_(1, trash, True)[:, :-1]
    place = place.masked_fill(~real, 0)
    begins = any(count and not start for start, count in zip(starts, counts))
    return Layout(source, filled, place, rows.latents, prompt, passes, has & (start == 0), begins, full)
