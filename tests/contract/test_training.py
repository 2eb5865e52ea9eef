"""What training promises for every model: resuming changes nothing, and two processes equal one."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mentalese import Recipe, get_recipe
from mentalese.data.batches import Plan
from mentalese.train.loop import train
from support import shrink, tiny_recipes

WORKER = """
import json, sys
from pathlib import Path
from mentalese import Recipe
from mentalese.train.loop import train
recipe, out = Recipe.from_dict(json.loads(Path(sys.argv[1]).read_text())), Path(sys.argv[2])
train(recipe, out, resume=True, show=False)
"""


@pytest.fixture(params=tiny_recipes())
def recipe(request: pytest.FixtureRequest, corpus: Path) -> Recipe:
    return shrink(get_recipe(request.param), corpus, checkpoint_every=2)


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model" / "model.safetensors")


def losses(out: Path) -> list[float]:
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


def test_an_interrupted_run_resumes_bit_for_bit(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(recipe, tmp_path / "whole", show=False)
    batch = Plan.batch

    def fail_at_step_5(plan: Plan, step: int, *args: Any, **kwargs: Any) -> Any:
        if step == 5:
            raise RuntimeError("power cut")
        return batch(plan, step, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(Plan, "batch", fail_at_step_5)
        with pytest.raises(RuntimeError, match="power cut"):
            train(recipe, tmp_path / "cut", show=False)
    resumed = train(recipe, tmp_path / "cut", resume=True, show=False)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    expected = weights(tmp_path / "whole")
    for name, tensor in weights(tmp_path / "cut").items():
        assert torch.equal(tensor, expected[name]), name
    assert resumed["test"] == whole["test"]
    assert resumed["flops"] == whole["flops"]


@pytest.mark.slow
def test_two_processes_equal_one(recipe: Recipe, tmp_path: Path) -> None:
    model = recipe.model | {name: 0.0 for name in recipe.model if name.endswith(("dropout", "pdrop"))}
    phases = tuple(
        dataclasses.replace(p, model={k: v for k, v in p.model.items() if not k.endswith("dropout")})
        for p in recipe.phases
    )
    recipe = dataclasses.replace(recipe, model=model, phases=phases)
    one = train(recipe, tmp_path / "one", show=False)
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "recipe.json").write_text(json.dumps(recipe.to_dict()))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    arguments = [tmp_path / "worker.py", tmp_path / "recipe.json", tmp_path / "two"]
    subprocess.run([*command, *map(str, arguments)], check=True, capture_output=True, timeout=300)
    two = json.loads((tmp_path / "two" / "result.json").read_text())
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    assert two["test"]["nll"] == pytest.approx(one["test"]["nll"], rel=1e-4)
    assert two["tokens"] == one["tokens"]
