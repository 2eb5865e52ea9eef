"""Rotary positions (Su et al., "RoFormer"), half-split: channel i turns with channel i + d_h / 2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def rotary_table(positions: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [.., width / 2] in float32 of positions [..], which need not be whole numbers."""
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    angles = positions.to(torch.float32)[..., None] * 10_000.0**-exponents
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x [.., d_h] by tables that broadcast to [.., d_h / 2]."""
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return _Rotate.apply(x, cos, sin) if torch.is_grad_enabled() else _turned(x, cos, sin, 1)


def rotate_first(qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys turned as by `rotate`, and values as they are, from qkv [3, B, heads, N, d_h].

    One operation turns both; its gradient has the memory layout of a linear map's output, so nothing copies it.
    """
    cos, sin = cos.to(qkv.dtype), sin.to(qkv.dtype)
    if torch.is_grad_enabled():
        return _RotateFirst.apply(qkv, cos, sin)
    q, k = _turned(qkv[:2], cos, sin, 1).unbind(0)
    return q, k, qkv[2]


class _Rotate(torch.autograd.Function):
    """A rotation that stores only its tables; the gradient turns back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(gradient, cos, sin, -1), None, None


class _RotateFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        q, k = _turned(qkv[:2], cos, sin, 1).unbind(0)
        return q, k, qkv[2]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        if torch.compiler.is_compiling():  # the compiler chooses the layout itself, and takes no `out`
            return torch.stack([*(_turned(x, cos, sin, -1) for x in gradients[:2]), gradients[2]]), None, None
        rows, heads, length, width = gradients[0].shape
        laid = gradients[0].new_empty(rows, length, 3, heads, width).permute(2, 0, 3, 1, 4)
        cosines = torch.cat((cos, cos), dim=-1)
        for gradient, out in zip(gradients, laid[:2]):
            _turn(torch.mul(gradient, cosines, out=out), gradient, sin, -1)
        laid[2].copy_(gradients[2])
        return laid, None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor, direction: int) -> Tensor:
    return _turn(x * torch.cat((cos, cos), dim=-1), x, sin, direction)


def _turn(turned: Tensor, x: Tensor, sin: Tensor, direction: int) -> Tensor:
    """Add the sines' terms to `turned`, which has the cosines' terms."""
    first, second = x.chunk(2, dim=-1)
    turned_first, turned_second = turned.chunk(2, dim=-1)
    turned_first.addcmul_(second, sin, value=-direction)
    turned_second.addcmul_(first, sin, value=direction)
    return turned
