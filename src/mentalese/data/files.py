"""Text and rows in files: found by split, read one at a time, refused with their place if malformed."""

from __future__ import annotations

import csv
import glob
import gzip
import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from mentalese.errors import InputError, reading
from mentalese.files import JsonObject

Columns = JsonObject
Row = tuple[str, Columns]
"""The place of a row, for messages, and its columns."""
RowReader = Callable[[], Iterator[Row]]

TEXT_SUFFIXES = (".txt", ".txt.gz")
_TABLE_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
ZIP = (".zip",)
ROW_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet", *_TABLE_SUFFIXES)

SPLIT_ALIASES = {"valid": "validation", "val": "validation", "dev": "validation"}
_SPLITS = {name: name for name in ("train", "validation", "test")} | SPLIT_ALIASES
_SPLIT_FILE = re.compile(rf"(?:(?P<prefix>.*?)[-_.])??(?P<split>{'|'.join(_SPLITS)})(?:[-_.].*)?", re.IGNORECASE)
ENCODING = "utf-8-sig"
"""UTF-8; the mark that some editors write before a text does not belong to it."""
_ABOUT = ("README", "LICENSE", "dataset_info")
"""Beginnings of names of files about a set."""
_PIECE = 1_000_000  # characters of a line that are read at once


# -- finding files -----------------------------------------------------------------------------------------------------


Files = dict[str, list[Path]]
"""Sorted files by split."""


def find_files(path: Path, *kinds: tuple[str, ...]) -> tuple[Files, bool]:
    """Find the files of each split in a folder and its sub-folders, except hidden files.

    A name begins with the name of its split (`train-00000.parquet`). Only in a folder without such names it may follow
    one prefix (`prosqa_valid.json.gz`, `ptb.test.txt`), the same for all; case does not count. A folder without any may
    have sub-folders called like splits. If all files are in one sub-folder, it takes the folder's place.

    Args:
        kinds: endings of names; only files of the first kind that occurs are returned.

    Returns:
        The files by split, and true if splits follow from names; otherwise all files are train.

    Raises:
        InputError: there are no such files, one text in two kinds, files of several sets, or only one split among
            files with other names.
    """
    if os.path.isfile(path) and path.name.endswith(tuple(chain.from_iterable(kinds))):  # noqa: PTH113
        return {"train": [path]}, False
    for suffixes in kinds:  # without reading sub-folders, which may be large
        if by_name := _by_name(path, _list_files(path, "*", suffixes)):
            _check_once(by_name, suffixes)
            return by_name, True
    for suffixes in kinds:
        if files := _list_files(path, "**", suffixes):
            by_split = _by_split(path, files)
            all_files = [file for file in files if file.stat().st_size] or files
            found = by_split or {"train": all_files}
            _check_once(found, suffixes)
            return found, bool(by_split)
    problem = "has no file of a known kind" if os.path.exists(path) else "does not exist"  # noqa: PTH110
    raise InputError(f"{path} {problem}: use files of {', '.join(chain.from_iterable(kinds))}, or a folder of them")


def _list_files(folder: Path, pattern: str, suffixes: tuple[str, ...]) -> list[Path]:
    # Methods of `Path` raise `OSError` for a path that is too long; for this function it has no files.
    names = glob.glob(pattern, root_dir=folder, recursive=True)  # noqa: PTH207
    return sorted(folder / name for name in names if name.endswith(suffixes) and (folder / name).is_file())


def _check_once(by_split: Files, suffixes: tuple[str, ...]) -> None:
    """Raise `InputError` for the same file in two kinds."""
    names: dict[str, Path] = {}
    for file in chain.from_iterable(by_split.values()):
        suffix = next(suffix for suffix in suffixes if file.name.endswith(suffix))
        if (other := names.setdefault(str(file).removesuffix(suffix), file)) != file:
            raise InputError(f"{file.parent} has {other.name} and {file.name}, one text in two kinds: keep one of them")


def _by_split(folder: Path, files: list[Path]) -> Files:
    """Group files by their names or sub-folders."""
    while len(names := {file.relative_to(folder).parts[0] for file in files}) == 1:
        [only] = names
        if only.lower() in _SPLITS or not (folder / only).is_dir():
            break
        folder /= only
    if by_name := _by_name(folder, files):
        return by_name
    by_folder: Files = {}
    for file in files:
        if split := _SPLITS.get(file.relative_to(folder).parts[0].lower()):
            by_folder.setdefault(split, []).append(file)
    return by_folder


def _by_name(folder: Path, files: list[Path]) -> Files:
    """Group the files that are directly in the folder and called like a split."""
    by_prefix: dict[str, Files] = {}
    others: list[str] = []
    for file in files:
        if file.parent == folder and (match := _SPLIT_FILE.fullmatch(file.name)):
            by_prefix.setdefault(match["prefix"] or "", {}).setdefault(_SPLITS[match["split"].lower()], []).append(file)
        elif file.parent == folder and not file.name.startswith(_ABOUT):
            others.append(file.name)
    chosen = by_prefix.get("") or next(iter(by_prefix.values()), {})
    several = "" not in by_prefix and len(by_prefix) > 1
    if several or (others and len(chosen) == 1):  # a single "train-journey" may be meant as one of the others
        [first, *_] = next(iter(chosen.values()))
        sets = ", ".join([*(prefix or first.name for prefix in sorted(by_prefix)), *others[:1]])
        raise InputError(f"{folder} contains files of several sets ({sets}): put each in a folder of its own")
    return chosen


