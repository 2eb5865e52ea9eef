"""Charts of pages: curves over training, and quality against cost.

A chart is an SVG that stretches with the page, and labels that do not, so text keeps its size on every screen.
Horizontal coordinates are thousandths of the plot's width, vertical coordinates are pixels. `macros.html.j2` draws it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from mentalese.formatting import by_next_token, round_numbers, short_count
from mentalese.training.run_folder import RunResult

HEIGHT = 260  # px of a plot
LINE = 16  # px between two labels
POINTS = 200  # maximum of a line
STOPS = 120  # maximum of places at which the values of a chart are shown
COLOURS = 6  # of the palette; further models reuse them with dashes, or as rings


Readings = dict[str, Any]
"""Values of a chart, or of a line of it, as its script reads them."""


class Shape(NamedTuple):
    """A path: its classes, its points, and its tooltip."""

    classes: str
    path: str
    tip: str = ""


class Label(NamedTuple):
    """The text at the right of a plot, at `y` if there is room: a number, a name, and a cost."""

    model: int
    y: float
    figure: str
    name: str
    cost: str = ""


@dataclass(frozen=True)
class Chart:
    """A figure, ready to be drawn.

    Attributes:
        scale: a remark about the axes.
        axis: the unit below the horizontal axis.
        readings: its values for the page's script: `stops`, each a coordinate and its text, and for each of `lines` its
            `name`, its number of stops (`runs`), and at each the `y`, the `place` and the `text` of its label.
    """

    title: str
    scale: str
    axis: str
    shapes: list[Shape]
    labels: list[Label]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    readings: Readings = field(default_factory=dict)
    height: int = HEIGHT

    @property
    def staged(self) -> bool:
        return any(shape.classes.startswith("stage") for shape in self.shapes)

    @property
    def placed_labels(self) -> list[tuple[Label, float]]:
        """The labels, each with a place where it overlaps no other."""
        return list(zip(self.labels, spread([label.y for label in self.labels], LINE, HEIGHT)))


@dataclass(frozen=True)
class Measure:
    """An axis: its unit, the functions that format a number and a tick, and its scale.

    Attributes:
        step: unit of which ticks are round multiples.
        from_zero: the axis starts at zero; charts remark that others do not.
    """

    unit: str
    show: Callable[[float], str]
    tick: Callable[[float], str]
    logarithmic: bool = False
    step: float = 1.0
    from_zero: bool = False

    def words(self, value: float) -> str:
        return f"{self.show(value)} {self.unit}".strip()

    def forward(self, value: float) -> float:
        """Return the coordinate of a number on the scale on which the axis is linear."""
        return math.log(value) if self.logarithmic else value

    def back(self, value: float) -> float:
        return math.exp(value) if self.logarithmic else value

    def ticks(self, at: Callable[[float], float], low: float, high: float, length: float) -> list[tuple[float, str]]:
        """Return the places and texts of round numbers from `low` to `high` on an axis of some length."""
        low, high = low / self.step, high / self.step
        every = round_numbers(0.95 * low, 1.05 * high) if self.logarithmic else []
        if len(every) < 3:
            every = [number for number in _ticks(low, high) if number > 0 or not self.logarithmic]
        numbers = [number * self.step for number in every]
        return [(at(number), self.tick(number)) for number in numbers if 0 <= at(number) <= length]


def counted(unit: str, step: float = 1.0, *, logarithmic: bool = False) -> Measure:
    """Numbers in units of `step`, with three digits."""

    def show(value: float) -> str:
        return short_count(value / step)

    return Measure(unit, show, show, logarithmic, step)


def _score(value: float) -> str:
    return f"{value:,.{2 if value < 10 else 1}f}"


def _plain(value: float) -> str:
    return short_count(value) if value >= 1000 else f"{value:g}"


PERPLEXITY = Measure("", _score, _plain, logarithmic=True)
LOSS = Measure("", _score, _plain)
ACCURACY = Measure("", lambda value: f"{value:.1%}", lambda value: f"{100 * value:g}%", from_zero=True)


# -- curves over training ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """A line: x, mean, minimum and maximum over seeds at each step that all seeds share.

    `stages` has the x at which stages of the model's curriculum end, as far as validations show it.
    """

    model: int
    label: str
    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]
    stages: list[float]

    def at(self, places: Sequence[float], measure: Measure) -> list[float | None]:
        """Return the line's values at some x; after its end its last value, before its start `None`."""
        heights = np.interp(places, self.x, [measure.forward(y) for y in self.y]).tolist()
        return [None if x < self.x[0] else measure.back(height) for x, height in zip(places, heights)]


