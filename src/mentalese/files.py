"""Files and folders that are written whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from mentalese.errors import InputError

_REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}


@contextmanager
def whole_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yields a temporary sibling of `target` to write into; it takes the name `target` when the block ends well.

    Where there is a folder of that name already, it stays and ours goes (another process was first); with `replace` it
    is the old one that goes. After an error nothing of ours stays.

    Raises:
        InputError: the disk is full or the place cannot be written.
    """
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        yield temporary
        temporary.chmod(0o755)
        if replace and target.exists():
            old = target.with_name(f".{target.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            target.rename(old)
            temporary.rename(target)
            shutil.rmtree(old)
            return
        try:
            temporary.rename(target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
    except (OSError, SafetensorError) as error:
        code = error.errno if isinstance(error, OSError) else _safetensors_errno(error)
        if code not in _REFUSALS:
            raise
        raise InputError(
            f"{target} cannot be written ({os.strerror(code).lower()}): make room or choose another folder"
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _safetensors_errno(error: SafetensorError) -> int | None:
    """safetensors reports the system's refusal in words only: `I/O error: File too large (os error 27)`."""
    found = re.search(r"os error (\d+)", str(error))
    return int(found[1]) if found else None


def sha256(path: Path) -> str:
    """The file's SHA-256, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_place(out: Path | None, name: str) -> None:
    """Raises `InputError` where a file could not be written for want of its folder, or since it is one; `name` is what
    the user gave."""
    if out is not None and not out.parent.is_dir():
        raise InputError(f"{name} is {str(out)!r}: its folder does not exist, make it first")
    if out is not None and out.is_dir():
        raise InputError(f"{name} is {str(out)!r}: that is a folder, give a file in it")


def write_text(path: Path, text: str) -> None:
    """Writes through a temporary file beside it, so that `path` never holds half of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def write_json(path: Path, content: Any) -> None:
    """JSON, indented, written whole or not at all."""
    write_text(path, json.dumps(content, indent=2) + "\n")
