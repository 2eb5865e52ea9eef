"""Files and folders that are written whole or not at all, and checks of their content."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from mentalese.errors import InputError, reading, require

JsonObject = dict[str, Any]
"""An object of JSON whose keys are not known here."""

_REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}
_REFUSALS |= {errno.EEXIST}  # a file where a folder would be

_DAY = 86_400  # seconds

_OWN = {"config.json", "result.json", "metrics.jsonl", "mentalese.json", "README.md", "suite.json"}
_OWN |= {"ablation.json", "diverged.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
_OWN |= {"model.safetensors", "answers.jsonl", "health.json", "recipe.json", "model.safetensors.index.json"}
_OWN |= {"vocab.json", "merges.txt", "special_tokens_map.json", "chat_template.jinja"}
"""Files of runs and of saved models, next to a `config.json`."""


def cache_dir() -> Path:
    """Return `$MENTALESE_CACHE`, or `~/.cache/mentalese`: trained tokenizers, token stores, texts of the hub."""
    return Path(os.environ.get("MENTALESE_CACHE") or Path.home() / ".cache" / "mentalese").expanduser()


# -- places ------------------------------------------------------------------------------------------------------------


def check_place(out: Path | None, name: str, *inputs: str | Path | None) -> None:
    """Raise `InputError` if the file `out`, the field `name`, cannot be written or belongs to a run or model.

    Args:
        inputs: sources (`file:PATH`) or paths that are read; `out` may not be one of these files, or in such a folder.
    """
    if out is None:
        return
    text = str(out)
    if is_special(out):
        return require(os.access(out, os.W_OK), name, text, "it cannot be written, use another file")
    place = Path(os.path.realpath(out))
    writable = os.access(place.parent, os.W_OK | os.X_OK)
    belongs = place.name in _OWN and place.is_file() and (place.parent / "config.json").is_file()
    require(place.parent.is_dir(), name, text, "its folder does not exist, make it first")
    require(writable, name, text, "its folder cannot be written, use another one")
    require(not place.is_dir(), name, text, "that is a folder, use a file in it")
    require(not belongs, name, text, "it belongs to the run or model in that folder: use another name")
    for given in (given for given in inputs if given is not None):
        read = Path(os.path.realpath(Path(str(given).removeprefix("file:")).expanduser()))
        is_read = place.is_file() and (place == read or read in place.parents)
        require(not is_read, name, text, "that file is read: use another name")
    return None


def check_folder_place(folder: Path, name: str) -> None:
    """Raise `InputError` if a folder, which is `name` to the user, cannot be made or written into."""
    place = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    require(place.is_dir(), name, str(folder), f"{place} is a file, use a folder")
    require(os.access(place, os.W_OK | os.X_OK), name, str(folder), f"{place} cannot be written, use another folder")


def check_page(page: Path, data: str) -> None:
    """Raise `InputError` if a page's folder cannot be written, or has another page, without `data` beside it."""
    check_folder_place(page.parent, "--out")
    free = not page.exists() or page.with_name(data).is_file()
    require(free, "--out", str(page.parent), f"it has another {page.name}: use another folder")


def is_special(path: Path) -> bool:
    """Test if a path is a device, a pipe or standard output, also through links: no file may take its place."""
    return path.exists() and (_standard_stream(path) is not None or not (path.is_file() or path.is_dir()))


def _standard_stream(path: Path) -> int | None:
    """Return the descriptor of standard output or error if the path, such as /dev/stdout, is the same file."""
    for descriptor in (1, 2):
        with suppress(OSError):  # closed, or no such path
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
    return None


# -- writing -----------------------------------------------------------------------------------------------------------


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Turn the system's refusal to write into an `InputError`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        # safetensors reports it in words: `I/O error: File too large (os error 27)`.
        number = re.search(r"os error (\d+)", str(error)) if isinstance(error, SafetensorError) else None
        code = error.errno if isinstance(error, OSError) else number and int(number[1])
        if code not in _REFUSALS:
            raise
        reason = os.strerror(code).lower()
        raise InputError(f"{target} cannot be written ({reason}): make room or choose another place") from error


