"""Figures of a run: collected between log lines, then written to `metrics.jsonl` and to trackers of the recipe."""

from __future__ import annotations

import importlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mentalese.errors import InputError, nearest, require
from mentalese.files import JsonObject, sealed, unsealed, write_text
from mentalese.install import install_command
from mentalese.recipe import Recipe

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Record = JsonObject
"""A line of `metrics.jsonl`."""
Log = Callable[[Record], None]
_MODULES = {"trackio": "trackio", "wandb": "wandb", "tensorboard": "torch.utils.tensorboard"}


@dataclass
class LogBuffer:
    """The steps since the last log line; their figures stay on the device until then, so that no step waits."""

    started: float = 0.0
    steps: list[int] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    learning_rate: float = 0.0
    metrics: list[tuple[list[str], Tensor]] = field(default_factory=list)

    def start(self) -> None:
        if not self.steps:
            self.started = time.perf_counter()

    def add(self, step: int, learning_rate: float, loss: Tensor, norm: Tensor, metrics: dict[str, Tensor]) -> None:
        self.steps.append(step)
        self.losses.append(loss)
        self.norms.append(norm)
        self.learning_rate = learning_rate
        if metrics:  # stack copies: some metrics are views of parameters, which the next step changes
            values = [value.float().to(loss.device) for value in metrics.values()]  # a metric may be on the CPU
            self.metrics.append((list(metrics), torch.stack(values)))

    def means(self) -> dict[str, float]:
        """Return each metric's mean over the steps that measured it."""
        values: dict[str, list[float]] = {}
        for names, step in self.metrics:
            for name, value in zip(names, step.tolist()):
                values.setdefault(name, []).append(value)
        return {name: statistics.fmean(of_steps) for name, of_steps in values.items()}


@contextmanager
def tracked(recipe: Recipe, out: Path, resume_step: int, *, validation_due: bool) -> Iterator[Log]:
    """Yield a function that logs to `metrics.jsonl`, cut back to the resumed step, and to trackers of the recipe.

    Args:
        validation_due: the resumed step is validated again.
    """
    path, modules = out / "metrics.jsonl", check_trackers(recipe.train.trackers)
    records = _lines(path) if resume_step else []
    lines = [line for line, one in records if one["step"] <= resume_step - (validation_due and "validation" in one)]
    write_text(path, "".join(f"{line}\n" for line in lines))
    with path.open("a") as file, ExitStack() as stack:
        trackers: list[Callable[[dict[str, float], int], object]] = []
        for name, module in modules.items():
            if name == "tensorboard":
                writer = stack.enter_context(closing(module.SummaryWriter(out / "tensorboard")))
                trackers.append(partial(_log_scalars, writer))
            else:  # trackio and wandb share one interface
                run = module.init(project="mentalese", name=str(out), config=recipe.to_dict())
                stack.callback(run.finish)
                trackers.append(run.log)

        def log(record: Record) -> None:
            file.write(json.dumps(sealed(record)) + "\n")
            file.flush()
            for tracker in trackers:
                tracker(_numbers(record), record["step"])

        yield log


def _log_scalars(writer: SummaryWriter, numbers: dict[str, float], step: int) -> None:
    for name, value in numbers.items():
        writer.add_scalar(name, value, step)


def check_trackers(names: tuple[str, ...]) -> dict[str, ModuleType]:
    """Return the modules of the trackers called `names`; raises `InputError` before a run starts if one is missing."""
    modules = {}
    for name in names:
        require(name in _MODULES, "train.trackers", name, f"no tracker is called that{nearest(name, _MODULES)}")
        try:
            modules[name] = importlib.import_module(_MODULES[name])
        except ImportError as error:
            remedy = install_command(name)
            raise InputError(f"train.trackers names {name!r}, which is not installed: {remedy}") from error
    return modules


def _numbers(record: Mapping[str, object], prefix: str = "") -> dict[str, float]:
    """Return the numbers of a record by name; numbers of a validation as `validation/NAME`."""
    numbers: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            numbers |= _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            numbers[prefix + name] = value
    return numbers


def read_metrics(path: Path) -> list[Record]:
    """Return all records of a `metrics.jsonl`, in order; raise `InputError` if one has changed since it was written."""
    return [record for _, record in _lines(path)]


def _lines(path: Path) -> list[tuple[str, Record]]:
    """Return lines and records of a metrics file without an incomplete last line; raise `InputError` for a change."""
    lines, number = [], 0
    try:
        *whole, rest = path.read_bytes().decode().split("\n") if path.exists() else [""]
        with suppress(ValueError):
            json.JSONDecoder().raw_decode(rest)
            whole.append(rest)  # all of a line is there, so its end has changed
        for number, line in enumerate(whole, 1):
            lines.append((line, unsealed(json.loads(line), f"{path}, line {number},")))
    except InputError:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        place = f"{path}, line {number}," if number else str(path)
        raise InputError(f"{place} cannot be read ({error}): use an intact copy, or remove that line") from error
    return lines
