"""Causal attention with a score for each key, on torch's fused kernels.

A score is a bias of the logits that needs a gradient, and fused attention has none for those. It is written as one more
channel instead: 1 in every query, the key's score in every key; values get a zero, since kernels want equal widths.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def with_scores(
    q: Tensor, k: Tensor, v: Tensor, scores: Tensor, *, overwrite: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [B, heads, m, d_h] with a channel for `scores` [B, m]: [B, heads, m, d_h + 1].

    Args:
        overwrite: take the last channel of q and k for it, as the authors of Thoughtbubbles do; the width stays.
    """
    if overwrite:
        q, k = q[..., :-1], k[..., :-1]
    q = torch.cat((q, q.new_ones(1).expand(*q.shape[:-1], 1)), dim=-1)
    k = torch.cat((k, scores.to(k.dtype)[:, None, :, None].expand(*k.shape[:-1], 1)), dim=-1)
    return q, k, v if overwrite else F.pad(v, (0, 1))


def attend_with_scores(q: Tensor, k: Tensor, v: Tensor, *, scale: float, attn_mask: Tensor | None = None) -> Tensor:
    """softmax(scale q k^T) v of what `with_scores` made, or of any q, k, v; causal where no mask is given.

    Args:
        attn_mask: bool [B, 1, T, m].
    """
    return F.scaled_dot_product_attention(q, k, v, attn_mask, is_causal=attn_mask is None, scale=scale)


def scored_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, scores: Tensor, *, scale: float, attn_mask: Tensor | None = None
) -> Tensor:
    """softmax(scale (q k^T + scores)) v with all logits at once; causal where no mask is given."""
    logits = scale * (q @ k.transpose(-1, -2) + scores[:, None, None, :])
    if attn_mask is None:
        attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return logits.masked_fill(~attn_mask, -math.inf).softmax(-1) @ v
