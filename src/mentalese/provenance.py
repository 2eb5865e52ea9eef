"""The origin of a figure: commit, hardware and versions, written beside every result."""

from __future__ import annotations

import dataclasses
import os
import platform
import shlex
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from mentalese.files import JsonObject
from mentalese.model_fields import model_fields
from mentalese.recipe import AS_IT_IS, LENGTHS, Recipe
from mentalese.registry import recipes


@cache
def commit() -> str | None:
    """Return the commit this library runs from, with `+changes` if its tree is not clean; `None` outside a checkout.

    A repository that only contains the installed package (a project with its environment inside) does not count: it
    must track the package's source.
    """
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "--", Path(__file__).name)
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--", str(here)) else "")
    except (OSError, subprocess.SubprocessError):
        return None


def command() -> str:
    """Return the command line of this process, as one would type it."""
    program = Path(sys.argv[0])
    name = f"python -m {program.parent.name}" if program.name == "__main__.py" else program.name
    return f"{name} {shlex.join(sys.argv[1:])}".strip()


def train_command(recipe: Recipe, out: Path) -> str | None:
    """Return the command line that trains only `recipe`, into `out`.

    `None` if there is none: the recipe is not registered, or differs from the registered one in more than options.
    """
    registered = recipes().get(recipe.name)
    if (
        registered is None
        or registered.phases != recipe.phases
        or registered.model["model_type"] != recipe.model["model_type"]
        or registered.layout.kind != recipe.layout.kind
    ):
        return None
    arguments: list[str] = []
    if recipe.data.source != registered.data.source:
        arguments += ["--data", recipe.data.source]
        registered = dataclasses.replace(registered, data=dataclasses.replace(registered.data, **AS_IT_IS))
    for section in ("model", "data", "layout", "optimizer", "train", "evaluation"):
        before, after = _fields(registered, section), _fields(recipe, section)
        if before.keys() - after.keys():
            return None
        for name, value in after.items():
            if (section, name) == ("data", "source") or (name in before and before[name] == value):
                continue
            if section == "train" and name in LENGTHS and value is None:
                continue  # the length that is given replaces the others
            if isinstance(value, dict):
                return None
            option = f"{section}.{name.replace('_', '-')}"
            if (section, name) == ("train", "seed"):
                arguments += ["--seed", str(value)]
            elif isinstance(value, bool):
                arguments += [f"--{option}" if value else f"--{section}.no-{name.replace('_', '-')}"]
            else:
                arguments += [f"--{option}", *map(str, value if isinstance(value, (list, tuple)) else [value])]
    return f"mentalese train {shlex.join([recipe.name, *arguments, '--out', str(out)])}"


def _fields(recipe: Recipe, section: str) -> dict[str, object]:
    """Return a section's fields by the names that its options have."""
    if section != "model":
        return vars(getattr(recipe, section))
    fields = model_fields(recipe.model["model_type"])
    return {fields[name].name if name in fields else name: value for name, value in recipe.model.items()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def hardware(device: torch.device) -> JsonObject:
    """Return device, processor, cores that this process may use, and threads."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return {"device": device.type, "name": name, "cores": cores, "threads": torch.get_num_threads()}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a result depends on."""
    packages = ("mentalese", "torch", "transformers", "tokenizers", "numpy")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}
