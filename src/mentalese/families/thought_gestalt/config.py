"""Thought Gestalt's settings; the defaults are the paper's 85M model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mentalese.models.config import LatentThoughtConfig
from mentalese.values import NonNegative, NonNegativeNumber, Number, Positive, PositiveNumber

Dropout = Annotated[Number, Field(ge=0, lt=1)]

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

    vocab_size: int = 50_260
    hidden_size: Positive = 768
    num_hidden_layers: Positive = 12
    num_attention_heads: Positive = 12
    intermediate_size: Positive | None = None
    activation: Literal["gelu", "swiglu"] = "gelu"
    layers_per_turn: int | None = None
    attention_layout: Literal["alternate", "self_cross", "cross_self", "parallel"] = "alternate"
    max_sentence_tokens: Positive = 64
    memory: Literal["cross_attention", "prefix", "none"] = "cross_attention"
    memory_size: Positive = 40
    memory_gradient_window: NonNegative | None = None
    sentence_layer: int | None = None
    sentence_head: Literal["linear", "normalized"] = "linear"
    context_seeding: bool = True
    gate_init: float = 1.0
    attention_dropout: Dropout = 0.2
    residual_dropout: Dropout = 0.0
    embedding_dropout: Dropout = 0.0
    next_vector_weight: NonNegativeNumber = 0.0
    layer_norm_eps: PositiveNumber = 1e-5
    pad_token_id: NonNegative = 0
    sentence_start_token_id: NonNegative = 1
    sentence_end_token_id: NonNegative = 2
    bos_token_id: int | None = 3
    eos_token_id: NonNegative = 3

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
        super().validate_architecture()
        layers, alternates = self.num_hidden_layers, self.attention_layout == "alternate"
        self.require(self.hidden_size % 2 == 0, "hidden_size", "set an even number (sines and cosines in pairs)")
        self.check_turns(self.layers_per_turn)
        in_pairs = not (self.cross_layers and alternates and (self.layers_per_turn or 2) % 2)
        self.require(
            in_pairs, "layers_per_turn", "attention_layout 'alternate' has layers in pairs: set an even number"
        )
        has_reader = self.memory != "cross_attention" or bool(self.cross_layers) or self.seeded
        remedy = "attention_layout 'alternate' reads the memory in every second layer, so set 2 or more, or seeding"
        self.require(has_reader, "num_hidden_layers", remedy)
        reads = alternates or self.memory == "cross_attention"
        self.require(reads, "attention_layout", f"memory {self.memory!r} has no cross-attention, so set 'alternate'")
        self.require(0 <= self.vector_layer < layers, "sentence_layer", f"set a layer from 0 to {layers - 1}")
        has_vectors = self.memory != "none" or not self.next_vector_weight
        self.require(has_vectors, "next_vector_weight", "memory 'none' has no vectors to predict, so set 0")
        markers = ("pad_token_id", "sentence_start_token_id", "sentence_end_token_id", "eos_token_id")
        ids = [getattr(self, name) for name in markers]
        for name, number in zip(markers, ids):
            self.require(number < self.vocab_size, name, f"set an id below {self.vocab_size}")
            self.require(ids.count(number) == 1, name, "use a different id for each marker")
