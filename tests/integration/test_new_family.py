"""A family from another package: one small folder, and the contract tests pass without a line of test code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAMILY = ROOT / "examples" / "family"


def test_the_smallest_family_keeps_the_contract() -> None:
    lines = sum(len(path.read_text().splitlines()) for path in (FAMILY / "running_mean").glob("*.py"))
    assert lines <= 80
    command = [sys.executable, "-m", "pytest", "--quiet", "tests/contract", "-k", "running_mean", "-p", "no:xdist"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(FAMILY), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
