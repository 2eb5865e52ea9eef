"""Pictures of runs and results: `mentalese figure NAME PATH ... --out FILE.svg`.

A family's figures live in its own folder (`Family.figures`); what all of them need is here: how a run is read, how a
picture looks, and that its numbers are written beside it. matplotlib is loaded when something is drawn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mentalese.errors import InputError, nearest
from mentalese.files import check_place

FORMATS = (".svg", ".png", ".pdf")

# Okabe and Ito (2008): told apart with any kind of colour vision. Markers say the same once more.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

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


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A kind of picture.

    Attributes:
        description: one line for `mentalese list`.
        takes: what the paths are, e.g. `RUN ...`.
        draw: from paths (and `text=` where `reads_text`) to a matplotlib figure and its numbers, ready for JSON.
        reads_text: whether it shows what a model makes of a text.
        reads_source: whether it reads many texts or asks many questions; `draw` then takes `source=` and `documents=`.
    """

    description: str
    takes: str
    draw: Callable[..., tuple[Any, dict[str, Any]]]
    reads_text: bool = False
    reads_source: bool = False


def figures() -> dict[str, Figure]:
    """All figures by name: `curves` and `positions`, and `FAMILY/NAME` for those of the families."""
    from mentalese.registry import families, load

    found = {"curves": CURVES, "positions": POSITIONS}
    for family in families().values():
        own = load(family.figures) if family.figures else {}
        found |= {f"{family.name}/{name}": figure for name, figure in own.items()}
    return found


def write_figure(
    name: str,
    paths: Sequence[str],
    out: Path,
    text: str | None = None,
    *,
    source: str | None = None,
    documents: int | None = None,
) -> dict[str, Any]:
    """Draws a figure into `out` and writes its numbers beside it, as JSON; returns these.

    Args:
        name: one of `figures()`.
        paths: runs, results or models, as the figure takes them.
        out: the picture; its suffix says in which format.
        text: for figures that show what a model makes of a text.
        source, documents: for figures of many texts or questions: which (`DataConfig.source`), where not the model's
            own, and how many of them.

    Raises:
        InputError: no such figure, nothing to draw, a place that cannot be written, or matplotlib is not installed.
    """
    known = figures()
    if name not in known:
        raise InputError(f"no figure is called {name!r}{nearest(name, known)} (`mentalese list` shows all)")
    figure = known[name]
    if not paths:
        raise InputError(f"the figure {name} takes {figure.takes}, and none was given")
    if out.suffix not in FORMATS:
        raise InputError(f"--out is {str(out)!r}: give a file that ends in {', '.join(FORMATS)}")
    check_place(out, "--out")
    if figure.reads_text != (text is not None):
        raise InputError(
            f"the figure {name} {'needs a text: give --text or --file' if figure.reads_text else _NO_TEXT}"
        )
    asked = {name: value for name, value in (("source", source), ("documents", documents)) if value is not None}
    if asked and not figure.reads_source:
        raise InputError(f"the figure {name} reads no data: leave out --data and --documents")
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("figures need matplotlib: pip install 'mentalese[figures]'") from error

    from mentalese import provenance
    from mentalese.files import write_json

    options = asked | ({"text": text} if figure.reads_text else {})
    with matplotlib.rc_context(_STYLE):
        picture, numbers = figure.draw(list(paths), **options)
        temporary = out.with_name(f".{out.stem}{out.suffix}")
        metadata = {"Date": None} if out.suffix == ".svg" else None
        picture.savefig(temporary, dpi=150, metadata=metadata)
        temporary.replace(out)
    about = {"figure": name, "paths": list(paths), "commit": provenance.commit(), "command": provenance.command()}
    write_json(out.with_suffix(".json"), about | numbers)
    return numbers


_NO_TEXT = "shows runs, not a text: leave out --text and --file"


# -- reading runs ------------------------------------------------------------------------------------------------------


def read_result(path: str) -> dict[str, Any]:
    """A `result.json`, given by itself or by its run's folder."""
    file = Path(path) / "result.json" if Path(path).is_dir() else Path(path)
    try:
        result = json.loads(file.read_text())
    except FileNotFoundError:
        raise InputError(f"{file} does not exist: give a result.json, or the folder of a run that is over") from None
    except (ValueError, OSError) as error:
        raise InputError(f"{file} cannot be read ({error}): give a result.json of a run") from error
    if not (isinstance(result, dict) and {"recipe", "test", "curve", "config"} <= result.keys()):
        raise InputError(f"{file} is no result of a run: give a result.json")
    return result


def read_run(path: str) -> list[dict[str, Any]]:
    """The records of a run's `metrics.jsonl`, which may go on still."""
    from mentalese.training.tracking import read_metrics

    file = Path(path) / "metrics.jsonl"
    if not file.is_file():
        raise InputError(f"{path!r} holds no metrics.jsonl: give the folder of a run")
    return read_metrics(file)


def best_step(records: list[dict[str, Any]]) -> int:
    """Where a run's validation perplexity was lowest; its last step where it has not been validated."""
    validated = [(record["validation"]["perplexity"], record["step"]) for record in records if "validation" in record]
    return min(validated)[1] if validated else records[-1]["step"]


def labels(paths: Sequence[str]) -> list[str]:
    """A name for each path: its run's recipe, or the folder where recipes are the same or unknown."""
    names = []
    for path in paths:
        config = Path(path) / "config.json"
        recipe = json.loads(config.read_text()).get("recipe") if config.is_file() else None
        names.append(recipe["name"] if isinstance(recipe, dict) else path.removeprefix("hub:"))
    alike = {name for name in names if names.count(name) > 1}
    return [Path(path).name if name in alike else name for path, name in zip(paths, names)]


