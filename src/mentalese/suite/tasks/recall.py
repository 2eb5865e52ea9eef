"""`builtin:recall`: the value that a key was bound to, some sentences ago (docs/tasks.md).

First come sentences that bind keys to values, each value to one key, then irrelevant sentences, then questions, each
about one of the keys, with their answers. Between a binding and the first question are `distance` - 1 sentences, or up
to `keys` - 1 more. What is scored is the value in the first question, a single token (`answer`): later ones help a
model to learn, but some repeat an answer. Half of the training documents or more are easier: they have 1, 2, 4, .. of
the `keys`, and the distances 1, 2, 4, .. below `distance`. Without them small models learn which values a document
has, and not whose they are.

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
from mentalese.suite.tasks.base import HELD_OUT, DrawnTask, Levels, Words, pick
from mentalese.values import checked_dataclass

MOST = 32  # keys of one word, and values
QUESTIONS = 8
WORDS = 5  # of every sentence
_VALUE = 3  # the place of the value in its sentence


@checked_dataclass("")
class Recall(DrawnTask):
    """Options of `builtin:recall`.

    Attributes:
        distance: the first question is at least this many sentences after its binding.
        keys: bindings per document.
        key_words: number of words of a key, 1 or 2.
        values: different values, from `keys` to 32. If there are as many as keys, each document has all of them.
    """

    distance: Words = 8
    keys: Annotated[int, Field(ge=1, le=MOST)] = 4
    key_words: Annotated[int, Field(ge=1, le=2)] = 2
    values: Annotated[int, Field(ge=2, le=MOST)] = 16

    name = "recall"
    version = 2
    kind = "text"
    description = "20,000 texts that bind 4 keys to values and ask for one 8 sentences later; options set sizes"

    def __post_init__(self) -> None:
        self.check("keys", self.keys <= self.values, "set at most as many as `values`")

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
        distance, count = self.distance, self.keys
        if split == "train":
            distance, count = pick(rng, _up_to(distance)), pick(rng, _up_to(count))
        keys = rng.sample(self.pairs[split], count)
        bound = dict(zip(keys, rng.sample(words("recall")["values"][: self.values], count)))
        sentences = [f" {key} owns {bound[key]} ." for key in keys]
        sentences += [pick(rng, words("recall")["quiet"]) for _ in range(distance - 1)]
        asked = [pick(rng, keys) for _ in range(QUESTIONS)]
        return Document.join([*sentences, *(f" {key} ? {bound[key]} ." for key in asked)])

    def answer(self, document: Document) -> int:
        """Return the place of the word that is scored, the first word of a document being 0.

        With a tokenizer for which every word is one token (`bpe:512` or more), this is the place of a token.
        """
        return WORDS * next(i for i, text in enumerate(document.segments or ()) if " ? " in text) + _VALUE

    def levels(self) -> Levels:
        """Return a floor of readers who know which values a document has, and not whose they are."""
        return Levels(1.0, 1 / self.keys, 1 / self.values, "accuracy")


def _up_to(most: int) -> list[int]:
    return [*(2**i for i in range((most - 1).bit_length())), most]
