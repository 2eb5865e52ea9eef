"""The step that DDP, FSDP2 and `torch.compile` wrap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from mentalese.data.batch import Batch
from mentalese.models.base import LanguageModel, LossOutput


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
