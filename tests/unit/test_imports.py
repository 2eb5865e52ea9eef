"""Imports: any module can be the first one, and asking for help loads no models.

Loads are counted, not timed: beside other processes the same command takes from 1.4 to 2 times what torch takes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support import run_in_forks

SOURCE = Path(__file__).parents[2] / "src" / "mentalese"
OTHERS = """
import datasets, pytest, torch, transformers, torch.distributed.checkpoint, torch.utils.flop_counter
from transformers import AutoModelForCausalLM, GPT2LMHeadModel, LlamaForCausalLM, GPTNeoXForCausalLM
"""
# After torch these take from 0.3 s (pandas) to 2.6 s (peft) each on a core, and all of mentalese 0.9 s.
HEAVY = {"datasets", "gradio", "pandas", "peft", "sklearn", "torch._dynamo", "torch._inductor"}
HEAVY |= {"transformers.modeling_utils"}
COMMANDS = {
    "import": "import mentalese",
    "help": "from mentalese.cli import main; main(['--help'])",
    "help of a recipe": "from mentalese.cli import main; main(['train', 'gpt2/tiny', '--help'])",
    "unknown recipe": "from mentalese.cli import main; main(['train', 'gpt2/tyni'])",
    "list": "from mentalese.cli import main; main(['list'])",
}


@pytest.mark.slow
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


def heavy_modules(code: str) -> list[str]:
    """Return the modules of `HEAVY` that a process loads while it runs `code`."""
    report = f"import sys; print(*{HEAVY} & set(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], check=True, capture_output=True, text=True)
    return done.stderr.splitlines()[-1].split()


@pytest.mark.parametrize("name", COMMANDS)
def test_import_and_help_load_no_models(name: str) -> None:
    assert heavy_modules(COMMANDS[name]) == []


def test_a_load_of_models_is_seen() -> None:
    assert "transformers.modeling_utils" in heavy_modules("import transformers.modeling_utils")
