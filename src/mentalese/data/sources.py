"""Sources of documents: built-in data, files, the Hugging Face hub, or texts from Python; each with three splits.

A source is read completely when it is opened. So malformed input is found before any work starts, and every document
has a split: existing splits stay, missing splits are taken out of train by a hash of the text (about 5% each, see
`data.held_out`), and a document of train that also occurs in validation or test is dropped.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from mentalese.data.builtin import open_builtin
from mentalese.data.config import DataConfig, Detokenizer
from mentalese.data.documents import HELD_OUT, SPLITS, Document, Kind, Reader, Source
from mentalese.data.files import (
    ROW_SUFFIXES,
    SPLIT_ALIASES,
    TEXT_SUFFIXES,
    ZIP,
    Columns,
    Row,
    RowReader,
    find_files,
    find_rows,
    read_json_lines,
)
from mentalese.data.plain_text import (
    HEADING,
    cut_documents,
    detokenize,
    join_lines,
    length_of_few,
    read_documents,
)
from mentalese.data.row_formats import FIRST_ROWS, PUBLISHED, find_format
from mentalese.errors import InputError, nearest, reading, require
from mentalese.files import cache_dir, read_json, sealed, whole_folder, write_json
from mentalese.network import hub_or_cache
from mentalese.values import Name, checked, shown

Content = tuple[Kind, dict[str, Reader], tuple[str, ...]]
"""Texts or records, by split, and remarks on their format."""


def open_source(
    spec: str,
    *,
    text_column: str | None = None,
    detokenizer: Detokenizer | None = None,
    whole: bool = False,
    held_out: float = HELD_OUT,
) -> Source:
    """Open and check a source.

    Args:
        spec: `data.source`; docs/training.md describes files, folders and rows. Rows that are the lines of a text
            with level-one headings (the hub's WikiText) are joined over all files of a split.
        text_column: the column that contains the text. By default `text`, or else the only one with strings, or else
            the only one with long strings (100 characters and more on average).
        detokenizer: the format of tokenised texts to read as running text.
        whole: read a source without splits, to score all of it, as the split `test`.
        held_out: documents that become validation and test if these are missing, see `DataConfig`.

    Raises:
        InputError: no such source, file or column, or content that cannot be read so.
    """
    checked("data.source", Name, spec)
    kind, readers, remarks = _open(spec, text_column, whole)
    if detokenizer is not None:
        require(kind == "text", "data.detokenizer", detokenizer, f"{spec} contains questions, leave it out")
        readers = {split: partial(_detokenized, reader, detokenizer) for split, reader in readers.items()}
    if whole:
        splits = ", ".join(split for split in SPLITS if split in readers)
        require(len(readers) == 1, "split", "all", f"{spec} has splits of its own, set one of {splits}")
        readers = {"test": next(iter(readers.values()))}
    return Source(spec, kind, readers, remarks, held_out=HELD_OUT if whole else held_out)


def opened_source(config: DataConfig, whole: bool = False) -> Source:
    """Return the source that `config` names, read and hashed once per process while its files stay as they are."""
    settings = config.source, config.text_column, config.detokenizer, config.held_out
    return _opened_source(*settings, whole, _state(config.source))


def _state(spec: str) -> tuple[object, ...]:
    """Return path, size and time of all files of a source; empty for a source without files."""
    try:
        place = Path(spec.partition(":")[2]).expanduser()
        files = [place, *sorted(place.rglob("*"))] if place.exists() else []
        return tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    except (OSError, ValueError, RuntimeError):  # not a path, or a broken link: opened again each time
        return (object(),)


@lru_cache(maxsize=2)
def _opened_source(
    source: str, text_column: str | None, detokenizer: Detokenizer | None, held_out: float, whole: bool, state: object
) -> Source:
    return open_source(source, text_column=text_column, detokenizer=detokenizer, held_out=held_out, whole=whole)


def is_one_text(spec: str) -> bool:
    """Test if a source is one file, or one set of texts from Python or the hub, without splits."""
    checked("data.source", Name, spec)
    kind, _, place = spec.partition(":")
    kinds = PUBLISHED[kind].kinds if kind in PUBLISHED else ((*TEXT_SUFFIXES, *ROW_SUFFIXES),)
    if kind == "file" or (kind in PUBLISHED and not place.startswith("hub:")):
        return kinds != (ZIP,) and not find_files(_path(place), *kinds)[1]
    return kind in (PYTHON, "hub", *PUBLISHED) and set(_rows(spec)) == {"train"}


def _open(spec: str, text_column: str | None, whole: bool) -> Content:
    kind, _, place = spec.partition(":")
    if kind == "file" and place:
        return _open_files(spec, _path(place), text_column, whole)
    if kind in ("hub", PYTHON) and place:
        return _open_rows(spec, _rows(spec), text_column)
    if kind == "builtin" or (kind in PUBLISHED and place):
        _refuse_column(spec, text_column)
        return (*open_builtin(place), ()) if kind == "builtin" else _open_published(spec)
    sets = ", ".join(f"{name}:PATH" for name in PUBLISHED)
    remedy = f"use builtin:NAME, file:PATH, hub:NAME, store:FOLDER or a published set ({sets})"
    if kind == "store":
        remedy = "a prepared store contains tokens, not text; name the text's source"
    elif os.path.exists(spec):  # noqa: PTH110
        remedy = f"write file:{spec}"
    raise InputError(f"data.source is {shown(spec)}: {remedy}")


def _refuse_column(spec: str, text_column: str | None) -> None:
    require(text_column is None, "data.text_column", text_column, f"{spec} has no choice of columns, leave it out")


def _path(place: str) -> Path:
    return Path(os.path.expanduser(place))  # noqa: PTH111 (which raises for a user that does not exist)


def _rows(spec: str) -> dict[str, RowReader]:
    """Return the rows of a source that has some: a published set, `hub:NAME`, or texts from Python."""
    kind, _, place = spec.partition(":")
    if kind == PYTHON:
        remedy = "these texts were passed from Python and are not stored; pass them again (data=...), or set another"
        require(spec in _PYTHON_ROWS, "data.source", spec, f"{remedy} source")
        return _PYTHON_ROWS[spec]
    if kind in PUBLISHED and not place.startswith("hub:"):
        return find_rows(_path(place), *PUBLISHED[kind].kinds)
    return hub_rows(place if kind in PUBLISHED else spec)


def _open_published(spec: str) -> Content:
    published, rows, remarks = PUBLISHED[spec.partition(":")[0]], _rows(spec), list[str]()
    for split, reader in [*rows.items()]:
        if published.hidden and any(published.hidden(row) for _, row in islice(reader(), 1)):
            del rows[split]
            remarks.append(f"{spec}: {split} was published without answers and is left out")
    require(bool(rows), "data.source", spec, "it has no answers, use a split that was published with them")
    return "records", _documents(rows, published.document), tuple(remarks)


def _documents(rows: dict[str, RowReader], document: Callable[[str, Columns], Document]) -> dict[str, Reader]:
    def read(reader: RowReader) -> Iterator[Document]:
        return (document(where, row) for where, row in reader())

    return {split: partial(read, reader) for split, reader in rows.items()}


def _open_files(spec: str, path: Path, text_column: str | None, whole: bool) -> Content:
    by_split, divided = find_files(path, (*TEXT_SUFFIXES, *ROW_SUFFIXES))
    files = [*chain.from_iterable(by_split.values())]
    plain = [file for file in files if file.name.endswith(TEXT_SUFFIXES)]
    remarks: tuple[str, ...] = ()
    if len(files) > 1 and not divided:
        remarks = (f"{spec}: no file is called train, so that all {len(files):,} in it and below are one text",)
    if not plain:
        kind, readers, further = _open_rows(spec, find_rows(path, ROW_SUFFIXES), text_column)
        return kind, readers, remarks + further
    other = next((file for file in files if not file.name.endswith(TEXT_SUFFIXES)), None)
    require(other is None, "data.source", spec, f"it mixes .txt and other files ({other}), keep one kind")
    _refuse_column(spec, text_column)
    whole_files: dict[str, Reader] = {split: partial(read_documents, parts) for split, parts in by_split.items()}
    to_divide = [] if whole or by_split.keys() >= {*SPLITS} else by_split.get("train", [])
    if not to_divide or (characters := length_of_few(to_divide)) is None:
        return "text", whole_files, remarks
    remark = (
        f"{spec}: headings and lines <|endoftext|> divide it into fewer than {len(SPLITS)} documents, so that it is "
    )
    remark += "cut at blank lines, or by length where there are none"
    return "text", whole_files | {"train": partial(cut_documents, to_divide, characters)}, (*remarks, remark)


def _open_rows(spec: str, rows: dict[str, RowReader], text_column: str | None) -> Content:
    def every_row() -> Iterator[Row]:
        return chain.from_iterable(rows[split]() for split in SPLITS if split in rows)

    row_format = find_format(spec, every_row, text_column)
    readers = _documents(rows, row_format.document)
    if row_format.column is not None:
        first = [row_format.document(where, row).text for where, row in islice(every_row(), FIRST_ROWS)]
        if any(map(HEADING.fullmatch, first)) and not any("\n" in text.strip() for text in first):
            readers = {split: partial(_join_rows, reader) for split, reader in readers.items()}
    return row_format.kind, readers, () if row_format.remark is None else (row_format.remark,)


def _detokenized(reader: Reader, detokenizer: Detokenizer) -> Iterator[Document]:
    return (Document(detokenize(document.text, detokenizer)) for document in reader())


def _join_rows(reader: Reader) -> Iterator[Document]:
    """Make documents of rows that are the lines of a text with headings."""
    # In the hub's WikiText, blank lines are empty; in the original files they are " \n".
    lines = (document.text or " " for document in reader())
    return join_lines(line if line.endswith("\n") else line + "\n" for line in lines)


# -- the hub -----------------------------------------------------------------------------------------------------------

_HUB_VERSION = 2  # of the stored files
_HUB_SPEC = re.compile(
    r"hub:(?P<name>[^:@]+)(?:@(?P<revision>[^:]*))?(?::(?P<config>[^:]*))?(?::(?P<split>[\w.-]+)(?:\[:(?P<count>\d+)\])?)?"
)


def hub_rows(spec: str) -> dict[str, RowReader]:
    """Return readers of the rows of each split of `hub:NAME[@REVISION][:CONFIG[:SPLIT]]`.

    SPLIT may end in `[:N]`: only the first N rows are streamed. Without the network, the cache of `datasets` is read.

    Rows are streamed once, only the columns that may be text. `$MENTALESE_CACHE/hub/<key>/` has a file for each split
    and `meta.json`; it appears whole or not at all.
    """
    folder = cache_dir() / "hub" / hashlib.sha256(f"{_HUB_VERSION} {spec}".encode()).hexdigest()[:16]
    if not (folder / "meta.json").is_file():
        print(f"{spec}: read once, the text is kept in {folder}", file=sys.stderr)
        with whole_folder(folder) as temporary:
            counts = _stream(spec, temporary)
            write_json(temporary / "meta.json", sealed({"source": spec, "rows": counts}))
    counts = read_json(folder / "meta.json")["rows"]

    def read(split: str) -> Iterator[Row]:
        rows = read_json_lines(folder / f"{split}.jsonl.gz")
        return ((f"{spec}, {split} row {number}", row) for number, (_, row) in enumerate(rows, 1))

    return {split: partial(read, split) for split in SPLITS if split in counts}


def _stream(spec: str, folder: Path) -> dict[str, int]:
    """Stream the columns of each split that may be text into a file; return the numbers of rows."""
    import datasets

    match = _HUB_SPEC.fullmatch(spec)
    if match is None:
        raise InputError(f"data.source is {spec!r}: write hub:NAME@REVISION:CONFIG:SPLIT, SPLIT as train or train[:N]")
    name, revision, config, split, count = (match[group] or None for group in match.re.groupindex)
    with reading(f"data.source {spec!r}", "use another source"):
        with hub_or_cache("data.source", spec) as reached:
            content = datasets.load_dataset(name, config, split=split, revision=revision, streaming=reached)
        splits: dict[str, list[Iterable[Mapping[str, object]]]] = {}
        for title, rows in ({split: content} if split else content).items():
            splits.setdefault(SPLIT_ALIASES.get(title, title), []).append(rows)
        remedy = f"it has no {', '.join(SPLITS)} split, only {', '.join(splits)}"
        require(bool(splits.keys() & {*SPLITS}), "data.source", spec, remedy)
        counts = {}
        for split_name in (split_name for split_name in SPLITS if split_name in splits):
            with gzip.open(folder / f"{split_name}.jsonl.gz", "wb", compresslevel=1) as file:
                rows = islice(chain.from_iterable(splits[split_name]), count and int(count))
                counts[split_name] = sum(bool(file.write(text_fields(row))) for row in rows)
    return counts


# -- texts from Python -------------------------------------------------------------------------------------------------

PYTHON = "python"
_TEXTUAL = (str, int, float, list, tuple, dict, type(None))
_PYTHON_ROWS: dict[str, dict[str, RowReader]] = {}


def as_source(texts: object) -> str:
    """Return the name of texts as a source: `DataConfig(source=as_source(texts))`.

    Args:
        texts: an iterable of texts (str) or of rows (dict, as in a jsonl file): a list, a `datasets.Dataset` or
            `IterableDataset`, or a function without arguments that returns one; or a dict of these by split. Texts are
            read several times, so an iterator is stored as a list. A str is the name of a source and is returned as it
            is.

    Raises:
        InputError: an object or an item of another type, or a split that does not exist.
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
        content = hashlib.sha256()
        for _, row in _items(split, items):
            content.update(text_fields(row))
        readers[split] = partial(_same_rows, split, items, content.hexdigest())
        digest.update(f"{split} {content.hexdigest()}".encode())
    name = f"{PYTHON}:{digest.hexdigest()[:16]}"
    _PYTHON_ROWS[name] = readers
    return name


def _items(split: str, items: Any) -> Iterator[Row]:
    texts = items() if callable(items) else items
    if hasattr(texts, "iloc") and hasattr(texts, "columns"):  # its items are the names of its columns
        raise InputError(f"data[{split!r}] is a {type(texts).__name__} of pandas: use data.to_dict('records')")
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


def _same_rows(split: str, items: object, content: str) -> Iterator[Row]:
    """Yield the rows as they were at the first reading; raise `InputError` if they differ."""
    digest = hashlib.sha256()
    for where, row in _items(split, items):
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
