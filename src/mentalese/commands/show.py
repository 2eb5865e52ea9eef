"""`mentalese show`: every field of a recipe, with its value and its meaning."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Mapping
from typing import Annotated, Any

from tyro.conf import Positional, arg

from mentalese.commands.options import read
from mentalese.commands.shared import print_json
from mentalese.data.layouts import Packed
from mentalese.model_fields import field_docs, is_filled_in, model_fields
from mentalese.recipe import Recipe
from mentalese.recipe_files import open_recipe, override, sections
from mentalese.registry import recipes
from mentalese.screen import width
from mentalese.values import Texts, checked_dataclass


@checked_dataclass("")
class Options:
    """Every field of a recipe with its value and its meaning.

    `*` marks a value that is not its section's default, `+` one that is not its baseline's.

    Attributes:
        recipe: a recipe's name or file.
        settings: section.field=value ...: other values.
        json: the same as JSON.
    """

    recipe: Annotated[Positional[str], arg(metavar="RECIPE")]
    settings: Annotated[Positional[Texts], arg(metavar="SECTION.FIELD=VALUE")] = ()
    json: bool = False


def run(words: list[str]) -> None:
    options = read(Options, words, "show")
    recipe = override(open_recipe(options.recipe), *options.settings)
    fields = explain(recipe)
    if options.json:
        about = {name: getattr(recipe, name) for name in ("name", "description", "baseline", "paper")}
        return print_json(about | {"fields": fields, "phases": recipe.to_dict()["phases"]})
    print(f"{recipe.name}: {recipe.description}")
    for name in ("baseline", "paper"):
        if (value := getattr(recipe, name)) is not None:
            print(f"{name}: {value}")
    print(f"* not the default    {'+ not as in ' + recipe.baseline if recipe.baseline else ''}".rstrip())
    for section, entries in fields.items():
        print(f"\n{section}")
        for name, entry in entries.items():
            _print_field(name, entry)
    for index, phase in enumerate(recipe.phases):
        print(f"\nphases[{index}]\n    {json.dumps(dataclasses.asdict(phase))}")
    return None


def explain(recipe: Recipe) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the values and the meaning of every field of a recipe.

    Returns:
        Section -> field -> `value`, `default`, `baseline` (if there is one), `differs_from_default`,
        `differs_from_baseline` and `doc`. A model inside the model is a separate section.
    """
    twin = recipes().get(recipe.baseline or "")
    fields = _model(recipe.model, twin.model if twin else {}, "model")
    for section, config in sections(recipe).items():
        docs, baseline_section = field_docs(type(config)), getattr(twin, section, None)
        fields[section] = {
            field.name: _entry(
                getattr(config, field.name),
                field.default,
                getattr(baseline_section, field.name, dataclasses.MISSING),
                docs.get(field.name, ""),
            )
            for field in dataclasses.fields(config)
        }
    kind = _entry(
        recipe.layout.kind,
        Packed.kind,
        twin.layout.kind if twin else dataclasses.MISSING,
        (type(recipe.layout).__doc__ or "").partition("\n")[0],
    )
    return fields | {"layout": {"kind": kind} | fields["layout"]}


def _model(model: Mapping[str, Any], twin: Mapping[str, Any], place: str) -> dict[str, dict[str, dict[str, Any]]]:
    config = model_fields(model["model_type"])
    same = twin.get("model_type") == model["model_type"]
    twin_fields = _by_own_name(twin) if same else {}
    model_values = _by_own_name(model)
    kind = dataclasses.MISSING if not twin else twin.get("model_type")
    entries = {
        "model_type": _entry(
            model["model_type"], dataclasses.MISSING, kind, "the kind of model, one of a family or of transformers"
        )
    }
    nested: dict[str, dict[str, dict[str, Any]]] = {}
    inner = _inner_names(model_values)
    for name, field in config.fields.items():
        value = model_values.get(name, field.default)
        if isinstance(value, dict) and "model_type" in value:
            nested = _model(value, twin_fields.get(name, {}), f"{place}.{name}")
        elif name in model_values or not (value is dataclasses.MISSING or is_filled_in(name) or name in inner):
            baseline = twin_fields.get(name, field.default) if same else dataclasses.MISSING
            entries[name] = _entry(value, field.default, baseline, field.doc)
    return {place: entries} | nested


def _inner_names(model: Mapping[str, Any]) -> set[str]:
    """Fields of a model inside the model, which takes its sizes."""
    inner = [value for value in model.values() if isinstance(value, dict) and "model_type" in value]
    return {name for value in inner for name in model_fields(value["model_type"]).names()}


def _by_own_name(model: Mapping[str, Any]) -> dict[str, Any]:
    own_names = model_fields(model["model_type"]).own_names
    return {own_names.get(name, name): value for name, value in model.items()}


def _entry(value: Any, default: Any, baseline: Any, doc: str) -> dict[str, Any]:
    value, default, baseline = (list(v) if isinstance(v, tuple) else v for v in (value, default, baseline))
    missing = dataclasses.MISSING
    return {
        "value": value,
        "default": None if default is missing else default,
        "differs_from_default": default is not missing and value != default,
        "differs_from_baseline": baseline is not missing and value != baseline,
        **({} if baseline is missing else {"baseline": baseline}),
        "doc": doc,
    }


def _print_field(name: str, entry: Mapping[str, Any]) -> None:
    changed, other = entry["differs_from_default"], entry["differs_from_baseline"]
    marks = f"{'*' if changed else ' '}{'+' if other else ' '}"
    notes = [f"default {_text(entry['default'])}"] if changed else []
    notes += [f"baseline {_text(entry['baseline'])}"] if other else []
    print(f"{marks} {name} = {_text(entry['value'])}" + (f"   ({', '.join(notes)})" if notes else ""))
    if entry["doc"]:
        print(textwrap.fill(entry["doc"], width(), initial_indent=" " * 7, subsequent_indent=" " * 7))


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, list | dict) else str(value)
