"""The most memory that a run used, and what a step's tensors take of it."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts, inside, the memory of tensors that operations make, backward passes included, on any device.

    Args:
        known: tensors that do not count, such as weights and the batch.

    Attributes:
        live: bytes of those that something still needs.
        peak: the largest `live` so far.
    """

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known = [x.untyped_storage() for x in known]  # kept, or another tensor could come to have its address
        self._seen: dict[int, Any] = {storage._cdata: None for storage in self._known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for storage in (x.untyped_storage() for x in tree_leaves(made) if isinstance(x, Tensor)):
            if storage._cdata not in self._seen:
                self._add(storage._cdata, storage.nbytes(), storage)
        return made

    def _add(self, key: int, size: int, storage: Any) -> None:
        def gone(_: Any) -> None:
            self.live -= size
            del self._seen[key]

        self.live += size
        self.peak = max(self.peak, self.live)
        self._seen[key] = weakref.ref(storage, gone)


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
