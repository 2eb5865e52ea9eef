"""Generated stories of families, every relation of which is known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import yaml

from mentalese.data.documents import Document

FAMILIES_VERSION = 1


@cache
def words(of: str) -> dict[str, list[str]]:
    """Return the names, words and sentences of a generator, from `words.yaml`."""
    return yaml.safe_load((Path(__file__).parent / "words.yaml").read_text(encoding="utf-8"))[of]


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
    return tuple(_story(random.Random(f"families {FAMILIES_VERSION} 0 {i}")) for i in range(2000))


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
