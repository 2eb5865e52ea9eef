"""Generated reasoning data: true to its own ground truth, and for ProsQA as large and as deep as what was published."""

from __future__ import annotations

import gzip
import json
import operator
import re
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest

from mentalese.data.builtin import BUILTIN
from mentalese.data.generated import PUBLISHED, SMALL, GraphSize, Question, prosqa_questions
from mentalese.data.sources import open_source

SIZES = {"published": PUBLISHED, "small": SMALL}

# Mean and standard deviation, measured on the 800 published validation and test questions (Hao et al. 2024, ProsQA).
MEASURED = {
    "entities": (22.81, 1.98),
    "people": (2.56, 0.75),
    "edges": (36.00, 5.75),
    "steps": (3.77, 0.76),
    "words": (179.15, 28.37),
    "shortest paths": (1.59, 0.87),
    "edges from the person asked about": (2.94, 1.21),
    "edges from a node": (1.58, 1.55),
    "edges to a concept": (1.78, 0.95),
    "steps to the other target": (2.11, 0.75),
    "concepts of both people": (1.24, 1.15),
}
MEASURED_STEPS = {3: 0.4075, 4: 0.4375, 5: 0.1312, 6: 0.0238}  # share of questions
MEASURED_EDGES_FROM = {0: 0.323, 1: 0.236, 2: 0.180, 3: 0.134, 4: 0.078, 5: 0.034}  # share of nodes


@cache
def questions(size: GraphSize = PUBLISHED) -> list[Question]:
    return prosqa_questions(2000, size=size)


def distances(edges: Any, root: int) -> dict[int, int]:
    """By breadth-first search, independently of the generator."""
    found, front = {root: 0}, [root]
    for node in front:
        for parent, child in edges:
            if parent == node and child not in found:
                found[child] = found[node] + 1
                front.append(child)
    return found


def statistics(question: str, steps: Any, symbols: Any, edges: Any, root: int, other: int) -> dict[str, list[int]]:
    """What is measured of a question, whoever wrote it: a number, or one for each node; `other` is the false target."""
    people = [i for i, symbol in enumerate(symbols) if symbol[0].isupper()]
    own = distances(edges, root)
    [second] = [person for person in people[:2] if person != root]
    others = distances(edges, second)
    paths = {root: 1}
    for node in sorted(own, key=lambda node: own[node])[1:]:
        paths[node] = sum(paths[a] for a, b in edges if b == node and own.get(a) == own[node] - 1)
    out, into = Counter(a for a, _ in edges), Counter(b for _, b in edges)
    [target] = [i for i, symbol in enumerate(symbols) if steps[-1].endswith(f" is a {symbol}.")]
    return {
        "entities": [len(symbols)],
        "people": [len(people)],
        "edges": [len(edges)],
        "steps": [len(steps)],
        "words": [len(question.split())],
        "shortest paths": [paths[target]],
        "edges from the person asked about": [out[root]],
        "edges from a node": [out[node] for node in range(len(symbols))],
        "edges to a concept": [into[node] for node in range(len(symbols)) if node not in people],
        "steps to the other target": [others[other]],
        "concepts of both people": [len(own.keys() & others.keys())],
    }


def collected(every: list[dict[str, list[int]]]) -> dict[str, list[int]]:
    return {name: [value for one in every for value in one[name]] for name in MEASURED}


@cache
def generated() -> dict[str, list[int]]:
    return collected(
        [statistics(q.question, q.steps, q.symbols, q.edges, q.root, q.negative_target) for q in questions()]
    )


@pytest.mark.parametrize("name", MEASURED)
def test_prosqa_has_the_published_size(name: str) -> None:
    mean, spread = MEASURED[name]
    values = generated()[name]
    assert fmean(values) == pytest.approx(mean, abs=3 * spread / 800**0.5)  # as far as 800 questions can tell
    assert pstdev(values) == pytest.approx(spread, rel=0.1)


def test_prosqa_has_the_published_lengths_and_degrees() -> None:
    for name, measured in (("steps", MEASURED_STEPS), ("edges from a node", MEASURED_EDGES_FROM)):
        values = generated()[name]
        for value, share in measured.items():
            assert values.count(value) / len(values) == pytest.approx(share, abs=0.03)


def test_published_questions_measure_as_stated(shared_data: Path) -> None:
    rows = []
    for split in ("valid", "test"):
        rows += json.loads(gzip.decompress((shared_data / f"reasoning/prosqa/prosqa_{split}.json.gz").read_bytes()))
    keys = ("question", "steps", "idx_to_symbol", "edges", "root", "neg_target")
    values = collected([statistics(*(row[key] for key in keys)) for row in rows])
    for name, (mean, spread) in MEASURED.items():
        assert fmean(values[name]) == pytest.approx(mean, abs=0.006)
        assert pstdev(values[name]) == pytest.approx(spread, abs=0.006)
    words = {word for row in rows for word in row["idx_to_symbol"]}
    assert words == {word for question in questions() for word in question.symbols}


