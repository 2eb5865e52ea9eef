"""The peak memory of a run, and the memory of a step's tensors."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mentalese.errors import InputError
from mentalese.models.base import LanguageModel
from mentalese.recipe import Recipe
from mentalese.training.parallel import Parallel


class LiveBytes(TorchDispatchMode):
    """A counter of the memory of tensors that operations make inside, backward passes included, on any device.

    Args:
        known: tensors that do not count, such as weights and the batch.

    Attributes:
        live: bytes of tensors that are still needed.
    """

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.live = 0
        self._known = [x.untyped_storage() for x in known]  # stored, or another tensor could get the same address
        self._seen: dict[int, object] = {storage._cdata: None for storage in self._known}

    def __torch_dispatch__(
        self, func: Callable[..., object], types: object, args: tuple[object, ...] = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        for storage in (x.untyped_storage() for x in tree_leaves(result) if isinstance(x, Tensor)):
            if storage._cdata not in self._seen:
                self.live += storage.nbytes()
                gone = partial(self._remove, storage._cdata, storage.nbytes())
                self._seen[storage._cdata] = weakref.ref(storage, gone)
        return result

    def _remove(self, key: int, size: int, _: object) -> None:
        self.live -= size
        del self._seen[key]


def check_memory(model: LanguageModel, recipe: Recipe, parallel: Parallel) -> None:
    """Check that weights, gradients and Adam's moments fit into a device's memory, before they are made.

    Args:
        model: the model, which may be on the meta device.

    Raises:
        InputError: they do not fit.
    """
    parameters = list(model.parameters())
    needed = 4 * sum(p.numel() + 3 * p.numel() * p.requires_grad for p in parameters)
    if recipe.train.parallel == "fsdp":
        needed //= parallel.world_size
    room = device_memory(parallel.device)
    if room is not None and needed > room:
        raise InputError(
            f"model has {sum(p.numel() for p in parameters):,} parameters, whose weights, gradients and Adam's moments "
            f"take {needed / 2**30:,.1f} GiB of the {room / 2**30:,.1f} GiB that this device has: use a smaller model, "
            "adapters (train.lora_rank) or several devices (train.parallel=fsdp)"
        )


def device_memory(device: torch.device) -> int | None:
    """Return the bytes of a GPU's memory, or of main memory that this process may use; `None` if unknown."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if not hasattr(os, "sysconf"):
        return None
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # the limit of a container
    text = limit.read_text().strip() if limit.is_file() else ""
    return min(machine, int(text)) if text.isdecimal() else machine


def forget_peak_memory(device: torch.device) -> None:
    """Reset the peak, so that a run in a long process does not inherit the previous one (Linux and CUDA)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int | None:
    """Return the peak in bytes: allocated on the GPU, or the process's largest resident size.

    `None` on systems that do not record it (Windows).
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    if (peak := next((line.split()[1] for line in lines if line.startswith("VmHWM")), None)) is not None:
        return 1024 * int(peak)
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def limit_kernel_cache() -> None:
    """Keep 64 of oneDNN's kernels instead of 1,024, unless the environment or an earlier use has set the number.

    In bfloat16 on a CPU each length of rows brings its own kernels: a run of adapters on a language model grew by
    0.6 GiB. Layers share the kernels of a length, and 64 of them are as fast as 1,024.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")


def release_free_memory() -> None:
    """Return the heap's free memory to the system (glibc only).

    Batches of many lengths leave gaps in the heap that the next ones do not fit into: a run of adapters on a
    language model grew to 1.6 times the memory of its longest step.
    """
    with contextlib.suppress(OSError, TypeError, AttributeError):  # no such function, or no such library
        ctypes.CDLL(None).malloc_trim(0)
