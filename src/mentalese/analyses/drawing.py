"""What all pictures need: how a run is read, and how a picture looks. matplotlib is loaded when something is drawn."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mentalese.errors import InputError

# Okabe and Ito (2008): told apart with any kind of colour vision. Markers say the same once more.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


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
