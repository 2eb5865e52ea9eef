"""Recipes from files, and recipes with some fields changed.

A file has the fields of `Recipe.to_dict()`, in JSON, YAML or TOML, and every part is optional. With `base`, a recipe's
name, it has only what differs:

    base: gpt2/tiny
    model: {n_layer: 6}
    optimizer: {learning_rate: 3e-4}
    phases:
      - {start: 100, model: {..}}

`name` is the file's name without its suffix unless the file sets one. A field is also changed by `section.field=value`,
on the command line and by `override`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mentalese.errors import InputError, nearest
from mentalese.model_fields import model_fields
from mentalese.recipe import AS_IT_IS, LENGTHS, Recipe
from mentalese.registry import get_recipe
from mentalese.values import checked, from_data

SUFFIXES = (".json", ".yaml", ".yml", ".toml")
_LISTED = " (`mentalese show RECIPE` lists all fields)"


def open_recipe(name: str | Path) -> Recipe:
    """Return the recipe in a JSON, YAML or TOML file, or the one of that name.

    Raises:
        InputError: the file cannot be read, a field does not exist or has a wrong value, or no recipe has this name.
    """
    if isinstance(name, str) and Path(name).suffix not in SUFFIXES:
        return get_recipe(name)
    path = Path(name)
    content = _read(path)
    try:
        return _from_content(content, path)
    except InputError as error:
        raise InputError(f"{path}: {error}", error.field) from error


def sections(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe's sections by name, each a dataclass; `model` is not among them."""
    values = {field.name: getattr(recipe, field.name) for field in dataclasses.fields(recipe)}
    return {name: value for name, value in values.items() if dataclasses.is_dataclass(value)}


def section_fields(section: type) -> dict[str, Any]:
    """Return the fields of a section's class and their types."""
    hints = typing.get_type_hints(section, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(section)}


# -- files -----------------------------------------------------------------------------------------------------------


def _read(path: Path) -> dict[str, Any]:
    import yaml

    if path.suffix not in SUFFIXES:
        raise InputError(f"{path} has the suffix {path.suffix!r}: use a file that ends in {', '.join(SUFFIXES)}")
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            content = tomllib.loads(text)
        else:
            content = json.loads(text, object_pairs_hook=_once) if path.suffix == ".json" else _from_yaml(text)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: use the name of a recipe or of a file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}): use a UTF-8 text file") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:  # YAML also refuses dates that do not exist
        raise InputError(f"{path} is not {path.suffix[1:]}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} contains {type(content).__name__}: use fields of a recipe, such as `train: ..`")
    return content


