"""`mentalese figure`: draws runs, results and models."""

from __future__ import annotations

from typing import Annotated

from tyro.conf import Positional, arg

from mentalese.commands.options import given_text
from mentalese.values import Place, Positive, Texts, checked_dataclass


@checked_dataclass("")
class Options:
    """Draws a figure of runs, results or models; `mentalese list` names all figures.

    Attributes:
        figure: the name of the figure.
        paths: runs, results or models.
        out: the picture, .svg, .png or .pdf; its numbers are written next to it as .json.
        text: the text, for figures of one text.
        file: a text file instead.
        data: another source than the model's own, for figures of many texts or questions.
        documents: read only the first N of them.
    """

    figure: Annotated[Positional[str], arg(metavar="NAME")]
    paths: Annotated[Positional[Texts], arg(metavar="PATH")] = ()
    out: Place
    text: str | None = None
    file: Place | None = None
    data: str | None = None
    documents: Positive | None = None


def run(options: Options) -> None:
    text = given_text(options.text, options.file)
    from mentalese.analyses.figures import write_figure

    write_figure(
        options.figure, list(options.paths), options.out, text, source=options.data, documents=options.documents
    )
    print(f"{options.out}, and its numbers in {options.out.with_suffix('.json')}")
