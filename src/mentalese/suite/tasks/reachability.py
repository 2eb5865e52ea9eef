"""`builtin:reachability`: questions like ProsQA's that a look at the neighbourhood does not answer (docs/tasks.md).

A directed graph without cycles, a person (root), and two candidates, of which only one can be reached from the root, in
h steps; the other one is reached from another person, in as many. The graph is its own mirror image, so nothing but a
chain of facts from the root to the candidate tells them apart.

Graphs grow from the two paths. Other nodes get about `PARENTS` parents among nodes of one side, or of all, and so do
their mirror images; some are their own, and at least one of these lies below both people. Nodes of the paths get
further parents at the same distance, or such as neither of the two reaches. The candidates lead nowhere.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from itertools import combinations, pairwise
from typing import Annotated, Literal

from pydantic import Field

from mentalese.data.documents import Document, record
from mentalese.data.generated import Question, poisson, words
from mentalese.suite.tasks.base import DrawnTask, Levels, Range, pick
from mentalese.values import checked_dataclass

Facts = Literal["sentences", "pairs", "words"]
PARENTS = 1.4  # mean of a Poisson number, for nodes that are on no path
_ALONE, _ONE_SIDE = 0.1, 0.7  # cumulative shares of nodes that are their own mirror image, and are below only one side
_FURTHER = 0.3  # chance of a further parent, for each step of the paths


def _words(form: Facts) -> tuple[list[str], list[str]]:
    """Return people and concepts: letters, or the words of ProsQA, whose questions a model trained here can answer."""
    if form == "words":
        return list("ABCDEF"), list("abcdefghijklmnop")
    return words("prosqa")["names"], words("prosqa")["concepts"]


@checked_dataclass("")
class Reachability(DrawnTask):
    """Options of `builtin:reachability`.

    Attributes:
        hops: fewest and most steps to the answer, drawn with equal chance.
        nodes: nodes of a graph, before nodes without an edge are removed; at most 40, or 18 if a fact is one word.
        steps: `path` writes the edges of one of the shortest paths, `frontier` all edges at each distance.
        facts: `sentences` as ProsQA's, `pairs` of words, half as many tokens: `> lempus gerpus`, or `words` of two
            letters, a token each: `ab`. The answer is then only the candidate.
    """

    hops: Range[Annotated[int, Field(ge=3)]] = (3, 4)
    nodes: int = 14
    steps: Literal["path", "frontier"] = "path"
    facts: Facts = "sentences"

    name = "reachability"
    version = 1
    kind = "records"
    description = "20,000 questions like ProsQA's, 3 or 4 steps, which only search answers"

    def __post_init__(self) -> None:
        most = 2 + len(_words(self.facts)[1])
        self.check("hops", self.hops[1] <= (most - 5) // 2, f"set at most {(most - 5) // 2}")
        least = 2 * self.hops[1] + 5
        self.check("nodes", least <= self.nodes <= most, f"set {least} (for {self.hops[1]} hops) to {most}")

    @cached_property
    def pairs(self) -> dict[str, list[tuple[str, str]]]:
        """Pairs of candidates in the questions of each split."""
        by_split: dict[str, list[tuple[str, str]]] = {}
        for pair in combinations(_words(self.facts)[1], 2):
            by_split.setdefault(self.owner(" ".join(pair)), []).append(pair)
        return by_split

    def questions(self, split: str) -> Iterator[Question]:
        """Yield the questions of a split with their graphs, without an end."""
        return map(partial(self._question, split), self.generators(split))

    def document(self, split: str, rng: random.Random) -> Document:
        question = self._question(split, rng)
        return record(question.question, question.steps, question.answer)

    def _question(self, split: str, rng: random.Random) -> Question:
        low, high = self.hops
        hops = pick(rng, range(low, high + 1))
        question = _question(rng, hops, self.nodes, pick(rng, self.pairs[split]), self.facts)
        if self.steps == "frontier":
            question = dataclasses.replace(question, steps=_frontiers(rng, question, self.facts))
        return question

    def names(self, question: Question, node: int) -> list[str]:
        """Return the words that a node is known by: its own, or where a fact is one word, the facts into it."""
        symbols = question.symbols
        if self.facts != "words":
            return [symbols[node]]
        return [_fact(symbols[a], symbols[b], self.facts) for a, b in question.edges if b == node]

    def levels(self) -> Levels:
        return Levels(1.0, 0.5, 0.5, "accuracy")


class _Graph:
    """A graph that is its own mirror image: two people, a path of `hops` steps below each, and other nodes.

    Attributes:
        mirror: for each node, the node that it becomes when the two sides change places.
        parents: parents of each node; node 2 * i + s is step i of the path of person s.
        level: level of each node, above the levels of its parents, so that there are no cycles.
        reached: for each node the people who reach it: bit 0 the first, bit 1 the second.
        distance: distance from the person whose side a node is on, if only one reaches it.
    """

    def __init__(self, rng: random.Random, hops: int, nodes: int) -> None:
        self.rng, self.hops = rng, hops
        path = range(2 * hops + 2)
        self.mirror = [i ^ 1 for i in path]
        self.parents = [[i - 2] if i >= 2 else [] for i in path]
        self.level = [i // 2 for i in path]
        self.distance = list(self.level)
        self.reached = [1 + i % 2 for i in path]
        self._add_alone(self._inner(one_side=True), least=1)  # the two sides hang together
        while len(self.parents) < nodes:
            kind = rng.random()
            if kind < _ALONE or len(self.parents) == nodes - 1:
                self._add_alone(self._inner())
            else:
                self._add_pair(self._inner(one_side=kind < _ONE_SIDE))
        self._add_parents()

    def _draw(self, choices: list[int], mean: float, least: int = 0) -> list[int]:
        """Return a Poisson number of different nodes."""
        number, nodes = min(max(poisson(self.rng, mean), least), len(choices)), list[int]()
        while len(nodes) < number:
            node = pick(self.rng, choices)
            if node not in nodes:
                nodes.append(node)
        return nodes

    def _add(self, parents: list[int], mirror: int) -> None:
        """Add a node; without parents it is another person, who reaches a candidate only by `_add_parents`."""
        reached = 0
        for node in parents:
            reached |= self.reached[node]
        self.mirror.append(mirror)
        self.parents.append(parents)
        self.level.append(1 + max((self.level[node] for node in parents), default=-1))
        self.reached.append(reached)
        self.distance.append(1 + min((self.distance[node] for node in parents if self.reached[node]), default=-1))

    def _inner(self, *, one_side: bool = False) -> list[int]:
        """Return all nodes but the candidates, which lead nowhere; or only nodes that only the first person reaches."""
        every = (node for node in range(len(self.parents)) if node // 2 != self.hops)
        return [node for node in every if self.reached[node] == 1] if one_side else list(every)

    def _add_alone(self, choices: list[int], least: int = 0) -> None:
        """Add a node that is its own mirror image."""
        nodes = self._draw(choices, PARENTS / 2, least)
        self._add(
            list(dict.fromkeys(node for parent in nodes for node in (parent, self.mirror[parent]))), len(self.parents)
        )

    def _add_pair(self, choices: list[int]) -> None:
        """Add a node and its mirror image."""
        parents, first = self._draw(choices, PARENTS), len(self.parents)
        self._add(parents, first + 1)
        self._add([self.mirror[node] for node in parents], first)

    def _add_parents(self) -> None:
        """Further parents for nodes of the paths; the two people's distances stay as they are."""
        for node in range(2, 2 * self.hops + 2, 2):
            if self.rng.random() < _FURTHER:
                step = node // 2
                choices = [
                    other
                    for other, reached in enumerate(self.reached)
                    if (not reached and self.level[other] < step)
                    or (reached == 1 and self.level[other] == self.distance[other] == step - 1 and other != node - 2)
                ]
                if choices:
                    parent = pick(self.rng, choices)
                    self.parents[node].append(parent)
                    self.parents[node + 1].append(self.mirror[parent])

    def path(self, end: int) -> list[int]:
        """One of the shortest paths to a candidate."""
        path = [end]
        while len(path) <= self.hops:
            nearer = [
                node
                for node in self.parents[path[0]]
                if self.reached[node] and self.distance[node] == self.hops - len(path)
            ]
            path.insert(0, pick(self.rng, nearer))
        return path


