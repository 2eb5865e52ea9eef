"""The device that is not there: what it refuses, where the host waits for it, what it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from mentalese.data.batch import send
from pretended_device import DEVICE, PretendedDevice, RefusedError


@pytest.fixture
def device() -> Iterator[PretendedDevice]:
    with PretendedDevice() as device:
        yield device


def test_what_is_made_of_the_device_is_on_the_device(device: PretendedDevice) -> None:
    layer, here, there = nn.Linear(3, 3).to(DEVICE), torch.ones(2, 3, device=DEVICE), torch.ones(2, 3)
    made = layer(here)
    assert device.has(layer.weight)
    assert made.device == made.t()[:1].device == torch.zeros_like(made).device == DEVICE
    assert made.is_cuda
    assert not made.is_cpu
    assert there.device == made.cpu().device == made.new_zeros(2, device="cpu").device == torch.device("cpu")
    assert there.new_zeros(2, device=DEVICE).device == DEVICE


def test_gradients_and_an_update_stay_on_the_device(device: PretendedDevice) -> None:
    layer = nn.Linear(3, 3).to(DEVICE)
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    counts = device.count(lambda: (layer(torch.ones(2, 3, device=DEVICE)).square().sum().backward(), optimizer.step()))
    assert layer.weight.grad is not None
    assert layer.weight.grad.device == DEVICE
    assert all(value.device == DEVICE for state in optimizer.state.values() for value in state.values())
    assert not counts.waits
    assert counts.kernels["_fused_adamw_"] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda here, there: here + there,
        lambda here, there: torch.cat((here, there)),
        lambda here, there: there[here.long()],
        lambda here, there: here.index_copy(0, there.long(), here),
        lambda here, there: there + here.sum(),
    ],
)
def test_tensors_of_both_sides_are_refused(device: PretendedDevice, wrong: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(RefusedError, match=r"test_device.py:\d+"):
        wrong(torch.zeros(3, device=DEVICE), torch.zeros(3))


def test_numbers_of_the_host_are_not_refused(device: PretendedDevice) -> None:
    here = torch.zeros(3, device=DEVICE)
    counts = device.count(lambda: torch.where(here > 0, here, torch.tensor(1.0)) + 2 * torch.tensor(3.0))
    assert not counts.waits


@pytest.mark.parametrize(
    "waits",
    [
        lambda here, there: here.sum().item(),
        lambda here, there: bool(here.any()),
        lambda here, there: int(here.amax()),
        lambda here, there: here.tolist(),
        lambda here, there: here.cpu(),
        lambda here, there: here.to("cpu"),
        lambda here, there: here.to(there.device),
        lambda here, there: here.nonzero(),
        lambda here, there: here.unique(),
        lambda here, there: here[here > 0],
        lambda here, there: here[there.long()],
        lambda here, there: here.masked_select(here > 0),
        lambda here, there: here.repeat_interleave(here.long()),
        lambda here, there: torch.equal(here, here),
        lambda here, there: torch.allclose(here, here),
        lambda here, there: there.to(DEVICE),
        lambda here, there: there.to("cuda"),
        lambda here, there: there.to(DEVICE, non_blocking=True),
        lambda here, there: there.pin_memory().to(DEVICE),
        lambda here, there: here.copy_(there),
        lambda here, there: torch.tensor([1, 2], device=DEVICE),
        lambda here, there: here.new_tensor([1, 2]),
    ],
)
def test_a_wait_is_counted(device: PretendedDevice, waits: Callable[[Tensor, Tensor], object]) -> None:
    here, there = torch.ones(3, device=DEVICE), torch.zeros(3)
    counts = device.count(lambda: waits(here, there))
    assert counts.waits.total() >= 1
    assert all("test_device.py" in place for place in counts.waits)


@pytest.mark.parametrize(
    "runs_on",
    [
        lambda here, there: here[:, None] + here,
        lambda here, there: here[here.long()],
        lambda here, there: here.masked_fill(here > 0, 1.0),
        lambda here, there: torch.full((3,), 2, device=DEVICE) + torch.arange(3, device=DEVICE),
        lambda here, there: here.repeat_interleave(here.long(), output_size=3),
        lambda here, there: there.pin_memory().to(DEVICE, non_blocking=True),
        lambda here, there: send(there, torch.device(DEVICE)),
        lambda here, there: there.sum().item() + len(there.nonzero()),
    ],
)
def test_what_does_not_wait_is_not_counted(
    device: PretendedDevice, runs_on: Callable[[Tensor, Tensor], object]
) -> None:
    here, there = torch.ones(3, device=DEVICE), torch.zeros(3)
    assert not device.count(lambda: runs_on(here, there)).waits


def test_kernels_are_operations_on_the_device_that_are_no_views(device: PretendedDevice) -> None:
    here, there = torch.ones(3, 3, device=DEVICE), torch.ones(3, 3)
    counts = device.count(lambda: (here.t()[1:] @ here, there @ there, here.expand(2, 3, 3)))
    assert counts.kernels == {"mm": 1}


def test_a_norm_is_one_kernel_and_the_same(device: PretendedDevice) -> None:
    norm, x = nn.RMSNorm(4), torch.linspace(-1, 2, 12).view(3, 4).requires_grad_()
    expected = torch.autograd.grad(norm(x).square().sum(), [x, norm.weight])
    norm.to(DEVICE)
    there = x.detach().to(DEVICE).requires_grad_()
    found: list[Tensor] = []
    counts = device.count(lambda: found.extend(torch.autograd.grad(norm(there).square().sum(), [there, norm.weight])))
    assert all(torch.equal(one.cpu(), other) for one, other in zip(found, expected))
    assert counts.kernels["rms_norm"] == 1
    assert counts.kernels["rms_norm backward"] == 2
