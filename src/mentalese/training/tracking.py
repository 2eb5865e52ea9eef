"""Destinations of a run's figures: always `metrics.jsonl`, and any tracker that the recipe names."""

from __future__ import annotations

import importlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from mentalese.errors import InputError, nearest
from mentalese.files import sealed, unsealed, write_text
from mentalese.install import install_command
from mentalese.recipe import Recipe


class Tracker(Protocol):
    def log(self, metrics: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class MetricsFile:
    """`metrics.jsonl`: a JSON object with its checksum per line, flushed at once.

    A run that resumes cuts the file back to the checkpoint.
    """

    def __init__(self, path: Path, resume_step: int) -> None:
        lines = [line for line, record in _lines(path) if record["step"] <= resume_step] if resume_step else []
        write_text(path, "".join(f"{line}\n" for line in lines))
        self.file = path.open("a")

    def log(self, metrics: dict[str, Any]) -> None:
        self.file.write(json.dumps(sealed(metrics)) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def _lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the lines of a metrics file and their records; a last line that a killed run left half-written is dropped.

    Raises:
        InputError: a line has changed since it was written.
    """
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


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return all records of a `metrics.jsonl`, in order; raise `InputError` if one has changed since it was written."""
    return [record for _, record in _lines(path)]


class _RunTracker:
    """`wandb` and `trackio`, which share one interface."""

    def __init__(self, module: Any, recipe: Recipe, out: Path) -> None:
        self.run = module.init(project="mentalese", name=str(out), config=recipe.to_dict())

    def log(self, metrics: dict[str, Any]) -> None:
        self.run.log(_flat(metrics), step=metrics["step"])

    def close(self) -> None:
        self.run.finish()


class _TensorBoard:
    def __init__(self, module: Any, recipe: Recipe, out: Path) -> None:
        self.writer = module.SummaryWriter(out / "tensorboard")

    def log(self, metrics: dict[str, Any]) -> None:
        for name, value in _flat(metrics).items():
            self.writer.add_scalar(name, value, metrics["step"])

    def close(self) -> None:
        self.writer.close()


_TRACKERS: dict[str, tuple[str, Any]] = {
    "trackio": ("trackio", _RunTracker),
    "wandb": ("wandb", _RunTracker),
    "tensorboard": ("torch.utils.tensorboard", _TensorBoard),
}


def _flat(metrics: dict[str, Any], prefix: str = "") -> dict[str, float]:
    flat: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            flat[prefix + name] = value
    return flat


def check_trackers(names: tuple[str, ...]) -> dict[str, Any]:
    """Return the modules of the trackers called `names`; raises `InputError` before a run starts if one is missing."""
    modules = {}
    for name in names:
        if name not in _TRACKERS:
            raise InputError(f"train.trackers: no tracker is called {name!r}{nearest(name, _TRACKERS)}")
        try:
            modules[name] = importlib.import_module(_TRACKERS[name][0])
        except ImportError as error:
            raise InputError(
                f"train.trackers names {name!r}, which is not installed: {install_command(name)}"
            ) from error
    return modules


def open_trackers(recipe: Recipe, out: Path, resume_step: int) -> list[Tracker]:
    """Return the metrics file and every tracker of the recipe."""
    modules = check_trackers(recipe.train.trackers)
    named = [_TRACKERS[name][1](module, recipe, out) for name, module in modules.items()]
    return [MetricsFile(out / "metrics.jsonl", resume_step), *named]
