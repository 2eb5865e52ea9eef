"""The figure of a suite: which share of the gap between floor and optimum each method closes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from mentalese.analyses.drawing import COLORS, Figure, canvas, footnote, only_path, percent_axis
from mentalese.errors import InputError

ROLES = {"mechanism": COLORS[0], "twin": "0.35", "control": COLORS[1], "other": COLORS[2]}
_CUT = (-0.25, 1.1)  # shares that are drawn; what lies outside is drawn at the edge


def _suite(paths: list[str]) -> tuple[Any, dict[str, Any]]:
    """A panel per task, a row per method: each seed, the mean, and its 95% interval."""
    path = only_path(paths, "suite")
    try:
        tasks = json.loads(Path(path).read_text(encoding="utf-8"))["tasks"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not the suite.json of `mentalese suite`: use one") from error
    rows = [len(task["methods"]) for task in tasks]
    height = 0.9 + sum(0.75 + 0.3 * count for count in rows)
    picture, panels = canvas(len(tasks), 1, 7.5, height, sharex=True, gridspec_kw={"height_ratios": rows})
    numbers: dict[str, Any] = {"tasks": []}
    for (panel,), task in zip(panels, tasks):
        methods = task["methods"]
        for row, method in enumerate(methods):
            shares, color = method["closed"], ROLES[method["role"]]
            seeds = np.clip(shares["seeds"], *_CUT)
            if shares["interval"] is not None:
                panel.plot(np.clip(shares["interval"], *_CUT), [row, row], color=color, lw=2)
            panel.plot(np.clip(shares["mean"], *_CUT), row, "D", color=color, markersize=7)
            panel.plot(seeds, [row] * len(seeds), "o", color="white", markeredgecolor=color, markersize=4.5, zorder=3)
        panel.set_yticks(range(len(methods)), [f"{m['name'].partition('/')[2]} ({m['role']})" for m in methods])
        panel.set(title=task["name"], xlim=_CUT, ylim=(len(methods) - 0.5, -0.5))
        for level in (0, 1):
            panel.axvline(level, color="0.6", linewidth=0.8, linestyle="--")
        percent_axis(panel.xaxis)
        kept = [{"name": m["name"], "role": m["role"], "closed": m["closed"]} for m in methods]
        numbers["tasks"].append({"name": task["name"], "methods": kept})
    panels[-1][0].set_xlabel("share of the gap closed; 0%: best without the mechanism, 100%: best possible")
    everything = [share for task in tasks for method in task["methods"] for share in method["closed"]["seeds"]]
    cut = f"; shares below {_CUT[0]:.0%} are drawn there" if min(everything) < _CUT[0] else ""
    footnote(picture, f"white dots: seeds; diamonds: means with 95% intervals over seeds{cut}")
    return picture, numbers


SUITE = Figure(description="the share of the gap that each method of a suite closes", takes="SUITE.json", draw=_suite)
