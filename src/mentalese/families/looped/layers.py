"""The layers of the sandwich, and the keys and values of turns.

Letters in shapes: B rows of L tokens, m of them so far with those read earlier, d hidden size, n heads.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from mentalese.models.hf import ThoughtCache


class SandwichLayer(GradientCheckpointingLayer):
    """A decoder's layer with two more norms, each of the sum of what was there and what was added (section 3.2):

        x = n_2(x + Attn(n_1(x))),  x = n_4(x + MLP(n_3(x)))

    Args:
        layer: whose modules, names and weights it takes.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.self_attn, self.mlp = layer.self_attn, layer.mlp
        self.input_layernorm = layer.input_layernorm
        self.post_attention_layernorm = layer.post_attention_layernorm
        self.attention_out_norm = copy.deepcopy(layer.input_layernorm)
        self.mlp_out_norm = copy.deepcopy(layer.input_layernorm)

    def forward(self, hidden_states: Tensor, **options: Any) -> Tensor:
        """[B, L, d] to [B, L, d]; the options are those of the decoder's attention."""
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **options)
        x = self.attention_out_norm(hidden_states + attended)
        return self.mlp_out_norm(x + self.mlp(self.post_attention_layernorm(x)))


class LoopedCache(ThoughtCache):
    """Keys and values as states `keys.SLOT.LAYER` and `values.SLOT.LAYER`, [B, n, m, d / n]; turns beyond the slots
    overwrite earlier ones. `turns` are those of the model that wrote it."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: int | None = None

    def reset(self) -> None:
        super().reset()
        self.turns = None


class Keys:
    """What layers take for a cache during one call: it joins the call's keys and values with those before it.

    Attributes:
        slot: of the turn that runs.
        stopped: bool [B, 1, L, 1], tokens that have stopped: their keys stay those of their last turn. `None`: none.
    """

    def __init__(self, state: dict[str, Tensor] | None, past: int) -> None:
        self.state, self.past, self.slot = state, past, 0
        self.stopped: Tensor | None = None
        self.latest: dict[int, tuple[Tensor, Tensor]] = {}  # of the call's own tokens, by layer

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if self.stopped is not None and layer in self.latest:
            before = self.latest[layer]
            keys, values = (torch.where(self.stopped, *pair) for pair in zip(before, (keys, values)))
        self.latest[layer] = keys, values
        return self._joined("keys", layer, keys), self._joined("values", layer, values)

    def _joined(self, name: str, layer: int, new: Tensor) -> Tensor:
        if self.state is None:
            return new
        name = f"{name}.{self.slot}.{layer}"
        whole = torch.cat((self.state[name][:, :, : self.past], new), dim=2) if self.past else new
        self.state[name] = whole
        return whole

    def fill(self, layers: range, slots: range) -> None:
        """Writes the tokens' last keys and values where they took no turn, for later tokens that do."""
        if self.state is None:
            return
        for self.slot in slots:
            for layer in layers:
                for name, new in zip(("keys", "values"), self.latest[layer]):
                    self._joined(name, layer, new)
