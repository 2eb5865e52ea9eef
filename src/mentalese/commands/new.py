"""`mentalese new`: writes a package with a family that works, to start from."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from mentalese.commands.options import read
from mentalese.errors import InputError
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


def run(words: list[str]) -> None:
    options = read(Options, words, "new")
    name = options.name
    out = options.out or Path(name)
    check_folder_place(out, "--out")
    if out.exists():
        raise InputError(f"{out} exists: choose another name, or another folder by --out")
    _check_name(name)
    with whole_folder(out) as folder:
        for file in sorted(TEMPLATE.rglob("*.txt")):
            place = folder / _renamed(str(file.relative_to(TEMPLATE)), name).removesuffix(".txt")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(_renamed(file.read_text(encoding="utf-8"), name), encoding="utf-8")
    print(f"{out} contains the family {name}; its model is {out / name / 'model.py'}")
    print(f"next: pip install -e {out}; mentalese check {name}; mentalese train {name}/tiny")


def _renamed(text: str, name: str) -> str:
    return text.replace(EXAMPLE, name).replace(_class_name(EXAMPLE), _class_name(name))


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise InputError(f"NAME is {name!r}: use lower-case letters, digits and single underscores, e.g. my_family")
    prefixes = {recipe.partition("/")[0] for recipe in recipes()}
    if name in families() or name in prefixes or any(name in family.classes for family in families().values()):
        raise InputError(f"NAME is {name!r}: a family, recipe or model type has this name already, choose another")
    for module, what in ((name, "a Python module"), (f"transformers.models.{name}", "a model of transformers")):
        if _exists(module):
            raise InputError(f"NAME is {name!r}: {what} has this name already, choose another")


def _exists(module: str) -> bool:
    """Test if a module exists, without importing it or heavy parent packages."""
    parent, _, last = module.rpartition(".")
    if not parent:
        return importlib.util.find_spec(module) is not None
    root = importlib.util.find_spec(parent.partition(".")[0])
    folder = Path(root.origin or "").parent.joinpath(*parent.split(".")[1:]) if root else Path()
    return (folder / last).is_dir()
