"""A Hugging Face decoder inside a model of ours: its config, embeddings, padding, cache and cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mentalese.errors import InputError
from mentalese.models.backbone import (
    attention_width,
    build_decoder,
    check_full_attention,
    decoder_config,
    linear_weights,
    places,
)
from mentalese.models.hf import LatentThoughtConfig, LatentThoughtModel, ThoughtCache


class WrappedDecoderConfig(LatentThoughtConfig):
    """A model around a decoder, whose sizes it takes.

    Attributes:
        backbone: a Hugging Face decoder: its `model_type` and the fields of its config. Sizes are the backbone's,
            vocabulary and special tokens those of this config.
    """

    model_type = "wrapped_decoder"
    backbone: dict[str, Any] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self.backbone = self.backbone or {"model_type": "gpt2"}
        inner = decoder_config(f"{self.model_type}.backbone", self.backbone)
        for name in (
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "tie_word_embeddings",
            "initializer_range",
        ):
            value, inherited = getattr(self, name), getattr(inner, name)
            if value not in (inherited, self.__dataclass_fields__[name].default):
                raise InputError(
                    f"{self.model_type}.{name} is {value}: it is the backbone's, {inherited}; set it in "
                    f"{self.model_type}.backbone"
                )
            setattr(self, name, inherited)
        super().__post_init__(**kwargs)

    @property
    def max_position_embeddings(self) -> int | None:
        """Positions of the backbone."""
        return getattr(self.backbone_config, "max_position_embeddings", None)

    @property
    def backbone_config(self) -> Any:
        """The backbone's own config, with the vocabulary and special tokens of this one."""
        config = decoder_config(f"{self.model_type}.backbone", self.backbone or {})
        for name in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id"):
            setattr(config, name, getattr(self, name))
        return config

    def validate_architecture(self) -> None:
        super().validate_architecture()
        check_full_attention(f"{self.model_type}.backbone", self.backbone_config)

    def _at_least(self, least: float, *names: str) -> None:
        for name in names:
            if (value := getattr(self, name)) < least:
                raise InputError(f"{self.model_type}.{name} is {value}: set at least {least}")


class LayeredDecoderConfig(WrappedDecoderConfig):
    """A model that reads or adds in front of layers of its decoder, which is of a type in `models.backbone.PLACES`."""

    model_type = "layered_decoder"

    def validate_architecture(self) -> None:
        super().validate_architecture()
        places(f"{self.model_type}.backbone", self.backbone_config)


@dataclass
class TokenLayout:
    """Which tokens of a call are real.

    Attributes:
        seen: tokens read before, padding not counted; [B], or one number if no row has padding.
        real: bool [B, L]; `None` if no row has padding, and so the next two.
        mask: bool [B, all tokens so far].
        positions: [B, L], counted from each row's first token.
    """

    seen: Tensor | int
    real: Tensor | None = None
    mask: Tensor | None = None
    positions: Tensor | None = None


class WrappedDecoder(LatentThoughtModel):
    """A Hugging Face decoder as `backbone`, whose embeddings and head are the model's."""

    config_class = WrappedDecoderConfig

    def __init__(self, config: WrappedDecoderConfig) -> None:
        super().__init__(config)
        where = f"{config.model_type}.backbone"
        self.backbone = build_decoder(where, config.backbone_config, config._attn_implementation)

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.backbone.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        return self.backbone.get_output_embeddings()

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.backbone.set_output_embeddings(new_embeddings)


class LayeredDecoder(WrappedDecoder):
    """A decoder in front of whose layers a family reads and adds; its initialisation is the model's."""

    config_class = LayeredDecoderConfig
    supports_gradient_checkpointing = True
    keeps_hidden_states = True

    def __init__(self, config: LayeredDecoderConfig) -> None:
        super().__init__(config)
        self.places = places(f"{config.model_type}.backbone", self.backbone.config)

    def _init_weights(self, module: nn.Module) -> None:
        self.backbone._init_weights(module)

    @property
    def layers(self) -> nn.ModuleList:
        """The backbone's layers."""
        return getattr(self.backbone.base_model, self.places.layers)

    def new_layers(self, count: int) -> nn.ModuleList:
        """Layers of the backbone's class, all their maps initialised alike, by its `initializer_range`."""
        return nn.ModuleList(type(self.layers[0])(self.backbone.config, layer_idx=i) for i in range(count))

    def token_layout(self, input_ids: Tensor, attention_mask: Tensor | None, cache: ThoughtCache | None) -> TokenLayout:
        """Where the padding of this call and of those before it is; the cache remembers it."""
        real = None if attention_mask is None else self.real_tokens(input_ids, attention_mask, cache)
        past, state = (0, {}) if cache is None else (cache.seen_tokens, cache.state)
        if "mask" not in state and (real is None or bool(real.all())):
            return TokenLayout(past)
        before = state.get("mask", input_ids.new_ones(len(input_ids), past, dtype=torch.bool))
        real = torch.ones_like(input_ids, dtype=torch.bool) if real is None else real
        mask = torch.cat((before, real), dim=1)
        if cache is not None:
            state["mask"] = mask
        return TokenLayout(before.sum(1), real, mask, (mask.cumsum(1) - 1).clamp(min=0)[:, past:])

    def run_backbone(self, input_ids: Tensor, layout: TokenLayout, cache: ThoughtCache | None, **options: Any) -> Any:
        """The backbone's output, `last_hidden_state` [B, L, d]; all its layers get the `options`. The cache moves on.

        Raises:
            InputError: a cache in training with gradient checkpointing, in which layers would leave it empty.
        """
        if cache is not None and self.training and getattr(self.layers[0], "gradient_checkpointing", False):
            raise InputError("past_key_values is set in training with gradient checkpointing: call model.eval()")
        output = self.backbone.base_model(
            input_ids=input_ids,
            attention_mask=None if layout.mask is None else layout.mask.long(),
            position_ids=layout.positions,
            past_key_values=cache,
            use_cache=cache is not None,
            **options,
        )
        if cache is not None:
            cache.seen_tokens += input_ids.shape[1]
        return output

    @property
    def final_norm(self) -> nn.Module:
        """The backbone's."""
        return getattr(self.backbone.base_model, self.places.norm)

    def backbone_flops(self, rows: int, length: int) -> int:
        """FLOPs of the backbone and the head."""
        attention = 2 * length * attention_width(self.backbone.config)
        return 2 * rows * length * (linear_weights(self.backbone) + attention + self.output_weight().numel())
