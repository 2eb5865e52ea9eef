"""Checkpoints appear whole or not at all, and loading them runs nobody's code."""

import errno
import hashlib
import io
import json
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystem, _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

from mentalese.errors import InputError
from mentalese.training.checkpoint import Checkpointer
from mentalese.training.parallel import Parallel

ALONE = Parallel(rank=0, world_size=1, device=torch.device("cpu"))


class Model(nn.Module):
    """Tied weights, a buffer, a scalar parameter and one that no step reaches: all that a state can be made of."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.linear = nn.Linear(width, width)
        self.head = nn.Linear(width, 11, bias=False)
        self.head.weight = self.embed.weight
        self.gate = nn.Parameter(torch.tensor(0.5))
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return self.head(self.linear(self.embed(ids)) * self.gate)


def new(width: int = 8, seed: int = 0) -> tuple[Model, torch.optim.AdamW]:
    torch.manual_seed(seed)
    model = Model(width)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        ids = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(step))
        nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.roll(1).flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def bits(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, bytes]:
    """Every stored number, to the last bit."""
    tensors = dict(model.state_dict())
    for name, parameter in model.named_parameters():
        tensors |= {f"{name}/{key}": value for key, value in optimizer.state.get(parameter, {}).items()}
    return {name: value.detach().numpy().tobytes() for name, value in tensors.items()}


def saved(folder: Path, *steps: int, keep: int = 9) -> Checkpointer:
    """A run with a checkpoint at each of `steps`."""
    checkpoints = Checkpointer(folder, ALONE, keep)
    model, optimizer = new()
    done = 0
    for step in steps:
        train(model, optimizer, range(done, step))
        checkpoints.save(step, model, optimizer, {"tokens": step * 24})
        done = step
    checkpoints.wait()
    return checkpoints


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    whole = new()
    train(*whole, range(6))
    saved(tmp_path, 3)
    resumed = new(seed=1)
    assert Checkpointer(tmp_path, ALONE, 1).load(*resumed) == {"tokens": 72}
    train(*resumed, range(3, 6))
    assert bits(*resumed) == bits(*whole)
    assert resumed[0].head.weight is resumed[0].embed.weight


def test_checkpoint_before_step_one_has_empty_optimizer_state(tmp_path: Path) -> None:
    saved(tmp_path, 0)
    other = new(seed=1)
    train(*other, range(2))
    Checkpointer(tmp_path, ALONE, 1).load(*other)
    assert bits(*other) == bits(*new())


def test_saving_is_asynchronous_and_isolated_from_later_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write = threading.Event()
    create_stream = FileSystem.create_stream

    def wait_and_create(self: FileSystem, path: Path, mode: str) -> object:
        assert may_write.wait(10)
        return create_stream(self, path, mode)

    model, optimizer = new()
    train(model, optimizer, range(3))
    before = bits(model, optimizer)
    checkpoints = Checkpointer(tmp_path, ALONE, 1)
    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, "create_stream", wait_and_create)
        checkpoints.save(3, model, optimizer, {})
        train(model, optimizer, range(3, 6))
        assert not [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
        may_write.set()
        checkpoints.wait()
    assert bits(model, optimizer) != before
    checkpoints.load(model, optimizer)
    assert bits(model, optimizer) == before


def test_the_newest_are_kept_and_the_newest_is_loaded(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2, 3, 10, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000010"]
    assert checkpoints.latest() == 10
    assert checkpoints.load(*new()) == {"tokens": 240}


def test_a_step_that_is_saved_again_replaces_its_checkpoint(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 3)
    model, optimizer = new(seed=5)
    checkpoints.save(3, model, optimizer, {"again": True})
    assert checkpoints.load(*new()) == {"again": True}
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]


def test_without_a_checkpoint_there_is_no_latest(tmp_path: Path) -> None:
    assert Checkpointer(tmp_path / "checkpoints", ALONE, 1).latest() is None


def test_what_a_killed_save_left_is_removed_at_the_start(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    (tmp_path / ".step-00000004.tmp").mkdir()
    (tmp_path / ".step-00000004.tmp" / "__0_0.distcp").write_bytes(b"half")
    assert Checkpointer(tmp_path, ALONE, 2).latest() == 2
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]


FILES = ("__0_0.distcp", ".metadata", "info.json", "checksums.json")
DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "bit flipped": lambda file: file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:]),
    "missing": lambda file: file.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_damaged_file_is_named_with_an_older_checkpoint(tmp_path: Path, name: str, damage: str) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    DAMAGES[damage](tmp_path / "step-00000002" / name)
    model, optimizer = new(seed=3)
    before = bits(model, optimizer)
    with pytest.raises(InputError) as refused:
        checkpoints.load(model, optimizer)
    assert name in str(refused.value)
    assert str(refused.value).endswith(f"remove {tmp_path / 'step-00000002'} to go on from step 1")
    assert bits(model, optimizer) == before
    shutil.rmtree(tmp_path / "step-00000002")
    assert checkpoints.load(model, optimizer) == {"tokens": 24}


def test_a_damaged_only_checkpoint_means_to_start_again(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    (tmp_path / "step-00000001" / "info.json").write_text("{}")
    with pytest.raises(InputError, match=r"and start again$"):
        checkpoints.load(*new())


class FullDisk(io.BufferedWriter):
    """A file on a disk that has room for some more bytes."""

    room = 0

    def write(self, data: Any) -> int:
        FullDisk.room -= len(data)
        if FullDisk.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


@pytest.mark.parametrize("room", [0, 64, 600, 700, 1100, 4000])
def test_full_disk_gives_one_sentence_and_no_partial_file(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = saved(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(FullDisk, "room", room)
        patch.setattr(FileSystem, "create_stream", lambda self, path, mode: FullDisk(io.FileIO(path, mode)))
        checkpoints.save(2, *new(), {})
        with pytest.raises(InputError, match=r"no space left .* \(the newest whole one is step 1\): free some") as full:
            checkpoints.wait()
    assert full.value.__cause__ is not None
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert checkpoints.load(*new()) == {"tokens": 24}


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    with pytest.raises(InputError, match=r"model.embed.weight is torch.float32 \(11, 8\) in it and .* \(11, 4\) in"):
        checkpoints.load(*new(width=4))
    plain = nn.Linear(8, 8)
    with pytest.raises(InputError, match=r"model.bias is missing in it and torch.float32 \(8,\) in this run"):
        checkpoints.load(plain, torch.optim.AdamW(plain.parameters()))


class Payload:
    """Unpickling it leaves a mark: code of the file's author has run."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


