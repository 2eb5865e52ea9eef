"""A config read from its source has the fields, types, defaults and other names of the imported class."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from mentalese import InputError, recipes
from mentalese.config_source import MISSING, read_config
from mentalese.docstrings import attribute_docs, hugging_face_docs


def model_types() -> list[str]:
    """Of all recipes, and of the models inside their models."""
    models = [recipe.model for recipe in recipes().values()]
    models += [value for model in models for value in model.values() if isinstance(value, dict)]
    return sorted({model["model_type"] for model in models if "model_type" in model})


@pytest.mark.parametrize("model_type", [*model_types(), "qwen3", "mistral"])
def test_the_source_says_what_the_class_does(model_type: str) -> None:
    from transformers import PreTrainedConfig

    from mentalese.models.build import config_class

    cls = config_class(model_type)
    source = read_config(model_type)
    common = PreTrainedConfig.__dataclass_fields__
    fields = {name: field for name, field in cls.__dataclass_fields__.items() if name not in common}
    assert set(source.fields) == set(fields)
    assert source.own_names == dict(cls.attribute_map)
    for name, field in fields.items():
        ours = source.fields[name]
        if ours.hint is not Any:
            assert ours.hint == type_of(cls, name), name
        if ours.default is not MISSING:
            assert ours.default == field.default, name
        else:
            assert field.default is dataclasses.MISSING, name


def type_of(cls: type, name: str) -> Any:
    owner = next(base for base in cls.__mro__ if name in inspect.get_annotations(base))
    return inspect.get_annotations(owner, eval_str=True)[name]


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(InputError, match="no such type; did you mean 'gpt2'"):
        read_config("gtp2")


def test_docstrings_are_read_in_both_styles() -> None:
    ours = """A thing.

    Attributes:
        a: first,
            and more: of it.
        b, c: both.

    More: text.
    """
    assert attribute_docs(ours) == {"a": "first, and more: of it.", "b": "both.", "c": "both."}
    theirs = """
    a (`int`, *optional*):
        First,
        and more.
            - a list
    b (`str`): not an entry

    Example:
    """
    assert hugging_face_docs(theirs) == {"a": "First, and more. - a list"}
    assert attribute_docs(None) == hugging_face_docs(None) == {}
