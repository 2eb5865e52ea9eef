"""A training step: its loss as the module that DDP, FSDP2 and `torch.compile` wrap, its optimiser and learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from mentalese.data.batch import Batch
from mentalese.models.base import LanguageModel, LossOutput
from mentalese.recipe import OptimizerConfig


class TrainStep(nn.Module):
    """The training loss as a module: a call returns one micro-batch's loss, whatever passes that takes."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def compile(self, **options: Any) -> None:
        """Call `torch.compile` for the step, or for the parts of it that the model names."""
        if not self.model.compile_parts(**options):
            super().compile(**options)

    def forward(self, batch: Batch, settings: Mapping[str, object]) -> LossOutput:
        """Return the training loss under these settings of the model."""
        return self.model.training_loss(batch, **settings)


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
    warmup = config.warmup_steps(total_steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    start = warmup / max(total_steps, 1)
    share = min(max((progress - start) / max(1 - start, 1e-12), 0.0), 1.0)
    decayed = {"constant": 1.0, "linear": 1 - share, "cosine": 0.5 * (1 + math.cos(math.pi * share))}[config.schedule]
    floor = config.min_learning_rate_ratio
    return config.learning_rate * (floor + (1 - floor) * decayed)
