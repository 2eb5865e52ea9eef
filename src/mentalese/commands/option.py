"""One option of a command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        path: where its value goes: a field of the command's own, or section and field of a recipe.
        flag: `--layout.batch-size`.
        hint: its type.
        default: what holds if it is not given; shown by `--help`.
        doc: its documentation.
        aliases: other flags of the same option.
        common: whether `--help` shows it; `--help-all` shows all.
        commas: a list is one word, with commas between its values.
    """

    path: tuple[str, ...]
    flag: str
    hint: Any
    default: Any
    doc: str
    aliases: tuple[str, ...] = ()
    common: bool = True
    commas: bool = False


def flag(*path: str) -> str:
    return f"--{'.'.join(path).replace('_', '-')}"
