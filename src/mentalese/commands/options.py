"""Options of commands: tyro makes a command line of a dataclass, whose `Positional` fields are its arguments.

`train` and `compare` have an option for each field of a recipe too, besides words of the form `section.field=value`.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import typing
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeVar

import tyro
from tyro.conf import Positional, arg

from mentalese.commands import COMMANDS, MEASURES
from mentalese.errors import InputError
from mentalese.model_fields import MISSING, field_docs, is_filled_in, model_fields
from mentalese.recipe import Recipe
from mentalese.recipe_files import add_settings, change, members, section_fields, sections
from mentalese.values import Texts

ModelPath = Annotated[Positional[str], arg(metavar="MODEL")]
RecipeName = Annotated[Positional[str], arg(metavar="RECIPE")]
Settings = Annotated[Positional[Texts], arg(metavar="SECTION.FIELD=VALUE")]

T = TypeVar("T")
_Field = tuple[str, Any, Any]  # a field of a dataclass to make: its name, type and default
_ABOUT = "Language models that think in latent space. `mentalese COMMAND --help` shows the options of a command, and "
_ABOUT += "`mentalese train RECIPE --help` those of a recipe."
_SHORT = {"data.source": "--data", "train.seed": "--seed"}
_SETTING = re.compile(r"[A-Za-z_]\w*(\.[\w-]+)+=.*", re.DOTALL)


def read_text(path: Path) -> str:
    """Return the text of the file in `--file`."""
    try:
        return path.read_text(encoding="utf-8-sig")  # without the mark that some editors begin a text with
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--file is {str(path)!r}: use a UTF-8 text file ({error})") from None


def given_text(text: str | None, file: Path | None) -> str | None:
    """Return the text of `--text` or `--file`; `None` without either."""
    if text is not None and file is not None:
        raise InputError("--text and --file are both given: use one of them")
    return text if file is None else read_text(file)


def find_command(name: str) -> tuple[ModuleType, Any]:
    """Return the module of a command, and the class of its options."""
    module = importlib.import_module(f"mentalese.commands.{'measure' if name in MEASURES else name}")
    return module, getattr(module, MEASURES.get(name, "Options"))


def read_options(options: type[T], words: Sequence[str], command: str) -> T:
    """Return the options of a command; raise `InputError` for a range, `SystemExit` for --help and unknown options."""
    return _read(options, (), words, command)[0]


def read_all(words: Sequence[str]) -> None:
    """Print the help of all commands, or a script that completes them, according to the words."""
    commands = {name: find_command(name)[1] for name in COMMANDS}
    tyro.extras.subcommand_cli_from_dict(commands, prog="mentalese", description=_ABOUT, args=words)


def _read(options: type[T], more: Sequence[_Field], words: Sequence[str], command: str) -> tuple[T, Any]:
    """Return the options of a command, and an object that has the values of more fields, each a dataclass.

    tyro fills in a class that checks no ranges: errors about these are `InputError` like all others.
    """
    unchecked = {"__post_init__": lambda _: None, "__doc__": options.__doc__}
    arguments: Any = dataclasses.make_dataclass(
        "Options", more, bases=(options,), namespace=unchecked, kw_only=True, frozen=True
    )
    _check_lists(arguments, words)
    parsed = tyro.cli(arguments, prog=f"mentalese {command}", args=words)
    names = {field.name for field in dataclasses.fields(arguments)} - {name for name, _, _ in more}
    return options(**{name: getattr(parsed, name) for name in names}), parsed


def _check_lists(arguments: type, words: Sequence[str]) -> None:
    """Raise `InputError` for an option of a list that is given twice, of which only the last one would count."""
    given = Counter(_flag(word.partition("=")[0]) for word in words if word.startswith("--"))
    for option in _list_options(arguments, "--"):
        if given[option] > 1:
            raise InputError(f"{option} is given {given[option]} times: write it once, and all values after it")


def _list_options(arguments: type, prefix: str) -> Iterator[str]:
    """Yield the options that take several values, also those in sections of a recipe."""
    for name, hint in typing.get_type_hints(arguments).items():
        if dataclasses.is_dataclass(hint):
            yield from _list_options(typing.cast(type, hint), f"{prefix}{name}.")
        elif any(typing.get_origin(kind) is tuple for kind in members(hint)):
            yield _flag(f"{prefix}{name}")


def is_setting(word: str) -> bool:
    """Test if a word has the form `section.field=value`."""
    return _SETTING.fullmatch(word) is not None


def names_before_options(words: Sequence[str]) -> list[str]:
    """Return the words before the first option that are not settings; raise `InputError` if a recipe's come first."""
    names = [word for word in takewhile(lambda word: not word.startswith("-"), words) if not is_setting(word)]
    options = [word for word in words if word.startswith("--") and ("." in word or word in _SHORT.values())]
    if options and not names:
        raise InputError(f"{options[0]} depends on the recipe: write the recipe's name before it")
    return names


