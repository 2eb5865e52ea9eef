"""What is to be measured on a GPU, rehearsed at toy size: what breaks is found before a GPU's time is spent."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpu

KINDS = {name.partition("/")[0]: name for name in gpu.ITEMS}  # the last item of each kind
ELSEWHERE = ("contract", "float8", "answers")  # tests of their own; torchao; the weights of SmolLM2


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for kind, name in KINDS.items() if kind not in ELSEWHERE])
def test_an_item_can_be_rehearsed(name: str, tmp_path: Path) -> None:
    found = gpu.run_item(name, gpu.Setting("cpu", True, tmp_path), limit=600)
    assert "result" in found, found
