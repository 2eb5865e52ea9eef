"""Options of commands: tyro makes a command line of a dataclass, whose `Positional` fields are its arguments."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import tyro

from mentalese.commands import COMMANDS

T = TypeVar("T")
ABOUT = "Language models that think in latent space. `mentalese COMMAND --help` shows the options of a command, and "
ABOUT += "`mentalese train RECIPE --help` those of a recipe."


def read(options: type[T], words: Sequence[str], command: str) -> T:
    """Return the options of a command.

    Raises:
        InputError: a value is out of range.
        SystemExit: the words contain --help or an error; tyro has printed the text.
    """
    return read_with(options, (), words, command)[0]


def read_with(
    options: type[T], more: Sequence[tuple[str, Any, Any]], words: Sequence[str], command: str
) -> tuple[T, Any]:
    """Return the options of a command, and an object that has the values of more fields, each a dataclass.

    tyro fills in a class that checks no ranges, so that errors about these are `InputError` like all others.
    """
    unchecked = {"__post_init__": lambda _: None, "__doc__": options.__doc__}
    arguments = dataclasses.make_dataclass(
        "Options", more, bases=(options,), namespace=unchecked, kw_only=True, frozen=True
    )
    parsed: Any = tyro.cli(arguments, prog=f"mentalese {command}", args=words)
    names = [field.name for field in dataclasses.fields(cast(Any, options))]
    return options(**{name: getattr(parsed, name) for name in names}), parsed


def read_all(words: Sequence[str]) -> None:
    """Print the help of all commands, or a script that completes them, according to the words."""
    commands = {name: importlib.import_module(f"mentalese.commands.{name}").Options for name in COMMANDS}
    tyro.extras.subcommand_cli_from_dict(commands, prog="mentalese", description=ABOUT, args=words)
