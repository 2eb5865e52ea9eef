"""A run that is killed at any moment ends, once resumed, with exactly the weights of one that never was."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from mentalese import Recipe, get_recipe
from support import assert_same, checkpoint, checkpoint_steps, finish, launch, printed, shrink, weights

STEPS = 40


@pytest.fixture(scope="module")
def recipe(corpus: Path) -> Recipe:
    recipe = shrink(get_recipe("gpt2/tiny"), corpus, steps=STEPS, checkpoint_every=7)
    model = recipe.model | {"num_hidden_layers": 2, "resid_pdrop": 0.1}
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


@pytest.mark.slow
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


@pytest.mark.slow
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
