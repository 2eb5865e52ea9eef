"""A comparison as one HTML page that needs nothing else: no network, no script, readable on a phone and in the dark.

A chart is an SVG that stretches with the page under labels that do not, so that text keeps its size on every screen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from mentalese.evaluate.perplexity import label
from mentalese.files import write_text

_HEADER = ("model", "parameters", "non-embedding", "train FLOPs/token", "tokens/s")
_RESULTS = {
    "perplexity": ("test perplexity", "bits/byte", "ratio to baseline"),
    "accuracy": ("test accuracy, %", "F1, %", "points to baseline"),
}


def metric(rows: Sequence[dict[str, Any]]) -> str:
    """What a comparison is about, `perplexity` or `accuracy`: the same for all of its rows."""
    return "accuracy" if "accuracy" in rows[0] else "perplexity"


def header(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """The names of the table's columns."""
    return _HEADER + _RESULTS[metric(rows)]


def write_report(comparison: dict[str, Any], path: Path) -> None:
    """Writes the page of a comparison (the content of `compare.json`) to `path`, whole or not at all."""
    write_text(path, report(comparison))


def report(comparison: dict[str, Any]) -> str:
    """The page as text."""
    rows = comparison["rows"]
    names = short_names([row["name"] for row in rows])
    sections = [
        _section("Result", _table(rows)),
        _section("Learning curves", _charts(rows, names)),
        _section("Generated text", _samples(rows)),
        _section("Protocol", _protocol(rows)),
        _section("Where the figures come from", _provenance(comparison)),
    ]
    return _PAGE.format(
        style=_STYLE + _highlights(len(rows)),
        headline=escape(headline(rows)),
        facts=_facts(comparison),
        sections="\n".join(section for section in sections if section),
    )


# -- numbers as words --------------------------------------------------------------------------------------------------


def short_count(number: float) -> str:
    """`1310720` -> `1.31M`: three digits and k, M, G, T, P or E."""
    scale = 0
    while abs(number) >= 999.5 and scale < 6:
        number, scale = number / 1000, scale + 1
    digits = 0 if scale == 0 and number == int(number) else max(0, 2 - int(math.log10(max(abs(number), 1))))
    text = f"{number:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + ["", "k", "M", "G", "T", "P", "E"][scale]


def _value(summary: dict[str, float], digits: int, runs: int) -> str:
    text = f"{summary['mean']:,.{digits}f}"
    return text + (f" ± {summary['std']:,.{digits}f}" if runs > 1 else "")


def _perplexity_digits(row: dict[str, Any]) -> int:
    return 2 if row["perplexity"]["mean"] < 20 else 1


def _figure(row: dict[str, Any]) -> str:
    """The mean of what the comparison is about, with its unit or estimator."""
    if "accuracy" in row:
        return f"{row['accuracy']['mean']:.1%}"
    return f"{row['perplexity']['mean']:,.{_perplexity_digits(row)}f}{_label(row)}"


def _change(row: dict[str, Any]) -> tuple[str, str]:
    """A row against its baseline, and the word between the two."""
    return (f"{100 * row['difference']:+.1f}", "on") if "accuracy" in row else (f"{row['ratio']:.3f}", "of")


def _against(row: dict[str, Any]) -> str:
    if row["baseline"] is None:
        return "baseline"
    return f"{' '.join(_change(row))} {row['baseline']}{_test(row)}"


