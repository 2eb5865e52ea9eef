"""torch's FlexAttention, and masks of blocks that layers and passes of equal length share."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


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
