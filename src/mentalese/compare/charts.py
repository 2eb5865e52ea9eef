"""Charts of a comparison as HTML: curves over training, and quality against what it cost.

A chart is an SVG that stretches with the page, and labels that do not, so text keeps its size on every screen.
Horizontal coordinates are thousandths of the plot's width, vertical coordinates are pixels.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any, NamedTuple

from mentalese.formatting import by_next_token, round_numbers, short_count

HEIGHT = 260  # px of a plot
LINE = 16  # px between two labels
POINTS = 200  # maximum of a line
STOPS = 120  # maximum of places at which the values of a chart are shown
COLOURS = 6  # of the palette; further models reuse them with dashes, or as rings


@dataclass(frozen=True)
class Measure:
    """An axis: how its numbers are written, and whether its scale is logarithmic.

    Attributes:
        unit: after a number in text, and below the axis.
        show: writes a number.
        tick: writes a tick.
        step: ticks are round multiples of it.
        from_zero: the axis starts at zero; of others it is said that they do not.
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
        """To the scale on which the axis is linear."""
        return math.log(value) if self.logarithmic else value

    def back(self, value: float) -> float:
        return math.exp(value) if self.logarithmic else value

    def ticks(self, low: float, high: float) -> list[float]:
        every = (_log_ticks if self.logarithmic else _ticks)(low / self.step, high / self.step)
        return [tick * self.step for tick in every]


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

    def at(self, x: float, measure: Measure) -> float | None:
        """The line's value at `x`; after its end its last value, before its start `None`."""
        if not self.x or x < self.x[0]:
            return None
        after = bisect_left(self.x, x)
        if after == len(self.x):
            return self.y[-1]
        if self.x[after] == x:
            return self.y[after]
        left, right = self.x[after - 1 : after + 1]
        share = (x - left) / (right - left)
        low, high = (measure.forward(y) for y in self.y[after - 1 : after + 1])
        return measure.back(low + share * (high - low))


def curve(model: int, label: str, runs: list[dict[str, Any]], x: str, y: str) -> Curve:
    """`y` against `x` (fields of a result's `curve`), thinned by averaging to at most `POINTS` points. A loss is the
    next token's."""
    points = [map(by_next_token, run["curve"]) for run in runs]
    by_step = [{p["step"]: p for p in of if y in p and math.isfinite(p[y]) and math.isfinite(p[x])} for of in points]
    steps = sorted(set.intersection(*(set(points) for points in by_step)))
    stage = {step: point.get("stage") for step, point in by_step[0].items()}
    ends = [step for step, following in pairwise(steps) if stage[step] != stage[following]]
    width = max(1, math.ceil(len(steps) / POINTS))
    columns: list[list[float]] = [[], [], [], []]
    for start in range(0, len(steps), width):
        some = steps[start : start + width]
        seeds = [sum(points[s][y] for s in some) / len(some) for points in by_step]
        place = sum(points[s][x] for points in by_step for s in some) / (len(some) * len(by_step))
        for column, value in zip(columns, (place, sum(seeds) / len(seeds), min(seeds), max(seeds))):
            column.append(value)
    at, mean, low, high = columns
    stages = [_mean([points[end][x] for points in by_step]) for end in ends]
    return Curve(model, label, at, mean, low, high, stages)


def stops(curves: Sequence[Curve]) -> list[float]:
    """The x at which values of curves are shown: their own points, without those too close to another."""
    right = max(c.x[-1] for c in curves)
    kept: list[float] = []
    for x in sorted({x for c in curves for x in c.x}):
        if not kept or x - kept[-1] >= right / STOPS:
            kept.append(x)
    return [*kept[:-1], right] if right - kept[-1] < right / STOPS else kept


