"""Documents, and sources of them with training, validation and test apart."""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mentalese.errors import InputError, require

VERSION = 1
SPLITS = ("train", "validation", "test")
HELD_OUT = 0.1
"""The default of `data.held_out`."""

Kind = Literal["text", "records"]
_BREAK = re.compile(r"\s*[\r\n]\s*")
_DUPLICATE, _EMPTY = -1, -2  # instead of the number of a document's split


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
    """Documents in train, validation and test; no document, and no question of a record, is in two splits.

    If validation or test is missing, it is taken out of train (`DataConfig.held_out`); without a train split, only the
    given splits exist.

    Attributes:
        kind: `text`, or `records` (question, steps and answer as segments).
        fingerprint: sha256 of every document and its split; the file's name and place do not count.
        count: the number of documents that were read, including documents that are left out.
        dropped, empty: documents of each split that were left out because a later split has them, or their question,
            too, or because they contain only white space.
        is_divided: validation or test was missing, and was taken out of train.
        remarks: sentences on the division into documents, if users may expect another one.

    Raises:
        InputError: no document is left for a split, or all splits are given and `held_out` is set.
    """

    def __init__(
        self,
        name: str,
        kind: Kind,
        readers: dict[str, Reader],
        remarks: tuple[str, ...] = (),
        *,
        held_out: float = HELD_OUT,
    ) -> None:
        self.name, self.kind, self.remarks = name, kind, remarks
        self._readers = {split: readers[split] for split in SPLITS if split in readers}
        digest = hashlib.sha256(f"{VERSION} {kind}".encode())
        scans = [_scan(name, split, reader, digest) for split, reader in self._readers.items()]
        keys, questions, sizes = map(np.concatenate, zip(*scans))
        if kind == "records":
            _, first, question = np.unique(questions, return_index=True, return_inverse=True)
            if len(first) < len(np.unique(keys)):  # the same question with other steps, which goes where the first is
                keys = keys[first][question]
                digest.update(b"by first record of a question")
        if held_out != HELD_OUT:
            digest.update(f"held out {held_out}".encode())
        self.fingerprint, self.count = digest.hexdigest(), len(keys)
        self.splits = SPLITS if "train" in readers else tuple(self._readers)

        # For each document, the number of the split that it was read from, and of its split, or why it has none.
        numbers = {split: SPLITS.index(split) for split in self._readers}
        self._origin = np.repeat(np.array([*numbers.values()], dtype=np.int8), [len(scan[0]) for scan in scans])
        self._split = np.where(sizes == 0, _EMPTY, self._origin).astype(np.int8)
        for split, later in (("validation", "test"), ("train", "validation"), ("train", "test")):
            if split in numbers and later in numbers:
                copies = np.isin(keys, keys[self._origin == numbers[later]])
                self._split[(self._split == numbers[split]) & copies] = _DUPLICATE
        missing = [split for split in ("test", "validation") if split in self.splits and split not in readers]
        self.is_divided = bool(missing)
        if missing:
            train = slice(len(scans[0][0]))
            hold_out = _hold_out_last if held_out >= 1 else _hold_out_share
            hold_out(keys[train], self._split[train], missing, held_out / 2)
        else:
            require(held_out == HELD_OUT, "data.held_out", held_out, f"{name} has splits of its own, remove it")

        self._sizes = {split: int(sizes[self._split == SPLITS.index(split)].sum()) for split in self.splits}
        if lacking := [split for split, size in self._sizes.items() if not size]:
            other = "" if held_out == HELD_OUT else f", or another data.held_out than {held_out:g}"
            problem = f"has no document left for {' and '.join(lacking)}, of {self.count:,} with empty ones and copies"
            raise InputError(f"{name} {problem if self.count else 'is empty'}: use more documents{other}")
        self.dropped, self.empty = (
            {split: int((self._split[self._origin == number] == reason).sum()) for split, number in numbers.items()}
            for reason in (_DUPLICATE, _EMPTY)
        )

    def documents(self, split: str) -> Iterator[Document]:
        """Yield the documents of a split in the source's order; raise `InputError` as `size` does."""
        self.size(split)
        for origin, reader in self._readers.items():
            chosen = self._split[self._origin == SPLITS.index(origin)] == SPLITS.index(split)
            if chosen.any():
                yield from (document for document, is_chosen in zip(reader(), chosen) if is_chosen)

    def size(self, split: str) -> int:
        """Return the UTF-8 bytes of the split's text; raise `InputError` if the source has no such split."""
        if split not in self._sizes:
            raise InputError(f"{self.name} contains no {split} file, only {' and '.join(self.splits)}: add one")
        return self._sizes[split]


