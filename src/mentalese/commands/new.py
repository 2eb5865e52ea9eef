"""`mentalese new`: writes a package with a family that works, to start from."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shlex
from pathlib import Path
from typing import Annotated, Literal

from transformers import CONFIG_MAPPING
from tyro.conf import Positional, arg

from mentalese.errors import require
from mentalese.files import check_folder_place, whole_folder
from mentalese.registry import families, recipes
from mentalese.values import Place, checked_dataclass

TEMPLATE = Path(__file__).parents[1] / "templates" / "family"
EXAMPLE = "running_mean"
"""The family that the template is; a new one has its files with another name."""


@checked_dataclass("")
class Options:
    """Writes a package with a small family that keeps the contract: a model, a recipe, an entry point and a test.

    Attributes:
        kind: what to write.
        name: the family's name.
        out: the package's folder; NAME if it is not given.
    """

    kind: Annotated[Positional[Literal["family"]], arg(metavar="family")]
    name: Annotated[Positional[str], arg(metavar="NAME")]
    out: Place | None = None


def run(options: Options) -> None:
    name = options.name
    out = options.out or Path(name)
    check_folder_place(out, "--out")
    require(not out.exists(), "--out", str(out), "it exists, choose another name or folder")
    valid = re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) is not None and not keyword.iskeyword(name)
    require(valid, "NAME", name, "use lower-case letters, digits and single underscores, e.g. my_family")
    prefixes = {recipe.partition("/")[0] for recipe in recipes()}
    free = name not in {*families(), *prefixes, *CONFIG_MAPPING} and importlib.util.find_spec(name) is None
    require(free, "NAME", name, "a family, model or Python module has this name already, choose another")

    def renamed(text: str) -> str:
        return text.replace(EXAMPLE, name).replace(_class_name(EXAMPLE), _class_name(name))

    with whole_folder(out) as folder:
        for file in sorted(TEMPLATE.rglob("*.txt")):
            place = folder / renamed(str(file.relative_to(TEMPLATE))).removesuffix(".txt")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(renamed(file.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{out} contains the family {name}; its model is {out / name / 'model.py'}")
    print(f"next: pip install -e {shlex.quote(str(out))}; mentalese check {name}; mentalese train {name}/tiny")


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
