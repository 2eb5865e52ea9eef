"""Tensors of a training checkpoint, read without running code that its files name, and checked by checksums."""

from __future__ import annotations

import hashlib
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from mentalese.errors import InputError
from mentalese.files import JsonObject, read_json, sha256
from mentalese.values import checked


def is_checkpoint(path: str | Path) -> bool:
    """Test if `path` is a folder that a `Checkpointer` wrote."""
    return all((Path(path) / name).is_file() for name in (".metadata", "info.json", "checksums.json"))


def load_weights(folder: Path, model: nn.Module) -> None:
    """Restore the weights of a checkpoint in place; raise `InputError` before if it is damaged or another model's."""
    ignore_warning_of_no_group()
    reader = TensorReader(folder)
    try:
        verify(folder, rank=0, world_size=1)
        stored = {name: tensor for name, tensor in reader.read_tensors().items() if name.startswith("model.")}
    except DamagedError as damage:
        raise InputError(f"{damage}: use another checkpoint") from damage
    targets = weights_to_read(folder, stored, model)
    check_same(folder, stored, targets)
    dcp.load(targets, storage_reader=reader, no_dist=True)


def ignore_warning_of_no_group() -> None:
    """Ignore DCP's warning that it works in a single process, as a run without `torchrun` does."""
    # Not `warnings.catch_warnings`: the warning comes from the thread, and filters belong to the whole process.
    warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return weights and persistent buffers by name, tied ones once; `state_dict` reshards gathered FSDP2 weights."""
    unique: dict[int, tuple[str, Tensor]] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        unique.setdefault(id(value), (name, value))
    return dict(unique.values())


def frozen_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights under adapters by name, which checkpoints do not store; empty for a model without adapters."""
    frozen = {name: value.detach() for name, value in model.named_parameters() if not value.requires_grad}
    return frozen if hasattr(model, "peft_config") else {}


def digest(tensors: dict[str, Tensor]) -> str:
    """Return the SHA-256 of the tensors' contents, in hex."""
    hashed = hashlib.sha256()
    for value in tensors.values():
        hashed.update(value.cpu().flatten().view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def weights_to_read(folder: Path, stored: dict[str, TensorStorageMetadata], model: nn.Module) -> dict[str, Tensor]:
    """Return a model's tensors to read into, as `model.NAME`; earlier versions stored the weights under adapters too.

    It raises `InputError` if weights that are not stored are not those that the adapters were trained on.
    """
    frozen = frozen_weights(model)
    left_out = {name for name in frozen if f"model.{name}" not in stored}
    if left_out and digest(frozen) != read_json(folder / "info.json")["frozen"]:
        raise InputError(f"train.init has other weights than {folder} was trained on: restore them")
    return {f"model.{name}": value.detach() for name, value in named_tensors(model).items() if name not in left_out}


def check_same(folder: Path, stored: dict[str, TensorStorageMetadata], targets: dict[str, Tensor]) -> None:
    """Raise `InputError` if a checkpoint's tensors differ from the tensors to read into."""
    for full in sorted(targets.keys() | stored.keys()):
        there = f"{stored[full].properties.dtype} {tuple(stored[full].size)}" if full in stored else "missing"
        here = f"{targets[full].dtype} {tuple(targets[full].shape)}" if full in targets else "missing"
        if there != here:
            difference = f"{full} is {there} in it and {here} in this run"
            raise InputError(f"{folder} is another model's ({difference}): resume with the recipe that wrote it")


class DamagedError(Exception):
    pass


def verify(folder: Path, rank: int, world_size: int) -> None:
    """Raise `DamagedError` if this rank's share of the files has changed since it was written."""
    checksums = _checksums(folder)
    for name in sorted(checksums)[rank::world_size]:
        _verify_file(folder / name, checksums[name])


def checkpoint_info(folder: Path) -> JsonObject:
    """Return what a checkpoint says of its step; raise `InputError` if its `info.json` is damaged."""
    file = folder / "info.json"
    try:
        _verify_file(file, _checksums(folder)[file.name])
    except DamagedError as damage:
        raise InputError(f"{damage}: use another checkpoint") from damage
    return read_json(file)


def _checksums(folder: Path) -> dict[str, str]:
    """Return the recorded SHA-256 of each file of a checkpoint, in hex."""
    file = folder / "checksums.json"
    try:
        checksums = checked("checksums", dict[str, str], json.loads(file.read_text()))
        return {name: checksums[name] for name in {*checksums, ".metadata", "info.json"}}
    except (OSError, ValueError, KeyError) as error:
        raise DamagedError(f"{file} is damaged or missing") from error


def _verify_file(file: Path, expected: str) -> None:
    if not file.is_file():
        raise DamagedError(f"{file} is missing")
    if sha256(file) != expected:
        raise DamagedError(f"{file} is damaged (its SHA-256 is not the one in {file.with_name('checksums.json')})")


# All classes of a list of tensors. `BytesStorageMetadata` is left out on purpose: DCP unpickles such entries.
_ALLOWED = {
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.metadata": {
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "pathlib": {"PosixPath", "WindowsPath"},
}


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if name not in _ALLOWED.get(module, ()):
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


class TensorReader(dcp.FileSystemReader):
    """A reader of tensors and nothing else; DCP's own reader runs any code that `.metadata` names."""

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        file = Path(self.path) / ".metadata"
        try:
            with file.open("rb") as stream:
                metadata = _MetadataUnpickler(stream).load()
            metadata.storage_meta.load_id = self.load_id
            if not all(isinstance(entry, TensorStorageMetadata) for entry in metadata.state_dict_metadata.values()):
                raise pickle.UnpicklingError("it lists something else")
        except Exception as error:  # the unpickler raises errors of any type for other files
            raise DamagedError(f"{file} is not a list of tensors ({error})") from error
        return metadata

    def read_tensors(self) -> dict[str, TensorStorageMetadata]:
        """Return the name, size and type of each tensor."""
        tensors: Any = self.read_metadata().state_dict_metadata
        return tensors
