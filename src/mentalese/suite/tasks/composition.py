"""`builtin:composition`: the product of permutations, one after the other (docs/tasks.md).

A question is a sequence of permutations of n things, each written as what it makes of `abc` (or `abcde`), all equally
likely. The answer is what they make of it together: in `cab`, the third thing comes first. The steps are the running
product. Products in S5 are beyond any constant depth at all lengths (Barrington's theorem; Merrill, Petty and
Sabharwal, "The Illusion of State in State-Space Models", 2024), products in S3 are not.

The floor is what counting finds, the sign of the product: 2 / n!, as both signs are equally likely and so is every
product of a sign. L layers can do more on short sequences: report results by length (`group`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import cached_property, reduce
from itertools import accumulate, permutations
from typing import Annotated

from pydantic import Field

from mentalese.data.documents import Document, record
from mentalese.suite.tasks.base import DrawnTask, Flag, Levels, Range, pick
from mentalese.values import checked_dataclass

_ENOUGH = 200  # sequences of the smallest length, so that each split has some


@checked_dataclass("")
class Composition(DrawnTask):
    """Options of `builtin:composition`.

    Attributes:
        things: number of permuted things, 3 or 5.
        length: fewest and most permutations, drawn with equal chance.
        steps: 1 writes the running product after each permutation, 0 only the answer.
    """

    things: int = 3
    length: Range[Annotated[int, Field(le=1000)]] = (3, 8)
    steps: Flag = 1

    name = "composition"
    version = 1
    kind = "records"
    description = "20,000 products of 3 to 8 permutations of 3 things (or 5), with the running product"

    def __post_init__(self) -> None:
        self.check("things", self.things in (3, 5), "set 3 or 5")
        least = math.ceil(math.log(_ENOUGH) / math.log(math.factorial(self.things)))
        self.check("length", self.length[0] >= least, f"set {least} or more")

    @cached_property
    def group_table(self) -> dict[str, dict[str, str]]:
        """Products of each two permutations: the second applied to the result of the first."""
        elements = ["".join(word) for word in permutations("abcde"[: self.things])]
        places = {word: ["abcde".index(letter) for letter in word] for word in elements}
        return {a: {b: "".join(a[i] for i in places[b]) for b in elements} for a in elements}

    def product(self, moves: Sequence[str]) -> str:
        """Return what permutations make of the things, one after the other."""
        return reduce(lambda done, move: self.group_table[done][move], moves)

    def document(self, split: str, rng: random.Random) -> Document:
        elements, low, high = list(self.group_table), *self.length
        length = pick(rng, range(low, high + 1))
        while True:
            moves = [pick(rng, elements) for _ in range(length)]
            if self.owner(" ".join(moves)) == split:
                break
        products = list(accumulate(moves, lambda a, b: self.group_table[a][b]))
        return record(f"{' '.join(moves)} =", products if self.steps else (), products[-1])

    def levels(self) -> Levels:
        products = math.factorial(self.things)
        return Levels(1.0, 2 / products, 1 / products, "accuracy")
