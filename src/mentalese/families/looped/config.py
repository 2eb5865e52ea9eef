"""The configuration of recurrent depth."""

from __future__ import annotations

import math
from typing import Literal

from mentalese.errors import require
from mentalese.models.config import WrappedDecoderConfig
from mentalese.values import NonNegative, NonNegativeNumber, Positive, PositiveNumber, Share

BACKBONES = ("llama", "mistral", "qwen2", "qwen3")
"""Decoders whose layers are attention and MLP, each after a norm, with rotary positions and embeddings as they are."""


class LoopedConfig(WrappedDecoderConfig):
    """Recurrent depth (Geiping et al., "Scaling up Test-Time Compute with Latent Reasoning", section 3).

    Attributes:
        backbone: the layers, in their order: the prelude, the block that is run `turns` times, the coda.
        prelude_layers, coda_layers: l_P and l_C; the layers between them are the block, l_R. Zhu et al. have neither.
        turns: r, turns of the block at test time, and their mean in training.
        backprop_turns: k, the last turns through which gradients go (section 3.3); with a gate, which weighs the losses
            of all turns, they go through all of them.
        norms: `sandwich`: four norms per layer, one after the block, embeddings times sqrt(hidden_size) and small first
            weights of what layers add (sections 3.2, 4.1); `own`: the backbone as it is, for a trained one.
        exit_distance: at test time a token stops when a turn moves its state by less than this share of the state's
            length; `None`: all tokens take `turns`.
        exit_entropy: beta, the weight of the entropy of a token's exit turn in the loss (Zhu et al., "Scaling Latent
            Reasoning via Looped Language Models", Eq. 4). The model then has a gate, and each step of training takes
            `turns`, whose losses the gate weighs. `None`: no gate.
        exit_probability: q; at test time a token stops at the first turn by which the gate lets it exit with this
            probability (Zhu et al., section 3.2): all tokens after one turn at 0, none before the last at 1. `None`:
            all tokens take `turns`.
        cache_turns: turns of which generation keeps keys and values; later ones overwrite them (section 6.2). `None`:
            all of them.
    """

    model_type = "looped"
    default_backbone = "llama"
    prelude_layers: NonNegative = 1
    coda_layers: NonNegative = 1
    turns: Positive = 4
    backprop_turns: Positive = 8
    norms: Literal["sandwich", "own"] = "sandwich"
    exit_distance: PositiveNumber | None = None
    exit_entropy: NonNegativeNumber | None = None
    exit_probability: Share | None = None
    cache_turns: Positive | None = None

    @property
    def parts(self) -> tuple[range, range, range]:
        """The indices of the layers of prelude, block and coda."""
        layers = self.num_hidden_layers
        first, last = self.prelude_layers, layers - self.coda_layers
        return range(first), range(first, last), range(last, layers)

    def turns_without_gradient(self, turns: int) -> int:
        """Return how many of a training step's turns, the first ones, send no gradient."""
        return max(0, turns - self.backprop_turns) if self.exit_entropy is None else 0

    @property
    def embedding_scale(self) -> float:
        """The factor gamma of embeddings (section 3.2)."""
        return math.sqrt(self.hidden_size) if self.norms == "sandwich" else 1.0

    @property
    def may_stop(self) -> bool:
        """True if at test time a token may stop before `turns`."""
        return self.exit_distance is not None or self.exit_probability is not None

    @property
    def has_thoughts(self) -> bool:
        return self.turns > 1

    def validate_architecture(self) -> None:
        super().validate_architecture()
        kind = self.backbone_config.model_type
        require(kind in BACKBONES, "looped.backbone.model_type", kind, f"use one of {', '.join(BACKBONES)}")
        remedy = (
            f"of the backbone's {self.num_hidden_layers} layers none is left for the block; set fewer, or more layers"
        )
        self.require(len(self.parts[1]) >= 1, "prelude_layers", f"with coda_layers {self.coda_layers}, {remedy}")
        if self.exit_probability is not None:
            remedy = "the model has no gate that exits; set exit_entropy too"
            self.require(self.exit_entropy is not None, "exit_probability", remedy)
            remedy = "tokens stop by exit_distance already; remove one of the two"
            self.require(self.exit_distance is None, "exit_probability", remedy)