def _once(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a dict of the pairs; raises `InputError` for a name that is there twice: readers keep only the last."""
    fields: dict[Any, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise InputError(f"{name} is there twice in one section: keep one, or put both into one")
        fields[name] = value
    return fields


def _from_yaml(text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            _once((key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<")
            return node

    return yaml.load(text, Loader)


def _from_content(content: dict[str, Any], path: Path) -> Recipe:
    if "base" in content:
        base = get_recipe(content.pop("base"))
        about = {"name": path.stem, "description": f"{base.description}, changed by {path.name}", "paper": None}
        return change(base, about | content)
    fields: dict[str, Any] = {"name": path.stem, "description": f"from {path.name}"} | content
    if isinstance(model := fields.get("model", {}), dict):
        fields["model"] = _model(model, {}, "model") if "model_type" in model else model
    return from_data(Recipe, "", fields)


# -- changes ---------------------------------------------------------------------------------------------------------


def change(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Return the recipe with other values.

    Args:
        changes: field -> value; of a section field name -> value. A model of another type replaces the recipe's, and so
            does a length of the run, and a layout of another kind; another source is read as it is, unless `changes`
            say how.

    Raises:
        InputError: a field does not exist, a value is of another type or out of range, or a prepared store is to have
            another tokenizer.
    """
    fields = {field.name: getattr(recipe, field.name) for field in dataclasses.fields(recipe)}
    for name, new in changes.items():
        old = fields.get(name)
        if isinstance(new, Mapping) and name == "model":
            fields[name] = _model(new, recipe.model, name)
        elif isinstance(new, Mapping) and dataclasses.is_dataclass(old):
            fields[name] = _section(name, old, new)
        else:
            fields[name] = new
    return from_data(Recipe, "", fields)


def _section(section: str, old: Any, new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a section with other values, among them those that follow from these."""
    now = {field.name: getattr(old, field.name) for field in dataclasses.fields(old)}
    differs = {name for name, value in new.items() if value != now.get(name)}
    if section == "layout":
        kind = new.get("kind", old.kind)
        return (now if kind == old.kind else {}) | dict(new) | {"kind": kind}
    if section == "train" and differs & {*LENGTHS}:
        now |= dict.fromkeys(LENGTHS)
    if section == "data":
        source = new.get("source", old.source)
        if "tokenizer" in differs and str(source).startswith("store:"):
            raise InputError(
                f"data.tokenizer is {new['tokenizer']!r}: {source} has its own tokenizer; leave it out, or use "
                "--tokenizer with `mentalese data prepare`"
            )
        if "source" in differs:
            now |= AS_IT_IS
    return now | dict(new)


def _model(new: Mapping[str, Any], old: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the fields of a model with other values, each of its type, under the names in its config."""
    model_type = checked(f"{place}.model_type", str, new.get("model_type", old.get("model_type")))
    config_fields = model_fields(model_type)
    now = dict(old) if model_type == old.get("model_type") else {"model_type": model_type}
    spellings = {config_fields.own_names.get(name, name): name for name in now}
    config_names: set[str] = set()
    for name, value in new.items():
        config_name = config_fields.own_names.get(name, name)
        if name == "model_type":
            continue
        if config_name not in config_fields.fields:
            raise InputError(f"{place}.{name}: {model_type} has no such field{nearest(name, config_fields.names())}")
        if config_name in config_names:
            raise InputError(f"{place}.{name} and {place}.{config_name} are one field of {model_type}: keep one")
        config_names.add(config_name)
        before = now.get(spellings.get(config_name, config_name))
        if isinstance(value, Mapping) and isinstance(before, dict) and "model_type" in before:
            value = _model(value, before, f"{place}.{name}")
        else:
            value = config_fields.fields[config_name].read(place, value)
        if value != before or config_name not in spellings:
            now.pop(spellings.get(config_name, config_name), None)
            now[config_name] = value
    return now


def override(recipe: Recipe, *settings: str) -> Recipe:
    """Return the recipe with other values: `override(recipe, "optimizer.learning_rate=1e-3", "train.steps=100")`.

    A setting is `section.field=value`; `none` or `null` is no value, and commas make a list.

    Raises:
        InputError: a field does not exist, or a value is of another type or out of range.
    """
    changes: dict[str, Any] = {}
    for setting in settings:
        if not isinstance(setting, str):
            raise InputError(f"a setting is {setting!r}: use texts, 'section.field=value'")
        set_in(changes, *parse_setting(recipe, setting))
    return change(recipe, changes)


def parse_setting(recipe: Recipe, setting: str) -> tuple[list[str], Any]:
    """Return the path of a field and its value from `section.field=value`; raises `InputError` as `override` does."""
    place, equals, text = setting.partition("=")
    path = [part.replace("-", "_") for part in place.split(".")]
    if not equals or len(path) < 2:
        raise InputError(f"{setting!r} is no change: use section.field=value, e.g. train.steps=100")
    return path, parse_text(place, field_type(recipe, path), text)


def parse_text(name: str, hint: Any, text: str) -> Any:
    """Return the value that a text states for a type: `none`, a list with commas, JSON, or input of pydantic."""
    kinds = {typing.get_origin(kind) or kind for kind in members(hint)}
    if type(None) in kinds and text.lower() in ("none", "null"):
        return None
    value: Any = text
    if kinds & {tuple, list}:
        value = json.loads(text) if text.startswith("[") else [part.strip() for part in text.split(",") if part.strip()]
    elif not kinds & {str, float} or int in kinds:
        with contextlib.suppress(json.JSONDecodeError):
            value = json.loads(text)  # 1e9 tokens are an integer
    return checked(name, hint, value, parse=True)


def members(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type, without annotations."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return members(parts[0])
    if origin in (typing.Union, types.UnionType):
        return tuple(kind for part in parts for kind in members(part))
    return (hint,)


def set_in(changes: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a value in nested dicts."""
    for name in path[:-1]:
        changes = changes.setdefault(name, {})
    changes[path[-1]] = value


def field_type(recipe: Recipe, path: Sequence[str]) -> Any:
    """Return the type of a field of this recipe; raises `InputError` with the nearest name.

    Args:
        path: `("optimizer", "learning_rate")`, or `("model", "backbone", "n_layer")` for a model inside a model.
    """
    section, *names = path
    recipe_sections = sections(recipe)
    if section not in ("model", *recipe_sections):
        raise InputError(
            f"{'.'.join(path)}: a recipe has no section {section!r}{nearest(section, ['model', *recipe_sections])}"
        )
    model, place = recipe.model, section
    while section == "model" and len(names) > 1 and "model_type" in (model.get(names[0]) or {}):
        model, place, names = model[names[0]], f"{place}.{names[0]}", names[1:]
    name = ".".join(names)
    if section == "model":
        fields = model_fields(model["model_type"])
        hints = {each: fields.fields[fields.own_names.get(each, each)].hint for each in fields.names()}
        hints["model_type"] = str
    else:
        hints = section_fields(type(recipe_sections[section])) | ({"kind": str} if section == "layout" else {})
    if name not in hints:
        raise InputError(f"{place}.{name}: no such field{nearest(name, hints) or _LISTED}")
    return hints[name]