def _scan(name: str, split: str, reader: Reader, digest: hashlib._Hash) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return 64 bits of the sha256 of each document and of its first segment, and its bytes, 0 for empty ones."""
    keys, questions, sizes = array("Q"), array("Q"), array("Q")
    digest.update(split.encode())
    for document in reader():
        try:
            text = document.text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"{name}: document {len(keys) + 1} of {split} is not valid Unicode (half a surrogate pair): repair it"
            ) from error
        whole = hashlib.sha256(text).digest()
        digest.update(whole)
        digest.update(str([len(segment) for segment in document.segments or ()]).encode())
        first = hashlib.sha256(document.segments[0].encode()).digest() if document.segments else whole
        keys.append(int.from_bytes(whole[:8], "big"))
        questions.append(int.from_bytes(first[:8], "big"))
        sizes.append(len(text) if document.text.strip() else 0)
    return np.array(keys), np.array(questions), np.array(sizes)


def _hold_out_share(keys: np.ndarray, owner: np.ndarray, missing: Sequence[str], share: float) -> None:
    """Give each missing split this share of the documents, by their keys, and at least one if there are enough."""
    distinct = np.unique(keys[owner >= 0])
    rank, start = np.searchsorted(distinct, keys), 0
    for i, split in enumerate(missing):
        bound = np.searchsorted(distinct, np.uint64(int((i + 1) * share * 2**64)))
        end = min(max(int(bound), start + 1), len(distinct) - len(missing) + i)
        owner[(owner >= 0) & (rank >= start) & (rank < end)] = SPLITS.index(split)
        start = end


def _hold_out_last(keys: np.ndarray, owner: np.ndarray, missing: Sequence[str], count: float) -> None:
    """Give each missing split this many documents from the end, test the very last; earlier copies are left out."""
    end, train = len(keys), owner >= 0
    for split in missing:
        begin = max(end - int(count), 0)
        part = np.zeros_like(train)
        part[begin:end] = train[begin:end]
        owner[part] = SPLITS.index(split)
        owner[:begin][train[:begin] & np.isin(keys[:begin], keys[part])] = _DUPLICATE
        train, end = owner == SPLITS.index("train"), begin


def one_line(text: str) -> str:
    """Return a text as questions are read: no white space around it, and a space for each break of a line."""
    return _BREAK.sub(" ", text.strip())


def line_places(text: str) -> list[int]:
    """Return the place in `text` of each character of `one_line(text)`."""
    start, stop = len(text) - len(text.lstrip()), len(text.rstrip())
    places: list[int] = []
    for match in _BREAK.finditer(text, start, stop):
        places += range(start, match.start() + 1)
        start = match.end()
    return [*places, *range(start, stop)]


def record(question: str, steps: Iterable[str], answer: str) -> Document:
    """Return a document of kind `records`: question and steps, each on one line, then `### answer`.

    Line breaks within a part become spaces. `ValueError`: a part is empty, or not a text, or the answer contains `###`.
    """
    parts = (question, *steps, answer)
    if not all(isinstance(part, str) and part.strip() for part in parts):
        raise ValueError("question, answer and each step must be texts that are not empty")
    if "###" in answer:
        raise ValueError(f"the answer {answer!r} contains ###, after which an answer begins")
    *before, last = map(one_line, parts)
    return Document.join([*(f"{line}\n" for line in before), f"### {last}"])
