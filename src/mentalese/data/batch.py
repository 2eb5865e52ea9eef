"""Batches: named tensors whose shapes follow one convention for all layouts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Batch = dict[str, Any]
"""Flat token streams: `input_ids` and `labels` (-100 = not a target) [batch, length], `attention_mask` [batch, length]
if rows are padded, and tensors that a layout adds (`question_lengths` [batch] for questions)."""


def send(tensor: Tensor, device: str | torch.device) -> Tensor:
    """Return the tensor on `device`; transfers to a GPU use pinned memory, while host and GPU do other work."""
    if torch.device(device).type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def to_device(batch: Batch, device: str | torch.device) -> Batch:
    """Return the batch with its tensors on `device`; a GPU is not waited for."""
    return {k: send(v, device) if isinstance(v, Tensor) else v for k, v in batch.items()}
