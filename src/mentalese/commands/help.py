"""What `--help` and `--help-all` print."""

from __future__ import annotations

import dataclasses
import shutil
import textwrap
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from mentalese import values
from mentalese.commands import COMMANDS
from mentalese.commands.option import Option

_COLUMN = 34


def width() -> int:
    """Characters in a line of text on this terminal."""
    return min(shutil.get_terminal_size().columns, 120)


def print_overview() -> None:
    """All commands."""
    column = max(map(len, COMMANDS))
    print("usage: mentalese COMMAND ...\n\nLanguage models that think in latent space.\n")
    for name, about in COMMANDS.items():
        print(f"  {name.ljust(column)}  {about.summary}\n  {' ' * column}    mentalese {name} {about.usage}")
    print("\n`mentalese COMMAND --help` shows the usual options, `--help-all` all of them")
    print("(`mentalese train RECIPE --help`: those of a recipe).")


def print_help(options: Sequence[Option], command: str, about: str, *, everything: bool) -> None:
    """The usage and the options of a command, by section; without `everything` only the usual ones."""
    name = command.partition(" ")[0]
    print(f"usage: mentalese {name} {COMMANDS[name].usage}")
    if about:
        print(f"\n{textwrap.fill(' '.join(about.split()), width())}")
    shown = [option for option in options if everything or option.common]
    for section in dict.fromkeys(_section(option) for option in shown):
        print(f"\n{section}:")
        for option in shown:
            if _section(option) == section:
                print(_entry(option))
    print(f"\n{'  -h, --help'.ljust(_COLUMN)}these lines")
    if len(shown) < len(options):
        print(f"{'  --help-all'.ljust(_COLUMN)}all {len(options)} options")


def _section(option: Option) -> str:
    return ".".join(option.path[:-1]) or "options"


def _entry(option: Option) -> str:
    names = ", ".join([option.flag, *option.aliases])
    left = f"  {names} {_value_name(option)}".rstrip()
    default = _default(option.default)
    doc = " ".join(filter(None, [option.doc, f"[{default}]" if default else ""]))
    lines = textwrap.wrap(doc, max(width() - _COLUMN, 30)) or [""]
    if len(left) > _COLUMN - 2:
        return "\n".join([left, *(" " * _COLUMN + line for line in lines)])
    return "\n".join([left.ljust(_COLUMN) + lines[0], *(" " * _COLUMN + line for line in lines[1:])])


def _value_name(option: Option) -> str:
    """`INT`, or what can be chosen."""
    if option.hint is bool:
        return ""
    if option.commas:
        return "A,B,..."
    names = list(dict.fromkeys(map(_type_name, values.members(option.hint))))
    own = len(option.path) == 1  # without it nothing is set, which need not be said
    hidden = ["none"] * own + ["INT"] * ("NUMBER" in names)
    return "|".join(name for name in names if name not in hidden)


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return "|".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        items = typing.get_args(hint)
        return f"{_type_name(items[0])} ..." if Ellipsis in items else " ".join(map(_type_name, items))
    return {int: "INT", float: "NUMBER", bool: "true|false", str: "TEXT", Path: "PATH"}.get(hint, "none")


def _default(value: Any) -> str:
    if value is None or value is False or value is dataclasses.MISSING or value == () or value == "":
        return ""
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
