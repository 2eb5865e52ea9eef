"""Code that several commands share."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from mentalese.errors import InputError


def read_text(path: Path) -> str:
    """Return the text of the file in `--file`."""
    try:
        return path.read_text(encoding="utf-8-sig")  # without the mark that some editors begin a text with
    except (FileNotFoundError, UnicodeDecodeError, IsADirectoryError) as error:
        raise InputError(f"--file is {str(path)!r}: use a UTF-8 text file ({error})") from None


def given_text(text: str | None, file: Path | None) -> str | None:
    """Return the text of `--text` or `--file`; `None` without either."""
    if text is not None and file is not None:
        raise InputError("--text and --file are both given: use one of them")
    return text if file is None else read_text(file)


def print_json(content: object) -> None:
    print(json.dumps(content, indent=2))


def only_result_on_stdout() -> contextlib.redirect_stdout[Any]:
    """Send all output of libraries to standard error while the block runs."""
    return contextlib.redirect_stdout(sys.stderr)
