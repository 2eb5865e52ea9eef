"""Text and rows in files: found by split, read one at a time, refused with their place if malformed."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from mentalese.data.documents import Document, Reader
from mentalese.errors import InputError
from mentalese.files import is_there

Row = tuple[str, dict[str, Any]]
"""Where a row stands (for messages), and its columns."""
RowReader = Callable[[], Iterator[Row]]

ROW_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")

SPLIT_ALIASES = {"valid": "validation", "val": "validation", "dev": "validation"}
_SPLIT_FILE = re.compile(r"(?:(?P<prefix>.*?)[-_])??(?P<split>train|validation|valid|val|dev|test)(?:[-_.].*)?")
HEADING = re.compile(r" ?= [^=](?:.*[^=])? = ?\n?")
ENCODING = "utf-8-sig"
"""UTF-8; the mark that some editors write before a text is no part of it."""
_END_OF_DOCUMENT = "<|endoftext|>"


def split_files(path: Path, suffixes: tuple[str, ...]) -> dict[str, list[Path]]:
    """The files of each split, sorted: a lone file is train, those of a folder are told by their names.

    A name begins with its split's (`train-00000.parquet`). Only in a folder without such names it may follow one prefix
    (`prosqa_valid.json.gz`), the same for all.

    Raises:
        InputError: nothing is there, or nothing of these kinds; a file is empty, or there in two kinds.
    """
    kinds = ", ".join(suffixes)
    if not (is_there(path) and (path.is_file() or path.is_dir())):
        raise InputError(f"{path} does not exist: check data.source")
    if path.is_file():
        if not path.name.endswith(suffixes):
            raise InputError(f"{path} is of no known kind: use {kinds} or a folder of them")
        found = {"train": [path]}
    else:
        by_prefix: dict[str, dict[str, list[Path]]] = {}
        for file in sorted(path.iterdir()):
            suffix = next((suffix for suffix in suffixes if file.name.endswith(suffix)), None)
            if suffix and file.is_file() and (match := _SPLIT_FILE.fullmatch(file.name.removesuffix(suffix))):
                split = SPLIT_ALIASES.get(match["split"], match["split"])
                by_prefix.setdefault(match["prefix"] or "", {}).setdefault(split, []).append(file)
        if not by_prefix:
            raise InputError(f"{path} contains no train file (train{kinds.replace(' ', ' train')}): add one")
        if "" not in by_prefix and len(by_prefix) > 1:
            sets = ", ".join(sorted(by_prefix))
            raise InputError(f"{path} contains files of several sets ({sets}): put each in a folder of its own")
        found = by_prefix.get("") or next(iter(by_prefix.values()))
        _check_kinds(path, list(chain.from_iterable(found.values())), suffixes)
    for file in chain.from_iterable(found.values()):
        if file.stat().st_size == 0:
            raise InputError(f"{file} is empty: use a file with text")
    return found


def _check_kinds(folder: Path, files: list[Path], suffixes: tuple[str, ...]) -> None:
    """Raises `InputError` if two files differ in their kind alone, such as one and its gzip."""
    kinds: dict[str, str] = {}
    for file in files:
        name = file.name.removesuffix(next(suffix for suffix in suffixes if file.name.endswith(suffix)))
        if (other := kinds.setdefault(name, file.name)) != file.name:
            raise InputError(f"{folder} contains {other} and {file.name}, one text in two kinds: keep one of them")


def text_reader(path: Path) -> Reader:
    def read() -> Iterator[str]:
        with open_text(path) as file:
            for line in file:
                if "\0" in line:
                    raise InputError(f"{path} is binary: use UTF-8 text")
                yield line

    return lambda: join_lines(read())


def join_lines(lines: Iterable[str]) -> Iterator[Document]:
    """Documents that begin at level-one headings and after lines `<|endoftext|>`; blank ones are left out."""
    held: list[str] = []
    for line in chain(lines, [_END_OF_DOCUMENT]):
        separator = line.strip() == _END_OF_DOCUMENT
        if separator or HEADING.fullmatch(line):
            text = "".join(held)
            if text.strip():
                yield Document(text)
            held = []
        if not separator:
            held.append(line)


def row_reader(path: Path) -> RowReader:
    """A reader of a parquet, jsonl or json file, the latter two in gzip too."""
    if path.suffix == ".parquet":
        return lambda: _read_parquet(path)
    return lambda: (_read_json_list if path.name.endswith((".json", ".json.gz")) else read_json_lines)(path)


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """A UTF-8 file, gzip by its ending. Raises `InputError` for what turns out, while it is read, to be neither."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding=ENCODING) as file:
            yield file
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: convert it") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} is no whole gzip file ({error}): fetch it again") from error


def read_json_lines(path: Path) -> Iterator[Row]:
    """`(where, row)` of each line, for messages; gzip by the file's ending. Raises `InputError` for what is no JSON."""
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where} is not JSON ({error}): repair or remove it") from error
            if not isinstance(row, dict):
                raise InputError(f"{where} is not a JSON object: use one object with named columns a line")
            yield where, row


def _read_json_list(path: Path) -> Iterator[Row]:
    try:
        with open_text(path) as file:
            rows = json.load(file)
    except InputError:  # a ValueError too
        raise
    except (ValueError, RecursionError) as error:  # a number may have too many digits
        raise InputError(f"{path} is not JSON ({error}): repair it, or call it .jsonl if each line is a row") from error
    if not isinstance(rows, list):
        raise InputError(f"{path} is no JSON list: use a list of objects, or .jsonl with one object a line")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise InputError(f"{path}, row {number} is not a JSON object: use objects with named columns")
        yield f"{path}, row {number}", row


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(
            f"{path} is no readable parquet file ({str(error).splitlines()[0]}): write it again"
        ) from error
