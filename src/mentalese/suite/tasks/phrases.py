"""`builtin:phrases`, `builtin:concepts`: to predict well is to predict concepts, each written in one of several ways.

A Markov chain walks through hidden concepts. Each concept is written as one of several phrases of k words, drawn at
random; all phrases differ, though their words occur in many (docs/tasks.md). The optimum is the exact forward algorithm
over concepts and phrases, -log p(x_1 .. x_L) / L; the floor is the exact n-gram of order `order`.

In `builtin:concepts` a concept is a set of k words, written in a random order, so that the mean of its words'
embeddings is always the same. The next concept depends on the `memory` concepts before it. Concepts share words, and
neighbouring words tell little of either.

The chain and the phrases depend only on `seed`, `concepts`, `phrases`, `tokens` and `words`: longer documents are
written in the same language.
"""

from __future__ import annotations

from functools import cached_property
from itertools import permutations
from math import comb, factorial
from typing import Annotated

import numpy as np
from pydantic import Field

from mentalese.suite.tasks.base import MarkovText, Words, draw, peaked, syllables, uniforms
from mentalese.values import Positive, checked_dataclass

SPREAD = 4  # weights of the chain are exponential variates to this power


@checked_dataclass("")
class Phrases(MarkovText):
    """Options of `builtin:phrases`.

    Attributes:
        concepts: hidden concepts.
        phrases: phrases per concept.
        tokens: words per phrase (k), each of them a token.
        words: different words, at most 100.
        length: phrases per document.
        order: order of the n-gram that is the floor.
        lead: words before the first phrase, always the same. A model reads one token before a document, so with 3 of
            them phrases of 4 words fill chunks of 4 tokens.
    """

    concepts: Annotated[int, Field(ge=2, le=1000)] = 16
    phrases: Annotated[int, Field(ge=1, le=1000)] = 16
    tokens: Annotated[int, Field(ge=1, le=16)] = 4
    words: Annotated[int, Field(ge=2, le=100)] = 16
    length: Words = 16
    order: Positive = 3
    lead: Annotated[int, Field(ge=0, le=100)] = 0

    name = "phrases"
    version = 1
    description = "20,000 documents of 16 phrases, each phrase one of 16 ways to write a concept; options set sizes"

    def __post_init__(self) -> None:
        enough = self.words**self.tokens >= 2 * self.concepts * self.phrases
        self.check("words", enough, f"set more: {self.concepts * self.phrases} phrases have to differ")
        most = self.length * self.tokens
        self.check("order", self.order <= most, f"set at most {most}, the words of a document")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return syllables(self.words)

    @property
    def leading(self) -> tuple[str, ...]:
        return ("um",) * self.lead

    @property
    def visible(self) -> int:
        return self.order - 1

    @property
    def sentence(self) -> int:
        return 4 * self.tokens

    @property
    def written(self) -> np.ndarray:
        """The concept that each state of the chain writes, int64 [states]; here the states are the concepts."""
        return np.arange(self.concepts)

    @cached_property
    def chain(self) -> np.ndarray:
        """p(next state | state), [states, states]."""
        return peaked(self.key("chain", self.concepts), SPREAD, self.concepts, self.concepts)

    @cached_property
    def table(self) -> np.ndarray:
        """The words of each phrase, int64 [concepts, phrases, tokens]; all phrases differ."""
        count = self.concepts * self.phrases
        key = self.key("phrases", self.words, self.tokens)
        phrases: dict[tuple[int, ...], None] = {}
        block = 0
        while len(phrases) < count:
            words = (uniforms(f"{key} {block}", count, self.tokens) * self.words).astype(np.int64)
            phrases |= dict.fromkeys(map(tuple, words.tolist()))
            block += 1
        return np.array(list(phrases)[:count]).reshape(self.concepts, self.phrases, self.tokens)

    @cached_property
    def marginals(self) -> np.ndarray:
        """p(state), nothing else known, [length, states]; documents begin with one of the first `concepts` states."""
        distributions = [np.repeat((1 / self.concepts, 0.0), (self.concepts, len(self.written) - self.concepts))]
        for _ in range(self.length - 1):
            distributions.append(distributions[-1] @ self.chain)
        return np.stack(distributions)

    @property
    def ceiling(self) -> float:
        """The largest R^2 of a prediction of the next phrase's mean word embedding, all words before it known.

        Exact for random independent embeddings, whose mean varies as the counts of the words do, and for phrases that
        tell their concept. The first phrase of a document cannot be predicted.
        """
        counts = (self.table[..., None] == np.arange(self.words)).sum(2)  # [concepts, phrases, words]
        square = (counts**2).sum(-1).mean(1)[self.written]
        mean = counts.mean(1)[self.written]  # [states, words]
        expected = self.chain @ mean
        explained = ((self.marginals[0] @ mean) ** 2).sum() + (self.marginals[:-1] @ (expected**2).sum(1)).sum()
        total = (self.marginals @ square).sum()
        constant = self.length * ((self.marginals @ mean).mean(0) ** 2).sum()
        return float((explained - constant) / (total - constant))

    def oracle(self) -> float:
        """Return the score of the floor's reader if it also has the exact prediction of each phrase.

        Its words before the phrase tell nothing more; of the phrase it sees what the floor sees.
        """
        ids = self.ids("test")
        length = ids.shape[1]
        states = np.broadcast_to(self.marginals[0], (len(ids), self.chain.shape[0]))
        total = 0.0
        for place in range(0, length, self.tokens):
            for last in range(place, place + self.tokens):
                start = max(place, last - self.visible)
                seen, known = self._read(ids, start, last, states)[0], self._read(ids, start, last + 1, states)[0]
                total += float((seen - known).mean())
            states = self._read(ids, place, place + self.tokens, states)[1] @ self.chain
        return total / (length + self.lead)

    def sample(self, key: str, documents: int) -> np.ndarray:
        chance = uniforms(key, 2, self.length, documents)
        state = (chance[0, 0] * self.concepts).astype(np.int64)
        words = []
        for place in range(self.length):
            if place:
                state = draw(self.chain[state], chance[0, place])
            words.append(self.table[self.written[state], (chance[1, place] * self.phrases).astype(np.int64)])
        return np.concatenate(words, axis=1)

    def log_marginal(self, ids: np.ndarray, start: int, stop: int) -> np.ndarray:
        first = self.marginals[min(start // self.tokens, self.length - 1)]
        return self._read(ids, start, stop, np.broadcast_to(first, (len(ids), len(first))))[0]

    def _read(self, ids: np.ndarray, start: int, stop: int, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log p(x_start .. x_{stop-1}) and p(state) of the phrase of the last word, given these words.

        Args:
            states: p(state) of the phrase of the first word, [documents, states].
        """
        total = np.zeros(len(ids))
        place = start
        while place < stop:
            states = states if place == start else states @ self.chain
            offset = place % self.tokens
            end = min(stop, place - offset + self.tokens)
            visible = self.table[:, :, offset : offset + end - place]
            # p(words | concept), [documents, concepts]
            fits = (ids[:, None, None, place:end] == visible).all(-1).mean(-1)
            joint = states * fits[:, self.written]
            likelihood = joint.sum(1, keepdims=True)
            total += np.log(likelihood[:, 0])
            states = joint / likelihood
            place = end
        return total, states


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
            key, self.spread, states, self.concepts
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
