"""Trainings as jobs of a cluster: Slurm, or processes of this machine, through submitit.

submitit pickles what it sends, a recipe and a folder, and what comes back, a few words, in folders of our own; results
are read from the run folders, which all machines have to see. A job whose machine is taken away is sent again and
continues from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from mentalese.errors import InputError
from mentalese.install import install_command
from mentalese.screen import progress
from mentalese.training.signals import stop_signals

CLUSTERS = ("slurm", "local")
_POLL_SECONDS = 1.0
_A_DAY = 24 * 60  # submitit's own limit is five minutes

Order = dict[str, Any]


class Training:
    """What a job does, in a form that can be sent.

    Attributes:
        work: trains what an order says.
    """

    def __init__(self, work: Callable[[Order], Order], order: Order) -> None:
        self.work, self.order = work, order

    def __call__(self) -> Order:
        if not torch.cuda.is_available():
            torch.set_num_threads(1)
        return self.work(self.order)

    def checkpoint(self) -> Any:
        """What submitit sends again; the run has its own checkpoints."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def parse(executor: str) -> tuple[str, dict[str, str | int]]:
    """`slurm:timeout_min=60,slurm_partition=gpu` as the cluster and parameters of `submitit.AutoExecutor`.

    A job may take a day if `timeout_min` is not set.

    Raises:
        InputError: another cluster, or an option of another form.
    """
    cluster, _, text = executor.partition(":")
    if cluster not in CLUSTERS:
        raise InputError(f"executor is {executor!r}: use slurm or local, with options as slurm:timeout_min=60")
    options: dict[str, str | int] = {}
    for word in filter(None, text.split(",")):
        name, equals, value = (part.strip() for part in word.partition("="))
        if not (name and equals and value):
            raise InputError(f"executor has the option {word!r}: use name=value, e.g. timeout_min=60")
        options[name] = int(value) if value.isdecimal() else value
    return cluster, options


def check(executor: str) -> None:
    """Raises `InputError` if an executor cannot be used: before any work."""
    cluster, options = parse(executor)
    _engine(cluster, options, Path("unused"))


def send(
    orders: Iterator[tuple[int, Order, Path] | None],
    total: Callable[[], int],
    executor: str,
    count: int,
    work: Callable[[Order], Order],
    *,
    show: bool = True,
) -> Iterator[tuple[int, Order]]:
    """Sends orders, at most `count` at once; yields what comes back, as it does.

    Args:
        orders: a number, an order, and the folder for the logs of its job; `None` while the next order depends on what
            is still to come back.
        total: how many orders there are, as far as is known.
        executor: see `parse`.
        work: what a job does with its order; a function of a module, which the other machine imports.

    Raises:
        RuntimeError: a job ended without an outcome; the message has the end of its log.
        KeyboardInterrupt: SIGINT or SIGTERM came; jobs are cancelled.
    """
    cluster, options = parse(executor)
    running, done = dict[int, Any](), 0
    with stop_signals() as signals, progress("runs", 0, show=show) as bar:
        try:
            while True:
                while len(running) < count and (item := next(orders, None)) is not None:
                    number, order, folder = item
                    running[number] = _engine(cluster, options, folder).submit(Training(work, order))
                if not running:
                    return
                for number in [number for number, job in running.items() if job.done()]:
                    outcome = _outcome(running.pop(number))
                    done += 1
                    yield number, outcome
                bar.total = total()
                bar.update(done, f"{done} of {total()} done  {len(running)} sent")
                if signals.first:
                    raise KeyboardInterrupt
                if running:
                    time.sleep(_POLL_SECONDS)
        finally:
            for job in running.values():
                with contextlib.suppress(OSError):
                    job.cancel(check=False)


def _engine(cluster: str, options: Mapping[str, str | int], folder: Path) -> Any:
    try:
        import submitit
    except ModuleNotFoundError as error:
        raise InputError(f"executor needs submitit: {install_command('slurm')}") from error
    try:
        engine = submitit.AutoExecutor(folder=folder, cluster=cluster)
        engine.update_parameters(**{"timeout_min": _A_DAY, **options})
    except (NameError, TypeError, RuntimeError) as error:  # a parameter that it does not have; no srun here
        raise InputError(f"executor {cluster!r} cannot be used: {error}") from error
    return engine


def _outcome(job: Any) -> Order:
    import submitit

    try:
        outcome: Order = job.result()
    except (submitit.core.utils.UncompletedJobError, submitit.core.utils.FailedJobError) as error:
        raise RuntimeError(
            f"job {job.job_id}: {str(error).strip().splitlines()[-1]}; see {job.paths.stderr}"
        ) from error
    return outcome
