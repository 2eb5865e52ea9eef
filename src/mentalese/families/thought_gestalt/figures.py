"""Figures of Thought Gestalt: the paper's analyses, from runs and results."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from mentalese.analyses.drawing import (
    COLORS,
    Drawing,
    Figure,
    Numbers,
    canvas,
    count_axis,
    footnote,
    interval_band,
    line_style,
    percent_axis,
    read_result,
    read_run,
    ticks_at,
)
from mentalese.errors import InputError, require
from mentalese.files import read_json
from mentalese.formatting import model_names, round_numbers
from mentalese.registry import recipes_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mentalese.models.saved import Saved

COMPONENTS = {"self_attention": "self-attention", "memory": "memory cross-attention", "mlp": "MLP"}
CONDITIONS = {"normal": "--", "reversed": "-"}
SIZES = {
    "D": ("training tokens D", "tokens", "data"),
    "N": ("non-embedding parameters N", "parameters", "parameter"),
}


# -- gates over training (appendix C, Figure 7) ------------------------------------------------------------------------


def gates(paths: list[str]) -> Drawing:
    """Draw the gate of each cross-attention layer, one panel per run."""
    from matplotlib import colormaps

    runs = [_records(path, "memory_gate.") for path in paths]
    clock = "sentence_steps" if all("sentence_steps" in records[0] for records, _ in runs) else "tokens"
    picture, (panels,) = canvas(1, len(paths), 1 + 4.2 * len(paths), 3.6, sharey=True)
    numbers = []
    names = {name for records, _ in runs for name in records[0] if name.startswith("memory_gate.")}
    layers = sorted(int(name.removeprefix("memory_gate.")) for name in names)
    shades = (colormaps["viridis"](0.9 * i / max(1, len(layers) - 1)) for i in range(len(layers)))
    colors = {f"memory_gate.{layer}": shade for layer, shade in zip(layers, shades)}
    lines = {}
    for panel, path, label, (records, best) in zip(panels, paths, model_names(paths), runs):
        x = [record[clock] for record in records]
        series = {name: [record[name] for record in records] for name in colors if name in records[0]}
        for name, values in series.items():
            [lines[name]] = panel.plot(x, values, color=colors[name])
        panel.axvline(x[best], color="0.5", linestyle=":", linewidth=1)
        panel.set_title(label)
        count_axis(panel.xaxis, clock.replace("_", " "))
        at_best = {name: values[best] for name, values in series.items()}
        numbers.append({"path": path, "best": x[best], "gates_at_best": at_best, clock: x, "gates": series})
    panels[0].set_ylabel("memory gate")
    panels[-1].legend(
        [lines[name] for name in reversed(colors)],
        layers[::-1],
        title="layer\n(from 0)",
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
    )
    footnote(picture, "dotted: best validation")
    return picture, {"clock": clock, "runs": numbers}


def _records(path: str, prefix: str) -> tuple[list[Numbers], int]:
    """Return a run's records that contain numbers of this kind, and the index of the last one up to its best step."""
    records = read_run(path)
    matches = [record for record in records if any(name.startswith(prefix) for name in record)]
    remedy = f"it has logged no {prefix.rstrip('.')}, use a run of a model that has them"
    require(bool(matches), "the figure's path", path, remedy)
    validated = [(record["validation"]["perplexity"], record["step"]) for record in records if "validation" in record]
    best = min(validated)[1] if validated else records[-1]["step"]
    return matches, max(sum(record["step"] <= best for record in matches) - 1, 0)


# -- where the gradient goes (appendix D, Figure 8) --------------------------------------------------------------------


