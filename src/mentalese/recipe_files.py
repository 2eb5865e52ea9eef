"""Recipes from files, and recipes with some fields changed.

A file says what `Recipe.to_dict()` does, in JSON, YAML or TOML, and every part is optional. With `base`, a recipe's
name, it says only what differs:

    base: gpt2/tiny
    model: {n_layer: 6}
    optimizer: {learning_rate: 3e-4}
    phases:
      - {start: 100, model: {..}}

`name` is the file's name without its suffix unless the file sets one. A field is also changed by `section.field=value`,
on the command line and in `Recipe.override`.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mentalese import values
from mentalese.config_source import read_config
from mentalese.data.layouts import Layout, layout_class
from mentalese.errors import InputError, nearest
from mentalese.recipe import AS_IT_IS, LENGTHS, Phase, Recipe, TrainConfig
from mentalese.registry import get_recipe

SUFFIXES = (".json", ".yaml", ".yml", ".toml")
_ABOUT = {"name": str, "description": str, "baseline": str | None, "paper": str | None}
_LISTED = " (`mentalese show RECIPE` lists all fields)"


def open_recipe(name: str) -> Recipe:
    """The recipe in a file, if the name ends like one, or else the recipe of that name."""
    return from_file(Path(name)) if Path(name).suffix in SUFFIXES else get_recipe(name)


def sections(recipe: Recipe) -> dict[str, Any]:
    """The recipe's sections by name, each a dataclass; `model` is not among them."""
    values = {field.name: getattr(recipe, field.name) for field in dataclasses.fields(recipe)}
    return {name: value for name, value in values.items() if dataclasses.is_dataclass(value)}


def section_fields(section: type) -> dict[str, Any]:
    """The fields of a section's class and their types."""
    hints = typing.get_type_hints(section)
    return {field.name: hints[field.name] for field in dataclasses.fields(section)}


# -- files -----------------------------------------------------------------------------------------------------------


def from_file(path: Path) -> Recipe:
    """The recipe in a file.

    Raises:
        InputError: the file cannot be read, or a field does not exist or has a wrong value; the message names both.
    """
    content = _read(path)
    try:
        return _from_content(content, path)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


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
    """A dict of the pairs; raises `InputError` for a name that is there twice, of which readers keep the last alone."""
    found: dict[Any, Any] = {}
    for name, value in pairs:
        if name in found:
            raise InputError(f"{name} is there twice in one section: keep one, or put both into one")
        found[name] = value
    return found


