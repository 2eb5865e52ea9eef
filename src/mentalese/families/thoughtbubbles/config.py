"""The configuration of Thoughtbubbles."""

from __future__ import annotations

import math
from typing import Literal

from mentalese.errors import InputError
from mentalese.models.config import LatentThoughtConfig

NORM_EPS = 1e-5


class ThoughtbubblesConfig(LatentThoughtConfig):
    """Sizes, and how residual streams fork (Liu et al., "Thoughtbubbles", sections 2 and A).

    Attributes:
        rope_theta: base of the wavelengths of rotary positions.
        layer_norm_eps: added to the variance in norms.
        max_position_embeddings: L, the training length; positions are rotary, so with a dynamic budget longer text
            can be read.
        fork_layers: 0-based blocks before which streams fork; empty: the regular RoPE transformer.
        layers_per_turn: a looped decoder: layer i has the block of layer i mod this number, and each fork its own
            decision (ours); `None`: all layers have their own.
        budget: kappa / L, streams per token; a forking layer keeps at most kappa = ceil(budget * n) streams of a text
            of n tokens (E.1). 1: scores without forks. The estimator `prefix-fixed` has ceil(budget * L) for every n.
        selection: which streams stay. `block`: the best kappa of the whole text, so later tokens influence which
            earlier streams stay; `causal`: those that reach their layer's threshold while the tokens so far are within
            their budget (ours).
        copies: streams per token from the first block on (the baselines copy-3 and copy-5).
        readout: how a token's streams make one prediction. `mixture`: of their distributions (Eq. 11); `residual`:
            LN(sum p x); `residual_ln`: sum p LN(x); `rightmost`: the token's own stream.
        score_scale: attention logits are (q k + s) / sqrt(d_h) for `head`, / sqrt(d) for `model` (Eq. 8 as printed);
            `overwrite` is `head` with s in place of the last rotary channel (the release).
        rotation: the q of Eq. 13, by which a token's streams share its rotation: the number of its `streams` ("q
            streams representing a particular input token", section D), or of its `forks`, one less ("q forks in total",
            the same section; the leftmost fork then has the position of the token before).
        activation: `gelu` (exact) or `gelu_tanh`.
    """

    model_type = "thoughtbubbles"
    constants = {  # noqa: RUF012 (never written to)
        "budget_mode": "dynamic",
        "fork_bias_init": None,
        "rope_theta": 10_000.0,
        "layer_norm_eps": NORM_EPS,
    }
    max_position_embeddings: int = 512
    fork_layers: tuple[int, ...] = ()
    layers_per_turn: int | None = None
    budget: float = 2.0
    selection: Literal["block", "causal"] = "block"
    copies: int = 1
    readout: Literal["mixture", "residual", "residual_ln", "rightmost"] = "mixture"
    score_scale: Literal["head", "model", "overwrite"] = "head"
    rotation: Literal["streams", "forks"] = "streams"
    activation: Literal["gelu", "gelu_tanh"] = "gelu"

    @property
    def has_thoughts(self) -> bool:
        return bool(self.fork_layers)

    def validate_architecture(self) -> None:
        super().validate_architecture()
        if self.hidden_size // self.num_attention_heads % 2:
            raise InputError(
                f"{self.model_type}.num_attention_heads is {self.num_attention_heads}: rotary positions need heads of "
                f"even width, and this sets {self.hidden_size // self.num_attention_heads}"
            )
        self.check_turns(self.layers_per_turn)
        layers = self.fork_layers
        outside = [layer for layer in layers if not 0 <= layer < self.num_hidden_layers]
        if outside:
            raise InputError(
                f"{self.model_type}.fork_layers contains {outside[0]}: set 0-based blocks below num_hidden_layers "
                f"({self.num_hidden_layers})"
            )
        if list(layers) != sorted(set(layers)):
            raise InputError(f"{self.model_type}.fork_layers is {layers}: set each block once, in rising order")
        if not (math.isfinite(self.budget) and self.budget >= 1):
            raise InputError(
                f"{self.model_type}.budget is {self.budget}: kappa is budget * L and every token keeps a stream, so "
                "set 1 or more"
            )
        if self.max_position_embeddings < 1:
            raise InputError(
                f"{self.model_type}.max_position_embeddings is {self.max_position_embeddings}: set 1 or more"
            )
        if self.copies < 1:
            raise InputError(f"{self.model_type}.copies is {self.copies}: set 1 (no copies) or more")
        if self.copies > 1 and (layers or self.readout != "rightmost"):
            raise InputError(
                f"{self.model_type}.copies is {self.copies}: copies are a baseline without fork_layers, read out at "
                "the rightmost; set fork_layers=() and readout='rightmost'"
            )

    def streams(self, tokens: int) -> int:
        """Return kappa, the largest number of streams after a fork for a text of this many tokens."""
        return math.ceil(self.budget * tokens - 1e-6)  # 1.1 times 10 are 11

    @property
    def causal(self) -> bool:
        """True if one forward pass gives the autoregressive likelihood, also if only original streams stay."""
        return not self.fork_layers or self.budget == 1 or self.selection == "causal"
