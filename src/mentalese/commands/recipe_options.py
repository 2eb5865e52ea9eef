"""A recipe's fields as options of `train` and `compare`, and as `section.field=value`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from mentalese import values
from mentalese.commands.option import Option, flag
from mentalese.commands.options import own_options, parse
from mentalese.config_source import is_filled_in, read_config
from mentalese.docstrings import class_docs
from mentalese.recipe import Recipe
from mentalese.recipe_files import change, parse_setting, section_fields, sections, set_in

T = TypeVar("T")
SHORT = {("data", "source"): "--data", ("train", "seed"): "--seed"}
"""Fields whose option has a name of its own."""
COMMON = {"source", "tokenizer", "sequence_length", "batch_size", "learning_rate", "steps", "epochs", "tokens", "init"}
COMMON |= {"precision", "device", "eval_every", "seed", "max_documents", "max_test_documents"}
"""Fields, of whatever section, that `--help` shows; of a model those that the recipe sets."""
_RARE = {("evaluation", "batch_size"), ("evaluation", "tokens")}
"""Fields of the same name as one in `COMMON` that one seldom sets."""
_SETTING = re.compile(r"[A-Za-z_]\w*(\.[\w-]+)+=.*", re.DOTALL)


def split_settings(words: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Names and `section.field=value` before the first option, and the rest."""
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    before = list(words[:first])
    settings = [word for word in before if _SETTING.fullmatch(word)]
    return [word for word in before if word not in settings], settings, list(words[first:])


def recipe_options(recipe: Recipe) -> list[Option]:
    """An option for each field of the recipe; the recipe's values are the defaults."""
    options = list(_model_options(recipe.model, ("model",)))
    for section, config in sections(recipe).items():
        docs = class_docs(type(config))
        for name, hint in section_fields(type(config)).items():
            path, value = (section, name), getattr(config, name)
            common = name in COMMON and path not in _RARE
            options.append(Option(path, SHORT.get(path, flag(*path)), hint, value, docs.get(name, ""), common=common))
    return options


def _model_options(model: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Option]:
    """The fields of a config that are numbers, text or lists of them, also of a model inside the model."""
    config = read_config(model["model_type"])
    usual = {own: name for name, own in config.own_names.items()}
    current = {config.own_names.get(name, name): value for name, value in model.items()}
    for name, field in config.fields.items():
        value = current.get(name, field.default)
        if isinstance(value, dict) and "model_type" in value:
            yield from _model_options(value, (*path, name))
        elif not is_filled_in(name) and value is not dataclasses.MISSING and values.is_simple(field.hint):
            aliases = (flag(*path, usual[name]),) if name in usual else ()
            yield Option((*path, name), flag(*path, name), field.hint, value, field.doc, aliases, name in current)


def read_recipe(recipe: Recipe, own: type[T], words: Sequence[str], command: str) -> tuple[Recipe, list[str], T]:
    """The recipe changed by options and settings, what else is positional, and the command's own options."""
    table = [*own_options(own), *recipe_options(recipe)]
    about = f"{(own.__doc__ or '').partition(chr(10) * 2)[0]} Below are the fields of {recipe.name}, as options or as "
    about += "section.field=value; [..] is the recipe's value."
    elsewhere = {flag(*path): name for path, name in SHORT.items()}
    names, given = parse(table, words, command, about, elsewhere)
    settings = [word for word in names if _SETTING.fullmatch(word)]
    changes: dict[str, Any] = {}
    for path, value in (*given.items(), *(parse_setting(recipe, setting) for setting in settings)):
        if len(path) > 1:
            set_in(changes, path, value)
    options = own(**{path[0]: value for path, value in given.items() if len(path) == 1})
    return change(recipe, changes), [word for word in names if word not in settings], options
