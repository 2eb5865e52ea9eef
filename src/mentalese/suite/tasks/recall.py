"""`builtin:recall`: the value that a key was bound to, some sentences ago (docs/tasks.md).

First come sentences that bind keys to values, then irrelevant sentences, then a question for each key, in another
order, with its answer. Between a binding and its question are at least `distance` - 1 sentences and at most
`distance` + 2 `keys` - 3. What is scored is the value in each question, a single token (`answers`).

Keys of two words in validation and test never occur in training; with `key_words=1` (`the cub owns bowl .`), which a
small model learns sooner, all splits have the same keys.
"""

from __future__ import annotations

import random
from functools import cached_property
from typing import Annotated

from pydantic import Field

from mentalese.data.documents import Document
from mentalese.data.generated import words
from mentalese.suite.tasks.base import HELD_OUT, DrawnTask, Flag, Levels, Words, pick
from mentalese.values import NonNegative, checked_dataclass

MOST = 32  # keys of one word, and values
WORDS = 5  # of every sentence
_VALUE = 3  # the place of the value in its sentence


@checked_dataclass("")
class Recall(DrawnTask):
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
    values: Annotated[int, Field(ge=2, le=MOST)] = 16
    window: NonNegative = 1
    nearer: Flag = 0

    name = "recall"
    version = 1
    kind = "text"
    description = "20,000 texts that bind 4 keys to values and ask for them 8 sentences later; options set sizes"

    def __post_init__(self) -> None:
        self.check("keys", self.key_words == 2 or self.keys <= MOST, f"set at most {MOST}")

    @cached_property
    def pairs(self) -> dict[str, list[str]]:
        """The keys of each split."""
        if self.key_words == 1:
            return {split: [f"the {word}" for word in words("recall")["second"]] for split in ("train", *HELD_OUT)}
        by_split: dict[str, list[str]] = {}
        for first in words("recall")["first"]:
            for second in words("recall")["second"]:
                by_split.setdefault(self.owner(f"{first} {second}"), []).append(f"{first} {second}")
        return by_split

    def document(self, split: str, rng: random.Random) -> Document:
        values, distances = words("recall")["values"][: self.values], [self.distance]
        if self.nearer and split == "train":
            distances = [*(2**i for i in range((self.distance - 1).bit_length())), self.distance]
        keys = rng.sample(self.pairs[split], self.keys)
        bound = {key: pick(rng, values) for key in keys}
        sentences = [f" {key} owns {bound[key]} ." for key in keys]
        distance = pick(rng, distances) if distances[1:] else self.distance
        sentences += [pick(rng, words("recall")["quiet"]) for _ in range(distance - 1)]
        rng.shuffle(keys)
        return Document.join([*sentences, *(f" {key} ? {bound[key]} ." for key in keys)])

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
