"""Prompts to begin with: beginnings of documents from a model's test split, and their continuations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice

from mentalese.data.sources import opened_source
from mentalese.evaluation.answer_rule import final_answer
from mentalese.models.saved import Saved

_WORDS = 16  # of a text's beginning
_MORE = 12  # words of how it goes on
_LABEL = 44  # characters


@dataclass(frozen=True)
class Example:
    """A prompt, and its continuation in its document: for a question the right answer."""

    prompt: str
    rest: str
    question: bool

    @property
    def label(self) -> str:
        """A line that distinguishes it from others: the end of a question, the beginning of a text."""
        line = " ".join(self.prompt.split())
        if len(line) <= _LABEL:
            return line
        return f"… {line[-_LABEL:].partition(' ')[2]}" if self.question else f"{line[:_LABEL].rpartition(' ')[0]} …"


def examples(saved: Saved, count: int = 3) -> list[Example]:
    """Return prompts from the test split of the built-in source of the model's training; none for other sources."""
    if saved.recipe is None or not saved.data.source.startswith("builtin:"):
        return []
    prompts = []
    source = opened_source(saved.data)
    for document in islice(source.documents("test"), count):
        if saved.layout.questions and document.segments:
            prompts.append(Example(document.segments[0].strip(), final_answer(document.segments[-1]), True))
        else:
            prompts.append(_beginning(document.text))
    return prompts


def _beginning(text: str) -> Example:
    """Return a text up to the first question that it answers itself (`?` as a word of its own), or its first words."""
    words = re.findall(r"\s*\S+", text)
    stops = [number for number, word in enumerate(words, 1) if word.strip() == "?"]
    cut = stops[0] if stops else min(_WORDS, len(words) // 2)
    return Example("".join(words[:cut]), "".join(words[cut : cut + _MORE]).strip(), False)
