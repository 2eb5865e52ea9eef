"""The configuration of Thoughtbubbles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from pydantic import Field

from mentalese.models.config import LatentThoughtConfig
from mentalese.values import NonNegative, Positive

if TYPE_CHECKING:
    from torch import Tensor

NORM_EPS = 1e-5
Count = TypeVar("Count", int, "Tensor")


class ThoughtbubblesConfig(LatentThoughtConfig):
    """Sizes, and how residual streams fork (Liu et al., "Thoughtbubbles", sections 2 and A).

    Attributes:
        max_position_embeddings: L, the training length; positions are rotary, so with a dynamic budget longer text
            can be read.
        fork_layers: 0-based blocks before which streams fork; empty: the regular RoPE transformer.
        layers_per_turn: a looped decoder: layer i has the block of layer i mod this number, and each fork its own
            decision (ours); `None`: all layers have their own.
        budget: kappa / L, streams per token, at least 1 as every token keeps a stream; a forking layer keeps at most
            kappa = ceil(budget * n) streams of a text of n tokens (E.1). 1: scores without forks. The estimator
            `prefix-fixed` has ceil(budget * L) for every n.
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
    max_position_embeddings: Positive = 512
    fork_layers: tuple[NonNegative, ...] = ()
    layers_per_turn: Positive | None = None
    budget: Annotated[float, Field(ge=1, le=1e6)] = 2.0
    selection: Literal["block", "causal"] = "block"
    copies: Positive = 1
    readout: Literal["mixture", "residual", "residual_ln", "rightmost"] = "mixture"
    score_scale: Literal["head", "model", "overwrite"] = "head"
    rotation: Literal["streams", "forks"] = "streams"
    activation: Literal["gelu", "gelu_tanh"] = "gelu"

    @property
    def has_thoughts(self) -> bool:
        return bool(self.fork_layers)

    def validate_architecture(self) -> None:
        super().validate_architecture()
        self.require_even_heads()
        self.check_turns(self.layers_per_turn)
        layers, count = self.fork_layers, self.num_hidden_layers
        rising = list(layers) == sorted({layer for layer in layers if layer < count})
        remedy = f"set 0-based blocks below num_hidden_layers ({count}), each once, in rising order"
        self.require(rising, "fork_layers", remedy)
        remedy = "copies are a baseline read out at the rightmost; set fork_layers=() and readout='rightmost'"
        self.require(self.copies == 1 or (not layers and self.readout == "rightmost"), "copies", remedy)

    def streams(self, tokens: Count) -> Count:
        """Return kappa, the largest number of streams after a fork for texts of so many tokens."""
        billionths = int(1e9 * self.budget + 1e-3)  # whole numbers: 1.1 times 10 are 11, and Apple GPUs have no float64
        return -(-billionths * tokens // 10**9)

    @property
    def causal(self) -> bool:
        """True if one forward pass gives the autoregressive likelihood, also if only original streams stay."""
        return not self.fork_layers or self.budget == 1 or self.selection == "causal"
