"""A comparison as a table on the terminal, and as one self-contained HTML page.

The page's script sorts tables and shows the values of curves; everything else is in the page without it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from mentalese.compare.charts import (
    ACCURACY,
    COLOURS,
    LOSS,
    PERPLEXITY,
    Chart,
    Measure,
    Point,
    counted,
    curve,
    line_chart,
    scatter,
)
from mentalese.compare.comparison import (
    FLOPS_TOLERANCE,
    Comparison,
    Row,
    scored_alike,
    significance,
)
from mentalese.compare.tuning import number_of
from mentalese.evaluation import metric as metrics
from mentalese.files import JsonObject
from mentalese.formatting import short_count, short_names, signed
from mentalese.html import TEMPLATES, render
from mentalese.screen import print_table
from mentalese.training.run_folder import RunResult

MORE_IS_BETTER = ("tokens/s", "test accuracy, %", "F1, %", "points to baseline")


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        number: the column is sorted by it.
        notes: small lines below the text.
        bar: length of the bar below the text, from 0 to 1.
    """

    text: str
    number: float | None = None
    notes: Sequence[str] = ()
    strong: bool = False
    bar: float | None = None

    @property
    def sortable(self) -> bool:
        return self.number is not None and math.isfinite(self.number)


def print_comparison(comparison: RunResult) -> None:
    """Print the table on standard output."""
    compared = Comparison.from_json(comparison)
    rows = compared.rows
    cells = results(compared)
    lines = [
        (row.name, *(" ".join((cell.text, *cell.notes)) for cell in line.values())) for row, line in zip(rows, cells)
    ]
    print_table(("model", *cells[0]), lines, title=f"Test {compared.metric.name} on {compared.source}")
    of_rows = (note(rows) for note in (starts_note, unfinished_note, contexts_note, ends_note))
    for note in (compared.headline(), missed_note(compared), *of_rows):
        if note:
            print(f"\n{note}")


def report(comparison: RunResult, answers: Mapping[str, Sequence[JsonObject]] | None = None) -> str:
    """Return the page of `compare.json` as text; `answers`: the lines in each of its files of answers."""
    compared = Comparison.from_json(comparison)
    rows = compared.rows
    names = short_names([row.name for row in rows])
    charts = _curves(rows, names)
    prompts: dict[str, dict[int, str]] = {}  # the text that each model, by its index, wrote after each prompt
    for index, row in enumerate(rows):
        for sample in row.runs[0]["samples"]:
            prompts.setdefault(sample["prompt"], {})[index] = sample["text"].removeprefix(sample["prompt"])
    return render(
        "comparison.html.j2",
        script=(TEMPLATES / "comparison.js").read_text(encoding="utf-8"),
        data={"charts": [chart.readings for chart in charts]},
        comparison=compared,
        rows=rows,
        names=names,
        colours=COLOURS,
        metric=compared.metric.name,
        headline=compared.headline(),
        missed=_missed(compared),
        results=results(compared),
        more_is_better=MORE_IS_BETTER,
        starts=starts_note(rows),
        unfinished=unfinished_note(rows),
        costs=_costs(rows, names),
        inexact=[name + label for name, row in zip(names, rows) if (label := row.estimator_label)],
        charts=charts,
        tuned=[row for row in rows if row.tuning],
        trials=_trials(rows),
        answers=_answers(rows, answers or {}),
        prompts=prompts,
        protocol=_protocol(rows),
        alike=scored_alike(compared.runs),
        ends=ends_note(rows),
        provenance=_provenance(rows),
    )


# -- the result --------------------------------------------------------------------------------------------------------


