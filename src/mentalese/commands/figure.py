"""`mentalese figure`: draws runs, results and models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mentalese.commands.options import one, read
from mentalese.commands.shared import given_text
from mentalese.errors import InputError


@dataclass(kw_only=True)
class Options:
    """Draws a figure of runs, results or models; `mentalese list` names all figures.

    Attributes:
        out: the picture, .svg, .png or .pdf, required; its numbers are written next to it as .json.
        text: the text, for figures of one text.
        file: a text file instead.
        data: another source than the model's own, for figures of many texts or questions.
        documents: read only the first N of them.
    """

    out: Path | None = None
    text: str | None = None
    file: Path | None = None
    data: str | None = None
    documents: int | None = None


def run(words: list[str]) -> None:
    names, options = read(Options, words, "figure")
    name = one(names[:1], "figure", "NAME")
    if options.out is None:
        raise InputError("`mentalese figure` needs --out: set the picture's file, e.g. --out figure.svg")
    text = given_text(options.text, options.file)
    from mentalese.analyses.figures import write_figure

    write_figure(name, names[1:], options.out, text, source=options.data, documents=options.documents)
    print(f"{options.out}, and its numbers in {options.out.with_suffix('.json')}")
