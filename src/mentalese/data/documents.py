"""Documents, and sources of them with training, validation and test apart."""

from __future__ import annotations

import hashlib
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mentalese.errors import InputError

VERSION = 1
SPLITS = ("train", "validation", "test")
HELD_OUT = 0.1
"""The default of `data.held_out`."""

Kind = Literal["text", "records"]
_BREAK = re.compile(r"\s*[\r\n]\s*")
_EQUATION = re.compile(r"<<[^<>]+>>")
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
    """Documents in train, validation and test, which share none; records share no question, whatever its steps.

    Where validation or test is not given, it is taken out of train; without a train split, only what is given is there.

    Args:
        held_out: documents of train that become validation and test if these are not given, half of them each: below 1
            a share, by a hash of the text; from 2 on the last N.

    Attributes:
        name: as it was asked for.
        kind: `text`, or `records` (question, steps and answer as segments).
        fingerprint: sha256 of every document and its split; the file's name and place do not count.
        count: the number of documents that were read, with those that are left out.
        splits: those there are of `train`, `validation` and `test`.
        dropped: documents of each split that were left out because a later split has them, or their question, too.
        empty: documents of each split that were left out because they contain nothing but white space.
        remarks: how the documents were found, where a user may expect another way; one line each.

    Raises:
        InputError: a split contains no document, there are too few to take validation and test from, or both are given
            and `held_out` is set.
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
        questions: dict[str, np.ndarray] = {}
        keys: dict[str, np.ndarray] = {}
        sizes: dict[str, np.ndarray] = {}
        for split in SPLITS:
            if split in readers:
                keys[split], questions[split], sizes[split] = _scan(name, split, readers[split], digest)
        if kind == "records" and _distinct(questions) < _distinct(keys):
            keys = questions
            digest.update(b"by question")
        if held_out != HELD_OUT:
            digest.update(f"held out {held_out}".encode())
        self.fingerprint = digest.hexdigest()
        self.count = sum(map(len, keys.values()))
        self._owner = _assign(name, keys, {split: size == 0 for split, size in sizes.items()}, held_out)
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
            raise InputError(f"{self.name} contains no {split} file, only {' and '.join(self.splits)}: add one")
        return self._sizes[split]


def _distinct(keys: dict[str, np.ndarray]) -> int:
    return len(np.unique(np.concatenate(list(keys.values()))))


def _scan(name: str, split: str, reader: Reader, digest: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """64 bits of the sha256 of each document and of its first segment, and its bytes, 0 for empty ones.

    Everything goes into `digest`.
    """
    keys, firsts, sizes = array("Q"), array("Q"), array("Q")
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
        first = hashlib.sha256(document.segments[0].encode()).digest() if document.segments else own
        firsts.append(int.from_bytes(first[:8], "big"))
        sizes.append(0 if empty else len(text))
    if not any(sizes):
        raise InputError(f"{name} contains no text for {split}: use a source with at least one document there")
    return np.array(keys, dtype=np.uint64), np.array(firsts, dtype=np.uint64), np.array(sizes, dtype=np.int64)


def _assign(
    name: str, keys: dict[str, np.ndarray], empty: dict[str, np.ndarray], held_out: float
) -> dict[str, np.ndarray]:
    """For each given split, the number of the split that each of its documents belongs to; below 0 for none."""
    owner = {given: np.where(empty[given], _EMPTY, SPLITS.index(given)).astype(np.int8) for given in keys}
    for given, later in (("validation", ("test",)), ("train", ("validation", "test"))):
        for other in later:
            if given in keys and other in keys:
                owner[given][~empty[given] & np.isin(keys[given], keys[other])] = _DUPLICATE
    for given in owner:
        if (owner[given] < 0).all():
            raise InputError(f"{name}: every document of {given} occurs in another split too: use other documents")
    missing = [split for split in ("test", "validation") if split not in keys]
    if held_out != HELD_OUT and not (missing and "train" in keys):
        raise InputError(f"data.held_out is {held_out:g}: {name} has splits of its own; remove it")
    if missing and "train" in keys:
        hold_out = _hold_out_last if held_out >= 1 else _hold_out_share
        hold_out(name, keys["train"], owner["train"], missing, held_out / 2)
    return owner


def _hold_out_share(name: str, keys: np.ndarray, owner: np.ndarray, missing: list[str], share: float) -> None:
    """Give each missing split this share of the documents, by their keys, and at least one."""
    distinct = np.unique(keys[owner >= 0])
    if len(distinct) <= len(missing):
        raise InputError(
            f"{name} contains {len(distinct)} distinct document(s), too few to take {' and '.join(missing)} from: "
            f"use at least {len(missing) + 1}, or a folder with train, validation and test files"
        )
    rank, start = np.searchsorted(distinct, keys), 0
    for i, split in enumerate(missing):
        bound = np.searchsorted(distinct, np.uint64(int((i + 1) * share * 2**64)))
        end = min(max(int(bound), start + 1), len(distinct) - len(missing) + i)
        owner[(owner >= 0) & (rank >= start) & (rank < end)] = SPLITS.index(split)
        start = end


def _hold_out_last(name: str, keys: np.ndarray, owner: np.ndarray, missing: list[str], count: float) -> None:
    """Give each missing split this many documents from the end, test the very last; earlier copies are left out."""
    end, used = len(keys), owner >= 0
    for split in missing:
        begin = max(end - int(count), 0)
        part = np.zeros_like(used)
        part[begin:end] = used[begin:end]
        owner[part] = SPLITS.index(split)
        owner[:begin][used[:begin] & np.isin(keys[:begin], keys[part])] = _DUPLICATE
        used, end = owner == SPLITS.index("train"), begin
    kept = (*missing, "train")
    if lacking := [split for split in kept if not (owner == SPLITS.index(split)).any()]:
        raise InputError(
            f"data.held_out is {2 * count:g}: {name} contains {len(keys):,} documents, so that none is left for "
            f"{' and '.join(lacking)}; set fewer, or a share below 1"
        )


def one_line(text: str) -> str:
    """A text without white space around it, and with a space for each break of a line: how questions are read."""
    return _BREAK.sub(" ", text.strip())


def line_places(text: str) -> list[int]:
    """The place in `text` of each character of `one_line(text)`."""
    start, stop = len(text) - len(text.lstrip()), len(text.rstrip())
    places: list[int] = []
    for found in _BREAK.finditer(text, start, stop):
        places += range(start, found.start() + 1)
        start = found.end()
    return [*places, *range(start, stop)]


def record(question: str, steps: Iterable[str], answer: str) -> Document:
    """A document of kind `records`: the question and each step on a line of its own, then `### answer`.

    Line breaks within one of them become spaces.
    """
    question, answer, *steps = map(one_line, (question, answer, *steps))
    return Document.join([f"{question}\n", *(f"{step}\n" for step in steps), f"### {answer}"])


def answer_text(answer: object) -> str | None:
    """An answer as text, a whole number without decimals (12.0 is 12); `None` if it is neither text nor number."""
    if isinstance(answer, float) and math.isfinite(answer) and answer.is_integer():
        answer = int(answer)
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        return None
    return str(answer)


def steps_of(solution: str) -> list[str]:
    """The steps of a written solution: its equations `<<..>>` if it has nothing else, else its lines, or the sentences
    of its only line."""
    equations = _EQUATION.findall(solution)
    if equations and not _EQUATION.sub("", solution).strip():
        return equations
    lines = [line.strip() for line in solution.splitlines() if line.strip()]
    if len(lines) != 1:
        return lines
    import sentencex

    return [sentence.strip() for sentence in sentencex.segment("en", lines[0]) if sentence.strip()]
