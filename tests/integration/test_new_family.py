"""A layout of text from another package: one small folder, and the contract tests pass without a line of test code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FAMILY = ROOT / "examples" / "family"


def test_a_family_is_small() -> None:
    assert sum(len(path.read_text().splitlines()) for path in (FAMILY / "sentence_rows").glob("*.py")) <= 80


def test_a_small_family_keeps_the_contract() -> None:
    """Its model is GPT-2, whose compiled generation has tests of its own."""
    chosen = "sentence_rows and not compiled_model_generates"
    command = [sys.executable, "-m", "pytest", "--quiet", "tests/contract", "-k", chosen, "-p", "no:xdist"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(FAMILY), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
