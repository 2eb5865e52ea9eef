"""A device that is not there: what a GPU would refuse, where the host would wait for it, and how many kernels it runs.

Inside `PretendedDevice`, a tensor that is made on or moved to `cuda` stays in memory, but counts as on the device, and
so does all that is made of it, in forward and backward passes and in the optimiser; `x.device` says cuda, so that code
takes the ways it would take there. Tensors are followed by their memory, so views and saved tensors are known too.
"""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE, _HOST = torch.device("cuda", 0), torch.device("cpu")
_MADE = {"tensor", "as_tensor", "asarray"}  # functions that copy what the host has to `device`
_READ = {"tolist", "numpy", "__array__", "__dlpack__"}  # past the dispatcher
_SYNCHRONOUS = {"nonzero", "masked_select", "equal", "bincount", "_unique2", "unique_dim", "unique_consecutive"}
_SYNCHRONOUS |= {"_local_scalar_dense", "is_nonzero", "allclose"}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
_NO_KERNEL = {"_local_scalar_dense", "_unsafe_view", "lift_fresh", "is_nonzero"}
_BACKWARD = {"backward", "grad"}
_WHERE: Any = {name: vars(torch._C.TensorBase)[name].__get__ for name in ("device", "is_cuda", "is_cpu")}
_OWN, _TORCH = Path(__file__), Path(torch.__file__).parent


@dataclass
class Counts:
    """What a piece of work asks of the device.

    Attributes:
        waits: how often the host waits for all that the device has to do, by what for and where.
        kernels: operations on the device that are no views, by name; more than one launch for some, as for a sort.
    """

    waits: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)

    def __sub__(self, other: Counts) -> Counts:
        return Counts(self.waits - other.waits, self.kernels - other.kernels)


class RefusedError(RuntimeError):
    """An operation on tensors of both sides, or on a host tensor with an index on the device."""


class PretendedDevice:
    """A context in which `cuda` can be used without one; `counts` is what was asked of it so far."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._device: dict[int, StorageWeakRef] = {}  # kept, or another tensor could come to have its address
        self._pinned: dict[int, StorageWeakRef] = {}
        self._making: bool | None = None  # whether what is made of nothing is on the device; `None`: nothing said
        self._stack = ExitStack()

    def __enter__(self) -> PretendedDevice:
        self._stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "User provided device_type of 'cuda', but CUDA is not available")
        self._stack.enter_context(_Operations(self))
        self._stack.enter_context(_Calls(self))
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def count(self, run: Callable[[], Any]) -> Counts:
        """What one call asks of the device."""
        before, self.counts = self.counts, Counts()
        try:
            run()
            return self.counts
        finally:
            self.counts = before

    def has(self, tensor: Tensor) -> bool:
        """Whether a tensor counts as on the device."""
        return tensor.untyped_storage()._cdata in self._device

    # -- what the modes use --------------------------------------------------------------------------------------------

    def place(self, tensor: Tensor, on_device: bool = True) -> None:
        """From now on the tensor's memory is on the device, or on the host."""
        storage = tensor.untyped_storage()
        if not on_device:
            self._device.pop(storage._cdata, None)
        elif storage._cdata not in self._device:
            self._device[storage._cdata] = StorageWeakRef(storage)

    def moved(self, tensor: Tensor, to_device: bool, pinned: bool = False) -> Tensor:
        """A copy on the other side."""
        made = tensor.clone()
        self.place(made, to_device)
        if pinned:
            storage = made.untyped_storage()
            self._pinned[storage._cdata] = StorageWeakRef(storage)
        return made

    def is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._pinned

    def wait(self, kind: str) -> None:
        self.counts.waits[f"{kind}: {_place()}"] += 1

    @contextmanager
    def making(self, on_device: bool | None) -> Iterator[None]:
        before, self._making = self._making, on_device
        try:
            yield
        finally:
            self._making = before

    @contextmanager
    def counting_once(self, name: str, times: int = 1) -> Iterator[None]:
        """Counts what is run as this number of kernels of this name."""
        counts, self.counts = self.counts, Counts()
        try:
            yield
        finally:
            self.counts = counts
        self.counts.kernels[name] += times

    @property
    def makes_here(self) -> bool:
        """Whether a new tensor that follows from no other is on the device; zeros for a missing gradient are."""
        if self._making is None:
            return torch._C._current_graph_task_id() != -1
        return self._making


