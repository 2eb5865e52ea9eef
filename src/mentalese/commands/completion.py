"""`mentalese completion`: a script that completes commands and their options in a shell."""

from __future__ import annotations

from typing import Annotated, Literal

from tyro.conf import Positional, arg

from mentalese.commands.options import read_all
from mentalese.values import checked_dataclass


@checked_dataclass("")
class Options:
    """Prints a script for a shell that completes commands and their options.

    Attributes:
        shell: the shell.
    """

    shell: Annotated[Positional[Literal["bash", "zsh", "fish"]], arg(metavar="SHELL")]


def run(options: Options) -> None:
    read_all(["--tyro-print-completion", options.shell])
