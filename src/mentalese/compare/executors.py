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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Protocol

import torch

from mentalese.errors import InputError
from mentalese.install import install_command
from mentalese.recipe import Recipe
from mentalese.training import loop

CLUSTERS = ("slurm", "local")
A_DAY = 24 * 60
"""Minutes that a job of a cluster may take if `timeout_min` is not set; submitit's own limit is five."""

Order = dict[str, Any]
Outcome = dict[str, str]


class Running(Protocol):
    """A training that was submitted, such as a `concurrent.futures.Future` or a submitit `Job`."""

    def done(self) -> bool: ...
    def result(self) -> Outcome: ...


def train_order(order: Order) -> Outcome:
    """Train the recipe of an order; return `error` and `message` of an error, if there was one."""
    sys.argv = order["argv"]  # the command that the result names
    try:
        loop.train(Recipe.from_dict(order["recipe"]), Path(order["folder"]), resume=True, show=False)
    except (FloatingPointError, InputError) as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {}


# -- processes of this machine -----------------------------------------------------------------------------------------


class Processes:
    """Processes that train one order after the other; each stops, with a checkpoint, when its standard input ends."""

    poll_seconds = 0.1

    def __init__(self, count: int) -> None:
        self.threads = ThreadPoolExecutor(count)
        self.started: list[_Process] = []
        self.idle: list[_Process] = []

    def submit(self, order: Order, logs: Path) -> Running:
        """Start a training."""
        if not self.idle:
            self.idle.append(_Process(slot=len(self.started)))
            self.started += self.idle
        return self.threads.submit(self._train, order, self.idle.pop())

    def _train(self, order: Order, process: _Process) -> Outcome:
        outcome = process.train(order)
        self.idle.append(process)
        return outcome

    def stop(self) -> None:
        """End all running trainings, each with a checkpoint."""
        for process in self.started:
            process.end_input()
        self.threads.shutdown()
        for process in self.started:
            process.wait()


class _Process:
    def __init__(self, slot: int) -> None:
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        # A separate session: Ctrl-C reaches only this process, which stops the others in order.
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=_environment(slot),
            start_new_session=True,
        )

    def train(self, order: Order) -> Outcome:
        """Send an order and wait for its outcome."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(order).encode() + b"\n")
        stdin.flush()
        if line := stdout.readline():
            outcome: Outcome = json.loads(line)
            return outcome
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        raise RuntimeError(": ".join([f"training in {order['folder']} ended early", *lines[-1:]]))

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait(self) -> None:
        with self.process, self.log:  # which wait for the process and close its files
            pass


def _environment(slot: int) -> dict[str, str]:
    environment = dict(os.environ)
    if gpus := torch.cuda.device_count():
        visible = environment.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        return environment | {"CUDA_VISIBLE_DEVICES": visible.split(",")[slot % gpus]}
    return environment | {"OMP_NUM_THREADS": "1"}


def main() -> int:
    """Train the orders that come in on standard input, one line each; print the outcome of each as a line."""
    outcomes = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is not an outcome
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
    """Pass lines on; the end of standard input, with which the parent ends, stops a training in order."""
    rest = b""
    while piece := os.read(0, 1 << 16):  # not through `sys.stdin`, which the interpreter needs at exit
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            orders.put(line.decode())
    orders.put("")
    os.kill(os.getpid(), signal.SIGTERM)


# -- a cluster ---------------------------------------------------------------------------------------------------------


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
        if self.cluster not in CLUSTERS:
            raise InputError(f"executor is {executor!r}: use slurm or local, with options as slurm:timeout_min=60")
        self.options: dict[str, str | int] = {"timeout_min": A_DAY}
        for word in filter(None, options.split(",")):
            name, equals, value = (part.strip() for part in word.partition("="))
            if not (name and equals and value):
                raise InputError(f"executor has the option {word!r}: use name=value, e.g. timeout_min=60")
            self.options[name] = int(value) if value.isdecimal() else value
        self.jobs: list[Any] = []
        self._engine(Path("unused"))

    def submit(self, order: Order, logs: Path) -> Running:
        """Start a training; the folder `logs` is for its output."""
        job: Running = self._engine(logs).submit(_Training(order))
        self.jobs.append(job)
        return job

    def stop(self) -> None:
        """Cancel all running jobs."""
        for job in self.jobs:
            if not job.done():
                with contextlib.suppress(OSError):
                    job.cancel(check=False)

    def _engine(self, logs: Path) -> Any:
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

    def checkpoint(self) -> Any:
        """Return the submission that submitit sends again; the run writes checkpoints itself."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


if __name__ == "__main__":
    sys.exit(main())