# -- drawing -----------------------------------------------------------------------------------------------------------


def canvas(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Any, Any]:
    """A matplotlib figure of so many inches, and its axes [rows, columns]."""
    from matplotlib.figure import Figure as Canvas

    picture = Canvas(figsize=(width, height), layout="constrained")
    return picture, picture.subplots(rows, columns, squeeze=False, **options)


def footnote(picture: Any, text: str) -> None:
    """A line of small grey print below a picture."""
    picture.supxlabel(text, fontsize=8, color="0.4")


def drawable(text: str, width: int, family: str | None = None) -> str:
    """A text on one line of so many characters, with � for what the font (of this family) has no sign for."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    signs = get_font(findfont(FontProperties(family=family))).get_charmap()
    text = text.replace("\n", "↵").replace("\t", "→")
    text = "".join(sign if ord(sign) in signs and sign.isprintable() else "�" for sign in text)
    return text if len(text) <= width else text[: width - 1] + "…"


def count_axis(axis: Any, label: str) -> None:
    """An axis of large numbers: 500k, 1.34M, 20M."""
    from mentalese.compare.report import short_count

    axis.set_major_formatter(lambda value, _: short_count(value))
    axis.set_label_text(label)


def ticks_at(axis: Any, values: Sequence[float]) -> None:
    """On a logarithmic axis of counts: ticks at these values, as far as they have room, and nowhere else."""
    from matplotlib.ticker import FixedLocator, NullLocator

    kept: list[float] = []
    for value in sorted(set(values)):
        if not kept or value > 1.25 * kept[-1]:
            kept.append(value)
    axis.set_major_locator(FixedLocator(kept))
    axis.set_minor_locator(NullLocator())


def _curves(paths: list[str]) -> tuple[Any, dict[str, Any]]:
    """Validation perplexity and training loss against tokens; of runs that answer questions, accuracy against steps."""
    results = [read_result(path) for path in paths]
    asked = ["accuracy" in result["test"] for result in results]
    if len(set(asked)) > 1:
        text, questions = paths[asked.index(False)], paths[asked.index(True)]
        raise InputError(f"{questions} tells an accuracy and {text} a perplexity: draw them apart")
    metric, x, clocks = ("accuracy", "step", "steps") if asked[0] else ("perplexity", "tokens", "tokens")
    picture, ((left, right),) = canvas(1, 2, 10, 3.6)
    numbers: dict[str, Any] = {"runs": []}
    ends: dict[int, set[int]] = {}  # the last steps of stages, and which
    for i, (path, result) in enumerate(zip(paths, results)):
        color, test = COLORS[i % len(COLORS)], result["test"][metric]
        label = f"{result['recipe']}, test {f'{test:.1%}' if asked[0] else f'{test:.1f}'}"
        series: dict[str, Any] = {}
        for axes, name, style in (
            (left, f"validation_{metric}", {"marker": MARKERS[i % len(MARKERS)], "markersize": 3}),
            (right, "loss", {"linewidth": 1}),
        ):
            points = [(point[x], point[name]) for point in result["curve"] if name in point]
            axes.plot(*zip(*points), color=color, label=label, **style)
            series[name] = [list(point) for point in points]
        if asked[0]:
            series["stages"] = stages = _stages(result["curve"])
            if len(stages) <= 4:  # a stage an epoch would hide the curves
                for end, stage in stages[:-1]:
                    ends.setdefault(end, set()).add(stage)
        numbers["runs"].append({"path": path, "recipe": result["recipe"], f"test_{metric}": test} | series)
    if asked[0]:
        for end, which in ends.items():
            left.axvline(end, color="0.5", linewidth=0.8, linestyle="--")
            left.annotate(
                f"stage {', '.join(map(str, sorted(which)))} ends", (end, 1), xycoords=("data", "axes fraction"),
                xytext=(-3, -3), textcoords="offset points", ha="right", va="top", fontsize=7, color="0.4",
            )  # fmt: skip
        left.set(title="validation accuracy at the stage of training", ylim=(-0.02, 1.12))
        left.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        right.set(title="training loss, nats a token", ylim=(0, None))
    else:
        # The steep start is cut off, or it would leave the ends, which are compared, a few pixels.
        left.set(title="validation perplexity", yscale="log", ylim=(None, 1000))
        right.set(title="training loss, nats a token", ylim=(None, 7.5))
        for formatter in (left.yaxis.set_major_formatter, left.yaxis.set_minor_formatter):
            formatter("{x:.0f}")
    for axes in (left, right):
        count_axis(axes.xaxis, f"training {clocks}")
    left.legend()
    return picture, numbers


def _stages(curve: list[dict[str, Any]]) -> list[list[int]]:
    """`[last step, stage]` of each stage of a curriculum, in order, as far as validations tell."""
    last = {point["stage"]: point["step"] for point in curve if "stage" in point}
    return [[step, stage] for stage, step in last.items()]


CURVES = Figure(
    description="training loss and validation perplexity against tokens, or accuracy and stages against steps",
    takes="RESULT ...",
    draw=_curves,
)


def _positions(paths: list[str], **options: Any) -> tuple[Any, dict[str, Any]]:
    from mentalese.analyses.positions import draw_positions

    return draw_positions(paths, **options)


POSITIONS = Figure(
    description="nats a token of the test split by the token's place in its document: what long context is worth",
    takes="MODEL ...",
    draw=_positions,
    reads_source=True,
)
