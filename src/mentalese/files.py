"""Files and folders that are written whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from mentalese.errors import InputError

_REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}
_REFUSALS |= {errno.EEXIST}  # a file where a folder would be

_LONGEST_NAME = 255  # bytes, of a file or folder, on the usual disks


@contextmanager
def whole_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yields a temporary sibling of `target` to write into; it takes the name `target` when the block ends well.

    Where there is a folder of that name already, it stays and ours goes (another process was first); with `replace` it
    is the old one that goes. After an error nothing of ours stays.

    Raises:
        InputError: the disk is full, the place cannot be written, or it is a folder without a name, such as `.`.
    """
    if target.name in ("", ".."):
        raise InputError(f"{str(target)!r} names no new folder: use a name, e.g. {str(target / 'new')!r}")
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


def remove_remains(target: Path) -> None:
    """Removes what a process that was killed inside `whole_folder(target)` left beside it; no other may be writing."""
    for remains in (*target.parent.glob(f".{target.name}-*"), target.with_name(f".{target.name}.old")):
        shutil.rmtree(remains, ignore_errors=True)


def _safetensors_errno(error: SafetensorError) -> int | None:
    """safetensors reports the system's refusal in words only: `I/O error: File too large (os error 27)`."""
    found = re.search(r"os error (\d+)", str(error))
    return int(found[1]) if found else None


def cache_dir() -> Path:
    """`$MENTALESE_CACHE`, or `~/.cache/mentalese`: trained tokenizers, token stores, texts of the hub."""
    return Path(os.environ.get("MENTALESE_CACHE") or Path.home() / ".cache" / "mentalese").expanduser()


def sha256(path: Path) -> str:
    """The file's SHA-256, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def as_path(value: Any, name: str) -> Path:
    """A path that somebody passed as `name`; raises `InputError` for what is none."""
    try:
        path = Path(value)
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(f"{name} is {str(value)!r}: use a path in Unicode") from None
    except TypeError:
        raise InputError(f"{name} is of type {type(value).__name__}: use a path (str or Path)") from None
    if "\0" in str(path):
        raise InputError(f"{name} is {str(path)!r}: use a path, which has no character 0")
    if any(len(part.encode()) > _LONGEST_NAME for part in path.parts):
        raise InputError(
            f"{name} is {str(path)[:40] + ' ..'!r}: use a path, whose names have at most {_LONGEST_NAME} bytes"
        )
    return path


def is_there(path: Path) -> bool:
    """Whether a file or folder has this path; what is too long for a path is none."""
    try:
        return path.exists()
    except OSError:
        return False


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, without its checksum; raises `InputError` if the file is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({' '.join(str(error).split())}): use an intact copy") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} contains {type(content).__name__} instead of an object: use an intact copy")
    return unsealed(content, path)


_OWN = {"config.json", "result.json", "metrics.jsonl", "mentalese.json", "README.md", "further.json", "suite.json"}
_OWN |= {"ablation.json", "diverged.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
_OWN |= {"model.safetensors", "answers.jsonl"}
"""Files of runs and of saved models, next to a `config.json`."""


def check_place(out: Path | None, name: str) -> None:
    """Check the place of a file that will be written, which is `name` to the user.

    Raises:
        InputError: its folder is missing, or the right to write there; it is a folder, or a file of a run or model.
    """
    if out is None:
        return
    if is_special(out):
        if not os.access(out, os.W_OK):
            raise InputError(f"{name} is {str(out)!r}: it cannot be written, use another file")
        return
    place = Path(os.path.realpath(out))
    if not place.parent.is_dir():
        raise InputError(f"{name} is {str(out)!r}: its folder does not exist, make it first")
    if not os.access(place.parent, os.W_OK | os.X_OK):
        raise InputError(f"{name} is {str(out)!r}: its folder cannot be written, use another one")
    if place.is_dir():
        raise InputError(f"{name} is {str(out)!r}: that is a folder, use a file in it")
    if place.name in _OWN and place.is_file() and (place.parent / "config.json").is_file():
        raise InputError(f"{name} is {str(out)!r}, which belongs to the run or model in that folder: use another name")


def check_folder_place(folder: Path, name: str) -> None:
    """Check the place of a folder that will be made, or written into, which is `name` to the user.

    Raises:
        InputError: the folder, or one above it, is a file or cannot be written.
    """
    place = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    if not place.is_dir():
        raise InputError(f"{name} is {str(folder)!r}: {place} is a file, use a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise InputError(f"{name} is {str(folder)!r}: {place} cannot be written, use another folder")


def check_page(page: Path, data: str) -> None:
    """Check the place of a page and its folder.

    Raises:
        InputError: a folder that cannot be written, or has a page of others: ours has the file `data` beside it.
    """
    check_folder_place(page.parent, "--out")
    if page.exists() and not page.with_name(data).is_file():
        raise InputError(f"--out is {str(page.parent)!r}, which has another {page.name}: use another folder")


_DESCRIPTOR = re.compile(r"/(?:dev/fd|proc/self/fd)/(?P<number>\d+)|/dev/std(?P<name>out|err)")


def _descriptor(path: Path) -> int | None:
    """The open file that a path such as /dev/stdout stands for, also through links."""
    for _ in range(40):  # as many links as Linux follows
        if match := _DESCRIPTOR.fullmatch(os.path.normpath(path.absolute())):
            return int(match["number"] or {"out": 1, "err": 2}[match["name"]])
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None


def is_special(path: Path) -> bool:
    """Test if a path is a device, a pipe or an open file such as /dev/stdout, also through links: nothing may take its
    place."""
    return path.exists() and (_descriptor(path) is not None or not (path.is_file() or path.is_dir()))


def temporary_name(path: Path) -> Path:
    """The file beside `path` that is written before it takes its name."""
    return path.with_name(f".{path.name}.tmp")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a temporary file beside `path`, to be written; it takes its name when the block ends well.

    So `path` never holds half of it. A link stays, and what it points at is written. A device or a pipe is yielded
    itself.

    Raises:
        InputError: the disk is full, or the place cannot be written.
    """
    special = is_special(path)
    target = path if special else Path(os.path.realpath(path))
    temporary = target if special else temporary_name(target)
    try:
        yield temporary
        if not special:
            temporary.replace(target)
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        if not special:
            temporary.unlink(missing_ok=True)
        reason = os.strerror(error.errno).lower()
        raise InputError(f"{path} cannot be written ({reason}): make room or choose another file") from error


