"""CLUTRR (Sinha et al., "CLUTRR: A Diagnostic Benchmark for Inductive Reasoning from Text", 2019) as records.

A story names relatives in brackets, `[Ann] took her son [Bob] to [Carl], Bob's uncle.`; a question asks how two of
them are related, which follows from 2 to 10 relations in the story. The authors publish a zip of CSV files for each
task, `1.2,1.3_train.csv` (stories of 2 and 3 relations) to `1.10_test.csv`.
"""

from __future__ import annotations

import csv
import io
import re
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from mentalese.data.sources import Document, Source, record
from mentalese.errors import InputError

_QUERY = re.compile(r"""\((['"])(?P<of>[^'"]+)\1, (['"])(?P<who>[^'"]+)\3\)""")
_COLUMNS = ("story", "query", "target")
_REMEDY = "give the zip of a CLUTRR task, as it was published"


def open_clutrr(spec: str, path: Path) -> Source:
    """Records whose question is a story and `How is [B] related to [A]?`, whose answer is the relation, `aunt`.

    All `*_train.csv` of the zip are train, of which validation is taken, all `*_test.csv` are test.

    Args:
        path: the zip, or a folder that holds it alone.

    Raises:
        InputError: no zip, one without these files, or a row that is no question.
    """
    if path.is_dir():
        found = sorted(path.glob("*.zip"))
        if len(found) != 1:
            raise InputError(f"{path} holds {len(found)} zip files: give the one of CLUTRR by its name")
        path = found[0]
    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(archive.namelist())
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: check data.source") from None
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"{path} is no readable zip ({error}): {_REMEDY}") from error
    files = {split: [name for name in names if name.endswith(f"_{split}.csv")] for split in ("train", "test")}
    for split, parts in files.items():
        if not parts:
            raise InputError(f"{path} holds no *_{split}.csv: {_REMEDY}")

    def reader(split: str) -> Iterator[Document]:
        for name in files[split]:
            yield from _read(path, name)

    return Source(spec, "records", {split: partial(reader, split) for split in files})


def _read(path: Path, name: str) -> Iterator[Document]:
    file = f"{path}/{name}"
    try:
        with zipfile.ZipFile(path) as archive, archive.open(name) as binary:
            rows = csv.DictReader(io.TextIOWrapper(binary, "utf-8", newline=""), strict=True)
            missing = [column for column in _COLUMNS if column not in (rows.fieldnames or ())]
            if missing:
                raise InputError(f"{file} has no column {missing[0]!r}: {_REMEDY}")
            for row in rows:
                yield _question(f"{file}, line {rows.line_num}", row)
    except (csv.Error, UnicodeDecodeError, zipfile.BadZipFile) as error:
        raise InputError(f"{file} cannot be read ({error}): fetch the zip again") from error


def _question(where: str, row: dict[str, str | None]) -> Document:
    story, query, target = ((row[column] or "").strip() for column in _COLUMNS)
    pair = _QUERY.fullmatch(query)
    if pair is None:
        raise InputError(
            f"{where}: the query is {query!r}, where two names belong, ('Ann', 'Bob'): repair or remove it"
        )
    for name in (pair["of"], pair["who"]):
        if f"[{name}]" not in story:
            raise InputError(f"{where}: the query asks about {name!r}, who is not in the story: repair or remove it")
    if not target:
        raise InputError(f"{where}: there is no target, the relation asked for: repair or remove it")
    return record(f"{story} How is [{pair['who']}] related to [{pair['of']}]?", [], target)
