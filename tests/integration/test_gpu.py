"""A rehearsal of the GPU's benchmark at toy size on a CPU, so that errors cost no time of a GPU."""

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
