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
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from mentalese.data.config import AS_IT_IS
from mentalese.data.layouts import Layout, layout_class
from mentalese.errors import InputError, nearest, reading, require
from mentalese.files import JsonObject
from mentalese.model_fields import model_fields
from mentalese.recipe import LENGTHS, DataConfig, EvaluationConfig, OptimizerConfig, Recipe, TrainConfig
from mentalese.registry import get_recipe
from mentalese.values import Place, checked

Section = DataConfig | Layout | OptimizerConfig | TrainConfig | EvaluationConfig
SUFFIXES = (".json", ".yaml", ".yml", ".toml")
_LISTED = " (`mentalese show RECIPE` lists all fields)"


HERE = "."
"""In a file, as `data.tokenizer` or `train.init`: the file's own folder, wherever it is."""


def open_recipe(name: str | Path) -> Recipe:
    """Return the recipe in a JSON, YAML or TOML file, or the one of that name; raise `InputError` for a wrong one."""
    path = checked("recipe", Place, name)
    if isinstance(name, str) and path.suffix not in SUFFIXES:
        return get_recipe(name)
    try:
        return _from_content(_read(path), path)
    except InputError as error:
        raise InputError(f"{path}: {error}", error.field) from error


def sections(recipe: Recipe) -> dict[str, Section]:
    """Return the recipe's sections by name; `model` is not among them."""
    names = ("data", "layout", "optimizer", "train", "evaluation")
    return {name: getattr(recipe, name) for name in names}


def section_fields(section: type) -> dict[str, object]:
    """Return the fields of a section's class and their types."""
    hints = typing.get_type_hints(section, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(section)}


