"""Resident memory is level over a long training and a long evaluation, in a process that does nothing else."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from mentalese import get_recipe
from support import saved, shrink

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads a process's memory from /proc"),
]
LEVEL = 32 * 2**20
"""Bytes by which memory may differ between the first fifth and the end. 2,000 steps that keep 20 kB each have more."""
READ = """
import gc, resource
from pathlib import Path

def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
"""
TRAIN = """
import json, sys
from mentalese import Recipe
from mentalese.training.loop import train
from mentalese.training.plan import Plan

batch, found = Plan.batch, {}

def measured(plan, step, *args, **kwargs):
    if step in (400, 1999):
        found.setdefault(step, resident())
    return batch(plan, step, *args, **kwargs)

Plan.batch = measured
train(Recipe.from_dict(json.loads(Path(sys.argv[1]).read_text())), Path(sys.argv[2]), show=False)
print(found[1999] - found[400])
"""
EVALUATE = """
import sys
from mentalese import load
from mentalese.api import evaluate

model, first, rest = load(sys.argv[1]), *(f"file:{path}" for path in sys.argv[2:])
evaluate(model, data=first, show=False)
before = resident()
evaluate(model, data=rest, show=False)
print(resident() - before)
"""


def growth(script: str, *arguments: Path) -> int:
    command = [sys.executable, "-c", READ + script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


@pytest.mark.parametrize("name", ["gpt2/tiny", "coconut/tiny"])
def test_2000_steps_leave_memory_as_it_was(name: str, corpus: Path, tmp_path: Path) -> None:
    recipe = shrink(get_recipe(name), corpus, steps=2000)
    small = {"n_layer": 1} if name == "gpt2/tiny" else {"backbone": recipe.model["backbone"] | {"num_hidden_layers": 1}}
    sizes = dataclasses.replace(recipe.layout, batch_size=1)
    recipe = dataclasses.replace(recipe, model=recipe.model | small, layout=sizes)
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(recipe.to_dict()))
    assert growth(TRAIN, path, tmp_path / "run") < LEVEL


def test_1000_documents_leave_memory_as_it_was(corpus: Path, tmp_path: Path) -> None:
    recipe = shrink(get_recipe("thought_gestalt/tiny"), corpus)
    model = saved(tmp_path / "run", recipe)
    for name, count in (("first", 200), ("rest", 1000)):
        rows = [
            json.dumps({"text": f"Anna {name} {i} has a son called Paul. Paul has {i} sons."}) for i in range(count)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    assert growth(EVALUATE, model, tmp_path / "first.jsonl", tmp_path / "rest.jsonl") < LEVEL
