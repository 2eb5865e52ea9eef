"""The chunked loss is the plain loss: value, gradients, weights and ignored targets."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mentalese.nn import loss as loss_module
from mentalese.nn.linear import is_plain, matrix_or_module
from mentalese.nn.loss import IGNORED, linear_cross_entropy, linear_nll, linear_nll_sum
from pretended_device import DEVICE, PretendedDevice
from references import linear_cross_entropy_reference, linear_nll_reference


def problem(n: int = 37, d: int = 8, v: int = 23, *, ignored: float = 0.3, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(v, (n,), generator=generator)
    targets[torch.rand(n, generator=generator) < ignored] = IGNORED
    return {
        "hidden": torch.randn(n, d, generator=generator).requires_grad_(),
        "weight": torch.randn(v, d, generator=generator).requires_grad_(),
        "targets": targets,
        "target_weights": torch.rand(n, generator=generator),
    }


def gradients(loss: Tensor, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss * 1.7, (inputs["hidden"], inputs["weight"]))


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 70), chunk=st.integers(1, 80), ignored=st.sampled_from([0.0, 0.3, 1.0]), weighted=st.booleans())
def test_loss_and_gradients_are_those_of_the_plain_form(n: int, chunk: int, ignored: float, weighted: bool) -> None:
    inputs = problem(n, ignored=ignored, seed=n * 100 + chunk)
    if not weighted:
        inputs["target_weights"] = torch.ones(n)
    expected = linear_cross_entropy_reference(**inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_module, "_CHUNK", chunk)
        loss = linear_cross_entropy(**inputs)
        nll = linear_nll(inputs["hidden"], inputs["weight"], inputs["targets"])
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=1e-6)
    for actual, reference in zip(gradients(loss, inputs), gradients(expected, inputs)):
        torch.testing.assert_close(actual, reference, atol=1e-6, rtol=1e-5)
    reference = linear_nll_reference(inputs["hidden"], inputs["weight"], inputs["targets"])
    torch.testing.assert_close(nll, reference, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("few", [0, loss_module._FEW], ids=["without ignored rows", "all rows"])
def test_a_weighted_sum_comes_with_the_nats_of_each_target(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "_FEW", few)
    inputs = problem()
    weights = inputs["target_weights"] = inputs["target_weights"] * (inputs["targets"] != IGNORED)
    total, nll = linear_nll_sum(**inputs)
    torch.testing.assert_close(nll, linear_nll_reference(inputs["hidden"], inputs["weight"], inputs["targets"]))
    expected = linear_cross_entropy_reference(**inputs) * weights.sum()
    torch.testing.assert_close(total, expected)
    for actual, reference in zip(gradients(total, inputs), gradients(expected, inputs)):
        torch.testing.assert_close(actual, reference, atol=1e-6, rtol=1e-5)


def test_rows_at_once_fit_the_memory_of_the_device() -> None:
    inputs = problem(1500)
    expected, device = linear_cross_entropy_reference(**inputs), PretendedDevice()
    with device:
        there = {name: tensor.to(DEVICE) for name, tensor in inputs.items()}
        found: list[Tensor] = []
        counts = device.count(lambda: found.append(linear_cross_entropy(**there)))
    torch.testing.assert_close(found[0], expected, atol=1e-6, rtol=1e-6)
    assert counts.kernels["amax"] == 1  # of three on a CPU


def test_a_batch_without_targets_costs_nothing_and_moves_nothing() -> None:
    inputs = problem(ignored=1.0)
    for weights in (None, torch.zeros(37)):
        loss = linear_cross_entropy(**inputs | {"target_weights": weights})
        assert loss.item() == 0
        assert all((grad == 0).all() for grad in gradients(loss, inputs))
    empty = linear_cross_entropy(inputs["hidden"][:0], inputs["weight"], inputs["targets"][:0])
    assert empty.item() == 0


def test_the_derivation_holds_to_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "_CHUNK", 10)
    inputs = problem()
    fixed = {name: inputs[name] for name in ("targets", "target_weights")}
    tensors = [inputs[name].detach().double().requires_grad_() for name in ("hidden", "weight")]
    assert torch.autograd.gradcheck(lambda h, w: linear_cross_entropy(h, w, **fixed), tensors)


def test_under_autocast_products_are_bf16_and_the_sum_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "_CHUNK", 128)
    inputs = problem(n=300, d=64, v=5000)
    exact = linear_cross_entropy_reference(**inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = linear_cross_entropy(**inputs)
        plain = linear_cross_entropy_reference(**inputs)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, plain, atol=1e-5, rtol=1e-5)  # the same bf16 logits, summed in float32
    for ours, theirs, best in zip(gradients(loss, inputs), gradients(plain, inputs), gradients(exact, inputs)):
        assert ours.dtype == torch.float32
        assert (ours - best).norm() <= 1.05 * (theirs - best).norm()


def test_logits_beyond_exp_stay_finite() -> None:
    inputs = problem()
    loss = linear_cross_entropy(inputs["hidden"] * 1e3, inputs["weight"] * 1e3, inputs["targets"])
    assert loss.isfinite()
    assert all(grad.isfinite().all() for grad in gradients(loss, inputs))


def test_frozen_head_costs_two_products_and_no_grad_one() -> None:
    inputs = problem()
    product = 2 * 37 * 8 * 23

    def flops(hidden: Tensor, weight: Tensor) -> int:
        with FlopCounterMode(display=False) as counter:
            linear_cross_entropy(hidden, weight, inputs["targets"])
        return counter.get_total_flops()

    assert flops(inputs["hidden"], inputs["weight"]) == 3 * product
    assert flops(inputs["hidden"], inputs["weight"].detach()) == 2 * product
    assert flops(inputs["hidden"].detach(), inputs["weight"]) == 2 * product
    with torch.no_grad():
        assert flops(inputs["hidden"], inputs["weight"]) == product


def test_targets_that_do_not_count_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = problem()
    whole, nll = linear_cross_entropy(**inputs), linear_nll(inputs["hidden"], inputs["weight"], inputs["targets"])
    expected = gradients(whole, inputs)
    monkeypatch.setattr(loss_module, "_FEW", 0)
    with FlopCounterMode(display=False) as counter:
        loss = linear_cross_entropy(**inputs)
    counted = int((inputs["targets"] != IGNORED).sum())
    assert counter.get_total_flops() == 3 * 2 * counted * 8 * 23 < 3 * 2 * 37 * 8 * 23
    torch.testing.assert_close(loss, whole)
    for actual, reference in zip(gradients(loss, inputs), expected, strict=True):
        torch.testing.assert_close(actual, reference)
    left_out = linear_nll(inputs["hidden"], inputs["weight"], inputs["targets"])
    torch.testing.assert_close(left_out, nll)


def test_the_graph_can_be_used_twice() -> None:
    inputs = problem()
    loss = linear_cross_entropy(**inputs)
    first = torch.autograd.grad(loss, inputs["hidden"], retain_graph=True)[0].clone()
    assert torch.equal(torch.autograd.grad(loss, inputs["hidden"])[0], first)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler's own
def test_it_runs_inside_a_compiled_function() -> None:
    inputs = problem()
    compiled = torch.compile(
        lambda h: linear_cross_entropy(h * 2, inputs["weight"], inputs["targets"]), backend="eager"
    )
    loss = compiled(inputs["hidden"])
    expected = linear_cross_entropy(inputs["hidden"] * 2, inputs["weight"], inputs["targets"])
    torch.testing.assert_close(loss, expected)
    for actual, reference in zip(gradients(loss, inputs), gradients(expected, inputs)):
        torch.testing.assert_close(actual, reference)


class Scaled(nn.Module):
    """A head that is more than its matrix."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight, self.rows = nn.Parameter(weight.detach().clone()), 0

    def forward(self, hidden: Tensor) -> Tensor:
        self.rows = max(self.rows, len(hidden))
        return 2.0 * hidden @ self.weight.T


