"""Figures of runs and results by name: `mentalese figure NAME PATH ... --out FILE.svg`.

A family names its own in `Family.figures`. The numbers of a figure are written next to it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path

from mentalese.analyses.curves import CURVES, POSITIONS
from mentalese.analyses.drawing import Figure, Numbers
from mentalese.errors import InputError, nearest, require
from mentalese.files import check_place, read_json
from mentalese.install import install_command

FORMATS = (".svg", ".png", ".pdf")

_STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "figure.facecolor": "white",
    "svg.hashsalt": "mentalese",  # the same numbers give the same file
}


def figures() -> dict[str, Figure]:
    """Return all figures by name: `curves`, `positions`, `suite`, `suite-matrix`, and `FAMILY/NAME` for families."""
    from mentalese.registry import families, load

    every = {"curves": CURVES, "positions": POSITIONS, **load("mentalese.suite.figures:FIGURES")}
    for family in families().values():
        family_figures = load(family.figures) if family.figures else {}
        every |= {f"{family.name}/{name}": figure for name, figure in family_figures.items()}
    return every


def write_figure(
    name: str,
    paths: Sequence[str],
    out: Path,
    text: str | None = None,
    *,
    source: str | None = None,
    documents: int | None = None,
) -> Numbers:
    """Draw a figure into `out`, write its numbers next to it as JSON, and return them.

    Args:
        name: one of `figures()`.
        paths: runs, results or models, as the figure takes them.
        out: the figure's file; its suffix is the format, one of `FORMATS`.
        text: the text, for figures that show how a model reads one text.
        source, documents: the source (`DataConfig.source`; `None`: the model's), and the number of documents to read,
            for figures of many texts or questions.

    Raises:
        InputError: the figure does not exist, there is nothing to draw, a file cannot be written, the numbers would
            replace a file that is not from a figure, or matplotlib is not installed.
    """
    available = figures()
    require(name in available, "figure", name, f"`mentalese list` shows all{nearest(name, available)}")
    figure = available[name]
    kinds, taken = figure.takes.split(), inspect.signature(figure.draw).parameters
    fits = len(paths) in range(sum(kind[0] != "[" for kind in kinds), len(kinds) + 1) or "..." in kinds
    require(bool(paths) and fits, f"paths of the figure {name}", [*paths], f"use {figure.takes}")
    require(out.suffix in FORMATS, "--out", str(out), f"use a file that ends in {', '.join(FORMATS)}")
    check_place(out, "--out", source)
    place = out.with_suffix(".json")
    try:
        free = not place.exists() or "figure" in read_json(place)
    except InputError:  # no JSON object
        free = False
    remedy = f"the numbers would replace {place}, which no figure has written; use another name"
    require(free, "--out", str(out), remedy)
    remedy = "needs a text, use --text or --file" if "text" in taken else "shows runs, remove --text and --file"
    require(("text" in taken) == (text is not None), "text", text, f"the figure {name} {remedy}")
    options = {"source": source, "documents": documents, "text": text}
    options = {option: value for option, value in options.items() if value is not None}
    for option, value in options.items():
        require(option in taken, option, value, f"the figure {name} reads no data, remove --data and --documents")
    try:
        import matplotlib
    except ImportError as error:
        raise InputError(f"figures need matplotlib: {install_command('figures')}") from error

    from mentalese import provenance
    from mentalese.files import compact_json, whole_file, write_text

    with matplotlib.rc_context(_STYLE):
        picture, numbers = figure.draw(list(paths), **options)
        metadata = {"Date": None} if out.suffix == ".svg" else None
        with whole_file(out) as file:
            picture.savefig(file, dpi=150, metadata=metadata, format=out.suffix.removeprefix("."))
            if out.suffix == ".svg":
                # One line per group; matplotlib writes one per point.
                svg = re.sub(r" *\n\s*+(?!<g id=|\Z)", " ", file.read_text(encoding="utf-8"))
                file.write_text(svg, encoding="utf-8")
    about = {"figure": name, "paths": list(paths), "commit": provenance.commit(), "command": provenance.command()}
    write_text(place, compact_json(about | numbers) + "\n")
    return numbers
