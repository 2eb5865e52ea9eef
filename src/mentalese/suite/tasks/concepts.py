"""`builtin:concepts`: the mean of a phrase's words tells its concept, and concepts tell the next one.

A concept is a set of k words, written in a random order, so that the mean of its words' embeddings is always the same.
The next concept depends on the `memory` concepts before it. Concepts share words, and neighbouring words tell little of
either (docs/tasks.md). Levels are computed as for `phrases`.

    ceiling  the largest R^2 of a prediction of the next phrase's mean word embedding
    oracle   the score of the floor's reader if it also has the exact prediction of the next concept
"""

from __future__ import annotations

from functools import cached_property
from itertools import permutations
from math import comb, factorial
from typing import Annotated

import numpy as np
from pydantic import Field

from mentalese.suite.tasks.base import Words, uniforms
from mentalese.suite.tasks.phrases import Phrases, peaked
from mentalese.values import checked_dataclass


@checked_dataclass("")
class Concepts(Phrases):
    """Options of `builtin:concepts`: the options of `phrases` with other values, and two more.

    Attributes:
        phrases: orders in which the words of a concept are written, at most the factorial of `tokens`.
        memory: concepts that the next one depends on.
        spread: how uneven the chain is: weights are exponential variates to this power.
    """

    concepts: Annotated[int, Field(ge=2, le=32)] = 24
    phrases: Annotated[int, Field(ge=1, le=120)] = 24
    tokens: Annotated[int, Field(ge=2, le=5)] = 4
    words: Annotated[int, Field(ge=2, le=100)] = 12
    length: Words = 16
    lead: Annotated[int, Field(ge=0, le=100)] = 3
    memory: Annotated[int, Field(ge=1, le=2)] = 2
    spread: Annotated[int, Field(ge=1, le=16)] = 8

    name = "concepts"
    version = 1
    description = "20,000 documents of 16 phrases, each a concept of 4 words in any order; options set sizes"

    def __post_init__(self) -> None:
        enough = comb(self.words, self.tokens) >= 2 * self.concepts
        self.check("words", enough, f"set more: {self.concepts} sets of words have to differ")
        orders = factorial(self.tokens)
        self.check("phrases", self.phrases <= orders, f"set at most {orders}, the orders of {self.tokens} words")
        super().__post_init__()

    @property
    def written(self) -> np.ndarray:
        """The concept of each state, which is the last one of the `memory` concepts that a state consists of."""
        return np.arange(self.concepts**self.memory) % self.concepts

    @cached_property
    def chain(self) -> np.ndarray:
        states = len(self.written)
        state = np.arange(states)[:, None]
        chain = np.zeros((states, states))
        key = self.key("chain", self.concepts, self.memory, self.spread)
        chain[state, (state * self.concepts + np.arange(self.concepts)) % states] = peaked(
            key, states, self.concepts, self.spread
        )
        return chain

    @cached_property
    def table(self) -> np.ndarray:
        """The words of each phrase, int64 [concepts, phrases, tokens]; concepts differ as sets of words."""
        key = self.key("phrases", self.words, self.tokens)
        sets: dict[tuple[int, ...], None] = {}
        block = 0
        while len(sets) < self.concepts:
            drawn = uniforms(f"{key} {block}", self.concepts, self.words).argsort(1)[:, : self.tokens]
            sets |= dict.fromkeys(map(tuple, np.sort(drawn).tolist()))
            block += 1
        words = np.array(list(sets)[: self.concepts])
        orders = np.array(list(permutations(range(self.tokens))))
        chosen = uniforms(f"{key} orders", self.concepts, len(orders)).argsort(1)[:, : self.phrases]
        return np.take_along_axis(words[:, None], orders[chosen], axis=2)
