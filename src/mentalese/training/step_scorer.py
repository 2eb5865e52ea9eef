"""Scores by a model in training, through the step that DDP or FSDP wraps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mentalese.data.batch import Batch
from mentalese.models.contract import Contract


class StepScorer(Contract, nn.Module):
    """Scores through the wrapped step: sharded parameters are gathered only inside its forward.

    Args:
        between: is called before each batch, by all ranks.
    """

    def __init__(
        self, step: nn.Module, model: Contract, device: torch.device, between: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self.step, self.model, self.device, self.estimators = step, model, device, model.estimators
        self.between = between

    def scored_labels(self, batch: Batch, estimator: str) -> Tensor:
        return self.model.scored_labels(batch, estimator)

    def scoring_protocol(self, estimator: str) -> dict[str, Any]:
        return self.model.scoring_protocol(estimator)

    def nll_parts(self, batch: Batch, **scoring: Any) -> dict[str, Tensor]:
        self.between()
        return self.step(batch, None, scoring)