def _test(row: dict[str, Any]) -> str:
    test = row["paired_test"]
    if test is None:
        return ""
    p = "< 0.001" if test["p"] < 0.001 else f"= {test['p']:.3f}"
    return f" (p {p}, n = {test['n']})"


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table as text, in the order of `header`."""
    runs = len(row["runs"])
    if "accuracy" in row:
        shares = ({name: 100 * value for name, value in row[field].items()} for field in ("accuracy", "f1"))
        result = [_value(share, 1, runs) for share in shares]
    else:
        perplexity = _value(row["perplexity"], _perplexity_digits(row), runs) + _label(row)
        result = [perplexity, _value(row["bits_per_byte"], 3, runs) if "bits_per_byte" in row else "-"]
    return [
        row["name"],
        short_count(row["parameters"]["total"]),
        short_count(row["parameters"]["non_embedding"]),
        short_count(row["train_flops_per_token"]["mean"]),
        f"{row['tokens_per_second']['mean']:,.0f}",
        *result,
        _against(row),
    ]


def _label(row: dict[str, Any]) -> str:
    return label(row["runs"][0]["test"]["protocol"])


def headline(rows: Sequence[dict[str, Any]]) -> str:
    """The result in a sentence."""
    best, *others = _ranked(rows)
    if best["baseline"] is not None:
        reached = f"{best['name']} reaches a test {metric(rows)} of {_figure(best)}"
        if "accuracy" in best:
            gain = f"{100 * best['difference']:.1f} points above"
        else:
            gain = f"{1 - best['ratio']:.1%} below"
        return f"{reached}, {gain} {best['baseline']}{_test(best)}."
    second = others[0]
    if "accuracy" in best:
        most, gap = "highest", f"{100 * (best['accuracy']['mean'] - second['accuracy']['mean']):.1f} points below"
    else:
        most, gap = "lowest", f"{second['perplexity']['mean'] / best['perplexity']['mean'] - 1:.1%} above"
    return (
        f"{best['name']} reaches the {most} test {metric(rows)}, {_figure(best)}; the next is {second['name']}, {gap}."
    )


def _ranked(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The best first; where two are equal, in their order."""
    name = metric(rows)
    return sorted(rows, key=lambda row: row[name]["mean"], reverse=name == "accuracy")


def short_names(names: Sequence[str]) -> list[str]:
    """`prefix/name` without the half that all share: `gpt2/tiny`, `llama/tiny` -> `gpt2`, `llama`."""
    halves = [name.partition("/")[::2] for name in names]
    for kept, shared in ((0, 1), (1, 0)):
        if len({half[shared] for half in halves}) == 1 and len({half[kept] for half in halves}) == len(names):
            return [half[kept] for half in halves]
    return list(names)


# -- the table ---------------------------------------------------------------------------------------------------------


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>" if body else ""


def _facts(comparison: dict[str, Any]) -> str:
    match, seeds = comparison["match"], comparison["seeds"]
    by = {
        None: "not matched",
        "params": "non-embedding parameters, within 1%",
        "tokens": f"training tokens, {short_count(match.get('budget', 0))} a run",
        "flops": f"training FLOPs, {short_count(match.get('budget', 0))} a run",
    }[match["by"]]
    facts = {
        "text": comparison["source"],
        "tokenizer": comparison["tokenizer"],
        "matched by": by,
        "seeds": seeds,
        "made": comparison["created"].replace("T", " ").replace("+00:00", " UTC"),
    }
    return "".join(f"<div><dt>{name}</dt><dd>{escape(str(value))}</dd></div>" for name, value in facts.items())


def _swatch(index: int) -> str:
    return f'<svg class="swatch m{index}" viewBox="0 0 26 8" aria-hidden="true"><path d="M2 4H24"/></svg>'


def _table(rows: list[dict[str, Any]]) -> str:
    name, ranked = metric(rows), _ranked(rows)
    best, worst = (row[name]["mean"] for row in (ranked[0], ranked[-1]))
    full = 1.0 if name == "accuracy" else worst  # what a whole bar stands for
    order = (0, 5, 7, 6, 1, 2, 3, 4)  # the result first, so that a phone shows it without scrolling
    head = "".join(f'<th scope="col">{header(rows)[i]}</th>' for i in order)
    body = ""
    for index, row in enumerate(rows):
        value = row[name]["mean"]
        bar = f'<i class="bar" style="width:{100 * value / full:.1f}%"></i>'
        values = [escape(cell) for cell in cells(row)]
        values[5] = f"{'<strong>' + values[5] + '</strong>' if value == best else values[5]}{bar}"
        if row["baseline"] is not None:
            change, word = _change(row)
            test = escape(_test(row).strip(" ()"))
            values[7] = f"{change}<small>{word} {escape(row['baseline'])}<br>{test}</small>"
        label = f'<span class="name">{_swatch(index)}{_breakable(row["name"])}</span>'
        body += f'<tr class="m{index}"><th scope="row">{label}<small>{escape(row["description"])}</small></th>'
        body += "".join(f"<td>{values[i]}</td>" for i in order[1:]) + "</tr>\n"
    spread = "<p class=note>± is the standard deviation over seeds.</p>" if len(rows[0]["runs"]) > 1 else ""
    table = f'<table class="result"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>{spread}'


