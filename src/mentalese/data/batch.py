"""Batches: named tensors whose shapes follow one convention for all layouts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mentalese.nn.transfer import send

Batch = dict[str, Any]
"""Flat token streams: `input_ids` and `labels` (-100 = not a target) [batch, length], `attention_mask` [batch, length]
if rows are padded, and tensors that a layout adds (`question_lengths` [batch] for questions)."""


def to_device(batch: Batch, device: str | torch.device) -> Batch:
    """Return the batch with its tensors on `device`; a GPU is not waited for."""
    return {k: send(v, device) if isinstance(v, Tensor) else v for k, v in batch.items()}
