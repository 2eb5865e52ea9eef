"""Training curves of runs, and nats per token by the place in a document, which show the worth of long context."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mentalese.analyses.drawing import (
    COLORS,
    MARKERS,
    Drawing,
    Figure,
    Numbers,
    canvas,
    count_axis,
    line_style,
    percent_axis,
    plain_ticks,
    read_result,
    ticks_at,
)
from mentalese.data.split import Split
from mentalese.errors import require
from mentalese.evaluation.metric import ACCURACY, metric_of
from mentalese.formatting import by_next_token, model_names, scored_as


def _curves(paths: list[str]) -> Drawing:
    """Draw validation perplexity and training loss of the next token against tokens.

    For runs of questions, draw accuracy against steps.
    """
    results = [read_result(path) for path in paths]
    metric = metric_of(results[0]["test"])
    for path, result in zip(paths, results):
        name = metric_of(result["test"]).name
        require(name == metric.name, f"metric of {path}", name, f"{paths[0]} has {metric.name}, draw them separately")
    clocks = f"{metric.clock.removesuffix('s')}s"
    picture, ((left, right),) = canvas(1, 2, 10, 3.6)
    numbers: Numbers = {"runs": []}
    ends: dict[int, set[int]] = {}  # the last steps of stages, and which
    for i, (path, result) in enumerate(zip(paths, results)):
        color, test = COLORS[i % len(COLORS)], result["test"][metric.name]
        label = f"{result['recipe']}, test {metric.format(test)}{scored_as(result['test'].get('protocol', {}))}"
        series: Numbers = {}
        for axes, name, style in (
            (left, f"validation_{metric.name}", {"marker": MARKERS[i % len(MARKERS)], "markersize": 3}),
            (right, "loss", {"linewidth": 1}),
        ):
            curve = map(by_next_token, result["curve"])
            points = [(point[metric.clock], point[name]) for point in curve if name in point]
            axes.plot(*zip(*points), color=color, label=label, **style)
            if len(points) == 1:  # which has no line
                axes.plot(*points[0], color=color, marker=".")
            series[name] = [list(point) for point in points]
        if metric is ACCURACY:
            last = {point["stage"]: point["step"] for point in result["curve"] if "stage" in point}
            # `[last step, stage]` of each stage in order; stages without a validation are missing.
            series["stages"] = stages = [[step, stage] for stage, step in last.items()]
            if len(stages) <= 4:  # one stage per epoch would hide the curves
                for end, stage in stages[:-1]:
                    ends.setdefault(end, set()).add(stage)
        about = {"path": path, "recipe": result["recipe"], "label": label, f"test_{metric.name}": test}
        numbers["runs"].append(about | series)
    if metric is ACCURACY:
        for end, which in ends.items():
            left.axvline(end, color="0.5", linewidth=0.8, linestyle="--")
            left.annotate(
                f"stage {', '.join(map(str, sorted(which)))} ends", (end, 1), xycoords=("data", "axes fraction"),
                xytext=(-3, -3), textcoords="offset points", ha="right", va="top", fontsize=7, color="0.4",
            )  # fmt: skip
        left.set(title="validation accuracy at the stage of training", ylim=(-0.02, 1.12))
        percent_axis(left.yaxis)
        losses = [y for run in numbers["runs"] for _, y in run["loss"] if math.isfinite(y)]
        right.set(title="training loss, nats per token", ylim=(0, 1.05 * max(losses, default=1.0)))
    else:
        # The steep start is cut off, or the ends, which readers compare, would get only a few pixels.
        left.set_yscale("log")
        titles = {"validation_perplexity": "validation perplexity", "loss": "training loss, nats per token"}
        for axes, (name, title), factor in zip((left, right), titles.items(), (4.0, 1.5)):
            curves = [[y for _, y in run[name] if math.isfinite(y)] for run in numbers["runs"]]
            ends_at = [values[-1] for values in curves if values]
            limit = factor * max(ends_at, default=math.inf)
            highest = limit if any(max(values, default=0) > limit for values in curves) else None
            numbers.setdefault("cut_at", {})[name] = highest
            axes.set_title(title if highest is None else f"{title}, cut at {highest:.3g}")
            axes.set_ylim(None, highest)
        plain_ticks(left.yaxis)
    for axes in (left, right):
        count_axis(axes.xaxis, f"training {clocks}")
    left.legend()
    return picture, numbers


CURVES = Figure(
    "training loss and validation perplexity against tokens, or accuracy and stages against steps",
    "RESULT ...",
    _curves,
)


def nll_by_position(scores: np.ndarray, split: Split, length: int) -> list[Numbers]:
    """Return mean scores of a document's first tokens, in spans that double: 1, 2-3, 4-7 ... up to `length`.

    Later tokens are not counted: windows give them less context than their place in the document suggests.

    Args:
        scores: nats per token [len(split.tokens)], NaN if not scored.
        length: tokens that a model reads at once.

    Returns:
        For each span with a scored token: `first` and `last` place in the document, from 1, `tokens` and `nll`.
    """
    index = np.flatnonzero(~np.isnan(scores))
    start = split.documents[np.searchsorted(split.documents, index, side="right") - 1]
    place = index - start - split.beginning + 1
    spans = []
    for first in (2**n for n in range(length.bit_length())):
        last = min(2 * first - 1, length)
        inside = index[(place >= first) & (place <= last)]
        if len(inside):
            nll = float(scores[inside].mean(dtype=np.float64))
            spans.append({"first": first, "last": last, "tokens": len(inside), "nll": nll})
    return spans


def _positions(paths: Sequence[str], *, source: str | None = None, documents: int | None = None) -> Drawing:
    """Draw nats per token against the place in the document, of models on the test split of one text, or all of a file.

    Raises:
        InputError: models whose tokenizers split the text into different tokens, or that score none.
    """
    from mentalese.evaluation.options import TextOptions
    from mentalese.models.saved import load, on_one_text

    runs: list[Numbers] = []
    first: np.ndarray | None = None
    models = [one.scored_by(max_documents=documents) for one in on_one_text([*map(load, paths)], source)]
    source = models[0].data.source
    part = TextOptions(source=source).part(*models)
    for path, label, saved in zip(paths, model_names(paths), models):
        split = saved.split(part)
        tokens = np.delete(split.tokens, split.documents[1:] - 1)  # without each model's own end of text
        first = tokens if first is None else first
        remedy = f"it is another than in {paths[0]}, so their positions are not comparable; draw them separately"
        require(np.array_equal(tokens, first), f"tokenizer of {path}", saved.data.tokenizer, remedy)
        window = saved.layout.window(saved.evaluation)
        # A document's first window begins with a token before its text.
        length = window[0] - (split.beginning or 1) if window else int(np.diff(split.documents).max(initial=1))
        spans = nll_by_position(saved.token_scores(split), split, length)
        require(bool(spans), f"scored tokens of {path}", 0, "use a model of text, and documents of two tokens")
        scored = saved.scored_by(tokens="lexical").protocol
        about: Numbers = {"path": path, "label": label, "split": part, "length": length}
        runs.append(about | {"spans": spans, "protocol": scored})
    picture, ((axes,),) = canvas(1, 1, 7, 4)
    for i, run in enumerate(runs):
        places, label = [span["first"] for span in run["spans"]], run["label"] + scored_as(run["protocol"])
        axes.plot(places, [span["nll"] for span in run["spans"]], label=label, **line_style(i))
    axes.set(title="nats per token", xlabel="position in the document (start of span)", xscale="log")
    longest = max(runs, key=lambda run: run["spans"][-1]["last"])
    ticks_at(axes.xaxis, [span["first"] for span in longest["spans"]])
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.legend()
    return picture, {"source": source, "runs": runs}


POSITIONS = Figure("test loss by position in the document: what long context is worth", "MODEL ...", _positions)
