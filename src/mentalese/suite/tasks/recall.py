"""`builtin:recall`: the value that a key was bound to, some sentences ago (docs/tasks.md).

First come sentences that bind keys to values, then irrelevant sentences, then a question for each key, in another
order, with its answer. Between a binding and its question are at least `distance` - 1 sentences and at most
`distance` + 2 `keys` - 3. What is scored is the value in each question, a single token (`answers`).

    optimum  100%: a reader with a dictionary
    floor    the best guess of a reader who sees only the `window` sentences before the question: right if the binding
             is among them, else 1 / `values`, as values are independent and uniform
    chance   1 / `values`

Keys of two words in validation and test never occur in training; with `key_words=1` (`the cub owns bowl .`), which a
small model learns sooner, all splits have the same keys.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cached_property
from itertools import count as numbers
from typing import Annotated

from pydantic import Field

from mentalese.data.documents import Document
from mentalese.suite.tasks.base import HELD_OUT, Flag, Levels, Task, Words
from mentalese.values import NonNegative, checked_dataclass

# Words in strings: a list of each would be pages long.
# ruff: noqa: SIM905
_FIRST = (
    "bad big bold calm cold cool dark deaf dry dull fair fast fat fine free glad good gray green hot kind late lazy "
    "long loud mad mean mild neat new nice odd old pale poor proud quick rare red rich rude sad shy sick slim slow "
    "small smart soft sore sour tall tame thin tidy tiny tired ugly vast warm weak wet wild wise young"
).split()[:32]
_SECOND = (
    "ant ape bat bear bee bird boar bug calf cat clam cod colt cow crab crow cub deer dog dove duck eel elk ewe fawn "
    "fish flea fly fox frog goat goose"
).split()
_VALUES = (
    "axe bag ball bed bell belt boat book boot bowl box broom cake can cap car card cart chair clock coat coin comb "
    "cup desk doll door drum fan flag flute fork"
).split()
_QUIET = tuple(
    f" the {subject} {verb} ."
    for subject, verbs in {
        "night was": "long short still clear",
        "road was": "long short steep clear",
        "rain fell": "again softly hard soon",
        "sun rose": "again late early soon",
    }.items()
    for verb in verbs.split()
)
WORDS = 5  # of every sentence
_VALUE = 3  # the place of the value in its sentence


@checked_dataclass("")
class Recall(Task):
    """Options of `builtin:recall`.

    Attributes:
        distance: a question is at least this many sentences after its binding.
        keys: bindings per document.
        key_words: number of words of a key, 1 or 2.
        values: different values, at most 32.
        window: sentences before a question that the floor sees.
        nearer: 1 gives training documents the distances 1, 2, 4, .. and `distance`, each as likely; 0 only `distance`.
    """

    distance: Words = 8
    keys: Annotated[int, Field(ge=1, le=64)] = 4
    key_words: Annotated[int, Field(ge=1, le=2)] = 2
    values: Annotated[int, Field(ge=2, le=len(_VALUES))] = 16
    window: NonNegative = 1
    nearer: Flag = 0

    name = "recall"
    version = 1
    kind = "text"
    description = "20,000 texts that bind 4 keys to values and ask for them 8 sentences later; options set sizes"

    def __post_init__(self) -> None:
        self.check("keys", self.key_words == 2 or self.keys <= len(_SECOND), f"set at most {len(_SECOND)}")

    @cached_property
    def pairs(self) -> dict[str, list[str]]:
        """The keys of each split."""
        if self.key_words == 1:
            return {split: [f"the {word}" for word in _SECOND] for split in ("train", *HELD_OUT)}
        by_split: dict[str, list[str]] = {}
        for first in _FIRST:
            for second in _SECOND:
                by_split.setdefault(self.owner(f"{first} {second}"), []).append(f"{first} {second}")
        return by_split

    def generate(self, split: str) -> Iterator[Document]:
        values, distances = _VALUES[: self.values], [self.distance]
        if self.nearer and split == "train":
            distances = [*(2**i for i in range((self.distance - 1).bit_length())), self.distance]
        for i in numbers():
            rng = random.Random(self.key(split, i))
            keys = rng.sample(self.pairs[split], self.keys)
            bound = {key: values[int(rng.random() * len(values))] for key in keys}
            sentences = [f" {key} owns {bound[key]} ." for key in keys]
            distance = distances[int(rng.random() * len(distances)) if distances[1:] else 0]
            sentences += [_QUIET[int(rng.random() * len(_QUIET))] for _ in range(distance - 1)]
            rng.shuffle(keys)
            sentences += [f" {key} ? {bound[key]} ." for key in keys]
            yield Document.join(sentences)

    def answers(self, document: Document) -> tuple[int, ...]:
        """Return the places of the words that are scored, the first word of a document being 0.

        With a tokenizer for which every word is one token (`bpe:1024` or more), these are places of tokens.
        """
        sentences = document.segments or ()
        return tuple(WORDS * i + _VALUE for i, sentence in enumerate(sentences) if " ? " in sentence)

    def levels(self) -> Levels:
        questions = visible = 0
        for document in self.documents("test"):
            bound: dict[str, int] = {}
            for i, sentence in enumerate(document.segments or ()):
                if " owns " in sentence:
                    bound[sentence.partition(" owns ")[0]] = i
                elif " ? " in sentence:
                    questions += 1
                    visible += i - bound[sentence.partition(" ? ")[0]] <= self.window
        chance = 1 / self.values
        return Levels(1.0, visible / questions + (1 - visible / questions) * chance, chance, "accuracy")
