"""Tasks of the suite, one comparison each, and the share of the gap from floor to optimum that each method closes.

A task is a comparison (`mentalese.compare`) of its methods: the same trials for all, chosen on validation by their
mean over seeds, then fresh seeds. Finished runs are reused, so the same command continues where it stopped.
"""

from __future__ import annotations

import datetime
import fnmatch
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mentalese.compare.compare import compare
from mentalese.errors import nearest, require
from mentalese.files import check_page, read_json, sealed, write_json, write_text
from mentalese.html import render
from mentalese.suite.judge import Judged, judge, stands, undecided, verdict
from mentalese.suite.methods import Method, SuiteTask
from mentalese.suite.recipes import DEFAULT, SUITE

RATES = (1e-3, 2.5e-3, 6.3e-3, 4e-4, 1.6e-2)
"""Learning rates in the order in which trials take them; a range is extended if the best one is at its edge."""
SEEDS = (5, 10, 15, 20)
"""Seeds until a mechanism is decided against its twin and its controls: more are added to those that are not."""
VERSION = 3
"""Version of `suite.json`; one of another version is written again."""


def run_suite(
    names: Sequence[str],
    out: Path,
    *,
    recipes: Sequence[str] = (),
    trials: int = 3,
    tune_seeds: int = 3,
    seeds: int | None = None,
    jobs: int = 1,
    executor: str | None = None,
    size: float = 1.0,
    show: bool = True,
) -> Judged:
    """Run tasks and write `suite.json` and `suite.html` into `out` after each task, including tasks of earlier calls.

    Args:
        names: names of tasks; empty: all generated tasks.
        out: the folder of one folder per task, with the runs and the report of its comparison.
        recipes: names or patterns of methods to compare, with their twins and controls; empty: all. The first
            remaining one sets the training FLOPs of text.
        trials: learning rates tried with every method; 1: its own, untuned.
        tune_seeds: runs of each of these rates.
        seeds: runs per method after tuning; `None`: as many of `SEEDS` as decide.
        jobs, executor: number of trainings at once, and their executor, see `run_jobs`.
        size: scales width, text and questions.

    Returns:
        The content of `suite.json`.

    Raises:
        InputError: an unknown task, or a number out of range; errors of `compare`.
    """
    for name in names:
        require(name in SUITE, "tasks", name, f"use some of {', '.join(SUITE)}{nearest(name, SUITE)}")
    require(1 <= trials <= len(RATES), "trials", trials, f"use 1 to {len(RATES)}")
    require(0.25 <= size <= 64, "size", size, "use 0.25 to 64")
    check_page(out / "suite.html", "suite.json")
    rates = {"optimizer.learning_rate": [f"{rate:g}" for rate in sorted(RATES[:trials])]} if trials > 1 else None
    counts = SEEDS if seeds is None else (seeds,)

    def run(task: SuiteTask, count: int) -> Judged:
        comparison = compare(
            [method.recipe for method in task.methods],
            out / task.name,
            match=task.match,
            seeds=count,
            tuned_fields=rates,
            tune_seeds=1 if rates is None else tune_seeds,
            jobs=jobs,
            executor=executor,
            show=show,
        )
        return judge(task, comparison, out / task.name, size, looks=len(counts))

    result: Judged = {}
    for task in _tasks([SUITE[name](size) for name in names or DEFAULT], recipes):
        judged = run(task, counts[0])
        for count, more in itertools.pairwise(counts):
            names = undecided(judged)
            if not names:
                break
            # The first method sets the FLOPs of all, so such a task is run again as a whole.
            still_open = [method for method in task.methods if method.recipe.name in names]
            part = task if task.match else replace(task, methods=_with_rivals(task, still_open))
            if part is not task:
                _keep_report(judged, out, count)
            judged = _updated(judged, run(part, more))
        result = write_suite([judged], out, datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
    return result


def _keep_report(judged: Judged, out: Path, seeds: int) -> None:
    """Rename the files of a comparison, which the comparison of some of its methods with more seeds would replace."""
    for file in (out / judged["name"] / "compare.json", report := out / judged["calls"][-1]["report"]):
        file.replace(file.with_stem(f"{file.stem}-{seeds}-seeds"))
    judged["calls"][-1]["report"] = f"{judged['name']}/{report.stem}-{seeds}-seeds.html"


def _updated(judged: Judged, later: Judged) -> Judged:
    """Return a judged task with the methods that have more seeds since, and their call."""
    if len(later["methods"]) == len(judged["methods"]):
        return later
    methods = {method["name"]: method for method in later["methods"]}
    kept = [methods.get(method["name"], method) for method in judged["methods"]]
    return judged | {"methods": kept, "calls": [*judged["calls"], *later["calls"]]}


def _with_rivals(task: SuiteTask, chosen: Sequence[Method]) -> tuple[Method, ...]:
    """Return some methods of a task, in its order, with the twins and controls of the mechanisms among them."""
    families = {family for one in chosen if one.role == "mechanism" for family in (one.family, one.shares)}
    rivals = [one for one in task.methods if one.role in ("twin", "control") and one.family in families]
    return tuple(one for one in task.methods if one in chosen or one in rivals)


def write_suite(judged: Sequence[Judged], out: Path, created: str) -> Judged:
    """Write `suite.json` and its page into `out`: tasks, and all others that are there; return its content."""
    path = out / "suite.json"
    stored = read_json(path) if path.is_file() else {}
    earlier = stored["tasks"] if stored.get("version") == VERSION else []
    tasks = {task["name"]: task for task in (*earlier, *judged)}
    result = {"version": VERSION, "created": created, "tasks": [tasks[name] for name in SUITE if name in tasks]}
    write_json(path, sealed(result))
    write_text(out / "suite.html", suite_page(result))
    return result


def suite_page(result: Judged) -> str:
    """Return the page of `suite.json` as text."""
    methods = [method for task in result["tasks"] for method in task["methods"]]
    families = dict.fromkeys(
        method["family"] for role in ("mechanism", "other") for method in methods if method["role"] == role
    )
    return render("suite.html.j2", result=result, families=families, stands=stands, verdict=verdict)


def _tasks(tasks: Sequence[SuiteTask], patterns: Sequence[str]) -> list[SuiteTask]:
    """Return the tasks with the methods that match a pattern, and their twins and controls."""
    if not patterns:
        return list(tasks)
    names = dict.fromkeys(method.name for task in tasks for method in task.methods)
    for pattern in patterns:
        remedy = f"use names of methods of {', '.join(task.name for task in tasks)}{nearest(pattern, names)}"
        require(bool(fnmatch.filter(names, pattern)), "recipes", pattern, remedy)
    selection = []
    for task in tasks:
        matches = [m for m in task.methods if any(fnmatch.fnmatch(m.name, pattern) for pattern in patterns)]
        methods = _with_rivals(task, matches)
        remedy = f"use two or more methods of {task.name}: {', '.join(method.name for method in task.methods)}"
        require(len(methods) > 1, "recipes", ", ".join(patterns), remedy)
        selection.append(replace(task, methods=methods))
    return selection
