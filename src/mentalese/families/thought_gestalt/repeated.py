"""Maps that a pass applies step by step, with a single computation of their weights' gradients.

Autograd computes a gradient of the weights for each use and adds them up. Here each use passes on its input and its
output's gradient, as gradients of its rows in two tensors that cover all uses, and the weights' gradient is one product
of the two.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from mentalese.nn.blocks import ResidualLinear
from mentalese.nn.linear import is_plain


class Use(NamedTuple):
    """One use of a map: weights as constants, and rows for gradients, which replace the bias if it is `None`."""

    weight: Tensor
    bias: Tensor | None
    rows: Tensor
    inputs: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output [n, out] of the map for [n, in]; call it once per pass."""
        return _Use.apply(x.to(self.weight.dtype), *self)


def uses(weight: Tensor, bias: Tensor, sizes: list[int]) -> list[Use]:
    """Return the uses of a linear map [out, in] for these numbers of rows; the bias is [out], or [N, out] by row."""
    rows, inputs = _Collect.apply(weight, bias.expand(sum(sizes), len(weight)))
    constant, shared = weight.detach(), bias.detach() if bias.ndim == 1 else None
    return [Use(constant, shared, *of) for of in zip(rows.split(sizes), inputs.split(sizes))]


def uses_of(
    module: nn.Linear, sizes: list[int], *, norm: nn.LayerNorm | None = None, scale: Tensor | None = None
) -> list[Use] | None:
    """Return the uses of a module, or `None` where only a call of it is right (`is_plain`).

    The weights of a `norm` before the map and a factor of its output become part of it.
    """
    if not is_plain(module, nn.Linear, ResidualLinear) or not (norm is None or is_plain(norm, nn.LayerNorm)):
        return None
    weight: Tensor = module.weight
    bias: Tensor = module.bias
    if norm is not None:
        weight, bias = weight * norm.weight, bias + weight @ norm.bias
    if scale is not None:
        weight, bias = scale[:, None] * weight, scale * bias
    return uses(in_autocast(weight), in_autocast(bias), sizes)


class _Use(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor, inputs: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.addmm(rows, x, weight.t()) if bias is None else F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return gradient @ weight if ctx.needs_input_grad[0] else None, None, None, gradient, x


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows.view_as(rows), weight.new_empty(()).expand(len(rows), weight.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, inputs: Tensor) -> tuple[Tensor | None, ...]:
        return gradient.t() @ inputs if ctx.needs_input_grad[0] else None, gradient


def in_autocast(weight: Tensor) -> Tensor:
    """Return the tensor in autocast's dtype, if on, to avoid a cast in each use: autocast caches only parameters."""
    device = weight.device.type
    return weight.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else weight


class Unit(torch.autograd.Function):
    """Vectors [n, d] divided by their lengths, and the lengths [n].

    With y = s / |s| the gradient of s is (g - y (y g)) / |s|, and the gradient of |s| is y: half of autograd's kernels.
    """

    @staticmethod
    def forward(ctx: Any, s: Tensor) -> tuple[Tensor, Tensor]:
        norm = s.norm(dim=-1, keepdim=True)
        at_least = norm.clamp(min=1e-6)
        y = s / at_least
        ctx.save_for_backward(y, at_least)
        return y, norm[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_y: Tensor, of_norm: Tensor) -> Tensor:
        y, norm = ctx.saved_tensors
        along = torch.addcmul((of_y * y).sum(-1, keepdim=True), of_norm[:, None], norm, value=-1)
        return torch.addcmul(of_y, y, along, value=-1) / norm
