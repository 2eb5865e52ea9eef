"""Sources of documents: built-in data, files, or the Hugging Face hub; with separate training, validation and test.

A source is read completely when it is opened. So malformed input is found before any work starts, and every document
has a split: existing splits stay, missing splits are taken out of train by a hash of the text (about 5% each, see
`data.held_out`), and a document of train that also occurs in validation or test is dropped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path

from mentalese.data.builtin import open_builtin
from mentalese.data.config import DataConfig
from mentalese.data.detokenizers import check_detokenizer, detokenize
from mentalese.data.documents import HELD_OUT, SPLITS, Document, Kind, Reader, Source
from mentalese.data.files import ROW_SUFFIXES, TEXT_SUFFIXES, ZIP, Columns, Row, RowReader, find_files, find_rows
from mentalese.data.hub import hub_rows
from mentalese.data.memory import KIND, row_readers
from mentalese.data.plain_text import HEADING, cut_documents, join_lines, length_of_few, read_documents
from mentalese.data.published import PUBLISHED, PublishedSet
from mentalese.data.row_formats import FIRST_ROWS, find_format
from mentalese.errors import InputError, require
from mentalese.files import check_characters
from mentalese.values import shown


def open_source(
    spec: str,
    *,
    text_column: str | None = None,
    detokenizer: str | None = None,
    whole: bool = False,
    held_out: float = HELD_OUT,
) -> Source:
    """Open and check a source.

    Args:
        spec: `data.source`; docs/training.md describes files, folders and rows. Rows that are the lines of a text
            with level-one headings (the hub's WikiText) are joined over all files of a split.
        text_column: the column that contains the text. By default `text`, or else the only one with strings, or else
            the only one with long strings (100 characters and more on average).
        detokenizer: the format of tokenised texts to read as running text, one of `DETOKENIZERS`.
        whole: read a source without splits, to score all of it, as the split `test`.
        held_out: documents that become validation and test if these are missing, see `DataConfig`.

    Raises:
        InputError: the source, column or format does not exist, a file is missing, empty, binary or malformed, a
            format is set for records, or a source with splits is opened with `whole`.
    """
    check_characters(spec, "data.source")
    if detokenizer is not None:
        check_detokenizer(detokenizer)
    content = _open(spec, text_column, whole)
    has_column = text_column is None or content.has_columns
    require(has_column, "data.text_column", text_column, f"{spec} has no choice of columns, leave it out")
    readers = content.readers
    if detokenizer is not None:
        is_text = content.kind == "text"
        require(is_text, "data.detokenizer", detokenizer, f"{spec} contains questions, leave it out")
        readers = {split: partial(_detokenized, reader, detokenizer) for split, reader in readers.items()}
    if whole:
        splits = ", ".join(split for split in SPLITS if split in readers)
        require(len(readers) == 1, "split", "all", f"{spec} has splits of its own, set one of {splits}")
        readers = {"test": next(iter(readers.values()))}
    source = Source(spec, content.kind, readers, content.remarks, held_out=HELD_OUT if whole else held_out)
    if content.cut:
        source.remarks += (
            f"{spec}: no headings and no lines <|endoftext|> divide it, so that it is cut into {source.count:,} "
            "documents at blank lines, or by length where there are none",
        )
    return source


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
    source: str, text_column: str | None, detokenizer: str | None, held_out: float, whole: bool, state: object
) -> Source:
    return open_source(source, text_column=text_column, detokenizer=detokenizer, held_out=held_out, whole=whole)


def is_one_text(spec: str) -> bool:
    """Test if a source is one file, or one set of texts from Python or the hub, without splits."""
    check_characters(spec, "data.source")
    kind, _, place = spec.partition(":")
    if kind in (KIND, "hub") or (kind in PUBLISHED and place.startswith("hub:")):
        return set(_rows(spec)) == {"train"}
    if kind == "file" or kind in PUBLISHED:
        kinds = PUBLISHED[kind].kinds if kind in PUBLISHED else ((*TEXT_SUFFIXES, *ROW_SUFFIXES),)
        return kinds != (ZIP,) and not find_files(_path(place), *kinds).divided
    return False


def _detokenized(reader: Reader, detokenizer: str) -> Iterator[Document]:
    return (Document(detokenize(document.text, detokenizer)) for document in reader())


@dataclass(frozen=True)
class _Content:
    """The documents of a source by split, and remarks on their format.

    Attributes:
        has_columns: the source consists of rows with columns.
        cut: the source is a text without ends of documents.
    """

    kind: Kind
    readers: dict[str, Reader]
    remarks: tuple[str, ...] = ()
    has_columns: bool = False
    cut: bool = False


def _open(spec: str, text_column: str | None, whole: bool) -> _Content:
    kind, _, place = spec.partition(":")
    if kind == "builtin":
        return _Content(*open_builtin(place))
    if kind in PUBLISHED and place:
        return _open_published(spec, PUBLISHED[kind])
    if kind == "file" and place:
        return _open_files(spec, _path(place), text_column, whole)
    if kind in ("hub", KIND) and place:
        return _open_rows(spec, _rows(spec), text_column)
    sets = ", ".join(f"{name}:PATH" for name in PUBLISHED)
    remedy = f"use builtin:NAME, file:PATH, hub:NAME, store:FOLDER or a published set ({sets})"
    if kind == "store":
        remedy = "a prepared store contains tokens, not text; name the text's source"
    elif os.path.exists(spec):  # noqa: PTH110
        remedy = f"write file:{spec}"
    raise InputError(f"data.source is {shown(spec)}: {remedy}")


def _path(place: str) -> Path:
    return Path(os.path.expanduser(place))  # noqa: PTH111 (which raises for a user that does not exist)


def _rows(spec: str) -> dict[str, list[RowReader]]:
    """Return the rows of a source that has some: a published set, `hub:NAME`, or texts from Python."""
    kind, _, place = spec.partition(":")
    if kind in PUBLISHED and not place.startswith("hub:"):
        return find_rows(_path(place), *PUBLISHED[kind].kinds)
    rows = row_readers(spec) if kind == KIND else hub_rows(place if kind in PUBLISHED else spec)
    return {split: [reader] for split, reader in rows.items()}


def _open_published(spec: str, published: PublishedSet) -> _Content:
    rows, hides = _rows(spec), published.hidden
    hidden = [split for split in rows if hides and any(hides(row) for _, row in islice(rows[split][0](), 1))]
    require(len(hidden) < len(rows), "data.source", spec, "it has no answers, use a split that was published with them")
    remarks = tuple(f"{spec}: {split} was published without answers and is left out" for split in hidden)
    readers: dict[str, Reader] = {
        split: partial(_documents, rows[split], published.record) for split in rows if split not in hidden
    }
    return _Content("records", readers, remarks)


def _documents(parts: list[RowReader], document: Callable[[str, Columns], Document]) -> Iterator[Document]:
    return (document(where, row) for part in parts for where, row in part())


def _open_files(spec: str, path: Path, text_column: str | None, whole: bool) -> _Content:
    content = find_files(path, (*TEXT_SUFFIXES, *ROW_SUFFIXES))
    plain = [file for file in content.files if file.name.endswith(TEXT_SUFFIXES)]
    remarks: tuple[str, ...] = ()
    if len(content.files) > 1 and not content.divided:
        remarks = (f"{spec}: no file is called train, so that all {len(content.files):,} in it and below are one text",)
    if not plain:
        rows = _open_rows(spec, find_rows(path, ROW_SUFFIXES), text_column)
        return replace(rows, remarks=remarks + rows.remarks)
    require(len(plain) == len(content.files), "data.source", spec, "it mixes .txt and other files, keep one kind")
    if not whole and not content.divided and (characters := length_of_few(plain)) is not None:
        return _Content("text", {"train": partial(cut_documents, plain, characters)}, remarks, cut=True)
    return _Content(
        "text", {split: partial(read_documents, files) for split, files in content.by_split.items()}, remarks
    )


def _open_rows(spec: str, rows: dict[str, list[RowReader]], text_column: str | None) -> _Content:
    def every_row() -> Iterator[Row]:
        return chain.from_iterable(part() for split in SPLITS for part in rows.get(split, ()))

    row_format = find_format(spec, every_row, text_column)
    remarks = tuple(filter(None, [row_format.remark]))
    readers: dict[str, Reader] = {
        split: partial(_documents, parts, row_format.document) for split, parts in rows.items()
    }
    if row_format.column is not None:
        first = [row_format.document(where, row).text for where, row in islice(every_row(), FIRST_ROWS)]
        if any(map(HEADING.fullmatch, first)) and not any("\n" in text.strip() for text in first):
            readers = {split: partial(_join_rows, reader) for split, reader in readers.items()}
    return _Content(row_format.kind, readers, remarks, has_columns=True)


def _join_rows(reader: Reader) -> Iterator[Document]:
    """Make documents of rows that are the lines of a text with headings."""
    # In the hub's WikiText, blank lines are empty; in the original files they are " \n".
    lines = (document.text or " " for document in reader())
    return join_lines(line if line.endswith("\n") else line + "\n" for line in lines)
