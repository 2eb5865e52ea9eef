"""What several commands need."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from mentalese.errors import InputError


def device() -> Any:
    """The device that a command without a recipe runs on."""
    from mentalese.training.parallel import setup

    return setup("auto").device


def read_text(path: Path) -> str:
    """The text of the file in `--file`."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"--file is {str(path)!r}: no such file") from None
    except (UnicodeDecodeError, IsADirectoryError):
        raise InputError(f"--file is {str(path)!r}: use a UTF-8 text file") from None


def given_text(text: str | None, file: Path | None) -> str | None:
    """What `--text` or `--file` gives; `None` without either."""
    if text is not None and file is not None:
        raise InputError("--text and --file are both given: use one of them")
    return text if file is None else read_text(file)


def print_json(content: Any) -> None:
    print(json.dumps(content, indent=2))


def only_result_on_stdout() -> contextlib.redirect_stdout[Any]:
    """While the block runs, whatever a library prints goes to standard error."""
    return contextlib.redirect_stdout(sys.stderr)