def line_chart(title: str, curves: list[Curve], across: Measure, down: Measure) -> tuple[str, dict[str, Any]]:
    """One chart as HTML, and its values for the page's script.

    The values are `stops`, each a horizontal coordinate and its text, and for each of `lines` its `name`, the number of
    stops before its end (`runs`), and at each stop `y`, the `place` and the `text` of its label (`None` before it
    begins).
    """
    right = max(c.x[-1] for c in curves)
    low, high = min(min(c.low) for c in curves), max(max(c.high) for c in curves)
    # The steep start is cut off: with it, the ends, which are compared, would get a few pixels. The chart shows the
    # last factor of three in perplexity, which is the last 1.1 nats of a loss, and more if a model ends higher.
    ends = max(c.high[-1] for c in curves)
    most = max(3 * low, 1.2 * ends) if down.logarithmic else max(low + math.log(3), ends + math.log(1.2))
    cut = [] if high <= most else ["its steep start is above"]
    high = min(high, most)
    if down.from_zero:
        low = 0.0
    elif not down.logarithmic:
        cut.insert(0, "does not start at zero")
    at_y = _scale(down, low, high, HEIGHT, 0, margin=0.06)

    def at_x(value: float) -> float:
        return 1000 * value / right if right else 0.0

    lines = ""
    for c in curves:
        lines += "".join(f'<path class="stage m{c.model}" d="M{at_x(x):.1f} 0V{HEIGHT}"/>' for x in c.stages)
        points = [f"{at_x(x):.1f} {at_y(y):.1f}" for x, y in zip(c.x, c.y)]
        if c.low != c.high:
            upper = [f"{at_x(x):.1f} {at_y(y):.1f}" for x, y in zip(c.x, c.high)]
            lower = [f"{at_x(x):.1f} {at_y(y):.1f}" for x, y in zip(c.x, c.low)]
            lines += f'<path class="band m{c.model}" d="M{"L".join(upper + lower[::-1])}Z"/>'
        lines += f'<path class="line m{c.model}" d="M{"L".join(points)}"/>'
        if c.x[-1] < 0.98 * right:
            lines += f'<path class="rest m{c.model}" d="M{points[-1]}H1000"/>'
        if len(points) <= 40:
            for point, x, y in zip(points, c.x, c.y):
                tip = escape(f"{c.label}: {down.words(y)} at {across.words(x)}")
                lines += f'<path class="dot m{c.model}" d="M{point}h0"><title>{tip}</title></path>'
    labels = [Label(c.model, at_y(c.y[-1]), down.show(c.y[-1]), c.label) for c in curves]
    x_ticks = [t for t in across.ticks(0, right) if t <= right * 1.001]
    y_ticks = [t for t in down.ticks(low, high) if 0 <= at_y(t) <= HEIGHT]
    places = stops(curves)
    values = [[c.at(x, down) for c in curves] for x in places]
    drawn = _figure(
        title, lines, labels, [(at_x(t), across.tick(t)) for t in x_ticks],
        [(at_y(t), down.tick(t)) for t in y_ticks], across.unit, "; ".join(["log scale"] * down.logarithmic + cut),
        below=_numbers(places, values, curves, across, down),
    )  # fmt: skip
    return drawn, _readings(places, values, curves, across, down, at_x, at_y)


def _readings(
    places: list[float],
    values: list[list[float | None]],
    curves: list[Curve],
    across: Measure,
    down: Measure,
    at_x: Callable[[float], float],
    at_y: Callable[[float], float],
) -> dict[str, Any]:
    lines: list[dict[str, Any]] = [
        {"model": c.model, "name": c.label, "runs": sum(x <= c.x[-1] for x in places), "y": [], "place": [], "text": []}
        for c in curves
    ]
    for row in values:
        begun = [i for i, value in enumerate(row) if value is not None]
        y = [at_y(value) for value in row if value is not None]
        placed = dict(zip(begun, zip(y, spread(y, LINE, HEIGHT))))
        for i, (line, value) in enumerate(zip(lines, row)):
            line["y"].append(round(placed[i][0], 1) if i in placed else None)
            line["place"].append(round(placed[i][1], 1) if i in placed else None)
            line["text"].append(None if value is None else down.show(value))
    return {"stops": [[round(at_x(x), 1), across.words(x)] for x in places], "lines": lines}


