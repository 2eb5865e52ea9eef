"""Sources of documents: built in, files, or the Hugging Face hub; with training, validation and test apart.

Opening a source reads all of it once, so that whatever is malformed is found before any work starts, and so that
every document's split is known: given splits stay, missing ones are taken out of train by a hash of the text (about
5% each), and a document of train that also occurs in validation or test is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from mentalese.data.builtin import open_builtin
from mentalese.data.detokenizers import check_detokenizer, detokenize
from mentalese.data.documents import SPLITS, Document, Kind, Reader, Source, record
from mentalese.data.files import HEADING, ROW_SUFFIXES, RowReader, join_lines, row_reader, split_files, text_reader
from mentalese.data.hub import hub_rows
from mentalese.data.memory import KIND, row_readers
from mentalese.data.reasoning import PUBLISHED
from mentalese.errors import InputError
from mentalese.files import is_there
from mentalese.values import shown

_SUFFIXES = (".txt", *ROW_SUFFIXES)
_RECORD = ("question", "steps", "answer")
_LONG_TEXT = 100


def open_source(
    spec: str, *, text_column: str | None = None, detokenizer: str | None = None, whole: bool = False
) -> Source:
    """Opens and checks a source.

    Args:
        spec: `builtin:NAME`, `file:PATH` or `hub:NAME[@REVISION][:CONFIG[:SPLIT]]`, CONFIG empty for the only one, all
            splits unless one is named (`train[:N]`: its first N rows); for published sets of questions (`reasoning.py`)
            `gsm8k:PATH`, `gsm8k-aug:PATH`, `hotpotqa:PATH` or `clutrr:PATH`; or what `as_source` returns for texts
            from Python.
            PATH is a txt, jsonl, json (a list of rows) or parquet file, the JSON ones in gzip too, or a folder with
            files called train, validation and test (`valid`, `val`, `dev`, `train-00000.parquet`; where none is
            called so, `prosqa_valid.json.gz` too). A folder without train has the splits it has.
            In a txt file a document begins at each level-one heading (`= Title =`, as WikiText writes it) and after
            each line `<|endoftext|>`; a file with neither is one document.
            A row with `question`, `steps` and `answer` is a record. Other rows are documents, or lines of a text as
            above where one of the first 100 is a level-one heading and none has more lines than one (the hub's
            WikiText); such lines are joined over all files of a split.
        text_column: the column that contains the text. By default `text`, or else the only one with strings, or else
            the only one with long strings (100 characters and more on average).
        detokenizer: the format of texts that are to be read as running text, one of `DETOKENIZERS`.
        whole: read a source that has no splits, to score all of it: it becomes the one split `test`.

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
    holds, readers = _open(spec, text_column)
    _check_text(spec, holds, detokenizer)
    if detokenizer is not None:
        readers = {split: _detokenized(reader, detokenizer) for split, reader in readers.items()}
    if whole:
        if len(readers) > 1:
            splits = ", ".join(split for split in SPLITS if split in readers)
            raise InputError(f"split is 'all': {spec} has splits of its own, set one of {splits}")
        readers = {"test": next(iter(readers.values()))}
    return Source(spec, holds, readers)


def is_one_text(spec: str) -> bool:
    """Test if a source is one file, or one set of texts from Python or the hub, and has no splits of its own."""
    kind, _, rest = spec.partition(":")
    if kind == KIND:
        return set(row_readers(spec)) == {"train"}
    if kind == "hub" and rest:
        return set(hub_rows(spec)) == {"train"}
    path = Path(rest).expanduser()
    if not (is_there(path) and path.is_file()):
        return False
    return kind == "file" or (kind in PUBLISHED and set(PUBLISHED[kind].readers(rest)) == {"train"})


def _check_text(spec: str, kind: Kind, detokenizer: str | None) -> None:
    if detokenizer is not None and kind == "records":
        raise InputError(f"data.detokenizer is {detokenizer!r}: {spec} contains questions, leave it out")


def _detokenized(reader: Reader, detokenizer: str) -> Reader:
    return lambda: (Document(detokenize(document.text, detokenizer)) for document in reader())


def _open(spec: str, text_column: str | None) -> tuple[Kind, dict[str, Reader]]:
    kind, _, rest = spec.partition(":")
    if kind == "builtin":
        return open_builtin(rest)
    if kind in PUBLISHED and rest:
        return "records", PUBLISHED[kind].readers(rest)
    if kind == "file" and rest:
        return _open_files(spec, Path(rest).expanduser(), text_column)
    if kind == "hub" and rest:
        return _open_rows(spec, {split: [rows] for split, rows in hub_rows(spec).items()}, text_column)
    if kind == KIND:
        return _open_rows(spec, {split: [rows] for split, rows in row_readers(spec).items()}, text_column)
    if kind == "store":
        raise InputError(f"data.source is {spec!r}: a prepared store contains tokens, not text; name the text's source")
    sets = ", ".join(f"{name}:PATH" for name in PUBLISHED)
    remedy = f"use builtin:NAME, file:PATH, hub:NAME, store:FOLDER or a published set ({sets})"
    raise InputError(f"data.source is {shown(spec)}: {f'write file:{spec}' if is_there(Path(spec)) else remedy}")


