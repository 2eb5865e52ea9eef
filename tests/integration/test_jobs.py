"""Trainings side by side: each as if it were alone, stopped in order, continued, never trained twice."""

from __future__ import annotations

import dataclasses
import io
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from mentalese.compare import jobs as jobs_module
from mentalese.compare.compare import compare
from mentalese.compare.jobs import Job, run_jobs
from mentalese.data.layouts import Packed
from mentalese.errors import InputError
from mentalese.files import read_json
from mentalese.recipe import DataConfig, EvaluationConfig, OptimizerConfig, Recipe, TrainConfig
from mentalese.registry import get_recipe
from mentalese.screen import Progress

pytestmark = pytest.mark.slow

MODEL = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}


def test_each_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, gate = list[str](), threading.Barrier(4)

    class Process:
        def __init__(self, command: list[str], *, env: dict[str, str], **options: object) -> None:
            begun.append(env["CUDA_VISIBLE_DEVICES"])
            gate.wait(10)  # for all four
            self.stdin, self.stdout = io.StringIO(), io.StringIO("{}\n" * 4)

    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(jobs_module.subprocess, "Popen", Process)
    monkeypatch.setattr(jobs_module.tempfile, "TemporaryFile", lambda *_, **__: io.StringIO())
    processes = jobs_module.Processes(4)
    for training in [processes.submit({}, Path()) for _ in range(4)]:
        assert training.result(10) == {}
    assert sorted(begun) == ["0", "1", "2", "3"]


def recipe(corpus: Path, steps: int = 4, **changes: object) -> Recipe:
    return Recipe(
        name="gpt2/jobs",
        description="for tests",
        model=MODEL,
        data=DataConfig(source=f"file:{corpus}", tokenizer="bpe:512"),
        layout=Packed(sequence_length=64, batch_size=4),
        train=TrainConfig(steps=steps, checkpoint_every=2, log_every=1, device="cpu"),
        evaluation=EvaluationConfig(max_documents=2),
        **changes,
    )


def jobs(corpus: Path, folder: Path, seeds: int) -> list[Job]:
    base = recipe(corpus)
    seeded = [dataclasses.replace(base, train=dataclasses.replace(base.train, seed=seed)) for seed in range(seeds)]
    return [Job(one, folder / f"seed-{seed}") for seed, one in enumerate(seeded)]


def test_runs_side_by_side_are_the_runs_one_by_one(tmp_path: Path, corpus: Path) -> None:
    at_once = run_jobs(jobs(corpus, tmp_path / "two", 3), count=2, show=False)
    alone = run_jobs(jobs(corpus, tmp_path / "one", 3), count=1, show=False)
    assert [result["seed"] for result in at_once] == [0, 1, 2]
    assert [result["test"] for result in at_once] == [result["test"] for result in alone]
    assert {result["hardware"]["threads"] for result in at_once} == {1}


