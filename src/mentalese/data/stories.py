"""Generated stories of families, every relation of which is known."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import yaml

from mentalese.data.documents import Document

FAMILIES_VERSION = 1


@cache
def words(of: str) -> dict[str, list[str]]:
    """Return the names, words and sentences of a generator, from `words.yaml`."""
    return yaml.safe_load((Path(__file__).parent / "words.yaml").read_text(encoding="utf-8"))[of]


@dataclass(frozen=True)
class Person:
    name: str
    female: bool
    age: int
    job: str
    city: str


@cache
def families() -> tuple[Document, ...]:
    """Return 2,000 stories of three generations: parents, children, husbands and wives; ages, trades and places."""
    return tuple(_story(random.Random(f"families {FAMILIES_VERSION} 0 {i}")) for i in range(2000))


def _story(rng: random.Random) -> Document:
    vocabulary = words("families")
    men, women = (rng.sample(vocabulary[name], len(vocabulary[name])) for name in ("men", "women"))
    cities, jobs = rng.sample(vocabulary["cities"], 4), rng.sample(vocabulary["jobs"], len(vocabulary["jobs"]))
    people: dict[str, Person] = {}
    parents: list[tuple[str, str]] = []
    couples: list[tuple[str, str]] = []

    def add(female: bool, age: int) -> Person:
        person = Person((women if female else men).pop(), female, age, jobs.pop(), rng.choice(cities))
        people[person.name] = person
        return person

    def marry(husband: Person, wife: Person, children: int) -> list[Person]:
        couples.append((husband.name, wife.name))
        oldest = min(husband.age, wife.age) - rng.randint(20, 28)
        born = [add(rng.random() < 0.5, oldest - 3 * i - rng.randint(0, 2)) for i in range(children)]
        parents.extend((parent.name, child.name) for child in born for parent in (husband, wife))
        return born

    age = rng.randint(68, 88)
    for child in marry(add(False, age), add(True, age - rng.randint(-3, 5)), rng.randint(2, 3)):
        if len(couples) < 3 and rng.random() < 0.7:
            partner = add(not child.female, child.age + rng.randint(-3, 3))
            husband, wife = (partner, child) if child.female else (child, partner)
            marry(husband, wife, rng.randint(1, 2))
    first, *rest = _Teller(rng, people).tell(parents, couples)
    return Document.join([first, *(f" {sentence}" for sentence in rest)])


class _Teller:
    """Sentences about a family: its couples and children in order, each person's facts near the first mention."""

    def __init__(self, rng: random.Random, people: Mapping[str, Person]) -> None:
        self.rng, self.people = rng, people
        self.sentences: list[str] = []
        self.introduced: set[str] = set()

    def sentence(self, kind: str) -> str:
        """Draw a sentence of this kind, with names of values in braces."""
        return self.rng.choice(words("families")[kind])

    def introduce(self, name: str) -> None:
        if name in self.introduced:
            return
        self.introduced.add(name)
        person, rng = self.people[name], self.rng
        job = f"{'an' if person.job[0] in 'aeiou' else 'a'} {person.job}"
        sentences = [self.sentence("job_and_city" if rng.random() < 0.5 else rng.choice(("lives", "works")))]
        if person.age < 20:
            sentences = [self.sentence("lives")]
        if rng.random() < 0.4:
            sentences.append(self.sentence("ages"))
        facts = {"name": name, "age": person.age, "job": job, "city": person.city}
        self.sentences += [sentence.format(**facts) for sentence in sentences]

    def tell(self, parents: Sequence[tuple[str, str]], couples: Sequence[tuple[str, str]]) -> list[str]:
        rng, people, sentences = self.rng, self.people, self.sentences
        sentences += [
            f"This is the story of the {rng.choice(words('families')['surnames'])} family.",
            f"{couples[0][0]} and {couples[0][1]} are its oldest members.",
        ]
        for couple in couples:
            husband, wife = couple
            sentences.append(self.sentence("couple").format(husband=husband, wife=wife, city=people[husband].city))
            self.introduce(husband)
            self.introduce(wife)
            children = [child for parent, child in parents if parent == husband]
            for child in children:
                for parent in rng.sample(couple, 2):
                    facts = {"parent": parent, "child": child, "age": people[child].age}
                    facts["father"] = "mother" if people[parent].female else "father"
                    facts["son"] = "daughter" if people[child].female else "son"
                    kind = "from_parent" if rng.random() < 0.5 else "from_child"
                    sentences.append(self.sentence(kind).format(**facts))
                self.introduce(child)
            for a, b in pairwise(children):
                brother = "sister" if people[a].female else "brother"
                sentences.append(self.sentence("siblings").format(a=a, b=b, brother=brother))
        b, a = sorted(rng.sample(sorted(people), 2), key=lambda name: people[name].age)
        if people[a].age > people[b].age:
            sentences.append(self.sentence("older").format(a=a, b=b))
        old = couples[0][rng.randrange(2)]
        if young := sorted({child for parent, child in parents if (old, parent) in parents}):
            facts = {"old": old, "grandfather": "grandmother" if people[old].female else "grandfather"}
            sentences.append(self.sentence("grandparents").format(young=rng.choice(young), **facts))
        return sentences
