"""Generated data whose ground truth is known: stories of families, word problems, and questions like ProsQA's.

Names, words and sentences are in `words.yaml`. A change of what is generated raises the number in its random seeds.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import accumulate, pairwise
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import yaml

from mentalese.data.documents import Document, record


@cache
def words(of: str) -> dict[str, list[str]]:
    """Return the names, words and sentences of a generator, from `words.yaml`."""
    return yaml.safe_load((Path(__file__).parent / "words.yaml").read_text(encoding="utf-8"))[of]


# -- stories of families -----------------------------------------------------------------------------------------------


class Person(NamedTuple):
    name: str
    female: bool
    age: int
    job: str
    city: str


Couple = tuple[Person, Person, list[Person]]
"""Husband, wife and children; first names are unique within a story."""


@cache
def families() -> tuple[Document, ...]:
    """Return 2,000 stories of three generations: parents, children, husbands and wives; ages, trades and places."""
    return tuple(_story(random.Random(f"families 1 0 {i}")) for i in range(2000))


def _story(rng: random.Random) -> Document:
    vocabulary = words("families")
    men, women = (rng.sample(vocabulary[name], len(vocabulary[name])) for name in ("men", "women"))
    cities, jobs = rng.sample(vocabulary["cities"], 4), rng.sample(vocabulary["jobs"], len(vocabulary["jobs"]))
    couples: list[Couple] = []

    def add(female: bool, age: int) -> Person:
        return Person((women if female else men).pop(), female, age, jobs.pop(), rng.choice(cities))

    def marry(husband: Person, wife: Person, children: int) -> list[Person]:
        oldest = min(husband.age, wife.age) - rng.randint(20, 28)
        born = [add(rng.random() < 0.5, oldest - 3 * i - rng.randint(0, 2)) for i in range(children)]
        couples.append((husband, wife, born))
        return born

    age = rng.randint(68, 88)
    for child in marry(add(False, age), add(True, age - rng.randint(-3, 5)), rng.randint(2, 3)):
        if len(couples) < 3 and rng.random() < 0.7:
            partner = add(not child.female, child.age + rng.randint(-3, 3))
            husband, wife = (partner, child) if child.female else (child, partner)
            marry(husband, wife, rng.randint(1, 2))
    first, *rest = _Teller(rng).tell(couples)
    return Document.join([first, *(f" {sentence}" for sentence in rest)])


class _Teller:
    """Sentences about a family: its couples and children in order, each person's facts near the first mention."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.sentences: list[str] = []
        self.people: list[Person] = []

    def sentence(self, kind: str) -> str:
        """Draw a sentence of this kind, with names of values in braces."""
        return self.rng.choice(words("families")[kind])

    def introduce(self, person: Person) -> None:
        if person in self.people:
            return
        self.people.append(person)
        rng = self.rng
        sentences = [self.sentence("job_and_city" if rng.random() < 0.5 else rng.choice(("lives", "works")))]
        if person.age < 20:
            sentences = [self.sentence("lives")]
        if rng.random() < 0.4:
            sentences.append(self.sentence("ages"))
        job = f"{'an' if person.job[0] in 'aeiou' else 'a'} {person.job}"
        self.sentences += [sentence.format(**person._asdict() | {"job": job}) for sentence in sentences]

    def tell(self, couples: Sequence[Couple]) -> list[str]:
        rng, sentences = self.rng, self.sentences
        oldest = couples[0][:2]
        sentences += [
            f"This is the story of the {rng.choice(words('families')['surnames'])} family.",
            f"{oldest[0].name} and {oldest[1].name} are its oldest members.",
        ]
        for husband, wife, children in couples:
            names = {"husband": husband.name, "wife": wife.name}
            sentences.append(self.sentence("couple").format(city=husband.city, **names))
            self.introduce(husband)
            self.introduce(wife)
            for child in children:
                for parent in rng.sample((husband, wife), 2):
                    kind = "from_parent" if rng.random() < 0.5 else "from_child"
                    facts = {"parent": parent.name, "child": child.name, "age": child.age}
                    facts["father"] = "mother" if parent.female else "father"
                    facts["son"] = "daughter" if child.female else "son"
                    sentences.append(self.sentence(kind).format(**facts))
                self.introduce(child)
            for a, b in pairwise(children):
                brother = "sister" if a.female else "brother"
                sentences.append(self.sentence("siblings").format(a=a.name, b=b.name, brother=brother))
        younger, older = sorted(rng.sample(sorted(self.people), 2), key=attrgetter("age"))
        if older.age > younger.age:
            sentences.append(self.sentence("older").format(a=older.name, b=younger.name))
        old = oldest[rng.randrange(2)]
        young = [child.name for _, _, children in couples[1:] for child in children]
        if young:
            facts = {"old": old.name, "grandfather": "grandmother" if old.female else "grandfather"}
            sentences.append(self.sentence("grandparents").format(young=rng.choice(sorted(young)), **facts))
        return sentences


