"""Many trainings: one after the other in this process, or several at once, each in a process or a job of its own.

A process of its own has one thread on a CPU, or one GPU, so its result does not depend on how many run at once. A
finished run is not trained again, and an interrupted one continues. Jobs that follow from results, such as the seeds of
a tuned recipe, begin as soon as these are there, while others still run.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mentalese.compare import cluster
from mentalese.errors import InputError
from mentalese.files import read_json, sealed, write_json
from mentalese.recipe import Recipe
from mentalese.screen import Progress, progress
from mentalese.training import loop
from mentalese.training.signals import stop_signals

_POLL_SECONDS = 0.2
_END = -1.0, -1
"""In place of a job, before all others: none follows."""


@dataclass(frozen=True)
class Job:
    """One training.

    Attributes:
        folder: of the run.
        may_diverge: a loss that is not finite is a result, `None`, and not an error.
        priority: of jobs that wait, those with the lowest number are next.
    """

    recipe: Recipe
    folder: Path
    may_diverge: bool = False
    priority: int = 0


Then = Callable[[Job, dict[str, Any] | None], Sequence[Job]]
"""A job and its result to the jobs that follow from it."""


def run_jobs(
    jobs: Sequence[Job],
    *,
    count: int | None = None,
    executor: str | None = None,
    train: Callable[..., dict[str, Any]] = loop.train,
    then: Then = lambda *_: (),
    show: bool = True,
) -> list[dict[str, Any] | None]:
    """The content of each job's `result.json`, in the order in which jobs were added; `None` if it diverged and may.

    Args:
        count: how many run at once, each in a process of its own; `None`: all in this process, one after the other.
        executor: sends them to a cluster instead, `count` at once, see `mentalese.compare.cluster`.
        train: trains one recipe in one folder of this process.
        then: adds jobs once a result is there, in this process.

    Raises:
        InputError: a job's recipe, data or folder cannot be used.
        Stopped, Interrupted: SIGINT or SIGTERM came; running jobs have saved a checkpoint.
        FloatingPointError: a job diverged that may not.
    """
    check_jobs(count, executor)
    work = _Work(jobs, then)
    if executor is not None:

        def total() -> int:
            return len(work.jobs)

        for sent, outcome in cluster.send(work.orders(), total, executor, count or 1, train_order, show=show):
            work.finish(sent, _result(work.jobs[sent], outcome))
    elif count is None:
        while (index := work.take()) is not None:
            work.finish(index, _in_this_process(work.jobs[index], train, show))
    else:
        _Pool(work, count, show).run()
    return [work.results[i] for i in range(len(work.jobs))]


def check_jobs(count: int | None, executor: str | None) -> None:
    """Raise `InputError` for a number of jobs or an executor that `run_jobs` cannot use."""
    if count is not None and count < 1:
        raise InputError(f"jobs is {count}: use at least 1")
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1 and (executor is not None or (count or 1) > 1):  # each rank would send all jobs, as ranks of its own
        given = f"jobs is {count}" if executor is None else f"executor is {executor!r}"
        raise InputError(f"{given}, and {ranks} processes share each training: use one of both")
    if executor is not None:
        cluster.check(executor)


class _Work:
    """Jobs in the order in which they were added, their results by index, and which of them wait."""

    def __init__(self, jobs: Sequence[Job], then: Then) -> None:
        self.jobs: list[Job] = []
        self.results: dict[int, dict[str, Any] | None] = {}
        self.waiting: queue.PriorityQueue[tuple[float, int]] = queue.PriorityQueue()
        self.then = then
        self._add(jobs)

    @property
    def is_done(self) -> bool:
        return len(self.results) == len(self.jobs)

    def take(self) -> int | None:
        """The index of the job that is next; `None` if none waits."""
        try:
            return self.waiting.get_nowait()[1]
        except queue.Empty:
            return None

    def orders(self) -> Iterator[tuple[int, dict[str, Any], Path] | None]:
        """The next job as an order, with the folder of its log; `None` while none waits and some still run."""
        while not self.is_done:
            if (index := self.take()) is None:
                yield None
            else:
                yield index, _order(self.jobs[index]), self.jobs[index].folder.parent / "submitit"

    def finish(self, index: int, result: dict[str, Any] | None) -> None:
        self.results[index] = result
        self._add(self.then(self.jobs[index], result))

    def _add(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            index = len(self.jobs)
            self.jobs.append(job)
            if _has_diverged(job):
                self.finish(index, None)
            else:
                self.waiting.put((job.priority, index))


# -- runs that diverged --------------------------------------------------------------------------------------------


def _has_diverged(job: Job) -> bool:
    """Whether the folder says that this very job diverged before."""
    path = job.folder / "diverged.json"
    return job.may_diverge and path.is_file() and read_json(path)["fingerprint"] == job.recipe.fingerprint()


def _note_divergence(job: Job, message: str) -> None:
    if not job.may_diverge:
        raise FloatingPointError(f"{job.folder}: {message}")
    noted = {"fingerprint": job.recipe.fingerprint(), "message": message}
    write_json(job.folder / "diverged.json", sealed(noted))


def _in_this_process(job: Job, train: Callable[..., dict[str, Any]], show: bool) -> dict[str, Any] | None:
    try:
        return train(job.recipe, job.folder, resume=True, show=show)
    except FloatingPointError as error:
        _note_divergence(job, str(error))
        return None


# -- processes -----------------------------------------------------------------------------------------------------


class _Pool:
    """Processes that train one job after the other; each stops, with a checkpoint, if this process ends."""

    def __init__(self, work: _Work, count: int, show: bool) -> None:
        self.work, self.show = work, show
        self.running: dict[int, Job] = {}  # by the job's index
        self.finished: queue.SimpleQueue[tuple[int, dict[str, Any] | None]] = queue.SimpleQueue()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.threads = [threading.Thread(target=self._serve, args=(i,)) for i in range(count)]
        self.shares: dict[int, float] = {}  # of each job, how much is done
        self.error: BaseException | None = None

    def run(self) -> None:
        with stop_signals() as signals, progress("runs", 0, show=self.show) as bar:
            self._report(bar)
            for thread in self.threads:
                thread.start()
            try:
                while not self.work.is_done and not signals.first and self.error is None:
                    with contextlib.suppress(queue.Empty):
                        self.work.finish(*self.finished.get(timeout=_POLL_SECONDS))
                    self._report(bar)
            finally:
                for _ in self.threads:
                    self.work.waiting.put(_END)
                if not self.work.is_done:
                    for process in self.processes:
                        if process.poll() is None:
                            process.terminate()
                for thread in self.threads:
                    thread.join()
        if signals.first:
            raise Stopped(signals.first)
        if self.error is not None:
            raise self.error

    def _report(self, bar: Progress) -> None:
        work, running = self.work, list(self.running.items())
        for index in range(len(self.shares), len(work.jobs)):
            # What an earlier call did took this one no time: the time left is estimated from what this one adds.
            self.shares[index] = 1.0 if index in work.results else _share(work.jobs[index])
            bar.start += self.shares[index]
        self.shares |= {index: _share(job) for index, job in running} | dict.fromkeys(list(work.results), 1.0)
        bar.total = len(work.jobs)
        names = ", ".join(f"{job.recipe.name} {job.folder.name} {self.shares[index]:.0%}" for index, job in running)
        bar.update(sum(self.shares.values()), f"{len(work.results)} of {len(work.jobs)} done  {names}")

    def _serve(self, slot: int) -> None:
        """Hands jobs to a process, which starts with the first one, until none follows."""
        item = self.work.waiting.get()
        if item == _END:
            return
        # In a session of its own: Ctrl-C reaches this process alone, which stops the others in order.
        with (
            tempfile.TemporaryFile() as log,
            subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(slot),
                start_new_session=True,
            ) as process,
        ):
            self.processes.append(process)
            try:
                while item != _END:
                    index = item[1]
                    self.running[index] = self.work.jobs[index]
                    result = _hand_over(self.work.jobs[index], process)
                    del self.running[index]
                    self.finished.put((index, result))
                    item = self.work.waiting.get()
            except BaseException as error:
                log.seek(0)
                lines = log.read().decode(errors="replace").strip().splitlines()
                if isinstance(error, EOFError) and lines:
                    error = RuntimeError(f"{error}: {lines[-1]}")
                self.error = self.error or error


def _hand_over(job: Job, process: subprocess.Popen[bytes]) -> dict[str, Any] | None:
    """Has a process train a job, and waits for it."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(_order(job)).encode() + b"\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise EOFError(f"training {job.recipe.name} in {job.folder} ended early")
    return _result(job, json.loads(line))


