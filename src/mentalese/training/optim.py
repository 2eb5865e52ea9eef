"""The optimiser and its learning rate as a function of the position in the run."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from mentalese.recipe import OptimizerConfig


def build_optimizer(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.AdamW:
    """Return fused AdamW; weight decay acts on matrices and embeddings, not on biases, norms, gates and scalars."""
    trained = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        fused=True,
    )


def learning_rate(config: OptimizerConfig, step: int, total_steps: int, progress: float) -> float:
    """Return the learning rate of `step` (counted from 0) under a schedule of `total_steps`.

    The warm-up counts steps; the decay follows `progress` in [0, 1], which counts tokens or epochs if the run's length
    is set in these, so that a curriculum that changes the size of a step does not make the rate jump.
    """
    warmup = math.ceil(config.warmup if config.warmup >= 1 else config.warmup * total_steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    start = warmup / max(total_steps, 1)
    share = min(max((progress - start) / max(1 - start, 1e-12), 0.0), 1.0)
    decayed = {"constant": 1.0, "linear": 1 - share, "cosine": 0.5 * (1 + math.cos(math.pi * share))}[config.schedule]
    floor = config.min_learning_rate_ratio if config.schedule != "constant" else 0.0
    return config.learning_rate * (floor + (1 - floor) * decayed)
