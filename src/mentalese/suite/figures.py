"""The figures of a suite: which share of the gap between floor and optimum each method closes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mentalese.analyses.drawing import COLORS, Drawing, Figure, Numbers, canvas, footnote, percent_axis
from mentalese.errors import require
from mentalese.files import read_json
from mentalese.formatting import method_name, scored_as, share_text
from mentalese.suite.recipes import SUITE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROLES = {"mechanism": COLORS[0], "twin": "0.35", "control": COLORS[1], "other": COLORS[2]}
_CUT = (-0.25, 1.1)  # range of shares; values outside are drawn at the edge


def _tasks(paths: list[str]) -> list[Numbers]:
    """Return the tasks of some `suite.json`, of the last one that has each, in the suite's order.

    Tasks on a corpus, whose optimum is unknown, are left out.
    """
    tasks: dict[str, Numbers] = {}
    for path in paths:
        file = Path(path) / "suite.json" if Path(path).is_dir() else Path(path)
        matches = [task for task in read_json(file).get("tasks", []) if not task["spec"].startswith("file:")]
        remedy = "use a suite.json of `mentalese suite` with a task with an optimum"
        require(bool(matches), "the figure's path", path, remedy)
        tasks |= {task["name"]: task for task in matches}
    return [tasks[name] for name in SUITE if name in tasks]


def _draw(panel: Axes, methods: list[Numbers]) -> None:
    """Draw a row for each method of a task: each seed, the mean, and its 95% interval."""
    for row, method in enumerate(methods):
        parts = (method["closed"][name] for name in ("mean", "interval", "seeds"))
        mean, interval, seeds = (part and np.clip(part, *_CUT).tolist() for part in parts)
        color = ROLES[method["role"]]
        if interval is not None:
            panel.plot(interval, [row, row], color=color, lw=2)
        panel.plot(mean, row, "D", color=color, markersize=7)
        panel.plot(seeds, [row] * len(seeds), "o", color="white", markeredgecolor=color, markersize=4.5, zorder=3)
    names = [f"{method_name(m['name'])} ({m['role']}){scored_as(m)}" for m in methods]
    panel.set_yticks(range(len(methods)), names)
    panel.set_ylim(len(methods) - 0.5, -0.5)


def _suite(paths: list[str]) -> Drawing:
    """Return a panel per task, a row per method."""
    tasks = _tasks(paths)
    rows = [len(task["methods"]) for task in tasks]
    height = 0.9 + sum(0.75 + 0.3 * count for count in rows)
    picture, panels = canvas(len(tasks), 1, 7.5, height, sharex=True, gridspec_kw={"height_ratios": rows})
    numbers: Numbers = {"tasks": []}
    for (panel,), task in zip(panels, tasks):
        methods = task["methods"]
        _draw(panel, methods)
        panel.set(title=task["name"], xlim=_CUT)
        for level in (0, 1):
            panel.axvline(level, color="0.6", linewidth=0.8, linestyle="--")
        percent_axis(panel.xaxis)
        entries = [{"name": m["name"], "role": m["role"], "closed": m["closed"]} for m in methods]
        numbers["tasks"].append({"name": task["name"], "methods": entries})
    panels[-1][0].set_xlabel("share of the gap closed; 0%: best without the mechanism, 100%: best possible")
    closed = [method["closed"] for task in tasks for method in task["methods"]]
    everything = [share for one in closed for share in (*one["seeds"], *(one["interval"] or ()))]
    low, high = _CUT
    beyond = [
        share_text(edge) for edge, is_cut in ((low, min(everything) < low), (high, max(everything) > high)) if is_cut
    ]
    cut = f"; what lies beyond {' and '.join(beyond)} is drawn there" if beyond else ""
    footnote(picture, f"white dots: seeds; diamonds: means with 95% intervals over seeds{cut}")
    return picture, numbers


def _matrix(paths: list[str]) -> Drawing:
    """Return families by tasks: shares of the gap, in colour where the family beats its twin and all controls."""
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    from mentalese.suite.judge import verdict

    tasks = _tasks(paths)
    mechanisms = [
        (task["name"], method["family"], method["closed"]["mean"], verdict(method, task["methods"]))
        for task in tasks
        for method in task["methods"]
        if method["role"] == "mechanism"
    ]
    families = [*dict.fromkeys(family for _, family, _, _ in mechanisms)]
    columns = [task["name"] for task in tasks]
    picture, panels = canvas(1, 1, 1.6 + 0.75 * len(columns), 1.3 + 0.32 * len(families))
    panel = panels[0][0]
    for name, family, share, found in mechanisms:
        x, y, better = columns.index(name), families.index(family), found == "better"
        shade = (*to_rgb(COLORS[0]), 0.25 + 0.75 * min(max(share, 0), 1)) if better else "0.93"
        panel.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=shade, edgecolor="none"))
        weight, color = ("bold", "white" if share > 0.5 else "black") if better else ("normal", "0.45")
        text = share_text(share)
        words = {"not trained": "not\ntrained", "undecided": f"{text} ?"}.get(found, text)
        panel.text(x, y, words, ha="center", va="center", fontsize=9, weight=weight, color=color, linespacing=0.9)
    panel.set_xticks(range(len(columns)), columns, rotation=30, ha="left")
    panel.set_yticks(range(len(families)), families)
    panel.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(families) - 0.5, -0.5))
    panel.tick_params(length=0, top=False, bottom=False, labeltop=True, labelbottom=False)
    panel.spines[:].set_visible(False)
    panel.grid(visible=False)
    note = "share of the gap closed; blue: better than the same layers without thoughts and all controls; ?: undecided"
    footnote(picture, note)
    fields = ("task", "family", "closed", "verdict")
    numbers = [dict(zip(fields, mechanism, strict=True)) for mechanism in mechanisms]
    return picture, {"cells": numbers}


FIGURES = {
    "suite": Figure("the share of the gap that each method of a suite closes", "SUITE.json ...", _suite),
    "suite-matrix": Figure(
        "families by tasks: the share of the gap that each closes, and where it beats twin and controls",
        "SUITE.json ...",
        _matrix,
    ),
}
