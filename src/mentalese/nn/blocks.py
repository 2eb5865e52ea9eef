"""Parts of transformer blocks that families share."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mentalese.nn.rotary import rotate_first


class ResidualLinear(nn.Linear):
    """A map whose output is added to the residual stream; its initial weights shrink with the model's depth (GPT-2).

    It has its own class because transformers does not initialise modules that contain only other modules.
    """


class MLP(nn.Module):
    """GPT-2's MLP with the activation `gelu` or `gelu_tanh`; with `swiglu` a gated one."""

    def __init__(self, hidden: int, width: int, activation: str) -> None:
        super().__init__()
        self.activation = activation
        self.up = nn.Linear(hidden, width * (2 if activation == "swiglu" else 1))
        self.out = ResidualLinear(width, hidden)

    def activate(self, up: Tensor) -> Tensor:
        if self.activation == "swiglu":
            return gated(up)
        return F.gelu(up, approximate="tanh" if self.activation == "gelu_tanh" else "none")

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.activate(self.up(x)))


def swiglu_channels(hidden_size: int) -> int:
    """Return 8/3 of the hidden size, rounded up to a multiple of 32."""
    return -(-8 * hidden_size // 96) * 32


class SwiGLU(nn.Module):
    """The gated MLP of Llama, without biases (Shazeer, "GLU Variants Improve Transformer")."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * width, bias=False)
        self.out = ResidualLinear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(gated(self.gate_up(x)))


def gated(x: Tensor) -> Tensor:
    """Return silu(gate) * up [.., width] of gate and up [.., 2 width], side by side."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def rotary_heads(qkv: Tensor, heads: int, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys with rotary positions, and values, each [B, heads, N, d_h], from qkv [B, N, 3 d]."""
    return rotate_first(qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4), *rotary)


def merge_heads(x: Tensor) -> Tensor:
    """Reshape [B, heads, N, d_h] to [B, N, d]."""
    return x.transpose(1, 2).flatten(2)
