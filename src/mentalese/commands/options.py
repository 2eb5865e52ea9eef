"""Options of commands: tyro makes a command line of a dataclass, whose `Positional` fields are its arguments."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TypeVar

import tyro

from mentalese.commands import COMMANDS

T = TypeVar("T")
ABOUT = "Language models that think in latent space. `mentalese COMMAND --help` shows the options of a command, and "
ABOUT += "`mentalese train RECIPE --help` those of a recipe."


def read(options: type[T], words: Sequence[str], command: str) -> T:
    """Return the options of a command.

    Raises:
        SystemExit: help was asked for, or the words are wrong; tyro has printed why.
    """
    return tyro.cli(options, prog=f"mentalese {command}", args=words)


def read_all(words: Sequence[str]) -> None:
    """Print the help of all commands, or a script that completes them, as the words say."""
    commands = {name: importlib.import_module(f"mentalese.commands.{name}").Options for name in COMMANDS}
    tyro.extras.subcommand_cli_from_dict(commands, prog="mentalese", description=ABOUT, args=words)
