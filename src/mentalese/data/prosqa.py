"""Questions like ProsQA's (Hao et al., "Training Large Language Models to Reason in a Continuous Latent Space", 2024).

People and made-up concepts are the nodes of a directed graph without cycles, `Every lempus is a gerpus.` its edges;
the question names a person and two concepts, of which only one can be reached. Search answers all questions, but rules
that look at a few edges answer most: "a candidate right below another person is false" is right for 92% of the small
questions and for 60% of the questions of the published size. `builtin:reachability` needs search.

The graphs grow as the published graphs seem to have grown. `GraphSize` is fitted to the published validation and test
sets; generated questions have the same numbers of entities, edges, steps and words, as
`tests/unit/test_reasoning_data.py` shows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from mentalese.data.documents import Document, record
from mentalese.data.stories import words

PROSQA_VERSION = 1
TRAIN, VALIDATION, TEST = 17_886, 300, 500  # questions, as published


# Shares of nodes whose parents descend only from the first person, and only from the second.
_SHARES = (0.35, 0.45)
# A node d steps below only one of the two people is chosen as a parent 1 + 1.5 d times as often as other nodes.
_DEPTH_WEIGHT = 1.5


class GraphSize(NamedTuple):
    """The size of the graph of a question.

    The first two nodes are people. Each later node gets a Poisson number of parents among the first person's
    descendants, the second person's descendants, or all nodes. Nodes without parents become people; nodes without any
    edge are removed.

    Attributes:
        nodes: number of nodes before removal, from 2 * fewest steps + 2 to 40.
        parents: mean number of parents, where there are enough candidates.
        steps: fewest and most steps to the answer.
    """

    nodes: int
    parents: float
    steps: tuple[int, int]


PUBLISHED = GraphSize(nodes=28, parents=1.5, steps=(3, 6))
SMALL = GraphSize(nodes=8, parents=1.4, steps=(2, 3))


@dataclass(frozen=True)
class Question:
    """A question with its ground truth.

    Attributes:
        symbols: each node's word; people are capitalised.
        edges: (node, node): the first is the second. All lead from lower to higher nodes.
        root: the node of the person asked about.
        target: the answer: one of the farthest nodes of those that only root leads to, and that lead nowhere.
        negative_target: the wrong candidate: only the other person leads to it, and it leads nowhere.
        question: every edge as a sentence, in random order, then `Is ROOT a A or B?`, in random order too.
        steps: the edges of one of the shortest paths from root to target, as sentences.
        answer: `ROOT is a TARGET.`
    """

    symbols: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    root: int
    target: int
    negative_target: int
    question: str
    steps: tuple[str, ...]
    answer: str

    def distances(self) -> list[int | None]:
        """Return the steps from root to each node, by breadth-first search; `None` if root does not lead there."""
        distances: list[int | None] = [None] * len(self.symbols)
        distances[self.root], frontier, step = 0, {self.root}, 0
        while frontier:
            step += 1
            frontier = {b for a, b in self.edges if a in frontier and distances[b] is None}
            for node in frontier:
                distances[node] = step
        return distances


@cache
def prosqa() -> tuple[Document, ...]:
    """Return as many questions as the three published splits have together, of their size, split again."""
    return _records(prosqa_questions(TRAIN + VALIDATION + TEST))


@cache
def prosqa_small() -> tuple[Document, ...]:
    """Return questions that a small model learns in minutes: about 7 entities, 2 or 3 steps."""
    return _records(prosqa_questions(20_000, size=SMALL))


def prosqa_questions(count: int, seed: int = 0, size: GraphSize = PUBLISHED) -> list[Question]:
    """Return the questions of `prosqa`, with their ground truth; question i does not depend on `count`."""
    return [_question(random.Random(f"prosqa {PROSQA_VERSION} {seed} {i}"), size) for i in range(count)]


def _records(questions: list[Question]) -> tuple[Document, ...]:
    return tuple(record(question.question, question.steps, question.answer) for question in questions)


def _question(rng: random.Random, size: GraphSize) -> Question:
    names = words("prosqa")["names"]
    while True:  # at the published size 1 graph in 13 has no question
        parents, distances = _graph(rng, size)
        leaves = [node for node in set(range(size.nodes)).difference(*parents) if parents[node]]
        ends = [{node: distances[node][i] for node in leaves if distances[node].keys() == {i}} for i in (0, 1)]
        farthest = max(max(end.values(), default=0) for end in ends)
        nodes = sorted({node for child, above in enumerate(parents) if above for node in (child, *above)})
        people = [node for node in nodes if not parents[node]]
        concepts = [node for node in nodes if parents[node]]
        if all(ends) and size.steps[0] <= farthest <= size.steps[1] and len(people) <= len(names):
            break
    root, target = rng.choice(
        [(person, end) for person in (0, 1) for end in ends[person] if ends[person][end] == farthest]
    )
    negative_target = rng.choice(list(ends[1 - root]))
    path = [target]
    for distance in reversed(range(farthest)):
        path.insert(0, rng.choice([node for node in parents[path[0]] if distances[node].get(root) == distance]))

    word = dict(zip(people, rng.sample(names, len(people)), strict=True))
    word |= dict(zip(concepts, rng.sample(words("prosqa")["concepts"], len(concepts)), strict=True))
    place = {node: i for i, node in enumerate(nodes)}
    edges = [(parent, node) for node in nodes for parent in parents[node]]

    def tell(node: int, concept: int) -> str:
        return f"{word[node] if node in people else f'Every {word[node]}'} is a {word[concept]}."

    a, b = rng.sample((word[target], word[negative_target]), 2)
    facts = [tell(*edge) for edge in rng.sample(edges, len(edges))]
    return Question(
        symbols=tuple(word[node] for node in nodes),
        edges=tuple((place[parent], place[node]) for parent, node in edges),
        root=place[root],
        target=place[target],
        negative_target=place[negative_target],
        question=" ".join([*facts, f"Is {word[root]} a {a} or {b}?"]),
        steps=tuple(tell(*edge) for edge in pairwise(path)),
        answer=tell(root, target),
    )


def _graph(rng: random.Random, size: GraphSize) -> tuple[list[list[int]], list[dict[int, int]]]:
    """Return each node's parents, and its distance from each of the first two people, if that person leads to it."""
    parents: list[list[int]] = [[], []]
    distances: list[dict[int, int]] = [{0: 0}, {1: 0}]
    weights = [1.0, 1.0]
    descendants = ([0], [1])  # of only one of the two people, including that person
    for node in range(2, size.nodes):
        count, branch = _poisson(rng, size.parents), rng.random()
        candidates: Sequence[int] = range(node)
        if branch < sum(_SHARES):
            candidates = descendants[branch >= _SHARES[0]]
        new_parents: set[int] = set()
        cumulative = list(accumulate(weights[candidate] for candidate in candidates))
        while len(new_parents) < min(count, len(candidates)):
            new_parents.update(rng.choices(candidates, cum_weights=cumulative))
        reached = {
            person: 1 + min(steps)
            for person in (0, 1)
            if (steps := [distances[i][person] for i in new_parents if person in distances[i]])
        }
        parents.append(sorted(new_parents))
        distances.append(reached)
        weights.append(1.0)
        if len(reached) == 1:
            [(person, distance)] = reached.items()
            descendants[person].append(node)
            weights[node] += _DEPTH_WEIGHT * distance
    return parents, distances


def _poisson(rng: random.Random, mean: float) -> int:
    count, product = 0, rng.random()
    while product > math.exp(-mean):
        count, product = count + 1, product * rng.random()
    return count
