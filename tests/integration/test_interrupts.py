"""SIGTERM ends a run within seconds wherever it comes, and the run goes on to the same result."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mentalese import Recipe, get_recipe
from mentalese.training.loop import train
from support import assert_same, checkpoint_steps, shrink, weights

pytestmark = pytest.mark.slow

GRACE = 15.0  # seconds on a busy machine; an idle one needs two to three
STAGES = {
    "preparing": ("mentalese.data.store", "_write"),
    "validation": ("mentalese.models.base", "LanguageModel.nll_parts"),
    "answers": ("mentalese.evaluation.answers", "_continued"),
    "merging": ("mentalese.training.loop", "merged_weights"),
    "saving": ("mentalese.training.loop", "save_model"),
    "test": ("mentalese.training.loop", "Run._result"),
}
"""What a run is doing when the signal comes: the first call of this function takes a minute."""

CODE = """
import importlib, sys, time
from pathlib import Path
module, name, folder = sys.argv[1:4]
owner = importlib.import_module(module)
*outer, name = name.split(".")
for part in outer:
    owner = getattr(owner, part)
slow = getattr(owner, name)
def first_call(*arguments, **options):
    marker = Path(folder) / "reached"
    if not marker.exists():
        marker.touch()
        for _ in range(600):
            time.sleep(0.1)
    return slow(*arguments, **options)
setattr(owner, name, first_call)
from mentalese.cli import main
sys.exit(main(sys.argv[4:]))
"""


@pytest.fixture(scope="module")
def uninterrupted(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Recipe, Path]]:
    """Return a function from a stage to its recipe and to a whole run of it."""
    folder = tmp_path_factory.mktemp("whole")

    @cache
    def run(name: str) -> tuple[Recipe, Path]:
        recipe = shrink(get_recipe("coconut/tiny" if name == "questions" else "gpt2/tiny"), corpus, eval_every=3)
        if name == "adapters":
            train_config = dataclasses.replace(recipe.train, init=str(run("text")[1]), lora_rank=2)
            recipe = dataclasses.replace(recipe, train=train_config)
        train(recipe, folder / name, show=False)
        return recipe, folder / name

    return lambda stage: run({"answers": "questions", "merging": "adapters"}.get(stage, "text"))


def _start(stage: str, folder: Path, words: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CODE, *STAGES[stage], str(folder), *words]
    environment = os.environ | {"MENTALESE_CACHE": str(folder / "cache")}
    return subprocess.Popen(command, text=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment)


@pytest.mark.parametrize("stage", STAGES)
def test_a_signal_ends_each_stage_within_seconds(
    stage: str, uninterrupted: Callable[[str], tuple[Recipe, Path]], tmp_path: Path
) -> None:
    recipe, whole = uninterrupted(stage)
    path, out = tmp_path / "recipe.json", tmp_path / "run"
    path.write_text(json.dumps(recipe.to_dict()))
    words = ["train", str(path), "--out", str(out)]
    process = _start(stage, tmp_path, words)
    deadline = time.monotonic() + 120
    while not (tmp_path / "reached").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - began < GRACE
    assert process.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in said
    if stage == "preparing":
        assert not list(tmp_path.rglob("*.tmp*"))
        assert not (out / "checkpoints").exists()
    else:
        step = 6 if stage == "test" else 3
        assert checkpoint_steps(out) == [step]
        assert f"stopped at step {step}: --resume" in said
    done = _start(stage, tmp_path, [*words, "--resume"])
    _, said = done.communicate(timeout=240)
    assert done.returncode == 0, said
    assert_same(weights(out), weights(whole))
    for name in ("validation", "test", "samples", "best_step", "steps"):
        assert _result(out)[name] == _result(whole)[name]
    assert _validations(out) == _validations(whole)


def _result(out: Path) -> dict[str, Any]:
    text = re.sub(r'"seconds[a-z_]*": [0-9.e-]+', '"seconds": 0', (out / "result.json").read_text())
    return json.loads(text)


def _validations(out: Path) -> list[int]:
    """Return the steps of all validations in the log."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if "validation" in line]