def gradient_share(paths: list[str]) -> Drawing:
    """Draw shares of the gradient's norm by component: the mean until the best validation, and over training."""
    picture, panels = canvas(2, len(paths), 1 + 4.2 * len(paths), 5, sharey="row", height_ratios=(1, 2))
    numbers = []
    for (bar, lines), path, label in zip(panels.T, paths, model_names(paths)):
        records, best = _records(path, "gradient_share.")
        tokens = [record["tokens"] for record in records]
        series = {name: [record.get(f"gradient_share.{name}", 0.0) for record in records] for name in COMPONENTS}
        mean = {name: fmean(values[: best + 1]) for name, values in series.items()}
        left = 0.0
        for color, (name, title) in zip(COLORS, COMPONENTS.items()):
            bar.barh(0, mean[name], left=left, color=color, edgecolor="white", height=0.5)
            inside = mean[name] > 0.05
            place = (left + mean[name] / 2, 0 if inside else 0.33)
            bar.text(*place, f"{mean[name]:.0%}", color="white" if inside else color, ha="center", va="center")
            left += mean[name]
            lines.plot(tokens, series[name], color=color, label=title, linewidth=1.2)
        bar.set(xlim=(0, 1), ylim=(-0.4, 0.5), title=label, yticks=[])
        bar.set_xlabel("mean share up to the best validation", fontsize=8)
        percent_axis(bar.xaxis)
        bar.grid(visible=False)
        lines.axvline(tokens[best], color="0.5", linestyle=":", linewidth=1)
        lines.set_ylim(0, 1)
        percent_axis(lines.yaxis)
        count_axis(lines.xaxis, "training tokens")
        numbers.append({"path": path, "mean_share": mean, "tokens": tokens, "share": series})
    panels[1, 0].set_ylabel("share of the gradient's norm,\nmean over layers")
    handles, titles = panels[1, 0].get_legend_handles_labels()
    picture.legend(handles, titles, loc="outside lower center", ncols=3)
    return picture, {"runs": numbers}


# -- power laws (section 3.2, Figure 2) --------------------------------------------------------------------------------


