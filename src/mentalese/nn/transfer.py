"""Tensors of the host sent to the device without waiting for it."""

from __future__ import annotations

import torch
from torch import Tensor


def send(tensor: Tensor, device: str | torch.device) -> Tensor:
    """Return the tensor on `device`. From the host to a GPU it goes from pinned memory, while both do other work."""
    if torch.device(device).type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
