"""Many trainings: one after the other in this process, or several at once by an executor.

A finished run is not trained again, and an interrupted one continues. Jobs that follow from results, such as the seeds
of a tuned recipe, begin as soon as these are there, while others still run.
"""

from __future__ import annotations

import heapq
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mentalese.compare.executors import Cluster, Order, Outcome, Processes, Running
from mentalese.errors import InputError, require
from mentalese.files import read_json, sealed, write_json
from mentalese.recipe import Recipe
from mentalese.screen import Progress, progress
from mentalese.training import loop
from mentalese.training.run_folder import RunResult
from mentalese.training.signals import stop_signals


@dataclass(frozen=True)
class Job:
    """One training.

    Attributes:
        folder: folder of the run.
        may_diverge: a loss that is not finite is a result, `None`, and not an error.
        priority: order of waiting jobs; the lowest number is next.
    """

    recipe: Recipe
    folder: Path
    may_diverge: bool = False
    priority: int = 0

    @property
    def has_diverged(self) -> bool:
        """Test if the folder notes that this training diverged, which it may."""
        path = self.folder / "diverged.json"
        return self.may_diverge and path.is_file() and read_json(path)["fingerprint"] == self.recipe.fingerprint()


Result = RunResult | None
"""The content of a `result.json`; `None` of a job that diverged and may."""
Then = Callable[[Job, Result], Sequence[Job]]
"""A job and its result to the jobs that follow from it."""


class Stopped(KeyboardInterrupt):
    """SIGINT or SIGTERM came; every running job has saved a checkpoint."""

    def __init__(self, signum: int) -> None:
        super().__init__("stopped; the same command continues")
        self.exit_code = 128 + signum


def run_jobs(
    jobs: Sequence[Job],
    *,
    count: int | None = None,
    executor: str | None = None,
    then: Then = lambda *_: (),
    show: bool = True,
) -> list[Result]:
    """Return each job's result, in the order in which jobs were added.

    Args:
        count: number of jobs at once, each in a separate process; `None`: all in this process, one after the other.
        executor: cluster that runs the jobs instead, `count` at once, see `Cluster`.
        then: function that returns further jobs for each result, in this process.

    Raises:
        InputError: a job's recipe, data or folder cannot be used.
        Stopped, Interrupted: SIGINT or SIGTERM came; running jobs have saved a checkpoint.
        FloatingPointError: a job diverged without `may_diverge`.
    """
    check_jobs(count, executor)
    work = _Work(jobs, then)
    if executor is not None:
        _run(work, Cluster(executor), count or 1, show)
    elif count is not None:
        _run(work, Processes(count), count, show)
    else:
        while work.waiting:
            index = work.take()
            job = work.jobs[index]
            result: Result = None
            try:
                result = loop.train(job.recipe, job.folder, resume=True, show=show)
            except FloatingPointError as error:
                _note_divergence(job, str(error))
            work.finish(index, result)
    return [work.results[i] for i in range(len(work.jobs))]


def check_jobs(count: int | None, executor: str | None) -> None:
    """Raise `InputError` for a number of jobs or an executor that `run_jobs` cannot use."""
    require(count is None or count > 0, "jobs", count, "use at least 1")
    # Each rank would send all jobs, as ranks of its own.
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    remedy = f"{ranks} processes share each training, so remove it"
    require(ranks == 1 or count in (None, 1), "jobs", count, remedy)
    require(ranks == 1 or executor is None, "executor", executor, remedy)
    if executor is not None:
        Cluster(executor)


class _Work:
    """Jobs in the order in which they were added, their results by index, and the waiting jobs."""

    def __init__(self, jobs: Sequence[Job], then: Then) -> None:
        self.jobs: list[Job] = []
        self.results: dict[int, Result] = {}
        self.waiting: list[tuple[int, int]] = []  # priority and index
        self.then = then
        self._add(jobs)

    def take(self) -> int:
        """Return the index of the job that is next, which then waits no more."""
        return heapq.heappop(self.waiting)[1]

    def finish(self, index: int, result: Result) -> None:
        self.results[index] = result
        self._add(self.then(self.jobs[index], result))

    def _add(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            index = len(self.jobs)
            self.jobs.append(job)
            if job.has_diverged:
                self.finish(index, None)
            else:
                heapq.heappush(self.waiting, (job.priority, index))


def _run(work: _Work, executor: Processes | Cluster, count: int, show: bool) -> None:
    """Train jobs by an executor, at most `count` at once."""
    running: dict[int, Running] = {}
    shares: list[float] = []
    with stop_signals() as signals, progress("runs", 0, show=show) as bar:
        try:
            while running or work.waiting:
                _report(work, running, shares, bar)
                while len(running) < count and work.waiting:
                    index = work.take()
                    job = work.jobs[index]
                    order = Order(recipe=job.recipe.to_dict(), folder=str(job.folder), argv=sys.argv)
                    running[index] = executor.submit(order, job.folder.parent / "submitit")
                for index in [index for index, training in running.items() if training.done()]:
                    work.finish(index, _result(work.jobs[index], running.pop(index).result()))
                if signals.first:
                    raise Stopped(signals.first)
                time.sleep(executor.poll_seconds)
        finally:
            executor.stop()


def _result(job: Job, outcome: Outcome) -> Result:
    if outcome.get("error") == FloatingPointError.__name__:
        _note_divergence(job, outcome["message"])
        return None
    if "error" in outcome:
        raise InputError(f"training {job.recipe.name} in {job.folder}: {outcome['message']}")
    return read_json(job.folder / "result.json")


def _note_divergence(job: Job, message: str) -> None:
    if not job.may_diverge:
        raise FloatingPointError(f"{job.folder}: {message}")
    noted = {"fingerprint": job.recipe.fingerprint(), "message": message}
    write_json(job.folder / "diverged.json", sealed(noted))


def _report(work: _Work, running: dict[int, Running], shares: list[float], bar: Progress) -> None:
    """Show how much is done; `shares`: of each job, brought up to date."""
    for index, job in enumerate(work.jobs):
        if index < len(shares) and index not in running and index not in work.results:
            continue
        share = 1.0 if index in work.results else _share(job)
        if index == len(shares):
            # The remaining time is estimated without the work of earlier calls.
            bar.start += share
        shares[index : index + 1] = [share]
    names = ", ".join(f"{work.jobs[i].recipe.name} {work.jobs[i].folder.name} {shares[i]:.0%}" for i in running)
    bar.total = len(work.jobs)
    bar.update(sum(shares), f"{len(work.results)} of {len(work.jobs)} done  {names}")


def _share(job: Job) -> float:
    """Return the completed share of a training, by the last logged step."""
    if (job.folder / "result.json").is_file():
        return 1.0
    train = job.recipe.train
    try:
        last = json.loads((job.folder / "metrics.jsonl").read_bytes().splitlines()[-1])
    except (OSError, IndexError, ValueError):  # nothing logged yet, or half a line
        return 0.0
    lengths = (("step", train.steps), ("tokens", train.tokens), ("epoch", train.epochs))
    return next((min(1.0, last.get(name, 0) / length) for name, length in lengths if length), 0.0)