def scaling(paths: list[str]) -> Drawing:
    """Draw test loss by training tokens or parameters, whichever varies, with fitted laws and multipliers."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    from mentalese.evaluation.scaling import fit_power_law, multiplier

    axis, models, reference = _sizes(paths)
    laws = {}
    for name, points in models.items():
        try:
            laws[name] = fit_power_law([p["x"] for p in points], [p["loss"] for p in points])
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
    picture, ((left, right),) = canvas(1, 2, 9.5, 3.8, width_ratios=(1.3, 1))
    numbers = {}
    for i, (name, points) in enumerate(models.items()):
        law, style = laws[name], line_style(i)
        x = sorted({p["x"] for p in points})
        label = rf"{name}, $\alpha$ = {law.exponent:.3f}"
        if law.exponent_interval is not None:
            label += f" ± {law.exponent_interval[1] - law.exponent:.3f}"
        left.plot([p["x"] for p in points], [p["loss"] for p in points], linestyle="", label=label, **style)
        ends = [x[0] / 1.1, x[-1] * 1.1]
        left.plot(ends, [law.loss(end) for end in ends], color=style["color"], linestyle="--", linewidth=1)
        worth = [multiplier(size, law, laws[reference]) for size in x] if name != reference else []
        if worth:
            right.plot(x, [m.value for m in worth], label=f"{name} to {reference}", **style)
            bounds = [m.interval for m in worth if m.interval is not None]
            interval_band(right, x, [*zip(*bounds)] or None, style["color"])
        achieved = [{"x": p["x"], "value": laws[reference].inverse(p["loss"]) / p["x"]} for p in points]
        numbers[name] = {
            "points": points,
            "law": asdict(law),
            "multipliers": [asdict(m) for m in worth],
            "of_achieved_losses": achieved if worth else [],
        }
    size, noun, adjective = SIZES[axis]
    left.set(xscale="log", yscale="log", title="test loss and its power law", ylabel="nats per token")
    left.yaxis.set_major_locator(MaxNLocator(6))
    left.yaxis.set_minor_locator(NullLocator())
    left.yaxis.set_major_formatter("{x:g}")
    right.axhline(1, color="0.5", linewidth=1)
    right.set(xscale="log", title=f"times the {noun} that the baseline needs")
    right.set_ylabel(f"effective {adjective} multiplier")
    for panel in (left, right):
        count_axis(panel.xaxis, size)
        ticks_at(panel.xaxis, [p["x"] for points in models.values() for p in points])
        if panel.get_legend_handles_labels()[0]:  # one model has no multipliers
            panel.legend()
    return picture, {"axis": axis, "reference": reference, "models": numbers}


def _sizes(paths: list[str]) -> tuple[str, dict[str, list[Numbers]], str]:
    """Return the one of D and N that varies, points by model, and the reference model.

    A model is the prefix of its recipe; in the suite, where that is the task, it is the method.
    """
    tasks = {recipe.name.partition("/")[0] for recipe in recipes_of("suite")}

    def named(recipe: str) -> str:
        prefix, _, method = recipe.partition("/")
        return method if prefix in tasks else prefix

    models: dict[str, list[Numbers]] = {}
    kinds: dict[str, Numbers] = {}
    baselines = set()
    for path in paths:
        result = read_result(path)
        config, test = result["config"], result["test"]
        name, fields = named(result["recipe"]), config["model"]
        kind = {field: value for field, value in fields.items() if isinstance(value, str | bool)}
        remedy = f"its model is of another kind than other runs of {name}, draw it in a figure of its own"
        require(kinds.setdefault(name, kind) == kind, "the figure's path", path, remedy)
        baselines.add(named(config.get("baseline") or ""))
        point = {
            "path": path,
            "D": result.get("train_tokens") or config["data"]["train_tokens"],
            "N": result["parameters"]["non_embedding"],
            "loss": test["nll"],
            "perplexity": test["perplexity"],
            "text": result["data_hash"],
            "scored": [test.get("tokens"), test.get("bytes")],
        }
        models.setdefault(name, []).append(point)
    varying = [axis for axis in SIZES if any(len({p[axis] for p in points}) > 1 for points in models.values())]
    what = "both training tokens and parameters vary" if varying else "all sizes are the same"
    remedy = f"{what} among the runs of a model, use runs that differ in one of the two"
    require(len(varying) == 1, "the figure's paths", paths, remedy)
    (axis,) = varying
    every = [point for points in models.values() for point in points]
    for point in every:
        path = point["path"]
        remedy = "it does not say how many tokens its text has, use runs with data.train_tokens"
        require(point[axis] is not None, "the figure's path", path, remedy)
        alike = axis == "D" or point["text"] == every[0]["text"]
        require(alike, "the figure's path", path, "the runs differ in parameters and in text: use runs on one text")
        remedy = f"it and {every[0]['path']} were tested on different tokens, use runs with the same test and tokenizer"
        require(point["scored"] == every[0]["scored"], "the figure's path", path, remedy)
        point["x"] = point[axis]
    return axis, models, next((name for name in models if name in baselines), next(iter(models)))


# -- the father-son probe (section 3.4, Figure 5) ----------------------------------------------------------------------


Point = tuple[int | None, int | None, str]
"""Step, training tokens and path of a model."""


def reversal(paths: list[str]) -> Drawing:
    """Draw the probe over checkpoints of runs and their best models; other models are horizontal lines."""
    models = []
    for path, label in zip(paths, model_names(paths)):
        folders = {int(folder.name.removeprefix("step-")): folder for folder in Path(path).glob("checkpoints/step-*")}
        tokens_at = {record["step"]: record["tokens"] for record in read_run(path)} if folders else {}
        about = Path(path) / "model" / "mentalese.json"
        if folders and about.is_file():  # the best model's checkpoint may be deleted
            folders.setdefault(read_json(about)["step"], about.parent)
        points: list[Point] = [(step, tokens_at[step], str(folder)) for step, folder in sorted(folders.items())]
        models.append(_probed(path, label, points or [(None, None, path)]))
    return _drawn(models, "training tokens")


def reversal_by_size(paths: list[str]) -> Drawing:
    """Return the probe of the best models of finished runs, over the size of their training text (Figure 5).

    A model that is not a run, such as the paper's GPT-2 XL and Mistral 7B, is a horizontal line.
    """
    runs = [path for path in paths if Path(path).is_file() or (Path(path) / "result.json").is_file()]
    remedy = "use at least two finished runs that differ in data.train_tokens"
    require(bool(runs), "the figure's paths", paths, remedy)
    axis, models, _ = _sizes(runs)
    require(axis == "D", "the figure's paths", paths, remedy)
    probed = []
    for name, points in models.items():
        points.sort(key=lambda point: point["D"])
        probed.append(_probed(name, name, [(None, point["D"], point["path"]) for point in points]))
    others = [path for path in paths if path not in runs]
    probed += [_probed(path, name, [(None, None, path)]) for path, name in zip(others, model_names(others))]
    return _drawn(probed, "training text, tokens")


def _probed(path: str, label: str, models: list[Point]) -> Numbers:
    """Return the probe of models.

    With several numbers of tokens, `trends` has the slopes of the targets' nats.
    """
    from mentalese.evaluation.reversal import QUERIES, run
    from mentalese.models.saved import load

    points: list[Numbers] = []
    for step, tokens, place in models:
        at = f" at {tokens:,} tokens" if tokens else ""
        print(f"probing {label}{at}", file=sys.stderr, flush=True)
        points.append({"step": step, "tokens": tokens} | run(load(place)))
    trends, sizes = {}, [point["tokens"] for point in points]
    if len(set(sizes)) > 1:
        for condition in QUERIES:
            nats = [point[condition]["target_nll"]["mean"] for point in points]
            slope, start = np.polyfit(np.log10(sizes), nats, 1).tolist()
            trends[condition] = {"slope": slope, "at_one_token": start}
    return {"path": path, "label": label, "trends": trends, "points": points}


def _drawn(models: list[Numbers], axis: str) -> Drawing:
    """Draw three panels of all models and one panel per model, over the `tokens` of their points."""
    columns = max(3, len(models))
    picture, (above, below) = canvas(2, columns, 1 + 3.6 * columns, 7)
    for i, (model, panel) in enumerate(zip(models, below)):
        for condition, line in CONDITIONS.items():
            for overview, figure in zip(above, ("target_nll", "margin", "error_rate")):
                label = model["label"] if condition == "reversed" else None
                _series(overview, model, condition, figure, label, band=True, linestyle=line, **line_style(i))
            for color, marker, name in ((COLORS[2], "o", "target"), (COLORS[1], "s", "distractor")):
                label = f"{name}, {condition}"
                _series(panel, model, condition, f"{name}_nll", label, linestyle=line, color=color, marker=marker)
        panel.set(title=model["label"], ylabel="nats")
        panel.legend(fontsize=8)
        if i:
            panel.sharey(below[0])
    above[0].set(title="target NLL: reversed (solid), normal (dashed)", ylabel="nats")
    above[1].set(title="margin: distractor minus target", ylabel="nats")
    above[1].axhline(0, color="0.5", linewidth=1)
    above[2].set(title="distractor preferred", ylim=(-0.03, 1.03))
    percent_axis(above[2].yaxis)
    above[2].axhline(0.5, color="0.5", linewidth=1)
    above[0].legend(fontsize=8)
    sizes = [point["tokens"] for model in models for point in model["points"] if point["tokens"]]
    for panel in [*above[:3], *below[: len(models)]] if sizes else ():
        panel.set(xscale="log", xlim=(min(sizes) / 1.15, max(sizes) * 1.15))
        count_axis(panel.xaxis, axis)
        ticks_at(panel.xaxis, round_numbers(min(sizes), max(sizes)) or [min(sizes), max(sizes)])
    footnote(picture, "dotted: least squares, slope in nats per factor of ten in tokens; bands: 95% over names")
    for panel in [*above[3:], *below[len(models) :]]:
        panel.set_axis_off()
    return picture, {"models": models}


def _series(
    panel: Axes, model: Numbers, condition: str, figure: str, label: str | None, *, band: bool = False, **style: Any
) -> None:
    """Draw one condition over checkpoints, its trend as a thin line, and its interval as a band."""
    tokens = [point["tokens"] for point in model["points"]]
    values = [point[condition][figure] for point in model["points"]]
    means, intervals = [value["mean"] for value in values], [value["interval"] for value in values]
    color = style["color"]
    if tokens == [None]:
        panel.axhline(means[0], label=label, color=color, linestyle=style["linestyle"])
        return
    style |= {"markerfacecolor": color if condition == "reversed" else "white", "markersize": 4}
    trend = model["trends"].get(condition) if figure == "target_nll" else None
    if trend is not None and label is not None:
        label += f", slope {trend['slope']:+.2f}".replace("-", "−")
    panel.plot(tokens, means, label=label, linewidth=1, **style)
    if band and all(intervals):
        interval_band(panel, tokens, zip(*intervals), color)
    if trend is not None:
        ends = [tokens[0], tokens[-1]]
        line = [trend["at_one_token"] + trend["slope"] * math.log10(end) for end in ends]
        panel.plot(ends, line, color=color, linestyle=":", linewidth=1)


# -- what answers are read from ----------------------------------------------------------------------------------------


def recall(paths: list[str], *, source: str | None = None, documents: int = 200) -> Drawing:
    """Draw what an answer of `builtin:recall` loses without each earlier sentence, next to the attention to it.

    Sentences are the one that has the answer, and all others; titles say how often it has the largest value.
    """
    from mentalese.models.saved import load

    saved, (label,) = load(paths[0]).on(source), model_names(paths)
    reads = bool(getattr(saved.model.config, "cross_layers", ()))
    require(reads, "the figure's path", saved.path, "use a Thought Gestalt model whose layers read a memory")
    values = _by_holder(saved, documents)
    picture, (panels,) = canvas(1, len(values), 6.5, 2.8)
    for panel, (name, found) in zip(panels, values.items()):
        panel.bar(["has the answer", "others"], [found["holder"], found["others"]], color=[COLORS[0], "0.7"], width=0.6)
        panel.set(ylabel=name, title=f"largest there: {found['largest']:.0%}")
    questions = next(iter(values.values()))["questions"]
    footnote(picture, f"{label}, {questions} answers: what they lose without one earlier sentence, and attention to it")
    about = {"path": saved.path, "label": label, "source": saved.data.source, "split": saved.part}
    return picture, about | values


def _holder(earlier: list[list[str]], question: list[str]) -> int | None:
    """Return the number of the sentence that has the answer: `kind frog owns ..` for `kind frog ? ..`."""
    states = [*question[: question.index("?")], "owns"]
    return next((i for i, sentence in enumerate(earlier) if sentence[: len(states)] == states), None)


def _by_holder(saved: Saved, documents: int) -> Numbers:
    """Return the mean influence on answers, in nats, and the mean attention of their sentences, by sentence."""
    from mentalese.models.influence import influence
    from mentalese.models.thinking import document_ids

    split = saved.split(saved.part)
    columns: dict[str, list[list[float]]] = {"influence (nats)": [], "attention (share)": []}
    holders = []
    for number in range(min(documents, len(split.document_bytes))):
        trace = saved.trace(document_ids(saved, split, number))
        words = ["".join(trace.tokens[each.start : each.end]).split() for each in trace.thoughts]
        i = next((i for i, sentence in enumerate(words) if "?" in sentence), None)  # later ones may repeat its answer
        holder = None if i is None else _holder(words[:i], words[i])
        if i is None or holder is None or i < 2:  # another text's question, or one with nothing to tell apart
            continue
        holders.append(holder)
        asked = [token.strip() for token in trace.tokens].index("?", trace.thoughts[i].start)
        columns["influence (nats)"].append(influence(saved.model, trace.input_ids)[:i, asked + 1].tolist())
        columns["attention (share)"].append(trace.links["memory"][i, :i].tolist())
    remedy = "it has no questions of builtin:recall after two sentences or more, use --data builtin:recall"
    require(bool(holders), "the figure's source", saved.data.source, remedy)
    return {
        name: {
            "holder": fmean(values[holder] for values, holder in zip(rows, holders)),
            "others": fmean(v for values, holder in zip(rows, holders) for j, v in enumerate(values) if j != holder),
            "largest": fmean(max(values) == values[holder] for values, holder in zip(rows, holders)),
            "questions": len(rows),
        }
        for name, rows in columns.items()
    }


FIGURES = {
    "gates": Figure("memory gates by layer over training", "RUN ...", gates),
    "gradient-share": Figure("shares of the gradient in self-attention, memory and MLP", "RUN ...", gradient_share),
    "scaling": Figure(
        "power laws of the loss over tokens or parameters, with effective multipliers", "RESULT ...", scaling
    ),
    "reversal": Figure("the father-son probe over the checkpoints of runs", "RUN ...", reversal),
    "reversal-by-size": Figure(
        "the father-son probe of best models over the size of their training text, beside other models",
        "RUN ... [MODEL ...]",
        reversal_by_size,
    ),
    "recall": Figure("influence of the sentence that has the answer, next to attention", "MODEL", recall),
}