def _settings_together(words: Sequence[str]) -> list[str]:
    """Return the words with settings after the names that come first: tyro reads all but options in one place."""
    settings, others, option = list[str](), list[str](), ""
    for word in words:
        option = word if word.startswith("-") else option
        (settings if is_setting(word) and option != "--tune" else others).append(word)  # its values look like settings
    first = len(names_before_options(words))
    return [*others[:first], *settings, *others[first:]] if first else [*words]


def read_recipe(recipe: Recipe, options: type[T], words: Sequence[str], command: str) -> tuple[Recipe, T]:
    """Return the recipe changed by options and `settings`, and the command's options; raise as `read_options` does."""
    parts = {"model": _model_options(recipe.model, "model")}
    for name, section in sections(recipe).items():
        docs, hints = field_docs(type(section)), section_fields(type(section))
        fields = [_option(name, field, hint, getattr(section, field), docs.get(field)) for field, hint in hints.items()]
        parts[name] = dataclasses.make_dataclass(name, fields, kw_only=True)
    more = [(name, part, dataclasses.field(default_factory=part)) for name, part in parts.items()]
    command_options, parsed = _read(options, more, _settings_together(words), command)
    given = {_flag(word.partition("=")[0]) for word in words}
    changes = {name: _changes(part(), getattr(parsed, name), given) for name, part in parts.items()}
    add_settings(changes, recipe, parsed.settings)
    return change(recipe, {name: part for name, part in changes.items() if part}), command_options


def _model_options(model: Mapping[str, Any], place: str) -> Any:
    """Return the fields of a config that are numbers, text or lists of them, also of a model inside the model."""
    config = model_fields(model["model_type"])
    usual = {field.name: name for name, field in config.items() if name != field.name}
    values = {config[name].name: value for name, value in model.items() if name in config}
    options: list[_Field] = []
    for name, field in config.items():
        if name != field.name:
            continue
        value = values.get(name, field.default)
        if isinstance(value, dict) and "model_type" in value:
            inner = _model_options(value, f"{place}.{name}")
            options.append((name, inner, dataclasses.field(default_factory=inner)))
        elif not is_filled_in(name) and value is not MISSING and _is_simple(field.hint):
            options.append(_option(place, name, field.hint, value, field.doc, usual.get(name)))
    return dataclasses.make_dataclass(place.replace(".", "_"), options, kw_only=True)


def _option(place: str, name: str, hint: Any, value: Any, doc: str | None, other: str | None = None) -> _Field:
    path, hint = f"{place}.{name}", hint | None if value is None else hint
    aliases = [_SHORT[path]] if path in _SHORT else [_flag(f"--{place}.{other}")] if other else []
    flags = {_flag(f"--{path}"), _flag(f"--{place}.no-{name}"), *aliases}
    default = dataclasses.field(default=tuple(value) if isinstance(value, list) else value, metadata={"flags": flags})
    return name, Annotated[hint, arg(help=doc or None, aliases=aliases or None)], default


def _flag(words: str) -> str:
    """Return an option as it is listed; it is read with underscores too."""
    return words.replace("_", "-")


def _is_simple(hint: Any) -> bool:
    """Test if a type consists of numbers, text, truth values, none and tuples of them."""
    for kind in members(hint):
        if typing.get_origin(kind) is tuple:
            if not all(item is Ellipsis or _is_simple(item) for item in typing.get_args(kind)):
                return False
        elif typing.get_origin(kind) is not typing.Literal and kind not in (int, float, bool, str, type(None)):
            return False
    return True


def _changes(before: Any, after: Any, given: Set[str]) -> dict[str, Any]:
    """Return the fields that differ or were given; fields of a model inside the model are a nested dict.

    A value that equals the recipe's counts: it stays where another option resets it, as another source does.
    """
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(after):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if dataclasses.is_dataclass(new):
            if inner := _changes(old, new, given):
                changes[field.name] = inner
        elif old != new or given & field.metadata["flags"]:
            changes[field.name] = new
    return changes
