"""Files and folders that are written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mentalese.errors import InputError

_REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yields a temporary sibling of `target` to write into; it takes the name `target` when the block ends well.

    Where another process was first, its folder stays and ours goes; after an error nothing stays.

    Raises:
        InputError: the disk is full or the place cannot be written.
    """
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        yield temporary
        temporary.chmod(0o755)
        try:
            temporary.rename(target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        reason = (os.strerror(error.errno) if error.errno else str(error)).lower()
        raise InputError(f"{target} cannot be written ({reason}): make room or choose another folder") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Writes through a temporary file beside it, so that `path` never holds half of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def write_json(path: Path, content: Any) -> None:
    """JSON, indented, written whole or not at all."""
    write_text(path, json.dumps(content, indent=2) + "\n")
