"""Processes that together compute what one would: set-up from `torchrun`, DDP, FSDP2, scaled and clipped gradients.

Every rank back-propagates the *sum* of its targets' losses; DDP and FSDP2 average over ranks, and `clip_and_scale`
multiplies by `world_size / targets of all ranks`. So N ranks equal one, however unevenly the targets are distributed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from mentalese.errors import require

if TYPE_CHECKING:
    from mentalese.training.step import TrainStep

Device = Literal["auto", "cpu", "cuda", "mps"]
T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True)
class Parallel:
    """This process of a run. Methods but `synchronize` are collective: call them on all ranks, from the main thread."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """True on rank 0, which writes and prints."""
        return self.rank == 0

    def synchronize(self) -> None:
        """Wait for the work of this process's GPU, if it has one."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self.max(0)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sums of values over ranks, added in float64 on the values' device: no host waits for it."""
        if self.world_size == 1:
            return values
        total = values.double()
        dist.all_reduce(total)
        return total.to(values.dtype)

    def max(self, value: int) -> int:
        """Return the largest value of any rank."""
        if self.world_size == 1:
            return value
        largest = torch.tensor(value)  # on the CPU, over gloo: the caller waits for a Python number anyway
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def broadcast_object(self, value: T) -> T:
        """Return the object of rank 0, on every rank."""
        if self.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def on_main(self, work: Callable[[], T]) -> T | None:
        """Return the result of `work` on rank 0 and `None` on others; an error of it is raised on all ranks."""
        result, error = None, None
        if self.is_main:
            try:
                result = work()
            except Exception as raised:
                error = raised
        if (error := self.broadcast_object(error)) is not None:
            raise error
        return result


def is_main_process() -> bool:
    """Return False in all but the first process of `torchrun`, even before `setup` and after `teardown`."""
    return os.environ.get("RANK", "0") == "0"


def setup(device: Device = "auto") -> Parallel:
    """Join the processes that `torchrun` started; raise `InputError` if this machine has too few such devices."""
    defaults = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0}
    rank, world_size, local_rank = (int(os.environ.get(name, default)) for name, default in defaults.items())
    chosen = _device(device, world_size, local_rank)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if world_size > 1:
        # gloo in addition to NCCL: checkpoints, counts and objects are reduced on the CPU.
        # Other ranks wait while rank 0 tokenises a corpus or scores the test split: hours, above the default half hour.
        backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(hours=12))
    return Parallel(rank, world_size, chosen)


def _device(device: Device, world_size: int, local_rank: int) -> torch.device:
    mps = torch.backends.mps.is_available()
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if mps and world_size == 1 else "cpu"
    if device == "cuda":
        count = torch.cuda.device_count()
        remedy = f"this machine has {count} GPUs, start at most one process for each, or set 'cpu'"
        require(local_rank < count, "train.device", device, remedy)
        return torch.device("cuda", local_rank)
    if device == "mps":
        require(mps and world_size == 1, "train.device", device, "it is for one process on a Mac, set 'cpu' or 'auto'")
    return torch.device(device)


def lacks_bf16(device: torch.device) -> bool:
    """Test if this is a CPU without instructions for bfloat16; False if this torch does not say."""
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    names = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
    return device.type == "cpu" and bool(capabilities) and not any(capabilities.get(name) for name in names)


def teardown() -> None:
    """Leave the process group, if `setup` joined one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def wrap(
    step: TrainStep, parallel: Parallel, kind: Literal["ddp", "fsdp"], whole: nn.Module | None = None
) -> nn.Module:
    """Return the step as `parallel` ranks run it together; for one process, the step itself.

    Build the optimiser afterwards, and score under `torch.no_grad()`: DDP treats any other call as the start of a step.
    DDP looks for unused parameters in each step: a parameter that no rank uses keeps no gradient at all, so AdamW skips
    it as in one process; adding `0 * p.sum()` to the loss would decay its weight and count the step.

    FSDP2 shards every transformer block, and the rest with the model as root; a model whose blocks are used outside
    their forward is one shard. It reduces only existing gradients, so all ranks must run the same modules. A step on
    the meta device is filled and sharded block by block, so that no device ever contains the whole model.

    Args:
        whole: rank 0's copy of the step's model, with the weights, if the step is on the meta device.
    """
    if parallel.world_size == 1:
        return step
    if kind == "ddp":
        together = DistributedDataParallel(step, find_unused_parameters=True)
        together.broadcast_buffers = False  # the argument's name changes between versions, the attribute's does not
        return together
    mesh = init_device_mesh(parallel.device.type, (parallel.world_size,))
    model = step.model
    fill = _filler(model, whole, parallel.device)
    for block in _blocks(model) if model.shard_blocks else []:
        fill(block)
        fully_shard(block, mesh=mesh)
    fill(model)
    sharded = fully_shard(model, mesh=mesh)
    for name in ("training_loss", "nll_parts"):
        register_fsdp_forward_method(model, name)
        if model.inner_gradients:
            setattr(model, name, _gathered(sharded, getattr(model, name)))
    return step


