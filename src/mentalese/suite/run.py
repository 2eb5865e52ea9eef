"""Tasks of the suite, one comparison each, and the share of the gap from floor to optimum that each method closes.

A task is a comparison (`mentalese.compare`) of its methods: the same trials for all, chosen on validation by their
mean over seeds, then fresh seeds. Finished runs are reused, so the same command continues where it stopped.
"""

from __future__ import annotations

import datetime
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mentalese.compare.compare import RunCounts, compare, count_runs
from mentalese.compare.comparison import LOOKS
from mentalese.errors import nearest, require
from mentalese.evaluation.statistics import confidence_of
from mentalese.files import check_page, read_json, sealed, write_json, write_text
from mentalese.html import render
from mentalese.suite.judge import Judged, judge, undecided, verdict
from mentalese.suite.methods import RATES, Method, SuiteTask
from mentalese.suite.recipes import DEFAULT, SUITE

VERSION = 4
"""Version of `suite.json`; one of another version is written again."""


@dataclass(frozen=True)
class Schedule:
    """Numbers of runs of every method.

    Attributes:
        trials: learning rates that are tried, with `tune_seeds` runs each; with 1 each method has its own.
        looks: runs after tuning: of the first look at a task, and of each later one.
    """

    trials: int
    tune_seeds: int
    looks: tuple[int, ...]

    @classmethod
    def of(cls, trials: int = 3, tune_seeds: int = 3, seeds: int | None = None) -> Schedule:
        require(1 <= trials <= len(RATES), "trials", trials, f"use 1 to {len(RATES)}")
        require(trials > 1 or tune_seeds == 3, "tune_seeds", tune_seeds, "with one trial nothing is tuned: remove it")
        looks = LOOKS if seeds is None else (seeds,)
        return cls(trials, tune_seeds if trials > 1 else 1, looks)

    def tuned_fields(self, task: SuiteTask) -> dict[str, list[str]] | None:
        rates = sorted(task.rates[: self.trials])
        return {"optimizer.learning_rate": [f"{rate:g}" for rate in rates]} if self.trials > 1 else None


@dataclass(frozen=True)
class Look:
    """A comparison that is next for a task.

    Attributes:
        task: the task, with the methods that are compared: all, or mechanisms that are not decided and their rivals.
        undecided: number of mechanisms that it may decide.
        counts: runs of each method, by its name.
    """

    task: SuiteTask
    seeds: int
    undecided: int
    counts: Mapping[str, RunCounts]

    @property
    def runs_left(self) -> int:
        return sum(count.left for count in self.counts.values())

    @property
    def seconds_left(self) -> float:
        """CPU time of the runs left, by finished runs of the same methods; others are not counted."""
        return sum(count.left * (count.seconds or 0.0) for count in self.counts.values())


def next_look(task: SuiteTask, judged: Judged | None, out: Path, schedule: Schedule) -> Look | None:
    """Return the look after `judged`; `None` if all mechanisms are decided, or have as many seeds as they get."""
    if judged is None:
        mechanisms, part, seeds = [m for m in task.methods if m.role == "mechanism"], task, schedule.looks[0]
    else:
        names, done = undecided(judged), max(len(method["closed"]["seeds"]) for method in judged["methods"])
        mechanisms = [method for method in task.methods if method.recipe.name in names]
        more = [count for count in schedule.looks if count > done]
        if not mechanisms or not more:
            return None
        part, seeds = replace(task, methods=_with_rivals(task, mechanisms)), more[0]
    counts = {method.recipe.name: count_method(task, method, out, seeds, schedule) for method in part.methods}
    return Look(part, seeds, len(mechanisms), counts)


def count_method(task: SuiteTask, method: Method, out: Path, seeds: int, schedule: Schedule) -> RunCounts:
    fields, tune_seeds = schedule.tuned_fields(task), schedule.tune_seeds
    return count_runs(method.recipe, out / task.name, seeds, tuned_fields=fields, tune_seeds=tune_seeds)


def most_to_gain(looks: Sequence[Look]) -> Look:
    """Return the look with the most undecided mechanisms per CPU second; of equal ones the first."""
    return max(looks, key=lambda look: look.undecided / (look.seconds_left or 1e-9))