# -- word problems -----------------------------------------------------------------------------------------------------

# Steps of `arithmetic` are in the notation of GSM8K-Aug (Deng et al., 2024), `<<12-4=8>>`. Numbers are whole and not
# below 0, so that an equation can be checked by computing it.
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


@cache
def arithmetic() -> tuple[Document, ...]:
    """Return word problems of one to four steps, of which the last one's result is the answer."""
    return tuple(_problem(random.Random(f"arithmetic 1 0 {i}")) for i in range(10_000))


@cache
def word_problems() -> tuple[Document, ...]:
    """Return word problems of two to four steps with numbers from 1 to 20; the last result is the answer."""
    return tuple(_few(random.Random(f"word-problems 1 {i}")) for i in range(10_000))


class _Writer:
    """Sentences and equations of one problem.

    Args:
        of: the section of `words.yaml` with its sentences.
    """

    equation = "<<{}={}>>"

    def __init__(self, rng: random.Random, of: str = "arithmetic") -> None:
        self.rng, self.words = rng, words(of)
        self.sentences: list[str] = []
        self.steps: list[str] = []
        self.result = 0
        self.things = rng.choice(self.words["things"])

    def names(self, count: int) -> list[str]:
        return self.rng.sample(self.words["names"], count)

    def tell(self, kind: str, **values: object) -> None:
        sentences = self.words[kind]
        # A kind with one sentence draws nothing.
        sentence = sentences[0] if len(sentences) == 1 else self.rng.choice(sentences)
        self.sentences.append(sentence.format(things=self.things, **values))

    def compute(self, operation: str, *numbers: int) -> int:
        """Return the result of the numbers with the operation between each two."""
        self.result = reduce(_OPERATIONS[operation], numbers)
        self.steps.append(self.equation.format(operation.join(map(str, numbers)), self.result))
        return self.result

    def draw(self, numbers: dict[str, Sequence[int]]) -> tuple[str, int]:
        """Draw an operation that has numbers, and one of these."""
        operation = self.rng.choice([operation for operation, possible in numbers.items() if possible])
        return operation, self.rng.choice(numbers[operation])


def _problem(rng: random.Random) -> Document:
    writer = _Writer(rng)
    rng.choice((_changes, _changes, _comparison, _purchase))(writer, rng)
    return record(" ".join(writer.sentences), writer.steps, str(writer.result))


def _few(rng: random.Random) -> Document:
    """Write a problem about a few things that are added, given away, doubled or halved."""
    writer = _Writer(rng, "word-problems")
    writer.equation = "{}={}"
    name, friend = writer.names(2)
    have = rng.randint(2, 9)
    writer.tell("start", name=name, n=have)
    for _ in range(rng.randint(2, 4)):
        numbers: dict[str, Sequence[int]] = {
            "+": range(1, min(9, 20 - have) + 1),
            "-": range(1, min(9, have - 1) + 1),
            "*": [2] if have <= 10 else [],
            "/": [2] if have % 2 == 0 else [],
        }
        operation, n = writer.draw(numbers)
        writer.tell(f"change {operation}", name=name, friend=friend, n=n)
        have = writer.compute(operation, have, n)
    writer.tell("now", name=name)
    return record(" ".join(writer.sentences), writer.steps, str(writer.result))


