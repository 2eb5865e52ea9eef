"""The state of a suite: runs that there are, seeds, what is decided and what is left; read from its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mentalese.suite.judge import Judged, undecided
from mentalese.suite.methods import SuiteTask
from mentalese.suite.run import Schedule, count_method, next_look, stored_tasks, tasks_of


@dataclass(frozen=True)
class TaskStatus:
    """The state of a task.

    Attributes:
        finished, planned: runs of the next look that there are, and all of them, with trials; 0 without a look.
        seeds: finished runs that are reported, by method.
        decided, undecided, not_begun: numbers of mechanisms. Decided ones may be not trained; of those that are not
            begun, none has been judged.
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

    @property
    def row(self) -> tuple[str, ...]:
        """The cells below `HEADER`."""
        runs = f"{self.finished} of {self.planned}" if self.planned else "done"
        counts = sorted(self.seeds.values())
        seeds = f"{counts[0]} to {counts[-1]}" if counts[0] < counts[-1] else f"{counts[0]}"
        hours = "-" if self.hours_left is None else f"{self.hours_left:.1f}" + "+" * (self.untimed > 0)
        return self.task, runs, seeds, *map(str, (self.decided, self.undecided, self.not_begun)), hours


HEADER = ("task", "runs", "seeds", "decided", "undecided", "not begun", "CPU hours left")


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
    untimed = sum(count.seconds is None for count in counts.values())
    mechanisms = sum(method.role == "mechanism" for method in task.methods)
    still_open = len(methods.intersection(undecided(judged))) if judged else 0
    for method in task.methods:
        if method.recipe.name not in counts:
            counts[method.recipe.name] = count_method(method, out / task.name, schedule.looks[-1], schedule)
    return TaskStatus(
        task=task.name,
        finished=sum(count.finished for count in look.counts.values()) if look else 0,
        planned=sum(count.planned for count in look.counts.values()) if look else 0,
        seeds={method.recipe.name: counts[method.recipe.name].seeds for method in task.methods},
        decided=mechanisms - still_open if judged else 0,
        undecided=still_open,
        not_begun=0 if judged else mechanisms,
        hours_left=None if look and untimed == len(look.counts) else (look.seconds_left if look else 0.0) / 3600,
        untimed=untimed,
    )