def _gathered(model: FSDPModule, method: Callable[P, T]) -> Callable[P, T]:
    """Return the method without resharding: an inner backward pass keeps the parameters for the surrounding pass."""

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        model.set_reshard_after_backward(False)
        try:
            return method(*args, **kwargs)
        finally:
            model.set_reshard_after_backward(True)

    return call


def _filler(model: nn.Module, whole: nn.Module | None, device: torch.device) -> Callable[[nn.Module], None]:
    """Return a collective function that gives a module on the meta device memory and rank 0's values; ties stay."""
    empty = {id(tensor): (name, tensor) for name, tensor in _tensors(model) if tensor.is_meta}
    values = {} if whole is None else dict(_tensors(whole))
    filled: dict[int, Tensor] = {}

    @torch.no_grad()
    def fill(module: nn.Module) -> None:
        for part in module.modules():
            for name, tensor in [
                (name, tensor) for name, tensor in _tensors(part, recurse=False) if id(tensor) in empty
            ]:
                key = id(tensor)
                if key not in filled:
                    filled[key] = torch.empty_like(tensor, device=device)
                    if values:
                        filled[key].copy_(values[empty[key][0]])
                    dist.broadcast(filled[key], src=0)
                    if isinstance(tensor, nn.Parameter):
                        filled[key] = nn.Parameter(filled[key], requires_grad=tensor.requires_grad)
                setattr(part, name, filled[key])

    return fill


def _tensors(model: nn.Module, recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and all buffers, including buffers that are not saved; tied ones under each of their names."""
    yield from model.named_parameters(recurse=recurse, remove_duplicate=False)
    yield from model.named_buffers(recurse=recurse, remove_duplicate=False)


def _blocks(module: nn.Module) -> list[nn.Module]:
    """Return the outermost members of `nn.ModuleList`s that are modules of modules (not linear maps or norms)."""
    modules: list[nn.Module] = []
    for child in module.children():
        blocks = isinstance(child, nn.ModuleList) and all(any(block.children()) for block in child)
        modules += list(child.children()) if blocks else _blocks(child)
    return modules


def no_sync(step: nn.Module, last: bool) -> AbstractContextManager[object]:
    """Return a context for a micro-batch's forward and backward pass: only the last one reduces gradients."""
    if isinstance(model := getattr(step, "model", None), FSDPModule):
        model.set_requires_gradient_sync(last)
    elif isinstance(step, DistributedDataParallel) and not last:
        return step.no_sync()
    return nullcontext()


def full_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's whole weights on the CPU of rank 0, for `save_pretrained`; other ranks join and get `{}`."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights: dict[str, Any] = get_model_state_dict(model, options=options)
    return weights


@torch.no_grad()
def clip_and_scale(parameters: Iterable[nn.Parameter], *, scale: float | Tensor, max_norm: float | None) -> Tensor:
    """Multiply all gradients by `scale` and clip their joint norm to `max_norm`, in one pass over them.

    Return the norm, over all ranks' shards, after scaling and before clipping.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    local, mesh = _local(gradients)
    norm = get_total_norm(local)
    if mesh is not None:
        squared = norm.square()
        dist.all_reduce(squared, group=mesh.get_group())
        norm = squared.sqrt()
    norm = norm * scale
    if local and max_norm is not None:
        torch._foreach_mul_(local, scale * (max_norm / (norm + 1e-6)).clamp(max=1.0))
    elif local and (isinstance(scale, Tensor) or scale != 1):
        torch._foreach_mul_(local, scale)
    return norm


@torch.no_grad()
def gradient_shares(components: Mapping[str, Sequence[Sequence[nn.Parameter]]]) -> dict[str, Tensor]:
    """Return each component's share of the gradient: mean L2 norm of its layers, normalised to a sum of 1.

    The shares do not depend on the gradients' scale, and are of all ranks. A missing gradient counts as zero.

    Args:
        components: name -> layers -> parameters.
    """
    names = [name for name, component in components.items() for _ in component]
    layers = [layer for component in components.values() for layer in component]
    if not layers:
        return {}
    gradients = [(i, p.grad) for i, layer in enumerate(layers) for p in layer if p.grad is not None]
    local, mesh = _local([gradient for _, gradient in gradients])
    squared = torch.zeros(len(layers), device=layers[0][0].device)
    if local:
        norms = torch.stack(torch._foreach_norm(local))
        squared.index_add_(0, torch.tensor([i for i, _ in gradients], device=norms.device), norms.float().square())
    if mesh is not None:
        dist.all_reduce(squared, group=mesh.get_group())
    of_layers = squared.sqrt()
    means = torch.stack([of_layers[[n == name for n in names]].mean() for name in dict.fromkeys(names)])
    return dict(zip(dict.fromkeys(names), means / means.sum().clamp(min=torch.finfo(means.dtype).tiny)))


def _local(gradients: Sequence[Tensor]) -> tuple[list[Tensor], DeviceMesh | None]:
    """Return this rank's part of gradients, and the mesh over which FSDP2 shards them."""
    mesh = next((gradient.device_mesh for gradient in gradients if isinstance(gradient, DTensor)), None)
    return [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients], mesh