def forge(folder: Path, name: str, content: bytes) -> None:
    """Replaces a file of a checkpoint and makes its checksum fit, as an attacker would."""
    (folder / name).write_bytes(content)
    sums = json.loads((folder / "checksums.json").read_text())
    sums[name] = hashlib.sha256(content).hexdigest()
    (folder / "checksums.json").write_text(json.dumps(sums))


def test_code_in_the_metadata_is_not_run(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path / "run", 1)
    folder, mark = tmp_path / "run" / "step-00000001", tmp_path / "mark"
    forge(folder, ".metadata", pickle.dumps(Payload(mark)))
    with pytest.raises(InputError, match=r"\.metadata is not a list of tensors \(it asks for \w+\.mkdir\)"):
        checkpoints.load(*new())
    assert not mark.exists()
    with pytest.raises(AttributeError):  # the attack is real: DCP's own reader runs it
        dcp.FileSystemReader(folder).read_metadata()
    assert mark.exists()


def test_code_in_an_entry_that_is_no_tensor_is_not_run(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path / "run", 1)
    folder, mark = tmp_path / "run" / "step-00000001", tmp_path / "mark"
    torch.save(Payload(mark), folder / "payload")
    forge(folder, "payload", (folder / "payload").read_bytes())
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    metadata.state_dict_metadata["model.steps"] = BytesStorageMetadata()
    size = (folder / "payload").stat().st_size
    metadata.storage_data[MetadataIndex("model.steps")] = _StorageInfo("payload", 0, size)
    forge(folder, ".metadata", pickle.dumps(metadata))
    with pytest.raises(InputError, match=r"it asks for .*BytesStorageMetadata"):
        checkpoints.load(*new())
    assert not mark.exists()
    # The attack is real: DCP unpickles without limits what `.metadata` calls bytes.
    dcp.load({"model.steps": torch.zeros(())}, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
    assert mark.exists()


def test_background_error_is_raised_once_by_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: FileSystem, path: Path, mode: str) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    checkpoints = Checkpointer(tmp_path, ALONE, 1)
    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, "create_stream", broken)
        checkpoints.save(1, *new(), {})
        with pytest.raises(OSError, match="the disk is broken"):
            checkpoints.save(2, *new(), {})
    assert checkpoints.latest() is None