@pytest.mark.parametrize("size", SIZES)
def test_exactly_one_of_the_two_concepts_is_right(size: str) -> None:
    for question in questions(SIZES[size]):
        reached = distances(question.edges, question.root)
        assert question.target in reached
        assert question.negative_target not in reached
        words = {question.symbols[question.target], question.symbols[question.negative_target]}
        person = question.symbols[question.root]
        asked = re.fullmatch(rf".*\. Is {person} a (\w+) or (\w+)\?", question.question)
        assert asked
        assert set(asked.groups()) == words
        assert question.answer == f"{person} is a {question.symbols[question.target]}."


@pytest.mark.parametrize("size", SIZES)
def test_steps_are_a_shortest_path_to_the_answer(size: str) -> None:
    fewest, most = SIZES[size].steps
    for question in questions(SIZES[size]):
        way = [match for step in question.steps if (match := re.fullmatch(r"(?:Every )?(\w+) is a (\w+)\.", step))]
        assert len(way) == len(question.steps)
        assert all(step in question.question for step in question.steps)
        assert all(a[2] == b[1] for a, b in pairwise(way))
        assert way[0][1] == question.symbols[question.root]
        assert way[-1][2] == question.symbols[question.target]
        assert len(way) == distances(question.edges, question.root)[question.target]
        assert fewest <= len(way) <= most


@pytest.mark.parametrize("size", SIZES)
def test_questions_have_every_edge_once_in_random_order(size: str) -> None:
    first = 0
    for question in questions(SIZES[size]):
        symbols = question.symbols
        assert len(set(symbols)) == len(symbols)
        assert all(a < b for a, b in question.edges)
        told = re.findall(r"(?:Every )?(\w+) is a (\w+)\.", question.question)
        assert sorted(told) == sorted((symbols[a], symbols[b]) for a, b in question.edges)
        first += f" a {symbols[question.target]} or " in question.question
    assert 0.46 < first / len(questions(SIZES[size])) < 0.54


def test_small_questions_are_small() -> None:
    small = questions(SMALL)
    assert 6 < fmean(len(question.symbols) for question in small) < 8
    assert {len(question.steps) for question in small} == {2, 3}


def test_a_question_does_not_depend_on_the_count() -> None:
    assert prosqa_questions(3) == prosqa_questions(5)[:3]
    assert prosqa_questions(3, seed=1) != prosqa_questions(3, seed=2)


OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


@pytest.mark.parametrize(
    ("name", "form", "steps"), [("arithmetic", "<<{}>>\n", {1, 2, 3, 4}), ("word-problems", "{}\n", {2, 3, 4})]
)
def test_every_equation_holds_and_the_last_one_gives_the_answer(name: str, form: str, steps: set[int]) -> None:
    lengths = Counter()
    for document in BUILTIN[name].documents()[:2000]:
        question, *equations, answer = document.segments or ()
        known = {2, *map(int, re.findall(r"\d+", question))}
        for step in equations:
            numbers, result = re.fullmatch(form.format(r"(.+)=(\d+)"), step).groups()  # type: ignore[union-attr]
            first, *rest = re.findall(r"\d+|[-+*/]", numbers)
            value = float(first)
            for sign, number in zip(rest[::2], rest[1::2], strict=True):
                value = OPERATIONS[sign](value, int(number))
            assert value == int(result)
            assert value > 0
            assert {int(number) for number in (first, *rest[1::2])} <= known, "told, or computed before"
            known.add(int(result))
        assert equations[-1] == form.format(f"{numbers}={answer.removeprefix('### ')}")
        lengths[len(equations)] += 1
    assert lengths.keys() == steps


@pytest.mark.parametrize(("size", "share"), [(SMALL, 0.93), (PUBLISHED, 0.6)])
def test_one_edge_answers_most_small_questions(size: GraphSize, share: float) -> None:
    """The candidate that hangs right below another person is false."""
    right = 0.0
    for question in prosqa_questions(1000, size=size):
        below = {child for _, child in question.edges}
        others = {child for parent, child in question.edges if parent not in below and parent != question.root}
        target, false = question.target in others, question.negative_target in others
        right += 0.5 if target == false else false
    assert right / 1000 == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("name", ["arithmetic", "word-problems"])
def test_a_description_counts_the_questions_of_each_split(name: str) -> None:
    found = open_source(f"builtin:{name}")
    sizes = [sum(1 for _ in found.documents(split)) for split in ("train", "validation", "test")]
    assert f"({sizes[0]:,}, {sizes[1]} and {sizes[2]})" in BUILTIN[name].description


@pytest.mark.parametrize("name", ["prosqa-small", "arithmetic", "word-problems"])  # prosqa differs only in its size
def test_built_in_questions_are_records(name: str) -> None:
    assert BUILTIN[name].kind == "records"
    for document in BUILTIN[name].documents()[:50]:
        question, *steps, answer = document.segments or ()
        assert question.endswith("?\n")
        assert steps
        assert answer.startswith("### ")
