"""Formats of numbers and models on figures, pages and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mentalese.files import JsonObject, read_json


def short_count(number: float) -> str:
    """`1310720` -> `1.31M`: three digits and k, M, G, T, P or E."""
    scale = 0
    while abs(number) >= 999.5 and scale < 6:
        number, scale = number / 1000, scale + 1
    digits = 0 if scale == 0 and number == int(number) else max(0, 2 - int(math.log10(max(abs(number), 1))))
    text = f"{number:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + ["", "k", "M", "G", "T", "P", "E"][scale]


def scored_as(of: Mapping[str, object]) -> str:
    """Return the estimator after a score that is not the likelihood in one pass: ` (block-not-causal)`."""
    estimator = of.get("estimator", "exact")
    return "" if estimator == "exact" else f" ({estimator})"


def unanswered(figure: Mapping[str, Any]) -> str:
    """Return the numbers of answers cut at the limit, and of questions not asked or left out: `, 3 unfinished`."""
    counts = [f"{figure['unfinished']:,} unfinished"] if "unfinished" in figure else []
    if not_asked := figure.get("not_asked"):
        which = ", ".join(f"{number + 1:,}" for number in not_asked[:3]) + (", .." if len(not_asked) > 3 else "")
        counts.append(f"{len(not_asked):,} not asked, as long as the model's context (question {which})")
    if left_out := figure.get("left_out"):
        counts.append(f"{left_out:,} left out, longer than layout.sequence_length")
    return "".join(f", {count}" for count in counts)


def score_text(value: float, unit: str) -> str:
    """Return a score of the mechanism suite: a share as percent, nats and bits with three decimals."""
    return f"{value:.1%}" if unit == "accuracy" else f"{value:.3f}"


def method_name(name: str) -> str:
    """`topics/gpt2-rope` -> `gpt2-rope`: a recipe without its task."""
    return name.partition("/")[2]


def share_text(value: float) -> str:
    """`0.714` -> `71%`."""
    return f"{round(100 * value) + 0}%"


def signed(value: float, digits: int) -> str:
    """`0.71` -> `+0.7`; zero has a plus, also below it."""
    return f"{value:+z.{digits}f}"


def time_text(created: str) -> str:
    """`2026-01-02T03:04:05+00:00` -> `2026-01-02 03:04:05 UTC`."""
    return created.replace("T", " ").replace("+00:00", " UTC")


def round_numbers(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, 20, ... from `low` to `high`, both above 0: the ticks of a logarithmic axis."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m * 10.0**p for p in powers for m in (1, 2, 5) if low <= m * 10.0**p <= high]


def by_next_token(point: JsonObject) -> JsonObject:
    """Return a point of a learning curve with the next token's `loss` (`ntp`), comparable among models, if known."""
    return point | {"loss": point["ntp"]} if "ntp" in point else point


def model_names(paths: Sequence[str]) -> list[str]:
    """Return a name for each path: its run's recipe, or the end of the path if recipes are the same."""
    names = []
    for path in paths:
        config = Path(path) / "config.json"
        recipe = read_json(config).get("recipe") if config.is_file() else None
        names.append(recipe["name"] if isinstance(recipe, dict) else path.removeprefix("hub:"))
    alike = {name for name in names if names.count(name) > 1}
    # Of these, as many folders as make them different: `a/seed-0`, `b/seed-0`.
    parts = {path: Path(path).parts for path, name in zip(paths, names) if name in alike}
    tails: dict[str, str] = {}
    for depth in range(1, max(map(len, parts.values()), default=0) + 1):
        tails = {path: "/".join(folders[-depth:]) for path, folders in parts.items()}
        if len({*tails.values()}) == len(parts):
            break
    return [tails[path] if name in alike else name for path, name in zip(paths, names)]


def short_names(names: Sequence[str]) -> list[str]:
    """Remove the parts that all names share: `gpt2/tiny`, `llama/tiny-wide` -> `gpt2`, `llama-wide`."""
    halves = [name.partition("/")[::2] for name in names]
    families, sizes = [half[0] for half in halves], [half[1] for half in halves]
    shared = sizes[0].partition("-")[0]
    if all(size.partition("-")[0] == shared for size in sizes):
        short = [family + size.removeprefix(shared) for family, size in halves]
    else:
        short = sizes if len(set(families)) == 1 else list(names)
    return short if len(set(short)) == len(names) else list(names)