def _breakable(name: str) -> str:
    """A name that may break after its slash, on narrow screens."""
    return f"<span>{escape(name).replace('/', '/<wbr>')}</span>"


# -- learning curves ---------------------------------------------------------------------------------------------------

HEIGHT = 260  # px of a chart's plot
LINE = 16  # px between two labels
POINTS = 200  # of a line at most


@dataclass(frozen=True)
class Curve:
    """A line: x, mean, least and greatest over seeds at each of the steps that all seeds share.

    `stages` has the x where a stage of the model's curriculum ends, as far as validations tell.
    """

    model: int
    label: str
    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]
    stages: list[float]


def curve(model: int, label: str, runs: list[dict[str, Any]], x: str, y: str) -> Curve:
    """`y` against `x` (fields of a result's `curve`), thinned by averaging to at most `POINTS` points."""
    by_step = [
        {p["step"]: p for p in run["curve"] if y in p and math.isfinite(p[y]) and math.isfinite(p[x])} for run in runs
    ]
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


def _charts(rows: list[dict[str, Any]], names: list[str]) -> str:
    seconds = max((point["seconds"] for row in rows for run in row["runs"] for point in run["curve"]), default=0)
    unit, size = ("hours", 3600) if seconds > 3 * 3600 else ("minutes", 60) if seconds > 300 else ("seconds", 1)
    plain = short_count
    name, score = metric(rows), f"validation_{metric(rows)}"
    # Where a stage leaves steps out, tokens are other tokens than before: then steps tell how far a run is.
    clock, clocks = ("step", "steps") if name == "accuracy" else ("tokens", "tokens")
    charts = [
        (f"Validation {name} by training {clocks}", clock, score, plain, clocks),
        (f"Validation {name} by training FLOPs", "flops", score, plain, "FLOPs"),
        (f"Validation {name} by time", "seconds", score, lambda s: f"{s / size:g}", unit),
        (f"Training loss by training {clocks}", clock, "loss", plain, clocks),
    ]
    drawn, staged = [], False
    for title, x, y, show, axis in charts:
        curves = [curve(i, names[i], row["runs"], x, y) for i, row in enumerate(rows)]
        curves = [c for c in curves if c.x]
        if curves:
            scale: dict[str, Any] = {"logarithmic": y == "validation_perplexity", "percent": y == "validation_accuracy"}
            staged |= any(c.stages for c in curves)
            drawn.append(chart(title, curves, axis, show, step=size if x == "seconds" else 1, **scale))
    legend = "".join(f'<span class="m{i}">{_swatch(i)}{escape(name)}</span>' for i, name in enumerate(names))
    band = len(rows[0]["runs"]) > 1
    note = (
        "<p class=note>Lines are means over seeds; the bands reach from the least to the greatest.</p>" if band else ""
    )
    if staged:
        note += (
            "<p class=note>At an upright line the next stage of a model's curriculum begins; "
            "questions are asked at the stage that training is at.</p>"
        )
    width = max(len(name) for name in names) + 8
    grid = f'<div class="charts" style="--label-width:{width}ch">{"".join(drawn)}</div>'
    return f'<div class="legend">{legend}</div>{grid}{note}' if drawn else ""


