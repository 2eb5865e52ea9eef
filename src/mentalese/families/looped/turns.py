"""How often the block is run, and what the state starts as: what training draws.

Both follow from a seed. In a step of training it is the step's own, so that all ranks and micro-batches run the block
equally often, and a resumed run draws what an uninterrupted one does.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mentalese.nn.noise import Noise

_PRIME = 1_000_003  # so that neighbouring positions have other seeds than neighbouring steps


def drawn_turns(mean: float, spread: float | None, seed: int) -> int:
    """r of a log-normal Poisson distribution (Eq. 1 and 2): tau ~ N(log(mean - 1) - spread^2 / 2, spread), and
    r ~ Poisson(e^tau) + 1, whose mean is `mean`; rounded `mean` where `spread` is `None`."""
    if spread is None or mean <= 1:
        return round(mean)
    generator = torch.Generator().manual_seed(seed % 2**63)
    tau = math.log(mean - 1) - spread**2 / 2 + spread * torch.randn((), generator=generator, dtype=torch.float64)
    return 1 + int(torch.poisson(tau.exp(), generator=generator))


def initial_state(input_ids: Tensor, positions: Tensor, width: int, std: float, seed: int) -> Tensor:
    """s_0, float32 [B, L, d]: normal numbers of a token and its position, the same in any batch and after any padding.

    Args:
        input_ids: [B, L].
        positions: [B or 1, L], counted from each row's first token.
    """
    seeds = (positions * _PRIME + seed % 2**62).expand_as(input_ids).reshape(-1)
    return std * Noise.of(input_ids.reshape(-1, 1), seeds).draw(0, (width,)).view(*input_ids.shape, width)
