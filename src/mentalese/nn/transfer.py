"""Transfers of tensors from the host to the device that the host does not wait for."""

from __future__ import annotations

import torch
from torch import Tensor


def send(tensor: Tensor, device: str | torch.device) -> Tensor:
    """Return the tensor on `device`. Transfers to a GPU use pinned memory, while host and GPU do other work."""
    if torch.device(device).type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
