"""The columns of a batch's tokens in the passes of Coconut; see `model`.

Letters in shapes: B rows of L tokens, P columns of questions, N of latents and R of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mentalese.errors import InputError


@dataclass
class TokenPlaces:
    """The places of a batch's tokens in the columns of the passes.

    Attributes:
        source: [B, P + N + R], the column of the batch that each place holds; 0 at padding.
        real: bool [B, P + N + R], places that hold a token.
        place: [B, L], the place of each token; 0 at padding.
        thinks: bool [B, N], columns in which a row has a latent.
        first: bool [B], rows whose latents follow no token of this call.
        prompt: P.
    """

    source: Tensor
    real: Tensor
    place: Tensor
    thinks: Tensor
    first: Tensor
    prompt: int


def lay_out(is_latent: Tensor, real: Tensor, *, continued: bool = False, together: bool = False) -> TokenPlaces:
    """Return the places of a batch from its latents and tokens, both bool [B, L]; waits for a GPU once.

    A row without latents is split where the longest question ends; in a batch without latents all tokens are rest.

    Args:
        continued: the tokens follow the tokens of an earlier call.
        together: N is the maximum over ranks, because under FSDP all ranks run equally many passes.

    Raises:
        InputError: latents before any token, or latents of a row that are not contiguous.
    """
    length = real.shape[1]
    rank, tokens, latents = real.cumsum(1) - 1, real.sum(1), is_latent.sum(1)
    has_latents = latents > 0
    start = torch.where(is_latent, rank, length).amin(1)
    end = torch.where(is_latent, rank + 1, 0).amax(1)
    passes, prompt = latents.max(), (start * has_latents).max()
    if together and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(passes, torch.distributed.ReduceOp.MAX)
    start = torch.where(has_latents, start, tokens.clamp(max=prompt))
    rest = (tokens - start - latents).max()
    first = has_latents & (start == 0)
    apart = has_latents & (end - start != latents)
    on_host = torch.stack((passes, prompt, rest, first.any(), apart.any())).tolist()
    if on_host[4]:
        raise InputError(
            "input_ids has latent tokens apart from each other in a row: put them side by side, or read one group a "
            "call, with the cache of the call before"
        )
    if on_host[3] and not continued:
        raise InputError("input_ids begins with a latent token: it reads the state of the token before it")

    columns = sum(on_host[:3])
    after = rank - (start + latents)[:, None]
    place = torch.where(after < 0, rank, passes + start[:, None] + after) + (prompt - start)[:, None]
    place_or_end = place.masked_fill(~real, columns)
    column = torch.arange(length, device=real.device).expand_as(real)
    source = column.new_zeros(len(real), columns + 1).scatter_(1, place_or_end, column)[:, :-1]
    filled = real.new_zeros(len(real), columns + 1).scatter_(1, place_or_end, value=True)[:, :-1]
    thinks = torch.arange(on_host[0], device=real.device) < latents[:, None]
    return TokenPlaces(source, filled, place.masked_fill(~real, 0), thinks, first, on_host[1])


def in_order(real: Tensor, thinks: Tensor) -> TokenPlaces:
    """Return places that keep columns, with `thinks` bool [B, L] or [B, 0]; does not wait for a GPU."""
    column = torch.arange(real.shape[1], device=real.device).expand_as(real)
    return TokenPlaces(column, real, column, thinks, first=real[:, 0], prompt=0)
