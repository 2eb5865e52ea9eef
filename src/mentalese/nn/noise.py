"""Random numbers that depend on a row and not on its place in a batch.

A row's noise is a function of a seed and of the row's own targets, so that it is the same in every batch, on every rank
and device, and with any padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from mentalese.nn.loss import IGNORED

_GOLDEN = -0x61C8864680B583EB  # 2^64 / golden ratio: SplitMix64's increment


def _scrambled(x: Tensor) -> Tensor:
    """SplitMix64's finaliser (Steele et al., 2014) on int64, whose products wrap around."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        x = (x ^ (x >> shift & (1 << 64 - shift) - 1)) * factor
    return x ^ (x >> 31 & (1 << 33) - 1)


@dataclass
class Noise:
    """Standard normal numbers as a function of a seed, a row and a draw; the same on every device.

    Attributes:
        keys: int64 [B], one per row.
        dtype: type of the numbers; they have 24 random bits in any type.
    """

    keys: Tensor
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, targets: Tensor, seed: int | Tensor, dtype: torch.dtype = torch.float32) -> Noise:
        """Return the noise of rows with these targets [B, N], without -100; the seed is one, or int64 [B]."""
        place = torch.arange(1, targets.shape[1] + 1, device=targets.device)
        words = _scrambled(targets + _scrambled(place * _GOLDEN)).masked_fill(targets == IGNORED, 0)
        if not isinstance(seed, Tensor):
            seed = torch.full((), seed, dtype=torch.long, device=targets.device)
        return cls(_scrambled(words.sum(1) + _scrambled(seed.to(targets.device))), dtype)

    def draw(self, number: int, shape: Sequence[int]) -> Tensor:
        """Return the numbers [B, *shape] of a draw."""
        places = torch.arange(math.prod(shape), device=self.keys.device)
        state = _scrambled(self.keys + torch.full_like(self.keys, number) * _GOLDEN)[:, None] + places * _GOLDEN
        bits = _scrambled(state)
        radius = (((bits >> 40 & 0xFFFFFF) + 0.5) * 2.0**-24).log().mul(-2).clamp(min=0).sqrt()
        angle = (bits >> 8 & 0xFFFFFF) * (2 * math.pi * 2.0**-24)
        return (radius * angle.cos()).view(len(self.keys), *shape).to(self.dtype)


def shared_seed() -> int:
    """Return a seed from the generator of torch, on all ranks from the generator of rank 0."""
    seeds = [int(torch.randint(2**62, ()))]
    if dist.is_available() and dist.is_initialized():
        dist.broadcast_object_list(seeds, src=0)  # of any backend: accelerate's NCCL sends no tensor of the host
    return seeds[0]