def _question(rng: random.Random, hops: int, nodes: int, pair: Sequence[str], form: Facts) -> Question:
    ends = 2 * hops, 2 * hops + 1
    names, fixed_words = _words(form)
    while True:  # hardly ever twice
        graph = _Graph(rng, hops, nodes)
        edges = [(parent, node) for node, node_parents in enumerate(graph.parents) for parent in node_parents]
        used_nodes = sorted({node for edge in edges for node in edge}, key=graph.level.__getitem__)
        people = [node for node in used_nodes if not graph.parents[node]]
        if len(people) <= len(names):
            break
    concepts = [node for node in used_nodes if graph.parents[node] and node not in ends]
    word = dict(zip(people, rng.sample(names, len(people)), strict=True))
    word |= dict(
        zip(concepts, rng.sample([word for word in fixed_words if word not in pair], len(concepts)), strict=True)
    )
    word |= dict(zip(ends, rng.sample(pair, 2)))
    root = pick(rng, range(2))
    path = graph.path(ends[root])
    place = {node: i for i, node in enumerate(used_nodes)}
    facts = {(a, b): _fact(word[a], word[b], form) for a, b in edges}
    first, second = rng.sample(pair, 2)
    facts_line = _line(rng.sample(list(facts.values()), len(facts)), form)
    return Question(
        symbols=tuple(word[node] for node in used_nodes),
        edges=tuple((place[a], place[b]) for a, b in edges),
        root=place[root],
        target=place[ends[root]],
        negative_target=place[ends[1 - root]],
        question=f"{facts_line} {_asked(word[root], first, second, form)}",
        steps=tuple(_line([facts[edge]], form) for edge in pairwise(path)),
        answer=word[ends[root]] if form == "words" else _fact(word[root], word[ends[root]], form),
    )


def _frontiers(rng: random.Random, question: Question, form: str) -> tuple[str, ...]:
    """Return the edges out of the nodes 0, 1, .. steps from the root, up to the answer; each step is shuffled."""
    symbols, distances, steps = question.symbols, question.distances(), list[str]()
    for distance in range(distances[question.target] or 0):
        edges = [(a, b) for a, b in question.edges if distances[a] == distance]
        steps.append(_line([_fact(symbols[a], symbols[b], form) for a, b in rng.sample(edges, len(edges))], form))
    return tuple(steps)


def _fact(node: str, other: str, form: str) -> str:
    """Return an edge in words; people are capitalised."""
    if form == "words":
        return f"{node}{other}"
    if form == "pairs":
        return f"> {node} {other}"
    return f"{node if node[0].isupper() else f'Every {node}'} is a {other}."


def _line(facts: Sequence[str], form: str) -> str:
    """Facts of one word follow a sign, since a word at the start of a line is another token."""
    return " ".join([">", *facts] if form == "words" else facts)


def _asked(root: str, first: str, second: str, form: str) -> str:
    return f"Is {root} a {first} or {second}?" if form == "sentences" else f"? {root} {first} {second}"
