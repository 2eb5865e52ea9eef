"""Losses and metrics of the steps since the last log line."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class LogBuffer:
    """The steps since the last log line; their figures stay on the device until then, so that no step waits."""

    started: float = 0.0
    steps: list[int] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    learning_rate: float = 0.0
    metrics: list[tuple[list[str], Tensor]] = field(default_factory=list)

    def start(self) -> None:
        if not self.steps:
            self.started = time.perf_counter()

    def add(self, step: int, learning_rate: float, loss: Tensor, norm: Tensor, metrics: dict[str, Tensor]) -> None:
        self.steps.append(step)
        self.losses.append(loss)
        self.norms.append(norm)
        self.learning_rate = learning_rate
        if metrics:  # stack copies: some metrics are views of parameters, which the next step changes
            values = [value.float().to(loss.device) for value in metrics.values()]  # a metric may be on the CPU
            self.metrics.append((list(metrics), torch.stack(values)))

    def means(self) -> dict[str, float]:
        """Return each metric's mean over the steps that measured it."""
        values: dict[str, list[float]] = {}
        for names, step in self.metrics:
            for name, value in zip(names, step.tolist()):
                values.setdefault(name, []).append(value)
        return {name: statistics.fmean(of_steps) for name, of_steps in values.items()}

    def clear(self) -> None:
        self.steps, self.losses, self.norms, self.metrics = [], [], [], []
