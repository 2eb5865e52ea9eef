"""torch's FlexAttention, and the masks of blocks that layers and passes of a length share."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


def flex_attend(q: Tensor, k: Tensor, v: Tensor, blocks: BlockMask, **options: Any) -> Tensor:
    """softmax(q k^T) v under a mask of blocks, [B, heads, T, d_h]; options are those of torch's `flex_attention`.

    Compiled on a GPU. On a CPU torch has its forward pass alone.
    """
    return _flex(q.is_cuda)(q, k, v, block_mask=blocks, **options)


@functools.lru_cache(maxsize=16)
def causal_blocks(length: int, device: torch.device, window: int | None = None) -> BlockMask:
    """Return each of `length` tokens sees itself and those before it; the last `window` of them if there is one."""
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return i >= j if window is None else (i >= j) & (i - j < window)

    with torch.inference_mode(False):
        return create_block_mask(seen, None, None, length, length, device=device)


@functools.lru_cache(maxsize=2)
def _flex(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if compiled else flex_attention
