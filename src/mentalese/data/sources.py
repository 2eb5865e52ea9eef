"""Sources of documents: built in, files, or the Hugging Face hub; with training, validation and test apart.

Opening a source reads all of it once, so that whatever is malformed is found before any work starts, and so that
every document's split is known: given splits stay, missing ones are taken out of train by a hash of the text (about
5% each), and a document of train that also occurs in validation or test is dropped.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np

from mentalese.data.detokenizers import check_detokenizer, detokenize
from mentalese.errors import InputError, nearest

VERSION = 1
SPLITS = ("train", "validation", "test")
HELD_OUT_SHARE = 0.05

Kind = Literal["text", "records"]
Row = tuple[str, dict[str, Any]]
"""Where a row stands (for messages), and its columns."""

_ALIASES = {"valid": "validation", "val": "validation", "dev": "validation"}
_SPLIT_FILE = re.compile(r"(?:(?P<prefix>.*?)[-_])??(?P<split>train|validation|valid|val|dev|test)(?:[-_.].*)?")
_SUFFIXES = (".txt", ".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")
_HEADING = re.compile(r" ?= [^=](?:.*[^=])? = ?\n?")
_BREAK = re.compile(r"\s*[\r\n]\s*")
_END_OF_DOCUMENT = "<|endoftext|>"
_RECORD = ("question", "steps", "answer")
_LONG_TEXT = 100
_DUPLICATE, _EMPTY = -1, -2  # in place of the number of a document's split


@dataclass(frozen=True)
class Document:
    """A text and, where they are known, its parts (sentences, or question, steps and answer): joined they are it."""

    text: str
    segments: tuple[str, ...] | None = None

    @classmethod
    def join(cls, segments: Iterable[str]) -> Document:
        segments = tuple(segments)
        return cls("".join(segments), segments)


Reader = Callable[[], Iterator[Document]]


class Source:
    """Documents in train, validation and test, which share none.

    Where validation or test is not given, it is taken out of train; without a train split, only what is given is there.

    Attributes:
        name: as it was asked for.
        kind: `text`, or `records` (question, steps and answer as segments).
        fingerprint: sha256 of every document and its split; the file's name and place do not count.
        splits: those there are of `train`, `validation` and `test`.
        dropped: documents of each split that were left out because a later split has them too.
        empty: documents of each split that were left out because they hold nothing but white space.

    Raises:
        InputError: a split holds no document, or there are too few to take validation and test from.
    """

    def __init__(self, name: str, kind: Kind, readers: dict[str, Reader]) -> None:
        self.name, self.kind, self._readers = name, kind, readers
        digest = hashlib.sha256(f"{VERSION} {kind}".encode())
        keys: dict[str, np.ndarray] = {}
        sizes: dict[str, np.ndarray] = {}
        for split in SPLITS:
            if split in readers:
                keys[split], sizes[split] = _scan(name, split, readers[split], digest)
        self.fingerprint = digest.hexdigest()
        self._owner = _assign(name, keys, {split: size == 0 for split, size in sizes.items()})
        self.splits = SPLITS if "train" in readers else tuple(keys)
        self._sizes = {
            split: sum(int(sizes[given][owner == SPLITS.index(split)].sum()) for given, owner in self._owner.items())
            for split in self.splits
        }
        self.dropped = {split: int((owner == _DUPLICATE).sum()) for split, owner in self._owner.items()}
        self.empty = {split: int((owner == _EMPTY).sum()) for split, owner in self._owner.items()}

    def documents(self, split: str) -> Iterator[Document]:
        """The documents of a split, in the source's order, read as one goes.

        Raises:
            InputError: the source has no such split.
        """
        self.size(split)  # checks
        number = SPLITS.index(split)
        for given, owner in self._owner.items():
            if (owner == number).any():
                yield from (document for document, own in zip(self._readers[given](), owner) if own == number)

    def size(self, split: str) -> int:
        """UTF-8 bytes of the split's text. Raises `InputError` where the source has no such split."""
        if split not in self._sizes:
            raise InputError(f"{self.name} holds no {split} file, only {' and '.join(self.splits)}: add one")
        return self._sizes[split]


