"""The origin of a figure: commit, hardware and versions, written beside every result."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shlex
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from mentalese.data.config import AS_IT_IS
from mentalese.errors import InputError
from mentalese.files import JsonObject
from mentalese.recipe import Recipe
from mentalese.recipe_files import override, sections
from mentalese.registry import recipes


@cache
def commit() -> str | None:
    """Return the commit this library runs from, with `+changes` if its tree is not clean; `None` outside a checkout.

    A repository that only contains the installed package does not count: it must track the package's source.
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
    """Return the command that trains only `recipe`, into `out`; `None` if it is not a registered one with settings."""
    registered = recipes().get(recipe.name)
    if registered is None:
        return None
    before, after = registered.to_dict(), recipe.to_dict()
    if after["data"]["source"] != before["data"]["source"]:
        before["data"] |= AS_IT_IS
    settings = [
        f"{section}.{name}={value if isinstance(value, str) else json.dumps(value)}"
        for section in ("model", *sections(recipe))
        for name, value in after[section].items()
        if name not in before[section] or value != before[section][name]
    ]
    about = {name: getattr(recipe, name) for name in ("description", "baseline", "paper")}
    try:
        again = dataclasses.replace(override(registered, *settings), **about)
    except InputError:
        return None
    return f"mentalese train {shlex.join([recipe.name, *settings, '--out', str(out)])}" if again == recipe else None


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
