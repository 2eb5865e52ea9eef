"""The configs of models around a decoder of transformers, and checks of the decoder.

This module imports no model.
"""

from __future__ import annotations

from typing import Any

from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig

from mentalese.errors import InputError, nearest, require
from mentalese.models.config import LatentThoughtConfig, check_fields
from mentalese.recipe import Fields


def decoder_config(where: str, fields: Fields) -> PreTrainedConfig:
    """Return the Hugging Face config of a decoder from its `model_type` and fields, which the field `where` contains.

    Raises:
        InputError: the type is not a causal LM or is this library's, a field is unknown, or a value is refused.
    """
    values, field = dict(fields), f"{where}.model_type"
    kind = values.pop("model_type", None)
    if kind not in CONFIG_MAPPING or CONFIG_MAPPING[kind] not in MODEL_FOR_CAUSAL_LM_MAPPING:
        hint = nearest(str(kind), CONFIG_MAPPING.keys())
        raise InputError(f"{field} is {kind!r}: use the type of a transformers decoder (gpt2, llama){hint}", field)
    cls = CONFIG_MAPPING[kind]
    is_foreign = not issubclass(cls, LatentThoughtConfig)
    require(is_foreign, field, kind, "use a decoder of transformers itself, such as gpt2 or llama")
    check_fields(where, cls, values)
    try:
        config = cls(**values)
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: {' '.join(str(error).split())}") from error
    has_heads = all(hasattr(config, name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    require(has_heads, field, kind, "it has no attention, use one that has (gpt2, llama)")
    is_mixed = any(hasattr(config, name) for name in ("layers_block_type", "block_types"))
    require(not is_mixed, field, kind, "some layers are not attention, use another (gpt2, llama)")
    encodes = hasattr(config, "add_cross_attention") and getattr(config, "is_decoder", True) is False
    is_only_decoder = not (config.is_encoder_decoder or encodes)
    require(is_only_decoder, field, kind, "it is not only a decoder, use one that is (gpt2, llama)")
    return config


def kinds_of_layers(config: PreTrainedConfig) -> set[str]:
    """Return the kinds of attention that a decoder's config names; empty if it names none."""
    return {kind for name in ("layer_types", "attention_layers") for kind in getattr(config, name, None) or ()}


def sliding_window(config: PreTrainedConfig) -> int | None:
    """Return the number of columns that layers with sliding windows see; `None` if the decoder has no such layers."""
    kinds = kinds_of_layers(config)
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return (window or 0) if "sliding_attention" in kinds else window if not kinds else None


def check_full_attention(where: str, config: PreTrainedConfig, *, windows: bool = False) -> None:
    """Raise `InputError` for a decoder that counts columns of its cache: masked columns would use up its window.

    Args:
        windows: allow sliding windows: no column between a row's tokens is masked, or the caller counts tokens.
    """
    window, positions = sliding_window(config), getattr(config, "max_position_embeddings", 0)
    if window is not None and window < positions and not windows:
        raise InputError(
            f"{where}.sliding_window is {config.sliding_window} and max_position_embeddings {positions}: latents need "
            "attention in full, so set a window of all positions, or None if the type allows it"
        )
    is_full = kinds_of_layers(config) <= {"full_attention", "global", "sliding_attention"}
    remedy = "it does not attend in full to earlier tokens, use a decoder that does (gpt2, llama)"
    require(is_full and config.model_type not in _BY_COLUMN, f"{where}.model_type", config.model_type, remedy)


_BY_COLUMN = {"mpt"}  # the bias counts columns

WINDOWED = (
    *("cohere2", "exaone4", "gemma2", "gemma3_text", "gpt_oss", "ministral", "mistral", "mixtral", "olmo3", "phi3"),
    *("qwen2", "qwen3", "smollm3", "starcoder2", "vaultgemma"),
)
"""Types with windows that take the masks of `attention_masks`."""

PAIRED = (*WINDOWED, "gpt2", "gpt_neox", "llama")
"""Types that take a mask of pairs, and embeddings for tokens."""


_INHERITED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "tie_word_embeddings", "initializer_range")


class WrappedDecoderConfig(LatentThoughtConfig):
    """A model around a decoder, which has the decoder's sizes.

    Attributes:
        backbone: a Hugging Face decoder: its `model_type` and the fields of its config. Sizes are the backbone's,
            vocabulary and special tokens this config's.
        hidden_size, num_hidden_layers, num_attention_heads, tie_word_embeddings, initializer_range: the backbone's;
            another value is refused.
    """

    model_type = "wrapped_decoder"
    default_backbone = "gpt2"
    backbone: Fields | None = None
    hidden_size: int = None  # type: ignore[assignment]
    num_hidden_layers: int = None  # type: ignore[assignment]
    num_attention_heads: int = None  # type: ignore[assignment]
    tie_word_embeddings: bool = None  # type: ignore[assignment]
    initializer_range: float = None  # type: ignore[assignment]

    def __post_init__(self, **kwargs: Any) -> None:
        self.backbone = self.backbone or {"model_type": self.default_backbone}
        inner = decoder_config(f"{self.model_type}.backbone", self.backbone)
        for name in _INHERITED:
            other = getattr(inner, "init_std", 0.02) if name == "initializer_range" else None  # OPT's name for it
            value, inherited = getattr(self, name), getattr(inner, name, other)
            remedy = f"it is the backbone's, {inherited}; set it in {self.model_type}.backbone"
            self.require(value in (inherited, None), name, remedy)
            setattr(self, name, inherited)
        super().__post_init__(**kwargs)

    @property
    def reads_windows(self) -> bool:
        """True if the decoder may have sliding windows."""
        return False

    @property
    def max_position_embeddings(self) -> int | None:
        """The backbone's positions."""
        return getattr(self.backbone_config, "max_position_embeddings", None)

    @property
    def backbone_config(self) -> PreTrainedConfig:
        """The backbone's own config, with the vocabulary and special tokens of this one."""
        config = decoder_config(f"{self.model_type}.backbone", self.backbone or {})
        for name in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id"):
            setattr(config, name, getattr(self, name))
        return config

    def validate_architecture(self) -> None:
        super().validate_architecture()
        check_full_attention(f"{self.model_type}.backbone", self.backbone_config, windows=self.reads_windows)


class LayeredDecoderConfig(WrappedDecoderConfig):
    """A model that reads or adds in front of its decoder's layers; all columns between a row's tokens are tokens."""

    model_type = "layered_decoder"
    reads_windows = True
