"""The discrete concept space: product quantisation by SimVQ codebooks (section 2.2; Zhu et al., "SimVQ").

Codes are a learned function of a frozen Gaussian table, so that an update of one code moves all codes. Otherwise most
codes are never chosen again (appendix E.3). Letters in shapes: n concepts of width d in S segments of c = d / S
channels, N codes per segment.
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
    """S tables of N codes; call `forward`, which computes all of them, once per step.

    Codes are a map of a frozen table, or the weights themselves if `kind` is `learned`, which collapses (appendix E.3).
    Weights stay float32 in a bfloat16 or float16 model, because rounding changes the nearest codes.
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
        """Initialise the table as Normal(0, 1 / c), maps as Normal(0, std) and biases as 0.

        The first map of the mlp preserves the scale of the table (He et al., 2015), so that updates move all codes fast
        enough to follow states that drift early in training.
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
        """Return codes [S, N, c] in the precision of the weights, also under autocast, because distances need it."""
        if self.kind == "learned":
            return self.table
        with torch.autocast(self.frozen.device.type, enabled=False):
            if self.kind == "linear":
                return self.frozen @ self.weight
            hidden = torch.baddbmm(self.up_bias.view(self.segments, 1, -1), self.frozen, self.up).relu()
            return torch.baddbmm(self.down_bias.view(self.segments, 1, -1), hidden, self.down)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Codebook:
        """Apply as `nn.Module` does, but without casts to half precision."""

        def precise(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if moved.dtype not in (torch.bfloat16, torch.float16):
                return moved
            exact = torch.promote_types(tensor.dtype, torch.float32)
            return torch.empty_like(moved, dtype=exact) if tensor.is_meta else tensor.to(moved.device, exact)

        super()._apply(precise, recurse)
        return self

    def multiply_adds(self) -> int:
        """Return the multiply-adds of one `forward`."""
        return 0 if self.kind == "learned" else self.codes * sum(p.numel() for p in self.parameters() if p.ndim > 1)


def mix(weights: Tensor, codes: Tensor) -> Tensor:
    """Return the sums [.., d] of codes [S, N, c], weighted by [.., S * N] and side by side (section 2.2)."""
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
    """Return L_VQ, the mean squared distance of concepts [n, d] to their codes [n, S]; it trains only codes."""
    nearest = codes.gather(1, chosen.t()[..., None].expand(-1, -1, codes.shape[-1]))
    return F.mse_loss(nearest, _split(concepts.detach(), codes), reduction="sum") / max(concepts.numel(), 1)


def _split(concepts: Tensor, codes: Tensor) -> Tensor:
    """Split [n, d] into segments [S, n, c]."""
    return concepts.to(codes.dtype).unflatten(-1, (codes.shape[0], -1)).transpose(0, 1)


@dataclass
class Usage:
    """The use of the codes of each segment: `counts` [S, N], how often each code was nearest."""

    counts: Tensor

    @property
    def utilisation(self) -> Tensor:
        """The share [S] of codes with a positive count."""
        return (self.counts > 0).float().mean(-1)

    @property
    def perplexity(self) -> Tensor:
        """Exp [S] of the entropy of the counts: N for uniform use, 1 if only one code is used."""
        share = self.counts / self.counts.sum(-1, keepdim=True).clamp(min=1)
        return torch.special.entr(share).sum(-1).exp()


def usage(chosen: Tensor, codes: int) -> Usage:
    """Return the use of chosen codes [n, S], with `codes` codes per segment."""
    segments = chosen.shape[1]
    flat = chosen + codes * torch.arange(segments, device=chosen.device)
    counts = torch.zeros(segments * codes, dtype=torch.long, device=chosen.device)
    return Usage(counts.scatter_add_(0, flat.flatten(), torch.ones_like(flat).flatten()).view(segments, codes))
