"""Built-in data: nothing is downloaded, nothing of other people's is shipped.

`stdlib` is real English that comes with every CPython; the rest is generated, so that what is true in it is known:
`families` here, `prosqa` in prosqa.py, `arithmetic` in arithmetic.py and the tasks of the mechanism suite in suite/.
"""

from __future__ import annotations

import ast
import os
import random
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

from mentalese.data.arithmetic import arithmetic
from mentalese.data.documents import SPLITS, Document, Kind, Reader
from mentalese.data.prosqa import prosqa, prosqa_small
from mentalese.data.suite import TASKS, Task, task
from mentalese.errors import InputError, nearest

MIN_WORDS = 100
FAMILIES_VERSION = 1

_NOT_LIBRARY = {"test", "tests", "idle_test", "idlelib", "turtledemo", "lib2to3", "site-packages", "dist-packages"}


@dataclass(frozen=True)
class Builtin:
    """One line for `mentalese list`, what kind of documents, and the documents themselves (made once a process)."""

    description: str
    kind: Kind
    documents: Callable[[], tuple[Document, ...]]


@cache
def stdlib() -> tuple[Document, ...]:
    """CPython's own documentation: the language reference's topics, and each library file's docstrings.

    One document a topic or file, those of at least 100 words; the text differs by Python version.
    """
    from pydoc_data.topics import topics

    root = Path(sysconfig.get_path("stdlib"))
    texts = [topics[name].strip() for name in sorted(topics)] + [_docstrings(path) for path in _library_files(root)]
    return tuple(Document(text) for text in dict.fromkeys(texts) if len(text.split()) >= MIN_WORDS)


