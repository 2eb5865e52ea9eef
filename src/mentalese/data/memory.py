"""Texts from Python as a source: lists, data sets of `datasets`, generator functions.

A source is a name in every recipe and every result, so texts get one that says what they are: `python:` and a hash of
them. The name is known for as long as the process lives; another process must be passed the same texts again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from mentalese.data.documents import SPLITS
from mentalese.data.files import SPLIT_ALIASES, Row, RowReader
from mentalese.errors import InputError, nearest

KIND = "python"
_TEXTUAL = (str, int, float, list, tuple, dict, type(None))
_READERS: dict[str, dict[str, RowReader]] = {}


def as_source(texts: Any) -> str:
    """The name of texts as a source: `DataConfig(source=as_source(texts))`.

    Args:
        texts: an iterable of texts (str) or of rows (dict, as in a jsonl file): a list, a `datasets.Dataset` or
            `IterableDataset`, or a function without arguments that returns one; or a dict of these by split. It is read
            several times, so an iterator, which can be read only once, is kept as a list. A str is the name of a
            source and is returned as it is.

    Raises:
        InputError: something else, a split that does not exist, no text, or an item that is neither text nor row.
    """
    if isinstance(texts, str):
        return texts
    parts = dict(texts) if isinstance(texts, Mapping) else {"train": texts}
    readers, digest = {}, hashlib.sha256()
    for own, items in parts.items():
        split = SPLIT_ALIASES.get(own, own)
        if split not in SPLITS:
            raise InputError(f"data has the split {own!r}: use {', '.join(SPLITS)}{nearest(str(own), SPLITS)}")
        if split in readers:
            raise InputError(f"data has the split {own!r}, and {split} by another name: join the two")
        readers[split], found = _reader(split, items)
        digest.update(f"{split} {found}".encode())
    if not readers:
        raise InputError("data is {}: pass at least one text")
    name = f"{KIND}:{digest.hexdigest()[:16]}"
    _READERS[name] = readers
    return name


def row_readers(name: str) -> dict[str, RowReader]:
    """By split, what reads the rows of texts that this process was passed; raises `InputError` if it was not."""
    if name not in _READERS:
        raise InputError(
            f"data.source is {name!r}: these texts were passed from Python and are not stored; pass the same ones "
            "again (data=...), or set another source"
        )
    return _READERS[name]


def _reader(split: str, items: Any) -> tuple[RowReader, str]:
    """What reads the rows of a split, and their hash; a later reading that differs is refused."""
    if isinstance(items, Iterator):
        items = list(items)
    if isinstance(items, str | bytes) or not (callable(items) or _is_iterable(items)):
        raise InputError(f"data[{split!r}] is {type(items).__name__}: use an iterable of texts or of rows")

    def rows(expected: str | None = None) -> Iterator[Row]:
        digest, number = hashlib.sha256(), 0
        found = items() if callable(items) else items
        if isinstance(found, str | bytes) or not _is_iterable(found):
            raise InputError(f"data[{split!r}] is a function of {type(found).__name__}: return an iterable of texts")
        for number, item in enumerate(found, 1):
            where = f"data, {split} item {number}"
            if not isinstance(item, str | Mapping):
                raise InputError(f"{where} is {type(item).__name__}: use texts (str) or rows (dict)")
            row = {"text": item} if isinstance(item, str) else dict(item)
            if not all(isinstance(name, str) for name in row):
                raise InputError(f"{where} has the columns {[*row]!r}: use texts as their names")
            digest.update(text_fields(row))
            yield where, row
        seen.append(digest.hexdigest())
        if not number:
            raise InputError(f"data has no texts for {split}: pass at least one")
        if expected not in (None, seen[-1]):
            raise InputError(
                f"data, {split}: the texts differ from those of the first reading; pass a list, or a function that "
                "yields the same texts each time"
            )

    seen: list[str] = []
    for _ in rows():
        pass
    first = seen[-1]
    return lambda: rows(first), first


def _is_iterable(items: Any) -> bool:
    """Whether something can be read item by item; a tensor of one number says so and cannot."""
    try:
        iter(items)
    except TypeError:
        return False
    return True


def text_fields(row: Mapping[str, Any]) -> bytes:
    """A line of JSON with what may be text or an answer in a row: strings, numbers, lists and dicts of them, and fields
    that are missing."""
    texts = {name: value for name, value in row.items() if isinstance(value, _TEXTUAL)}
    return json.dumps(texts, sort_keys=True, default=lambda value: type(value).__name__).encode() + b"\n"
