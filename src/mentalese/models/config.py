"""The base class of every family's config."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedConfig

from mentalese.errors import InputError, nearest, require
from mentalese.models.anywhere import NotCopied
from mentalese.nn.controls import ThoughtControl
from mentalese.registry import MODELS, load
from mentalese.values import checked

# Keywords that transformers itself passes to a config (loading, attention choice, classification heads).
_HANDED_BY_TRANSFORMERS = {
    "attn_implementation",
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "per_layer_config",
    "torch_dtype",
}


MOST_TENSORS = 50_000
"""Tensors of weights that a model may have: a step runs several kernels for each tensor."""
_SIZES = {"hidden_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "vocab_size"}
_SIZES |= {"intermediate_size", "n_inner"}
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
        constants: fields of version 0.2.0 that have only one value now, by name.
    """

    model_type = "latent_thought_base"
    constants = dict[str, object]()  # noqa: RUF012 (never written to)
    vocab_size: int = 0
    hidden_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    use_cache: bool = True
    thought_control: ThoughtControl | None = None
    keys_to_ignore_at_inference = ["cache", "past_key_values", "thoughts"]  # noqa: RUF012 (transformers adds a list to it)
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

        Raises:
            InputError: a field of an earlier version with a value that this one does not have.
        """
        for name, value in cls.constants.items():
            saved = config_dict.get(name, value)
            require(saved == value, f"{cls.model_type}.{name}", saved, f"this version has only {value!r}")
        return_unused = kwargs.pop("return_unused_kwargs", False)
        ours = [base for base in cls.__mro__ if issubclass(base, LatentThoughtConfig)]
        fields = {name for base in ours for name in inspect.get_annotations(base)}
        gone = {name for name in config_dict if cls._follows(name) or name in cls.constants}
        config_dict = {name: value for name, value in config_dict.items() if name not in gone}
        config_dict |= {name: kwargs.pop(name) for name in [*kwargs] if name in fields or cls._follows(name)}
        values = {name: value for name, value in config_dict.items() if cls._knows(name)}
        config, unused = super().from_dict(values, return_unused_kwargs=True, **kwargs)
        for name, value in config_dict.items():
            if name not in values:
                setattr(config, name, value)
        return (config, unused) if return_unused else config

    @classmethod
    def _knows(cls, name: str) -> bool:
        is_field = name in cls.__dataclass_fields__ or name in _HANDED_BY_TRANSFORMERS or hasattr(cls, name)
        return is_field or name.startswith("_")

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
