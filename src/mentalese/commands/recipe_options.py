"""A recipe's fields as options of `train` and `compare`, and as `section.field=value`."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Annotated, Any, Protocol, TypeVar

import tyro

from mentalese.commands.options import read_with
from mentalese.model_fields import MISSING, field_docs, is_filled_in, model_fields
from mentalese.recipe import Recipe
from mentalese.recipe_files import change, members, parse_setting, section_fields, sections, set_in


class HasSettings(Protocol):
    """The options of a command that changes recipes."""

    @property
    def settings(self) -> Sequence[str]:
        """Words of the form `section.field=value`."""
        ...


S = TypeVar("S", bound=HasSettings)
Made = tuple[str, Any, Any]  # a field of a dataclass: its name, type and default
_SHORT = {"data.source": "--data", "train.seed": "--seed"}
_SETTING = re.compile(r"[A-Za-z_]\w*(\.[\w-]+)+=.*", re.DOTALL)


def is_setting(word: str) -> bool:
    """Test if a word has the form `section.field=value`."""
    return _SETTING.fullmatch(word) is not None


def names_before_options(words: Sequence[str]) -> list[str]:
    """Return the words before the first option that are not settings."""
    return [word for word in takewhile(lambda word: not word.startswith("-"), words) if not is_setting(word)]


def read_recipe(recipe: Recipe, options: type[S], words: Sequence[str], command: str) -> tuple[Recipe, S]:
    """Return the recipe changed by options and settings, and the command's own options.

    Raises:
        InputError: a setting or a value that the recipe refuses.
        SystemExit: the words contain --help or an error; tyro has printed the text.
    """
    parts = {"model": _model_options(recipe.model, "model")}
    parts |= {name: _section_options(section, name) for name, section in sections(recipe).items()}
    fields = [(name, part, dataclasses.field(default_factory=part)) for name, part in parts.items()]
    command_options, parsed = read_with(options, fields, words, command)
    changes = {name: _changes(part(), getattr(parsed, name)) for name, part in parts.items()}
    for setting in command_options.settings:
        set_in(changes, *parse_setting(recipe, setting))
    return change(recipe, {name: part for name, part in changes.items() if part}), command_options


def _section_options(section: Any, place: str) -> Any:
    docs, hints = field_docs(type(section)), section_fields(type(section))
    fields = [_option(place, name, hint, getattr(section, name), docs.get(name, "")) for name, hint in hints.items()]
    return dataclasses.make_dataclass(place, fields, kw_only=True)


def _model_options(model: Mapping[str, Any], place: str) -> Any:
    """Return the fields of a config that are numbers, text or lists of them, also of a model inside the model."""
    config_fields = model_fields(model["model_type"])
    usual = {config_name: name for name, config_name in config_fields.own_names.items()}
    values = {config_fields.own_names.get(name, name): value for name, value in model.items()}
    fields: list[Made] = []
    for name, field in config_fields.fields.items():
        value = values.get(name, field.default)
        if isinstance(value, dict) and "model_type" in value:
            inner = _model_options(value, f"{place}.{name}")
            fields.append((name, inner, dataclasses.field(default_factory=inner)))
        elif not is_filled_in(name) and value is not MISSING and _is_simple(field.hint):
            fields.append(_option(place, name, field.hint, value, field.doc, usual.get(name)))
    return dataclasses.make_dataclass(place.replace(".", "_"), fields, kw_only=True)


def _option(place: str, name: str, hint: Any, value: Any, doc: str, other: str | None = None) -> Made:
    path, hint = f"{place}.{name}", hint | None if value is None else hint
    aliases = [_SHORT[path]] if path in _SHORT else [f"--{place}.{other}".replace("_", "-")] if other else None
    about = tyro.conf.arg(help=doc or None, aliases=aliases)
    return name, Annotated[hint, about], dataclasses.field(default=tuple(value) if isinstance(value, list) else value)


def _is_simple(hint: Any) -> bool:
    """Test if a type consists of numbers, text, truth values, none and tuples of them."""
    for kind in members(hint):
        if typing.get_origin(kind) is tuple:
            if not all(item is Ellipsis or _is_simple(item) for item in typing.get_args(kind)):
                return False
        elif typing.get_origin(kind) is not typing.Literal and kind not in (int, float, bool, str, type(None)):
            return False
    return True


def _changes(before: Any, after: Any) -> dict[str, Any]:
    """Return the fields that differ; fields of a model inside the model are a nested dict."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(after):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if dataclasses.is_dataclass(new):
            if inner := _changes(old, new):
                changes[field.name] = inner
        elif old != new:
            changes[field.name] = new
    return changes
