"""Every module of the package can be the first one that is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "mentalese"
FORKED = """
import gc, os, sys, traceback
# Only other projects' modules are there when a child starts: each child imports ours from nothing.
import datasets, pytest, torch, transformers, torch.distributed.checkpoint, torch.utils.flop_counter
from transformers import AutoModelForCausalLM, GPT2LMHeadModel, LlamaForCausalLM, GPTNeoXForCausalLM
assert not any(name.partition(".")[0] == "mentalese" for name in sys.modules)
gc.freeze()
for number, module in enumerate(sys.argv[1:]):
    if not os.fork():
        try:
            __import__(module)
        except BaseException:
            print(module, traceback.format_exc(), sep="\\n", flush=True)
        os._exit(0)
    if number:  # two at a time
        os.wait()
os.wait()
"""


@pytest.mark.slow
def test_every_module_can_be_imported_first() -> None:
    """A circle of imports shows only to whoever enters it at the wrong place."""
    modules = [
        ".".join(("mentalese", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        for path in sorted(SOURCE.rglob("*.py"))
        if path.stem != "__main__"
    ]
    assert len(modules) > 150
    command = [sys.executable, "-c", FORKED, *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
