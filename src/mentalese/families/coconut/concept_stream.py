"""AGCLR's memory across the passes, the concept stream. Equations are those of its paper, see `model`.

Letters in shapes: B rows, d hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mentalese.families.coconut.config import GATES, CoconutConfig


class Gate(nn.Linear):
    """The W h + b of a gate, W = 0 at the start (appendix A.3). Its sigmoid is the caller's: tools that adapt or
    quantise linear maps replace the module."""

    def __init__(self, width: int, bias_init: float) -> None:
        super().__init__(width, width)
        self.bias_init = bias_init


class ConceptStream(nn.Module):
    """Eq. 1 to 4: what a latent reads of the memory, and what it writes back."""

    def __init__(self, config: CoconutConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size)
        self.gates = nn.ModuleDict(
            {
                name: Gate(config.hidden_size, bias)
                for name, bias in zip(GATES, config.gate_biases)
                if name in config.gates
            }
        )
        self.memory_norm = nn.LayerNorm(config.hidden_size)
        self.write_passes = config.write_passes

    def forward(self, hidden: Tensor, memory: Tensor, latents: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """One latent.

        Args:
            hidden: [B, d], h_t.
            memory: [B, d], c_{t-1}.
            latents: [B], how many there were before.

        Returns:
            h'_t and c_t [B, d], and the gates' values [B, d] by name.
        """
        normed = self.norm(hidden)
        values = {name: gate(normed).sigmoid() for name, gate in self.gates.items()}
        gated = hidden
        if "forget" in values:
            gated = (1 - values["forget"]) * gated
        if "read" in values:
            gated = gated + values["read"] * memory
        written = self.memory_norm(memory + values["write"] * gated if "write" in values else memory)
        if self.write_passes is not None:
            written = torch.where((latents < self.write_passes)[:, None], written, memory)
        return gated, written, values