def _changes(writer: _Writer, rng: random.Random) -> None:
    """Write a problem about a number of things that changes one to four times."""
    name, friend = writer.names(2)
    have = rng.randint(4, 60)
    writer.tell("start", name=name, n=have)
    for _ in range(rng.randint(1, 4)):
        numbers: dict[str, Sequence[int]] = {
            "+": range(2, 41),
            "-": range(2, have - 1),
            "*": range(2, 1 + min(5, 200 // have)),
            "/": [n for n in range(2, 10) if have % n == 0 and have > n],
        }
        operation, n = writer.draw(numbers)
        writer.tell(f"change {operation}", name=name, friend=friend, n=n)
        have = writer.compute(operation, have, n)
    writer.tell("now", name=name)


def _comparison(writer: _Writer, rng: random.Random) -> None:
    """Write a problem about the sum of what two or three people have, each more or fewer than the one before."""
    names = writer.names(rng.randint(2, 3))
    amounts = [rng.randint(4, 40)]
    writer.tell("first", name=names[0], n=amounts[0])
    for other, name in pairwise(names):
        operation, n = writer.draw({"+": range(2, 31), "-": range(2, amounts[-1] - 1), "*": range(2, 6)})
        writer.tell(f"compare {operation}", name=name, other=other, n=n)
        amounts.append(writer.compute(operation, amounts[-1], n))
    writer.tell("together")
    writer.compute("+", *amounts)


def _purchase(writer: _Writer, rng: random.Random) -> None:
    """Write a problem about two kinds of containers with some things in each; often some are given away."""
    name, friend = writer.names(2)
    kinds = rng.sample(writer.words["containers"], 2)
    counts, sizes = ([rng.randint(2, 9) for _ in kinds] for _ in range(2))
    a, b = (f"{count} {kind}" for count, kind in zip(counts, kinds, strict=True))
    writer.tell("buys", name=name, a=a, b=b, in_a=sizes[0], in_b=sizes[1])
    have = writer.compute("+", *(writer.compute("*", *pair) for pair in zip(counts, sizes, strict=True)))
    if rng.random() < 0.5:
        n = rng.randint(2, have - 1)
        writer.tell("change -", name=name, friend=friend, n=n)
        writer.compute("-", have, n)
    writer.tell("now", name=name)


# -- questions of ProsQA -----------------------------------------------------------------------------------------------

# ProsQA: Hao et al., "Training Large Language Models to Reason in a Continuous Latent Space", 2024. People and made-up
# concepts are the nodes of a directed graph without cycles, `Every lempus is a gerpus.` its edges; the question names a
# person and two concepts, of which only one can be reached. Search answers all questions, but rules that look at a few
# edges answer most: "a candidate right below another person is false" is right for 92% of the small questions and for
# 60% of the questions of the published size. `builtin:reachability` needs search.
#
# The graphs grow as the published graphs seem to have grown. `GraphSize` is fitted to the published validation and test
# sets; generated questions have the same numbers of entities, edges, steps and words, as
# `tests/unit/test_reasoning_data.py` shows.

TRAIN, VALIDATION, TEST = 17_886, 300, 500  # questions, as published
# Shares of nodes whose parents descend only from the first person, and only from the second.
_SHARES = (0.35, 0.45)
# A node d steps below only one of the two people is chosen as a parent 1 + 1.5 d times as often as other nodes.
_DEPTH_WEIGHT = 1.5


class GraphSize(NamedTuple):
    """The size of the graph of a question.

    The first two nodes are people. Each later node gets a Poisson number of parents, of this mean, among the first
    person's descendants, the second person's descendants, or all nodes. Nodes without parents become people; nodes
    without any edge are removed. `steps` are the fewest and the most to the answer.
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
        target: one of the farthest nodes to which only root leads, and that lead nowhere.
        negative_target: the wrong candidate: only the other person leads to it, and it leads nowhere.
        question: every edge as a sentence, in random order, then `Is ROOT a A or B?`, in random order too.
        steps: the edges of one of the shortest paths from root to target, as sentences.
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
    return [_question(random.Random(f"prosqa 1 {seed} {i}"), size) for i in range(count)]


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
        count, branch = poisson(rng, size.parents), rng.random()
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


def poisson(rng: random.Random, mean: float) -> int:
    """Draw a Poisson number."""
    count, product, bound = 0, rng.random(), math.exp(-mean)
    while product > bound:
        count, product = count + 1, product * rng.random()
    return count
