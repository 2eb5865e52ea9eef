"""`topics` and `phrases`: likelihoods against enumeration of everything hidden, and against independent samples."""

from __future__ import annotations

import math
import random
from itertools import pairwise, product

import numpy as np
import pytest

from mentalese.suite.tasks.base import MarkovText
from mentalese.suite.tasks.phrases import Phrases
from mentalese.suite.tasks.topics import Topics

TINY: dict[str, MarkovText] = {
    "bigram": Topics(topics=3, symbols=3, length=5),
    "unigram": Topics(topics=2, symbols=3, length=5, table="unigram"),
    "phrases": Phrases(concepts=2, phrases=2, tokens=2, words=3, length=3),
    "shared beginnings": Phrases(concepts=3, phrases=2, tokens=2, words=4, length=2),
}


def joint(task: MarkovText, ids: tuple[int, ...]) -> float:
    """p(document), by its definition: a sum over all that is hidden."""
    if isinstance(task, Topics):
        total = 0.0
        for table in task.tables:
            first = table[0, ids[0]] if task.table == "unigram" else 1 / task.symbols
            total += first * math.prod(table[a, b] for a, b in pairwise(ids)) / task.topics
        return total
    assert isinstance(task, Phrases)
    total = 0.0
    for concepts in product(range(task.concepts), repeat=task.length):
        probability = math.prod(task.chain[a, b] for a, b in pairwise(concepts)) / task.concepts
        for i, concept in enumerate(concepts):
            words = ids[i * task.tokens : (i + 1) * task.tokens]
            probability *= sum(tuple(phrase) == words for phrase in task.table[concept].tolist()) / task.phrases
        total += probability
    return total


@pytest.mark.parametrize("name", TINY)
def test_likelihoods_equal_enumeration(name: str) -> None:
    task = TINY[name]
    length = task.ids("test").shape[1]
    every = {ids: joint(task, ids) for ids in product(range(len(task.vocabulary)), repeat=length)}
    assert sum(every.values()) == pytest.approx(1)
    possible = np.array([ids for ids, probability in every.items() if probability > 0])
    for start in range(length):
        for stop in range(start, length + 1):
            seen: dict[tuple[int, ...], float] = {}
            for ids, probability in every.items():
                seen[ids[start:stop]] = seen.get(ids[start:stop], 0.0) + probability
            expected = [seen[tuple(ids[start:stop])] for ids in possible.tolist()]
            np.testing.assert_allclose(np.exp(task.log_marginal(possible, start, stop)), expected, rtol=1e-10)


@pytest.mark.parametrize("name", TINY)
def test_levels_are_the_expected_nats_of_the_test_documents(name: str) -> None:
    """The exact expectation over all documents, which 1,000 test documents estimate."""
    task = TINY[name]
    length, levels = task.ids("test").shape[1], task.levels()
    every = {ids: joint(task, ids) for ids in product(range(len(task.vocabulary)), repeat=length)}
    possible = np.array([ids for ids, probability in every.items() if probability > 0])
    weights = np.array([every[tuple(ids)] for ids in possible.tolist()])
    for level, visible in ((levels.optimum, length), (levels.floor, task.visible)):
        nats = task.nats(possible, visible).mean(1)
        mean = float(weights @ nats)
        error = math.sqrt(float(weights @ (nats - mean) ** 2) / 1000)
        assert abs(level - mean) < 4 * error
    entropy = -float(weights @ np.log(weights)) / length
    assert float(weights @ task.nats(possible, length).mean(1)) == pytest.approx(entropy)


def test_the_floor_with_everything_visible_is_the_optimum() -> None:
    for task in (Topics(length=16, window=16), Phrases(length=4, order=16)):
        levels = task.levels()
        assert levels.floor == pytest.approx(levels.optimum)


def test_a_wider_window_is_a_lower_floor() -> None:
    for floors in (
        [Topics(length=16, window=window).levels().floor for window in (1, 2, 4, 8)],
        [Phrases(length=4, order=order).levels().floor for order in (1, 2, 3, 4, 5)],
    ):
        assert floors == sorted(floors, reverse=True)
        assert floors[0] > floors[-1] + 0.1


def test_counted_bigram_reaches_exactly_the_floor() -> None:
    task = Topics(length=32)
    ids, test, words = task.ids("train"), task.ids("test"), task.symbols
    counts = np.ones((words, words))
    np.add.at(counts, (ids[:, :-1], ids[:, 1:]), 1)
    table = np.log(counts / counts.sum(1, keepdims=True))
    nats = -float(table[test[:, :-1], test[:, 1:]].mean())
    floor = float(task.nats(test, 1)[:, 1:].mean())
    assert floor - 0.002 < nats < floor + 0.01


def test_documents_of_another_sampler_cost_as_much() -> None:
    rng = random.Random(0)

    def walk(table: np.ndarray, first: int, length: int) -> list[int]:
        found = [first]
        while len(found) < length:
            found += rng.choices(range(len(table)), table[found[-1]].tolist())
        return found

    topics, phrases = Topics(length=16), Phrases(length=4)
    drawn: list[tuple[MarkovText, list[list[int]]]] = [(topics, []), (phrases, [])]
    for _ in range(2000):
        drawn[0][1].append(walk(topics.tables[rng.randrange(8)], rng.randrange(32), 16))
        concepts = walk(phrases.chain, rng.randrange(16), 4)
        drawn[1][1].append([word for c in concepts for word in phrases.table[c, rng.randrange(16)].tolist()])
    for task, documents in drawn:
        nats = -task.log_marginal(np.array(documents), 0, 16) / 16
        assert abs(task.levels().optimum - nats.mean()) < 4 * nats.std() * math.sqrt(1 / 1000 + 1 / 2000)


def test_documents_are_cut_into_sentences_of_one_length() -> None:
    for task, words in ((Topics(), 8), (Phrases(), 16)):
        document = next(task.documents("test"))
        assert document.segments is not None
        assert {len(sentence.split()) for sentence in document.segments} == {words}


def test_leading_words_cost_nothing_and_let_phrases_fill_chunks() -> None:
    plain, led = Phrases(count=20), Phrases(count=20, lead=3)
    texts = [next(task.documents("test")).text for task in (plain, led)]
    assert texts[1] == " um um um" + texts[0]
    words = plain.length * plain.tokens
    for name in ("optimum", "floor"):
        nats = [getattr(task.levels(), name) * count for task, count in ((plain, words), (led, words + 3))]
        assert nats[0] == pytest.approx(nats[1])
