"""Rules that answer questions of `reachability` from what lies near the root or the candidates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mentalese.data.generated import Question

RULES: dict[str, tuple[str, int, int]] = {
    "named more often": ("mentions", 0, 0),
    "named first": ("order", 0, 0),
    "named last in a fact": ("place", 0, 0),
    **{f"more nodes within {b} back": ("ancestors", 0, b) for b in (1, 2)},
    **{f"more people within {b} back": ("people", 0, b) for b in (1, 2)},
    **{f"more edges out of nodes within {b} back": ("edges", 0, b) for b in (1, 2)},
    **{
        f"{f} forward, {b} back": ("search", f, b)
        for f, b in ((1, 0), (2, 0), (0, 1), (0, 2), (1, 1), (3, 0), (0, 3), (2, 1), (1, 2), (4, 0), (0, 4), (2, 2))
    },
}
"""Rules by name: the compared measure of the candidates, and the numbers of steps from the root and from the
candidates. The larger value is taken, a tie is a coin. `search`: a candidate gains if the nodes within `forward` steps
of the root meet the nodes that lead to it within `back` steps, and loses if nodes of another person do."""


def rule_accuracy(questions: Iterable[Question]) -> dict[str, float]:
    """Return the share of questions that each of `RULES` answers; a tie counts half."""
    right = dict.fromkeys(RULES, 0.0)
    total = 0
    for question in questions:
        total += 1
        views = _views(question)
        for name, (what, forward, back) in RULES.items():
            true, false = (_measure(question, views, end, what, forward, back) for end in (0, 1))
            right[name] += (true > false) + (true == false) / 2
    return {name: count / total for name, count in right.items()}


@dataclass(frozen=True)
class _View:
    """Neighbourhoods, as sets of nodes in bits: `forward[person][f]`, `back[candidate][b]`; the root is first."""

    people: list[int]
    forward: list[list[int]]
    back: list[list[int]]
    children: dict[int, int]


def _views(question: Question) -> _View:
    children = dict.fromkeys(range(len(question.symbols)), 0)
    parents = dict(children)
    for a, b in question.edges:
        children[a] |= 1 << b
        parents[b] |= 1 << a
    people = sorted((i for i, above in parents.items() if not above), key=lambda i: i != question.root)
    return _View(
        people=people,
        forward=[_rings(children, person) for person in people],
        back=[_rings(parents, end) for end in (question.target, question.negative_target)],
        children=children,
    )


def _rings(neighbours: dict[int, int], start: int) -> list[int]:
    """Return the nodes within 0 to 4 steps."""
    rings = [1 << start]
    for _ in range(4):
        rings.append(rings[-1])
        for node, adjacent in neighbours.items():
            if rings[-2] >> node & 1:
                rings[-1] |= adjacent
    return rings


def _measure(question: Question, views: _View, end: int, what: str, forward: int, back: int) -> int:
    node = (question.target, question.negative_target)[end]
    within = views.back[end][back]
    if what == "search":
        meets = [bool(rings[forward] & within) for rings in views.forward]
        return meets[0] - any(meets[1:])
    if what == "ancestors":
        return within.bit_count()
    if what == "people":
        return sum(within >> person & 1 for person in views.people)
    if what == "edges":
        return sum(below.bit_count() for other, below in views.children.items() if within >> other & 1)
    word = question.symbols[node]
    if what == "mentions":
        return question.question.count(f" {word}")
    facts, _, query = question.question.rpartition("Is ")
    return -query.find(word) if what == "order" else facts.rfind(f" {word}.")
