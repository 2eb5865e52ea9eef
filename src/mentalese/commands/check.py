"""`mentalese check`: runs the contract tests on a family."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from mentalese.errors import InputError, nearest, require
from mentalese.recipe import Recipe
from mentalese.registry import ENTRY_POINTS, Family, families, load
from mentalese.values import checked_dataclass

_TEST = """\
from mentalese.testing import *

RECIPES = {tiny} + [name for name in MODES if name in {recipes}]
"""
_NO_TESTS = 5  # pytest's exit code if it has found none


@checked_dataclass("")
class Options:
    """Runs the contract tests on a family: its name, module, or folder. The exit code is 1 if one fails.

    Attributes:
        family: its name, module or folder.
        only: run only the tests with this in their names, as pytest's -k.
        verbose: print whole tracebacks.
    """

    family: Annotated[Positional[str], arg(metavar="FAMILY")]
    only: str | None = None
    verbose: bool = False


def run(options: Options) -> None:
    if importlib.util.find_spec("pytest") is None:
        raise InputError("`mentalese check` needs pytest: pip install pytest")
    declared, root = _find(options.family)
    names = [recipe.name for family in declared.values() for recipe in _recipes(family)]
    tiny = [name for name in names if name.endswith("/tiny")]
    require(bool(tiny), f"recipes of {options.family}", names, "add a small one called NAME/tiny, which is tested")
    with tempfile.TemporaryDirectory(prefix="mentalese-check-") as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n")  # and not one of a folder above
        (folder / "test_contract.py").write_text(_TEST.format(tiny=tiny, recipes=names))
        new = [f"{family.name} = {module}\n" for module, family in declared.items() if family.name not in families()]
        if new:  # the entry points that an installed package would have
            info = folder / "mentalese_check-0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mentalese_check\nVersion: 0\n")
            (info / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n{''.join(new)}")
        command = [sys.executable, "-m", "pytest", "test_contract.py", "-v", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += ["--no-header", f"--tb={'long' if options.verbose else 'short'}"]
        command += ["-k", options.only] if options.only else []
        paths = [str(folder), str(root or ""), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1"}
        environment.pop("PYTEST_ADDOPTS", None)
        code = subprocess.run(command, cwd=folder, env=environment, check=False).returncode
    require(code != _NO_TESTS, "--only", options.only, "no test has that in its name")
    if code:
        raise SystemExit(1)


def _recipes(family: Family) -> list[Recipe]:
    """Return the recipes of a family; raise `InputError` if they cannot be imported."""
    try:
        return load(family.recipes)
    except (ImportError, AttributeError, ValueError) as error:
        problem = f"the recipes of the family {family.name!r} are {family.recipes!r}"
        raise InputError(f"{problem}, which cannot be imported ({error}): use MODULE:NAME of a list") from error


def _find(name: str) -> tuple[dict[str, Family], Path | None]:
    """Return families by their modules, and the folder of these; raise `InputError` if there are none."""
    if name in families():
        return {name: families()[name]}, None
    modules, root = _modules(Path(name).expanduser().resolve())
    if root is not None:
        sys.path.insert(0, str(root))
    return {module: _declared(module) for module in modules or [name]}, root


def _modules(path: Path) -> tuple[list[str], Path | None]:
    """Return the modules of a package's folder, of a family's own folder or file, and where they are imported from."""
    if path.name == "__init__.py" and path.is_file():
        path = path.parent
    if (path / "__init__.py").is_file() or (path.suffix == ".py" and path.is_file()):
        return [path.stem], path.parent
    project = path / "pyproject.toml"
    if project.is_file():
        entry_points = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {}).get("entry-points", {})
        require(ENTRY_POINTS in entry_points, f"entry-points in {project}", list(entry_points), f"add {ENTRY_POINTS}")
        return list(entry_points[ENTRY_POINTS].values()), path / "src" if (path / "src").is_dir() else path
    remedy = "it has neither pyproject.toml nor __init__.py, use the folder of a package or family"
    require(not path.is_dir(), "FAMILY", str(path), remedy)
    return [], None


def _declared(module: str) -> Family:
    """Return the family that a module declares."""
    try:
        family = getattr(importlib.import_module(module), "FAMILY", None)
    except SyntaxError as error:
        raise InputError(f"{error.filename}, line {error.lineno}: {error.msg}: mend that line") from error
    except (ImportError, TypeError, ValueError) as error:  # the last two if it is not a module's name
        close = nearest(module, families())
        raise InputError(f"{module!r} cannot be imported ({error}){close} (`mentalese list` shows families)") from error
    if not isinstance(family, Family):
        raise InputError(f"{module} declares no family: set FAMILY = mentalese.Family(...) in it")
    same = families().get(family.name, family) == family
    require(same, f"the name of the family in {module}", family.name, "it is another family's, rename it")
    return family
