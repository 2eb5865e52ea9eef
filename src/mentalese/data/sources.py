"""Sources of documents: built in, files, or the Hugging Face hub; with training, validation and test apart.

Opening a source reads all of it once, so that whatever is malformed is found before any work starts, and so that
every document's split is known: given splits stay, missing ones are taken out of train by a hash of the text (about
5% each, see `data.held_out`), and a document of train that also occurs in validation or test is dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path

from mentalese.data.builtin import open_builtin
from mentalese.data.config import DataConfig
from mentalese.data.detokenizers import check_detokenizer, detokenize
from mentalese.data.documents import HELD_OUT, SPLITS, Document, Kind, Reader, Source
from mentalese.data.files import ROW_SUFFIXES, TEXT_SUFFIXES, Row, RowReader, is_undivided, row_reader, split_files
from mentalese.data.hub import hub_rows
from mentalese.data.memory import KIND, row_readers
from mentalese.data.plain_text import HEADING, cut_documents, join_lines, length_of_few, read_documents
from mentalese.data.published import PUBLISHED
from mentalese.data.row_formats import FIRST_ROWS, column_text, find_format
from mentalese.errors import InputError
from mentalese.files import is_there
from mentalese.values import shown

_SUFFIXES = (*TEXT_SUFFIXES, *ROW_SUFFIXES)


def open_source(
    spec: str,
    *,
    text_column: str | None = None,
    detokenizer: str | None = None,
    whole: bool = False,
    held_out: float = HELD_OUT,
) -> Source:
    """Opens and checks a source.

    Args:
        spec: `builtin:NAME`, `file:PATH` or `hub:NAME[@REVISION][:CONFIG[:SPLIT]]`, CONFIG empty for the only one, all
            splits unless one is named (`train[:N]`: its first N rows); for published sets of questions (`published.py`)
            `gsm8k:PATH` and the like, or `gsm8k:hub:NAME[..]`; or what `as_source` returns for texts from Python.
            PATH is a txt, jsonl, json (a list of rows), csv, tsv or parquet file, all but the last in gzip too, or a
            folder with files or sub-folders called train, validation and test (`valid`, `val`, `dev`,
            `train-00000.parquet`; where none is called so, `prosqa_valid.json.gz` too). A folder without train has the
            splits it has; a folder without any of these names is one text, of all files in it and below.
            In a txt file a document begins at each level-one heading (`= Title =`, as WikiText writes it) and after
            each line `<|endoftext|>`; a file with neither is one document. A text without splits that has too few
            documents to be split is cut at blank lines, or by length.
            A row with `question`, `steps` and `answer` is a record; other rows of questions, prompts and chats are
            described in `row_formats.py`. All else are documents, or lines of a text as above where one of the first
            100 is a level-one heading and none has more lines than one (the hub's WikiText); such lines are joined over
            all files of a split.
        text_column: the column that contains the text. By default `text`, or else the only one with strings, or else
            the only one with long strings (100 characters and more on average).
        detokenizer: the format of texts that are to be read as running text, one of `DETOKENIZERS`.
        whole: read a source that has no splits, to score all of it: it becomes the one split `test`.
        held_out: documents that become validation and test where these are missing, see `DataConfig`.

    Raises:
        InputError: no such source, column or format, a file that is missing, empty, binary or malformed, a format
            for records, or splits in what is to be read as a whole.
    """
    if "\0" in spec or any("\ud800" <= character <= "\udfff" for character in spec):
        raise InputError(f"data.source is {spec!r}: use a name in Unicode, without the character 0")
    if detokenizer is not None:
        check_detokenizer(detokenizer)
    kind = spec.partition(":")[0]
    if text_column is not None and kind in ("builtin", *PUBLISHED):
        raise InputError(f"data.text_column is {text_column!r}: {spec} has no choice of columns, leave it out")
    if kind in PUBLISHED:
        _check_text(spec, "records", detokenizer)  # before anything is read
    opened = _open(spec, text_column, whole)
    readers = opened.readers
    _check_text(spec, opened.kind, detokenizer)
    if detokenizer is not None:
        readers = {split: _detokenized(reader, detokenizer) for split, reader in readers.items()}
    if whole:
        if len(readers) > 1:
            splits = ", ".join(split for split in SPLITS if split in readers)
            raise InputError(f"split is 'all': {spec} has splits of its own, set one of {splits}")
        readers = {"test": next(iter(readers.values()))}
    source = Source(spec, opened.kind, readers, opened.remarks, held_out=HELD_OUT if whole else held_out)
    if opened.cut:
        source.remarks += (
            f"{spec}: no headings and no lines <|endoftext|> divide it, so that it is cut into {source.count:,} "
            "documents at blank lines, or by length where there are none",
        )
    return source


def opened_source(config: DataConfig, whole: bool = False) -> Source:
    """Return the source that `config` names, read and hashed once per process while its files stay as they are."""
    asked = config.source, config.text_column, config.detokenizer, config.held_out
    return _opened_source(*asked, whole, _state(config.source))


def _state(spec: str) -> tuple[object, ...]:
    """Return path, size and time of all files of a source; of what has none, nothing."""
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
    """Test if a source is one file, or one set of texts from Python or the hub, and has no splits of its own."""
    kind, _, rest = spec.partition(":")
    if kind == KIND:
        return set(row_readers(spec)) == {"train"}
    if kind == "hub" and rest:
        return set(hub_rows(spec)) == {"train"}
    if kind in PUBLISHED and rest.startswith("hub:"):
        return set(PUBLISHED[kind].rows(rest)) == {"train"}
    if kind != "file" and kind not in PUBLISHED:
        return False
    if not is_undivided(Path(rest).expanduser(), _SUFFIXES):
        return False
    return kind == "file" or set(PUBLISHED[kind].rows(rest)) == {"train"}


def _check_text(spec: str, kind: Kind, detokenizer: str | None) -> None:
    if detokenizer is not None and kind == "records":
        raise InputError(f"data.detokenizer is {detokenizer!r}: {spec} contains questions, leave it out")


def _detokenized(reader: Reader, detokenizer: str) -> Reader:
    return lambda: (Document(detokenize(document.text, detokenizer)) for document in reader())


@dataclass(frozen=True)
class _Opened:
    """Documents by split as they are in a source, and how they were found; `cut`: of a text without their ends."""

    kind: Kind
    readers: dict[str, Reader]
    remarks: tuple[str, ...] = ()
    cut: bool = False


def _open(spec: str, text_column: str | None, whole: bool) -> _Opened:
    kind, _, rest = spec.partition(":")
    if kind == "builtin":
        return _Opened(*open_builtin(rest))
    if kind in PUBLISHED and rest:
        return _Opened("records", *PUBLISHED[kind].readers(spec, rest))
    if kind == "file" and rest:
        return _open_files(spec, Path(rest).expanduser(), text_column, whole)
    if kind == "hub" and rest:
        return _open_rows(spec, {split: [rows] for split, rows in hub_rows(spec).items()}, text_column)
    if kind == KIND:
        return _open_rows(spec, {split: [rows] for split, rows in row_readers(spec).items()}, text_column)
    if kind == "store":
        raise InputError(f"data.source is {spec!r}: a prepared store contains tokens, not text; name the text's source")
    sets = ", ".join(f"{name}:PATH" for name in PUBLISHED)
    remedy = f"use builtin:NAME, file:PATH, hub:NAME, store:FOLDER or a published set ({sets})"
    raise InputError(f"data.source is {shown(spec)}: {f'write file:{spec}' if is_there(Path(spec)) else remedy}")


def _open_files(spec: str, path: Path, text_column: str | None, whole: bool) -> _Opened:
    found = split_files(path, _SUFFIXES)
    files = [file for paths in found.values() for file in paths]
    plain = [file for file in files if file.name.endswith(TEXT_SUFFIXES)]
    if plain and len(plain) < len(files):
        raise InputError(f"{path} mixes .txt and other files: keep one kind")
    remarks: tuple[str, ...] = ()
    if len(files) > 1 and is_undivided(path, _SUFFIXES):
        remarks = (f"{spec}: no file is called train, so that all {len(files):,} in it and below are one text",)
    if not plain:
        rows = {split: [row_reader(file) for file in paths] for split, paths in found.items()}
        opened = _open_rows(spec, rows, text_column)
        return dataclasses.replace(opened, remarks=remarks + opened.remarks)
    if text_column is not None:
        raise InputError(f"data.text_column is {text_column!r}: a txt file has no columns, leave it out")
    if not whole and is_undivided(path, _SUFFIXES) and (characters := length_of_few(files)) is not None:
        return _Opened("text", {"train": partial(cut_documents, files, characters)}, remarks, cut=True)
    return _Opened("text", {split: partial(read_documents, paths) for split, paths in found.items()}, remarks)


def _open_rows(spec: str, rows: dict[str, list[RowReader]], text_column: str | None) -> _Opened:
    def every_row() -> Iterator[Row]:
        return chain.from_iterable(part() for split in SPLITS for part in rows.get(split, ()))

    row_format = find_format(spec, every_row, text_column)
    column, remarks = row_format.column, tuple(filter(None, [row_format.remark]))
    if column is not None:
        first = [column_text(where, row, column).text for where, row in islice(every_row(), FIRST_ROWS)]
        if _are_lines(first):
            return _Opened("text", {split: _line_reader(parts, column) for split, parts in rows.items()}, remarks)

    def reader(parts: list[RowReader]) -> Iterator[Document]:
        for part in parts:
            for where, row in part():
                yield row_format.document(where, row)

    return _Opened(row_format.kind, {split: partial(reader, parts) for split, parts in rows.items()}, remarks)


def _are_lines(texts: list[str]) -> bool:
    """Test if rows are the lines of a text with headings, and not documents."""
    return any(map(HEADING.fullmatch, texts)) and not any("\n" in text.strip() for text in texts)


def _line_reader(parts: list[RowReader], column: str) -> Reader:
    def read() -> Iterator[str]:
        for where, row in chain.from_iterable(part() for part in parts):
            # The hub's WikiText leaves nothing of the blank lines, which are " \n" in the files it was made from.
            line = column_text(where, row, column).text or " "
            yield line if line.endswith("\n") else line + "\n"

    return lambda: join_lines(read())
