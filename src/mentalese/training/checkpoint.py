"""Checkpoints that appear as a whole or not at all, are written during training, and fit any number of ranks.

    checkpoints/step-00000100/
        __0_0.distcp ...    tensors, written by each rank (`torch.distributed.checkpoint`)
        .metadata           which tensor is in which file
        info.json           {"step", "info", "frozen": hash of the weights under adapters}
        checksums.json      {file: sha256} of all other files

Only tensors are stored: weights, persistent buffers and the optimiser's state. Weights under adapters, which stay those
of `train.init`, are not. Names do not depend on DDP or FSDP2, so a run may continue with another number of ranks.
Hyperparameters come from the recipe. Loading unpickles nothing but `.metadata`, and there only the classes that a list
of tensors consists of.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future as TorchFuture

from mentalese.errors import InputError
from mentalese.files import JsonObject, sha256
from mentalese.models.tensor_files import (
    DamagedError,
    TensorReader,
    check_same,
    digest,
    frozen_weights,
    ignore_warning_of_no_group,
    named_tensors,
    verify,
    weights_to_read,
)
from mentalese.training.parallel import Parallel

T = TypeVar("T")


class Checkpointer:
    """The `keep` newest checkpoints of one run. Every method is collective: call it on all ranks, from the main thread.

    The `step-*` folders are in `folder`, on a disk that all ranks share; remains of a killed save are removed.
    """

    def __init__(self, folder: Path, parallel: Parallel, keep: int) -> None:
        self.folder, self.parallel, self.keep = folder, parallel, keep
        # Saves run during training, so their messages need a separate group.
        is_single = parallel.world_size == 1
        self._group = None if is_single else dist.new_group(backend="gloo", timeout=timedelta(hours=12))
        self._processes: dict[str, Any] = {"process_group": self._group, "no_dist": is_single}
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._pending: Future[None] | None = None
        self._frozen: str | None = None
        if parallel.is_main:
            for leftover in folder.glob(".step-*"):
                shutil.rmtree(leftover)
        parallel.barrier()

    def save(
        self,
        step: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        info: dict[str, object],
        about: JsonObject | None = None,
    ) -> None:
        """Copy all tensors that training changes to CPU memory and return; a thread writes the checkpoint of `step`.

        The previous save ends first, and a checkpoint of the same step is replaced. `load` returns `info` (JSON);
        `about` (JSON) is for those who open the checkpoint as a model.

        Raises:
            InputError: the disk is full, now or in the previous save; no incomplete file is left.
        """
        self.wait()
        ignore_warning_of_no_group()
        snapshot = BlockingAsyncStager().stage(_tensors(model, optimizer))
        self._frozen = self._frozen or digest(frozen_weights(model))
        described = json.dumps({"step": step, "info": info, "frozen": self._frozen} | (about or {}), indent=2)
        self._pending = self._thread.submit(self._write, step, snapshot, described)

    def wait(self) -> None:
        """Return when the pending save, if there is one, is whole and in place; raise its error."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def latest(self) -> int | None:
        """Return the newest checkpoint's step, after waiting for a pending save."""
        self.wait()
        steps = self.parallel.broadcast_object(self._steps())
        return steps[-1] if steps else None

    def load(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Restore the newest checkpoint in place, bit for bit, and return its `info`.

        Raises:
            InputError: a file is damaged, or the checkpoint is another model's; nothing has been changed then.
        """
        self.wait()
        ignore_warning_of_no_group()
        *older, step = self.parallel.broadcast_object(self._steps())
        folder = self._path(step)
        reader = TensorReader(folder)

        def check() -> None:
            verify(folder, self.parallel.rank, self.parallel.world_size)
            reader.read_metadata()

        try:
            self._agreed(check)
        except DamagedError as damage:
            remedy = f"remove {folder} to go on from step {older[-1]}" if older else f"remove {folder} and start again"
            raise InputError(f"{damage}: {remedy}") from damage
        targets, state = _targets(folder, reader.read_tensors(), model, optimizer)
        dcp.load(targets, storage_reader=reader, **self._processes)
        optimizer.state.clear()
        optimizer.state.update(state)
        return json.loads((folder / "info.json").read_text())["info"]

    def _write(self, step: int, snapshot: dict[str, Tensor], described: str) -> None:
        final = self._path(step)
        temporary = final.with_name(f".{final.name}.tmp")
        try:
            dcp.save(snapshot, storage_writer=_Writer(temporary), **self._processes)
            mine = f"__{self.parallel.rank}_*"  # each rank reads back its own files, so that ranks share the hashing
            sums = self._agreed(lambda: {file.name: sha256(file) for file in temporary.glob(mine)})
            self._agreed(lambda: self._publish(temporary, final, described, sums) if self.parallel.is_main else None)
        except BaseException as error:
            if self.parallel.is_main:
                shutil.rmtree(temporary, ignore_errors=True)
            cause: BaseException = error
            if isinstance(error, CheckpointException):  # it lists the errors of all ranks
                cause = next(cause for cause, _ in error.failures.values())
            if not _is_full(cause):
                raise cause from None
            steps = self._steps()
            remaining = f"the newest whole one is step {steps[-1]}" if steps else "there is none yet"
            remedy = "free some, lower train.keep_checkpoints or use another --out"
            place = f"{self.folder}: no space left for the checkpoint of step {step}"
            raise InputError(f"{place} ({remaining}): {remedy}") from cause

    def _publish(self, temporary: Path, final: Path, described: str, sums: list[dict[str, str]]) -> None:
        """Complete the folder, rename it in one operation and remove the oldest checkpoints."""
        _write_durably(temporary / "info.json", described)
        checksums = {name: sha256(temporary / name) for name in (".metadata", "info.json")}
        for part in sums:
            checksums |= part
        _write_durably(temporary / "checksums.json", json.dumps(checksums, indent=2, sort_keys=True))
        _sync(temporary)
        _discard(final)
        temporary.replace(final)
        _sync(self.folder)
        for step in self._steps()[: -self.keep]:
            _discard(self._path(step))

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08}"

    def _steps(self) -> list[int]:
        matches = (re.fullmatch(r"step-(\d{8,})", path.name) for path in self.folder.glob("step-*"))
        return sorted(int(match[1]) for match in matches if match)

    def _agreed(self, work: Callable[[], T]) -> list[T]:
        """Return the results of `work` on each rank; raise on all ranks if it raised on one, so that no rank waits."""
        outcome: T | Exception
        try:
            outcome = work()
        except Exception as error:
            outcome = error
        outcomes = [outcome] * self.parallel.world_size
        if self._group is not None:
            dist.all_gather_object(outcomes, outcome, group=self._group)
        results = []
        for each in outcomes:
            if isinstance(each, Exception):
                raise each
            results.append(each)
        return results


class _Writer(dcp.FileSystemWriter):
    """A writer that reports a full disk as an `OSError`, which torch's own hides behind a `RuntimeError`."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> TorchFuture[list[WriteResult]]:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            cause: BaseException | None = error
            while cause is not None and not _is_full(cause):
                cause = cause.__cause__ or cause.__context__
            raise cause or error from error


def _is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the contents of a checkpoint, flat: `model.NAME` and `optimizer.NAME.STATE`."""
    parameters, frozen = named_tensors(model), frozen_weights(model)
    tensors = {f"model.{name}": value.detach() for name, value in parameters.items() if name not in frozen}
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{name}.{key}"] = value
    return tensors


def _targets(
    folder: Path, stored: dict[str, TensorStorageMetadata], model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], dict[Tensor, dict[str, Tensor]]]:
    """Return the tensors to read into, and the optimiser state that they form; refuse a file with other tensors."""
    parameters, targets = named_tensors(model), weights_to_read(folder, stored, model)
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    state: dict[Tensor, dict[str, Tensor]] = {}
    for full, saved in stored.items():
        kind, _, rest = full.partition(".")
        name, _, key = rest.rpartition(".")
        parameter = parameters.get(name)
        if kind == "optimizer" and parameter is not None and id(parameter) in trained:
            dtype = saved.properties.dtype
            if saved.size == parameter.shape:  # a moment, sharded like its parameter
                target = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
            else:  # a number of steps
                target = torch.zeros(saved.size, dtype=dtype, device=parameter.device)
            targets[full] = state.setdefault(parameter, {})[key] = target
    check_same(folder, stored, targets)
    return targets, state


def _discard(path: Path) -> None:
    """Remove a checkpoint; a kill during removal leaves no incomplete one under its name."""
    if path.exists():
        doomed = path.with_name(f".{path.name}.old")
        path.replace(doomed)
        shutil.rmtree(doomed)


def _write_durably(file: Path, text: str) -> None:
    with file.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _sync(folder: Path) -> None:
    """Make names in a folder survive a power cut, if the system allows opening folders."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
