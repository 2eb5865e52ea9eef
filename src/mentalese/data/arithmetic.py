"""Word problems whose steps are equations, in the notation of GSM8K-Aug (Deng et al., 2024): `<<12-4=8>>`.

All numbers are whole and none is below 0, so that what an equation says can be checked by computing it.
"""

from __future__ import annotations

import operator
import random
from dataclasses import dataclass
from functools import cache, reduce
from itertools import pairwise

from mentalese.data.documents import Document, record

ARITHMETIC_VERSION = 1


@dataclass(frozen=True)
class Problem:
    """A word problem; each of its `steps` is an equation, of which the last one's result is the answer."""

    question: str
    steps: tuple[str, ...]
    answer: str


@cache
def arithmetic() -> tuple[Document, ...]:
    """Word problems of one to four steps."""
    return tuple(record(problem.question, problem.steps, problem.answer) for problem in word_problems(10_000))


def word_problems(count: int, seed: int = 0) -> list[Problem]:
    """The problems of `arithmetic`; problem i is the same whatever `count` is."""
    return [_problem(random.Random(f"arithmetic {ARITHMETIC_VERSION} {seed} {i}")) for i in range(count)]


# Words in strings: a list of each would be pages long.
# ruff: noqa: SIM905
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
_NAMES = (
    "Ada Alan Alice Anna Ben Bruno Carl Clara Daniel Diana Edgar Elena Felix Fiona George Grace Harold Hazel Ivan Iris "
    "Jasper Julia Karl Kate Leo Lydia Martin Mary Nathan Nina Oscar Olive Peter Phoebe Robert Rosa Stella Theo Vera"
).split()
_THINGS = (
    "apples beads books buttons cards coins cookies eggs marbles pears pencils plums shells stamps stickers".split()
)
_CONTAINERS = "bags baskets boxes crates jars packs trays".split()

_START = ("{name} has {n} {things}.", "{name} starts with {n} {things}.", "There are {n} {things} on {name}'s table.")
_EVENTS = {
    "+": (
        "{friend} gives {name} {n} more.",
        "{name} finds {n} more.",
        "{name} buys {n} more at the market.",
        "The next day {name} gets another {n}.",
    ),
    "-": (
        "{name} gives {n} of them to {friend}.",
        "{name} loses {n} of them.",
        "{name} sells {n} of them.",
        "{friend} takes {n} of them away.",
    ),
    "*": (
        "By the end of the month {name} has {n} times as many.",
        "{name} works hard, until there are {n} times as many.",
    ),
    "/": (
        "{name} shares them equally with friends, {n} people in all, and keeps one share.",
        "{name} puts them into {n} equal heaps and keeps only one heap.",
    ),
}
_BUYS = (
    "{name} buys {a} with {in_a} {things} in each, and {b} with {in_b} in each.",
    "{name} has {a} of {in_a} {things} each. {name} also has {b} of {in_b} each.",
)
_HAS = ("How many {things} does {name} have now?", "How many {things} does {name} have in the end?")
_COMPARED = {
    "+": "{name} has {n} {things} more than {other}.",
    "-": "{name} has {n} {things} fewer than {other}.",
    "*": "{name} has {n} times as many {things} as {other}.",
}
_TOGETHER = ("How many {things} do they have together?", "How many {things} is that in all?")


class _Writer:
    """Sentences and equations of one problem."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.sentences, self.steps, self.result = rng, list[str](), list[str](), 0
        self.things = rng.choice(_THINGS)

    def tell(self, templates: str | tuple[str, ...], **words: object) -> None:
        template = templates if isinstance(templates, str) else self.rng.choice(templates)
        self.sentences.append(template.format(things=self.things, **words))

    def compute(self, operation: str, *numbers: int) -> int:
        """The result of the numbers with the operation between each two."""
        self.result = reduce(_OPERATIONS[operation], numbers)
        self.steps.append(f"<<{operation.join(map(str, numbers))}={self.result}>>")
        return self.result


def _problem(rng: random.Random) -> Problem:
    writer = _Writer(rng)
    rng.choice((_changes, _changes, _comparison, _purchase))(writer, rng)
    return Problem(" ".join(writer.sentences), tuple(writer.steps), str(writer.result))


def _changes(writer: _Writer, rng: random.Random) -> None:
    """What someone has becomes more or less, one to four times."""
    name, friend = rng.sample(_NAMES, 2)
    have = rng.randint(4, 60)
    writer.tell(_START, name=name, n=have)
    for _ in range(rng.randint(1, 4)):
        numbers = {
            "+": range(2, 41),
            "-": range(2, have - 1),
            "*": range(2, 1 + min(5, 200 // have)),
            "/": [n for n in range(2, 10) if have % n == 0 and have > n],
        }
        operation = rng.choice([operation for operation, possible in numbers.items() if possible])
        n = rng.choice(numbers[operation])
        writer.tell(_EVENTS[operation], name=name, friend=friend, n=n)
        have = writer.compute(operation, have, n)
    writer.tell(_HAS, name=name)


def _comparison(writer: _Writer, rng: random.Random) -> None:
    """Two or three people, each of whom has more or fewer than the one before, and what all have."""
    names = rng.sample(_NAMES, rng.randint(2, 3))
    amounts = [rng.randint(4, 40)]
    writer.tell(_START[0], name=names[0], n=amounts[0])
    for other, name in pairwise(names):
        numbers = {"+": range(2, 31), "-": range(2, amounts[-1] - 1), "*": range(2, 6)}
        operation = rng.choice([operation for operation, possible in numbers.items() if possible])
        n = rng.choice(numbers[operation])
        writer.tell(_COMPARED[operation], name=name, other=other, n=n)
        amounts.append(writer.compute(operation, amounts[-1], n))
    writer.tell(_TOGETHER)
    writer.compute("+", *amounts)


def _purchase(writer: _Writer, rng: random.Random) -> None:
    """Two kinds of containers with some things in each, and often some that are given away."""
    name, friend = rng.sample(_NAMES, 2)
    kinds = rng.sample(_CONTAINERS, 2)
    counts, sizes = ([rng.randint(2, 9) for _ in kinds] for _ in range(2))
    writer.tell(
        _BUYS, name=name, a=f"{counts[0]} {kinds[0]}", b=f"{counts[1]} {kinds[1]}", in_a=sizes[0], in_b=sizes[1]
    )
    have = writer.compute("+", *(writer.compute("*", *pair) for pair in zip(counts, sizes, strict=True)))
    if rng.random() < 0.5:
        n = rng.randint(2, have - 1)
        writer.tell(_EVENTS["-"], name=name, friend=friend, n=n)
        writer.compute("-", have, n)
    writer.tell(_HAS, name=name)