def run_suite(
    names: Sequence[str],
    out: Path,
    schedule: Schedule,
    *,
    recipes: Sequence[str] = (),
    jobs: int = 1,
    executor: str | None = None,
    size: float = 1.0,
) -> Judged:
    """Run tasks and write `suite.json` and `suite.html` into `out` after each look, including tasks of earlier calls.

    Every task has its first look, in the order of names. Then the look is next that has the most to gain. Options
    are as in `mentalese suite`; the folder has one folder per task, with the runs and the report of its comparison.

    Returns:
        The content of `suite.json`.

    Raises:
        InputError: an unknown task, a number out of range, or a folder whose suite.json has methods of a task that
            `recipes` leaves out; errors of `compare`.
        FloatingPointError: the loss of a reported run was not finite, so that its task has no result of this look; all
            other tasks have been run.
    """
    tasks = tasks_of(names, recipes, size)
    check_page(out / "suite.html", "suite.json")
    stored = stored_tasks(out)
    for task in tasks if recipes else ():  # these methods would take the place of all that the task has there
        there = {method["name"] for method in stored.get(task.name, {"methods": []})["methods"]}
        lost = sorted(there - {method.recipe.name for method in task.methods})
        require(not lost, "--out", str(out), f"its suite.json has {', '.join(lost)} too: use another folder")
    result: Judged = {}
    judged: dict[str, Judged] = {}
    looks: dict[str, Look] = {}
    failures: list[FloatingPointError] = []

    def take(task: SuiteTask, part: SuiteTask, count: int) -> None:
        nonlocal result
        try:
            comparison = compare(
                [method.recipe for method in part.methods],
                out / task.name,
                seeds=count,
                tuned_fields=schedule.tuned_fields(task),
                tune_seeds=schedule.tune_seeds,
                jobs=jobs,
                executor=executor,
            )
        except FloatingPointError as error:
            failures.append(error)
            return
        earlier = judged.get(task.name)
        found = judge(part, comparison, out / task.name, size, len(schedule.looks), earlier)
        # A comparison with other seeds would replace them; a report without its numbers would be taken for another's.
        for file in ("report.html", "compare.json"):
            path = out / task.name / file
            path.replace(path.with_stem(f"{path.stem}-{count}-seeds"))
        if earlier is not None:
            methods = {method["name"]: method for method in found["methods"]}
            methods_now = [methods.get(method["name"], method) for method in earlier["methods"]]
            found = earlier | {"methods": methods_now, "calls": [*earlier["calls"], *found["calls"]]}
        judged[task.name] = found
        following = next_look(task, found, out, schedule)
        if following is not None:
            looks[task.name] = following
        # If all of its runs are there, an earlier call has published more.
        if following is None or following.runs_left:
            result = write_suite([found], out, datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))

    for task in tasks:
        take(task, task, schedule.looks[0])
    by_name = {task.name: task for task in tasks}
    while looks:
        look = looks.pop(most_to_gain([looks[name] for name in by_name if name in looks]).task.name)
        take(by_name[look.task.name], look.task, look.seeds)
    if failures:
        raise failures[0]
    return result


def _with_rivals(task: SuiteTask, chosen: Sequence[Method]) -> tuple[Method, ...]:
    """Return some methods of a task, in its order, with the twins and controls of the mechanisms among them."""
    rivals = [rival for one in chosen if one.role == "mechanism" for rival in task.rivals(one)]
    return tuple(one for one in task.methods if one in chosen or one in rivals)


def write_suite(judged: Sequence[Judged], out: Path, created: str) -> Judged:
    """Write `suite.json` and its page into `out`: tasks, and all others that are there; return its content."""
    tasks = stored_tasks(out) | {task["name"]: task for task in judged}
    result = {"version": VERSION, "created": created, "tasks": [tasks[name] for name in SUITE if name in tasks]}
    write_json(out / "suite.json", sealed(result))
    write_text(out / "suite.html", suite_page(result))
    return result


def stored_tasks(out: Path) -> dict[str, Judged]:
    """Return the tasks of `suite.json` in a folder by name; none of another version."""
    path = out / "suite.json"
    stored = read_json(path) if path.is_file() else {}
    return {task["name"]: task for task in stored["tasks"]} if stored.get("version") == VERSION else {}