class _Calls(TorchFunctionMode):
    """What Python asks of tensors: where they are, moves, and readings that the dispatcher does not see."""

    def __init__(self, device: PretendedDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device, kwargs, name = self.device, dict(kwargs or {}), getattr(func, "__name__", "")
        if name == "__get__" and args and isinstance(args[0], Tensor):
            if func == _WHERE["device"]:
                return DEVICE if device.has(args[0]) else func(*args)  # the host, or meta
            if func in (_WHERE["is_cuda"], _WHERE["is_cpu"]):
                return device.has(args[0]) == (func == _WHERE["is_cuda"])
            return func(*args, **kwargs)
        if func is torch.device or name == "_parse_to":  # the latter reads arguments of a module's `to`
            return func(*args, **kwargs)
        target = _target(name, args, kwargs, device)
        args, kwargs = tree_map(lambda x: _HOST if _is_device(x) else x, (args, kwargs))
        if name == "cuda":
            name, func, args = "to", torch.Tensor.to, args[:1]
        first = next((x for x in tree_leaves(args[:1]) if isinstance(x, Tensor)), None)
        here = first is not None and device.has(first)
        if name in _READ and here:
            device.wait(name)
        if name == "pin_memory" and first is not None:
            return device.moved(first, here, pinned=True)
        if name == "is_pinned" and first is not None:
            return device.is_pinned(first)
        if name in ("to", "cpu", "type_as", *_MADE) and target is not None and target != here:
            made = func(*args, **kwargs)
            if not made.numel():
                pass  # nothing to copy
            elif first is None:
                device.wait(f"to the device by {name}")
            elif here:
                device.wait("to the host")
            elif not (device.is_pinned(first) and kwargs.get("non_blocking")):
                device.wait("to the device, not pinned or not asynchronous")
            return device.moved(made, target)
        if name == "rms_norm" and here:
            return _RMSNorm.apply(device, *_bound(*args, **kwargs))
        if name == "new_tensor" and here and not any(isinstance(x, Tensor) for x in tree_leaves(args[1:])):
            device.wait("to the device by new_tensor")
        with device.making(None if name in _BACKWARD else bool(target)):
            out = func(*args, **kwargs)
        if target is not None and name != "to":  # a new tensor, whatever it is like
            for tensor in (x for x in tree_leaves(out) if isinstance(x, Tensor)):
                device.place(tensor, target)
        return out


def _bound(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Any:
    return input, weight, list(normalized_shape), eps


class _RMSNorm(torch.autograd.Function):
    """`rms_norm` as CUDA has it, one kernel forward and one or two backward; a CPU's is made of many."""

    @staticmethod
    def forward(
        ctx: Any, device: PretendedDevice, x: Tensor, weight: Tensor | None, shape: list[int], eps: float | None
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.device, ctx.shape, ctx.eps = device, shape, eps
        with device.counting_once("rms_norm"):
            return torch.rms_norm(x, shape, weight, eps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        given: list[Any] = [None if x is None else x.detach().requires_grad_() for x in ctx.saved_tensors]
        needed = [x for x, needs in zip(given, ctx.needs_input_grad[1:3]) if needs and x is not None]
        with ctx.device.counting_once("rms_norm backward", len(needed)), torch.enable_grad():
            out = torch.rms_norm(given[0], ctx.shape, given[1], ctx.eps)
            found = iter(torch.autograd.grad(out, needed, gradient))
        return None, *(next(found) if needs else None for needs in ctx.needs_input_grad[1:3]), None, None


class _Operations(TorchDispatchMode):
    """What the dispatcher runs, backward passes and updates included."""

    def __init__(self, device: PretendedDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device, kwargs, name = self.device, kwargs or {}, func._schema.name.partition("::")[2]
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        here = [x for x in given if device.has(x)]
        there = [x for x in given if x.ndim and not device.has(x)]
        if here and (there or name in _SYNCHRONOUS or name in _INDEXING or name == "repeat_interleave"):
            self._check(name, args, kwargs, here, there)
        out = func(*args, **kwargs)
        if here or (not given and device.makes_here):
            made = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
            if name != "copy_":
                for tensor in made:
                    device.place(tensor)
            view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
            if not view and name not in _NO_KERNEL and "empty" not in name:
                device.counts.kernels[name] += 1
        return out

    def _check(self, name: str, args: Any, kwargs: Any, here: list[Tensor], there: list[Tensor]) -> None:
        device = self.device
        if name in _SYNCHRONOUS:
            device.wait(name.strip("_"))
        elif name == "repeat_interleave":
            size = kwargs.get("output_size", args[1] if len(args) > 1 else None)
            if isinstance(args[0], Tensor) and size is None:
                device.wait("repeat_interleave without output_size")
        elif name == "copy_":
            source = args[1]
            if not device.has(source) and not (device.is_pinned(source) and args[-1] is True):
                device.wait("copy_ to the device")
            elif device.has(source) and not device.has(args[0]):
                device.wait("copy_ to the host")
            there = []
        elif name in _INDEXING:
            index = [x for x in args[1] if x is not None]
            fills = "put" in name and args[2].numel() == 1  # a mask that is filled with one value is not counted
            if device.has(args[0]) and any(x.dtype == torch.bool for x in index) and not fills:
                device.wait("boolean mask")
            if device.has(args[0]) and any(not device.has(x) for x in index):
                device.wait("index of the host")
                there = [x for x in there if all(x is not i for i in index)]
        if there:
            shapes = ", ".join(str(list(x.shape)) for x in there)
            raise RefusedError(f"{name} takes tensors of the device and of the host {shapes}: {_place()}")


def _is_device(value: Any) -> bool:
    if isinstance(value, str):
        return value.partition(":")[0] == "cuda"
    return isinstance(value, torch.device) and value.type == "cuda"


def _target(name: str, args: Any, kwargs: Any, device: PretendedDevice) -> bool | None:
    """Whether a call names the device (True), the host (False) or neither."""
    if name in ("cuda", "cpu"):
        return name == "cuda"
    named = [kwargs.get("device"), *(args[1:] if name == "to" else ())]
    for value in named:
        if isinstance(value, torch.device):
            return value.type == "cuda"
        if isinstance(value, str) and value.partition(":")[0] in ("cuda", "cpu"):
            return value.startswith("cuda")
    other = args[1] if name in ("to", "type_as") and len(args) > 1 else None
    return device.has(other) if isinstance(other, Tensor) else None


def _place() -> str:
    """The line outside torch that is being run, and where it is called from if that is not the line of a model."""
    frames = [
        f for f in traceback.extract_stack() if Path(f.filename) != _OWN and _TORCH not in Path(f.filename).parents
    ]
    frames = [f for f in frames if "site-packages/torch" not in f.filename]
    inner = frames[-1]
    ours = next((f for f in reversed(frames) if f"{Path('families')}/" in f.filename), inner)
    lines = [inner] if ours is inner else [inner, ours]
    return " <- ".join(f"{'/'.join(Path(f.filename).parts[-2:])}:{f.lineno} {f.name}: {f.line}" for f in lines)
