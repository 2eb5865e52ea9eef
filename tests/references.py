"""Plain references of the kernels in `mentalese.nn`: slow, and the same outputs and gradients."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mentalese.nn.loss import IGNORED
from mentalese.nn.ragged import split_heads


def scored_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, scores: Tensor, *, scale: float, attn_mask: Tensor | None = None
) -> Tensor:
    """Return softmax(scale (q k^T + scores)) (exp(scores) v) with all logits at once; causal without a mask."""
    logits = scale * (q @ k.transpose(-1, -2) + scores[:, None, None, :])
    if attn_mask is None:
        attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return logits.masked_fill(~attn_mask, -math.inf).softmax(-1) @ (v * scores.exp()[:, None, :, None])


def rotate_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Compute `rotate` in terms of pairs."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def linear_cross_entropy_reference(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, target_weights: Tensor | None = None
) -> Tensor:
    """Compute `linear_cross_entropy` with all logits at once."""
    nll = linear_nll_reference(hidden, weight, targets)
    weights = (targets != IGNORED).to(nll.dtype)
    if target_weights is not None:
        weights = weights * target_weights
    total = weights.sum()
    return torch.where(total == 0, 0.0, (weights * nll).sum() / total.where(total != 0, torch.ones_like(total)))


def linear_nll_reference(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Compute `linear_nll` with all logits at once."""
    return F.cross_entropy(F.linear(hidden, weight).float(), targets, reduction="none", ignore_index=IGNORED)


def causal_attention_reference(qkv: Tensor, lengths: Tensor, heads: int) -> Tensor:
    """Compute `causal_attention`, one sequence after the other."""
    out = []
    for sequence in qkv.split(lengths.tolist()):
        q, k, v = (split_heads(x[None], heads) for x in sequence.chunk(3, dim=-1))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        out.append((scores.masked_fill(later, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)[0])
    return torch.cat(out)


def window_attention_reference(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Compute `window_attention` with all pairs at once."""
    place = torch.arange(q.shape[2], device=q.device)
    ago = place[:, None] - place
    logits = q.shape[3] ** -0.5 * (q @ k.transpose(-1, -2))
    return logits.masked_fill((ago < 0) | (ago >= window), -math.inf).softmax(-1) @ v