# -- reading -----------------------------------------------------------------------------------------------------------


@contextmanager
def open_text(path: Path | zipfile.Path, newline: str | None = None) -> Iterator[TextIO]:
    """Open a UTF-8 file, gzip by its ending, also in a zip; raise `InputError` if it cannot be read in the block."""
    with reading(path):
        content: Any = gzip.open if path.suffix == ".gz" else type(path).open
        with content(path, "rb") as binary:
            yield io.TextIOWrapper(binary, ENCODING, newline=newline)


def read_lines(path: Path) -> Iterator[str]:
    """Yield lines with their ends, or pieces of very long lines; raise `InputError` if the file is not UTF-8 text."""
    with open_text(path) as file:
        while line := file.readline(_PIECE):
            if "\0" in line:
                raise InputError(f"{path} is binary: use UTF-8 text")
            yield line


def find_rows(path: Path, *kinds: tuple[str, ...]) -> dict[str, RowReader]:
    """Return readers of the files that `find_files` finds; of a text each line is a row with the column `text`.

    A zip is CLUTRR's: all `*_train.csv` in it are train, all `*_test.csv` test.
    """
    by_split, _ = find_files(path, *kinds)
    tables: Mapping[str, Sequence[Path | zipfile.Path]] = by_split
    if kinds == (ZIP,):
        tables = _tables_in_zip(by_split["train"][0])
    return {split: partial(_read_rows, files) for split, files in tables.items()}


def _tables_in_zip(path: Path) -> dict[str, list[zipfile.Path]]:
    with reading(path, "use the zip of a CLUTRR task, as it was published"):
        archive = zipfile.Path(path)
        names = sorted(archive.root.namelist())
        tables = {
            split: [archive / name for name in names if name.endswith(f"_{split}.csv")] for split in ("train", "test")
        }
        if not all(tables.values()):
            raise ValueError("it has no *_train.csv, or no *_test.csv")
    return tables


def _read_rows(files: Iterable[Path | zipfile.Path]) -> Iterator[Row]:
    readers: dict[str, Callable[[Any], Iterator[Row]]] = {
        "jsonl": read_json_lines,
        "json": _read_json,
        "csv": _read_table,
        "tsv": _read_table,
        "parquet": _read_parquet,
        "txt": read_text_lines,
    }
    for file in files:
        yield from readers[file.name.removesuffix(".gz").rpartition(".")[2]](file)


def read_text_lines(path: Path) -> Iterator[Row]:
    """Yield a row for each line that is not blank."""
    with open_text(path) as file:
        yield from ((f"{path}, line {number}", {"text": line}) for number, line in enumerate(file, 1) if line.strip())


def read_json_lines(path: Path) -> Iterator[Row]:
    """Yield a row for each line of JSON; raise `InputError` for any other line."""
    where = str(path)
    with open_text(path) as file, reading(lambda: where):
        for number, line in enumerate(file, 1):
            if line.strip():
                where = f"{path}, line {number}"
                yield _row(where, json.loads(line))


def _read_json(path: Path) -> Iterator[Row]:
    """Yield the objects of a list, or the values of an object of objects."""
    with open_text(path) as file, reading(path, "repair it, or call it .jsonl if each line is a row"):
        content = json.load(file)
    rows = content if isinstance(content, dict | list) else [content]
    for name, row in rows.items() if isinstance(rows, dict) else enumerate(rows, 1):
        yield _row(f"{path}, row {name}", row)


def _row(where: str, content: object) -> Row:
    if not isinstance(content, dict):
        raise InputError(f"{where} is not a JSON object: use objects with named columns")
    return where, content


def _read_table(path: Path | zipfile.Path) -> Iterator[Row]:
    """Yield rows of a table with a header, as texts; a cell of `steps` is a JSON list, or has a step a line."""
    with open_text(path, newline="") as file:
        header = file.readline()
        separator = "\t" if ".tsv" in path.suffixes else ";" if header.count(";") > header.count(",") else ","
        csv.field_size_limit(2**31 - 1)  # a C long on every system
        rows = csv.reader(chain([header], file), delimiter=separator, strict=True)
        with reading(lambda: f"{path}, line {rows.line_num}"):
            names = next(rows, [])
            for cells in filter(None, rows):
                if len(cells) != len({*names}):
                    raise csv.Error(f"it has {len(cells)} cells, the header {len({*names})} different names")
                row = {name: _steps(cell) if name == "steps" else cell for name, cell in zip(names, cells)}
                yield f"{path}, line {rows.line_num}", row


def _steps(cell: str) -> object:
    if cell.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            return json.loads(cell)
    return [line for line in cell.splitlines() if line.strip()]


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow.parquet

    number = 0
    with reading(path), pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", row
