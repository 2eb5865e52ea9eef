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

    If validation or test is missing, it is taken out of train; without a train split, only the given splits exist.

    Args:
        held_out: documents of train that become validation and test if these are missing, half each. Below 1: a share,
            by a hash of the text; from 2 on: the last N.

    Attributes:
        name: `data.source`.
        kind: `text`, or `records` (question, steps and answer as segments).
        fingerprint: sha256 of every document and its split; the file's name and place do not count.
        count: the number of documents that were read, including documents that are left out.
        splits: the splits that exist, of `train`, `validation` and `test`.
        dropped: documents of each split that were left out because a later split has them, or their question, too.
        empty: documents of each split that were left out because they contain only white space.
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
        self.name, self.kind, self._readers, self.remarks = name, kind, readers, remarks
        digest = hashlib.sha256(f"{VERSION} {kind}".encode())
        scans = {split: _scan(name, split, readers[split], digest) for split in SPLITS if split in readers}
        keys = {split: scan.keys for split, scan in scans.items()}
        questions = {split: scan.questions for split, scan in scans.items()}
        if kind == "records" and _distinct(questions) < _distinct(keys):
            keys = questions
            digest.update(b"by question")
        if held_out != HELD_OUT:
            digest.update(f"held out {held_out}".encode())
        self.fingerprint = digest.hexdigest()
        self.count = sum(map(len, keys.values()))
        self.splits = SPLITS if "train" in readers else tuple(keys)

        # For each document, the number of its split, or the reason that it has none.
        self._owner = {
            split: np.where(scan.sizes == 0, _EMPTY, SPLITS.index(split)).astype(np.int8)
            for split, scan in scans.items()
        }
        for split, later in (("validation", "test"), ("train", "validation"), ("train", "test")):
            if split in keys and later in keys:
                owner = self._owner[split]
                owner[(owner >= 0) & np.isin(keys[split], keys[later])] = _DUPLICATE
        missing = [split for split in ("test", "validation") if split in self.splits and split not in keys]
        if missing:
            hold_out = _hold_out_last if held_out >= 1 else _hold_out_share
            hold_out(keys["train"], self._owner["train"], missing, held_out / 2)
        else:
            require(held_out == HELD_OUT, "data.held_out", held_out, f"{name} has splits of its own, remove it")

        self._sizes = dict.fromkeys(self.splits, 0)
        for split in self.splits:
            owned = {source: owner == SPLITS.index(split) for source, owner in self._owner.items()}
            self._sizes[split] = sum(int(scans[source].sizes[mask].sum()) for source, mask in owned.items())
        if lacking := [split for split, size in self._sizes.items() if not size]:
            other = "" if held_out == HELD_OUT else f", or another data.held_out than {held_out:g}"
            problem = f"has no document left for {' and '.join(lacking)}, of {self.count:,} with empty ones and copies"
            raise InputError(f"{name} {problem if self.count else 'is empty'}: use more documents{other}")
        self.dropped = {split: int((owner == _DUPLICATE).sum()) for split, owner in self._owner.items()}
        self.empty = {split: int((owner == _EMPTY).sum()) for split, owner in self._owner.items()}

    def documents(self, split: str) -> Iterator[Document]:
        """Yield the documents of a split in the source's order, read as one goes.

        Raises:
            InputError: the source has no such split.
        """
        self.size(split)  # checks
        number = SPLITS.index(split)
        for source, owner in self._owner.items():
            if (owner == number).any():
                yield from (document for document, place in zip(self._readers[source](), owner) if place == number)

    def size(self, split: str) -> int:
        """Return the UTF-8 bytes of the split's text; raise `InputError` if the source has no such split."""
        if split not in self._sizes:
            raise InputError(f"{self.name} contains no {split} file, only {' and '.join(self.splits)}: add one")
        return self._sizes[split]


@dataclass(frozen=True)
class _Scan:
    """64 bits of the sha256 of each document and of its first segment, and its bytes, 0 for empty ones."""

    keys: np.ndarray
    questions: np.ndarray
    sizes: np.ndarray


def _scan(name: str, split: str, reader: Reader, digest: hashlib._Hash) -> _Scan:
    """Read a split once; every document goes into `digest`."""
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
    return _Scan(*(np.array(values, dtype=np.uint64) for values in (keys, questions, sizes)))


def _distinct(keys: dict[str, np.ndarray]) -> int:
    return len(np.unique(np.concatenate(list(keys.values()))))


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
    """Return a document of kind `records`: the question and each step on separate lines, then `### answer`.

    Line breaks within a part become spaces.

    Raises:
        ValueError: a part is empty, or not a text.
    """
    parts = (question, *steps, answer)
    if not all(isinstance(part, str) and part.strip() for part in parts):
        raise ValueError("question, answer and each step must be texts that are not empty")
    *before, last = map(one_line, parts)
    return Document.join([*(f"{line}\n" for line in before), f"### {last}"])