def _library_files(root: Path) -> list[Path]:
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _NOT_LIBRARY]
        found += [Path(folder, name) for name in files if name.endswith(".py")]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def _docstrings(path: Path) -> str:
    """A file's docstrings in the order of the file, a blank line between them."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, documented):
            found.append((ast.get_docstring(node) or "").strip())
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                visit(child)

    visit(ast.parse(path.read_bytes()))
    return "\n\n".join(filter(None, found))


@dataclass(frozen=True)
class Person:
    name: str
    female: bool
    age: int
    job: str
    city: str


@dataclass(frozen=True)
class Story:
    """A family and a text about it.

    Attributes:
        people: everyone; first names are unique within a story.
        parents: (parent, child) pairs of names, all of them.
        couples: (husband, wife) pairs of names.
        sentences: the text; each pair of `parents` is told at least once, in one direction or the other.
    """

    people: tuple[Person, ...]
    parents: tuple[tuple[str, str], ...]
    couples: tuple[tuple[str, str], ...]
    sentences: tuple[str, ...]


@cache
def families(count: int = 2000, seed: int = 0) -> tuple[Document, ...]:
    """Stories of three generations: who is whose parent, child, husband or wife; ages, trades and places."""
    return tuple(
        Document.join(f" {sentence}" if i else sentence for i, sentence in enumerate(story.sentences))
        for story in family_stories(count, seed)
    )


def family_stories(count: int = 2000, seed: int = 0) -> list[Story]:
    """The stories of `families`, with their ground truth; story i is the same whatever `count` is."""
    return [_story(random.Random(f"families {FAMILIES_VERSION} {seed} {i}")) for i in range(count)]


# Words in strings: a list of each would be pages long.
# ruff: noqa: SIM905
_MEN = (
    "Aaron Abel Adrian Alan Albert Alec Andrew Anton Arthur Austin Barry Basil Ben Boris Brian Bruno Caleb Carl "
    "Cecil Charles Clive Conrad Daniel David Dennis Dominic Edgar Edward Elias Emil Eric Ethan Felix Frank Fred "
    "George Gilbert Gordon Graham Harold Harvey Henry Hugo Ian Ivan Jack Jacob James Jasper Joel John Jonas Julian "
    "Karl Keith Kevin Lars Leo Lewis Louis Lucas Marcus Martin Max Miles Nathan Neil Nils Noah Oliver Oscar Owen "
    "Patrick Paul Peter Philip Ralph Raymond Robert Roger Rupert Samuel Scott Sidney Simon Stephen Theo Thomas "
    "Tobias Victor Vincent Walter William"
).split()
_WOMEN = (
    "Abigail Ada Agnes Alice Amelia Amy Anna Astrid Audrey Beatrice Bella Bertha Carmen Caroline Cecilia Clara "
    "Claire Cora Daisy Daphne Diana Dora Edith Eleanor Elena Ellen Elsa Emily Emma Esther Eva Fiona Flora Frances "
    "Frida Grace Greta Hannah Harriet Hazel Helen Ida Ingrid Irene Iris Isabel Jane Janet Joan Josephine Judith "
    "Julia June Karen Kate Laura Lena Lily Linda Lisa Lucy Lydia Mabel Margaret Maria Marion Martha Mary Matilda "
    "Miriam Nancy Naomi Nina Nora Olga Olive Paula Pearl Phoebe Rachel Rebecca Rita Rosa Ruth Sarah Silvia Sophie "
    "Stella Susan Sylvia Tessa Theresa Ursula Valerie Vera Victoria Violet Vivian Wanda Winifred"
).split()
_SURNAMES = (
    "Abbott Archer Baker Barlow Becker Bell Bishop Blake Bowen Brandt Brooks Burke Carter Chambers Clarke Cole "
    "Cooper Costa Craig Dalton Dawson Dixon Doyle Drake Duncan Ellis Farrell Fisher Fleming Foster Fuller Garcia "
    "Gibson Grant Greene Hale Hansen Hardy Harper Hayes Hoffman Holt Hughes Hunter Jensen Kelly Klein Knight "
    "Lambert Lane Larsen Lowe Marsh Mason Meyer Miller Moreau Morris Nash Nolan Novak Osborne Palmer Parker Pearce "
    "Perry Porter Quinn Reed Rhodes Rossi Rowe Sawyer Shaw Silva Stone Sutton Tanner Thorne Turner Vance Wagner "
    "Walsh Weber West Winter Wolfe"
).split()
_CITIES = (
    "Aberdeen Amsterdam Antwerp Athens Barcelona Basel Belfast Bergen Berlin Bologna Bordeaux Boston Bremen Bristol "
    "Bruges Brussels Cardiff Chicago Cologne Cork Denver Dresden Dublin Edinburgh Florence Geneva Genoa Ghent "
    "Glasgow Hamburg Helsinki Leeds Leipzig Lima Lisbon London Lyon Madrid Malmo Milan Montreal Munich Naples Nice "
    "Oslo Oxford Palermo Paris Porto Prague Quebec Riga Rome Rotterdam Salzburg Seattle Seville Stockholm Toronto "
    "Turin Utrecht Valencia Venice Verona Vienna Vilnius Warsaw York Zagreb Zurich"
).split()
_JOBS = (
    "actor, architect, baker, bookseller, bus driver, butcher, carpenter, chemist, cook, dancer, dentist, doctor, "
    "editor, electrician, engineer, farmer, fisher, florist, gardener, geologist, glazier, goldsmith, hairdresser, "
    "historian, journalist, judge, lawyer, librarian, locksmith, mechanic, midwife, miller, musician, nurse, "
    "optician, painter, pharmacist, photographer, pilot, plumber, poet, potter, printer, sailor, sculptor, "
    "shoemaker, singer, surgeon, surveyor, tailor, teacher, translator, vet, watchmaker, weaver"
).split(", ")

_FROM_PARENT = (
    "{parent} is the {father} of {child}.",
    "{child}'s {father} is {parent}.",
    "The {father} of {child} is {parent}.",
    "{child} has a {father} called {parent}.",
)
_FROM_CHILD = (
    "{child} is the {son} of {parent}.",
    "{parent} has a {son} named {child}.",
    "{parent}'s {son} {child} is {age} years old.",
    "One child of {parent} is {child}, a {son}.",
)
_COUPLE = (
    "{husband} is married to {wife}.",
    "{wife} is the wife of {husband}.",
    "{husband} and {wife} met in {city}, where they married.",
    "{wife}'s husband is {husband}.",
)
_LIVES = ("{name} lives in {city}.", "{name}'s home is in {city}.", "You can find {name} in {city}.")
_WORKS = ("{name} works as {job}.", "By trade {name} is {job}.", "{name} earns a living as {job}.")
_AGES = ("{name} is {age} years old.", "At the moment {name} is {age}.", "{name} turned {age} this year.")
_BOTH = (
    "{name} is {job} and lives in {city}.",
    "In {city}, {name} works as {job}.",
    "{name}, who is {age}, is {job} in {city}.",
)
_OLDER = ("{a} is older than {b}.", "{b} is younger than {a}.", "{a} was born before {b}.")
_SIBLINGS = ("{a} and {b} have the same parents.", "{a} is {b}'s {brother}.", "{b} grew up with a {brother}, {a}.")
_GRANDPARENTS = ("{old} is the {grandfather} of {young}.", "{young} often visits {old}, a {grandfather}.")


def _story(rng: random.Random) -> Story:
    men, women = rng.sample(_MEN, len(_MEN)), rng.sample(_WOMEN, len(_WOMEN))
    cities, jobs = rng.sample(_CITIES, 4), rng.sample(_JOBS, len(_JOBS))
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
    return Story(tuple(people.values()), tuple(parents), tuple(couples), _tell(rng, people, parents, couples))


def _tell(
    rng: random.Random, people: dict[str, Person], parents: list[tuple[str, str]], couples: list[tuple[str, str]]
) -> tuple[str, ...]:
    """Sentences about a family: its couples and children in order, each person's facts near the first mention."""
    sentences = [
        f"This is the story of the {rng.choice(_SURNAMES)} family.",
        f"{couples[0][0]} and {couples[0][1]} are its oldest members.",
    ]

    def introduce(name: str) -> None:
        person = people[name]
        article = "an" if person.job[0] in "aeiou" else "a"
        facts = {"name": name, "age": person.age, "job": f"{article} {person.job}", "city": person.city}
        templates = [rng.choice(_BOTH if rng.random() < 0.5 else rng.choice((_LIVES, _WORKS)))]
        if person.age < 20:
            templates = [rng.choice(_LIVES)]
        if rng.random() < 0.4:
            templates.append(rng.choice(_AGES))
        sentences.extend(template.format(**facts) for template in templates)

    told: set[str] = set()
    for husband, wife in couples:
        city = people[husband].city
        sentences.append(rng.choice(_COUPLE).format(husband=husband, wife=wife, city=city))
        for name in (husband, wife):
            if name not in told:
                introduce(name)
                told.add(name)
        children = [child for parent, child in parents if parent == husband]
        for child in children:
            for parent in rng.sample((husband, wife), 2):
                template = rng.choice(_FROM_PARENT if rng.random() < 0.5 else _FROM_CHILD)
                words = {
                    "father": "mother" if people[parent].female else "father",
                    "son": "daughter" if people[child].female else "son",
                }
                sentences.append(template.format(parent=parent, child=child, age=people[child].age, **words))
            if child not in told:
                introduce(child)
                told.add(child)
        for a, b in pairwise(children):
            brother = "sister" if people[a].female else "brother"
            sentences.append(rng.choice(_SIBLINGS).format(a=a, b=b, brother=brother))
    a, b = rng.sample(sorted(people), 2)
    if people[a].age < people[b].age:
        a, b = b, a
    if people[a].age > people[b].age:
        sentences.append(rng.choice(_OLDER).format(a=a, b=b))
    old = couples[0][rng.randrange(2)]
    young = sorted({child for parent, child in parents if (old, parent) in parents})
    if young:
        grandfather = "grandmother" if people[old].female else "grandfather"
        sentences.append(rng.choice(_GRANDPARENTS).format(old=old, young=rng.choice(young), grandfather=grandfather))
    return tuple(sentences)


