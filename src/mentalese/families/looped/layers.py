"""The layers of the sandwich, and the keys and values of turns.

Letters in shapes: B rows of L tokens, m of them so far with those read earlier, d hidden size, n heads.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import GradientCheckpointingLayer

from mentalese.models.cache import FixedKeys, ThoughtCache

Pair = tuple[Tensor, Tensor]
"""Keys and values [B, n, m, d / n]."""


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
    overwrite earlier ones. `turns` are those of the model that wrote it. Of a fixed size they are `fixed` instead, by
    `SLOT.LAYER`."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: int | None = None
        self.fixed: dict[str, FixedKeys] = {}

    def fix(self, columns: int) -> None:
        for place in [name.removeprefix("keys.") for name in self.state if name.startswith("keys.")]:
            keys, values = self.state.pop(f"keys.{place}"), self.state.pop(f"values.{place}")
            self.fixed[place] = FixedKeys(keys, values, columns)
        self.layers = list(self.fixed.values())

    def reset(self) -> None:
        super().reset()
        self.turns = None


class LayerKeys:
    """What one layer takes for a cache in one turn; a graph of one layer is then that of all, and of all turns.

    Attributes:
        before: keys and values of earlier calls, or what has room for these too; `None`: there are none.
        stopped: bool [B, 1, L, 1], tokens that have stopped: their keys stay `latest`. `None`: none.
        latest: of the call's own tokens, after an earlier turn; then after this one.
        whole: all of them, for later calls.
    """

    def __init__(self, before: Pair | FixedKeys | None, stopped: Tensor | None, latest: Pair | None) -> None:
        self.before, self.stopped, self.latest = before, stopped, latest
        self.whole: Pair | None = None

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> Pair:
        if self.stopped is not None and self.latest is not None:
            keys = torch.where(self.stopped, self.latest[0], keys)
            values = torch.where(self.stopped, self.latest[1], values)
        self.latest = keys, values
        if isinstance(self.before, FixedKeys):
            keys, values = self.before.update(keys, values)
        elif self.before is not None:
            keys, values = torch.cat((self.before[0], keys), dim=2), torch.cat((self.before[1], values), dim=2)
        self.whole = keys, values
        return keys, values


class Keys:
    """The keys and values of one call, which go on from those of the calls before it.

    Attributes:
        slot: of the turn that runs.
        stopped: bool [B, 1, L, 1], tokens that have stopped: their keys stay those of their last turn. `None`: none.
    """

    def __init__(self, cache: LoopedCache | None, past: int) -> None:
        self.state = None if cache is None else cache.state
        self.fixed = {} if cache is None else cache.fixed
        self.past, self.slot = past, 0
        self.stopped: Tensor | None = None
        self.latest: dict[int, Pair] = {}  # of the call's own tokens, by layer

    def of(self, layer: int) -> LayerKeys:
        """For a layer, before it runs."""
        return LayerKeys(self._before(layer), self.stopped, self.latest.get(layer))

    def keep(self, layer: int, keys: LayerKeys) -> None:
        """After it has run."""
        assert keys.latest is not None, "gradient checkpointing removes the cache: call model.eval() first"
        assert keys.whole is not None
        self.latest[layer] = keys.latest
        self._write(layer, keys.whole)

    def fill(self, layers: range, slots: range) -> None:
        """Writes the tokens' last keys and values where they took no turn, for later tokens that do."""
        for self.slot in slots:
            for layer in layers:
                keys = LayerKeys(self._before(layer), None, None)
                self._write(layer, keys.update(*self.latest[layer]))

    def _names(self, layer: int) -> tuple[str, str]:
        return f"keys.{self.slot}.{layer}", f"values.{self.slot}.{layer}"

    def _before(self, layer: int) -> Pair | FixedKeys | None:
        if self.fixed:
            return self.fixed[f"{self.slot}.{layer}"]
        if self.state is None or not self.past:
            return None
        keys, values = (self.state[name][:, :, : self.past] for name in self._names(layer))
        return keys, values

    def _write(self, layer: int, pair: Pair) -> None:
        if self.state is not None and not self.fixed:
            self.state.update(zip(self._names(layer), pair))
