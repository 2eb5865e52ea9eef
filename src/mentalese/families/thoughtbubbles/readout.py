"""Cross-entropy of the mixture of a token's streams (Eq. 11) without the [streams, vocabulary] table of logits.

The gradient of -log sum_j w_j softmax_j(y) in the logits of stream j is r_j (softmax_j - onehot_y), where r_j is the
share of stream j in the mixture's probability of y. A token's shares need all of its streams, so rows of the batch are
the chunks: each chunk of logits is turned into gradients at once and freed, and nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from mentalese.families.thoughtbubbles.forking import Streams
from mentalese.nn.loss import IGNORED, Logits, module_nll, product_dtype

_TOKENS = 128  # tokens whose distributions are mixed at once


def mixture_cross_entropy(
    hidden: Tensor, weight: Tensor | nn.Module, targets: Tensor, streams: Streams
) -> tuple[Tensor, Tensor]:
    """Return the mean negative log-likelihood of `targets`, differentiable once, and the nats of each token, [B, L].

    Args:
        hidden: [B, K, d], the head's input for each stream.
        weight: [v, d], or a module that maps [.., d] to [.., v].
        targets: [B, L], the target of each token, -100 for none.
    """
    counted = targets != IGNORED
    coefficients = counted / counted.sum().clamp(min=1)
    if isinstance(weight, nn.Module):
        predicted = targets.clamp(min=0).gather(1, streams.token)
        log_probabilities = -module_nll(hidden.flatten(0, 1), weight, predicted.flatten()).view(predicted.shape)
        nll = torch.where(counted, -streams.log_sum_exp(log_probabilities + streams.mixture_weights()), 0.0)
        return (nll * coefficients).sum(), nll.detach()
    log_weights = streams.mixture_weights()
    if not torch.is_grad_enabled():  # inside a Function, `needs_input_grad` would be true even so
        hidden, weight, log_weights = hidden.detach(), weight.detach(), log_weights.detach()
    return _apply(hidden, weight, log_weights, targets, coefficients, streams)


def mixture_log_probabilities(
    hidden: Tensor, head: Callable[[Tensor], Tensor], streams: Streams, *, tokens: int = _TOKENS
) -> Tensor:
    """Return the log-probabilities [B, L, v] of the mixtures of tokens' streams (Eq. 11).

    `hidden` [B, K, d] is the head's input. Streams need tables several times the size of the result, so a part of the
    tokens is mixed at a time, and once more in the backward pass.
    """
    checkpointed, out = torch.is_grad_enabled(), None
    parts: list[list[Tensor]] = []
    for rows, places, columns, part in streams.parts(tokens):
        if checkpointed:
            mixed = checkpoint(_mixed, hidden[rows, places], head, part, use_reentrant=False)
            parts += [[]] if columns.start == 0 else []
            parts[-1].append(mixed)
            continue
        mixed = _mixed(hidden[rows, places], head, part)
        out = mixed.new_empty(*streams.counts.shape, mixed.shape[2]) if out is None else out
        out[rows, columns] = mixed
    return torch.cat([torch.cat(row, dim=1) for row in parts]) if out is None else out


def _mixed(hidden: Tensor, head: Callable[[Tensor], Tensor], streams: Streams) -> Tensor:
    logits = head(hidden)
    precise = torch.promote_types(logits.dtype, torch.float32)
    return streams.log_sum_exp(logits.to(precise).log_softmax(-1) + streams.mixture_weights()[..., None])


class _MixtureCrossEntropy(torch.autograd.Function):
    """The function that returns (loss scalar, nll [B, L]); only the loss is differentiable."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        log_weights: Tensor,
        targets: Tensor,
        coefficients: Tensor,
        streams: Streams,
    ) -> tuple[Tensor, Tensor]:
        dtype, needs_grad = product_dtype(hidden, weight), any(ctx.needs_input_grad)
        precise = torch.promote_types(dtype, torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            w = weight.to(dtype)
            hidden_grad = torch.zeros_like(hidden) if needs_grad else None
            weight_grad = torch.zeros_like(weight, dtype=precise) if needs_grad else None
            shares_grad = torch.zeros_like(log_weights) if needs_grad else None
            nll = torch.zeros(targets.shape, dtype=precise, device=hidden.device)
            table = hidden.new_empty(hidden.shape[1], len(w), dtype=dtype)
            for row in range(len(hidden)):
                token = streams.token[row]
                logits = Logits(hidden[row].to(dtype), w, targets[row].clamp(min=0)[token][:, None], table)
                joint = log_weights[row] - logits.nll  # -inf in unused places
                best = joint.new_full(targets.shape[1:], -torch.inf).scatter_reduce_(0, token, joint, "amax")
                best = best.clamp(min=torch.finfo(precise).min)
                share = (joint - best[token]).exp()
                total = torch.zeros_like(best).scatter_add_(0, token, share)
                nll[row] = -(best + total.log())
                if hidden_grad is None or weight_grad is None or shares_grad is None:
                    continue
                share = share / total.clamp(min=torch.finfo(precise).tiny)[token] * coefficients[row][token]
                shares_grad[row] = -share
                logits.backward(share[:, None] / logits.scale, hidden_grad[row], weight_grad)
            nll = torch.where(targets != IGNORED, nll, 0.0)
            loss = (nll * coefficients).sum()
        ctx.mark_non_differentiable(nll)
        ctx.save_for_backward(hidden_grad, None if weight_grad is None else weight_grad.to(weight.dtype), shares_grad)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss_grad: Tensor, nll_grad: Tensor) -> tuple[Tensor | None, ...]:
        grads = (None if grad is None else grad * loss_grad.to(grad.dtype) for grad in ctx.saved_tensors)
        return (*grads, None, None, None)


@torch.compiler.disable
def _apply(*args: Any) -> tuple[Tensor, Tensor]:
    """Run eagerly under `torch.compile`: the compiler cannot trace gradients computed in a forward pass."""
    return _MixtureCrossEntropy.apply(*args)