def test_the_time_left_does_not_count_what_an_earlier_call_did(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = jobs(corpus, tmp_path, 2)
    run_jobs([first], show=False)
    bar = Progress("", 0, 0)

    @contextmanager
    def recorded(*_: object, show: bool) -> Iterator[Progress]:
        yield bar

    monkeypatch.setattr(jobs_module, "progress", recorded)
    run_jobs([first, second], count=1)
    assert (bar.start, bar.total) == (1.0, 2)


def test_a_gain_of_rounding_is_not_progress(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.3 + 0.2 + 0.1 is 0.6, and 0.3 + (0.2 + 0.1) more than that."""
    begun = dict(zip([job.folder for job in jobs(corpus, tmp_path, 3)], [0.3, 0.2, 0.1]))
    bar, gained = Progress("", 0, 0), list[float]()
    monkeypatch.setattr(bar, "update", lambda done, note: gained.append(done - bar.start))
    monkeypatch.setattr(jobs_module, "progress", lambda *_, show: nullcontext(bar))
    monkeypatch.setattr(jobs_module, "_share", lambda job: begun[job.folder])
    run_jobs(jobs(corpus, tmp_path, 3), count=1)
    assert gained[0] == 0


def test_a_validation_does_not_hide_how_far_a_run_is(tmp_path: Path, corpus: Path) -> None:
    job = Job(dataclasses.replace(recipe(corpus), train=TrainConfig(epochs=4)), tmp_path)
    lines = {"step": 5, "epoch": 1}, {"step": 5, "validation": {"nll": 2.0}}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert jobs_module._share(job) == 0.25


def test_a_job_that_follows_waits_for_no_other(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`long` lasts until the one that follows `short` is done."""
    short, following, long = jobs(corpus, tmp_path, 3)
    done: list[Job] = []
    train = jobs_module.Processes._train

    def slow(processes: jobs_module.Processes, order: dict[str, Any]) -> Any:
        end = time.monotonic() + 300
        while order["folder"] == str(long.folder) and following not in done:
            assert time.monotonic() < end, "it waits for the long one"
            time.sleep(0.05)
        return train(processes, order)

    monkeypatch.setattr(jobs_module.Processes, "_train", slow)

    def then(job: Job, result: dict[str, Any] | None) -> list[Job]:
        assert result == read_json(job.folder / "result.json")
        done.append(job)
        return [following] if job is short else []

    results = run_jobs([long, short], count=2, then=then, show=False)
    assert done == [short, following, long]
    assert [result["seed"] for result in results] == [2, 0, 1]


def test_low_priority_comes_last_and_divergences_are_kept(tmp_path: Path, corpus: Path) -> None:
    wild, one, two, three = (dataclasses.replace(job, may_diverge=True) for job in jobs(corpus, tmp_path, 4))
    wild.folder.mkdir()
    (wild.folder / "diverged.json").write_text(json.dumps({"fingerprint": wild.recipe.fingerprint()}))
    last = dataclasses.replace(one, priority=1)
    follows = {wild.folder: [two], two.folder: [three]}
    trained: list[str] = []

    def train(recipe: Recipe, folder: Path, **_: object) -> dict[str, Any]:
        trained.append(folder.name)
        return {"name": folder.name}

    with patch("mentalese.training.loop.train", train):
        found = run_jobs([last, wild], then=lambda job, _: follows.get(job.folder, []))
    assert trained == ["seed-2", "seed-3", "seed-1"]
    assert found == [{"name": "seed-1"}, None, {"name": "seed-2"}, {"name": "seed-3"}]


def test_a_run_that_diverges_says_so_and_the_others_finish(tmp_path: Path, corpus: Path) -> None:
    wild = recipe(corpus, optimizer=OptimizerConfig(learning_rate=1e30, warmup=0, max_grad_norm=None))
    work = [Job(wild, tmp_path / "wild", may_diverge=True), *jobs(corpus, tmp_path, 1)]
    diverged, result = run_jobs(work, count=2, show=False)
    assert diverged is None
    assert result["steps"] == 4
    assert (
        "not finite" in (tmp_path / "wild" / "diverged.json").read_text()
        or "is nan" in (tmp_path / "wild" / "diverged.json").read_text()
    )
    with pytest.raises(FloatingPointError, match="wild"):
        run_jobs([Job(wild, tmp_path / "wild")], count=1, show=False)


@pytest.mark.parametrize(("options", "field"), [({"count": 2}, "jobs"), ({"executor": "local"}, "executor")])
def test_ranks_that_share_trainings_send_none_elsewhere(
    options: dict[str, Any], field: str, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError) as refused:
        run_jobs(jobs(corpus, tmp_path, 2), show=False, **options)
    assert refused.value.field == field


def test_bad_input_is_one_sentence_that_names_the_run(tmp_path: Path, corpus: Path) -> None:
    broken = recipe(corpus.with_name("missing.jsonl"))
    with pytest.raises(InputError, match=r"training gpt2/jobs in .*broken: .*missing\.jsonl"):
        run_jobs([Job(broken, tmp_path / "broken")], count=1, show=False)


@pytest.mark.parametrize("when", ["idle", "training"])
def test_a_killed_process_is_one_sentence_and_no_end(
    when: str, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = jobs(corpus, tmp_path, 2)
    made: list[jobs_module.Processes] = []

    class Processes(jobs_module.Processes):
        def __init__(self, count: int) -> None:
            super().__init__(count)
            made.append(self)

        def submit(self, order: dict[str, Any], logs: Path) -> Any:
            training = super().submit(order, logs)
            if when == "training":
                while not self.processes:
                    time.sleep(0.01)
                self.processes[0][0].kill()
            return training

    def follow(job: Job, _: object) -> list[Job]:
        process, _ = made[0].processes[0]
        process.kill()
        process.wait()
        return [second] if job is first else []

    monkeypatch.setattr(jobs_module, "Processes", Processes)
    with pytest.raises(InputError, match=r"training in .*seed-. ended early, by signal 9 .*: the same command"):
        run_jobs([first], count=1, then=follow, show=False)
    monkeypatch.undo()
    assert [result["steps"] for result in run_jobs([first, second], count=1, show=False)] == [4, 4]


def test_a_stopped_comparison_stops_its_processes_and_continues(tmp_path: Path, corpus: Path) -> None:
    script = """
import json, sys
from pathlib import Path
from mentalese.compare.compare import compare
from mentalese.compare.jobs import Job, run_jobs
from mentalese.recipe import Recipe
recipe, out = Recipe.from_dict(json.loads(sys.argv[1])), Path(sys.argv[2])
try:
    run_jobs([Job(recipe, out)], count=1, show=False)
except KeyboardInterrupt as stop:
    print(stop)
    sys.exit(stop.exit_code)
"""
    long = recipe(corpus, steps=4000)
    out = tmp_path / "run"
    command = [sys.executable, "-c", script, json.dumps(long.to_dict()), str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(out.glob("checkpoints/step-*")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (128 + signal.SIGTERM, "stopped; the same command continues\n")
    reached = max(int(path.name.removeprefix("step-")) for path in out.glob("checkpoints/step-*"))
    assert 0 < reached < 4000
    assert len((out / "metrics.jsonl").read_text().splitlines()) <= reached + 1


def test_processes_end_with_the_one_that_started_them(tmp_path: Path, corpus: Path) -> None:
    long = recipe(corpus, steps=100_000)
    out = tmp_path / "run"
    order = json.dumps({"recipe": long.to_dict(), "folder": str(out), "argv": ["x"]}) + "\n"
    with subprocess.Popen(
        [sys.executable, "-m", "mentalese.compare.jobs"], stdin=subprocess.PIPE, text=True
    ) as process:
        process.stdin.write(order)
        process.stdin.flush()
        deadline = time.monotonic() + 120
        while not (out / "metrics.jsonl").is_file():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.stdin.close()  # as when the parent is killed
        assert process.wait(timeout=60) in (128 + signal.SIGTERM, -signal.SIGTERM)
    assert list(out.glob("checkpoints/step-*"))


def test_a_cluster_trains_the_same_runs(tmp_path: Path, corpus: Path) -> None:
    first, second = jobs(corpus, tmp_path / "sent", 2)
    follows = {first.folder: [second]}
    sent = run_jobs([first], count=2, executor="local", then=lambda job, _: follows.get(job.folder, []), show=False)
    alone = run_jobs(jobs(corpus, tmp_path / "one", 2), count=1, show=False)
    assert [result["test"] for result in sent] == [result["test"] for result in alone]
    assert {result["hardware"]["threads"] for result in sent} == {1}
    assert list((tmp_path / "sent" / "submitit").glob("*_log.out"))


def test_a_run_that_diverges_on_a_cluster_says_so(tmp_path: Path, corpus: Path) -> None:
    wild = recipe(corpus, optimizer=OptimizerConfig(learning_rate=1e30, warmup=0, max_grad_norm=None))
    assert run_jobs([Job(wild, tmp_path / "wild", may_diverge=True)], executor="local", show=False) == [None]
    broken = recipe(corpus.with_name("missing.jsonl"))
    with pytest.raises(InputError, match=r"training gpt2/jobs in .*broken: .*missing\.jsonl"):
        run_jobs([Job(broken, tmp_path / "broken")], executor="local", show=False)


@pytest.mark.parametrize("executor", ["slum", "local:timeout_min", "local:tim=3", "slurm"])
def test_an_executor_that_cannot_be_is_refused_before_any_work(executor: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"executor.*{executor.partition(':')[0]}"):
        compare([get_recipe("gpt2/tiny"), get_recipe("conceptlm/tiny")], tmp_path, executor=executor)
    assert not list(tmp_path.iterdir())