def _from_yaml(text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            _once((key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<")
            return node

    return yaml.load(text, Loader)


def _from_content(content: dict[str, Any], path: Path) -> Recipe:
    known = [field.name for field in dataclasses.fields(Recipe)]
    for name in content:
        if name not in (*known, "base"):
            raise InputError(f"{name}: a recipe has no such field{nearest(name, [*known, 'base'])}")
    fields: dict[str, Any] = {"name": path.stem, "description": f"from {path.name}"}
    about = {name: _checked(name, hint, content[name]) for name, hint in _ABOUT.items() if name in content}
    if "base" in content:
        base = get_recipe(_checked("base", str, content["base"]))
        fields |= {"description": f"{base.description}, changed by {path.name}", "paper": None} | about
    else:
        fields |= about
        fields["train"] = TrainConfig(**_section(TrainConfig, "train", content.get("train", {})))
        model = _checked("model", dict[str, Any], content.get("model", {}))
        base = Recipe(model=model, **fields)
    changes = {name: content[name] for name in ("model", *sections(base)) if name in content and name not in fields}
    if "phases" not in content:
        return change(base, changes, **fields)
    layout = _changed_layout(base.layout, content.get("layout", {}))
    return change(base, changes, **fields, phases=tuple(_phases(content["phases"], layout)))


def _phases(phases: Any, layout: Layout) -> Iterator[Phase]:
    hints = typing.get_type_hints(Phase)
    for index, phase in enumerate(_checked("phases", list, phases)):
        place = f"phases[{index}]"
        fields: dict[str, Any] = {}
        for name, value in _checked(place, dict[str, Any], phase).items():
            if name not in hints:
                raise InputError(f"{place}.{name}: a phase has no such field{nearest(name, hints)}")
            if name == "layout":
                fields[name] = _section(type(layout), f"{place}.{name}", value)
            else:
                fields[name] = _checked(f"{place}.{name}", hints[name], value)
        yield Phase(**fields)


def _section(section: type, place: str, fields: Any) -> dict[str, Any]:
    """Fields of a section, each of its type."""
    hints = section_fields(section)
    for name in _checked(place, dict[str, Any], fields):
        if name not in hints:
            raise InputError(f"{place}.{name}: no such field{nearest(name, hints)}")
    return {name: _checked(f"{place}.{name}", hints[name], value) for name, value in fields.items()}


def _model_fields(model_type: str, place: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a config under the names that they have in it, each of its type."""
    config, named = read_config(model_type), {}
    for name, value in fields.items():
        own = config.own_names.get(name, name)
        if name == "model_type":
            named[name] = value
        elif own not in config.fields:
            raise InputError(f"{place}.{name}: {model_type} has no such field{nearest(name, config.names())}")
        elif own in named:
            raise InputError(f"{place}.{name} and {place}.{own} are one field of {model_type}: keep one")
        else:
            named[own] = _checked(f"{place}.{name}", config.fields[own].hint, value)
    return named


def _checked(name: str, hint: Any, value: Any) -> Any:
    try:
        return values.check(hint, value)
    except ValueError as error:
        raise InputError(f"{name} is {value!r}: {error}") from None


# -- changes ---------------------------------------------------------------------------------------------------------


def change(recipe: Recipe, changes: Mapping[str, Any], **fields: Any) -> Recipe:
    """The recipe with other values.

    Args:
        changes: section name -> field name -> value. A model of another type replaces the recipe's, and so does a
            length of the run, and a layout of another kind; another source is read as it is, unless `changes` say how.
        fields: other fields of the recipe, e.g. `name`.

    Raises:
        InputError: a field does not exist, a value is of another type or out of range, or a prepared store is to have
            another tokenizer.
    """
    replaced = dict(fields)
    for section, new in changes.items():
        if section == "model":
            replaced[section] = _changed_model(recipe.model, _checked(section, dict[str, Any], new), section)
            continue
        old = getattr(recipe, section)
        if section == "layout":
            replaced[section] = _changed_layout(old, new)
            continue
        given = _section(type(old), section, new)
        new = {name: value for name, value in given.items() if value != getattr(old, name)}
        if section == "train" and any(name in new for name in LENGTHS):
            new = dict.fromkeys(LENGTHS) | given
        if section == "data":
            source = given.get("source", old.source)
            if "tokenizer" in new and source.startswith("store:"):
                raise InputError(
                    f"data.tokenizer is {new['tokenizer']!r}: {source} has its own tokenizer; leave it out, or use "
                    "--tokenizer with `mentalese data prepare`"
                )
            if "source" in new:
                new = AS_IT_IS | given
        if new:
            replaced[section] = dataclasses.replace(old, **new)
    return dataclasses.replace(recipe, **replaced)


def _changed_layout(layout: Layout, changes: Any) -> Layout:
    """The layout with other values; one of another kind has its own defaults for what is not set."""
    changes = dict(_checked("layout", dict[str, Any], changes))
    kind = _checked("layout.kind", str, changes.pop("kind", layout.kind))
    if kind == layout.kind:
        return dataclasses.replace(layout, **_section(type(layout), "layout", changes))
    return layout_class(kind)(**_section(layout_class(kind), "layout", changes))


def _changed_model(model: dict[str, Any], changes: dict[str, Any], place: str) -> dict[str, Any]:
    model_type = changes.get("model_type", model["model_type"])
    if model_type != model["model_type"]:
        return _model_fields(model_type, place, changes)
    own_names = read_config(model_type).own_names
    current = {own_names.get(name, name): value for name, value in model.items()}
    nested = {name: _changed_model(current[name], value, f"{place}.{name}") for name, value in changes.items()
              if isinstance(value, dict) and "model_type" in (current.get(name) or {})}  # fmt: skip
    changes = nested | _model_fields(model_type, place, {k: v for k, v in changes.items() if k not in nested})
    changes = {name: value for name, value in changes.items() if name not in current or current[name] != value}
    return {name: value for name, value in model.items() if own_names.get(name, name) not in changes} | changes


def override(recipe: Recipe, *settings: str) -> Recipe:
    """The recipe with the values that `section.field=value` name; `none` or `null` is no value, commas make a list.

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
    """`section.field=value` as the field's path and its value; raises `InputError` as `override` does."""
    place, equals, text = setting.partition("=")
    path = [part.replace("-", "_") for part in place.split(".")]
    if not equals or len(path) < 2:
        raise InputError(f"{setting!r} is no change: use section.field=value, e.g. train.steps=100")
    hint = field_type(recipe, path)
    try:
        return path, values.parse(hint, text)
    except ValueError as error:
        raise InputError(f"{place} is {text!r}: {error}") from None


def set_in(changes: dict[str, Any], path: typing.Sequence[str], value: Any) -> None:
    """Sets a value in nested dicts."""
    for name in path[:-1]:
        changes = changes.setdefault(name, {})
    changes[path[-1]] = value


def field_type(recipe: Recipe, path: typing.Sequence[str]) -> Any:
    """The type of a field of this recipe; raises `InputError` with the nearest name.

    Args:
        path: `("optimizer", "learning_rate")`, or `("model", "backbone", "n_layer")` for a model inside a model.
    """
    section, *names = path
    known = sections(recipe)
    if section not in ("model", *known):
        raise InputError(f"{'.'.join(path)}: a recipe has no section {section!r}{nearest(section, ['model', *known])}")
    model, place = recipe.model, "model"
    while section == "model" and len(names) > 1 and "model_type" in (model.get(names[0]) or {}):
        model, place, names = model[names[0]], f"{place}.{names[0]}", names[1:]
    name = ".".join(names)
    if section != "model":
        hints = section_fields(type(known[section])) | ({"kind": str} if section == "layout" else {})
        if name not in hints:
            raise InputError(f"{section}.{name}: no such field{nearest(name, hints) or _LISTED}")
        return hints[name]
    config = read_config(model["model_type"])
    if name == "model_type":
        return str
    field = config.fields.get(config.own_names.get(name, name))
    if field is None:
        hint = nearest(name, config.names()) or _LISTED
        raise InputError(f"{place}.{name}: {model['model_type']} has no such field{hint}")
    return field.hint
