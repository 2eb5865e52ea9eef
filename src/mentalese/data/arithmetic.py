"""Word problems whose steps are equations: `arithmetic`, and the easier `word-problems` for pretrained models.

The steps of `arithmetic` are in the notation of GSM8K-Aug (Deng et al., 2024), `<<12-4=8>>`. All numbers are whole and
none is below 0, so that an equation can be checked by computing it.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Sequence
from functools import cache, reduce
from itertools import pairwise

from mentalese.data.documents import Document, record
from mentalese.data.stories import words

ARITHMETIC_VERSION = 1
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


@cache
def arithmetic() -> tuple[Document, ...]:
    """Return word problems of one to four steps, of which the last one's result is the answer."""
    return tuple(_problem(random.Random(f"arithmetic {ARITHMETIC_VERSION} 0 {i}")) for i in range(10_000))


WORD_PROBLEMS_VERSION = 1


@cache
def word_problems() -> tuple[Document, ...]:
    """Return word problems of two to four steps with numbers from 1 to 20; the last result is the answer."""
    return tuple(_few(random.Random(f"word-problems {WORD_PROBLEMS_VERSION} {i}")) for i in range(10_000))


class _Writer:
    """Sentences and equations of one problem.

    Args:
        of: the section of `words.yaml` with its sentences.
    """

    equation = "<<{}={}>>"

    def __init__(self, rng: random.Random, of: str = "arithmetic") -> None:
        self.rng, self.words = rng, words(of)
        self.sentences: list[str] = []
        self.steps: list[str] = []
        self.result = 0
        self.things = rng.choice(self.words["things"])

    def names(self, count: int) -> list[str]:
        return self.rng.sample(self.words["names"], count)

    def tell(self, kind: str, **values: object) -> None:
        sentences = self.words[kind]
        # A kind with one sentence draws nothing.
        sentence = sentences[0] if len(sentences) == 1 else self.rng.choice(sentences)
        self.sentences.append(sentence.format(things=self.things, **values))

    def compute(self, operation: str, *numbers: int) -> int:
        """Return the result of the numbers with the operation between each two."""
        self.result = reduce(_OPERATIONS[operation], numbers)
        self.steps.append(self.equation.format(operation.join(map(str, numbers)), self.result))
        return self.result

    def draw(self, numbers: dict[str, Sequence[int]]) -> tuple[str, int]:
        """Draw an operation that has numbers, and one of these."""
        operation = self.rng.choice([operation for operation, possible in numbers.items() if possible])
        return operation, self.rng.choice(numbers[operation])


def _problem(rng: random.Random) -> Document:
    writer = _Writer(rng)
    rng.choice((_changes, _changes, _comparison, _purchase))(writer, rng)
    return record(" ".join(writer.sentences), writer.steps, str(writer.result))


def _few(rng: random.Random) -> Document:
    """Write a problem about a few things that are added, given away, doubled or halved."""
    writer = _Writer(rng, "word-problems")
    writer.equation = "{}={}"
    name, friend = writer.names(2)
    have = rng.randint(2, 9)
    writer.tell("start", name=name, n=have)
    for _ in range(rng.randint(2, 4)):
        numbers: dict[str, Sequence[int]] = {
            "+": range(1, min(9, 20 - have) + 1),
            "-": range(1, min(9, have - 1) + 1),
            "*": [2] if have <= 10 else [],
            "/": [2] if have % 2 == 0 else [],
        }
        operation, n = writer.draw(numbers)
        writer.tell(f"change {operation}", name=name, friend=friend, n=n)
        have = writer.compute(operation, have, n)
    writer.tell("now", name=name)
    return record(" ".join(writer.sentences), writer.steps, str(writer.result))


def _changes(writer: _Writer, rng: random.Random) -> None:
    """Write a problem about a number of things that changes one to four times."""
    name, friend = writer.names(2)
    have = rng.randint(4, 60)
    writer.tell("start", name=name, n=have)
    for _ in range(rng.randint(1, 4)):
        numbers: dict[str, Sequence[int]] = {
            "+": range(2, 41),
            "-": range(2, have - 1),
            "*": range(2, 1 + min(5, 200 // have)),
            "/": [n for n in range(2, 10) if have % n == 0 and have > n],
        }
        operation, n = writer.draw(numbers)
        writer.tell(f"change {operation}", name=name, friend=friend, n=n)
        have = writer.compute(operation, have, n)
    writer.tell("now", name=name)


def _comparison(writer: _Writer, rng: random.Random) -> None:
    """Write a problem about the sum of what two or three people have, each more or fewer than the one before."""
    names = writer.names(rng.randint(2, 3))
    amounts = [rng.randint(4, 40)]
    writer.tell("first", name=names[0], n=amounts[0])
    for other, name in pairwise(names):
        operation, n = writer.draw({"+": range(2, 31), "-": range(2, amounts[-1] - 1), "*": range(2, 6)})
        writer.tell(f"compare {operation}", name=name, other=other, n=n)
        amounts.append(writer.compute(operation, amounts[-1], n))
    writer.tell("together")
    writer.compute("+", *amounts)


def _purchase(writer: _Writer, rng: random.Random) -> None:
    """Write a problem about two kinds of containers with some things in each; often some are given away."""
    name, friend = writer.names(2)
    kinds = rng.sample(writer.words["containers"], 2)
    counts, sizes = ([rng.randint(2, 9) for _ in kinds] for _ in range(2))
    a, b = (f"{count} {kind}" for count, kind in zip(counts, kinds, strict=True))
    writer.tell("buys", name=name, a=a, b=b, in_a=sizes[0], in_b=sizes[1])
    have = writer.compute("+", *(writer.compute("*", *pair) for pair in zip(counts, sizes, strict=True)))
    if rng.random() < 0.5:
        n = rng.randint(2, have - 1)
        writer.tell("change -", name=name, friend=friend, n=n)
        writer.compute("-", have, n)
    writer.tell("now", name=name)
