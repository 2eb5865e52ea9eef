"""Causal attention with a log score per key, on torch's fused kernels: a bias of the logits, a weight of the value.

A score is a bias of the logits that needs a gradient, and fused attention has none for biases. It is written as one
more channel instead: 1 in every query, the key's score in every key; values get a zero, since kernels need equal
    widths.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

_ALIGNED = 8  # channels; torch's memory-efficient kernels refuse other widths, and its flash kernels copy them
_QUERIES = 128  # queries per call: torch's CPU kernel computes all of a causal square of up to 512 keys


def with_scores(
    q: Tensor, k: Tensor, v: Tensor, scores: Tensor, *, overwrite: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys [B, heads, m, d_h] with a channel for `scores` [B, m], and values times exp(scores).

    Returns:
        [B, heads, m, d_h + n] each: the n channels of values are zero, and so are all but the first of q and k. n is 1
        on a CPU; elsewhere it fills up to a multiple of 8 channels, which CUDA's fused kernels require.

    Args:
        overwrite: use the last channel of q and k, as the authors of Thoughtbubbles do; the width stays.
    """
    channels = 0 if overwrite else _channels(q.shape[-1], q.device)
    if overwrite:
        q, k = q[..., :-1], k[..., :-1]
    q = torch.cat((q, q.new_ones(1).expand(*q.shape[:-1], 1)), dim=-1)
    k = torch.cat((k, scores.to(k.dtype)[:, None, :, None].expand(*k.shape[:-1], 1)), dim=-1)
    if channels > 1:
        q, k = (F.pad(x, (0, channels - 1)) for x in (q, k))
    return q, k, _Weigh.apply(v, scores, channels) if torch.is_grad_enabled() else _weighed(v, scores, channels)


def _channels(width: int, device: torch.device) -> int:
    """Return the number of channels after the `width` of a head: one for the score, and padding."""
    return 1 if device.type == "cpu" else _ALIGNED - width % _ALIGNED


def _weighed(v: Tensor, scores: Tensor, channels: int) -> Tensor:
    return F.pad(v * scores.exp().to(v.dtype)[:, None, :, None], (0, channels))


class _Weigh(torch.autograd.Function):
    """exp(s) v and some channels of zeros; the gradient of s needs only this product, so v is not stored."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, scores: Tensor, channels: int) -> Tensor:
        out = _weighed(v, scores, channels)
        ctx.save_for_backward(out, scores)
        ctx.width = v.shape[-1]
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        out, scores = ctx.saved_tensors
        score_gradient = (gradient * out).sum((1, 3), dtype=scores.dtype)
        return gradient[..., : ctx.width] * scores.exp().to(gradient.dtype)[:, None, :, None], score_gradient, None


def add_weighted(x: Tensor, update: Tensor, scores: Tensor) -> Tensor:
    """Return x + exp(scores) update, for x, update [B, N, d] and scores [B, N]."""
    return _AddWeighted.apply(x, update, scores) if torch.is_grad_enabled() else _added(x, update, scores)


def _added(x: Tensor, update: Tensor, scores: Tensor) -> Tensor:
    return torch.addcmul(x, update, scores.exp()[..., None].to(x.dtype))


class _AddWeighted(torch.autograd.Function):
    """A sum whose score gradient is the sum's gradient times the addition, y - x: the update is not stored.

    The difference is exact to a rounding of x, which would be too coarse in half precision.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, update: Tensor, scores: Tensor) -> Tensor:
        y = _added(x, update, scores)
        ctx.half = x.dtype in (torch.bfloat16, torch.float16)
        ctx.save_for_backward(scores, *((update,) if ctx.half else (x, y)))
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores, *saved = ctx.saved_tensors
        weights = scores.exp()[..., None]
        added = saved[0] * weights if ctx.half else saved[1] - saved[0]
        return gradient, gradient * weights.to(gradient.dtype), (gradient * added).sum(-1, dtype=scores.dtype)


def attend_with_scores(
    q: Tensor, k: Tensor, v: Tensor, width: int, *, scale: float, attn_mask: Tensor | None = None
) -> Tensor:
    """Return softmax(scale q k^T) v [B, T, heads * d_h] for the results of `with_scores`, or for any q, k, v.

    Of `v`, the first `width` channels count. `attn_mask` is bool [B, 1, T, m]; without one a single query sees all
    keys, and several see keys up to their own.
    """
    length = q.shape[2]
    if q.device.type != "cpu" or attn_mask is not None or not _QUERIES < length <= 4 * _QUERIES:
        causal = attn_mask is None
        if length == 1:  # a branch, because under `torch.compile` the comparison itself is symbolic
            causal = False
        out = F.scaled_dot_product_attention(q, k, v, attn_mask, is_causal=causal, scale=scale)
        return out[..., :width].transpose(1, 2).flatten(2)
    parts = []
    for start in range(0, length, _QUERIES):
        end = min(start + _QUERIES, length)
        mask = torch.ones(end - start, end, dtype=torch.bool).tril(start)
        part = F.scaled_dot_product_attention(q[:, :, start:end], k[:, :, :end], v[:, :, :end], mask, scale=scale)
        parts.append(part[..., :width].transpose(1, 2))
    return torch.cat(parts, dim=1).flatten(2)


def flex_attention_with_scores(q: Tensor, k: Tensor, v: Tensor, scores: Tensor, *, scale: float) -> Tensor:
    """Return causal attention by FlexAttention, [B, heads, T, d_h]; scores of keys keep their precision under bf16.

    See `flex_attend`.
    """

    def add_score(logit: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return logit + scale * scores[b, j]

    v = _Weigh.apply(v, scores, 0)
    return flex_attend(q, k, v, causal_blocks(q.shape[2], q.device), score_mod=add_score, scale=scale)


def flex_attend(q: Tensor, k: Tensor, v: Tensor, blocks: BlockMask, **options: Any) -> Tensor:
    """Return softmax(q k^T) v under a mask of blocks, [B, heads, T, d_h]; options are torch's `flex_attention`'s.

    It is compiled on a GPU. On a CPU torch has only its forward pass.
    """
    return _flex(q.is_cuda)(q, k, v, block_mask=blocks, **options)


@functools.lru_cache(maxsize=16)
def causal_blocks(length: int, device: torch.device, window: int | None = None) -> BlockMask:
    """Return a mask by which each of `length` tokens sees itself and earlier tokens, at most `window` in all."""
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return i >= j if window is None else (i >= j) & (i - j < window)

    with torch.inference_mode(False):
        return create_block_mask(seen, None, None, length, length, device=device)


@functools.lru_cache(maxsize=2)
def _flex(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if compiled else flex_attention
