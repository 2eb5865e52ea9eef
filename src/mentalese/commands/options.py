"""Options of a command: read from dataclasses, parsed by their types, and shown by `--help`.

Every option is `--name VALUE`, `--name=VALUE`, or several values for a list; dashes and underscores are the same. What
is no option is positional, wherever it is. A truth value is `--name`, `--no-name`, or followed by `true` or `false`. If
an option is repeated, its last value is used; lists are joined.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

from mentalese import values
from mentalese.commands.help import print_help
from mentalese.commands.option import Option, flag
from mentalese.docstrings import class_docs
from mentalese.errors import InputError, nearest

T = TypeVar("T")
_WORDS = ("true", "false", "none", "null")


def own_options(options: type) -> list[Option]:
    """The options of a dataclass: its fields and those of its bases, documented under `Attributes`.

    A field's metadata may name another `flag`, or say that a list is one word with `commas`. Fields named in the class
    variable `RARE` are only in `--help-all`.
    """
    hints, docs = typing.get_type_hints(options), class_docs(options)
    return [
        Option(
            path=(field.name,),
            flag=field.metadata.get("flag", flag(field.name)),
            hint=hints[field.name],
            default=field.default,
            doc=docs.get(field.name, ""),
            common=field.name not in getattr(options, "RARE", ()),
            commas=field.metadata.get("commas", False),
        )
        for field in dataclasses.fields(options)
    ]


def read(options: type[T], words: Sequence[str], command: str) -> tuple[list[str], T]:
    """The positional arguments and the options of a command; prints its help if asked for."""
    table = own_options(options)
    names, given = parse(table, words, command, (options.__doc__ or "").partition("\n\n")[0])
    return names, options(**{path[0]: value for path, value in given.items()})


def read_one(options: type[T], words: Sequence[str], command: str, what: str) -> tuple[str, T]:
    """As `read`, for a command with one positional argument."""
    names, read_options = read(options, words, command)
    return one(names, command, what), read_options


def one(names: Sequence[str], command: str, what: str) -> str:
    if len(names) == 1:
        return names[0]
    given = f"{len(names)} were given ({', '.join(names)})" if names else "none was given"
    raise InputError(f"`mentalese {command}` takes a {what} before its options, and {given}: see its --help")


def none(names: Sequence[str], command: str) -> None:
    if names:
        raise InputError(f"`mentalese {command}` takes no arguments, and got {names[0]!r}: remove it")


def parse(
    options: Sequence[Option], words: Sequence[str], command: str, about: str, elsewhere: dict[str, str] | None = None
) -> tuple[list[str], dict[tuple[str, ...], Any]]:
    """Positional arguments, and the values of the options that are given, by their path.

    Args:
        options: what the command has.
        words: its arguments.
        command: its name, for errors.
        about: what `--help` says about it.
        elsewhere: flags that one may look for -> those to use.

    Raises:
        InputError: an option that does not exist, or a value that is not of its type.
        SystemExit: help was asked for and has been printed.
    """
    flags = {name: option for option in options for name in (option.flag, *option.aliases)}
    positional: list[str] = []
    given: dict[tuple[str, ...], Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("-h", "--help", "--help-all"):
            print_help(options, command, about, everything=word == "--help-all")
            raise SystemExit(0)
        if not word.startswith("-") or word == "-":
            positional.append(word)
            continue
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        option = flags.get(name) or flags.get(_without_no(name))
        if option is None:
            use = (elsewhere or {}).get(name)
            hint = f"; did you mean {use!r}?" if use else nearest(name, flags)
            raise InputError(f"{name}: `mentalese {command}` has no such option{hint}")
        if name not in flags:
            if equals or not values.is_flag(option.hint):
                raise InputError(f"{name}: {option.flag} is no switch, use {values.describe(option.hint)}")
            given[option.path] = False
            continue
        try:
            new = _given(option, [value] if equals else [], rest)
        except ValueError as error:
            raise InputError(f"{name}{_shown(words, word)}: {error}") from None
        before = given.get(option.path) if values.is_open_list(option.hint) else None
        given[option.path] = new if before is None or new is None else before + new
    return positional, given


def _given(option: Option, first: list[str], rest: list[str]) -> Any:
    """The value of an option, of the word after its `=` and of those that it takes from `rest`."""
    if option.commas:
        names = values.parse(option.hint, _value(str, first or _take(str, rest)))
        if not names:
            raise ValueError("use one or more names, joined by commas")
        return names
    more = _take(option.hint, rest) if not first or values.is_list(option.hint) else []
    return _value(option.hint, [*first, *more])


def _without_no(name: str) -> str:
    """`--model.no-silent-start` -> `--model.silent-start`."""
    place, dot, last = name.removeprefix("--").rpartition(".")
    return f"--{place}{dot}{last.removeprefix('no-')}"


def _take(hint: Any, rest: list[str]) -> list[str]:
    """The words that belong to an option of this type, removed from `rest`."""
    if values.is_flag(hint):
        return [rest.pop(0)] if rest and rest[0].lower() in _WORDS else []
    if not values.is_list(hint):
        return [rest.pop(0)] if rest and not rest[0].startswith("--") else []
    taken = []
    while rest and not rest[0].startswith("--"):
        taken.append(rest.pop(0))
    return taken


def _value(hint: Any, words: list[str]) -> Any:
    if words or values.is_list(hint):
        return values.parse_words(hint, words)
    if values.is_flag(hint):
        return True
    raise ValueError(f"it needs a value, use {values.describe(hint)}")


def _shown(words: Sequence[str], word: str) -> str:
    """` is 'ten'`, for an error about the value after `word`."""
    after = list(words)[list(words).index(word) + 1 :]
    return f" is {after[0]!r}" if after and not after[0].startswith("--") and "=" not in word else ""