def curve(model: int, label: str, runs: list[RunResult], x: str, y: str) -> Curve:
    """Return `y` against `x` (fields of a result's `curve`), thinned by averaging to at most `POINTS` points.

    A loss is the next token's. The last points of all seeds are one point: they may end at different steps.
    """
    points = [map(by_next_token, run["curve"]) for run in runs]
    by_step = [{p["step"]: p for p in of if y in p and math.isfinite(p[y]) and math.isfinite(p[x])} for of in points]
    for of in filter(None, by_step):
        of[math.inf] = of.pop(max(of))
    steps = sorted(set.intersection(*map(set, by_step)))
    across, down = (np.array([[points[step][name] for step in steps] for points in by_step]) for name in (x, y))
    stage = [by_step[0][step].get("stage") for step in steps]
    ends = [i for i, (one, following) in enumerate(pairwise(stage)) if one != following]
    starts = np.arange(0, len(steps), max(1, math.ceil(len(steps) / POINTS)))
    counts = np.diff([*starts, len(steps)])
    places, values = (np.add.reduceat(seeds, starts, axis=1) / counts for seeds in (across, down))
    coordinates = (places.mean(0), values.mean(0), values.min(0), values.max(0), across[:, ends].mean(0))
    return Curve(model, label, *(numbers.tolist() for numbers in coordinates))


def stops(curves: Sequence[Curve]) -> list[float]:
    """Return the x at which values of curves are shown: their own points, without those too close to another."""
    right = max(c.x[-1] for c in curves)
    places: list[float] = []
    for x in sorted({x for c in curves for x in c.x}):
        if not places or x - places[-1] >= right / STOPS:
            places.append(x)
    return [*places[:-1], right] if right - places[-1] < right / STOPS else places


def line_chart(title: str, curves: list[Curve], across: Measure, down: Measure) -> Chart:
    right = max(c.x[-1] for c in curves)
    low, high = min(min(c.low) for c in curves), max(max(c.high) for c in curves)
    # The steep start is cut off, or the ends, which readers compare, would get only a few pixels. The chart shows the
    # last factor of three in perplexity, or 1.1 nats of a loss, and more if a model ends higher.
    ends = max(c.high[-1] for c in curves)
    most = max(3 * low, 1.2 * ends) if down.logarithmic else max(low + math.log(3), ends + math.log(1.2))
    remarks = ["log scale"] * down.logarithmic
    if down.from_zero:
        low = 0.0
    elif not down.logarithmic:
        remarks.append("does not start at zero")
    remarks += ["its steep start is above"] * (high > most)
    high = min(high, most)
    at_y = _scale(down, low, high, HEIGHT, 0, margin=0.06)

    def at_x(value: float) -> float:
        return 1000 * value / right if right else 0.0

    shapes: list[Shape] = []
    for c in curves:
        shapes += [Shape(f"stage m{c.model}", f"M{at_x(x):.1f} 0V{HEIGHT}") for x in c.stages]
        points, lower, upper = (
            [f"{at_x(x):.1f} {at_y(y):.1f}" for x, y in zip(c.x, values)] for values in (c.y, c.low, c.high)
        )
        if c.low != c.high:
            shapes.append(Shape(f"band m{c.model}", f"M{'L'.join(upper + lower[::-1])}Z"))
        shapes.append(Shape(f"line m{c.model}", f"M{'L'.join(points)}"))
        if c.x[-1] < 0.98 * right:
            shapes.append(Shape(f"rest m{c.model}", f"M{points[-1]}H1000"))
        for point, x, y in zip(points, c.x, c.y) if len(points) <= 40 else ():
            tip = f"{c.label}: {down.words(y)} at {across.words(x)}"
            shapes.append(Shape(f"dot m{c.model}", f"M{point}h0", tip))
    places = stops(curves)
    return Chart(
        title,
        "; ".join(remarks),
        across.unit,
        shapes,
        [Label(c.model, at_y(c.y[-1]), down.show(c.y[-1]), c.label) for c in curves],
        across.ticks(at_x, 0, right, 1001),
        down.ticks(at_y, low, high, HEIGHT),
        {
            "stops": [[round(at_x(x), 1), across.words(x)] for x in places],
            "lines": _readings(places, curves, down, at_y),
        },
    )


def _readings(
    places: list[float], curves: list[Curve], down: Measure, at_y: Callable[[float], float]
) -> list[Readings]:
    lines: list[Readings] = [
        {"model": c.model, "name": c.label, "runs": sum(x <= c.x[-1] for x in places), "y": [], "place": [], "text": []}
        for c in curves
    ]
    for row in zip(*(c.at(places, down) for c in curves)):
        heights = [at_y(value) for value in row if value is not None]
        placed = iter(zip(heights, spread(heights, LINE, HEIGHT)))
        for line, value in zip(lines, row):
            y, place = (None, None) if value is None else (round(number, 1) for number in next(placed))
            line["y"].append(y)
            line["place"].append(place)
            line["text"].append(None if value is None else down.show(value))
    return lines


# -- quality against cost ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A model's cost and quality: the mean over seeds, and each seed; `mark` is written after its quality."""

    model: int
    label: str
    x: float
    y: float
    seeds: list[tuple[float, float]]
    mark: str = ""


