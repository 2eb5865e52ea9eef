"""Cross-entropy of a linear head without its [n, v] table of logits: rows in chunks, gradients in the forward pass.

A row's gradient needs only that row's probabilities, so the forward pass turns each chunk of logits into the gradients
of `hidden` and `weight` at once and discards it; the backward pass only scales them. One table of [chunk, v] exists at
a time, and nothing is computed twice.

A head that is more than its matrix (an adapter, a quantised map: `nn.linear`) is called instead, chunk by chunk, and
called again in the backward pass, so that one table exists at a time there too.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from mentalese.nn.linear import PatchedMatrix, patched_matrix

IGNORED = -100
_CHUNK = 512  # rows on a CPU; the best of 256 to 2048 at vocabularies of 4,096 and 50,257
_FEW = 2**22  # logits; a smaller table is computed as a whole
_LOGITS = 2**26  # numbers per chunk elsewhere: 256 MiB in float32, large enough to need few kernels


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor | nn.Module,
    targets: Tensor,
    *,
    target_weights: Tensor | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Return the weighted mean cross-entropy of `hidden @ weight.T`; differentiable once, in `hidden` and `weight`.

    Under autocast the products are computed in its dtype, and probabilities, their sums and the loss in float32.

    Args:
        hidden: [n, d].
        weight: [v, d], or a module that maps [.., d] to [.., v]; gradients are computed only for weights that require
            them.
        targets: [n], ids; -100 is ignored, and of large tables on a CPU costs nothing.
        target_weights: [n], the weight of each target; `None`: all 1. Not differentiated.
        chunk_size: rows per chunk.

    Returns:
        scalar: sum(w * nll) / sum(w), or 0 if no target counts.
    """
    if target_weights is not None:
        target_weights = target_weights.detach()
    head = _matrix(weight)
    if (kept := _counted(targets, head)) is not None:
        hidden, targets = hidden.index_select(0, kept), targets[kept]
        target_weights = None if target_weights is None else target_weights[kept]
    coefficients = (targets != IGNORED).to(torch.float32)
    if target_weights is not None:
        coefficients = coefficients * target_weights
    total = coefficients.sum()
    coefficients = torch.where(total == 0, 0.0, coefficients / total)
    if isinstance(head, nn.Module):
        return (module_nll(hidden, head, targets, chunk_size=chunk_size) * coefficients).sum()
    return _apply(hidden, head, targets, coefficients, chunk_size)[0]


@torch.no_grad()
def linear_nll(hidden: Tensor, weight: Tensor | nn.Module, targets: Tensor, *, chunk_size: int | None = None) -> Tensor:
    """Return each target's negative log-likelihood in nats, float32 [n], 0 where it is -100. Not differentiable.

    Takes the arguments of `linear_cross_entropy`.
    """
    head = _matrix(weight)
    if (kept := _counted(targets, head)) is not None:
        nll = linear_nll(hidden[kept], weight, targets[kept], chunk_size=chunk_size)
        return nll.new_zeros(len(targets)).index_copy_(0, kept, nll)
    if isinstance(head, nn.Module):
        return module_nll(hidden, head, targets, chunk_size=chunk_size)
    return _apply(hidden, head, targets, None, chunk_size)[1]


