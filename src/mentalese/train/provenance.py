"""Where a figure comes from: commit, hardware and versions, written beside every result."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


@cache
def commit() -> str | None:
    """The commit this library runs from, with `+changes` where its tree is not clean; `None` outside a checkout."""
    here = Path(__file__).parents[1]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--", str(here)) else "")
    except (OSError, subprocess.SubprocessError):
        return None


def command() -> str:
    """The command line of this process, as one would type it."""
    program = Path(sys.argv[0])
    name = f"python -m {program.parent.name}" if program.name == "__main__.py" else program.name
    return f"{name} {shlex.join(sys.argv[1:])}".strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def hardware(device: torch.device) -> dict[str, Any]:
    """Device, processor, cores that this process may use, and threads."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return {"device": device.type, "name": name, "cores": cores, "threads": torch.get_num_threads()}


def versions() -> dict[str, str]:
    """Of Python and of the packages that a result depends on."""
    packages = ("mentalese", "torch", "transformers", "tokenizers", "numpy")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}
