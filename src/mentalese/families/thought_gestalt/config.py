"""Thought Gestalt's settings; the defaults are the paper's 85M model."""

from __future__ import annotations

from typing import Literal

from mentalese.errors import InputError
from mentalese.models.config import LatentThoughtConfig

HINGE_WEIGHT = 0.01
"""Weight of the squared distance of a `normalized` vector's length, before it is 1, from [0.9, 1.1] (the release)."""


class ThoughtGestaltConfig(LatentThoughtConfig):
    """Sizes and choices of a Thought Gestalt model. Layers count from 0.

    Attributes:
        activation: of the MLP, exact GELU or SwiGLU.
        intermediate_size: width of the MLP; `None`: 4 d for `gelu`; 8/3 d, rounded up to a multiple of 8, for
            `swiglu` (the release rounds to the nearest one).
        layers_per_turn: a looped decoder: layer i has the block of layer i mod this number (ours); `None`: all layers
            have their own.
        attention_layout: what a block attends to before its MLP. `alternate`: even blocks to the sentence, odd ones to
            the memory (Figure 3); `self_cross`, `cross_self`: both, one after the other; `parallel`: both at once
            (Table 1).
        max_sentence_tokens: the most lexical tokens of a sentence; the table of positions has three more (the start and
            end of the sentence, the end of the document).
        memory: how earlier sentences are read. `cross_attention` is the paper's model; `prefix` puts their vectors
            before the sentence as M more tokens, and all attention is self-attention; `none` leaves one sentence of
            context and no seeding (Table 1).
        memory_size: M, the number of latest sentence vectors that can be read.
        memory_gradient_window: a sentence's loss sends gradients into this many of the latest vectors that it reads;
            older ones are constants. `None`: into all of them; 0: into none, nor into the seed. A call with a cache,
            which training does not make, knows only these two.
        sentence_layer: the layer whose output at the end of a sentence becomes its vector; `None`: at 7/12 of the
            depth (the paper's seventh layer of twelve is 6 here).
        sentence_head: `linear`: the paper's s = W h (section 2.2); `normalized`: the release's, a norm before the map
            and vectors of length 1, whose channels are small at a small width (the suite's `gate_init` repairs this).
        context_seeding: a sentence starts from the previous sentence's vector instead of its start marker.
        gate_init: first value of the gates of the memory; 1 adds what is read unscaled (appendix C).
        attention_dropout, residual_dropout, embedding_dropout: the paper's 0.2, and two that only the release has.
        layer_norm_eps: of all norms, the sentence head's included; weights of the authors' release want its 1e-6.
        next_vector_weight: weight of the loss of the next sentence's vector, see `model.next_vector_loss` (ours, not
            the paper's); 0: none, and no parameters for it.
        sentence_start_token_id, sentence_end_token_id: the markers around each sentence.
        eos_token_id: ends a document; `generate` stops there.
        pad_token_id: ignored at every position.
    """

    model_type = "thought_gestalt"
    constants = {"memory_position_scale": "unit", "norm_hinge_weight": HINGE_WEIGHT}  # noqa: RUF012 (never written to)

    vocab_size: int = 50_260
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int | None = None
    activation: Literal["gelu", "swiglu"] = "gelu"
    layers_per_turn: int | None = None
    attention_layout: Literal["alternate", "self_cross", "cross_self", "parallel"] = "alternate"
    max_sentence_tokens: int = 64
    memory: Literal["cross_attention", "prefix", "none"] = "cross_attention"
    memory_size: int = 40
    memory_gradient_window: int | None = None
    sentence_layer: int | None = None
    sentence_head: Literal["linear", "normalized"] = "linear"
    context_seeding: bool = True
    gate_init: float = 1.0
    attention_dropout: float = 0.2
    residual_dropout: float = 0.0
    embedding_dropout: float = 0.0
    next_vector_weight: float = 0.0
    layer_norm_eps: float = 1e-5
    pad_token_id: int = 0
    sentence_start_token_id: int = 1
    sentence_end_token_id: int = 2
    bos_token_id: int | None = 3
    eos_token_id: int = 3

    @property
    def mlp_width(self) -> int:
        """The `intermediate_size`, or its default."""
        if self.intermediate_size is not None:
            return self.intermediate_size
        return 4 * self.hidden_size if self.activation == "gelu" else -(-self.hidden_size // 3) * 8

    @property
    def vector_layer(self) -> int:
        """The `sentence_layer`, or its default."""
        if self.sentence_layer is not None:
            return self.sentence_layer
        return max(round(7 / 12 * self.num_hidden_layers), 1) - 1

    @property
    def seeded(self) -> bool:
        """True if sentences start from the previous vector: `context_seeding`, if there are vectors."""
        return self.context_seeding and self.memory != "none"

    @property
    def recurrent_layers(self) -> int:
        """The number of first layers that a sentence's vector depends on; 0 without a memory."""
        return 0 if self.memory == "none" else self.vector_layer + 1

    @property
    def cross_layers(self) -> tuple[int, ...]:
        """The layers that read the memory by cross-attention."""
        if self.memory != "cross_attention":
            return ()
        first, every = (1, 2) if self.attention_layout == "alternate" else (0, 1)
        return tuple(range(first, self.num_hidden_layers, every))

    @property
    def has_thoughts(self) -> bool:
        return self.memory != "none"

    def validate_architecture(self) -> None:
        self._require(self.num_attention_heads >= 1, "num_attention_heads", "set at least 1")
        super().validate_architecture()
        self._require(self.hidden_size % 2 == 0, "hidden_size", "set an even number (sines and cosines in pairs)")
        self._require(self.num_hidden_layers >= 1, "num_hidden_layers", "set at least 1")
        self.check_turns(self.layers_per_turn)
        self._require(
            not (self.cross_layers and self.attention_layout == "alternate" and (self.layers_per_turn or 2) % 2),
            "layers_per_turn",
            "attention_layout 'alternate' has layers in pairs, so set an even number",
        )
        self._require(self.mlp_width >= 1, "intermediate_size", "set at least 1")
        self._require(self.max_sentence_tokens >= 1, "max_sentence_tokens", "set at least 1")
        self._require(
            self.memory_size >= 1,
            "memory_size",
            "set at least 1, or memory to 'none' for a model without memory",
        )
        window = self.memory_gradient_window
        self._require(window is None or window >= 0, "memory_gradient_window", "set 0 (no gradient) or more, or None")
        self._require(
            self.attention_layout == "alternate" or self.memory == "cross_attention",
            "attention_layout",
            f"memory {self.memory!r} has no cross-attention to lay out, so set it to 'alternate'",
        )
        self._require(
            0 <= self.vector_layer < self.num_hidden_layers,
            "sentence_layer",
            f"set a layer from 0 to {self.num_hidden_layers - 1}",
        )
        for name in ("attention_dropout", "residual_dropout", "embedding_dropout"):
            self._require(0 <= getattr(self, name) < 1, name, "set a number from 0 up to, not including, 1")
        self._require(self.next_vector_weight >= 0, "next_vector_weight", "set 0 or more")
        self._require(
            self.memory != "none" or not self.next_vector_weight,
            "next_vector_weight",
            "memory 'none' has no vectors to predict, so set it to 0",
        )
        self._require(self.layer_norm_eps > 0, "layer_norm_eps", "set a number above 0")
        markers = ("pad_token_id", "sentence_start_token_id", "sentence_end_token_id", "eos_token_id")
        for name in markers:
            self._require(0 <= getattr(self, name) < self.vocab_size, name, f"set an id below {self.vocab_size}")
            others = [other for other in markers if other != name and getattr(self, other) == getattr(self, name)]
            self._require(
                not others, name, f"{' and '.join(others)} has the same id: use a different id for each marker"
            )

    def _require(self, condition: bool, name: str, remedy: str) -> None:
        if not condition:
            raise InputError(f"{self.model_type}.{name} is {getattr(self, name)!r}: {remedy}")
