"""`mentalese show`: every field of a recipe, with its value and its meaning."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Mapping
from typing import Any

from mentalese.commands.options import RecipeName, Settings
from mentalese.data.layouts import Packed
from mentalese.files import JsonObject
from mentalese.model_fields import MISSING, field_docs, is_filled_in, model_fields
from mentalese.recipe import Recipe
from mentalese.recipe_files import open_recipe, override, sections
from mentalese.registry import recipes
from mentalese.screen import print_json, width
from mentalese.values import checked_dataclass

Entry = JsonObject
"""A field: `value`, `default`, `baseline` if there is one, `differs_from_default`, `differs_from_baseline`, `doc`."""
Fields = Mapping[str, object]


@checked_dataclass("")
class Options:
    """Every field of a recipe with its value and its meaning.

    `*` marks a value that is not its section's default, `+` one that is not its baseline's.

    Attributes:
        recipe: a recipe's name or file.
        settings: section.field=value ...: other values.
        json: the same as JSON.
    """

    recipe: RecipeName
    settings: Settings = ()
    json: bool = False


def run(options: Options) -> None:
    recipe = override(open_recipe(options.recipe), *options.settings)
    twin = recipes().get(recipe.baseline or "")
    fields = _model(recipe.model, twin.model if twin else {}, "model")
    for section, config in sections(recipe).items():
        fields[section] = _section(config, getattr(twin, section, None))
    kind_doc = (type(recipe.layout).__doc__ or "").partition("\n")[0]
    kind = _entry(recipe.layout.kind, Packed.kind, twin.layout.kind if twin else MISSING, kind_doc)
    fields["layout"] = {"kind": kind} | fields["layout"]
    if options.json:
        about = {name: getattr(recipe, name) for name in ("name", "description", "baseline", "paper")}
        print_json(about | {"fields": fields, "phases": recipe.to_dict()["phases"]})
    else:
        _print(recipe, fields)


def _section(config: Any, twin: object) -> dict[str, Entry]:
    docs = field_docs(type(config))
    return {
        field.name: _entry(
            getattr(config, field.name), field.default, getattr(twin, field.name, MISSING), docs.get(field.name, "")
        )
        for field in dataclasses.fields(config)
    }


def _model(model: Fields, twin: Fields, place: str) -> dict[str, dict[str, Entry]]:
    """Return the fields of a model, and by its place the fields of a model inside it."""
    kind = str(model["model_type"])
    config, same = model_fields(kind), twin.get("model_type") == kind
    values, twin_values = (
        {config[name].name: value for name, value in each.items() if name in config} for each in (model, twin)
    )
    kind_doc = "the kind of model, one of a family or of transformers"
    entries = {"model_type": _entry(kind, MISSING, twin.get("model_type", MISSING), kind_doc)}
    models = [value for value in values.values() if isinstance(value, dict) and "model_type" in value]
    inner = {name for value in models for name in model_fields(value["model_type"])}  # which has the sizes
    nested: dict[str, dict[str, Entry]] = {}
    for name, field in config.items():
        if name != field.name:
            continue
        value = values.get(name, field.default)
        if isinstance(value, dict) and "model_type" in value:
            twin_model = twin_values.get(name) if same else None
            nested = _model(value, twin_model if isinstance(twin_model, dict) else {}, f"{place}.{name}")
        elif name in values or not (value is MISSING or is_filled_in(name) or name in inner):
            baseline = twin_values.get(name, field.default) if same else MISSING
            entries[name] = _entry(value, field.default, baseline, field.doc)
    return {place: entries} | nested


def _entry(value: object, default: object, baseline: object, doc: str) -> Entry:
    value, default, baseline = (list(v) if isinstance(v, tuple) else v for v in (value, default, baseline))
    return {
        "value": value,
        "default": None if default is MISSING else default,
        "differs_from_default": default is not MISSING and value != default,
        "differs_from_baseline": baseline is not MISSING and value != baseline,
        **({} if baseline is MISSING else {"baseline": baseline}),
        "doc": doc,
    }


def _print(recipe: Recipe, fields: Mapping[str, Mapping[str, Entry]]) -> None:
    print(f"{recipe.name}: {recipe.description}")
    known = recipe.baseline in recipes()
    if recipe.baseline is not None:
        print(f"baseline: {recipe.baseline}{'' if known else ' (no recipe is called that here)'}")
    if recipe.paper is not None:
        print(f"paper: {recipe.paper}")
    print(f"* not the default    {f'+ not as in {recipe.baseline}' if known else ''}".rstrip())
    for section, entries in fields.items():
        print(f"\n{section}")
        for name, entry in entries.items():
            notes = []
            for mark, other in (("*", "default"), ("+", "baseline")):
                notes += [(mark, f"{other} {_text(entry[other])}")] if entry[f"differs_from_{other}"] else []
            marks = "".join(mark if mark in dict(notes) else " " for mark in "*+")
            about = f"   ({', '.join(note for _, note in notes)})" if notes else ""
            print(f"{marks} {name} = {_text(entry['value'])}{about}")
            if entry["doc"]:
                print(textwrap.fill(entry["doc"], width(), initial_indent=" " * 7, subsequent_indent=" " * 7))
    for index, phase in enumerate(recipe.phases):
        print(f"\nphases[{index}]\n    {json.dumps(dataclasses.asdict(phase))}")


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, list | dict) else str(value)
