"""The fields of a model's config, and descriptions of fields from docstrings."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from functools import cache
from typing import Any

import docstring_parser
import torch
from transformers import CONFIG_MAPPING, PreTrainedConfig

from mentalese.errors import InputError, nearest
from mentalese.values import checked

MISSING = dataclasses.MISSING


@dataclass(frozen=True)
class ConfigField:
    """A field of a model's config.

    Attributes:
        name: its name in the config class.
        hint: its type; `Any` for one that is not checked here.
        default: `MISSING` if it has none, or one that is made anew for each config.
        doc: its meaning; may be empty.
    """

    name: str
    hint: Any
    default: Any
    doc: str = ""

    def read(self, place: str, value: object) -> object:
        """Return a checked value from a file or a command line: text and floats are parsed, all else stays as it is."""
        parsed = checked(f"{place}.{self.name}", self.hint, value, parse=True)
        return parsed if isinstance(value, str | float) else value


def is_filled_in(name: str) -> bool:
    """Test if a field is set from the tokenizer, or by the caller of the model, and not by a recipe."""
    return name in ("vocab_size", "use_cache") or name.endswith("_token_id")


def config_class(model_type: str) -> type[PreTrainedConfig]:
    """Return the Hugging Face config class of a model type; raises `InputError` with the nearest name."""
    if model_type not in CONFIG_MAPPING:
        hint = nearest(model_type, CONFIG_MAPPING.keys())
        raise InputError(f"model.model_type is {model_type!r}: no such type{hint}", "model.model_type")
    return CONFIG_MAPPING[model_type]


@cache
def model_fields(model_type: str) -> dict[str, ConfigField]:
    """Return the fields of a model type's config by name and, after all, by usual name (`hidden_size` for `n_embd`).

    Fields that every config of transformers has are left out. Raise `InputError` for an unknown type.
    """
    cls = config_class(model_type)
    hints = typing.get_type_hints(cls, localns={"torch": torch})  # transformers imports it for type checkers only
    docs, common = field_docs(cls), {field.name for field in dataclasses.fields(PreTrainedConfig)}
    fields = {}
    for field in dataclasses.fields(cls):
        if field.name not in common:
            # Before Python 3.12, pydantic does not check a union with a `TypedDict`.
            has_dict = any(map(typing.is_typeddict, typing.get_args(hints[field.name])))
            hint = Any if has_dict else hints[field.name]
            fields[field.name] = ConfigField(field.name, hint, field.default, docs.get(field.name, ""))
    return fields | {usual: fields[name] for usual, name in cls.attribute_map.items() if name in fields}


def field_docs(cls: type) -> dict[str, str]:
    """Return the descriptions of fields in the docstrings of a class and its bases; names may share an entry."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        for entry in docstring_parser.parse(base.__doc__ or "").params:
            docs |= dict.fromkeys(entry.arg_name.split(", "), " ".join((entry.description or "").split()))
    return docs
