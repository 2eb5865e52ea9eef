"""The modules of a masked diffusion language model: bidirectional blocks, and the embedding of the time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GradientCheckpointingLayer

from mentalese.families.masked_diffusion.config import NORM_EPS, MaskedDiffusionConfig
from mentalese.nn.blocks import ResidualLinear, gated, merge_heads, rotary_heads
from mentalese.nn.rotary import rotary_table

FREQUENCIES = 256  # sines and cosines of the time, as in diffusion transformers (Peebles and Xie, 2023)


class Modulation(nn.Linear):
    """A map from the time to shift, scale and gate of a sublayer, initially zero (adaLN-zero)."""


class TimeEmbedding(nn.Module):
    """The embedding of the time that conditions blocks."""

    def __init__(self, config: MaskedDiffusionConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(FREQUENCIES, config.conditioning_size)
        self.out = nn.Linear(config.conditioning_size, config.conditioning_size)

    def forward(self, time: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the embedding [B, conditioning_size] of times [B] in this precision."""
        waves = torch.cat(rotary_table(time, FREQUENCIES), dim=-1).to(dtype)
        return F.silu(self.out(F.silu(self.inner(waves))))


class Block(GradientCheckpointingLayer):
    """Pre-norm bidirectional attention and SwiGLU."""

    def __init__(self, config: MaskedDiffusionConfig) -> None:
        super().__init__()
        d, self.heads = config.hidden_size, config.num_attention_heads
        self.attention_norm = nn.RMSNorm(d, eps=NORM_EPS)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.attention_out = ResidualLinear(d, d, bias=False)
        self.mlp_norm = nn.RMSNorm(d, eps=NORM_EPS)
        self.gate_up = nn.Linear(d, 2 * config.width, bias=False)
        self.mlp_out = ResidualLinear(config.width, d, bias=False)
        self.modulation = Modulation(config.conditioning_size, 6 * d) if config.sees_time else None

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], visible: Tensor | None, time: Tensor | None) -> Tensor:
        """Return the states [B, N, d] after the block.

        Args:
            rotary: cosines and sines of the positions, [B or 1, 1, N, d_h / 2].
            visible: bool [B, 1, 1, N]; `None`: there is no padding.
            time: [B, conditioning_size], for models that see it.
        """
        if self.modulation is None:
            x = x + self.attend(self.attention_norm(x), rotary, visible)
            return x + self.mlp(self.mlp_norm(x))
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = self.modulation(time)[:, None].chunk(6, dim=-1)
        x = x + gate * self.attend(self.attention_norm(x) * (1 + scale) + shift, rotary, visible)
        return x + gate_mlp * self.mlp(self.mlp_norm(x) * (1 + scale_mlp) + shift_mlp)

    def attend(self, x: Tensor, rotary: tuple[Tensor, Tensor], visible: Tensor | None) -> Tensor:
        out = F.scaled_dot_product_attention(*rotary_heads(self.qkv(x), self.heads, rotary), visible)
        return self.attention_out(merge_heads(out))

    def mlp(self, x: Tensor) -> Tensor:
        return self.mlp_out(gated(self.gate_up(x)))