def suite_page(result: Judged) -> str:
    """Return the page of `suite.json` as text."""
    methods = [method for task in result["tasks"] for method in task["methods"]]
    families = dict.fromkeys(
        method["family"] for role in ("mechanism", "other") for method in methods if method["role"] == role
    )
    return render("suite.html.j2", result=result, families=families, verdict=verdict, confidence_of=confidence_of)


def tasks_of(names: Sequence[str], patterns: Sequence[str], size: float = 1.0) -> list[SuiteTask]:
    """Return the tasks of these names, with the methods that match a pattern, and their twins and controls."""
    for name in names:
        require(name in SUITE, "tasks", name, f"use some of {', '.join(SUITE)}{nearest(name, SUITE)}")
    require(0.25 <= size <= 64, "size", size, "use 0.25 to 64")
    tasks = [SUITE[name](size) for name in names or DEFAULT]
    if not patterns:
        return tasks
    every = dict.fromkeys(method.name for task in tasks for method in task.methods)
    for pattern in patterns:
        remedy = f"use names of methods of {', '.join(task.name for task in tasks)}{nearest(pattern, every)}"
        require(bool(fnmatch.filter(every, pattern)), "recipes", pattern, remedy)
    selection = []
    for task in tasks:
        matches = [m for m in task.methods if any(fnmatch.fnmatch(m.name, pattern) for pattern in patterns)]
        methods = _with_rivals(task, [*task.methods[: task.is_corpus], *matches])  # the first sets a corpus' levels
        remedy = f"use two or more methods of {task.name}: {', '.join(method.name for method in task.methods)}"
        require(len(methods) > 1, "recipes", ", ".join(patterns), remedy)
        selection.append(replace(task, methods=methods))
    return selection


# -- status ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskStatus:
    """The state of a task.

    Attributes:
        finished, planned: runs of the next look that there are, and all of them, with trials; 0 without a look.
        seeds: finished runs that are reported, by method.
        decided, undecided, not_begun: numbers of mechanisms; decided ones may be not trained.
        hours_left: CPU hours of the other runs, by finished runs of the same methods; `None` if there are none yet.
        untimed: methods without a finished run, which `hours_left` leaves out.
    """

    task: str
    finished: int
    planned: int
    seeds: dict[str, int]
    decided: int
    undecided: int
    not_begun: int
    hours_left: float | None
    untimed: int


def read_status(
    names: Sequence[str], out: Path, schedule: Schedule, *, recipes: Sequence[str] = (), size: float = 1.0
) -> list[TaskStatus]:
    """Return the state of each task in a folder of `run_suite`; nothing is trained or written.

    Raises:
        InputError: an unknown task, or a number out of range.
    """
    stored = stored_tasks(out)
    return [_status(task, stored.get(task.name), out, schedule, size) for task in tasks_of(names, recipes, size)]


def _status(task: SuiteTask, judged: Judged | None, out: Path, schedule: Schedule, size: float) -> TaskStatus:
    methods = {method.recipe.name for method in task.methods}
    same = judged and (judged["size"], judged["looks"]) == (size, len(schedule.looks))
    if judged and not (same and methods <= {method["name"] for method in judged["methods"]}):
        judged = None  # of another call
    look = next_look(task, judged, out, schedule)
    counts = dict(look.counts) if look else {}
    looked_at = [*counts]
    untimed = sum(count.seconds is None for count in counts.values())
    mechanisms = sum(method.role == "mechanism" for method in task.methods)
    still_open = len(methods.intersection(undecided(judged))) if judged else 0
    for method in task.methods:
        if method.recipe.name not in counts:
            counts[method.recipe.name] = count_method(task, method, out, schedule.looks[-1], schedule)
    return TaskStatus(
        task=task.name,
        finished=sum(counts[name].finished for name in looked_at),
        planned=sum(counts[name].planned for name in looked_at),
        seeds={method.recipe.name: counts[method.recipe.name].seeds for method in task.methods},
        decided=mechanisms - still_open if judged else 0,
        undecided=still_open,
        not_begun=0 if judged else mechanisms,
        hours_left=None if look and untimed == len(looked_at) else (look.seconds_left if look else 0.0) / 3600,
        untimed=untimed,
    )
