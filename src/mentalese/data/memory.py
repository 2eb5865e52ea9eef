"""Texts from Python as a source: lists, data sets of `datasets`, generator functions.

A source is a name in every recipe and every result, so texts are named by `python:` and their hash. The name is valid
while the process lives; another process must receive the same texts again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from mentalese.data.documents import SPLITS
from mentalese.data.files import SPLIT_ALIASES, Row, RowReader
from mentalese.errors import InputError, nearest, require

KIND = "python"
_TEXTUAL = (str, int, float, list, tuple, dict, type(None))
_READERS: dict[str, dict[str, RowReader]] = {}


def as_source(texts: object) -> str:
    """Return the name of texts as a source: `DataConfig(source=as_source(texts))`.

    Args:
        texts: an iterable of texts (str) or of rows (dict, as in a jsonl file): a list, a `datasets.Dataset` or
            `IterableDataset`, or a function without arguments that returns one; or a dict of these by split. Texts are
            read several times, so an iterator is stored as a list. A str is the name of a source and is returned as it
            is.

    Raises:
        InputError: an object of another type, a split that does not exist, or an item that is neither text nor row.
    """
    if isinstance(texts, str):
        return texts
    parts = dict(texts) if isinstance(texts, Mapping) else {"train": texts}
    readers: dict[str, RowReader] = {}
    digest = hashlib.sha256()
    for name, items in parts.items():
        split = SPLIT_ALIASES.get(name, name)
        if split not in SPLITS or split in readers:
            raise InputError(f"data has the split {name!r}: use {', '.join(SPLITS)}, each once{nearest(name, SPLITS)}")
        items = list(items) if isinstance(items, Iterator) else items
        content = _hash(_rows(split, items))
        readers[split] = partial(_same_rows, split, items, content)
        digest.update(f"{split} {content}".encode())
    name = f"{KIND}:{digest.hexdigest()[:16]}"
    _READERS[name] = readers
    return name


def row_readers(name: str) -> dict[str, RowReader]:
    """Return readers of the rows of each split of texts that were passed in this process."""
    remedy = "these texts were passed from Python and are not stored; pass them again (data=...), or set another source"
    require(name in _READERS, "data.source", name, remedy)
    return _READERS[name]


def _rows(split: str, items: Any) -> Iterator[Row]:
    texts = items() if callable(items) else items
    try:
        texts = None if isinstance(texts, str | bytes) else iter(texts)
    except TypeError:  # also of a tensor with one number, which has `__iter__`
        texts = None
    if texts is None:
        kind = type(items).__name__
        raise InputError(
            f"data[{split!r}] is {kind}: use an iterable of texts or of rows, or a function that returns one"
        )
    for number, item in enumerate(texts, 1):
        where = f"data, {split} item {number}"
        if isinstance(item, str):
            item = {"text": item}
        if not isinstance(item, Mapping) or not all(isinstance(name, str) for name in item):
            raise InputError(f"{where} is {type(item).__name__}: use texts (str), or rows (dict) with texts as names")
        yield where, dict(item)


def _hash(rows: Iterable[Row]) -> str:
    digest = hashlib.sha256()
    for _, row in rows:
        digest.update(text_fields(row))
    return digest.hexdigest()


def _same_rows(split: str, items: object, content: str) -> Iterator[Row]:
    """Yield the rows as they were at the first reading; raise `InputError` if they differ."""
    digest = hashlib.sha256()
    for where, row in _rows(split, items):
        digest.update(text_fields(row))
        yield where, row
    if digest.hexdigest() != content:
        raise InputError(
            f"data, {split}: the texts differ from the texts of the first reading; pass a list, or a function that "
            "yields the same texts each time"
        )


def text_fields(row: Mapping[str, object]) -> bytes:
    """Return the fields of a row that may be text or an answer, as a line of JSON."""
    texts = {name: value for name, value in row.items() if isinstance(value, _TEXTUAL)}
    return json.dumps(texts, sort_keys=True, default=lambda value: type(value).__name__).encode() + b"\n"