def scatter(title: str, points: list[Point], across: Measure, down: Measure, *, best_is_low: bool) -> Chart:
    """Return a chart with the Pareto frontier as steps; lower costs are better, and `best_is_low` quality numbers."""
    seeds = [seed for p in points for seed in [*p.seeds, (p.x, p.y)]]
    x_low, x_high = _room(min(x for x, _ in seeds), max(x for x, _ in seeds), across, 1.3)
    y_low, y_high = _room(min(y for _, y in seeds), max(y for _, y in seeds), down, 1.02)
    y_low = 0.0 if down.from_zero else y_low
    at_x, at_y = _scale(across, x_low, x_high, 0, 1000, margin=0.07), _scale(down, y_low, y_high, HEIGHT, 0, margin=0.1)
    front = frontier(points, best_is_low=best_is_low)
    steps = f"M{at_x(front[0].x):.1f} {0 if best_is_low else HEIGHT}"
    steps += "".join(f"V{at_y(p.y):.1f}H{at_x(q.x) if q else 1000:.1f}" for p, q in zip(front, [*front[1:], None]))
    shapes = [Shape("front", steps)]
    for p in points:
        centre = f"M{at_x(p.x):.1f} {at_y(p.y):.1f}"
        shapes.append(Shape(f"reach m{p.model}", f"{centre}H1000"))
        for x, y in p.seeds if len(p.seeds) > 1 else ():
            seed = f"{at_x(x):.1f} {at_y(y):.1f}"
            shapes += [Shape(f"spoke m{p.model}", f"{centre}L{seed}"), Shape(f"seed m{p.model}", f"M{seed}h0")]
    for p in points:
        centre = f"M{at_x(p.x):.1f} {at_y(p.y):.1f}h0"
        tip = f"{p.label}: {down.words(p.y)} at {across.words(p.x)}"
        shapes.append(Shape(f"{'ring' if p.model >= COLOURS else 'disc'} m{p.model}", centre, tip))
        shapes += [Shape(f"hole m{p.model}", centre)] * (p.model >= COLOURS)
    logarithmic = [word for word, m in (("across", across), ("up", down)) if m.logarithmic]
    return Chart(
        title,
        f"log scale {' and '.join(logarithmic)}" if logarithmic else "",
        across.unit,
        shapes,
        [Label(p.model, at_y(p.y), down.show(p.y) + p.mark, p.label, across.show(p.x)) for p in points],
        across.ticks(at_x, x_low, x_high, 1000),
        down.ticks(at_y, y_low, y_high, HEIGHT),
    )


def frontier(points: Sequence[Point], *, best_is_low: bool) -> list[Point]:
    """Return the models on the Pareto frontier of cost and quality, the cheapest first."""
    sign = 1 if best_is_low else -1
    front: list[Point] = []
    for point in sorted(points, key=lambda p: (p.x, sign * p.y)):
        if not front or sign * point.y < sign * front[-1].y:
            front.append(point)
    return front


# -- scales ------------------------------------------------------------------------------------------------------------


def _scale(
    measure: Measure, low: float, high: float, first: float, last: float, *, margin: float
) -> Callable[[float], float]:
    """Return a map of numbers to coordinates: `low` near `first`, `high` near `last`, with a relative `margin`."""
    start, end = measure.forward(low), measure.forward(high)
    spare = margin * (end - start) or 0.05 * abs(end) or 1.0
    start, end = start - spare, end + spare
    return lambda value: first + (last - first) * (measure.forward(value) - start) / (end - start)


def _room(low: float, high: float, measure: Measure, factor: float) -> tuple[float, float]:
    """Return the range, widened to at least `factor`, so that small differences look small."""
    if not measure.logarithmic or high > factor * low:
        return low, high
    middle = math.sqrt(low * high)
    return middle / math.sqrt(factor), middle * math.sqrt(factor)


def spread(places: Sequence[float], gap: float, height: float) -> list[float]:
    """Return the nearest places in the same order, at least `gap` apart and inside `[0, height]` if they fit."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    gap = min(gap, height / max(len(places) - 1, 1))
    # Shifted by rank, "at least gap apart" becomes "not decreasing": the nearest such numbers are found by pooling.
    blocks: list[list[float]] = []
    for rank, i in enumerate(order):
        blocks.append([places[i] - rank * gap])
        while len(blocks) > 1 and fmean(blocks[-2]) > fmean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    pooled = [fmean(block) for block in blocks for _ in block]
    result = [0.0] * len(places)
    for rank, i in enumerate(order):
        result[i] = min(max(pooled[rank], 0.0), height - (len(places) - 1) * gap) + rank * gap
    return result


def _ticks(low: float, high: float) -> list[float]:
    """Return about five multiples of 1, 2 or 5 times a power of ten that enclose `low` and `high`."""
    if high <= low:
        return [low]
    rough = (high - low) / 5
    power = 10 ** math.floor(math.log10(rough))
    size = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
    first, last = math.floor(low / size), math.ceil(high / size)
    return [n * size for n in range(first, last + 1)]