def _numbers(
    places: list[float], values: list[list[float | None]], curves: list[Curve], across: Measure, down: Measure
) -> str:
    """The chart as a table of at most twelve rows."""
    count = min(12, len(places))
    some = sorted({round(i * (len(places) - 1) / max(count - 1, 1)) for i in range(count)})
    head = "".join(f'<th scope="col">{escape(c.label)}</th>' for c in curves)
    body = ""
    for i in some:
        shown = ["" if value is None else down.show(value) for value in values[i]]
        body += f'<tr><th scope="row">{escape(across.show(places[i]))}</th>'
        body += "".join(f"<td>{value}</td>" for value in shown) + "</tr>"
    return (
        f'<details class="numbers"><summary>As a table</summary><div class="scroll"><table><thead><tr>'
        f'<th scope="col">{escape(across.unit)}</th>{head}</tr></thead><tbody>{body}</tbody></table></div></details>'
    )


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


def scatter(title: str, points: list[Point], across: Measure, down: Measure, *, best_is_low: bool, name: str) -> str:
    """One chart as HTML, with the Pareto frontier as steps.

    Args:
        best_is_low: whether lower quality numbers are better; lower cost always is.
        name: of the cost, by which the page selects the visible chart.
    """
    seeds = [seed for p in points for seed in [*p.seeds, (p.x, p.y)]]
    x_low, x_high = _room(min(x for x, _ in seeds), max(x for x, _ in seeds), across, 1.3)
    y_low, y_high = _room(min(y for _, y in seeds), max(y for _, y in seeds), down, 1.02)
    y_low = 0.0 if down.from_zero else y_low
    at_x, at_y = _scale(across, x_low, x_high, 0, 1000, margin=0.07), _scale(down, y_low, y_high, HEIGHT, 0, margin=0.1)
    front = frontier(points, best_is_low=best_is_low)
    steps = f"M{at_x(front[0].x):.1f} {0 if best_is_low else HEIGHT}"
    marks = "".join(f"V{at_y(p.y):.1f}H{at_x(q.x) if q else 1000:.1f}" for p, q in zip(front, [*front[1:], None]))
    drawn = f'<path class="front" d="{steps}{marks}"/>'
    for p in points:
        centre = f"{at_x(p.x):.1f} {at_y(p.y):.1f}"
        drawn += f'<path class="reach m{p.model}" d="M{centre}H1000"/>'
        for x, y in p.seeds if len(p.seeds) > 1 else ():
            seed = f"{at_x(x):.1f} {at_y(y):.1f}"
            drawn += (
                f'<path class="spoke m{p.model}" d="M{centre}L{seed}"/><path class="seed m{p.model}" d="M{seed}h0"/>'
            )
    for p in points:
        tip = escape(f"{p.label}: {down.words(p.y)} at {across.words(p.x)}")
        kind = "ring" if p.model >= COLOURS else "disc"
        centre = f"M{at_x(p.x):.1f} {at_y(p.y):.1f}h0"
        drawn += f'<path class="{kind} m{p.model}" d="{centre}"><title>{tip}</title></path>'
        drawn += f'<path class="hole m{p.model}" d="{centre}"/>' if kind == "ring" else ""
    labels = [Label(p.model, at_y(p.y), down.show(p.y) + p.mark, p.label, across.show(p.x)) for p in points]
    x_ticks = [t for t in across.ticks(x_low, x_high) if 0 <= at_x(t) <= 1000]
    y_ticks = [t for t in down.ticks(y_low, y_high) if 0 <= at_y(t) <= HEIGHT]
    logarithmic = [word for word, m in (("across", across), ("up", down)) if m.logarithmic]
    return _figure(
        title, drawn, labels, [(at_x(t), across.tick(t)) for t in x_ticks], [(at_y(t), down.tick(t)) for t in y_ticks],
        across.unit, f"log scale {' and '.join(logarithmic)}" if logarithmic else "", kind=f"cost by-{name}",
    )  # fmt: skip


def frontier(points: Sequence[Point], *, best_is_low: bool) -> list[Point]:
    """The models on the Pareto frontier of cost and quality, the cheapest first."""
    sign = 1 if best_is_low else -1
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.x, sign * p.y)):
        if not kept or sign * point.y < sign * kept[-1].y:
            kept.append(point)
    return kept


# -- drawing -----------------------------------------------------------------------------------------------------------


