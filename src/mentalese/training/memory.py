"""The most memory that a run used."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import torch


def forget_peak_memory(device: torch.device) -> None:
    """Starts a new peak, so that a run in a long process does not inherit the one before (Linux and CUDA)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int | None:
    """Bytes: allocated on the GPU, or the process's largest resident size; `None` where the system does not say
    (Windows)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")))
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
