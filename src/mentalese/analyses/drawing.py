"""Shared code of all figures: readers of runs, and styles. matplotlib is loaded when a figure is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mentalese.errors import InputError, require
from mentalese.files import read_json
from mentalese.formatting import short_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure as Picture

    from mentalese.data.batch import Batch
    from mentalese.data.split import Split
    from mentalese.models.saved import Saved

# Okabe and Ito (2008): distinguishable with any kind of colour vision. Markers repeat the distinction.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
Numbers = dict[str, Any]
"""Numbers of a figure as JSON has them, by name."""
Drawing = tuple["Picture", Numbers]
"""A picture and its numbers."""


@dataclass(frozen=True)
class Figure:
    """A kind of figure.

    Attributes:
        description: one line for `mentalese list`.
        takes: the kinds of paths: `RUN ...` (one or more), `MODEL`, or `MODEL [OTHER]` (one or two).
        draw: function from paths to a matplotlib figure and its numbers, for JSON. It takes `text` if it shows how a
            model reads one text, `source` and `documents` if it reads many texts or questions.
    """

    description: str
    takes: str
    draw: Callable[..., Drawing]


def read_result(path: str) -> Numbers:
    """Return a `result.json`, named by itself or by the folder of its run."""
    file = Path(path) / "result.json" if Path(path).is_dir() else Path(path)
    result = read_json(file) if file.exists() else {}
    whole = {"recipe", "test", "curve", "config"} <= result.keys()
    require(whole, "the figure's path", path, "use the result.json of a finished run, or its folder")
    return result


def read_run(path: str) -> list[Numbers]:
    """Return the records of a run's `metrics.jsonl`; the run may still be training."""
    from mentalese.training.tracking import read_metrics

    file = Path(path) / "metrics.jsonl"
    require(file.is_file(), "the figure's path", path, "use the folder of a run, which contains metrics.jsonl")
    return read_metrics(file)


def in_rows(saved: Saved, longest: int | None = None) -> Saved:
    """Return a model of text, which reads rows of its training's length (at most `longest`) that do not overlap."""
    window = saved.layout.sequence_length if saved.layout.plain else None
    if window is None:
        raise InputError(f"layout of {saved.path} is {saved.layout.kind!r}: use a model of 'packed' or 'per_document'")
    length = min(window, longest or window)
    return saved.scored_by(tokens="lexical", context_length=length, stride=length - 1)


def batches(saved: Saved, split: Split, title: str, rows: int | None = None) -> Iterator[Batch]:
    """Yield a split, or its first rows, in batches on the model's device, with progress on standard error."""
    from mentalese.data.batch import to_device
    from mentalese.data.evaluation import evaluation_batches
    from mentalese.screen import progress

    evaluation = saved.evaluation
    count = None if rows is None else -(-rows // evaluation.batch_size)
    every = list(islice(evaluation_batches(split, saved.layout, evaluation, saved.tokenizer), count))
    total, done = sum(len(batch["input_ids"]) for batch in every), 0
    total = total if rows is None else min(rows, total)
    with progress(title, total) as bar:
        for batch in every:
            yield to_device({name: values[: total - done] for name, values in batch.items()}, saved.device)
            done += len(batch["input_ids"])
            bar.update(min(done, total))


def canvas(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Picture, np.ndarray]:
    """Return a matplotlib figure of `width` by `height` inches, and its axes [rows, columns]."""
    from matplotlib.figure import Figure as Canvas

    picture = Canvas(figsize=(width, height), layout="constrained")
    return picture, picture.subplots(rows, columns, squeeze=False, **options)


def line_style(number: int) -> dict[str, Any]:
    """Colour and marker of the line with this number."""
    return {"color": COLORS[number % len(COLORS)], "marker": MARKERS[number % len(MARKERS)]}


def footnote(picture: Picture, text: str) -> None:
    """Write a line of small grey print below a figure."""
    picture.supxlabel(text, fontsize=8, color="0.4")


def drawable(text: str, width: int, family: str | None = None) -> str:
    """Return a text on one line of `width` characters, with � for characters that the font (of this family) lacks."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    signs = get_font(findfont(FontProperties(family=family))).get_charmap()
    text = text.replace("\n", "↵").replace("\t", "→")
    text = "".join(sign if ord(sign) in signs and sign.isprintable() else "�" for sign in text)
    return text if len(text) <= width else text[: width - 1] + "…"


def drawable_token(token: str) -> str:
    """Return a token's text with visible white space; a dot is a space."""
    return drawable(token.replace(" ", "·"), 12)


def mean_and_std(values: Any) -> dict[str, list[float]]:
    """Mean and standard deviation over the rows of [rows, n]."""
    rows = np.asarray(values, dtype=np.float64)
    return {"mean": rows.mean(0).tolist(), "std": rows.std(0).tolist()}


def band(panel: Axes, x: Sequence[float], series: dict[str, list[float]], **style: Any) -> None:
    """Draw a line through the means of `mean_and_std`, in a band of one standard deviation."""
    mean, std = np.array(series["mean"]), np.array(series["std"])
    panel.plot(x, mean, **style)
    interval_band(panel, x, (mean - std, mean + std), style["color"])


def interval_band(panel: Axes, x: Sequence[float], interval: Any, color: str) -> None:
    """Shade between the low and the high ends of an interval [2, n]; `None`: there is none."""
    if interval is not None:
        panel.fill_between(x, *interval, color=color, alpha=0.13, linewidth=0)


def plain_ticks(axis: Axis) -> None:
    """Write numbers of a logarithmic axis without powers of ten."""
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("{x:g}")


def heat_map(panel: Axes, values: np.ndarray, rows: Sequence[str], columns: Sequence[str], **style: Any) -> QuadMesh:
    """Draw values [rows, columns] as cells with names at their rows and columns."""
    image = panel.pcolormesh(values, edgecolors="white", linewidth=1, **style)
    panel.set_xticks(np.arange(len(columns)) + 0.5, columns, fontsize=8, parse_math=False)
    panel.set_yticks(np.arange(len(rows)) + 0.5, rows)
    panel.tick_params(length=0)
    panel.grid(visible=False)
    panel.spines[:].set_visible(False)
    return image


def count_axis(axis: Axis, label: str) -> None:
    """Format an axis of large numbers: 500k, 1.34M, 20M."""
    axis.set_major_formatter(lambda value, _: short_count(value))
    axis.set_label_text(label)


def percent_axis(axis: Axis) -> None:
    """Format an axis of shares: 0%, 50%, 100%, or 50.5% if ticks are close."""
    axis.set_major_formatter(lambda value, _: f"{100 * value:g}%")


def ticks_at(axis: Axis, values: Sequence[float]) -> None:
    """On a logarithmic axis of counts: ticks at these values, if there is room, and nowhere else."""
    from matplotlib.ticker import FixedLocator, NullLocator

    ticks: list[float] = []
    for value in sorted(set(values)):
        if not ticks or value > 1.25 * ticks[-1]:
            ticks.append(value)
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
