"""`accelerate launch` runs a training script of ours like any other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mentalese
from mentalese import get_recipe, override
from support import shrink

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys
from transformers import TrainingArguments
import mentalese
from mentalese import Recipe

recipe = Recipe.from_dict(json.loads(open(sys.argv[1]).read()))
args = TrainingArguments(sys.argv[2], logging_steps=1, save_steps=2, report_to="none", use_cpu=True)
trainer = mentalese.MentaleseTrainer(recipe, args)
trainer.train()
trainer.save_model()
print("losses", [record["loss"] for record in trainer.state.log_history if "loss" in record])
"""


@pytest.mark.ecosystem
def test_accelerate_launches_a_script(tmp_path: Path, corpus: Path) -> None:
    """Two processes are launched by torchrun in test_trainer.py."""
    pytest.importorskip("accelerate")
    recipe = override(shrink(get_recipe("conceptlm/tiny"), corpus), "train.steps=2")
    (tmp_path / "recipe.json").write_text(json.dumps(recipe.to_dict()))
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_machines", "1", "--num_processes", "1"),
        *("--mixed_precision", "no", "--dynamo_backend", "no"),
        *(str(tmp_path / "script.py"), str(tmp_path / "recipe.json"), str(tmp_path / "out")),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(mentalese.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    [losses] = [line for line in done.stdout.splitlines() if line.startswith("losses")]
    assert losses.count(",") == 1
    assert mentalese.load(tmp_path / "out").generate(["The first"], max_new_tokens=2)