def chart(
    title: str,
    curves: list[Curve],
    axis: str,
    show: Callable[[float], str],
    *,
    logarithmic: bool,
    percent: bool = False,
    step: float = 1,
) -> str:
    """One chart as HTML; `show` words a tick of the x axis, whose ticks are round multiples of `step`."""
    right = max(c.x[-1] for c in curves)
    low, high = min(min(c.low) for c in curves), max(max(c.high) for c in curves)
    # The steep start is cut off, or it would leave the ends, which are compared, a few pixels: they get the last
    # factor of three in perplexity, which is the last 1.1 nats of a loss, and more where a model ends higher.
    ends = max(c.high[-1] for c in curves)
    high = min(high, max(3 * low, 1.2 * ends) if logarithmic else max(low + math.log(3), ends + math.log(1.2)))
    forward: Callable[[float], float] = math.log if logarithmic else lambda value: value
    bottom, top = forward(low), forward(high)
    margin = 0.06 * (top - bottom) or 0.05 * abs(top) or 1.0
    bottom, top = bottom - margin, top + margin

    def at_x(value: float) -> float:
        return 1000 * value / right if right else 0.0

    def at_y(value: float) -> float:
        return HEIGHT * (top - forward(value)) / (top - bottom)

    y_ticks = [t for t in (_log_ticks if logarithmic else _ticks)(low, high) if 0 <= at_y(t) <= HEIGHT]
    x_ticks = [t * step for t in _ticks(0, right / step) if t * step <= right * 1.001]
    shapes = "".join(f'<path class="grid" d="M0 {at_y(t):.1f}H1000"/>' for t in y_ticks)
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
                tip = escape(f"{c.label}: {f'{y:.1%}' if percent else f'{y:,.4g}'} at {show(x)} {axis}")
                lines += f'<path class="dot m{c.model}" d="M{point}h0"><title>{tip}</title></path>'
    last = [at_y(c.y[-1]) for c in curves]
    labels, leaders = "", ""
    for c, end, place in zip(curves, last, spread(last, LINE, HEIGHT)):
        leaders += f'<path class="leader m{c.model}" d="M1 {end:.1f}L15 {place:.1f}"/>'
        figure = f"{c.y[-1]:.1%}" if percent else f"{c.y[-1]:,.{2 if c.y[-1] < 10 else 1}f}"
        labels += f'<li class="m{c.model}" style="top:{place:.1f}px"><b>{figure}</b> {escape(c.label)}</li>'
    ys = "".join(
        f'<li style="top:{at_y(t):.1f}px">{escape(f"{100 * t:g}%" if percent else _tick(t))}</li>' for t in y_ticks
    )
    xs = "".join(f'<li style="left:{at_x(t) / 10:.2f}%">{escape(show(t))}</li>' for t in x_ticks)
    scale = " (log scale)" if logarithmic else ""
    return (
        f'<figure><figcaption>{escape(title)}<small>{scale}</small></figcaption><div class="chart">'
        f'<ul class="y">{ys}</ul>'
        f'<svg class="plot" viewBox="0 0 1000 {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}">{shapes}{lines}</svg>'
        f'<svg class="leaders" viewBox="0 0 16 {HEIGHT}" preserveAspectRatio="none" aria-hidden="true">{leaders}</svg>'
        f'<ul class="labels">{labels}</ul><ul class="x">{xs}</ul><p class="axis">{escape(axis)}</p></div></figure>\n'
    )


def spread(places: Sequence[float], gap: float, height: float) -> list[float]:
    """Places near the wanted ones, in their order, at least `gap` apart and inside `[0, height]` where they fit."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    gap = min(gap, height / max(len(places) - 1, 1))
    # Shifted by rank, "at least gap apart" becomes "not decreasing": the nearest such numbers are found by pooling.
    blocks: list[list[float]] = []
    for rank, i in enumerate(order):
        blocks.append([places[i] - rank * gap])
        while len(blocks) > 1 and _mean(blocks[-2]) > _mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    found = [_mean(block) for block in blocks for _ in block]
    result = [0.0] * len(places)
    for rank, i in enumerate(order):
        result[i] = min(max(found[rank], 0.0), height - (len(places) - 1) * gap) + rank * gap
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
    """1, 2, 5, 10, 20, ... where the range holds three of them, else evenly spaced ticks."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [m * 10.0**p for p in powers for m in (1, 2, 5) if low * 0.95 <= m * 10.0**p <= high * 1.05]
    return found if len(found) >= 3 else [t for t in _ticks(low, high) if t > 0]


