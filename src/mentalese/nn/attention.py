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


def flex_attention_with_scores(q: Tensor, k: Tensor, v: Tensor, scores: Tensor, *, scale: float) -> Tensor:
    """The same by FlexAttention, causal: [B, heads, T, d_h]; scores keep their precision under bf16.

    Compiled on a GPU. On a CPU torch has its forward pass alone.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def add_score(logit: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return logit + scale * scores[b, j]

    length = q.shape[2]
    causal = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device=q.device)
    attend = torch.compile(flex_attention) if q.is_cuda else flex_attention
    return attend(q, k, v, score_mod=add_score, block_mask=causal, scale=scale)


def scored_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, scores: Tensor, *, scale: float, attn_mask: Tensor | None = None
) -> Tensor:
    """softmax(scale (q k^T + scores)) v with all logits at once; causal where no mask is given."""
    logits = scale * (q @ k.transpose(-1, -2) + scores[:, None, None, :])
    if attn_mask is None:
        attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return logits.masked_fill(~attn_mask, -math.inf).softmax(-1) @ v
