"""Every module of the package can be the first one that is imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import run_in_forks

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parents[2] / "src" / "mentalese"
OTHERS = """
import datasets, pytest, torch, transformers, torch.distributed.checkpoint, torch.utils.flop_counter
from transformers import AutoModelForCausalLM, GPT2LMHeadModel, LlamaForCausalLM, GPTNeoXForCausalLM
"""


def test_every_module_can_be_imported_first() -> None:
    """A circle of imports shows only to whoever enters it at the wrong place."""
    modules = [
        ".".join(("mentalese", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        for path in sorted(SOURCE.rglob("*.py"))
        if path.stem != "__main__"
    ]
    assert len(modules) > 150
    done = run_in_forks(OTHERS, [f"import {module}" for module in modules])
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
