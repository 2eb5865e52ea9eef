"""The one error that a user causes and a user can mend."""

from __future__ import annotations

import csv
import difflib
import textwrap
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Bad input: the message names the field, its value and the remedy in one sentence.

    The command line prints it without a traceback and exits with 2; library callers catch a `ValueError`.
    It is raised before work starts, so nothing half-written remains.

    Attributes:
        field: the name of the field, such as `train.steps`; empty if the message names it only.
    """

    def __init__(self, message: object = "", field: str = "") -> None:
        super().__init__(message)
        self.field = field


def require(condition: bool, name: str, value: object, remedy: str) -> None:
    """Raise `InputError` unless the condition is met."""
    if not condition:
        raise InputError(f"{name} is {value!r}: {remedy}", name)


def nearest(name: object, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` where a known name is close to `name`, else an empty string."""
    matches = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else ""


_UNREADABLE = (OSError, ValueError, RuntimeError, EOFError, ImportError, csv.Error, zlib.error, zipfile.BadZipFile)


@contextmanager
def reading(place: object, remedy: str = "repair it, or use an intact copy") -> Iterator[None]:
    """Turn errors of all readers of files into an `InputError` with the place, or what a function returns for it."""
    try:
        yield
    except InputError:
        raise
    except _UNREADABLE as error:
        reason = textwrap.shorten(str(error), 300, placeholder=" ..") or type(error).__name__
        raise InputError(f"{place() if callable(place) else place} cannot be read ({reason}): {remedy}") from error