def results(comparison: Comparison) -> list[dict[str, Cell]]:
    """Return each model's cells by the titles of columns; scores first, which a phone shows without scrolling."""
    rows, metric, best = comparison.rows, comparison.metric, comparison.winner()
    ablated = any(row.ablation for row in rows)
    finite = [row.value for row in rows if math.isfinite(row.value)]
    full = 1.0 if metric is metrics.ACCURACY else max(finite, default=1.0)
    table = []
    for row in rows:
        value = row.value
        bar = value / full if math.isfinite(value) else None
        if metric is metrics.ACCURACY:
            cells = {
                "test accuracy, %": Cell(_spread(row, metric.name, 1, 100), value, (), row is best, bar),
                "points to baseline": _change(row, "{:+z.1f}", "vs", 100),
            }
            further = {"F1, %": Cell(_spread(row, "f1", 1, 100), row.mean("f1"))}
            for title, name, digits in (("new tokens/answer", "new_tokens", 1), ("s/answer", "answer_seconds", 3)):
                if all(name in each.figures for each in rows):
                    further[title] = Cell(_spread(row, name, digits), row.mean(name))
        else:
            perplexity = _spread(row, metric.name, 2 if value < 20 else 1) + row.estimator_label
            bits = "bits_per_byte"
            cells = {
                "test perplexity": Cell(perplexity, value, (), row is best, bar),
                "ratio to baseline": _change(row, "{:.3f}", "of"),
            }
            further = {"bits/byte": Cell(_spread(row, bits, 3), row.mean(bits)) if bits in row.figures else Cell("-")}
        removed = {"thoughts removed": _removed(row)} if ablated else {}
        total, non_embedding = (row.parameters[part] for part in ("total", "non_embedding"))
        flops, speed = map(row.mean, ("train_flops_per_token", "tokens_per_second"))
        sizes = {
            "parameters": Cell(short_count(total), total),
            "non-embedding": Cell(short_count(non_embedding), non_embedding),
            "train FLOPs/token": Cell(short_count(flops), flops),
            "tokens/s": Cell(f"{speed:,.0f}", speed),
        }
        table.append(cells | removed | further | sizes)
    return table


def _spread(row: Row, name: str, digits: int, scale: float = 1) -> str:
    """Return the mean over seeds, and the standard deviation of several."""
    parts = ("mean", "std") if len(row.runs) > 1 else ("mean",)
    return " ± ".join(f"{scale * row.figures[name][part]:,.{digits}f}" for part in parts)


def _change(row: Row, form: str, word: str, scale: float = 1) -> Cell:
    """Return a row relative to its baseline."""
    change, test = row.change, row.paired_test
    if row.baseline is None:
        return Cell("baseline", change)
    tested = [] if test is None else [f"({significance(test.p, test.n)})"]
    if change is None:  # scored on other tokens or questions
        return Cell("not comparable", None, [f"with {row.baseline}", *tested])
    return Cell(form.format(scale * change), change, [f"{word} {row.baseline}", *tested])


def _removed(row: Row) -> Cell:
    """Return the loss in the first seed's score without thoughts; empty for a model without thoughts."""
    if not row.ablation:
        return Cell("")
    removed = next(part for part in row.ablation["ablations"] if part["thoughts"] == "removed")
    scale, digits, unit = (100, 1, " points") if row.metric is metrics.ACCURACY else (1, 3, " nats/token")
    low_high = " to ".join(signed(scale * end, digits) for end in removed["interval"] or ())
    change = f"{signed(scale * removed['difference'], digits)}{unit}"
    return Cell(f"{change} ({low_high})" if low_high else change, removed["difference"])


# -- notes -------------------------------------------------------------------------------------------------------------


def contexts_note(rows: Sequence[Row]) -> str:
    """Return each model's context of a token that is scored, if models differ in it."""
    contexts = {row.name: row.protocol.get("context") for row in rows}
    if len({*contexts.values()}) < 2:
        return ""
    return f"Contexts differ: {'; '.join(f'{name}, {context}' for name, context in contexts.items())}."


def starts_note(rows: Sequence[Row]) -> str:
    """Return the weights that each model starts from, if models differ in them: their training is not counted."""
    trained = {row.name: row.runs[0]["config"].get("train", {}) for row in rows}
    starts = {name: train.get("adapter") or train.get("init") for name, train in trained.items()}
    if len({*starts.values()}) < 2:
        return ""
    listed = "; ".join(f"{name}, {start or 'none'}" for name, start in starts.items())
    return f"Models start from different weights, whose training is not in their cost: {listed}."