def linear_nll_sum(
    hidden: Tensor, weight: Tensor | nn.Module, targets: Tensor, *, chunk_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the sum of `linear_nll`, differentiable as `linear_cross_entropy`, and `linear_nll` itself."""
    head = _matrix(weight)
    if isinstance(head, nn.Module):
        nll = module_nll(hidden, head, targets, chunk_size=chunk_size)
        return nll.sum(), nll.detach()
    counted = (targets != IGNORED).to(torch.float32)
    return _apply(hidden, head, targets, counted, chunk_size)


def _counted(targets: Tensor, head: PatchedMatrix | nn.Module) -> Tensor | None:
    """Return the places of targets that count, where to leave out the others saves time.

    Returns:
        `None`: all count, there are few logits, or the device would have to be waited for.
    """
    if targets.device.type != "cpu" or torch.compiler.is_compiling() or isinstance(head, nn.Module):
        return None
    kept = (targets != IGNORED).nonzero()[:, 0]
    return kept if len(kept) < len(targets) and len(targets) * len(head.matrix) > _FEW else None


def _matrix(head: Tensor | nn.Module) -> PatchedMatrix | nn.Module:
    """Return the head's matrix, or the head itself if only a call is right."""
    return PatchedMatrix(head) if isinstance(head, Tensor) else patched_matrix(head) or head


def module_nll(hidden: Tensor, head: nn.Module, targets: Tensor, *, chunk_size: int | None = None) -> Tensor:
    """Return `linear_nll` of a head that is called; differentiable in `hidden` and in the head's parameters."""

    def nll(h: Tensor, y: Tensor) -> Tensor:
        logits = head(h)
        precise = torch.promote_types(logits.dtype, torch.float32)
        return F.cross_entropy(logits.to(precise), y, reduction="none", ignore_index=IGNORED)

    size = chunk_size or _CHUNK  # the size of the vocabulary is unknown here
    has_gradients = torch.is_grad_enabled()
    parts = zip(hidden.split(size), targets.split(size))
    return torch.cat([checkpoint(nll, h, y, use_reentrant=False) if has_gradients else nll(h, y) for h, y in parts])


class _LinearCrossEntropy(torch.autograd.Function):
    """The loss, a scalar, and nll [n]; only the loss is differentiable."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        coefficients: Tensor | None,
        chunk_size: int | None,
        rows: Tensor | None,
        values: Tensor | None,
        needs_grad: tuple[bool, bool, bool],
    ) -> tuple[Tensor, Tensor]:
        hidden_needs_grad, weight_needs_grad, values_need_grad = needs_grad
        device = hidden.device.type
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else torch.promote_types(hidden.dtype, weight.dtype)
        precise = torch.promote_types(dtype, torch.float32)
        with torch.autocast(device, enabled=False):
            w = weight.to(dtype)
            if rows is not None and values is not None:
                w = w.index_copy(0, rows, values.to(dtype)) if w is weight else w.index_copy_(0, rows, values.to(dtype))
            n, v = len(hidden), len(w)
            size = min(chunk_size or (_CHUNK if device == "cpu" else max(_CHUNK, _LOGITS // v)), max(n, 1))
            nll = hidden.new_zeros(n, dtype=precise)
            hidden_grad = torch.empty_like(hidden) if hidden_needs_grad else None
            weight_grad = torch.zeros_like(weight, dtype=precise) if weight_needs_grad else None
            values_grad = None if values is None else torch.zeros_like(values, dtype=precise)
            table = hidden.new_empty(size, v, dtype=dtype)  # for all chunks: fresh memory is slow to touch
            for start in range(0, n, size):
                part = slice(start, min(start + size, n))
                h = hidden[part].to(dtype)
                y = targets[part].clamp(min=0)[:, None]
                z = torch.mm(h, w.t(), out=table[: len(h)]).to(precise)
                top = z.amax(-1, keepdim=True)
                right = z.gather(1, y) - top
                p = z.sub_(top).exp_()  # probabilities times their row's `scale`
                scale = p.sum(-1, keepdim=True)
                nll[part] = (scale.log() - right)[:, 0]
                if coefficients is None or not any(needs_grad):
                    continue
                # d loss / d logits = c (p / scale - onehot); the thin matrices take the row's factor c / scale.
                p = p.scatter_add_(1, y, -scale).to(dtype)
                factor = coefficients[part, None].to(precise) / scale
                if hidden_grad is not None:
                    hidden_grad[part] = (p @ w) * factor
                if weight_grad is not None:
                    scaled = (h * factor).to(dtype)
                    if dtype == precise:
                        torch.addmm(weight_grad, p.t(), scaled, out=weight_grad)  # FLOP counters miss addmm_
                    else:
                        weight_grad += p.t() @ scaled
                if values_grad is not None and values_need_grad:
                    values_grad += p[:, rows].t().to(precise) @ (h * factor).to(precise)
            nll = nll * (targets != IGNORED)
            loss = nll.new_zeros(()) if coefficients is None else (nll * coefficients).sum()
        ctx.mark_non_differentiable(nll)
        weight_grad = None if weight_grad is None else weight_grad.to(weight.dtype)
        values_grad = None if values_grad is None or values is None else values_grad.to(values.dtype)
        ctx.save_for_backward(hidden_grad, weight_grad, values_grad)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss_grad: Tensor, nll_grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad, weight_grad, values_grad = (
            None if grad is None else grad * loss_grad.to(grad.dtype) for grad in ctx.saved_tensors
        )
        return hidden_grad, weight_grad, None, None, None, None, values_grad, None


@torch.compiler.disable
def _apply(
    hidden: Tensor,
    head: PatchedMatrix,
    targets: Tensor,
    coefficients: Tensor | None,
    chunk_size: int | None,
) -> tuple[Tensor, Tensor]:
    """Run without `torch.compile`, which cannot trace gradients that are computed in a forward pass."""
    # Inside a Function, `needs_input_grad` is true even under no_grad.
    differentiated = (hidden, head.matrix, head.values)
    needs = tuple(torch.is_grad_enabled() and x is not None and x.requires_grad for x in differentiated)
    return _LinearCrossEntropy.apply(
        hidden, head.matrix, targets, coefficients, chunk_size, head.rows, head.values, needs
    )
