"""A comparison as one self-contained HTML page: readable on a phone, in dark mode and on paper.

Its script sorts tables and shows the values of curves; everything else is in the page without it.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from mentalese.compare.answers import answers_section
from mentalese.compare.charts import (
    ACCURACY,
    COLOURS,
    LOSS,
    PERPLEXITY,
    Measure,
    Point,
    counted,
    curve,
    line_chart,
    scatter,
)
from mentalese.compare.headline import (
    FLOPS_TOLERANCE,
    estimator_label,
    headline,
    metric,
    perplexity_digits,
    scored_alike,
    significance,
    winner,
)
from mentalese.files import write_text
from mentalese.formatting import short_count, short_names
from mentalese.html import page

_HEADER = ("model", "parameters", "non-embedding", "train FLOPs/token", "tokens/s")
_RESULTS = {
    "perplexity": ("test perplexity", "bits/byte", "ratio to baseline"),
    "accuracy": ("test accuracy, %", "F1, %", "points to baseline"),
}
_REMOVED = "thoughts removed"
_MORE_IS_BETTER = ("tokens/s", *_RESULTS["accuracy"])  # sorted in descending order first


def header(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """The names of the table's columns."""
    return _HEADER + _RESULTS[metric(rows)] + ((_REMOVED,) if is_ablated(rows) else ())