def unfinished_note(rows: Sequence[Row]) -> str:
    """Return each model's number of answers that were cut at the limit of new tokens."""
    counts = []
    for row in rows:
        tests = [run["test"] for run in row.runs]
        if any("unfinished" not in test for test in tests):  # of text, or of an earlier version
            continue
        cut, questions = (sum(test[field] for test in tests) for field in ("unfinished", "questions"))
        limits = sorted({test["protocol"]["answer_tokens"] for test in tests})
        counts.append(f"{row.name} {cut:,} of {questions:,} (limit {', '.join(map(str, limits))} tokens)")
    return f"Unfinished answers, cut at the limit of new tokens: {'; '.join(counts)}." if counts else ""


def ends_note(rows: Sequence[Row]) -> str:
    """Return bits per byte with ends paid for, if only some of the models receive ends of sentences."""
    kinds = {row.protocol.get("sentences") is not None for row in rows}
    bits = "bits_per_byte_with_ends"
    paid = ", ".join(f"{row.name} {_spread(row, bits, 3)}" for row in rows if bits in row.figures)
    if rows[0].metric is metrics.ACCURACY or len(kinds) < 2 or not paid:
        return ""
    return (
        "Some of these models are given the ends of sentences, so compare kinds of models by bits per byte in which "
        f"ends of sentences and documents are paid for: {paid}."
    )


def missed_note(comparison: Comparison) -> str:
    """Return a sentence on runs that miss the matched cost; empty if none does."""
    missed = _missed(comparison)
    if not missed:
        return ""
    by = {"flops": "FLOPs", "tokens": "tokens"}[comparison.match["by"]]
    return f"Runs miss the {by} of the first model by up to {missed:.0%}, as a step is a large part of a run."


def _missed(comparison: Comparison) -> float:
    """Return by which share runs miss the matched cost, if a step is a large part of a run; else 0."""
    if "budget" not in comparison.match:
        return 0.0
    by, budget = comparison.match["by"], comparison.match["budget"]
    off = max(abs(run[by] / budget - 1) for run in comparison.runs)
    return off if off > FLOPS_TOLERANCE else 0.0


# -- tuning ------------------------------------------------------------------------------------------------------------


def _trials(rows: Sequence[Row]) -> list[dict[str, Cell]]:
    """Return the scores of every tuned model's trials on the validation split, by settings."""

    def order(values: tuple[str, ...]) -> list[tuple[float, str]]:
        """Return a key that sorts numbers by size, before words."""
        numbers = [number_of(text) for text in values]
        return [(math.inf, text) if number is None else (number, "") for number, text in zip(numbers, values)]

    tuned = [(row, row.tuning) for row in rows if row.tuning]
    settings = {tuple(trial["settings"].values()) for _, tuning in tuned for trial in tuning["trials"]}
    table = []
    for row, tuning in tuned:
        cells = dict.fromkeys(sorted(settings, key=order), Cell("–"))
        for trial in tuning["trials"]:
            value, strong = trial["value"], trial["settings"] == tuning["chosen"]
            text = "loss not finite" if value is None else row.metric.format(value)
            if value is None and trial["seeds"] > 1:
                text += f" with {trial['diverged']} of {trial['seeds']} seeds"
            elif trial["seeds"] > 1:
                text += f" ± {row.metric.format(trial['value_stderr'])}; {trial['nll']:.3f} ± {trial['nll_stderr']:.3f}"
            cells[tuple(trial["settings"].values())] = Cell(text + " +" * trial["extended"], value, strong=strong)
        table.append({", ".join(values): cell for values, cell in cells.items()})
    return table


# -- figures -----------------------------------------------------------------------------------------------------------


def _costs(rows: Sequence[Row], names: Sequence[str]) -> dict[str, tuple[str, Chart]]:
    """Return by field each cost that is known for all runs: its name, and a chart of quality against it."""
    metric, runs = rows[0].metric, [run for row in rows for run in row.runs]
    quality = ACCURACY if metric is metrics.ACCURACY else PERPLEXITY
    charts = {}
    peak = max(run.get("peak_memory_bytes", 0) for run in runs)
    memory = ("GiB", 2**30) if peak >= 2**30 else ("MiB", 2**20)
    for key, title, measure in (
        ("flops", "training FLOPs", counted("FLOPs", logarithmic=True)),
        ("seconds", "training time", _clock((run["seconds"] for run in runs), logarithmic=True)),
        ("peak_memory_bytes", "peak memory", counted(*memory, logarithmic=True)),
        ("parameters", "parameters", counted("parameters without embeddings", logarithmic=True)),
    ):
        points = []
        for i, row in enumerate(rows):
            seeds = [(_cost(run, key), run["test"][metric.name]) for run in row.runs]
            if all(math.isfinite(value) for _, value in seeds):
                mean = statistics.fmean(cost for cost, _ in seeds)
                points.append(Point(i, names[i], mean, row.value, seeds, _mark(row)))
        if points and all(_cost(run, key) > 0 for run in runs):
            heading = f"Test {metric.name} by {title}"
            charts[key] = title, scatter(heading, points, measure, quality, best_is_low=not metric.larger_is_better)
    return charts


