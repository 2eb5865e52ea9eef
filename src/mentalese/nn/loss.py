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


def predictable_labels(labels: Tensor, real: Tensor) -> Tensor:
    """Return labels [B, L] without labels directly after padding (`real` [B, L] is false), which nothing predicts."""
    return labels.masked_fill(~F.pad(real[:, :-1], (1, 0), value=True), IGNORED)


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor | nn.Module, targets: Tensor, *, target_weights: Tensor | None = None
) -> Tensor:
    """Return the weighted mean cross-entropy of `hidden @ weight.T`, a scalar; 0 if no target counts.

    Takes the arguments of `linear_nll_sum`; `target_weights` [n] are not differentiated.
    """
    factors = (targets != IGNORED).to(torch.float32)
    if target_weights is not None:
        factors = factors * target_weights.detach()
    total = factors.sum()
    shares = torch.where(total == 0, 0.0, factors / total)
    return linear_nll_sum(hidden, weight, targets, target_weights=shares)[0]


@torch.no_grad()
def linear_nll(hidden: Tensor, weight: Tensor | nn.Module, targets: Tensor) -> Tensor:
    """Return the nats of `linear_nll_sum`. Not differentiable."""
    return linear_nll_sum(hidden, weight, targets)[1]


def linear_nll_sum(
    hidden: Tensor, weight: Tensor | nn.Module, targets: Tensor, *, target_weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of all targets' negative log-likelihoods in nats, and each, float32 [n], 0 at -100.

    The sum is differentiable once, in `hidden` and `weight`. Under autocast the products are computed in its dtype, and
    probabilities, their sums and the nats in float32.

    Args:
        hidden: [n, d].
        weight: [v, d], or a module that maps [.., d] to [.., v]; gradients are computed only for weights that require
            them.
        targets: [n], ids; -100 is ignored, and of large tables on a CPU costs nothing.
        target_weights: [n], of the sum, 0 at -100, not differentiated; `None`: 1.
    """
    head = PatchedMatrix(weight) if isinstance(weight, Tensor) else patched_matrix(weight) or weight
    if (kept := _counted(targets, head)) is not None:
        factors = None if target_weights is None else target_weights[kept]
        total, nll = linear_nll_sum(hidden.index_select(0, kept), weight, targets[kept], target_weights=factors)
        return total, nll.new_zeros(len(targets)).index_copy_(0, kept, nll)
    return _weighted_nll(hidden, head, targets, target_weights)


def _counted(targets: Tensor, head: PatchedMatrix | nn.Module) -> Tensor | None:
    """Return the places of targets that count, or `None` where to leave out the others saves no time."""
    if targets.device.type != "cpu" or torch.compiler.is_compiling() or isinstance(head, nn.Module):
        return None
    kept = (targets != IGNORED).nonzero()[:, 0]
    return kept if len(kept) < len(targets) and len(targets) * len(head.matrix) > _FEW else None


def module_nll(hidden: Tensor, head: nn.Module, targets: Tensor) -> Tensor:
    """Return `linear_nll` of a head that is called; differentiable in `hidden` and in the head's parameters."""

    def nll(h: Tensor, y: Tensor) -> Tensor:
        logits = head(h)
        precise = torch.promote_types(logits.dtype, torch.float32)
        return F.cross_entropy(logits.to(precise), y, reduction="none", ignore_index=IGNORED)

    has_gradients = torch.is_grad_enabled()
    parts = zip(hidden.split(_CHUNK), targets.split(_CHUNK))  # the size of the vocabulary is unknown here
    return torch.cat([checkpoint(nll, h, y, use_reentrant=False) if has_gradients else nll(h, y) for h, y in parts])


class Logits:
    """A chunk of logits, as probabilities `p` [m, v] times `scale` [m, 1], and the nats of its targets.

    Args:
        h: [m, d], in the dtype of products.
        w: [v, d].
        y: [m, 1], the targets.
        table: memory for the logits, [m or more, v].
    """

    def __init__(self, h: Tensor, w: Tensor, y: Tensor, table: Tensor) -> None:
        self.h, self.w, self.y = h, w, y
        z = torch.mm(h, w.t(), out=table[: len(h)]).to(torch.promote_types(h.dtype, torch.float32))
        top = z.amax(-1, keepdim=True)
        right = z.gather(1, y) - top
        self.p = z.sub_(top).exp_()
        self.scale = self.p.sum(-1, keepdim=True)
        self.nll = (self.scale.log() - right)[:, 0]

    def backward(self, factor: Tensor, hidden_grad: Tensor | None, weight_grad: Tensor | None) -> None:
        """Write or add the gradients of sum(c * nll), c = factor [m, 1] * `scale`.

        d nll / d logits = p / scale - onehot; the thin matrices take the row's factor c / scale.
        """
        p = self.p = self.p.scatter_add_(1, self.y, -self.scale).to(self.h.dtype)
        if hidden_grad is not None:
            hidden_grad.copy_((p @ self.w) * factor)
        if weight_grad is None:
            return
        scaled = (self.h * factor).to(p.dtype)
        if p.dtype == weight_grad.dtype:
            torch.addmm(weight_grad, p.t(), scaled, out=weight_grad)  # FLOP counters miss `addmm_`
        else:
            weight_grad += p.t() @ scaled


def product_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """Return the dtype in which autocast, if on, multiplies the two."""
    device = hidden.device.type
    autocast = torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if autocast else torch.promote_types(hidden.dtype, weight.dtype)


class _WeightedNLL(torch.autograd.Function):
    """The sum of nll times coefficients (`None`: 1), a scalar, and nll [n]; only the sum is differentiable."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        values: Tensor | None,
        rows: Tensor | None,
        targets: Tensor,
        coefficients: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        device, dtype = hidden.device.type, product_dtype(hidden, weight)
        precise = torch.promote_types(dtype, torch.float32)
        with torch.autocast(device, enabled=False):
            w = weight.to(dtype)
            if rows is not None and values is not None:
                w = w.index_copy(0, rows, values.to(dtype)) if w is weight else w.index_copy_(0, rows, values.to(dtype))
            n, v = len(hidden), len(w)
            size = min(_CHUNK if device == "cpu" else max(_CHUNK, _LOGITS // v), max(n, 1))
            nll = hidden.new_zeros(n, dtype=precise)
            needs_grad = ctx.needs_input_grad
            hidden_grad = torch.empty_like(hidden) if needs_grad[0] else None
            weight_grad = torch.zeros_like(weight, dtype=precise) if needs_grad[1] else None
            values_grad = None if values is None else torch.zeros_like(values, dtype=precise)
            counted = targets != IGNORED
            factors = None
            if any(needs_grad):
                factors = (counted if coefficients is None else coefficients)[:, None].to(precise)
            table = hidden.new_empty(size, v, dtype=dtype)  # for all chunks: fresh memory is slow to touch
            for start in range(0, n, size):
                part = slice(start, min(start + size, n))
                logits = Logits(hidden[part].to(dtype), w, targets[part].clamp(min=0)[:, None], table)
                nll[part] = logits.nll
                if factors is None:
                    continue
                factor = factors[part] / logits.scale
                logits.backward(factor, None if hidden_grad is None else hidden_grad[part], weight_grad)
                if values_grad is not None and needs_grad[2]:
                    values_grad += logits.p[:, rows].t().to(precise) @ (logits.h * factor).to(precise)
            nll = nll * counted
            loss = (nll if coefficients is None else nll * coefficients).sum()
        ctx.mark_non_differentiable(nll)
        weight_grad = None if weight_grad is None else weight_grad.to(weight.dtype)
        values_grad = None if values_grad is None or values is None else values_grad.to(values.dtype)
        ctx.save_for_backward(hidden_grad, weight_grad, values_grad)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss_grad: Tensor, nll_grad: Tensor) -> tuple[Tensor | None, ...]:
        grads = (None if grad is None else grad * loss_grad.to(grad.dtype) for grad in ctx.saved_tensors)
        return (*grads, None, None, None)


@torch.compiler.disable
def _weighted_nll(
    hidden: Tensor, head: PatchedMatrix | nn.Module, targets: Tensor, coefficients: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Run without `torch.compile`, which cannot trace gradients that are computed in a forward pass."""
    if isinstance(head, nn.Module):
        nll = module_nll(hidden, head, targets)
        return (nll if coefficients is None else nll * coefficients).sum(), nll.detach()
    matrix, rows, values = head
    if not torch.is_grad_enabled():  # inside a Function, `needs_input_grad` would be true even so
        hidden, matrix, values = hidden.detach(), matrix.detach(), None if values is None else values.detach()
    return _WeightedNLL.apply(hidden, matrix, values, rows, targets, coefficients)