BUILTIN: dict[str, Builtin] = {
    "stdlib": Builtin("CPython's documentation: real English, about 340 documents, 2 MB", "text", stdlib),
    "families": Builtin("2,000 generated stories of families, every relation known", "text", families),
    "prosqa": Builtin(
        "generated questions like ProsQA's (16,768, 945 and 973), 3 to 6 steps through a graph", "records", prosqa
    ),
    "prosqa-small": Builtin(
        "smaller ones (18,002, 981 and 1,017), 2 or 3 steps among about 7 entities", "records", prosqa_small
    ),
    "arithmetic": Builtin("generated word problems (9,024, 476 and 500), 1 to 4 equations each", "records", arithmetic),
}


def open_builtin(spec: str) -> tuple[Kind, dict[str, Reader]]:
    """What `builtin:SPEC` contains, and a reader for each split that is given.

    Args:
        spec: a name of `BUILTIN`, or a task of the suite, with options if there are any (`recall:distance=8,keys=4`).

    Raises:
        InputError: no such data, or no such option.
    """
    name, _, options = spec.partition(":")
    if name in TASKS:
        chosen = task(spec)
        return chosen.kind, {split: partial(chosen.documents, split) for split in SPLITS}
    if name not in BUILTIN:
        known = [*BUILTIN, *TASKS]
        remedy = nearest(name, known) or f"; use one of {', '.join(known)}"
        raise InputError(f"data.source is 'builtin:{spec}': no such built-in data{remedy}")
    if ":" in spec:
        raise InputError(f"data.source is 'builtin:{spec}': builtin:{name} has no options, remove {(options or ':')!r}")
    builtin = BUILTIN[name]
    return builtin.kind, {"train": lambda: iter(builtin.documents())}


def described() -> dict[str, str]:
    """Every built-in source with its line for `mentalese list`."""
    found: dict[str, Builtin | type[Task]] = {**BUILTIN, **TASKS}
    return {f"builtin:{name}": source.description for name, source in found.items()}
