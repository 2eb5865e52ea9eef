"""`builtin:topics`: the topic of a document must be inferred from all previous symbols (docs/tasks.md).

Each of K hidden tables is a distribution over symbols (`table=unigram`), or one for each symbol before (`bigram`, a
Markov chain whose first symbol is uniform). A document takes a table at random and draws all its symbols from it.
The optimum is the exact posterior predictive: -log p(x_1 .. x_L) / L, p(x) = 1/K sum_k prod_t p_k(x_t | x_{t-1}).

The tables depend only on `seed`, `topics`, `symbols`, `table` and `spread`, so longer documents have the same topics.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from mentalese.suite.tasks.base import MarkovText, Words, draw, peaked, syllables, uniforms
from mentalese.values import Positive, checked_dataclass


@checked_dataclass("")
class Topics(MarkovText):
    """Options of `builtin:topics`.

    Attributes:
        topics: hidden tables.
        symbols: words, at most 100.
        length: symbols per document.
        table: `unigram` or `bigram`.
        spread: how uneven tables are: weights are exponential variates to this power.
        window: symbols that the floor sees.
    """

    topics: Annotated[int, Field(ge=2, le=1000)] = 8
    symbols: Annotated[int, Field(ge=2, le=100)] = 32
    length: Annotated[Words, Field(ge=2)] = 64
    table: Literal["unigram", "bigram"] = "bigram"
    spread: Annotated[int, Field(ge=1, le=8)] = 2
    window: Positive = 1

    name = "topics"
    version = 1
    description = "20,000 documents, each drawn from one of 8 hidden tables; options set sizes"

    def __post_init__(self) -> None:
        self.check("window", self.window <= self.length, f"set at most {self.length}, the length")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return syllables(self.symbols)

    @property
    def visible(self) -> int:
        return self.window

    @property
    def sentence(self) -> int:
        return 8

    @cached_property
    def tables(self) -> np.ndarray:
        """p_k(x_t | x_{t-1}), [topics, symbols before, symbols]; the same for each symbol before if unigram."""
        size = (self.topics, 1 if self.table == "unigram" else self.symbols, self.symbols)
        tables = peaked(self.key("tables", self.spread, *size), self.spread, *size)
        return np.broadcast_to(tables, (self.topics, self.symbols, self.symbols))

    @cached_property
    def marginals(self) -> np.ndarray:
        """p_k(x_t), nothing else known, [length, topics, symbols]."""
        first = self.tables[:, 0] if self.table == "unigram" else np.full((self.topics, self.symbols), 1 / self.symbols)
        distributions = [first]
        for _ in range(self.length - 1):
            distributions.append(np.einsum("ks,ksn->kn", distributions[-1], self.tables))
        return np.stack(distributions)

    def sample(self, key: str, documents: int) -> np.ndarray:
        chance = uniforms(key, documents, self.length + 1)
        topic = (chance[:, -1] * self.topics).astype(np.int64)
        ids = np.empty((documents, self.length), dtype=np.int64)
        ids[:, 0] = draw(self.marginals[0, topic], chance[:, 0])
        for place in range(1, self.length):
            ids[:, place] = draw(self.tables[topic, ids[:, place - 1]], chance[:, place])
        return ids

    def log_marginal(self, ids: np.ndarray, start: int, stop: int) -> np.ndarray:
        if start == stop:
            return np.zeros(len(ids))
        each = np.log(self.marginals[start][:, ids[:, start]])  # [topics, documents]
        each = each + np.log(self.tables[:, ids[:, start : stop - 1], ids[:, start + 1 : stop]]).sum(-1)
        return np.logaddexp.reduce(each, axis=0) - np.log(self.topics)
