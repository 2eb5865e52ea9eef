"""Trained models that packages provide: `models:NAME` opens one wherever a model's path is accepted.

A package names a module in the entry point group `mentalese.models`; each folder in it that contains a `config.json`
is a model, and one that contains an `adapter_config.json` the adapters of one (`mentalese.models.adapters`).
`mentalese-models` provides the models of this project.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path

from mentalese.errors import InputError, nearest
from mentalese.gguf import SMOLLM2, cached_models, gguf_folder
from mentalese.install import install_command

ENTRY_POINTS = "mentalese.models"
PREFIX = "models:"


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
    """Return the folder of `models:NAME`, of an installed package or in the cache, or of `gguf:FILE`; else `None`.

    Raises:
        InputError: no installed package has such a model, or the file cannot be converted.
    """
    if not str(path).startswith(PREFIX):
        return gguf_folder(path)
    name, models = str(path).removeprefix(PREFIX), packaged_models()
    if (folder := cached_models() / name).is_dir():
        return folder
    if name == SMOLLM2:
        raise InputError(f"{path} is not in the cache: fetch it with `mentalese models --fetch {SMOLLM2}`")
    if not models:
        raise InputError(f"{path}: no package of models is installed: {install_command(models=True)}")
    if name not in models:
        raise InputError(f"{path}: no model is called that{nearest(name, models)} (`mentalese models` lists them)")
    return models[name]
