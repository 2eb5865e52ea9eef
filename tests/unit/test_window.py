"""Attention in a window: the dense form's outputs and gradients, whatever the lengths."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from mentalese.nn.window import window_attention, window_mask, window_pairs
from references import window_attention_reference

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def tensors(length: int, rows: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(0)
    # The layout that a fused projection gives: heads behind tokens.
    return [torch.randn(rows, length, 2, 4).transpose(1, 2).requires_grad_() for _ in range(3)]


def check(length: int, window: int) -> None:
    q, k, v = tensors(length)
    out, expected = window_attention(q, k, v, window), window_attention_reference(q, k, v, window)
    torch.testing.assert_close(out, expected, **CLOSE)
    weights = torch.randn_like(expected)
    got, wanted = (torch.autograd.grad(x, (q, k, v), weights) for x in (out, expected))
    for one, other in zip(got, wanted):
        torch.testing.assert_close(one, other, **CLOSE)


@given(length=st.integers(1, 150), window=st.integers(1, 150))
def test_outputs_and_gradients_are_those_of_all_pairs(length: int, window: int) -> None:
    check(length, window)


@pytest.mark.parametrize(("length", "window"), [(400, 160), (321, 129), (512, 256)])
def test_windows_larger_than_a_block_are_exact_too(length: int, window: int) -> None:
    check(length, window)


@pytest.mark.parametrize("length", [10, 40, 100])
def test_padding_behind_a_row_changes_nothing_before_it(length: int) -> None:
    q, k, v = tensors(length + 30)
    whole = window_attention(q, k, v, 16)[:, :, :length]
    torch.testing.assert_close(whole, window_attention(*(x[:, :, :length] for x in (q, k, v)), 16), **CLOSE)


@pytest.mark.parametrize("length", [64, 100, 1000])
def test_pairs_are_what_is_multiplied(length: int) -> None:
    q, k, v = (x.detach() for x in tensors(length))
    with FlopCounterMode(display=False) as counter:
        window_attention(q, k, v, 63)
    assert counter.get_total_flops() == 2 * 2 * 2 * (2 * 4) * window_pairs(length, 63)
    assert window_pairs(1000, 63) < 0.15 * 1000**2


def test_a_mask_made_once_serves_every_layer() -> None:
    q, k, v = tensors(100)
    given_mask = window_attention(q, k, v, 20, mask=window_mask(100, 20))
    assert torch.equal(given_mask, window_attention(q, k, v, 20))
    assert window_mask(20, 20) is None


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("length", [20, 64, 300])
def test_flex_attention_gives_the_same(length: int) -> None:
    q, k, v = (x.detach() for x in tensors(length))
    mask = window_mask(length, 20, flex=True)
    torch.testing.assert_close(
        window_attention(q, k, v, 20, mask=mask), window_attention_reference(q, k, v, 20), **CLOSE
    )
    assert mask is window_mask(length, 20, flex=True), "layers and passes share the mask"


def test_half_precision_stays_near() -> None:
    q, k, v = (x.detach() for x in tensors(100))
    half = window_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), 20)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), window_attention_reference(q, k, v, 20), atol=3e-2, rtol=3e-2)
