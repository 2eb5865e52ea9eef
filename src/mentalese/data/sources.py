"""Sources of documents: built-in data, files, or the Hugging Face hub; with separate training, validation and test.

A source is read completely when it is opened. So malformed input is found before any work starts, and every document
has a split: existing splits stay, missing splits are taken out of train by a hash of the text (about 5% each, see
`data.held_out`), and a document of train that also occurs in validation or test is dropped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path

from mentalese.data.builtin import open_builtin
from mentalese.data.config import DataConfig, Detokenizer
from mentalese.data.detokenizers import detokenize
from mentalese.data.documents import HELD_OUT, SPLITS, Document, Kind, Reader, Source
from mentalese.data.files import ROW_SUFFIXES, TEXT_SUFFIXES, ZIP, Columns, Row, RowReader, find_files, find_rows
from mentalese.data.hub import hub_rows
from mentalese.data.memory import KIND, row_readers
from mentalese.data.plain_text import HEADING, cut_documents, join_lines, length_of_few, read_documents
from mentalese.data.published import PUBLISHED
from mentalese.data.row_formats import FIRST_ROWS, find_format
from mentalese.errors import InputError, require
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
        InputError: the source or column does not exist, a file is missing, empty, binary or malformed, a format is set
            for records, or a source with splits is opened with `whole`.
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
    return kind in (KIND, "hub", *PUBLISHED) and set(_rows(spec)) == {"train"}


def _open(spec: str, text_column: str | None, whole: bool) -> Content:
    kind, _, place = spec.partition(":")
    if kind == "file" and place:
        return _open_files(spec, _path(place), text_column, whole)
    if kind in ("hub", KIND) and place:
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
    if kind == KIND:
        return row_readers(spec)
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
    require(len(plain) == len(files), "data.source", spec, "it mixes .txt and other files, keep one kind")
    _refuse_column(spec, text_column)
    if whole or divided or (characters := length_of_few(plain)) is None:
        return "text", {split: partial(read_documents, parts) for split, parts in by_split.items()}, remarks
    remark = f"{spec}: no headings and no lines <|endoftext|> divide it, so that it is cut into documents at blank "
    remark += "lines, or by length where there are none"
    return "text", {"train": partial(cut_documents, plain, characters)}, (*remarks, remark)


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