def _tick(value: float) -> str:
    return short_count(value) if value >= 1000 else f"{value:g}"


# -- text, protocol, provenance ----------------------------------------------------------------------------------------


def _samples(rows: list[dict[str, Any]]) -> str:
    prompts: dict[str, dict[int, str]] = {}
    for index, row in enumerate(rows):
        for sample in row["runs"][0]["samples"]:
            prompts.setdefault(sample["prompt"], {})[index] = sample["text"]
    parts = []
    for prompt, texts in prompts.items():
        cards = ""
        for index, text in texts.items():
            new = text.removeprefix(prompt)
            cards += (
                f'<article class="m{index}"><h4>{_swatch(index)}{_breakable(rows[index]["name"])}</h4>'
                f"<p><span>{escape(prompt)}</span>{escape(new)}</p></article>"
            )
        parts.append(f'<h3>“{escape(prompt.strip())}”</h3><div class="samples">{cards}</div>')
    return "\n".join(parts)


def _protocol(rows: list[dict[str, Any]]) -> str:
    """What was scored and how: once where all models share it, else model by model."""
    protocols = [row["runs"][0]["test"]["protocol"] for row in rows]
    names = list(dict.fromkeys(name for protocol in protocols for name in protocol))
    body = ""
    for name in names:
        values = [protocol.get(name) for protocol in protocols]
        if all(value is None for value in values):
            continue
        if all(value == values[0] for value in values):
            text = escape(str(values[0]))
        else:
            text = "<br>".join(f"<b>{escape(r['name'])}</b> {escape(_said(v))}" for r, v in zip(rows, values))
        body += f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{text}</dd>"
    test = rows[0]["runs"][0]["test"]
    if metric(rows) == "accuracy":
        return f"<dl>{body}<dt>asked</dt><dd>{test['questions']:,} questions</dd></dl>"
    size = f"{test['tokens']:,} tokens, {test['bytes']:,} bytes"
    same = all(run["test"]["tokens"] == test["tokens"] for row in rows for run in row["runs"])
    warning = "" if same else "<p class=warning>The models scored different numbers of tokens: compare bits a byte.</p>"
    return f"<dl>{body}<dt>scored</dt><dd>{size}</dd></dl>{warning}"


def _said(value: Any) -> str:
    return "none" if value is None else str(value)


def _provenance(comparison: dict[str, Any]) -> str:
    rows = comparison["rows"]
    first = rows[0]["runs"][0]
    hashes = sorted({str(run["data_hash"]) for row in rows for run in row["runs"]})
    facts = {
        "commit": first["commit"],
        "data": ", ".join(value[:16] for value in hashes),
        "hardware": ", ".join(f"{name} {value}" for name, value in _items(first["hardware"])),
        "versions": ", ".join(f"{name} {value}" for name, value in _items(first["versions"])),
    }
    body = "".join(f"<dt>{name}</dt><dd>{escape(_said(value))}</dd>" for name, value in facts.items())
    result, name = _RESULTS[metric(rows)][0], metric(rows)
    columns = ("model", "seed", "steps", "tokens", "FLOPs", "seconds", result)
    head = "".join(f"<th>{column}</th>" for column in columns)
    runs, configs = "", ""
    for index, row in enumerate(rows):
        for run in row["runs"]:
            figures = (
                run["seed"],
                f"{run['steps']:,}",
                short_count(run["tokens"]),
                short_count(run["flops"]),
                f"{run['seconds']:,.0f}",
                f"{run['test'][name] * (100 if name == 'accuracy' else 1):,.2f}",
            )
            runs += f'<tr class="m{index}"><th scope="row">{_swatch(index)} {escape(row["name"])}</th>'
            runs += "".join(f"<td>{figure}</td>" for figure in figures) + "</tr>"
        config = escape(json.dumps(row["runs"][0]["config"], indent=2))
        configs += f"<details><summary>Recipe of {escape(row['name'])}</summary><pre>{config}</pre></details>"
    table = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{runs}</tbody></table></div>'
    command = f"<h3>Command</h3><pre>{escape(comparison['command'])}</pre>"
    return f"{command}<dl>{body}</dl><h3>Runs</h3>{table}{configs}"


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else [("", value)]


