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
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from mentalese import Recipe, get_recipe
from support import assert_same, checkpoint, checkpoint_steps, finish, launch, printed, shrink, weights

pytestmark = pytest.mark.slow

STEPS = 40


@pytest.fixture(scope="module")
def recipe(corpus: Path) -> Recipe:
    recipe = shrink(get_recipe("gpt2/tiny"), corpus, steps=STEPS, checkpoint_every=7)
    model = recipe.model | {"n_layer": 2, "resid_pdrop": 0.1}
    return dataclasses.replace(recipe, model=model)


def steps_done(out: Path) -> int:
    path = out / "metrics.jsonl"
    return path.read_text().count('"loss"') if path.exists() else 0


def wait_for_step(process: BaseProcess, out: Path, step: int) -> None:
    deadline = time.monotonic() + 180
    while steps_done(out) < step:
        assert time.monotonic() < deadline
        assert process.exitcode is None, printed(out)
        time.sleep(0.01)


@pytest.mark.parametrize("processes", [1, 2])
def test_sigkill_at_a_random_step_changes_nothing(recipe: Recipe, tmp_path: Path, processes: int) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    finish(launch(recipe, whole, processes), whole)
    process = launch(recipe, cut, processes)
    wait_for_step(process, cut, random.SystemRandom().randrange(8, STEPS - 8))
    process.kill()
    for pid in cut.with_name("cut.pids").read_text().split():  # ranks outlive the process that started them
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    process.join()
    assert not (cut / "result.json").exists()
    finish(launch(recipe, cut, processes), cut)
    assert_same(weights(cut), weights(whole))
    assert checkpoint_steps(cut)[-1] == checkpoint_steps(whole)[-1] == STEPS
    assert_same(checkpoint(cut), checkpoint(whole))


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops_cleanly(recipe: Recipe, tmp_path: Path, signum: int) -> None:
    out = tmp_path / "run"
    process = launch(recipe, out)
    wait_for_step(process, out, 10)
    assert process.pid is not None
    os.kill(process.pid, signum)
    process.join(timeout=60)
    assert process.exitcode == 128 + signum
    assert checkpoint_steps(out)[-1] == steps_done(out)
    finish(launch(recipe, out), out)
    assert steps_done(out) == STEPS


def torchrun(recipe: Recipe, out: Path) -> subprocess.Popen[bytes]:
    """Start or resume a run in two ranks, whose output lies beside `out`."""
    path = out.with_name("recipe.json")
    path.write_text(json.dumps(recipe.to_dict()))
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *ranks, "-m", "mentalese", "train", str(path), "--out", str(out)]
    command += ["--resume"] * out.exists()
    with out.with_name(f"{out.name}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def ranks_of(launcher: int) -> list[int]:
    """The processes that a launcher has started."""
    return [int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the ranks of a launcher in /proc")
@pytest.mark.parametrize("killed", ["rank", "launcher"])
def test_a_run_survives_its_killed_rank_or_launcher(recipe: Recipe, tmp_path: Path, killed: str) -> None:
    """A lost rank ends the run within a minute. Ranks without their launcher end by themselves, and hold the folder."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    finish(launch(recipe, whole, 2), whole)
    process = torchrun(recipe, cut)
    deadline = time.monotonic() + 180
    while steps_done(cut) < 9:
        assert time.monotonic() < deadline
        assert process.poll() is None, printed(cut)
        time.sleep(0.01)
    ranks = ranks_of(process.pid)
    assert len(ranks) == 2
    os.kill(ranks[1] if killed == "rank" else process.pid, signal.SIGKILL)
    assert process.wait(timeout=60) != 0
    deadline = time.monotonic() + 120
    while any(map(running, ranks)):
        assert time.monotonic() < deadline, printed(cut)
        time.sleep(0.1)
    if killed == "rank":
        assert not (cut / "result.json").exists()
    assert torchrun(recipe, cut).wait(timeout=180) == 0, printed(cut)
    assert_same(weights(cut), weights(whole))
    assert_same(checkpoint(cut), checkpoint(whole))
