"""Small versions of recipes, runs in separate processes, and the contents of a run's folder."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mentalese.data.batch import Batch
from mentalese.data.documents import HELD_OUT
from mentalese.data.layouts import QuestionAnswer
from mentalese.files import JsonObject, read_json
from mentalese.recipe import Recipe, TrainConfig
from mentalese.training.loop import train
from mentalese.training.plan import Plan
from mentalese.training.signals import Interrupted
from mentalese.training.tracking import read_metrics

DEVICE: Any = os.environ.get("MENTALESE_TEST_DEVICE", "cpu")
"""Where contract tests run models: `cpu`, or `cuda`."""


def shrink(recipe: Recipe, corpus: Path, *, steps: int = 6, **train: object) -> Recipe:
    """Return the recipe on the small corpus, for a few short steps; questions appear at all stages at once."""
    layout, asks = recipe.layout, recipe.layout.questions
    data = dataclasses.replace(
        recipe.data,
        source=f"file:{corpus.with_name('questions.jsonl') if asks else corpus}",
        tokenizer="bpe:512",
        train_tokens=None,
        held_out=HELD_OUT,
    )
    sizes: JsonObject = {"tokens_per_batch": 400, "max_sentences": 6}
    if layout.sequence_length is not None:
        sizes = {"batch_size": 4, "sequence_length": min(layout.sequence_length, 128 if asks else 64)}
    if isinstance(layout, QuestionAnswer):
        sizes |= {"stage": layout.stages, "uniform_prob": 0.5 if layout.removal == "steps" else 0.0}
    layout = dataclasses.replace(layout, **sizes)
    config = TrainConfig(steps=steps, log_every=1, device=DEVICE, **train)  # type: ignore[arg-type]
    evaluation = dataclasses.replace(recipe.evaluation, max_documents=4, sample_tokens=8)
    phases = () if asks else recipe.phases
    return dataclasses.replace(recipe, data=data, layout=layout, train=config, evaluation=evaluation, phases=phases)


def rotary_flops(counter: FlopCounterMode) -> int:
    """Return the FLOPs of the angles of rotary positions in older versions of transformers, which are in no formula."""
    counts = counter.get_flop_counts()
    return sum(sum(counts[name].values()) for name in counts if name.endswith(".rotary_emb"))


def launch(recipe: Recipe, out: Path, processes: int = 1) -> BaseProcess:
    """Start or resume a run in forks of a server that has imported everything; output and pids lie beside `out`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mentalese.training.loop"])
    process = context.Process(target=_train_alone if processes == 1 else _train_in_ranks, args=(recipe, out, processes))
    out.with_name(f"{out.name}.pids").unlink(missing_ok=True)
    process.start()
    return process


def _train_alone(recipe: Recipe, out: Path, processes: int = 1) -> None:
    with out.with_name(f"{out.name}.log").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    with out.with_name(f"{out.name}.pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    try:
        train(recipe, out, resume=True, show=False)
    except Interrupted as interrupted:
        sys.exit(interrupted.exit_code)


def _train_in_ranks(recipe: Recipe, out: Path, processes: int) -> None:
    """Do what `torchrun --standalone` does; the first rank that fails ends the others."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    ranks = [multiprocessing.get_context("fork").Process(target=_rank, args=(recipe, out, i)) for i in range(processes)]
    for process in ranks:
        process.start()
    running = list(ranks)
    while running:
        wait(process.sentinel for process in running)
        running = [process for process in running if process.exitcode is None]
        if failed := [process.exitcode for process in ranks if process.exitcode]:
            for process in running:
                process.kill()
            sys.exit(failed[0])


def _rank(recipe: Recipe, out: Path, rank: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    _train_alone(recipe, out)


@contextmanager
def power_cut(monkeypatch: pytest.MonkeyPatch, at_step: int) -> Iterator[None]:
    """Interrupt every training in the block, at least one, by an error when it takes the batch of a step."""
    batch = Plan.batch

    def fail(plan: Plan, step: int, *args: Any, **kwargs: Any) -> Batch:
        if step == at_step:
            raise RuntimeError("power cut")
        return batch(plan, step, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(Plan, "batch", fail)
        with pytest.raises(RuntimeError, match="power cut"):
            yield


def printed(out: Path) -> str:
    return out.with_name(f"{out.name}.log").read_text()


def finish(process: BaseProcess, out: Path) -> JsonObject:
    """Wait for a launched run and return its `result.json`."""
    process.join(timeout=240)
    assert process.exitcode == 0, printed(out)
    return read_json(out / "result.json")


def metrics(out: Path) -> list[JsonObject]:
    return read_metrics(out / "metrics.jsonl")


def losses(out: Path) -> list[float]:
    return [record["loss"] for record in metrics(out) if "loss" in record]


def weights(out: Path) -> dict[str, Tensor]:
    """Return the weights of the best model."""
    return load_file(out / "model" / "model.safetensors")


def checkpoint_steps(out: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (out / "checkpoints").glob("step-*"))


def checkpoint(out: Path) -> dict[str, Tensor]:
    """Weights and optimiser state of the newest checkpoint, read by PyTorch's own reader."""
    reader = dcp.FileSystemReader(out / "checkpoints" / f"step-{checkpoint_steps(out)[-1]:08}")
    stored: JsonObject = reader.read_metadata().state_dict_metadata
    tensors = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in stored.items()}
    with warnings.catch_warnings(action="ignore"):  # it reports that there is only one process
        dcp.load(tensors, storage_reader=reader, no_dist=True)
    return tensors


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    """Assert that tensors are equal bit for bit."""
    torch.testing.assert_close(left, right, atol=0, rtol=0)
