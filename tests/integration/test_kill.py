"""A run that is killed at any moment ends, once resumed, with exactly the weights of one that never was."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mentalese import Recipe, get_recipe
from support import shrink

WORKER = """
import json, os, sys
from pathlib import Path
from mentalese import Recipe
from mentalese.train.loop import Interrupted, train
recipe, out = Recipe.from_dict(json.loads(Path(sys.argv[1]).read_text())), Path(sys.argv[2])
with open(sys.argv[3], "a") as pids:
    pids.write(f"{os.getpid()}\\n")
try:
    train(recipe, out, resume=True, show=False)
except Interrupted as interrupted:
    sys.exit(interrupted.exit_code)
"""
STEPS = 60


@pytest.fixture(scope="module")
def recipe(corpus: Path) -> Recipe:
    recipe = shrink(get_recipe("gpt2/tiny"), corpus, steps=STEPS, checkpoint_every=7)
    model = recipe.model | {"num_hidden_layers": 2, "resid_pdrop": 0.1}
    return dataclasses.replace(recipe, model=model)


@pytest.fixture(scope="module")
def launch(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("kill")
    (folder / "worker.py").write_text(WORKER)
    (folder / "recipe.json").write_text(json.dumps(recipe.to_dict()))

    def start(out: str, processes: int) -> tuple[subprocess.Popen[bytes], Path]:
        pids = folder / f"{out}.pids"
        pids.unlink(missing_ok=True)
        arguments = [str(folder / "worker.py"), str(folder / "recipe.json"), str(folder / out), str(pids)]
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command = [sys.executable, *(launcher if processes > 1 else []), *arguments]
        with (folder / f"{out}.log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        return process, folder / out

    return start


def steps_done(out: Path) -> int:
    path = out / "metrics.jsonl"
    return path.read_text().count('"loss"') if path.exists() else 0


def log(out: Path) -> str:
    return out.with_name(f"{out.name}.log").read_text()


def finish(process: subprocess.Popen[bytes], out: Path) -> None:
    assert process.wait(timeout=240) == 0, log(out)


def wait_for_step(process: subprocess.Popen[bytes], out: Path, step: int) -> None:
    deadline = time.monotonic() + 180
    while steps_done(out) < step:
        assert time.monotonic() < deadline
        assert process.poll() is None, log(out)
        time.sleep(0.01)


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model" / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_sigkill_at_a_random_step_changes_nothing(launch, processes: int) -> None:  # type: ignore[no-untyped-def]
    process, whole = launch(f"whole-{processes}", processes)
    finish(process, whole)
    process, cut = launch(f"cut-{processes}", processes)
    wait_for_step(process, cut, random.SystemRandom().randrange(8, STEPS - 8))
    process.kill()
    for pid in cut.with_name(f"{cut.name}.pids").read_text().split():  # torchrun's workers outlive it
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    process.wait()
    assert not (cut / "result.json").exists()
    process, cut = launch(f"cut-{processes}", processes)
    finish(process, cut)
    expected = weights(whole)
    for name, tensor in weights(cut).items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops_cleanly(launch, signum: int) -> None:  # type: ignore[no-untyped-def]
    process, out = launch(f"signal-{signum}", 1)
    wait_for_step(process, out, 10)
    process.send_signal(signum)
    process.wait(timeout=60)
    assert process.returncode == 128 + signum
    stopped_at = steps_done(out)
    assert (out / "checkpoints" / f"step-{stopped_at:08}").is_dir()
    process, out = launch(f"signal-{signum}", 1)
    finish(process, out)
    assert steps_done(out) == STEPS