def _read(path: Path) -> dict[str, object]:
    require(path.suffix in SUFFIXES, "the suffix", path.suffix, f"use a file that ends in {', '.join(SUFFIXES)}")
    readers: dict[str, Callable[[str], object]] = {
        ".toml": tomllib.loads,
        ".json": partial(json.loads, object_pairs_hook=_once),
    }
    with reading("it", "use the name of a recipe, or a file of UTF-8 text"):
        content = readers.get(path.suffix, _from_yaml)(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise InputError(f"it contains {type(content).__name__}: use fields of a recipe, such as `train: ..`")
    return content


def _once(pairs: Iterable[tuple[object, object]]) -> dict[object, object]:
    """Return a dict of the pairs; raise `InputError` for a name that is there twice: readers keep only the last."""
    fields: dict[object, object] = {}
    for name, value in pairs:
        if name in fields:
            raise InputError(f"{name} is there twice in one section: keep one, or put both into one")
        fields[name] = value
    return fields


def _from_yaml(text: str) -> object:
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
            node = super().compose_mapping_node(anchor)
            _once((key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<")
            return node

    # In YAML 1.1, which PyYAML reads, 1e6 is a text.
    exponent = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+0123456789"))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(error) from error


def _from_content(content: dict[str, object], path: Path) -> Recipe:
    for section, field in (("data", "tokenizer"), ("train", "init")):
        if isinstance(part := content.get(section), dict) and part.get(field) == HERE:
            part[field] = str(path.parent)
    if "base" in content:
        base = get_recipe(checked("base", str, content.pop("base")))
        about = {"name": path.stem, "description": f"{base.description}, changed by {path.name}", "paper": None}
        return change(base, about | content)
    fields: dict[str, object] = {"name": path.stem, "description": f"from {path.name}"} | content
    if isinstance(model := fields.get("model", {}), dict):
        fields["model"] = _model(model, {}, "model") if "model_type" in model else model
    return Recipe.from_dict(fields)


def change(recipe: Recipe, changes: Mapping[str, object]) -> Recipe:
    """Return the recipe with other values.

    Args:
        changes: field -> value; of a section field name -> value. A model of another type, a length of the run or a
            layout of another kind replaces the recipe's; another source is read as it is, unless `changes` state how.

    Raises:
        InputError: a field that does not exist, a wrong value, or another tokenizer for a prepared store.
    """
    fields: dict[str, object] = {field.name: getattr(recipe, field.name) for field in dataclasses.fields(recipe)}
    old = sections(recipe)
    for name, new in changes.items():
        if isinstance(new, Mapping) and name == "model":
            fields[name] = _model(new, recipe.model, name)
        else:
            fields[name] = _section(old[name], new) if isinstance(new, Mapping) and name in old else new
    return Recipe.from_dict(fields)


def _section(old: Section, new: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a section with other values, among them those that follow from these."""
    now = {field.name: getattr(old, field.name) for field in dataclasses.fields(old)}
    differs = {name for name, value in new.items() if value != now.get(name)}
    if isinstance(old, Layout):
        kind = new.get("kind", old.kind)
        return (now if kind == old.kind else {}) | dict(new) | {"kind": kind}
    if isinstance(old, TrainConfig) and differs & {*LENGTHS}:
        now |= dict.fromkeys(LENGTHS)
    if isinstance(old, DataConfig):
        source = new.get("source", old.source)
        remedy = f"{source} has its own tokenizer; leave it out, or use --tokenizer with `mentalese data prepare`"
        keeps = "tokenizer" not in differs or not str(source).startswith("store:")
        require(keeps, "data.tokenizer", new.get("tokenizer"), remedy)
        if "source" in differs:
            now |= AS_IT_IS
    return now | dict(new)


def _model(new: Mapping[str, object], old: Mapping[str, object], place: str) -> dict[str, object]:
    """Return the fields of a model with other values, each of its type, under the names in its config."""
    model_type = checked(f"{place}.model_type", str, new.get("model_type", old.get("model_type")))
    fields = model_fields(model_type)
    now = dict(old) if model_type == old.get("model_type") else {"model_type": model_type}
    spellings = {fields[name].name: name for name in now if name in fields}
    config_names: set[str] = set()
    for name, value in new.items():
        if name == "model_type":
            continue
        if name not in fields:
            raise InputError(f"{place}.{name}: {model_type} has no such field{nearest(name, fields)}")
        config_name = fields[name].name
        if config_name in config_names:
            raise InputError(f"{place}.{name} and {place}.{config_name} are one field of {model_type}: keep one")
        config_names.add(config_name)
        spelling = spellings.get(config_name, config_name)
        before = now.get(spelling)
        if isinstance(value, Mapping) and isinstance(before, dict) and "model_type" in before:
            value = _model(value, before, f"{place}.{name}")
        else:
            value = fields[name].read(place, value)
        if value != before or spelling not in now:
            now.pop(spelling, None)
            now[config_name] = value
    return now


def override(recipe: Recipe, *settings: str) -> Recipe:
    """Return the recipe with other values: `override(recipe, "optimizer.learning_rate=1e-3", "train.steps=100")`.

    A setting is `section.field=value`; `none` or `null` is not a value, and commas make a list. Raise `InputError` for
    an unknown field or a wrong value.
    """
    changes: JsonObject = {}
    add_settings(changes, recipe, [checked("a setting", str, setting) for setting in settings])
    return change(recipe, changes)


def add_settings(changes: JsonObject, recipe: Recipe, settings: Sequence[str]) -> None:
    """Add `section.field=value` to changes of a recipe; raise `InputError` as `override` does, or for a second value.

    The kinds of layout and model, which have fields of their own, are read first.
    """
    for setting in sorted(settings, key=lambda setting: not setting.startswith(("layout.kind=", "model.model_type="))):
        place, equals, text = setting.partition("=")
        path = [part.replace("-", "_") for part in place.split(".")]
        if not equals or len(path) < 2:
            raise InputError(f"{setting!r} is not a change: use section.field=value, e.g. train.steps=100")
        value = _parsed(place, field_type(recipe, path, changes), text)
        section = changes
        for name in path[:-1]:
            section = section.setdefault(name, {})
        if path[-1] in section:
            raise InputError(f"{place} is set twice, at last to {text!r}: keep one")
        section[path[-1]] = value


def _parsed(name: str, hint: object, text: str) -> object:
    """Return the value that a text states for a type: `none`, a list with commas, JSON, or input of pydantic."""
    kinds = {typing.get_origin(kind) or kind for kind in members(hint)}
    value: object = text
    if type(None) in kinds and text.lower() in ("none", "null"):
        value = None
    elif kinds & {tuple, list} and not text.startswith("["):
        value = [part.strip() for part in text.split(",") if part.strip()]
    elif kinds & {tuple, list, int} or not kinds & {str, float}:
        with contextlib.suppress(json.JSONDecodeError):
            value = json.loads(text)  # 1e9 tokens are an integer
    return checked(name, hint, value, parse=True)


def members(hint: object) -> tuple[object, ...]:
    """Return the types of a union, or the one type, without annotations."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return members(parts[0])
    if origin in (typing.Union, types.UnionType):
        return tuple(kind for part in parts for kind in members(part))
    return (hint,)


def field_type(recipe: Recipe, path: Sequence[str], changes: JsonObject) -> object:
    """Return the type of a field of this recipe; raise `InputError` with the nearest name.

    Args:
        path: `("optimizer", "learning_rate")`, or `("model", "backbone", "n_layer")` for a model inside a model.
        changes: of the recipe, among which may be another kind of layout or model.
    """
    section, *names = path
    parts: dict[str, object] = {"model": None, **sections(recipe)}
    if section not in parts:
        raise InputError(f"{'.'.join(path)}: a recipe has no section {section!r}{nearest(section, parts)}")
    model, place = recipe.model, section
    if (model_type := changes.get("model", {}).get("model_type", model["model_type"])) != model["model_type"]:
        model = {"model_type": model_type}
    while section == "model" and len(names) > 1:
        inner = model.get(names[0])
        if not (isinstance(inner, dict) and "model_type" in inner):
            break
        model, place, names = inner, f"{place}.{names[0]}", names[1:]
    name = ".".join(names)
    if section == "model":
        fields = model_fields(model["model_type"])
        hints = {each: field.hint for each, field in fields.items()} | {"model_type": str}
    else:
        kind = changes.get("layout", {}).get("kind") if section == "layout" else None
        hints = section_fields(type(parts[section]) if kind is None else layout_class(kind))
        hints |= {"kind": str} if section == "layout" else {}
    if name not in hints:
        raise InputError(f"{place}.{name}: no such field{nearest(name, hints) or _LISTED}")
    return hints[name]
