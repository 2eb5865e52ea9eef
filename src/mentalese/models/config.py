"""The base class of every family's config, and of configs of models around a decoder of transformers.

This module imports no model.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, PreTrainedConfig

from mentalese.errors import InputError, nearest, require
from mentalese.models.anywhere import NotCopied
from mentalese.nn.controls import ThoughtControl
from mentalese.recipe import Fields
from mentalese.registry import MODELS, load
from mentalese.values import NonNegative, NonNegativeNumber, Positive, checked

MOST_TENSORS = 50_000
"""Tensors of weights that a model may have: a step runs several kernels for each tensor."""
_SIZES = {"hidden_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "vocab_size"}
_SIZES |= {"intermediate_size", "n_inner", "num_key_value_heads"}
"""Sizes that most configs have, under these or other names."""


def check_fields(where: str, cls: type[PreTrainedConfig], values: Mapping[str, object]) -> None:
    """Check names and numbers of a config before it is made: transformers checks only a few.

    Raises:
        InputError: an unknown field of the section `where`, a size below 1, too many layers, or a number below 0 whose
            default is not.
    """
    names = cls.__dataclass_fields__.keys() | cls.attribute_map
    for name in values:
        if name not in names:
            raise InputError(f"{where}.{name}: {cls.model_type} has no such field{nearest(name, names)}")
    usual = {other: name for name, other in cls.attribute_map.items()}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or name.endswith("_token_id"):
            continue
        default = getattr(cls, cls.attribute_map.get(name, name), None)
        if usual.get(name, name) in _SIZES:
            require(value >= 1, f"{where}.{name}", value, "set 1 or more")
        elif not isinstance(default, int | float) or default >= 0:
            require(value >= 0, f"{where}.{name}", value, "set 0 or more")
        if usual.get(name, name) == "num_hidden_layers":
            require(value <= MOST_TENSORS, f"{where}.{name}", value, f"set at most {MOST_TENSORS:,}")


def register_model(config_class: type[PreTrainedConfig]) -> None:
    """Register the class that a family declares for a config class, once it is needed: its import takes long."""
    if reference := MODELS.get(config_class.model_type):
        from mentalese.models.transformers_seam import name_for_trainer

        model = load(reference)
        AutoModelForCausalLM.register(config_class, model, exist_ok=True)
        name_for_trainer(config_class.model_type, model)


class LatentThoughtConfig(NotCopied, PreTrainedConfig):
    """Base of every family's config: typed fields, unknown fields refused, lists from JSON back to tuples.

    Subclasses declare fields as annotations and check them in `validate_architecture(self)`, raising `InputError`.

    Attributes:
        hidden_size: width of the hidden states.
        num_hidden_layers: layers of the model.
        num_attention_heads: attention heads of each layer.
        initializer_range: standard deviation of initial weights.
        tie_word_embeddings: use the embeddings of tokens as the weights of the head.
        thought_control: what the model reads in place of its thoughts, see `mentalese.nn.controls`; `None`: its own.
        has_thoughts: the model has thoughts that can be controlled.
    """

    model_type = "latent_thought_base"
    vocab_size: NonNegative = 0
    hidden_size: Positive = 64
    num_hidden_layers: Positive = 2
    num_attention_heads: Positive = 4
    initializer_range: NonNegativeNumber = 0.02
    tie_word_embeddings: bool = True
    use_cache: bool = True
    thought_control: ThoughtControl | None = None
    keys_to_ignore_at_inference = ["cache", "past_key_values", "thoughts", "z_given"]  # noqa: RUF012 (transformers adds a list to it)
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        fields = self.__dataclass_fields__
        for name in kwargs:
            if not self._knows(name):
                raise InputError(f"{self.model_type}.{name}: no such field{nearest(name, fields)}")
            if self._follows(name):
                raise InputError(f"{self.model_type}.{name} is {kwargs[name]!r}: it follows from others, remove it")
        for name in fields:
            value = getattr(self, name)
            if isinstance(value, list) and "tuple" in str(fields[name].type):
                setattr(self, name, tuple(value))
        super().__post_init__(**kwargs)
        hints: dict[str, object] = {}  # transformers does not read annotations that are strings
        for cls in reversed(type(self).__mro__[: type(self).__mro__.index(LatentThoughtConfig) + 1]):
            hints |= inspect.get_annotations(cls, eval_str=True)
        for name, hint in hints.items():
            setattr(self, name, checked(f"{self.model_type}.{name}", hint, getattr(self, name)))
        self.validate_architecture()
        register_model(type(self))

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Return a config, as `PreTrainedConfig.from_dict` does.

        Fields that other tools have written into a saved config (`auto_map`, `quantization_config`) stay in it. Fields
        as keywords (`from_pretrained(path, thought_control="removed")`) are checked as in the constructor.
        """
        return_unused = kwargs.pop("return_unused_kwargs", False)
        ours = [base for base in cls.__mro__ if issubclass(base, LatentThoughtConfig)]
        fields = {name for base in ours for name in inspect.get_annotations(base)}
        config_dict = {name: value for name, value in config_dict.items() if not cls._follows(name)}
        config_dict |= {name: kwargs.pop(name) for name in [*kwargs] if name in fields or cls._follows(name)}
        values = {name: value for name, value in config_dict.items() if cls._knows(name)}
        config, unused = super().from_dict(values, return_unused_kwargs=True, **kwargs)
        for name, value in config_dict.items():
            if name not in values:
                setattr(config, name, value)
        return (config, unused) if return_unused else config

    @classmethod
    def _knows(cls, name: str) -> bool:
        is_field = name in cls.__dataclass_fields__ or hasattr(cls, name) or name.startswith("_")
        # transformers passes these two, and keeps them under private names.
        return is_field or name in ("attn_implementation", "experts_implementation")

    @classmethod
    def _follows(cls, name: str) -> bool:
        """Test if a field is computed from others: other tools write the number of positions into saved configs."""
        attribute = getattr(cls, name, None)
        return isinstance(attribute, property) and attribute.fset is None

    @property
    def has_thoughts(self) -> bool:
        return False

    def require(self, holds: bool, name: str, remedy: str) -> None:
        """Raise `InputError` about a field unless a condition holds."""
        require(holds, f"{self.model_type}.{name}", getattr(self, name), remedy)

    def require_even_heads(self) -> None:
        even = self.hidden_size // self.num_attention_heads % 2 == 0
        self.require(even, "num_attention_heads", "rotary positions need heads of even width")

    def check_turns(self, layers_per_turn: int | None) -> None:
        """Raise `InputError` if the number of layers is not a multiple of `layers_per_turn`."""
        layers = self.num_hidden_layers
        fits = layers_per_turn is None or (layers_per_turn >= 1 and layers % layers_per_turn == 0)
        self.require(fits, "layers_per_turn", f"set a divisor of num_hidden_layers ({layers}), or None")

    def validate_architecture(self) -> None:
        can_control = self.thought_control is None or self.has_thoughts
        self.require(can_control, "thought_control", "a model with this config has no thoughts to control, remove it")
        fits = self.hidden_size % self.num_attention_heads == 0
        self.require(fits, "hidden_size", f"set a multiple of num_attention_heads ({self.num_attention_heads})")