@contextmanager
def whole_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary sibling of `target` to write into; it takes the name `target` when the block ends well.

    A folder of that name stays and the new one goes (another process was first); with `replace` the old one goes. In
    the cache, what killed processes left beside it is removed after a day.

    Raises:
        InputError: the disk is full, the place cannot be written, or it is a folder without a name, such as `.`.
    """
    require(target.name not in ("", ".."), "the folder", str(target), f"use a name, e.g. {str(target / 'new')!r}")
    temporary = None
    try:
        with _writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_relative_to(cache_dir()):
                _remove_old_remains(target.parent)
            temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
            yield temporary
            temporary.chmod(0o755)
            old = target.with_name(f".{target.name}.old")
            if replace and target.exists():
                shutil.rmtree(old, ignore_errors=True)
                target.rename(old)
            try:
                temporary.rename(target)
            except OSError as error:
                if replace or error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
            if replace:
                shutil.rmtree(old, ignore_errors=True)
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _remove_old_remains(place: Path) -> None:
    """Remove temporary folders of `whole_folder` in which nothing was written for a day."""
    for remains in place.glob(".*-????????"):
        with suppress(OSError):  # another process removes it too
            if max(path.stat().st_mtime for path in (remains, *remains.rglob("*"))) < time.time() - _DAY:
                shutil.rmtree(remains, ignore_errors=True)


def remove_remains(target: Path) -> None:
    """Remove temporary folders of a process that was killed inside `whole_folder(target)`; no other may be writing."""
    old = target.with_name(f".{target.name}.old")
    if old.exists() and not target.exists():  # it was killed before the new folder took the name
        old.rename(target)
    for remains in (*target.parent.glob(f".{target.name}-*"), old):
        shutil.rmtree(remains, ignore_errors=True)


def temporary_name(path: Path) -> Path:
    """Return the file beside `path` that is written before it takes its name."""
    return path.with_name(f".{path.name}.tmp")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path`, to be written; it takes its name when the block ends well.

    A link stays, and its target is written. A device or a pipe is yielded itself.
    """
    if is_special(path):
        with _writing(path):
            yield path
        return
    target = Path(os.path.realpath(path))
    temporary = temporary_name(target)
    try:
        with _writing(path):
            yield temporary
            temporary.replace(target)
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a text as `whole_file` does."""
    descriptor = _standard_stream(path)
    with whole_file(path) as place:
        if descriptor is None:
            place.write_text(text, encoding="utf-8")
            return
        sys.stdout.flush()  # lines that were printed come first
        # Opened again by its name, a file would be written from its start.
        with os.fdopen(os.dup(descriptor), "w", encoding="utf-8") as file:
            file.write(text)


def compact_json(content: object, width: int = 4000) -> str:
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


def write_json(path: Path, content: object) -> None:
    """Write JSON, indented, as `whole_file` does."""
    write_text(path, json.dumps(content, indent=2) + "\n")


# -- files that are what was written -----------------------------------------------------------------------------------

CHECKSUM = "checksum"
RECORD = "mentalese.json"
"""The record in the folder of a model or tokenizer: its kind, and the SHA-256s of its files."""
_READ = ("*config.json", "*token*.json", "vocab*", "merges.txt", "*.jinja", "*.index.json")


def sha256(path: Path) -> str:
    """Return the file's SHA-256, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum(content: object) -> str:
    """Return the SHA-256 of a JSON value, in hex; spaces and the order of names do not count."""
    parsed = json.loads(json.dumps(content))
    return hashlib.sha256(json.dumps(parsed, sort_keys=True).encode()).hexdigest()


def sealed(content: Mapping[str, object]) -> JsonObject:
    """Return the content with its checksum, for files that are read again."""
    return {**content, CHECKSUM: checksum(content)}


def unsealed(content: JsonObject, where: object) -> JsonObject:
    """Return the content without its checksum, if it has one; raise `InputError` if it has changed since."""
    noted = content.pop(CHECKSUM, None)
    if noted is not None and noted != checksum(content):
        remedy = f"use an intact copy, or remove {CHECKSUM!r} from it to keep the change"
        raise InputError(f"{where} has changed since it was written (its checksum differs): {remedy}")
    return content


def read_json(path: Path) -> JsonObject:
    """Return the object in a JSON file, without its checksum; raise `InputError` if the file is damaged."""
    with reading(path, "use an intact copy"):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is not an object")
    return unsealed(content, path)


def file_hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256s of the files of a model or tokenizer that are read beside its weights."""
    files = {path for pattern in _READ for path in folder.glob(pattern)}
    return {path.name: sha256(path) for path in sorted(files)}


def check_files(folder: Path, *kinds: str) -> None:
    """Raise `InputError` if a file of a model or tokenizer differs from its hash in the record.

    Args:
        kinds: the entries of the record that name the files: `files`, `weights` and `adapter`.
    """
    record = folder / RECORD
    facts = read_json(record) if record.is_file() else {}
    for kind in kinds:
        hashes = facts.get(kind, {})
        require(isinstance(hashes, dict), f"{kind} in {record}", hashes, "use an intact copy")
        for name, expected in hashes.items():
            if not (folder / name).is_file() or sha256(folder / name) != expected:
                remedy = f"use an intact copy, or remove {kind!r} and {CHECKSUM!r} from {record} to keep the change"
                raise InputError(f"{folder / name} is missing or has changed since it was saved: {remedy}")
