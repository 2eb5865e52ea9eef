"""What one types most often answers at once: nothing heavy is imported before it is needed."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

HEAVY = {"torch", "transformers", "datasets", "tokenizers"}

COMMANDS = {
    "import": "import mentalese",
    "help": "from mentalese.cli import main; main(['--help'])",
    "unknown recipe": "from mentalese.cli import main; main(['train', 'gpt2/tyni'])",
    "list": "from mentalese.cli import main; main(['list'])",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_heavy_is_imported(name: str) -> None:
    code = f"import sys; {COMMANDS[name]}; print('loaded:', sorted({HEAVY} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["-c", "import mentalese"], ["-m", "mentalese", "--help"]])
def test_import_and_help_take_well_under_a_second(arguments: list[str]) -> None:
    def seconds() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        return time.perf_counter() - began

    assert min(seconds() for _ in range(3)) < 1.0  # about 0.3 s on an idle machine