def write_text(path: Path, text: str) -> None:
    """Writes a text as `whole_file` does."""
    descriptor = _descriptor(path)
    with whole_file(path) as place:
        if descriptor is None:
            place.write_text(text, encoding="utf-8")
            return
        sys.stdout.flush()  # lines that were printed come first
        # Opened again by its name, a file would be written from its start.
        with os.fdopen(os.dup(descriptor), "w", encoding="utf-8") as file:
            file.write(text)


def compact_json(content: Any, width: int = 4000) -> str:
    """Return JSON with lines of about `width` characters at most: one for a run or a curve, not for each number."""
    text = json.dumps(content, separators=(",", ":"))
    if len(text) <= width or not isinstance(content, dict | list):
        return text
    if isinstance(content, list):
        parts = [compact_json(item, width) for item in content]
    else:
        parts = [f"{json.dumps(name)}:{compact_json(item, width)}" for name, item in content.items()]
    lines = [""]
    for part in parts:  # numbers share a line, runs do not
        if max(map(len, (part, lines[-1]))) > width // 4:
            lines.append("")
        lines[-1] += f"{part},"
    return "\n".join([text[0] + lines[0], *lines[1:]]).removesuffix(",") + "\n" + text[-1]


def write_json(path: Path, content: Any) -> None:
    """Writes JSON, indented, as `whole_file` does."""
    write_text(path, json.dumps(content, indent=2) + "\n")


# -- files that are what was written -----------------------------------------------------------------------------------

CHECKSUM = "checksum"
RECORD = "mentalese.json"
"""In the folder of a model or tokenizer: what it is, and the SHA-256s of its files."""
_READ = ("*config.json", "*token*.json", "vocab*", "merges.txt", "*.jinja", "*.index.json")


def checksum(content: Any) -> str:
    """The SHA-256 of a JSON value, in hex; spaces and the order of names do not count."""
    read = json.loads(json.dumps(content))
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """The content with its checksum, for files that are read again."""
    return content | {CHECKSUM: checksum(content)}


def unsealed(content: dict[str, Any], where: object) -> dict[str, Any]:
    """The content without its checksum; without one it is taken as it is, since people write such files too.

    Raises:
        InputError: it is not what was sealed.
    """
    noted = content.pop(CHECKSUM, None)
    if noted is not None and noted != checksum(content):
        raise InputError(
            f"{where} has changed since it was written (its checksum differs): use an intact copy, or remove "
            f"{CHECKSUM!r} from it to keep the change"
        )
    return content


def file_hashes(folder: Path) -> dict[str, str]:
    """The SHA-256s of the files of a model or tokenizer that are read beside its weights."""
    files = {path for pattern in _READ for path in folder.glob(pattern)}
    return {path.name: sha256(path) for path in sorted(files)}


def check_files(folder: Path) -> None:
    """Check the files of a model or tokenizer against `file_hashes` in its record; saved elsewhere, it has none.

    Raises:
        InputError: a file is missing or has changed, or the record has.
    """
    record = folder / RECORD
    noted = read_json(record).get("files", {}) if record.is_file() else {}
    if not isinstance(noted, dict):
        raise InputError(f"{record}: files is {noted!r}: use an intact copy")
    for name, expected in noted.items():
        if not (folder / name).is_file() or sha256(folder / name) != expected:
            raise InputError(
                f"{folder / name} is missing or has changed since it was saved: use an intact copy, or remove 'files' "
                f"and {CHECKSUM!r} from {record} to keep the change"
            )
