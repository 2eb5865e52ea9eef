"""Tasks of text that are Markov chains: likelihoods against enumeration of everything hidden, and other samples."""

from __future__ import annotations

import math
import random
from itertools import pairwise, product

import numpy as np
import pytest

from mentalese.suite.tasks.base import MarkovText
from mentalese.suite.tasks.phrases import Concepts, Phrases
from mentalese.suite.tasks.topics import Topics

TINY: dict[str, MarkovText] = {
    "bigram": Topics(topics=3, symbols=3, length=5),
    "unigram": Topics(topics=2, symbols=3, length=5, table="unigram"),
    "phrases": Phrases(concepts=2, phrases=2, tokens=2, words=3, length=3),
    "shared beginnings": Phrases(concepts=3, phrases=2, tokens=2, words=4, length=2),
    "concepts": Concepts(concepts=2, phrases=2, tokens=2, words=4, length=3, lead=0),
    "some orders": Concepts(concepts=3, phrases=1, tokens=2, words=4, length=3, lead=0, memory=1),
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
    for states in product(range(len(task.chain)), repeat=task.length):
        probability = (states[0] < task.concepts) / task.concepts
        probability *= math.prod(task.chain[a, b] for a, b in pairwise(states))
        for i, state in enumerate(states if probability else ()):
            words = ids[i * task.tokens : (i + 1) * task.tokens]
            phrases = task.table[task.written[state]].tolist()
            probability *= sum(tuple(phrase) == words for phrase in phrases) / task.phrases
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


@pytest.mark.parametrize("name", ["phrases", "concepts", "some orders"])
def test_ceiling_is_the_share_of_variance_that_prefixes_explain(name: str) -> None:
    """By enumeration: mean one-hot words of each phrase, and their expectation given all words before."""
    task = TINY[name]
    assert isinstance(task, Phrases)
    every = {ids: joint(task, ids) for ids in product(range(task.words), repeat=task.length * task.tokens)}
    possible = [(ids, probability) for ids, probability in every.items() if probability > 0]
    weights = np.array([probability for _, probability in possible])
    targets = np.eye(task.words)[[ids for ids, _ in possible]]
    targets = targets.reshape(len(weights), task.length, task.tokens, task.words).mean(2)
    error = 0.0
    for place in range(task.length):
        prefixes = [ids[: place * task.tokens] for ids, _ in possible]
        for prefix in set(prefixes):
            same = np.array([prefix == other for other in prefixes])
            expected = weights[same] @ targets[same, place] / weights[same].sum()
            error += float(weights[same] @ ((targets[same, place] - expected) ** 2).sum(1))
    total = float(weights @ ((targets - np.tensordot(weights, targets, 1).mean(0)) ** 2).sum((1, 2)))
    assert task.ceiling == pytest.approx(1 - error / total)


@pytest.mark.slow
def test_ceiling_is_the_r2_of_counted_means_on_random_embeddings() -> None:
    """The mean of the training phrases after the same two predicts the next one, in the default task."""
    task = Concepts()
    embeddings = np.random.default_rng(0).normal(size=(task.words, 256))
    sets = np.sort(task.table[:, 0], axis=1).tolist()

    def phrases(key: str) -> tuple[np.ndarray, np.ndarray]:
        ids = task.sample(key, 4000).reshape(-1, task.length, task.tokens)
        concepts = np.array([[sets.index(phrase) for phrase in row] for row in np.sort(ids, axis=2).tolist()])
        before = np.pad(concepts, ((0, 0), (1, 0)))[:, :-1]
        return before[:, :-1] * task.concepts + concepts[:, :-1], embeddings[ids].mean(2)

    (pairs, trained), (test_pairs, targets) = phrases("train"), phrases("test")
    after = np.zeros((task.concepts**2, 256))
    np.add.at(after, pairs, trained[:, 1:])
    after /= np.maximum(np.bincount(pairs.ravel(), minlength=len(after)), 1)[:, None]
    error = ((targets[:, 1:] - after[test_pairs]) ** 2).sum() + ((targets[:, 0] - trained[:, 0].mean(0)) ** 2).sum()
    assert 1 - error / ((targets - targets.mean((0, 1))) ** 2).sum() == pytest.approx(task.ceiling, abs=0.02)


@pytest.mark.slow
def test_oracle_reads_exact_predictions_and_the_words_of_the_phrase() -> None:
    """With a whole phrase visible nothing is missing; with one word the same follows from enumeration."""
    whole = Concepts(length=4, order=4)
    assert whole.oracle() == pytest.approx(whole.levels().optimum)
    task = Concepts(concepts=2, phrases=2, tokens=2, words=4, length=3, lead=0, order=1)
    every = {ids: joint(task, ids) for ids in product(range(task.words), repeat=6)}
    nats = []
    for ids in task.ids("test").tolist():
        for place, word in enumerate(ids):
            known, offset = tuple(ids[: place - place % 2]), place % 2
            prefix = [(other, p) for other, p in every.items() if p and other[: len(known)] == known]
            same = sum(p for other, p in prefix if other[len(known) + offset] == word)
            nats.append(-math.log(same / sum(p for _, p in prefix)))
    assert task.oracle() == pytest.approx(np.mean(nats))


@pytest.mark.slow
def test_concepts_reward_prediction() -> None:
    task = Concepts()
    assert task.levels().closed(task.oracle()) > 1 / 3
    assert all(Concepts(seed=seed).ceiling > 0.4 for seed in range(10))
    assert Phrases(concepts=8, phrases=8).ceiling < 0.05


def test_orders_of_a_concept_are_of_one_set_of_words() -> None:
    for task in (Concepts(), Concepts(phrases=5, concepts=12, words=8)):
        sets = np.sort(task.table, axis=2)
        assert (sets == sets[:, :1]).all()
        assert len({tuple(words) for words in sets[:, 0].tolist()}) == task.concepts
        for orders in task.table.tolist():
            assert len({tuple(words) for words in orders}) == task.phrases


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

    topics, phrases, pairs = Topics(length=16), Phrases(length=4), Concepts(length=4, lead=0)
    drawn: list[tuple[MarkovText, list[list[int]]]] = [(topics, []), (phrases, []), (pairs, [])]
    for _ in range(2000):
        drawn[0][1].append(walk(topics.tables[rng.randrange(8)], rng.randrange(32), 16))
        concepts = walk(phrases.chain, rng.randrange(16), 4)
        drawn[1][1].append([word for c in concepts for word in phrases.table[c, rng.randrange(16)].tolist()])
        states = walk(pairs.chain, rng.randrange(24), 4)
        drawn[2][1].append([word for s in states for word in rng.sample(pairs.table[s % 24, 0].tolist(), 4)])
    for task, documents in drawn:
        nats = -task.log_marginal(np.array(documents), 0, 16) / 16
        assert abs(task.levels().optimum - nats.mean()) < 4 * nats.std() * math.sqrt(1 / 1000 + 1 / 2000)


def test_documents_are_cut_into_sentences_of_one_length() -> None:
    for task, words in ((Topics(), 8), (Phrases(), 16)):
        document = next(task.documents("test"))
        assert document.segments is not None
        assert {len(sentence.split()) for sentence in document.segments} == {words}


@pytest.mark.slow
def test_leading_words_cost_nothing_and_let_phrases_fill_chunks() -> None:
    plain, led = Phrases(count=20), Phrases(count=20, lead=3)
    texts = [next(task.documents("test")).text for task in (plain, led)]
    assert texts[1] == " um um um" + texts[0]
    words = plain.length * plain.tokens
    for name in ("optimum", "floor"):
        nats = [getattr(task.levels(), name) * count for task, count in ((plain, words), (led, words + 3))]
        assert nats[0] == pytest.approx(nats[1])
