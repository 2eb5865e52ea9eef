"""Text and rows in files: found by split, read one at a time, refused with their place if malformed."""

from __future__ import annotations

import csv
import gzip
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from mentalese.errors import InputError
from mentalese.files import is_there
from mentalese.values import shown

Row = tuple[str, dict[str, Any]]
"""Where a row stands (for messages), and its columns."""
RowReader = Callable[[], Iterator[Row]]

TEXT_SUFFIXES = (".txt", ".txt.gz")
_TABLE_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
ROW_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet", *_TABLE_SUFFIXES)

SPLIT_ALIASES = {"valid": "validation", "val": "validation", "dev": "validation"}
_SPLIT_FILE = re.compile(r"(?:(?P<prefix>.*?)[-_])??(?P<split>train|validation|valid|val|dev|test)(?:[-_.].*)?")
ENCODING = "utf-8-sig"
"""UTF-8; the mark that some editors write before a text is no part of it."""


def split_files(path: Path, suffixes: tuple[str, ...]) -> dict[str, list[Path]]:
    """The files of each split, sorted: a lone file is train, files of a folder are told apart by their names.

    A name begins with its split's (`train-00000.parquet`). Only in a folder without such names it may follow one prefix
    (`prosqa_valid.json.gz`), the same for all. A folder without any may have sub-folders called like splits, or one
    sub-folder with everything; else all files in it and below are train.

    Raises:
        InputError: nothing is there, or nothing of these kinds; a file is empty, or there in two kinds.
    """
    if not (is_there(path) and (path.is_file() or path.is_dir())):
        raise InputError(f"{path} does not exist: check data.source")
    if path.is_file():
        if not path.name.endswith(suffixes):
            raise InputError(f"{path} is of no known kind: use {', '.join(suffixes)} or a folder of them")
        found = {"train": [path]}
    elif not (found := _named_splits(path, suffixes) or _split_folders(path, suffixes)):
        return {"train": _loose_files(path, suffixes)}
    for file in chain.from_iterable(found.values()):
        if file.stat().st_size == 0:
            raise InputError(f"{file} is empty: use a file with text")
    return found


def is_undivided(path: Path, suffixes: tuple[str, ...]) -> bool:
    """Test if a path is one file, or a folder in which no name is that of a split."""
    if not is_there(path) or not path.is_dir():
        return is_there(path)
    return not (_named_splits(path, suffixes) or _split_folders(path, suffixes))


def _named_splits(path: Path, suffixes: tuple[str, ...]) -> dict[str, list[Path]]:
    """The files in a folder whose names are those of splits; of its only sub-folder where it has no files."""
    by_prefix: dict[str, dict[str, list[Path]]] = {}
    for file in sorted(path.iterdir()):
        suffix = next((suffix for suffix in suffixes if file.name.endswith(suffix)), None)
        if suffix and file.is_file() and (match := _SPLIT_FILE.fullmatch(file.name.removesuffix(suffix))):
            split = SPLIT_ALIASES.get(match["split"], match["split"])
            by_prefix.setdefault(match["prefix"] or "", {}).setdefault(split, []).append(file)
    if not by_prefix:
        folder = _only_folder(path, suffixes)
        return _named_splits(folder, suffixes) if folder else {}
    if "" not in by_prefix and len(by_prefix) > 1:
        sets = ", ".join(sorted(by_prefix))
        raise InputError(f"{path} contains files of several sets ({sets}): put each in a folder of its own")
    found = by_prefix.get("") or next(iter(by_prefix.values()))
    _check_kinds(path, list(chain.from_iterable(found.values())), suffixes)
    return found


def _split_folders(path: Path, suffixes: tuple[str, ...]) -> dict[str, list[Path]]:
    """The files in sub-folders that are called like splits; of the only sub-folder where there are no files."""
    found: dict[str, list[Path]] = {}
    for folder in _visible(path):
        split = SPLIT_ALIASES.get(folder.name, folder.name)
        if folder.is_dir() and split in ("train", "validation", "test"):
            found.setdefault(split, []).extend(_loose_files(folder, suffixes))
    only = None if found else _only_folder(path, suffixes)
    return _split_folders(only, suffixes) if only else found


def _only_folder(path: Path, suffixes: tuple[str, ...]) -> Path | None:
    """The only sub-folder of a folder without files of these kinds, such as `data` of a set of the hub."""
    if any(file.is_file() and file.name.endswith(suffixes) for file in _visible(path)):
        return None
    folders = [folder for folder in _visible(path) if folder.is_dir()]
    return folders[0] if len(folders) == 1 else None


def _loose_files(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """All files with text in a folder and its sub-folders, sorted; hidden ones do not count."""
    found = [
        file
        for file in sorted(path.rglob("*"))
        if file.name.endswith(suffixes)
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
        and file.is_file()
        and file.stat().st_size
    ]
    if not found:
        names = ", ".join(f"train{suffix}" for suffix in suffixes)
        raise InputError(f"{path} contains no train file ({names}) and no other file of these kinds: add one")
    _check_kinds(path, found, suffixes)
    return found


def _visible(path: Path) -> list[Path]:
    return [file for file in sorted(path.iterdir()) if not file.name.startswith(".")]


def _check_kinds(folder: Path, files: list[Path], suffixes: tuple[str, ...]) -> None:
    """Raises `InputError` if two files differ only in their kind, such as one and its gzip."""
    kinds: dict[str, str] = {}
    for file in files:
        own = str(file.relative_to(folder))
        name = own.removesuffix(next(suffix for suffix in suffixes if own.endswith(suffix)))
        if (other := kinds.setdefault(name, own)) != own:
            raise InputError(f"{folder} contains {other} and {own}, one text in two kinds: keep one of them")


def row_reader(path: Path) -> RowReader:
    """A reader of a file of rows; JSON and tables in gzip too."""
    if path.suffix == ".parquet":
        return lambda: _read_parquet(path)
    if path.name.endswith(_TABLE_SUFFIXES):
        return lambda: _read_table(path)
    return lambda: (_read_json_list if path.name.endswith((".json", ".json.gz")) else read_json_lines)(path)


@contextmanager
def open_text(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """A UTF-8 file, gzip by its ending; `newline` is passed to `open`.

    Raises:
        InputError: it is neither, as it turns out while it is read.
    """
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding=ENCODING, newline=newline) as file:
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


def _read_table(path: Path) -> Iterator[Row]:
    """Rows of a CSV or TSV file with a header, as texts; a cell of `steps` is a JSON list, or has a step a line."""
    with open_text(path, newline="") as file:
        tabs = ".tsv" in path.suffixes
        header = file.readline()
        separator = "\t" if tabs else ";" if header.count(";") > header.count(",") else ","
        csv.field_size_limit(sys.maxsize)
        rows = csv.reader(chain([header], file), delimiter=separator, strict=True)
        try:
            names = next(rows, [])
            if twice := [name for name in names if names.count(name) > 1]:
                raise InputError(f"{path} has two columns of one name ({shown(twice[0])}): rename one")
            for cells in rows:
                where = f"{path}, line {rows.line_num}"
                if not cells:
                    continue
                if len(cells) != len(names):
                    raise InputError(f"{where} has {len(cells)} cells, the header has {len(names)}: repair it")
                yield where, {name: _steps(cell) if name == "steps" else cell for name, cell in zip(names, cells)}
        except csv.Error as error:
            raise InputError(f"{path}, line {rows.line_num} cannot be read ({error}): repair it") from error


def _steps(cell: str) -> Any:
    if cell.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            return json.loads(cell)
    return [line for line in cell.splitlines() if line.strip()]


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
