"""`mentalese suite`: every family on tasks with a known optimum, beside its twin and its control."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from mentalese.formatting import scored_as, share_text
from mentalese.screen import only_result_on_stdout, print_json, print_table
from mentalese.values import Place, Positive, PositiveNumber, Texts, checked_dataclass

if TYPE_CHECKING:
    from mentalese.suite.run import Schedule


@checked_dataclass("")
class Options:
    """Trains every method of some tasks, tuned alike, and says how much of the gap to the optimum each one closes.

    Attributes:
        tasks: the tasks; if none is named, all but `phrases` and tasks of textbooks.
        methods: compare only these methods of the tasks, by name or pattern (coconut, 'gpt2*'), with their twins and
            controls.
        trials: learning rates tried with every method; 1: its own, untuned.
        tune_seeds: runs of each of these rates, whose mean likelihood decides.
        seeds: runs per method after tuning; not set: 5, and for mechanisms that are not decided against their twin and
            controls 10, 15 and 20. Decided: the 98.75% interval (95% if this is set) excludes zero, or is narrower than
            10% of the gap (of texts 0.5% of the first method's bits; on questions of ten seeds or more).
        jobs: trainings at once, each in a process with one thread or one GPU.
        size: scales width, text and questions.
        executor: sends trainings to a cluster, --jobs at once: slurm:timeout_min=60,slurm_partition=NAME, or local; all
            machines have to see the output folder.
        out: the folder of all runs, of suite.json and of suite.html; the same command continues there.
        status: only print how far the tasks in the folder are, also while another process runs them.
        json: print the result as JSON.
    """

    tasks: Annotated[Positional[Texts], arg(metavar="TASK")] = ()
    methods: Annotated[Texts, arg(name="recipes")] = ()
    trials: Positive = 3
    tune_seeds: Positive = 3
    seeds: Positive | None = None
    jobs: Positive = 1
    executor: str | None = None
    size: PositiveNumber = 1.0
    out: Place = Path("runs/suite")
    status: bool = False
    json: bool = False


def run(options: Options) -> None:
    from mentalese.suite.run import Schedule, run_suite

    schedule = Schedule.of(options.trials, options.tune_seeds, options.seeds)
    if options.status:
        print_status(options, schedule)
        return
    with only_result_on_stdout():
        result = run_suite(
            options.tasks,
            options.out,
            schedule,
            recipes=options.methods,
            jobs=options.jobs,
            executor=options.executor,
            size=options.size,
        )
    if options.json:
        print_json(result)
        return
    rows = [
        (
            method["name"] + scored_as(method),
            method["role"],
            share_text(method["closed"]["mean"]),
            " to ".join(map(share_text, method["closed"]["interval"] or ())),
            "{count} of {of}".format(**method["solved"]) if method.get("solved") else "",
            f"{method['score']['mean']:.4f}",
            f"{method['learning_rate']:g}",
        )
        for task in result["tasks"]
        for method in task["methods"]
    ]
    print_table(("method", "role", "gap closed", "95% over seeds", "solved", "score", "learning rate"), rows)
    print(f"\n{options.out / 'suite.html'} shows all of it")


def print_status(options: Options, schedule: Schedule) -> None:
    """Print a row for each task: its runs, seeds and verdicts, and the time left."""
    from mentalese.suite.run import read_status

    tasks = read_status(options.tasks, options.out, schedule, recipes=options.methods, size=options.size)
    if options.json:
        print_json([dataclasses.asdict(task) for task in tasks])
        return
    rows = []
    for task in tasks:
        seeds = sorted({min(task.seeds.values()), max(task.seeds.values())})
        hours = "-" if task.hours_left is None else f"{task.hours_left:.1f}" + "+" * (task.untimed > 0)
        runs = f"{task.finished} of {task.planned}" if task.planned else "done"
        counts = map(str, (task.decided, task.undecided, task.not_begun))
        rows.append((task.task, runs, " to ".join(map(str, seeds)), *counts, hours))
    print_table(("task", "runs", "seeds", "decided", "undecided", "not begun", "CPU hours left"), rows)