def _order(job: Job) -> dict[str, Any]:
    return {"recipe": job.recipe.to_dict(), "folder": str(job.folder), "argv": sys.argv}


def train_order(order: dict[str, Any]) -> dict[str, Any]:
    """Trains what an order says; returns `error` and `message` of an error, if there was one."""
    sys.argv = order["argv"]  # the command that the result names
    try:
        loop.train(Recipe.from_dict(order["recipe"]), Path(order["folder"]), resume=True, show=False)
    except (FloatingPointError, InputError) as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {}


def _result(job: Job, outcome: dict[str, Any]) -> dict[str, Any] | None:
    """The content of `result.json`, or `None` if the job diverged and may."""
    if outcome.get("error") == FloatingPointError.__name__:
        _note_divergence(job, outcome["message"])
        return None
    if "error" in outcome:
        raise InputError(f"training {job.recipe.name} in {job.folder}: {outcome['message']}")
    return read_json(job.folder / "result.json")


def _share(job: Job) -> float:
    """How much of a training is done, from the last logged step."""
    if (job.folder / "result.json").is_file():
        return 1.0
    train = job.recipe.train
    try:
        last = json.loads((job.folder / "metrics.jsonl").read_bytes().splitlines()[-1])
    except (OSError, IndexError, ValueError):  # nothing logged yet, or half a line
        return 0.0
    lengths = (("step", train.steps), ("tokens", train.tokens), ("epoch", train.epochs))
    return next((min(1.0, last.get(name, 0) / length) for name, length in lengths if length), 0.0)


def _environment(slot: int) -> dict[str, str]:
    environment = dict(os.environ)
    if gpus := torch.cuda.device_count():
        visible = environment.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        return environment | {"CUDA_VISIBLE_DEVICES": visible.split(",")[slot % gpus]}
    return environment | {"OMP_NUM_THREADS": "1"}


class Stopped(KeyboardInterrupt):
    """SIGINT or SIGTERM came; every running job has saved a checkpoint."""

    def __init__(self, signum: int) -> None:
        super().__init__("stopped; the same command continues")
        self.exit_code = 128 + signum


def main() -> int:
    """What the processes of `run_jobs` run: trains the jobs that come in on standard input, one line each."""
    outcomes = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no outcome
    orders: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(orders,), daemon=True).start()
    while line := orders.get():
        try:
            outcome = train_order(json.loads(line))
        except loop.Interrupted as error:
            return error.exit_code
        print(json.dumps(outcome), file=outcomes, flush=True)
    return 0


def _receive(orders: queue.SimpleQueue[str]) -> None:
    """Passes lines on; the end of standard input, with which the parent ends, stops a job in order."""
    rest = b""
    while piece := os.read(0, 1 << 16):  # not through `sys.stdin`, which the interpreter needs at exit
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            orders.put(line.decode())
    orders.put("")
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
