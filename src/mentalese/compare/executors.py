"""Executors of trainings: processes of this machine, or jobs of a cluster.

Each training has one thread on a CPU, or one GPU, so its result does not depend on the number of parallel trainings. An
order (a recipe and a folder) is sent, and only errors come back: results are in the run folders, which all machines
must see.
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
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias, TypedDict

import torch

from mentalese.errors import InputError
from mentalese.install import install_command
from mentalese.recipe import Recipe
from mentalese.training import loop

if TYPE_CHECKING:
    import submitit

A_DAY = 24 * 60
"""Minutes that a job of a cluster may take if `timeout_min` is not set; submitit's own limit is five."""

Outcome = dict[str, str]
Running: TypeAlias = "Future[Outcome] | submitit.Job[Outcome]"


class Order(TypedDict):
    """A recipe as data, the folder of its run, and the command that the result names."""

    recipe: dict[str, object]
    folder: str
    argv: list[str]


def train_order(order: Order) -> Outcome:
    """Train the recipe of an order; return `error` and `message` of an error, if there was one."""
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
        self.mine = threading.local()
        self.threads = ThreadPoolExecutor(count, initializer=self._start)  # a thread for each process

    def _start(self) -> None:
        environment = dict(os.environ)
        if gpus := torch.cuda.device_count():
            visible = environment.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
            environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[len(self.processes) % gpus]
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

    def submit(self, order: Order, logs: Path) -> Running:
        """Start a training."""
        return self.threads.submit(self._train, order)

    def _train(self, order: Order) -> Outcome:
        process, log = self.mine.process
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        if line := process.stdout.readline():
            outcome: Outcome = json.loads(line)
            return outcome
        log.seek(0)
        raise RuntimeError(": ".join([f"training in {order['folder']} ended early", *log.read().splitlines()[-1:]]))

    def stop(self) -> None:
        """End all running trainings, each with a checkpoint."""
        for process, _ in self.processes:
            if process.stdin is not None:
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

    def submit(self, order: Order, logs: Path) -> Running:
        """Start a training; the folder `logs` is for its output."""
        self.jobs.append(self._engine(logs).submit(_Training(order)))
        return self.jobs[-1]

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

    def __init__(self, order: Order) -> None:
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
