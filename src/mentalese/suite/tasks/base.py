"""Base class of the suite's tasks: options, documents in three splits, and three computed levels."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Annotated, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, Strict

from mentalese.data.documents import Document, Kind
from mentalese.errors import require
from mentalese.values import NonNegative, checked_dataclass

HELD_OUT = {"validation": 500, "test": 1000}
"""Documents of the splits that are not trained on."""

_SHARES = {"train": 0.8, "validation": 0.9, "test": 1.0}  # cumulative, of contents
_BLOCK = 256
T = TypeVar("T")


def _bounds(value: object) -> object:
    """Split a range that is written as text: `3-4`, or one number for both ends."""
    ends = value.split("-") if isinstance(value, str) else []
    return (ends[0], ends[-1]) if 1 <= len(ends) <= 2 else value


def _in_order(bounds: tuple[int, int]) -> tuple[int, int]:
    if bounds[0] > bounds[1]:
        raise ValueError("write the lower number first")
    return bounds


Range = Annotated[tuple[T, T], Strict(False), BeforeValidator(_bounds), AfterValidator(_in_order)]
"""The lowest and the highest number."""
Words = Annotated[int, Field(ge=1, le=100_000)]
"""Words of a document, which are generated many documents at once."""
Flag = Annotated[int, Field(ge=0, le=1)]


@dataclass(frozen=True)
class Levels:
    """Reference scores on the test split of a task.

    Attributes:
        optimum: score of the best possible model.
        floor: score of the best possible model without the mechanism that the task tests.
        chance: score of a model that has learned nothing (nats), or of the best constant answer (accuracy).
        unit: `nats` per token or `bits per byte`, less is better; or `accuracy`, from 0 to 1.
    """

    optimum: float
    floor: float
    chance: float
    unit: Literal["nats", "accuracy", "bits per byte"]

    def closed(self, score: float) -> float:
        """Return the share of the gap between floor and optimum that a score closes; below 0 under the floor.

        Raises:
            InputError: floor and optimum are equal: with the task's options, the mechanism is not needed.
        """
        gap = self.floor - self.optimum
        require(abs(gap) > 1e-9, "the task's floor", self.floor, "that is its optimum too: use other options")
        return (self.floor - score) / gap


@checked_dataclass("")
class Task(ABC):
    """A task with its options, which are the fields. The same options give the same documents, everywhere.

    Document i of a split does not depend on `count`. A change of what a task generates raises its `version`, which is
    part of every random seed.

    Attributes:
        count: training documents; validation has 500, test 1,000.
        seed: another one draws other documents.
    """

    count: Annotated[int, Field(ge=1, le=10**9)] = 20_000
    seed: NonNegative = 0

    name: ClassVar[str]
    version: ClassVar[int]
    kind: ClassVar[Kind]
    description: ClassVar[str]

    def check(self, option: str, condition: bool, remedy: str) -> None:
        """Raise `InputError` unless an option meets its condition."""
        require(condition, f"builtin:{self.name}.{option}", getattr(self, option), remedy)

    def size(self, split: str) -> int:
        """Return the number of documents of a split."""
        return self.count if split == "train" else HELD_OUT[split]

    def documents(self, split: str) -> Iterator[Document]:
        """Generate the documents of a split."""
        return islice(self.generate(split), self.size(split))

    @abstractmethod
    def generate(self, split: str) -> Iterator[Document]:
        """Generate documents of a split without an end."""

    @abstractmethod
    def levels(self) -> Levels:
        """Return the three levels on the documents of the test split."""

    def key(self, *parts: object) -> str:
        """Return the seed of a random generator."""
        return " ".join(map(str, (self.name, self.version, self.seed, *parts)))

    def owner(self, content: str) -> str:
        """Return the split of a content for all seeds: 80% are for training, 10% each for the others."""
        share = _number(f"{self.name} {content}") / 2**64
        return next(split for split, bound in _SHARES.items() if share < bound)


class DrawnTask(Task):
    """A task whose documents are drawn one by one, each by a random generator of its own."""

    @abstractmethod
    def document(self, split: str, rng: random.Random) -> Document:
        """Draw a document of a split."""

    def generators(self, split: str) -> Iterator[random.Random]:
        return (random.Random(self.key(split, i)) for i in count())

    def generate(self, split: str) -> Iterator[Document]:
        return (self.document(split, rng) for rng in self.generators(split))


class MarkovText(Task):
    """A task of text whose likelihoods are exact, as the tables that documents are drawn from are known.

    Each word is one token for a `bpe` of enough tokens that is trained on the task.
    """

    kind = "text"

    @property
    @abstractmethod
    def vocabulary(self) -> tuple[str, ...]:
        """The words of all documents."""

    @property
    @abstractmethod
    def visible(self) -> int:
        """Number of tokens that the floor sees before the one that it predicts."""

    @property
    @abstractmethod
    def sentence(self) -> int:
        """Words per sentence."""

    @property
    def leading(self) -> tuple[str, ...]:
        """Words that every document begins with, which cost nothing to predict."""
        return ()

    @abstractmethod
    def sample(self, key: str, documents: int) -> np.ndarray:
        """Return indices of words, int64 [documents, length]."""

    @abstractmethod
    def log_marginal(self, ids: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Return log p(x_start .. x_{stop-1}), all other words of a document unknown; natural, float64 [documents]."""

    def generate(self, split: str) -> Iterator[Document]:
        words = [f" {word}" for word in self.vocabulary]
        block = 0
        while True:
            for row in self.sample(self.key(split, block), _BLOCK).tolist():
                text = [*(f" {word}" for word in self.leading), *(words[i] for i in row)]
                yield Document.join("".join(text[i : i + self.sentence]) for i in range(0, len(text), self.sentence))
            block += 1

    def ids(self, split: str) -> np.ndarray:
        """Return the words of a split's documents as indices, without the leading ones, int64 [documents, length]."""
        index = {word: i for i, word in enumerate(self.vocabulary)}
        skip = len(self.leading)
        return np.array([[index[word] for word in document.text.split()[skip:]] for document in self.documents(split)])

    def nats(self, ids: np.ndarray, visible: int) -> np.ndarray:
        """Return -log p of each word given the last `visible` words before it; float64 [documents, length]."""
        length = ids.shape[1]
        losses = np.empty(ids.shape)
        for stop in range(1, length + 1):
            start = max(0, stop - 1 - visible)
            losses[:, stop - 1] = self.log_marginal(ids, start, stop - 1) - self.log_marginal(ids, start, stop)
        return losses

    def levels(self, start: int = 0) -> Levels:
        """See `Task.levels`; only of the words from place `start` on, given all before them."""
        ids = self.ids("test")
        words = ids.shape[1] - start if start else ids.shape[1] + len(self.leading)
        floor = float(self.nats(ids, self.visible)[:, start:].sum(1).mean()) / words
        likelihood = self.log_marginal(ids, 0, ids.shape[1]) - self.log_marginal(ids, 0, start)
        return Levels(-float(likelihood.mean()) / words, floor, float(np.log(len(self.vocabulary))), "nats")


def uniforms(key: str, *shape: int) -> np.ndarray:
    """Return numbers in [0, 1) that depend only on `key`; float64."""
    return np.random.Generator(np.random.PCG64(_number(key))).random(shape)


def peaked(key: str, spread: int, *shape: int) -> np.ndarray:
    """Return random distributions, whose outcomes are the last axis; weights are exponential variates to a power."""
    weights = (-np.log1p(-uniforms(key, *shape))) ** spread
    return weights / weights.sum(-1, keepdims=True)


def pick(rng: random.Random, items: Sequence[T]) -> T:
    """Return one of the items, each as likely."""
    return items[int(rng.random() * len(items))]


def draw(table: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """Return the index that each number in [0, 1), [rows], selects from its distribution, [rows, outcomes]."""
    return (np.cumsum(table, axis=1)[:, :-1] <= chance[:, None]).sum(1)


def _number(key: str) -> int:
    """Return 64 bits of sha256: Python's own hash differs by process."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


def syllables(count: int) -> tuple[str, ...]:
    """Return made-up words of two letters, `ba` to `zu`; at most 100."""
    return tuple(c + v for c in "bcdfghjklmnprstvwxyz" for v in "aeiou")[:count]
