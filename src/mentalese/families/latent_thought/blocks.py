"""The modules of Latent Thought Models: blocks of the decoder, the encoder of a VAE, and the data shared in a pass.

Letters in shapes: B rows of N packed tokens, n thoughts per layer, N_z in all, d hidden size, d_h head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GradientCheckpointingLayer

from mentalese.families.latent_thought.config import NORM_EPS, LTMConfig
from mentalese.nn.blocks import ResidualLinear, SwiGLU, merge_heads, rotary_heads
from mentalese.nn.packing import PackedRows
from mentalese.nn.ragged import split_heads
from mentalese.nn.rotary import rotate
from mentalese.nn.window import window_attention

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


@dataclass
class PackedBatch:
    """The data that all blocks of a pass share.

    Attributes:
        rows: the columns of the tokens in the batch.
        ids: [B, N], the packed tokens.
        rotary: cosines and sines for tokens [1 or B, 1, N, d_h / 2].
        latent_rotary: cosines and sines for the thoughts of a layer [n, d_h / 2].
        window: see `window_mask`.
        past: the cache that the pass continues, if any.
    """

    rows: PackedRows
    ids: Tensor
    rotary: tuple[Tensor, Tensor]
    latent_rotary: tuple[Tensor, Tensor]
    window: Tensor | BlockMask | None
    past: Past | None


@dataclass
class Past:
    """A cache in use, with keys and values in `window_size` slots: position p in slot p modulo `window_size`.

    Attributes:
        state: the state of the cache: `k.LAYER`, `v.LAYER` [B, heads, window, d_h], `zk.LAYER`, `zv.LAYER` [B, heads,
            n, d_h].
        newest: [B, window], the new token that enters a slot; negative: the slot keeps its token.
        visible: bool [B, 1, N, m], for the keys of `attend`; `None`: no earlier tokens.
    """

    state: dict[str, Tensor]
    newest: Tensor
    visible: Tensor | None

    def keep(self, name: str, new: Tensor) -> Tensor:
        """Store new keys or values [B, heads, N, d_h]; return the ones that queries read, [B, heads, m, d_h]."""
        old = self.state[name] if name in self.state else new.new_zeros(())
        slots = new
        if new.shape[2] > 1:
            slots = new.gather(2, self._source.expand(*new.shape[:2], -1, new.shape[3]))
        self.state[name] = torch.where(self._enters, slots, old)
        if self.visible is None:
            return new
        # One token overwrites the slot that just left its window; several tokens still need these slots.
        return self.state[name] if new.shape[2] == 1 else torch.cat((old, new), dim=2)

    @cached_property
    def _enters(self) -> Tensor:
        """The slots that a new token enters, bool [B, 1, window, 1]."""
        return (self.newest >= 0)[:, None, :, None]

    @cached_property
    def _source(self) -> Tensor:
        return self.newest.clamp(min=0)[:, None, :, None]


def slot_positions(count: Tensor, window: int) -> Tensor:
    """Return the position in each slot [B, window] after `count` [B, 1] tokens; negative: the slot is empty."""
    last = count - 1
    return last - (last - torch.arange(window, device=count.device)) % window


class SelfAttention(nn.Module):
    """Rotary attention to the last `window_size` tokens."""

    def __init__(self, config: LTMConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.window = layer, config.num_attention_heads, config.window_size
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.out = ResidualLinear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, packed: PackedBatch) -> Tensor:
        """Return the attention output [B, N, d]."""
        q, k, v = rotary_heads(self.qkv(x), self.heads, packed.rotary)
        past = packed.past
        if past is not None:
            k, v = past.keep(f"k.{self.layer}", k), past.keep(f"v.{self.layer}", v)
        if past is None or past.visible is None:
            out = window_attention(q, k, v, self.window, mask=packed.window)
        else:
            out = F.scaled_dot_product_attention(q, k, v, past.visible)
        return self.out(merge_heads(out))


class CrossAttention(nn.Module):
    """Attention to all thoughts of a layer; keys and values are linear in z, which is not normalised."""

    def __init__(self, config: LTMConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads = layer, config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.key_value = nn.Linear(config.hidden_size, 2 * config.hidden_size, bias=False)
        self.out = ResidualLinear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, z: Tensor, packed: PackedBatch) -> Tensor:
        """Return the output [B, N, d] for thoughts [B, n, d]; a cache keeps the thoughts of its first call."""
        q = rotate(split_heads(self.query(x), self.heads), *packed.rotary)
        state = {} if packed.past is None else packed.past.state
        names = f"zk.{self.layer}", f"zv.{self.layer}"
        if names[0] not in state:
            k, v = self.key_value(z).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
            state |= dict(zip(names, (rotate(k, *packed.latent_rotary), v)))
        out = F.scaled_dot_product_attention(q, state[names[0]], state[names[1]])
        return self.out(merge_heads(out))


class Block(GradientCheckpointingLayer):
    """Pre-norm self-attention, cross-attention to thoughts and SwiGLU."""

    def __init__(self, config: LTMConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden_size, eps=NORM_EPS)
        self.attention = SelfAttention(config, layer)
        self.thinks = config.num_latents > 0
        if self.thinks:
            self.cross_norm = nn.RMSNorm(config.hidden_size, eps=NORM_EPS)
            self.cross_attention = CrossAttention(config, layer)
        self.mlp_norm = nn.RMSNorm(config.hidden_size, eps=NORM_EPS)
        self.mlp = SwiGLU(config.hidden_size, config.width)

    def forward(
        self, x: Tensor, z: Tensor | None, packed: PackedBatch, *, before_z: bool = True, after: bool = True
    ) -> Tensor:
        """Return the states [B, N, d] after the block, or after a part of it.

        Args:
            z: [B, n, d]; `None` without thoughts, or if the pass ends before them.
            before_z, after: run the self-attention; run the rest.
        """
        if before_z:
            x = x + self.attention(self.attention_norm(x), packed)
        if not after:
            return x
        if self.thinks:
            x = x + self.cross_attention(self.cross_norm(x), z, packed)
        return x + self.mlp(self.mlp_norm(x))


class EncoderBlock(GradientCheckpointingLayer):
    """Pre-norm bidirectional self-attention and SwiGLU."""

    def __init__(self, config: LTMConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.attention_norm = nn.RMSNorm(config.hidden_size, eps=NORM_EPS)
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.out = ResidualLinear(config.hidden_size, config.hidden_size, bias=False)
        self.mlp_norm = nn.RMSNorm(config.hidden_size, eps=NORM_EPS)
        self.mlp = SwiGLU(config.hidden_size, config.width)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], seen: Tensor | None) -> Tensor:
        """Return the states [B, m, d] after the block; `seen` is bool [B, 1, 1, m], `None` for all."""
        q, k, v = rotary_heads(self.qkv(self.attention_norm(x)), self.heads, rotary)
        out = F.scaled_dot_product_attention(q, k, v, seen)
        x = x + self.out(merge_heads(out))
        return x + self.mlp(self.mlp_norm(x))


class Encoder(nn.Module):
    """The inference model of a VAE (section 2.2, table 4): one learned query per thought, read with the text.

    Queries have the positions of their thoughts. Tokens use the embeddings of the decoder.
    """

    def __init__(self, config: LTMConfig) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.empty(config.num_latents, config.hidden_size))
        self.blocks = nn.ModuleList(EncoderBlock(config) for _ in range(config.encoder_layers))
        self.final_norm = nn.RMSNorm(config.hidden_size, eps=NORM_EPS)
        self.posterior = nn.Linear(config.hidden_size, 2 * config.hidden_size, bias=False)

    def forward(self, tokens: Tensor, read: Tensor, packed: PackedBatch) -> tuple[Tensor, Tensor]:
        """Return means and log variances [B, N_z, d] given the embedded tokens [B, N, d] in `read` [B, N]."""
        count = len(self.queries)
        x = torch.cat((self.queries.to(tokens.dtype).expand(len(tokens), -1, -1), tokens), dim=1)
        everything = read.device.type == "cpu" and bool(read.all())  # without waiting for a GPU
        seen = None if everything else F.pad(read, (count, 0), value=True)[:, None, None]
        layers = count // len(packed.latent_rotary[0])
        rotary = [torch.cat((z.repeat(layers, 1), x[0, 0])) for z, x in zip(packed.latent_rotary, packed.rotary)]
        for block in self.blocks:
            x = block(x, (rotary[0], rotary[1]), seen)
        mu, log_var = self.posterior(self.final_norm(x[:, :count])).chunk(2, dim=-1)
        return mu, log_var
