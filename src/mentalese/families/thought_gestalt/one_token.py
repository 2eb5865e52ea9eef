"""Attention of a single token per stream, from slots of fixed size.

Letters in shapes: B streams, d hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mentalese.families.thought_gestalt.plan import readable
from mentalese.nn.ragged import split_heads


class OneToken:
    """Attention of one token a stream to its open sentence and to the memory, in place of `OpenSentences`.

    Attributes:
        rows, position: [B], the streams, and the slot of each one's token.
        end, slots: slots of the sentence, and of the memory, that are read.
        seen: bool [B, 1, 1, end], `None`: all.
        used: bool [B, 1, 1, slots], `None`: all.
    """

    def __init__(self, state: dict[str, Tensor], size: int, memory_size: int) -> None:
        self.state, self.position, count = state, state["position"], state["count"]
        device = self.position.device
        self.rows = torch.arange(len(count), device=device)
        self.end, self.slots = size, memory_size
        self.seen: Tensor | None = None
        self.used: Tensor | None = None
        self.has_memory: Tensor | None = None
        positions = counts = [-1, 0]  # on a GPU unknown: all differ
        if device.type == "cpu":
            positions, counts = self.position.tolist(), count.tolist()
            self.end, self.slots = max(positions) + 1, max(1, *counts, 1)
        if len(set(positions)) > 1:
            self.seen = (torch.arange(self.end, device=device) <= self.position[:, None])[:, None, None]
        if len(set(counts)) > 1 or not counts[0]:
            self.has_memory = (count > 0)[:, None]
            used = torch.arange(self.slots, device=device) < count[:, None]
            self.used = readable(used)[:, None, None]

    def attend(self, layer: int, qkv: Tensor, heads: int) -> Tensor:
        """[B, 3 d] to [B, d]."""
        width = qkv.shape[1] // 3
        slots = self.state[f"self.{layer}"]
        slots.index_put_((self.rows, self.position), qkv[:, width:].to(slots.dtype))
        keys, values = slots[:, : self.end].to(qkv.dtype).chunk(2, dim=-1)
        return self._attend(qkv[:, :width], keys, values, self.seen, heads)

    def read(self, q: Tensor, keys: Tensor, values: Tensor, heads: int) -> Tensor:
        """[B, d] to [B, d], of the memory."""
        return self._attend(q, keys, values, self.used, heads)

    @staticmethod
    def _attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, heads: int) -> Tensor:
        k, v = split_heads(keys, heads), split_heads(values, heads)
        return F.scaled_dot_product_attention(q.view(len(q), heads, 1, -1), k, v, attn_mask=mask).reshape(q.shape)