def test_complex_head_is_called_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "_CHUNK", 10)
    inputs = problem()
    head, targets = Scaled(inputs["weight"]), inputs["targets"]
    rest = {"targets": targets, "target_weights": inputs["target_weights"]}
    loss = linear_cross_entropy(inputs["hidden"], head, **rest)
    expected = linear_cross_entropy_reference(inputs["hidden"], 2.0 * inputs["weight"], **rest)
    torch.testing.assert_close(loss, expected)
    found = torch.autograd.grad(loss, (inputs["hidden"], head.weight))
    for gradient, reference in zip(found, torch.autograd.grad(expected, (inputs["hidden"], inputs["weight"]))):
        torch.testing.assert_close(gradient, reference)
    assert head.rows == 10
    nll = linear_nll_reference(inputs["hidden"], 2.0 * inputs["weight"], targets)
    torch.testing.assert_close(linear_nll(inputs["hidden"], head, targets), nll)
    total, each = linear_nll_sum(inputs["hidden"], head, targets)
    torch.testing.assert_close(total, nll.sum())
    torch.testing.assert_close(each, nll.detach())
    assert linear_cross_entropy(inputs["hidden"][:0], head, targets[:0]).item() == 0


def test_only_a_plain_map_is_read_past_its_module() -> None:
    plain, twin = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    assert matrix_or_module(plain) is plain.weight
    biased = nn.Linear(4, 4)
    assert is_plain(biased)
    assert matrix_or_module(biased) is biased
    twin.forward = lambda x: x  # type: ignore[method-assign]
    for other in (Scaled(torch.ones(4, 4)), twin, nn.utils.parametrizations.weight_norm(nn.Linear(4, 4, bias=False))):
        assert not is_plain(other)
        assert matrix_or_module(other) is other