class Label(NamedTuple):
    """The text at the right of a plot, at `y` if there is room: a number, a name, and a cost."""

    model: int
    y: float
    figure: str
    name: str
    cost: str = ""


def _figure(
    title: str,
    shapes: str,
    labels: list[Label],
    x_ticks: list[tuple[float, str]],
    y_ticks: list[tuple[float, str]],
    axis: str,
    scale: str,
    *,
    kind: str = "",
    below: str = "",
) -> str:
    """Shapes in a frame of grid, ticks and labels."""
    grid = "".join(f'<path class="grid" d="M0 {y:.1f}H1000"/>' for y, _ in y_ticks)
    names, leaders = "", ""
    for label, place in zip(labels, spread([label.y for label in labels], LINE, HEIGHT)):
        text = f"<b>{label.figure}</b> {escape(label.name)}" + (f" <small>{label.cost}</small>" if label.cost else "")
        leaders += f'<path class="leader m{label.model}" d="M1 {label.y:.1f}L15 {place:.1f}"/>'
        names += f'<li class="m{label.model}" style="top:{place:.1f}px">{text}</li>'
    ys = "".join(f'<li style="top:{y:.1f}px">{escape(text)}</li>' for y, text in y_ticks)
    xs = "".join(f'<li style="left:{x / 10:.2f}%">{escape(text)}</li>' for x, text in x_ticks)
    small = f" <small>{scale}</small>" if scale else ""
    return (
        f'<figure class="{kind}"><figcaption>{escape(title)}{small}</figcaption><div class="chart">'
        f'<ul class="y" aria-hidden="true">{ys}</ul>'
        f'<svg class="plot" viewBox="0 0 1000 {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}">{grid}{shapes}</svg>'
        f'<svg class="leaders" viewBox="0 0 16 {HEIGHT}" preserveAspectRatio="none" aria-hidden="true">{leaders}</svg>'
        f'<ul class="labels">{names}</ul><ul class="x" aria-hidden="true">{xs}</ul>'
        f'<p class="axis">{escape(axis)}</p></div>{below}</figure>\n'
    )


def _scale(
    measure: Measure, low: float, high: float, first: float, last: float, *, margin: float
) -> Callable[[float], float]:
    """From numbers to coordinates: `low` near `first`, `high` near `last`, with a relative `margin` at both."""
    start, end = measure.forward(low), measure.forward(high)
    spare = margin * (end - start) or 0.05 * abs(end) or 1.0
    start, end = start - spare, end + spare
    return lambda value: first + (last - first) * (measure.forward(value) - start) / (end - start)


def _room(low: float, high: float, measure: Measure, factor: float) -> tuple[float, float]:
    """The range, widened to at least `factor`, so that small differences look small."""
    if not measure.logarithmic or high > factor * low:
        return low, high
    middle = math.sqrt(low * high)
    return middle / math.sqrt(factor), middle * math.sqrt(factor)


def spread(places: Sequence[float], gap: float, height: float) -> list[float]:
    """The nearest places in the same order, at least `gap` apart and inside `[0, height]` if they fit."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    gap = min(gap, height / max(len(places) - 1, 1))
    # Shifted by rank, "at least gap apart" becomes "not decreasing": the nearest such numbers are found by pooling.
    blocks: list[list[float]] = []
    for rank, i in enumerate(order):
        blocks.append([places[i] - rank * gap])
        while len(blocks) > 1 and _mean(blocks[-2]) > _mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    pooled = [_mean(block) for block in blocks for _ in block]
    result = [0.0] * len(places)
    for rank, i in enumerate(order):
        result[i] = min(max(pooled[rank], 0.0), height - (len(places) - 1) * gap) + rank * gap
    return result


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` multiples of 1, 2 or 5 times a power of ten that enclose `low` and `high`."""
    if high <= low:
        return [low]
    rough = (high - low) / count
    power = 10 ** math.floor(math.log10(rough))
    size = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
    first, last = math.floor(low / size), math.ceil(high / size)
    return [n * size for n in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, 20, ... if the range contains three of them, else evenly spaced ticks."""
    ticks = round_numbers(0.95 * low, 1.05 * high)
    return ticks if len(ticks) >= 3 else [t for t in _ticks(low, high) if t > 0]