def _open_files(spec: str, path: Path, text_column: str | None) -> tuple[Kind, dict[str, Reader]]:
    found = split_files(path, _SUFFIXES)
    files = [file for paths in found.values() for file in paths]
    plain = [file for file in files if file.suffix == ".txt"]
    if plain and len(plain) < len(files):
        raise InputError(f"{path} mixes .txt and other files: keep one kind")
    if plain:
        if text_column is not None:
            raise InputError(f"data.text_column is {text_column!r}: a txt file has no columns, leave it out")
        return "text", {split: _chain(map(text_reader, paths)) for split, paths in found.items()}
    rows = {split: [row_reader(file) for file in paths] for split, paths in found.items()}
    return _open_rows(spec, rows, text_column)


def _chain(readers: Iterable[Reader]) -> Reader:
    parts = list(readers)
    return lambda: (document for part in parts for document in part())


def _open_rows(spec: str, rows: dict[str, list[RowReader]], text_column: str | None) -> tuple[Kind, dict[str, Reader]]:
    first = list(islice(next(rows[split] for split in SPLITS if split in rows)[0](), 100))
    column = _find_column(spec, [row for _, row in first], text_column)
    if column is not None and _are_lines([_text(where, row, column).text for where, row in first]):
        return "text", {split: _line_reader(parts, column) for split, parts in rows.items()}

    def reader(part: RowReader) -> Reader:
        def read() -> Iterator[Document]:
            for where, row in part():
                yield _record(where, row) if column is None else _text(where, row, column)

        return read

    kind: Kind = "records" if column is None else "text"
    return kind, {split: _chain(map(reader, parts)) for split, parts in rows.items()}


def _are_lines(texts: list[str]) -> bool:
    """Whether rows are the lines of a text with headings, and no documents."""
    return any(map(HEADING.fullmatch, texts)) and not any("\n" in text.strip() for text in texts)


def _line_reader(parts: list[RowReader], column: str) -> Reader:
    def read() -> Iterator[str]:
        for where, row in chain.from_iterable(part() for part in parts):
            # The hub's WikiText leaves nothing of the blank lines, which are " \n" in the files it was made from.
            line = _text(where, row, column).text or " "
            yield line if line.endswith("\n") else line + "\n"

    return lambda: join_lines(read())


def _find_column(spec: str, rows: list[dict[str, Any]], text_column: str | None) -> str | None:
    """The column that holds the text; `None` for records."""
    if not rows:
        raise InputError(f"{spec} is empty: use a file with text")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if text_column is not None:
        if text_column not in columns:
            raise InputError(f"data.text_column is {text_column!r}: {spec} has only {', '.join(columns)}")
        return text_column
    if set(_RECORD) <= set(columns):
        return None
    if "text" in columns:
        return "text"
    lengths = {
        name: [len(row[name]) for row in rows if isinstance(row.get(name), str)]
        for name in columns
        if all(isinstance(row.get(name), str | None) for row in rows)
    }
    strings = [name for name, found in lengths.items() if found]
    long = [name for name in strings if sum(lengths[name]) >= _LONG_TEXT * len(lengths[name])]
    for candidates in (strings, long):
        if len(candidates) == 1:
            return candidates[0]
    problem = "several columns may contain" if long or strings else "no column contains"
    raise InputError(f"{spec}: {problem} the text; name one by data.text_column (it has {', '.join(columns)})")


def _text(where: str, row: dict[str, Any], column: str) -> Document:
    if column not in row:
        raise InputError(f"{where} has no column {column!r} (it has {', '.join(row)}): add it, or set data.text_column")
    value = row[column]
    if not isinstance(value, str | None):
        kind = type(value).__name__
        raise InputError(f"{where}: column {column!r} contains {kind}, not text: choose data.text_column")
    return Document(value or "")


def _record(where: str, row: dict[str, Any]) -> Document:
    question, steps, answer = (row.get(name) for name in _RECORD)
    texts = [question, answer, *(steps if isinstance(steps, list) else [None])]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise InputError(
            f"{where} is no record: question and answer must be texts and steps a list of texts, none of them empty"
        )
    return record(str(question), [str(step) for step in steps or ()], str(answer))