# -- the page ----------------------------------------------------------------------------------------------------------

# Six colours after Okabe and Ito (2008), told apart with colour-blind eyes too; the next six models are dashed.
COLOURS = 6


def _highlights(models: int) -> str:
    """Each model's colour, and the others faded while the pointer is on one of it."""
    rules = ""
    for i in range(models):
        dash = "stroke-dasharray:7 5;" if i >= COLOURS else ""
        rules += f".m{i}{{--c:var(--c{i % COLOURS})}}.line.m{i},.swatch.m{i} path{{{dash}}}"
        faded = f":is(.charts,.legend) [class~=m{i}]:hover"
        rules += f"section:has({faded}) :is(.plot,.leaders,.labels,.legend)>:not(.m{i},.grid){{opacity:.15}}"
    return rules


_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--card:#f6f7f9;--ink:#16191d;--muted:#5d6673;--rule:#e2e5ea;--accent:#0072b2;
--c0:#4d5663;--c1:#0072b2;--c2:#d55e00;--c3:#00875f;--c4:#b4488f;--c5:#a87400}
@media(prefers-color-scheme:dark){:root{--bg:#121418;--card:#1b1e24;--ink:#e8eaee;--muted:#9aa3b0;--rule:#2d323a;
--accent:#6bbcf0;--c0:#b6bfcb;--c1:#56b4e9;--c2:#ff8b4a;--c3:#2fc79b;--c4:#ea94c8;--c5:#e9bd3a}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
font-variant-numeric:tabular-nums;-webkit-text-size-adjust:100%}
main{max-width:1160px;margin:0 auto;padding:40px 28px 72px}
header p.kind{margin:0 0 6px;color:var(--muted);font-size:14px}
h1{margin:0 0 22px;max-width:26em;font-size:clamp(22px,3.4vw,32px);line-height:1.22;font-weight:650;
letter-spacing:-.015em;overflow-wrap:anywhere;text-wrap:balance}
h2{margin:52px 0 16px;font-size:20px;font-weight:650;letter-spacing:-.01em}
h3{margin:26px 0 10px;font-size:15px;font-weight:600;overflow-wrap:anywhere}
small{color:var(--muted);font-size:12.5px;font-weight:400}
.note,.warning{margin:10px 0 0;color:var(--muted);font-size:13.5px}
.warning{color:var(--c2)}
.facts{display:flex;flex-wrap:wrap;gap:10px 36px;margin:0;padding:14px 0;border:solid var(--rule);border-width:1px 0}
.facts dt{color:var(--muted);font-size:12.5px}
.facts dd{margin:0;overflow-wrap:anywhere;font-size:15px}
.scroll{overflow-x:auto;-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;width:100%;font-size:14.5px}
th,td{padding:9px 0 9px 22px;text-align:right;vertical-align:top;white-space:nowrap;border-bottom:1px solid var(--rule)}
thead th{color:var(--muted);font-size:12.5px;font-weight:500;vertical-align:bottom;white-space:normal}
tr>:first-child{padding-left:0;text-align:left;position:sticky;left:0;background:var(--bg);z-index:1}
tbody th{font-weight:600}
.result tbody th{white-space:normal;min-width:250px}
td small,th small{display:block;margin-top:2px}
th small{white-space:normal}
th small{margin-left:36px}
.name{display:flex;align-items:center;gap:10px}
.bar{display:block;height:4px;margin-top:6px;border-radius:2px;background:var(--c);min-width:2px}
.swatch{width:26px;height:8px;flex:none}
.swatch path{stroke:var(--c);stroke-width:3.5;fill:none}
.legend{display:flex;flex-wrap:wrap;gap:4px 22px;margin:0 0 16px;font-size:14px}
.legend span{display:inline-flex;align-items:center;gap:8px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:34px 44px}
figure{margin:0;min-width:0}
figcaption small{white-space:nowrap}
figcaption{margin-bottom:10px;font-size:14.5px;font-weight:600}
.chart{display:grid;grid-template:260px 20px 20px/40px minmax(0,1fr) 16px
min(.84*var(--label-width),170px);font-size:12.5px}
.chart ul{list-style:none;margin:0;padding:0;position:relative;font-size:12.5px;color:var(--muted)}
.chart li{position:absolute;line-height:16px;white-space:nowrap}
.y li{right:8px;transform:translateY(-50%)}
.x{grid-column:2}
.x li{transform:translateX(-50%);top:5px}
.axis{grid-column:2;grid-row:3;margin:4px 0 0;text-align:center;font-size:12.5px;color:var(--muted)}
.plot{width:100%;height:260px;overflow:visible;clip-path:inset(0 -8px -8px -8px);border-bottom:1px solid var(--muted)}
.leaders{width:16px;height:260px;overflow:visible}
.chart path{fill:none;vector-effect:non-scaling-stroke}
.grid{stroke:var(--rule);stroke-width:1}
.line{stroke:var(--c);stroke-width:2.2;stroke-linejoin:round}
.dot{stroke:var(--c);stroke-width:7;stroke-linecap:round}
.rest,.leader{stroke:var(--c);stroke-width:1;opacity:.55}
.rest{stroke-dasharray:2 4}
.stage{stroke:var(--c);stroke-width:1;opacity:.45;stroke-dasharray:5 4}
.chart .band{fill:var(--c);opacity:.16}
.chart .labels{margin-left:4px}
.labels li{transform:translateY(-50%);color:var(--c);max-width:100%;overflow:hidden;text-overflow:ellipsis}
.samples{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr));gap:14px}
article{background:var(--card);border-radius:8px;padding:14px 16px;border-top:3px solid var(--c);min-width:0}
article h4{display:flex;align-items:center;gap:10px;margin:0 0 8px;font-size:14px;font-weight:600}
article p{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;font:15px/1.55 Georgia,"Times New Roman",serif}
article p span{color:var(--muted)}
dl:not(.facts){display:grid;grid-template-columns:minmax(90px,150px) 1fr;gap:7px 20px;margin:0;font-size:14.5px}
dl:not(.facts) dt{color:var(--muted)}
dd{margin:0;min-width:0;overflow-wrap:anywhere}
pre{margin:0 0 16px;padding:12px 14px;overflow-x:auto;background:var(--card);border-radius:8px;
font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
details{margin-top:12px;font-size:14.5px}
summary{cursor:pointer;color:var(--accent)}
details pre{margin-top:8px;max-height:420px;overflow:auto}
@media(max-width:640px){main{padding:24px 16px 48px}h2{margin-top:40px}
.result tbody th{min-width:150px;max-width:150px}.result th small{display:none}
th,td{padding-left:14px}.name{gap:7px;font-size:13.5px}.name .swatch{width:15px}
.chart{grid-template-columns:34px minmax(0,1fr) 12px min(.84*var(--label-width),136px)}
.leaders{width:12px}dl:not(.facts){grid-template-columns:1fr;gap:0}
dl:not(.facts) dd{margin-bottom:9px}.facts{gap:8px 26px}}
@media print{.scroll{overflow:visible}details pre{max-height:none}}
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Mentalese comparison</title>
<style>{style}</style>
</head>
<body>
<main>
<header><p class="kind">Mentalese comparison</p><h1>{headline}</h1><dl class="facts">{facts}</dl></header>
{sections}
</main>
</body>
</html>
"""
