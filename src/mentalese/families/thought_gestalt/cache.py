"""The cache of generation: the state of each stream between two calls.

Letters in shapes: B streams of T new tokens, S slots for the longest sentence, m vectors to read, d hidden size.
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

    `state` holds for each stream: the `position` in its open sentence, the `count` of its vectors, their `memory`, keys
    and values with positions as `ready`, the latest vector as `seed`, and for each layer, as `self.LAYER`
    [B, S + 1, 2 d], keys and values of the open sentence. The last slot receives the writes of padding.

    Attributes:
        map: the map of vectors to keys and values, stored so that its weights are not concatenated for each token.
        sequences: always `None`; slots replace sequences.
        places: the streams [B, 1] and slots [B, T] of the new tokens.
        end: number of slots to read.
        seen: bool [B, 1, T, end], the slots that a token sees; `None`: all.
        used: bool [B, 1, 1, m], the slots of the memory that may be read; `None`: all.
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
        """Set the slots [B, T] of the next tokens, which see slots from `first` [B] on; padding goes to `size`."""
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
        """Return the attention [B * T, d] of the new tokens [B * T, 3 d] to their sentence so far."""
        name, shape = f"self.{layer}", self.places[1].shape
        q, kv = qkv.split((qkv.shape[1] // 3, qkv.shape[1] * 2 // 3), dim=-1)
        slots = self.state[name]
        put = slots.index_put if torch.is_grad_enabled() else slots.index_put_
        slots = self.state[name] = put(self.places, kv.reshape(*shape, -1).to(slots.dtype))
        keys, values = slots[:, : self.end].to(q.dtype).chunk(2, dim=-1)
        return self._attend(q, keys, values, self.seen, heads, dropout)

    @torch.compiler.disable
    def read(self, q: Tensor, keys: Tensor, values: Tensor, heads: int, dropout: float) -> Tensor:
        """Return the attention [B * T, d] of the new tokens [B * T, d] to the memory's keys and values [B, m, d]."""
        return self._attend(q, keys, values, self.used, heads, dropout)

    @staticmethod
    def _attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, heads: int, dropout: float) -> Tensor:
        query, k, v = (split_heads(x, heads) for x in (q.view(len(keys), -1, q.shape[1]), keys, values))
        out = F.scaled_dot_product_attention(query, k, v, attn_mask=mask, dropout_p=dropout)
        return out.transpose(1, 2).reshape(q.shape)
