"""`builtin:expressions`: arithmetic modulo 10 in nested brackets, where each bracket needs the one inside it.

An expression of depth k is a bracket of two parts and `+`, `-` or `*` between them: one part, on either side, has depth
k - 1, the other a depth from 0 to k - 1, each as likely; depth 0 is a digit (docs/tasks.md). The floor is exact, by the
distribution of values at each depth: the best guess of a reader who sees the operation and the digits of the outermost
bracket, and the depths of its parts. Expressions that differ only in the order of operands of `+` and `*` are in one
split.
"""

from __future__ import annotations

import operator
import random
from collections import Counter
from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from mentalese.data.documents import Document, record
from mentalese.suite.tasks.base import DrawnTask, Flag, Levels, Range, pick
from mentalese.values import checked_dataclass

_OPERATIONS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
MODULUS = 10


@checked_dataclass("")
class Expressions(DrawnTask):
    """Options of `builtin:expressions`.

    Attributes:
        depth: fewest and most brackets inside each other, drawn with equal chance.
        steps: 1 writes the value at the end of each bracket, 0 only the answer.
    """

    depth: Range[Annotated[int, Field(ge=1, le=12)]] = (2, 4)
    steps: Flag = 1

    name = "expressions"
    version = 2
    kind = "records"
    description = "20,000 bracketed expressions modulo 10 of depth 2 to 4, with the value of each bracket"

    def document(self, split: str, rng: random.Random) -> Document:
        low, high = self.depth
        depth = pick(rng, range(low, high + 1))
        while True:
            steps: list[str] = []
            drawn = _expression(rng, depth, steps)
            if self.owner(drawn.ordered) == split:
                return record(drawn.text, steps if self.steps else (), str(drawn.value))

    @staticmethod
    def group(document: Document) -> int:
        """Return the depth of a document's expression."""
        depth = deepest = 0
        for character in (document.segments or ("",))[0]:
            depth += (character == "(") - (character == ")")
            deepest = max(deepest, depth)
        return deepest

    def levels(self) -> Levels:
        depths = Counter(map(self.group, self.documents("test")))
        shares = {depth: count / sum(depths.values()) for depth, count in depths.items()}
        values = distributions(max(depths))
        floor = sum(share * _outermost(values, depth) for depth, share in shares.items())
        majority = np.sum([share * values[depth] for depth, share in shares.items()], axis=0).max()
        return Levels(1.0, floor, float(majority), "accuracy")


class _Drawn(NamedTuple):
    """An expression, the same with the operands of sums and products in order, and its value."""

    text: str
    ordered: str
    value: int


def _expression(rng: random.Random, depth: int, steps: list[str]) -> _Drawn:
    """Return a random expression; its brackets go to `steps`, as they end."""
    if not depth:
        digit = pick(rng, range(MODULUS))
        return _Drawn(str(digit), str(digit), digit)
    depths = [depth - 1, pick(rng, range(depth))]
    if rng.random() < 0.5:
        depths.reverse()
    sign = pick(rng, "+-*")
    left, right = (_expression(rng, part, steps) for part in depths)
    value = _OPERATIONS[sign](left.value, right.value) % MODULUS
    steps.append(f"{left.value} {sign} {right.value} = {value}")
    first, second = (left.ordered, right.ordered) if sign == "-" else sorted([left.ordered, right.ordered])
    return _Drawn(f"( {left.text} {sign} {right.text} )", f"( {first} {sign} {second} )", value)


def _combined(left: np.ndarray, right: np.ndarray, sign: str) -> np.ndarray:
    """Return the distribution of the value of a bracket, from the distributions of its parts; [10]."""
    probabilities = np.zeros(MODULUS)
    for a in range(MODULUS):
        for b in range(MODULUS):
            probabilities[_OPERATIONS[sign](a, b) % MODULUS] += left[a] * right[b]
    return probabilities


def distributions(deepest: int) -> list[np.ndarray]:
    """p(value) of an expression of depth 0 to `deepest`, [10] each."""
    by_depth = [np.full(MODULUS, 1 / MODULUS)]
    for depth in range(1, deepest + 1):
        parts = [pair for other in range(depth) for pair in ((depth - 1, other), (other, depth - 1))]
        brackets = [_combined(by_depth[left], by_depth[right], sign) for left, right in parts for sign in _OPERATIONS]
        by_depth.append(np.mean(brackets, axis=0))
    return by_depth


def _outermost(values: list[np.ndarray], depth: int) -> float:
    """Return the accuracy of the best guess from the outermost bracket, at one depth."""

    def known(part: int) -> list[np.ndarray]:
        return list(np.eye(MODULUS)) if part == 0 else [values[part]]

    shares = []
    for other in range(depth):
        for left, right in ((depth - 1, other), (other, depth - 1)):
            for sign in _OPERATIONS:
                guesses = [_combined(a, b, sign).max() for a in known(left) for b in known(right)]
                shares.append(np.mean(guesses))
    return float(np.mean(shares))