def is_ablated(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether any model was also scored without its thoughts."""
    return any("ablation" in row for row in rows)


def write_report(comparison: dict[str, Any], path: Path) -> None:
    """Writes the page of a comparison (the content of `compare.json`) to `path`, atomically."""
    write_text(path, report(comparison, path.parent))


def report(comparison: dict[str, Any], folder: Path | None = None) -> str:
    """The page as text; `folder`: that of the comparison, whose runs have files with their answers."""
    rows = comparison["rows"]
    names = short_names([row["name"] for row in rows])
    curves, readings = _charts(rows, names)
    costs = _costs(rows, names, comparison["match"]["by"])
    figures = [(title, html) for title, html in (("Quality against cost", costs), ("Learning curves", curves)) if html]
    width = max(len(name) for name in names) + 8
    figures = [(title, html if i else _legend(names) + html) for i, (title, html) in enumerate(figures)]
    drawn = "".join(_section(*figure) for figure in figures)
    sections = [
        _section("Result", _table(rows)),
        f'<div class="figures" style="--label-width:{width}ch">{drawn}</div>' if drawn else "",
        _section("Tuning", _tuning(rows)),
        _section("Answers", answers_section(rows, folder) if folder else ""),
        _section("Generated text", _samples(rows)),
        _section("Protocol", _protocol(rows)),
        _section("Provenance", _provenance(comparison)),
    ]
    header = f'<p class="kind">Mentalese comparison</p><h1>{escape(headline(rows))}</h1>{_facts(comparison)}'
    body = "\n".join(section for section in sections if section)
    return page(
        "Mentalese comparison",
        style=_file("css") + _highlights(len(rows)),
        body=f"<main>\n<header>{header}</header>\n{body}\n</main>",
        script=_file("js"),
        data={"charts": readings},
    )


def _file(suffix: str) -> str:
    return Path(__file__).with_suffix(f".{suffix}").read_text(encoding="utf-8")


# -- numbers as words --------------------------------------------------------------------------------------------------


def _value(summary: dict[str, float], digits: int, runs: int) -> str:
    text = f"{summary['mean']:,.{digits}f}"
    return text + (f" ± {summary['std']:,.{digits}f}" if runs > 1 else "")


def _change(row: dict[str, Any]) -> tuple[str, str]:
    """A row relative to its baseline, and the preposition before the baseline's name."""
    if row["difference" if "accuracy" in row else "ratio"] is None:  # scored on other tokens or questions
        return "not comparable", "with"
    return (f"{100 * row['difference']:+.1f}", "vs") if "accuracy" in row else (f"{row['ratio']:.3f}", "of")


def _against(row: dict[str, Any]) -> str:
    if row["baseline"] is None:
        return "baseline"
    return f"{' '.join(_change(row))} {row['baseline']}{_test(row)}"


def _test(row: dict[str, Any]) -> str:
    test = row["paired_test"]
    return "" if test is None else f" ({significance(test['p'], test['n'])})"


def cells(row: dict[str, Any], ablated: bool = False) -> list[str]:
    """A row of the table as text, in the order of `header`; `ablated`: see `is_ablated`."""
    runs = len(row["runs"])
    if "accuracy" in row:
        shares = ({name: 100 * value for name, value in row[field].items()} for field in ("accuracy", "f1"))
        result = [_value(share, 1, runs) for share in shares]
    else:
        perplexity = _value(row["perplexity"], perplexity_digits(row), runs) + estimator_label(row)
        result = [perplexity, _value(row["bits_per_byte"], 3, runs) if "bits_per_byte" in row else "-"]
    return [
        row["name"],
        short_count(row["parameters"]["total"]),
        short_count(row["parameters"]["non_embedding"]),
        short_count(row["train_flops_per_token"]["mean"]),
        f"{row['tokens_per_second']['mean']:,.0f}",
        *result,
        _against(row),
        *([_removed(row)] if ablated else []),
    ]


def _removed(row: dict[str, Any]) -> str:
    """What it costs the model to lose its thoughts, of the first seed; empty without thoughts."""
    if "ablation" not in row:
        return ""
    removed = _ablations(row)["removed"]
    scale, digits, unit = (100, ".1f", " points") if "accuracy" in row else (1, ".3f", " nats/token")
    interval = removed["interval"]
    spread = "" if interval is None else f" ({scale * interval[0]:+{digits}} to {scale * interval[1]:+{digits}})"
    return f"{scale * removed['difference']:+{digits}}{unit}{spread}"


def _ablations(row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {part["thoughts"]: part for part in row["ablation"]["ablations"]}


def contexts_note(rows: Sequence[dict[str, Any]]) -> str:
    """What each model reads before a token that is scored, if they differ in it; else empty."""
    contexts = {row["name"]: row["runs"][0]["test"]["protocol"].get("context") for row in rows}
    if len({*contexts.values()}) < 2:
        return ""
    return f"Contexts differ: {'; '.join(f'{name}, {context}' for name, context in contexts.items())}."


def unfinished_note(rows: Sequence[dict[str, Any]]) -> str:
    """Each model's answers that were cut at the limit of new tokens; empty without answers."""
    tests = [(row["name"], [run["test"] for run in row["runs"]]) for row in rows if "accuracy" in row]
    counts = []
    for name, runs in tests:
        if any("unfinished" not in test for test in runs):  # of an earlier version
            continue
        cut, questions = (sum(test[field] for test in runs) for field in ("unfinished", "questions"))
        limits = sorted({test["protocol"]["answer_tokens"] for test in runs})
        counts.append(f"{name} {cut:,} of {questions:,} (limit {', '.join(map(str, limits))} tokens)")
    return f"Unfinished answers, cut at the limit of new tokens: {'; '.join(counts)}." if counts else ""


def ends_note(rows: Sequence[dict[str, Any]]) -> str:
    """Bits per byte with ends paid for, if only some of the models are told where sentences end; else empty."""
    told = {row["runs"][0]["test"]["protocol"].get("sentences") is not None for row in rows}
    known = [row for row in rows if "bits_per_byte_with_ends" in row]
    if metric(rows) == "accuracy" or len(told) < 2 or not known:
        return ""
    paid = ", ".join(f"{row['name']} {_value(row['bits_per_byte_with_ends'], 3, len(row['runs']))}" for row in known)
    return (
        "Some of these models are told where sentences end, so compare kinds of models by bits per byte in which ends "
        f"of sentences and documents are paid for: {paid}."
    )


# -- the table ---------------------------------------------------------------------------------------------------------


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>" if body else ""


def _facts(comparison: dict[str, Any]) -> str:
    match, seeds = comparison["match"], comparison["seeds"]
    by = {
        None: "nothing",
        "params": "non-embedding parameters, within 1%",
        "tokens": f"training tokens, {short_count(match.get('budget', 0))} per run",
        "flops": f"training FLOPs, {short_count(match.get('budget', 0))} per run",
    }[match["by"]]
    if match["by"] in ("tokens", "flops"):
        spent = [run[match["by"]] for row in comparison["rows"] for run in row["runs"]]
        if (off := max(abs(one / match["budget"] - 1) for one in spent)) > FLOPS_TOLERANCE:
            by += f", which runs miss by up to {off:.0%}"  # a step is a large part of a short run
    facts = {
        "text": comparison["source"],
        "tokenizer": comparison["tokenizer"],
        "matched by": by,
        "seeds": seeds,
        "created": comparison["created"].replace("T", " ").replace("+00:00", " UTC"),
    }
    facts_ = "".join(f"<div><dt>{name}</dt><dd>{escape(str(value))}</dd></div>" for name, value in facts.items())
    return f'<dl class="facts">{facts_}</dl>'


def _swatch(index: int) -> str:
    return f'<svg class="swatch m{index}" viewBox="0 0 26 8" aria-hidden="true"><path d="M2 4H24"/></svg>'


def _table(rows: list[dict[str, Any]]) -> str:
    name, best = metric(rows), winner(rows)
    known = [row[name]["mean"] for row in rows if math.isfinite(row[name]["mean"])]
    full = 1.0 if name == "accuracy" else max(known, default=1.0)  # the value of a full bar
    ablated = is_ablated(rows)
    order = (0, 5, 7, *((8,) if ablated else ()), 6, 1, 2, 3, 4)  # results first: a phone shows them without scrolling
    body = ""
    for index, row in enumerate(rows):
        value = row[name]["mean"]
        bar = f'<i class="bar" style="width:{100 * value / full:.1f}%"></i>' if math.isfinite(value) else ""
        values, numbers = [escape(cell) for cell in cells(row, ablated)], _numbers(row)
        values[5] = f"{'<strong>' + values[5] + '</strong>' if row is best else values[5]}{bar}"
        if row["baseline"] is not None:
            change, word = _change(row)
            test = escape(_test(row).strip(" ()"))
            values[7] = f"{change}<small>{word} {escape(row['baseline'])}<br>{test}</small>"
        label = f'<span class="name">{_swatch(index)}{_breakable(row["name"])}</span>'
        body += f'<tr class="m{index}"><th scope="row">{label}<small>{escape(row["description"])}</small></th>'
        body += "".join(_cell(values[i], numbers[i]) for i in order[1:]) + "</tr>\n"
    notes = ["± is the standard deviation over seeds."] if len(rows[0]["runs"]) > 1 else []
    if unfinished := unfinished_note(rows):
        notes.append(escape(unfinished))
    if ablated:
        notes.append(
            "Thoughts removed: how the first seed's score changes if its thoughts are taken away after training,"
            " with a 95% interval over documents or questions. No change: it does not use them."
        )
    return _sortable([header(rows)[i] for i in order], body, "result") + "".join(
        f"<p class=note>{n}</p>" for n in notes
    )


def _sortable(columns: Sequence[str], body: str, kind: str = "") -> str:
    """A table that the script makes sortable, by each cell's number."""
    head = "".join(f'<th scope="col"{" data-down" * (column in _MORE_IS_BETTER)}>{column}</th>' for column in columns)
    table = f'<table class="sortable {kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def _cell(text: str, number: float | None) -> str:
    known = number is not None and math.isfinite(number)
    return f'<td data-number="{number!r}">{text}</td>' if known else f"<td>{text}</td>"


def _numbers(row: dict[str, Any]) -> list[float | None]:
    """The numbers that the `cells` of a row are sorted by; the name is sorted as text."""
    if "accuracy" in row:
        result = [row["accuracy"]["mean"], row["f1"]["mean"], row["difference"]]
    else:
        result = [row["perplexity"]["mean"], row.get("bits_per_byte", {}).get("mean"), row["ratio"]]
    counts = [row["parameters"][name] for name in ("total", "non_embedding")]
    removed = _ablations(row)["removed"]["difference"] if "ablation" in row else None
    speeds = (row[name]["mean"] for name in ("train_flops_per_token", "tokens_per_second"))
    return [None, *counts, *speeds, *result, removed]


def _breakable(name: str) -> str:
    """A name that may break after its slash, for narrow screens."""
    return f"<span>{escape(name).replace('/', '/<wbr>')}</span>"


# -- tuning ------------------------------------------------------------------------------------------------------------


def _tuning(rows: list[dict[str, Any]]) -> str:
    """What every trial reached on the validation split: a row per model, a column per setting."""
    known = [row for row in rows if "tuning" in row]
    if not known:
        return ""
    trials = [trial for row in known for trial in row["tuning"]["trials"]]
    fields = list(trials[0]["settings"])
    settings = sorted({tuple(trial["settings"].values()) for trial in trials}, key=_in_order)
    body = ""
    for row in known:
        found = {tuple(trial["settings"].values()): trial for trial in row["tuning"]["trials"]}
        chosen = tuple(row["tuning"]["chosen"].values())
        cells = "".join(_trial(row, found.get(values), values == chosen) for values in settings)
        body += f'<tr><th scope="row"><span class="name">{_breakable(row["name"])}</span></th>{cells}</tr>\n'
    table = _sortable(("model", *(escape(", ".join(values)) for values in settings)), body)
    note = (
        f"Validation {metric(rows)} by {', '.join(fields)}. Each trial is one run with a seed of its own; bold was "
        "chosen. A trial marked + was added because the best value was at the edge."
    )
    edges = [f"{row['name']} ({', '.join(row['tuning']['at_edge'])})" for row in known if row["tuning"]["at_edge"]]
    if edges:
        note += f" The best value is still at the edge of what was tried for {', '.join(edges)}."
    return f"{table}<p class=note>{escape(note)}</p>"


def _in_order(values: tuple[str, ...]) -> list[tuple[float, str]]:
    """Numbers by size, before words."""
    found = []
    for text in values:
        try:
            found.append((float(text), ""))
        except ValueError:
            found.append((math.inf, text))
    return found


def _trial(row: dict[str, Any], trial: dict[str, Any] | None, chosen: bool) -> str:
    """A cell: what the trial of a model reached, if there was one."""
    if trial is None:
        return _cell("–", None)
    value = trial["value"]
    if value is None:
        text = "loss not finite"
    else:
        text = f"{value:.1%}" if "accuracy" in row else f"{value:,.{perplexity_digits(row)}f}"
    text = f"<strong>{text}</strong>" if chosen else text
    return _cell(f"{text} +" if trial["extended"] else text, value)


# -- figures -----------------------------------------------------------------------------------------------------------


def _legend(names: list[str]) -> str:
    """The models, each with a box that highlights it in all figures."""
    models = "".join(
        f'<label class="m{i}"><input type="checkbox">{_swatch(i)}{escape(name)}</label>' for i, name in enumerate(names)
    )
    return f'<div class="legend" role="group" aria-label="Models to highlight in the figures">{models}</div>'


def _highlights(models: int) -> str:
    """Each model's colour; the others fade while some are selected or one is pointed at."""
    rules, pointed = "", ""
    drawn = ":is(.plot,.leaders,.labels)>"
    for i in range(models):
        dash = "stroke-dasharray:7 5;" if i >= COLOURS else ""
        rules += f".m{i}{{--c:var(--c{i % COLOURS})}}.line.m{i},.swatch.m{i} path{{{dash}}}"
        rules += f".figures:has(.legend :checked):not(:has(.legend .m{i} :checked)) {drawn}.m{i}{{opacity:.15}}"
        pointed += (
            f".figures:has(:is(.legend,.labels) .m{i}:hover) {drawn}:not(.m{i},.grid,.front,.cross){{opacity:.15}}"
        )
    return f"{rules}@media(hover:hover){{{pointed}}}"


def _costs(rows: list[dict[str, Any]], names: list[str], matched: str | None) -> str:
    """A chart for each cost that is known for all runs, one of them visible, and all costs as a table."""
    name, down = metric(rows), ACCURACY if metric(rows) == "accuracy" else PERPLEXITY
    runs = [run for row in rows for run in row["runs"]]
    memory = max(run.get("peak_memory_bytes", 0) for run in runs)
    marks = ["*" if estimator_label(row) else "" for row in rows] if name == "perplexity" else [""] * len(rows)
    costs: dict[str, tuple[str, Measure, list[Point]]] = {}
    for key, title, measure in (
        ("flops", "training FLOPs", counted("FLOPs", logarithmic=True)),
        ("seconds", "training time", _clock(max(run["seconds"] for run in runs), logarithmic=True)),
        ("peak_memory_bytes", "peak memory", _memory(memory)),
        ("parameters", "parameters", counted("parameters without embeddings", logarithmic=True)),
    ):
        points = []
        for i, row in enumerate(rows):
            seeds = [(_cost(run, key), run["test"][name]) for run in row["runs"]]
            if all(math.isfinite(y) for _, y in seeds):
                points.append(
                    Point(i, names[i], statistics.fmean(x for x, _ in seeds), row[name]["mean"], seeds, marks[i])
                )
        if points and all(_cost(run, key) > 0 for run in runs):
            costs[key] = title, measure, points
    if not costs:
        return ""
    shown = next((key for key in costs if key != matched), None)  # matched FLOPs would be one column of points
    choices = "".join(
        f'<label><input type="radio" name="cost" value="{key}"{" checked" * (key == shown)}>{title}</label>'
        for key, (title, _, _) in costs.items()
    )
    charts = "".join(
        scatter(f"Test {name} by {title}", points, measure, down, best_is_low=name == "perplexity", name=key)
        for key, (title, measure, points) in costs.items()
    )
    best = "lower" if name == "perplexity" else "higher"
    note = f"Further left is cheaper, {best} is better. The grey line is the Pareto frontier."
    if len(rows[0]["runs"]) > 1:
        note += " Small dots are seeds, large dots their means."
    if any(marks):
        labels = [f"{names[i]}{estimator_label(row)}" for i, row in enumerate(rows) if marks[i]]
        note += f" * Not an exact likelihood: {escape(', '.join(labels))}."
    body = ""
    for i, row in enumerate(rows):
        body += f'<tr class="m{i}"><th scope="row"><span class="name">{_swatch(i)}{_breakable(names[i])}</span></th>'
        body += _cell(down.show(row[name]["mean"]), row[name]["mean"])
        for key, (_, measure, _) in costs.items():
            mean = statistics.fmean(_cost(run, key) for run in row["runs"])
            body += _cell(measure.show(mean), mean)
        body += "</tr>"
    measured = ("seconds", "peak_memory_bytes")
    units = [f"{title}, {measure.unit}" if key in measured else title for key, (title, measure, _) in costs.items()]
    table = _sortable(["model", _RESULTS[name][0], *units], body)
    return (
        f'<fieldset class="choice"><legend>Cost</legend>{choices}</fieldset>{charts}<p class="note">{note}</p>'
        f'<details class="numbers"><summary>As a table</summary>{table}</details>'
    )


def _cost(run: dict[str, Any], key: str) -> float:
    return run["parameters"]["non_embedding"] if key == "parameters" else run.get(key, 0)


def _clock(most: float, *, logarithmic: bool = False) -> Measure:
    """A unit of time for values of up to `most` seconds."""
    unit, size = ("hours", 3600) if most > 3 * 3600 else ("minutes", 60) if most > 300 else ("seconds", 1)
    return counted(unit, size, logarithmic=logarithmic)


def _memory(most: float) -> Measure:
    """A unit of memory for values of up to `most` bytes."""
    unit, size = ("GiB", 2**30) if most >= 2**30 else ("MiB", 2**20)
    return counted(unit, size, logarithmic=True)


def _charts(rows: list[dict[str, Any]], names: list[str]) -> tuple[str, list[dict[str, Any]]]:
    """The charts, and their values for the page's script."""
    time = _clock(max((point["seconds"] for row in rows for run in row["runs"] for point in run["curve"]), default=0))
    name, score = metric(rows), f"validation_{metric(rows)}"
    # Stages of a curriculum replace text by latents, so tokens of different stages are not comparable, but steps are.
    clock, clocks = ("step", "steps") if name == "accuracy" else ("tokens", "tokens")
    quality = ACCURACY if name == "accuracy" else PERPLEXITY
    charts = [
        (f"Validation {name} by training {clocks}", clock, counted(clocks), score, quality),
        (f"Validation {name} by training FLOPs", "flops", counted("FLOPs"), score, quality),
        (f"Validation {name} by time", "seconds", time, score, quality),
        (f"Training loss by training {clocks}", clock, counted(clocks), "loss", LOSS),
    ]
    drawn, readings, staged = "", [], False
    for title, x, across, y, down in charts:
        curves = [curve(i, names[i], row["runs"], x, y) for i, row in enumerate(rows)]
        curves = [c for c in curves if c.x]
        if curves:
            staged |= any(c.stages for c in curves)
            html, reading = line_chart(title, curves, across, down)
            drawn += html
            readings.append(reading)
    if not drawn:
        return "", []
    notes = []
    if len(rows[0]["runs"]) > 1:
        notes.append("Lines are means over seeds, bands the range from minimum to maximum.")
    if staged:
        notes.append(
            "At a vertical line the next stage of a model's curriculum begins; "
            "validation uses the current stage of training."
        )
    noted = "".join(f'<p class="note">{note}</p>' for note in notes)
    hint = (
        '<p class="note" data-script hidden>Point at a chart to read the values of all models, or use the arrow '
        "keys. Values between two measurements are interpolated.</p>"
    )
    return f'<div class="charts">{drawn}</div>{noted}{hint}', readings


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
        summary = f"<summary>“{escape(prompt.strip())}”</summary>"
        parts.append(f'<details>{summary}<div class="samples">{cards}</div></details>')
    return "\n".join(parts)


def _protocol(rows: list[dict[str, Any]]) -> str:
    """What was scored and how: one value if all models share it, else one per model."""
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
            text = "<br>".join(f"<b>{escape(r['name'])}</b> {escape(_text(v))}" for r, v in zip(rows, values))
        body += f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{text}</dd>"
    test = rows[0]["runs"][0]["test"]
    same = scored_alike([run for row in rows for run in row["runs"]])
    if metric(rows) == "accuracy":
        warning = "" if same else "<p class=warning>The models answered different numbers of questions.</p>"
        return f"<dl>{body}<dt>answered</dt><dd>{test['questions']:,} questions</dd></dl>{warning}"
    size = f"{test['tokens']:,} tokens, {test['bytes']:,} bytes"
    warning = (
        "" if same else "<p class=warning>The models scored different numbers of tokens: compare bits per byte.</p>"
    )
    note = ends_note(rows)
    ends = f"<p>{escape(note)}</p>" if note else ""
    return f"<dl>{body}<dt>scored</dt><dd>{size}</dd></dl>{warning}{ends}"


def _text(value: Any) -> str:
    return "none" if value is None else str(value)


def _provenance(comparison: dict[str, Any]) -> str:
    rows = comparison["rows"]
    hashes = sorted({str(run["data_hash"]) for row in rows for run in row["runs"]})
    facts = {
        "commit": _each(rows, "commit"),
        "data": ", ".join(value[:16] for value in hashes),
        "hardware": _each(rows, "hardware"),
        "versions": _each(rows, "versions"),
    }
    body = "".join(f"<dt>{name}</dt><dd>{escape(_text(value))}</dd>" for name, value in facts.items())
    result, name = _RESULTS[metric(rows)][0], metric(rows)
    columns = ("model", "seed", "steps", "tokens", "FLOPs", "seconds", "peak memory", result)
    held = _memory(max(run.get("peak_memory_bytes", 0) for row in rows for run in row["runs"]))
    runs, recipes = "", ""
    for index, row in enumerate(rows):
        for run in row["runs"]:
            memory, value = run.get("peak_memory_bytes"), run["test"][name] * (100 if name == "accuracy" else 1)
            figures = (
                (run["seed"], run["seed"]),
                (f"{run['steps']:,}", run["steps"]),
                (short_count(run["tokens"]), run["tokens"]),
                (short_count(run["flops"]), run["flops"]),
                (f"{run['seconds']:,.0f}", run["seconds"]),
                (held.words(memory) if memory else "-", memory),
                (f"{value:,.2f}", value),
            )
            runs += f'<tr class="m{index}"><th scope="row">{_swatch(index)} {escape(row["name"])}</th>'
            runs += "".join(_cell(*figure) for figure in figures) + "</tr>"
        each = zip(row.get("commands", [None] * len(row["runs"])), row["runs"])  # a command per run, or that of all
        commands = "\n".join(dict.fromkeys(alone or run.get("command", "") for alone, run in each))
        config = json.dumps(row["runs"][0]["config"], indent=2)
        recipes += f"<details><summary>{escape(row['name'])}: command and recipe</summary>"
        recipes += "".join(f"<pre>{escape(text)}</pre>" for text in (commands, config) if text) + "</details>"
    command = f"<h3>Command of this report</h3><pre>{escape(comparison['command'])}</pre>"
    return f"{command}<dl>{body}</dl><h3>Runs</h3>{_sortable(columns, runs)}{recipes}"


def _each(rows: list[dict[str, Any]], name: str) -> str:
    """A fact about the runs; if they differ in it, each value with the models whose runs have it."""
    models: dict[str, list[str]] = {}
    for row in rows:
        for run in row["runs"]:
            text = ", ".join(f"{part} {_text(value)}".strip() for part, value in _items(run[name]))
            models.setdefault(text, []).append(row["name"])
    if len(models) == 1:
        return next(iter(models))
    return "; ".join(f"{text} ({', '.join(dict.fromkeys(names))})" for text, names in models.items())


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else [("", value)]
