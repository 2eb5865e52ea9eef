"""Many trainings: one after the other in this process, or several at once in processes or as jobs of a cluster.

A finished run is not trained again, and an interrupted one continues. Jobs that follow from results, such as the seeds
of a tuned recipe, begin as soon as these are there, while others still run.

Elsewhere each training has one thread on a CPU, or one GPU, so its result does not depend on the number of parallel
trainings. An order (a recipe and a folder) is sent, and only errors come back: results are in the run folders, which
all machines must see.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias

import torch

from mentalese.errors import InputError, require
from mentalese.files import JsonObject, read_json, sealed, write_json
from mentalese.install import install_command
from mentalese.recipe import Recipe
from mentalese.screen import progress
from mentalese.training import loop
from mentalese.training.parallel import is_main_process
from mentalese.training.run_folder import RunResult
from mentalese.training.signals import Interrupted, stop_signals

if TYPE_CHECKING:
    import submitit

A_DAY = 24 * 60
"""Minutes that a job of a cluster may take if `timeout_min` is not set; submitit's own limit is five."""

Outcome = dict[str, str]
Running: TypeAlias = "Future[Outcome] | submitit.Job[Outcome]"


@dataclass(frozen=True)
class Job:
    """One training: a recipe and the folder of its run.

    Attributes:
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
        Interrupted: SIGINT or SIGTERM came; running jobs have saved a checkpoint.
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
    before: list[float] = []  # the share of each job that an earlier call trained: no part of the remaining time
    with stop_signals() as signals, progress("runs", 0, show=show) as bar:
        try:
            while running or work.waiting:
                added = range(len(before), len(work.jobs))
                before += [1.0 if i in work.results else _share(work.jobs[i]) for i in added]
                bar.total, bar.start = len(work.jobs), math.fsum(before)
                while len(running) < count and work.waiting:
                    index = work.take()
                    job = work.jobs[index]
                    order = {"recipe": job.recipe.to_dict(), "folder": str(job.folder), "argv": sys.argv}
                    running[index] = executor.submit(order, job.folder.parent / "submitit")
                shares = [(work.jobs[index], _share(work.jobs[index])) for index in running]
                names = ", ".join(f"{job.recipe.name} {job.folder.name} {share:.0%}" for job, share in shares)
                # `fsum`: a gain of mere rounding would give an endless time left.
                waiting = [before[i] for _, i in work.waiting]
                done = math.fsum([len(work.results), *(share for _, share in shares), *waiting])
                bar.update(done, f"{len(work.results)} of {bar.total} done  {names}")
                for index in [index for index, training in running.items() if training.done()]:
                    work.finish(index, _result(work.jobs[index], executor.outcome(running.pop(index))))
                if signals.first:
                    raise Interrupted(signals.first, "stopped; the same command continues")
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
    if is_main_process():
        noted = {"fingerprint": job.recipe.fingerprint(), "message": message}
        write_json(job.folder / "diverged.json", sealed(noted))


def _share(job: Job) -> float:
    """Return the completed share of a training, by the last logged step."""
    if (job.folder / "result.json").is_file():
        return 1.0
    train = job.recipe.train
    try:
        records = map(json.loads, reversed((job.folder / "metrics.jsonl").read_bytes().splitlines()))
        last = next(record for record in records if "validation" not in record)  # a validation has no epoch
    except (OSError, StopIteration, ValueError):  # nothing logged yet, or half a line
        return 0.0
    lengths = (("step", train.steps), ("tokens", train.tokens), ("epoch", train.epochs))
    return next((min(1.0, last.get(name, 0) / length) for name, length in lengths if length), 0.0)


# -- executors ---------------------------------------------------------------------------------------------------------


def train_order(order: JsonObject) -> Outcome:
    """Train the `recipe` of an order in its `folder`; return `error` and `message` of an error, if there was one."""
    sys.argv = order["argv"]
    try:
        loop.train(Recipe.from_dict(order["recipe"]), Path(order["folder"]), resume=True, show=False)
    except (FloatingPointError, InputError) as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {}


class Processes:
    """Processes that train one order after the other; each stops, with a checkpoint, when its standard input ends."""

    poll_seconds = 0.1

    def __init__(self, count: int) -> None:
        self.processes: list[tuple[subprocess.Popen[str], IO[str]]] = []  # and the file of what it prints
        self.numbers = itertools.count()  # threads that start together draw different ones
        self.mine = threading.local()
        self.threads = ThreadPoolExecutor(count, initializer=self._start)  # a thread for each process

    def _start(self) -> None:
        environment = dict(os.environ)
        if gpus := torch.cuda.device_count():
            visible = environment.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
            environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[next(self.numbers) % gpus]
        else:
            environment["OMP_NUM_THREADS"] = "1"
        log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        # A separate session: Ctrl-C reaches only this process, which stops the others in order.
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.mine.process = process, log
        self.processes.append(self.mine.process)

    def submit(self, order: JsonObject, logs: Path) -> Running:
        """Start a training."""
        return self.threads.submit(self._train, order)

    def outcome(self, training: Running) -> Outcome:
        """Return the outcome of a training that has ended; raise `InputError` if its process was killed."""
        return training.result()

    def _train(self, order: JsonObject) -> Outcome:
        process, log = self.mine.process
        with contextlib.suppress(BrokenPipeError):  # it has ended, so it has no outcome
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        if line := process.stdout.readline():
            outcome: Outcome = json.loads(line)
            return outcome
        log.seek(0)
        ended, code = f"training in {order['folder']} ended early", process.wait()
        if code < 0:
            raise InputError(f"{ended}, by signal {-code} (9 is also lack of memory): the same command continues")
        raise RuntimeError(": ".join([ended, *log.read().splitlines()[-1:]]))

    def stop(self) -> None:
        """End all running trainings, each with a checkpoint."""
        for process, _ in self.processes:
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        self.threads.shutdown()
        for process, log in self.processes:
            with process, log:  # which wait for the process and close its files
                pass


def main() -> int:
    """Train the orders that come in on standard input, one line each; print the outcome of each as a line."""
    outcomes = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is not an outcome
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(orders,), daemon=True).start()
    while line := orders.get():
        try:
            outcome = train_order(json.loads(line))
        except loop.Interrupted as error:
            return error.exit_code
        print(json.dumps(outcome), file=outcomes, flush=True)
    return 0


def _receive(orders: queue.SimpleQueue[bytes]) -> None:
    """Pass lines on; the end of standard input, with which the parent ends, stops a training in order."""
    with open(0, "rb", buffering=0, closefd=False) as lines:  # the interpreter needs `sys.stdin` at exit
        for line in lines:
            orders.put(line)
    orders.put(b"")
    os.kill(os.getpid(), signal.SIGTERM)


class Cluster:
    """Jobs of Slurm, or processes that stand in for them, through submitit.

    A job whose machine is taken away is sent again and continues from its last checkpoint.

    Args:
        executor: `slurm:timeout_min=60,slurm_partition=gpu`, with parameters of `submitit.AutoExecutor`.

    Raises:
        InputError: an unknown cluster, a malformed option, or a cluster that cannot be used.
    """

    poll_seconds = 1.0

    def __init__(self, executor: str) -> None:
        self.cluster, _, options = executor.partition(":")
        self.options: dict[str, str | int] = {"timeout_min": A_DAY}
        words = [word.partition("=") for word in options.split(",") if word]
        if self.cluster not in ("slurm", "local") or not all(name and value for name, _, value in words):
            raise InputError(
                f"executor is {executor!r}: use slurm or local, with options as slurm:timeout_min=60", "executor"
            )
        self.options |= {name: int(value) if value.isdecimal() else value for name, _, value in words}
        self.jobs: list[submitit.Job[Outcome]] = []
        self._engine(Path("unused"))

    def submit(self, order: JsonObject, logs: Path) -> Running:
        """Start a training; the folder `logs` is for its output."""
        self.jobs.append(self._engine(logs).submit(_Training(order)))
        return self.jobs[-1]

    def outcome(self, training: Running) -> Outcome:
        """Return the outcome of a training that has ended; raise `InputError` if its job was killed or failed."""
        from submitit.core.utils import FailedJobError, UncompletedJobError

        try:
            return training.result()
        except (FailedJobError, UncompletedJobError) as error:
            *_, reason = str(error).strip().splitlines()
            raise InputError(f"a training ended early ({reason}): the same command continues") from error

    def stop(self) -> None:
        """Cancel all running jobs."""
        for job in self.jobs:
            if not job.done():
                with contextlib.suppress(OSError):
                    job.cancel(check=False)

    def _engine(self, logs: Path) -> submitit.AutoExecutor:
        try:
            import submitit
        except ModuleNotFoundError as error:
            raise InputError(f"executor needs submitit: {install_command('slurm')}") from error
        try:
            engine = submitit.AutoExecutor(folder=logs, cluster=self.cluster)
            engine.update_parameters(**self.options)
        except (NameError, TypeError, RuntimeError) as error:  # a parameter that it does not have; no srun here
            raise InputError(f"executor {self.cluster!r} cannot be used: {error}") from error
        return engine


class _Training:
    """An order in the form that submitit pickles and sends."""

    def __init__(self, order: JsonObject) -> None:
        self.order = order

    def __call__(self) -> Outcome:
        if not torch.cuda.is_available():
            torch.set_num_threads(1)
        return train_order(self.order)

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Return the submission that submitit sends again; the run writes checkpoints itself."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


if __name__ == "__main__":
    sys.exit(main())
