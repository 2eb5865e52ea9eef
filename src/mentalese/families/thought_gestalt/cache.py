"""What generation keeps of each stream between two calls.

Letters in shapes: B streams of T new tokens, S slots for the longest sentence, m vectors that are read, d hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mentalese.families.thought_gestalt.memory import MemoryMap
from mentalese.models.cache import ThoughtCache
from mentalese.nn.ragged import Ragged, split_heads


class SentenceCache(ThoughtCache):
    """The open sentence of each stream, and the memory.

    `state` has of each stream the `position` in its open sentence, the `count` of its vectors, the `memory` of them and
    the same `ready`, keys and values with their positions, the latest one as `seed`, and by layer, as `self.LAYER`
    [B, S + 1, 2 d], keys and values of the open sentence; what is written for padding goes into the last slot.

    Attributes:
        map: of vectors to keys and values, whose weights are not joined again for each token.
        sequences: none; slots take their place.
        places: the streams [B, 1] and slots [B, T] of the new tokens.
        end: slots that are read.
        seen: bool [B, 1, T, end], which of them a token sees; `None`: all.
        used: bool [B, 1, 1, m], which slots of the memory may be read; `None`: all.
    """

    def __init__(self) -> None:
        super().__init__()
        self.map: MemoryMap | None = None
        self.sequences = Ragged.of(torch.zeros(0, dtype=torch.long))
        self.places = torch.empty(0), torch.empty(0)
        self.end = 0
        self.seen: Tensor | None = None
        self.used: Tensor | None = None

    def reset(self) -> None:
        super().reset()
        self.map = None

    def place(self, slots: Tensor, size: int, first: Tensor | None = None) -> None:
        """Set the slots [B, T] of the next tokens, who see those from `first` [B] on; `size` is the slot of padding."""
        self.places, self.end, alike = (torch.arange(len(slots), device=slots.device)[:, None], slots), size, False
        if slots.device.type == "cpu":
            used = set(slots.flatten().tolist())
            self.end = max((slot for slot in used if slot < size), default=0) + 1
            alike = slots.shape[1] == 1 and first is None and len(used) == 1
        slot = torch.arange(self.end, device=slots.device)
        self.seen = None if alike else (slot <= slots[..., None])[:, None]
        if self.seen is not None and first is not None:
            self.seen = self.seen & (slot >= first[:, None, None, None])

    @torch.compiler.disable
    def attend(self, layer: int, qkv: Tensor, heads: int, dropout: float) -> Tensor:
        """Return causal attention of the new tokens, [B * T, 3 d] to [B * T, d], to their sentence so far."""
        name, shape = f"self.{layer}", self.places[1].shape
        q, kv = qkv.split((qkv.shape[1] // 3, qkv.shape[1] * 2 // 3), dim=-1)
        slots = self.state[name]
        put = slots.index_put if torch.is_grad_enabled() else slots.index_put_
        slots = self.state[name] = put(self.places, kv.reshape(*shape, -1).to(slots.dtype))
        keys, values = slots[:, : self.end].to(q.dtype).chunk(2, dim=-1)
        return self._attend(q, keys, values, self.seen, heads, dropout)

    @torch.compiler.disable
    def read(self, q: Tensor, keys: Tensor, values: Tensor, heads: int, dropout: float) -> Tensor:
        """Return what the new tokens, [B * T, d] to [B * T, d], read of the memory's [B, m, d]."""
        return self._attend(q, keys, values, self.used, heads, dropout)

    @staticmethod
    def _attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, heads: int, dropout: float) -> Tensor:
        query, k, v = (split_heads(x, heads) for x in (q.view(len(keys), -1, q.shape[1]), keys, values))
        out = F.scaled_dot_product_attention(query, k, v, attn_mask=mask, dropout_p=dropout)
        return out.transpose(1, 2).reshape(q.shape)
