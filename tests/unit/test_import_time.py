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
COMMANDS = {
    "import": "import mentalese",
    "help": "from mentalese.cli import main; main(['--help'])",
    "help of a recipe": "from mentalese.cli import main; main(['train', 'gpt2/tiny', '--help'])",
    "unknown recipe": "from mentalese.cli import main; main(['train', 'gpt2/tyni'])",
    "list": "from mentalese.cli import main; main(['list'])",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_import_and_help_take_three_seconds_of_cpu(name: str) -> None:
    def run() -> tuple[str, float]:
        command = [sys.executable, "-c", CODE.format(COMMANDS[name])]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        loaded, seconds = done.stderr.splitlines()[-1].rsplit(" ", 1)
        return loaded, float(seconds)

    runs = [run() for _ in range(2)]
    assert {loaded for loaded, _ in runs} == {"[]"}
    assert min(seconds for _, seconds in runs) < 3.0
