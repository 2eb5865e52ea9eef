"""The noise of masked diffusion: its schedules, the times of a batch, and SEDD's score entropy."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor

from mentalese.nn.loss import IGNORED
from mentalese.nn.noise import Noise
from mentalese.nn.transfer import send


def schedule(kind: str, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return p(t) and p'(t) / p(t) of times in (0, 1]; see `MaskedDiffusionConfig.noise_schedule`.

    p(1) is 1. The releases of MDLM and SEDD use 0.999 t, the release of MD4 goes from 0.0001 to 0.9999.
    """
    if kind == "cosine":
        angle = 0.5 * math.pi * t
        return angle.sin(), 0.5 * math.pi / angle.tan()
    return t, 1 / t


def score_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return SEDD's l [n] for logits f [n, v] and targets [n]; 0 where a target is -100.

    With c = log sum_y q_y, l is the cross-entropy plus exp(c) - 1 - c, which is 0 for scores that sum to one.
    """
    logits = logits.float()
    total = logits.logsumexp(-1)
    c = total - math.log(logits.shape[-1])
    nll = total - logits.gather(-1, targets.clamp(min=0)[:, None])[:, 0]
    return torch.where(targets == IGNORED, 0.0, nll + c.expm1() - c)


def uniform(noise: Noise, number: int, size: int) -> Tensor:
    """Return uniform numbers in (0, 1], float32 [B, size]."""
    return torch.special.ndtr(noise.draw(number, (size,)))


def training_times(rows: int, seed: int, device: torch.device) -> Tensor:
    """Return times [rows], spread evenly over [0, 1] across the rows of all ranks (Kingma et al., 2021).

    One random shift moves all of them around the circle, so the time of each row is uniform.
    """
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)
    shift = (seed % 2**24 + 0.5) / 2**24  # never 0, where weights are infinite
    times = [(shift + (rank + ranks * row) / (rows * ranks)) % 1 for row in range(rows)]
    return send(torch.tensor(times), device)