def _scan(name: str, split: str, reader: Reader, digest: Any) -> tuple[np.ndarray, np.ndarray]:
    """64 bits of each document's sha256, and its bytes, 0 for empty ones; all of it goes into `digest`."""
    keys, sizes = array("Q"), array("Q")
    digest.update(split.encode())
    for document in reader():
        try:
            text = document.text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{name}: document {len(keys) + 1} of {split} is not valid Unicode (half a surrogate pair): repair it"
            ) from error
        own, empty = hashlib.sha256(text).digest(), not document.text.strip()
        digest.update(own)
        digest.update(str([len(segment) for segment in document.segments or ()]).encode())
        keys.append(int.from_bytes(own[:8], "big"))
        sizes.append(0 if empty else len(text))
    if not any(sizes):
        raise InputError(f"{name} holds no text for {split}: give a source with at least one document there")
    return np.array(keys, dtype=np.uint64), np.array(sizes, dtype=np.int64)


def _assign(name: str, keys: dict[str, np.ndarray], empty: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """For each given split, the number of the split that each of its documents belongs to; below 0 for none."""
    owner = {given: np.where(empty[given], _EMPTY, SPLITS.index(given)).astype(np.int8) for given in keys}
    for given, later in (("validation", ("test",)), ("train", ("validation", "test"))):
        for other in later:
            if given in keys and other in keys:
                owner[given][~empty[given] & np.isin(keys[given], keys[other])] = _DUPLICATE
    for given in owner:
        if (owner[given] < 0).all():
            raise InputError(f"{name}: every document of {given} occurs in another split too: give other documents")
    missing = [split for split in ("test", "validation") if split not in keys]
    if missing and "train" in keys:
        distinct = np.unique(keys["train"][owner["train"] >= 0])
        if len(distinct) <= len(missing):
            raise InputError(
                f"{name} holds {len(distinct)} distinct document(s), too few to take {' and '.join(missing)} from: "
                f"give at least {len(missing) + 1}, or a folder with train, validation and test files"
            )
        rank, start = np.searchsorted(distinct, keys["train"]), 0
        for i, split in enumerate(missing):
            bound = np.searchsorted(distinct, np.uint64(int((i + 1) * HELD_OUT_SHARE * 2**64)))
            end = min(max(int(bound), start + 1), len(distinct) - len(missing) + i)
            owner["train"][(owner["train"] >= 0) & (rank >= start) & (rank < end)] = SPLITS.index(split)
            start = end
    return owner


def open_source(spec: str, *, text_column: str | None = None, detokenizer: str | None = None) -> Source:
    """Opens and checks a source.

    Args:
        spec: `builtin:NAME`, `file:PATH` or `hub:NAME[@REVISION][:CONFIG[:SPLIT]]`, CONFIG empty for the only one, all
            splits unless one is named; for published sets of questions (`reasoning.py`) `gsm8k:PATH`,
            `gsm8k-aug:PATH`, `hotpotqa:PATH` or `clutrr:PATH`.
            PATH is a txt, jsonl, json (a list of rows) or parquet file, the JSON ones in gzip too, or a folder with
            files called train, validation and test (`valid`, `val`, `dev`, `train-00000.parquet`; where none is
            called so, `prosqa_valid.json.gz` too). A folder without train has the splits it has.
            In a txt file a document begins at each level-one heading (`= Title =`, as WikiText writes it) and after
            each line `<|endoftext|>`; a file with neither is one document.
            A row with `question`, `steps` and `answer` is a record. Other rows are documents, or lines of a text as
            above where one of the first 100 is a level-one heading and none has more lines than one (the hub's
            WikiText); such lines are joined over all files of a split.
        text_column: the column that holds the text. By default `text`, or else the only one with strings, or else
            the only one with long strings (100 characters and more on average).
        detokenizer: the format of texts that are to be read as running text, one of `DETOKENIZERS`.

    Raises:
        InputError: no such source, column or format, a file that is missing, empty, binary or malformed, or a format
            for records.
    """
    if detokenizer is not None:
        check_detokenizer(detokenizer)
    kind, _, rest = spec.partition(":")
    if rest and kind in ("clutrr", "gsm8k", "gsm8k-aug", "hotpotqa"):
        from mentalese.data.reasoning import PUBLISHED

        _check_text(spec, "records", detokenizer)
        return PUBLISHED[kind](spec, Path(rest).expanduser())
    holds, readers = _open(spec, text_column)
    _check_text(spec, holds, detokenizer)
    if detokenizer is not None:
        readers = {split: _detokenized(reader, detokenizer) for split, reader in readers.items()}
    return Source(spec, holds, readers)


def _check_text(spec: str, kind: Kind, detokenizer: str | None) -> None:
    if detokenizer is not None and kind == "records":
        raise InputError(f"data.detokenizer is {detokenizer!r}: {spec} holds questions, leave it out")


def _detokenized(reader: Reader, detokenizer: str) -> Reader:
    return lambda: (Document(detokenize(document.text, detokenizer)) for document in reader())


def _open(spec: str, text_column: str | None) -> tuple[Kind, dict[str, Reader]]:
    kind, _, rest = spec.partition(":")
    if kind == "builtin":
        from mentalese.data.builtin import BUILTIN

        if rest not in BUILTIN:
            raise InputError(f"data.source is {spec!r}: no such built-in data{nearest(rest, BUILTIN)}")
        builtin = BUILTIN[rest]
        return builtin.kind, {"train": lambda: iter(builtin.documents())}
    if kind == "file" and rest:
        return _open_files(spec, Path(rest).expanduser(), text_column)
    if kind == "hub" and rest:
        return _open_hub(spec, rest, text_column)
    if kind == "store":
        raise InputError(f"data.source is {spec!r}: a prepared store holds tokens, no text; give the text's source")
    remedy = f"write file:{spec}" if Path(spec).exists() else "give builtin:NAME, file:PATH, hub:NAME or store:FOLDER"
    raise InputError(f"data.source is {spec!r}: {remedy}")


def _open_files(spec: str, path: Path, text_column: str | None) -> tuple[Kind, dict[str, Reader]]:
    found = split_files(path, _SUFFIXES)
    files = [file for paths in found.values() for file in paths]
    plain = [file for file in files if file.suffix == ".txt"]
    if plain and len(plain) < len(files):
        raise InputError(f"{path} mixes .txt and other files: keep one kind")
    if plain:
        if text_column is not None:
            raise InputError(f"data.text_column is {text_column!r}: a txt file has no columns, leave it out")
        return "text", {split: _chain(map(_text_reader, paths)) for split, paths in found.items()}
    rows = {split: [row_reader(file) for file in paths] for split, paths in found.items()}
    return _open_rows(spec, rows, text_column)


def split_files(path: Path, suffixes: tuple[str, ...]) -> dict[str, list[Path]]:
    """The files of each split, sorted: a lone file is train, those of a folder are told by their names.

    A name begins with its split's (`train-00000.parquet`). Only in a folder without such names it may follow one prefix
    (`prosqa_valid.json.gz`), the same for all.

    Raises:
        InputError: nothing is there, or nothing of these kinds; a file is empty.
    """
    kinds = ", ".join(suffixes)
    if path.is_file():
        if not path.name.endswith(suffixes):
            raise InputError(f"{path} is of no known kind: give {kinds} or a folder of them")
        found = {"train": [path]}
    elif path.is_dir():
        by_prefix: dict[str, dict[str, list[Path]]] = {}
        for file in sorted(path.iterdir()):
            suffix = next((suffix for suffix in suffixes if file.name.endswith(suffix)), None)
            if suffix and (match := _SPLIT_FILE.fullmatch(file.name.removesuffix(suffix))):
                split = _ALIASES.get(match["split"], match["split"])
                by_prefix.setdefault(match["prefix"] or "", {}).setdefault(split, []).append(file)
        if not by_prefix:
            raise InputError(f"{path} holds no train file (train{kinds.replace(' ', ' train')}): add one")
        if "" not in by_prefix and len(by_prefix) > 1:
            raise InputError(f"{path} holds files of several sets ({', '.join(sorted(by_prefix))}): give each a folder")
        found = by_prefix.get("") or next(iter(by_prefix.values()))
    else:
        raise InputError(f"{path} does not exist: check data.source")
    for file in chain.from_iterable(found.values()):
        if file.stat().st_size == 0:
            raise InputError(f"{file} is empty: give a file with text")
    return found


def _chain(readers: Iterable[Reader]) -> Reader:
    parts = list(readers)
    return lambda: (document for part in parts for document in part())


def _text_reader(path: Path) -> Reader:
    def read() -> Iterator[str]:
        try:
            with path.open(encoding="utf-8") as file:
                for line in file:
                    if "\0" in line:
                        raise InputError(f"{path} is binary: give UTF-8 text")
                    yield line
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is not UTF-8 text (byte {error.start}): convert it") from error

    return lambda: join_lines(read())


def join_lines(lines: Iterable[str]) -> Iterator[Document]:
    """Documents that begin at level-one headings and after lines `<|endoftext|>`; blank ones are left out."""
    held: list[str] = []
    for line in chain(lines, [_END_OF_DOCUMENT]):
        separator = line.strip() == _END_OF_DOCUMENT
        if separator or _HEADING.fullmatch(line):
            text = "".join(held)
            if text.strip():
                yield Document(text)
            held = []
        if not separator:
            held.append(line)


def row_reader(path: Path) -> Callable[[], Iterator[Row]]:
    """What reads a parquet, jsonl or json file, the latter two in gzip too."""
    if path.suffix == ".parquet":
        return lambda: _read_parquet(path)
    return lambda: (_read_json_list if path.name.endswith((".json", ".json.gz")) else read_json_lines)(path)


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """A UTF-8 file, gzip by its ending. Raises `InputError` for what turns out, while it is read, to be neither."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
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
            except ValueError as error:
                raise InputError(f"{where} is not JSON ({error}): repair or remove it") from error
            if not isinstance(row, dict):
                raise InputError(f"{where} is not a JSON object: give one object with named columns a line")
            yield where, row


def _read_json_list(path: Path) -> Iterator[Row]:
    try:
        with open_text(path) as file:
            rows = json.load(file)
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not JSON ({error}): repair it, or call it .jsonl if each line is a row") from error
    if not isinstance(rows, list):
        raise InputError(f"{path} is no JSON list: give a list of objects, or .jsonl with one object a line")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise InputError(f"{path}, row {number} is not a JSON object: give objects with named columns")
        yield f"{path}, row {number}", row


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


def _open_hub(spec: str, name: str, text_column: str | None) -> tuple[Kind, dict[str, Reader]]:
    import datasets

    name, _, place = name.partition(":")
    name, _, revision = name.partition("@")
    config, _, split = place.partition(":")
    try:
        found = datasets.load_dataset(name, config or None, split=split or None, revision=revision or None)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"data.source is {spec!r}: the hub's data set cannot be had ({reason})") from error
    splits = {_ALIASES.get(own, own): rows for own, rows in ({split: found} if split else found).items()}
    if not set(splits) & set(SPLITS):
        raise InputError(f"data.source is {spec!r}: it has no {', '.join(SPLITS)} split, only {', '.join(splits)}")

    def reader(split: str) -> Callable[[], Iterator[Row]]:
        return lambda: ((f"{spec}, {split} row {i}", row) for i, row in enumerate(splits[split], 1))

    return _open_rows(spec, {split: [reader(split)] for split in SPLITS if split in splits}, text_column)


def _open_rows(
    spec: str, rows: dict[str, list[Callable[[], Iterator[Row]]]], text_column: str | None
) -> tuple[Kind, dict[str, Reader]]:
    first = list(islice(next(rows[split] for split in SPLITS if split in rows)[0](), 100))
    column = _find_column(spec, [row for _, row in first], text_column)
    if column is not None and _are_lines([_text(where, row, column).text for where, row in first]):
        return "text", {split: _line_reader(parts, column) for split, parts in rows.items()}

    def reader(part: Callable[[], Iterator[Row]]) -> Reader:
        def read() -> Iterator[Document]:
            for where, row in part():
                yield _record(where, row) if column is None else _text(where, row, column)

        return read

    kind: Kind = "records" if column is None else "text"
    return kind, {split: _chain(map(reader, parts)) for split, parts in rows.items()}


def _are_lines(texts: list[str]) -> bool:
    """Whether rows are the lines of a text with headings, and no documents."""
    return any(map(_HEADING.fullmatch, texts)) and not any("\n" in text.strip() for text in texts)


def _line_reader(parts: list[Callable[[], Iterator[Row]]], column: str) -> Reader:
    def read() -> Iterator[str]:
        for where, row in chain.from_iterable(part() for part in parts):
            # The hub's WikiText leaves nothing of the blank lines, which are " \n" in the files it was made from.
            line = _text(where, row, column).text or " "
            yield line if line.endswith("\n") else line + "\n"

    return lambda: join_lines(read())


def _find_column(spec: str, rows: list[dict[str, Any]], text_column: str | None) -> str | None:
    """The column that holds the text; `None` for records."""
    if not rows:
        raise InputError(f"{spec} is empty: give a file with text")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if text_column is not None:
        if text_column not in columns:
            raise InputError(f"data.text_column is {text_column!r}: {spec} has only {', '.join(columns)}")
        return text_column
    if set(_RECORD) <= set(columns):
        return None
    lengths = {
        name: [len(row[name]) for row in rows if isinstance(row.get(name), str)]
        for name in columns
        if all(isinstance(row.get(name), str | None) for row in rows)
    }
    strings = [name for name, found in lengths.items() if found]
    long = [name for name in strings if sum(lengths[name]) >= _LONG_TEXT * len(lengths[name])]
    for candidates in (["text"] if "text" in strings else [], strings, long):
        if len(candidates) == 1:
            return candidates[0]
    problem = "several columns may hold" if long or strings else "no column holds"
    raise InputError(f"{spec}: {problem} the text; name one by data.text_column (it has {', '.join(columns)})")


def _text(where: str, row: dict[str, Any], column: str) -> Document:
    if column not in row:
        raise InputError(f"{where} has no column {column!r} (it has {', '.join(row)}): add it, or set data.text_column")
    value = row[column]
    if not isinstance(value, str | None):
        raise InputError(f"{where}: column {column!r} holds {type(value).__name__}, no text: choose data.text_column")
    return Document(value or "")


def _record(where: str, row: dict[str, Any]) -> Document:
    question, steps, answer = (row.get(name) for name in _RECORD)
    texts = [question, answer, *(steps if isinstance(steps, list) else [None])]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise InputError(
            f"{where} is no record: question and answer must be texts and steps a list of texts, none of them empty"
        )
    return record(str(question), [str(step) for step in steps or ()], str(answer))


def record(question: str, steps: Iterable[str], answer: str) -> Document:
    """A document of kind `records`: the question and each step on a line of its own, then `### answer`.

    Line breaks within one of them become spaces.
    """
    question, answer, *steps = (_BREAK.sub(" ", text.strip()) for text in (question, answer, *steps))
    return Document.join([f"{question}\n", *(f"{step}\n" for step in steps), f"### {answer}"])