def _cost(run: RunResult, key: str) -> float:
    return run["parameters"]["non_embedding"] if key == "parameters" else run.get(key, 0)


def _clock(seconds: Iterable[float], *, logarithmic: bool = False) -> Measure:
    """Return a unit of time for some values."""
    most = max(seconds, default=0)
    unit, size = ("hours", 3600) if most > 3 * 3600 else ("minutes", 60) if most > 300 else ("seconds", 1)
    return counted(unit, size, logarithmic=logarithmic)


def _curves(rows: Sequence[Row], names: Sequence[str]) -> list[Chart]:
    time = _clock(point["seconds"] for row in rows for run in row.runs for point in run["curve"])
    metric = rows[0].metric
    name, score = metric.name, f"validation_{metric.name}"
    # Stages of a curriculum replace text by latents, so tokens of different stages are not comparable, but steps are.
    clock, clocks = metric.clock, f"{metric.clock.removesuffix('s')}s"
    quality = ACCURACY if metric is metrics.ACCURACY else PERPLEXITY
    charts = []
    for title, x, across, y, down in (
        (f"Validation {name} by training {clocks}", clock, counted(clocks), score, quality),
        (f"Validation {name} by training FLOPs", "flops", counted("FLOPs"), score, quality),
        (f"Validation {name} by time", "seconds", time, score, quality),
        (f"Training loss by training {clocks}", clock, counted(clocks), "loss", LOSS),
    ):
        curves = [curve(i, names[i] + _mark(row), row.runs, x, y) for i, row in enumerate(rows)]
        if curves := [one for one in curves if one.x]:
            charts.append(line_chart(title, curves, across, down))
    return charts


def _mark(row: Row) -> str:
    """Return the mark of scores that are not exact likelihoods."""
    return "*" if row.estimator_label else ""


# -- texts, protocol, provenance ---------------------------------------------------------------------------------------


def _answers(rows: Sequence[Row], answers: Mapping[str, Sequence[JsonObject]]) -> list[RunResult]:
    """Return the answers of each model's first seed, the wrong ones first, with links to the files of all seeds."""
    parts = []
    for row in rows:
        if files := [file for file in row.answers if file in answers]:
            lines = sorted(answers[files[0]], key=lambda line: line["correct"])
            wrong = sum(not line["correct"] for line in lines)
            parts.append({"model": row.name, "lines": lines, "wrong": wrong, "links": {f: quote(f) for f in files}})
    return parts


def _protocol(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return each part of the protocol: its value if all models share it, else one per model."""
    protocols = [row.protocol for row in rows]
    parts = {}
    for name in dict.fromkeys(name for protocol in protocols for name in protocol):
        values = [_text(protocol.get(name)) for protocol in protocols]
        if any(protocol.get(name) is not None for protocol in protocols):
            parts[name] = values if len({*values}) > 1 else values[:1]
    return parts


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(part)}" for name, part in value.items())
    return "none" if value is None else str(value)


def _provenance(rows: Sequence[Row]) -> dict[str, str]:
    """Return facts about the runs; if they differ in one, each value with the models whose runs have it."""
    facts = {}
    for name in ("commit", "data_hash", "hardware", "versions"):
        models: dict[str, dict[str, None]] = {}
        for row in rows:
            for run in row.runs:
                models.setdefault(_text(run[name]), {})[row.name] = None
        values = [f"{value} ({', '.join(names)})" for value, names in models.items()]
        facts[name.replace("_", " ")] = "; ".join(values if len(models) > 1 else models)
    return facts
