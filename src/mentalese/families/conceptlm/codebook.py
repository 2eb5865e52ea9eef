"""The discrete concept space: product quantisation by SimVQ codebooks (section 2.2; Zhu et al., "SimVQ").

Codes are a learned function of a frozen Gaussian table, so that all of them move whenever one is chosen: without it
most are never chosen again (appendix E.3). Letters in shapes: n concepts of width d in S segments of c = d / S
channels, N codes a segment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

Kind = Literal["mlp", "linear", "learned"]


class Codebook(nn.Module):
    """S tables of N codes. `forward` makes them all at once; make them once a step.

    Codes are maps of a frozen table, or weights themselves if `kind` is `learned`, which collapses (appendix E.3).
    Its weights stay float32 in a bfloat16 or float16 model: rounded codes have other nearest concepts.
    """

    frozen: Tensor

    def __init__(self, segments: int, codes: int, width: int, kind: Kind) -> None:
        super().__init__()
        self.segments, self.codes, self.kind = segments, codes, kind
        if kind == "learned":
            self.table = nn.Parameter(torch.empty(segments, codes, width))
            return
        self.register_buffer("frozen", torch.empty(segments, codes, width))
        if kind == "linear":
            self.weight = nn.Parameter(torch.empty(segments, width, width))
        else:
            self.up = nn.Parameter(torch.empty(segments, width, 2 * width))
            self.up_bias = nn.Parameter(torch.empty(segments * 2 * width))  # one dimension: biases do not decay
            self.down = nn.Parameter(torch.empty(segments, 2 * width, width))
            self.down_bias = nn.Parameter(torch.empty(segments * width))

    def start(self, std: float) -> None:
        """The table Normal(0, 1 / c), maps Normal(0, std), biases 0.

        The mlp's first map keeps the table's size (He et al., 2015): what is wide inside moves all codes at once, so
        that they keep up with states that drift as training begins.
        """
        if self.kind == "learned":
            init.normal_(self.table, std=self.table.shape[-1] ** -0.5)
            return
        width = self.frozen.shape[-1]
        init.normal_(self.frozen, std=width**-0.5)
        if self.kind == "linear":
            init.normal_(self.weight, std=std)
            return
        init.normal_(self.up, std=(2 / width) ** 0.5)
        init.normal_(self.down, std=std)
        init.zeros_(self.up_bias)
        init.zeros_(self.down_bias)

    def forward(self) -> Tensor:
        """[S, N, c] in the weights' own precision, also under autocast: codes are compared by their distances."""
        if self.kind == "learned":
            return self.table
        with torch.autocast(self.frozen.device.type, enabled=False):
            if self.kind == "linear":
                return self.frozen @ self.weight
            hidden = torch.baddbmm(self.up_bias.view(self.segments, 1, -1), self.frozen, self.up).relu()
            return torch.baddbmm(self.down_bias.view(self.segments, 1, -1), hidden, self.down)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Codebook:
        """As `nn.Module`, without a cast to half precision."""

        def precise(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if moved.dtype not in (torch.bfloat16, torch.float16):
                return moved
            exact = torch.promote_types(tensor.dtype, torch.float32)
            return torch.empty_like(moved, dtype=exact) if tensor.is_meta else tensor.to(moved.device, exact)

        super()._apply(precise, recurse)
        return self

    def multiply_adds(self) -> int:
        """Of one `forward`."""
        return 0 if self.kind == "learned" else self.codes * sum(p.numel() for p in self.parameters() if p.ndim > 1)


def mix(weights: Tensor, codes: Tensor) -> Tensor:
    """Return the codes' weighted sums, segment by segment (section 2.2).

    Args:
        weights: [.., S * N].
        codes: [S, N, c].

    Returns:
        [.., d].
    """
    by_segment = weights.reshape(-1, codes.shape[0], codes.shape[1]).transpose(0, 1)
    return (by_segment @ codes.to(weights.dtype)).transpose(0, 1).reshape(*weights.shape[:-1], -1)


@torch.no_grad()
def nearest_codes(concepts: Tensor, codes: Tensor) -> Tensor:
    """Return the nearest code of each segment by Euclidean distance: [n, d] and [S, N, c] to [n, S]."""
    with torch.autocast(concepts.device.type, enabled=False):
        parts = _split(concepts, codes)
        # |u|^2 is the same for all codes of a table
        distance = torch.baddbmm(codes.square().sum(-1)[:, None], parts, codes.transpose(1, 2), alpha=-2)
        return distance.argmin(-1).t()


def quantisation_loss(concepts: Tensor, codes: Tensor, chosen: Tensor) -> Tensor:
    """L_VQ: the mean squared distance of concepts [n, d] to their codes [n, S]; trains the codes alone."""
    nearest = codes.gather(1, chosen.t()[..., None].expand(-1, -1, codes.shape[-1]))
    return F.mse_loss(nearest, _split(concepts.detach(), codes), reduction="sum") / max(concepts.numel(), 1)


def _split(concepts: Tensor, codes: Tensor) -> Tensor:
    """[n, d] to [S, n, c], as the codes are."""
    return concepts.to(codes.dtype).unflatten(-1, (codes.shape[0], -1)).transpose(0, 1)


@dataclass
class Usage:
    """How the codes of each segment were used.

    Attributes:
        counts: [S, N], how often each was nearest.
        utilisation: [S], the share of codes used at all.
        perplexity: [S], exp of the entropy of their use: N where all are used alike, 1 where one is.
    """

    counts: Tensor
    utilisation: Tensor
    perplexity: Tensor


def usage(chosen: Tensor, codes: int) -> Usage:
    """Of codes chosen [n, S], among `codes` a segment."""
    segments = chosen.shape[1]
    flat = chosen + codes * torch.arange(segments, device=chosen.device)
    counts = torch.zeros(segments * codes, dtype=torch.long, device=chosen.device)
    return usage_of(counts.scatter_add_(0, flat.flatten(), torch.ones_like(flat).flatten()).view(segments, codes))


def usage_of(counts: Tensor) -> Usage:
    """Of counts [S, N], as those of several batches added up."""
    share = counts / counts.sum(-1, keepdim=True).clamp(min=1)
    return Usage(counts, (counts > 0).float().mean(-1), torch.special.entr(share).sum(-1).exp())
