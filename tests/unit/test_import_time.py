"""Importing the package and asking for help load what configs need of transformers, and no models."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import time
{}
import sys
print(sorted({{"transformers.modeling_utils", "datasets"}} & set(sys.modules)), time.process_time(), file=sys.stderr)
"""
NEEDED = "import torch, transformers.configuration_utils, transformers.tokenization_utils_base"
COMMANDS = {
    "import": "import mentalese",
    "help": "from mentalese.cli import main; main(['--help'])",
    "help of a recipe": "from mentalese.cli import main; main(['train', 'gpt2/tiny', '--help'])",
    "unknown recipe": "from mentalese.cli import main; main(['train', 'gpt2/tyni'])",
    "list": "from mentalese.cli import main; main(['list'])",
}


def cpu_seconds(code: str) -> float:
    """Return the CPU seconds of a process that runs `code`, which must load neither models nor datasets."""
    command = [sys.executable, "-c", CODE.format(code)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    loaded, seconds = done.stderr.splitlines()[-1].rsplit(" ", 1)
    assert loaded == "[]"
    return float(seconds)


@pytest.mark.parametrize("name", COMMANDS)
def test_import_and_help_load_no_models(name: str) -> None:
    cpu_seconds(COMMANDS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_import_and_help_take_twice_what_torch_takes(name: str) -> None:
    """Processes run in turns: the load of a machine changes. On an idle one torch and transformers take 1.5 s."""
    pairs = [(cpu_seconds(NEEDED), cpu_seconds(COMMANDS[name])) for _ in range(3)]
    needed, command = (min(seconds) for seconds in zip(*pairs, strict=True))
    assert command < 2 * needed