def has_own_thoughts(config: PreTrainedConfig) -> bool:
    """Test if the models of a config think and were not trained under a control."""
    return getattr(config, "has_thoughts", False) and config.thought_control is None


def require_own_thoughts(config: PreTrainedConfig, name: str, value: object) -> None:
    """Raise `InputError` about a field that needs a model with thoughts of its own."""
    remedy = "the model has no thoughts of its own, use one of a family that thinks, trained without a thought_control"
    require(has_own_thoughts(config), name, value, remedy)


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
    check_key_heads(where, config)
    is_mixed = any(hasattr(config, name) for name in ("layers_block_type", "block_types"))
    require(not is_mixed, field, kind, "some layers are not attention, use another (gpt2, llama)")
    is_only_decoder = not (config.is_encoder_decoder or reads_later_tokens(config))
    require(is_only_decoder, field, kind, "it is not only a decoder, use one that is (gpt2, llama)")
    return config


def check_key_heads(where: str, config: PreTrainedConfig) -> None:
    """Raise `InputError` if the heads of queries cannot share the heads of keys evenly."""
    keys = getattr(config, "num_key_value_heads", None)
    if keys is not None:
        heads = config.num_attention_heads
        remedy = f"set a divisor of num_attention_heads ({heads})"
        require(heads % keys == 0, f"{where}.num_key_value_heads", keys, remedy)


def reads_later_tokens(config: PreTrainedConfig) -> bool:
    """Test if the states of a causal LM depend on later tokens: BERT, Gemma, XLNet and XLM can be set so."""
    # Old configs of decoders contain these two fields too, without effect.
    encodes = {"is_decoder", "add_cross_attention"} <= config.__dataclass_fields__.keys() and not config.is_decoder
    on_both_sides = getattr(config, "use_bidirectional_attention", None) in (True, "all")
    on_both_sides |= getattr(config, "attn_type", None) == "bi"
    return encodes or on_both_sides or getattr(config, "causal", None) is False


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
_FROM_BACKBONE: Any = None  # until `__post_init__` has set the field


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
    hidden_size: int = _FROM_BACKBONE
    num_hidden_layers: int = _FROM_BACKBONE
    num_attention_heads: int = _FROM_BACKBONE
    tie_word_embeddings: bool = _FROM_BACKBONE
    initializer_range: float = _FROM_BACKBONE

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
        """True if the decoder may have sliding windows: all columns between a row's tokens are tokens."""
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
