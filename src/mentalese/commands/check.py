"""`mentalese check`: runs the contract tests on a family."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

from tyro.conf import Positional, arg

from mentalese.commands.options import read
from mentalese.errors import InputError, nearest
from mentalese.registry import ENTRY_POINTS, Family, families, load
from mentalese.screen import print_table, progress
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
        verbose: print pytest's own report as well.
    """

    family: Annotated[Positional[str], arg(metavar="FAMILY")]
    only: str | None = None
    verbose: bool = False


@dataclass(frozen=True)
class Outcome:
    """The outcome of one test: `passed`, `FAILED` or `skipped`, and the reason."""

    test: str
    recipe: str
    result: str
    reason: str = ""
    details: str = ""


def run(words: list[str]) -> None:
    options = read(Options, words, "check")
    what = options.family
    if importlib.util.find_spec("pytest") is None:
        raise InputError("`mentalese check` needs pytest: pip install pytest")
    declared, root = find(what)
    names = [recipe.name for family in declared.values() for recipe in load(family.recipes)]
    tiny = [name for name in names if name.endswith("/tiny")]
    if not tiny:
        raise InputError(
            f"{what} has the recipes {', '.join(names)}: add a small one called NAME/tiny, which is tested"
        )
    with tempfile.TemporaryDirectory(prefix="mentalese-check-") as folder:
        place = Path(folder)
        (place / "pytest.ini").write_text("[pytest]\n")  # and not one of a folder above
        (place / "test_contract.py").write_text(_TEST.format(tiny=tiny, recipes=names))
        _declare(place, declared)
        code, report = _pytest(place, what, root, options.only)
        outcomes = read_outcomes(place / "report.xml")
    if options.verbose or (not outcomes and code != _NO_TESTS):
        print(report)
    if code == _NO_TESTS:
        raise InputError(f"--only is {options.only!r}: no test has that in its name")
    if outcomes:
        _print(what, outcomes)
    if code:
        raise SystemExit(1)


# -- which family ------------------------------------------------------------------------------------------------------


def find(what: str) -> tuple[dict[str, Family], Path | None]:
    """Return families by the module that declares each (a registered one by its name), and the folder of the modules.

    Raises:
        InputError: the family does not exist, or its module does not declare it.
    """
    if what in families():
        return {what: families()[what]}, None
    modules, root = _modules(Path(what).expanduser())
    if root is not None:
        sys.path.insert(0, str(root))
    elif not re.fullmatch(r"\w+(\.\w+)*", what) or not _importable(what):
        raise InputError(
            f"{what!r} is no family, module or folder{nearest(what, families())} (`mentalese list` shows families)"
        )
    declared = {module: _declared(module) for module in modules or [what]}
    for module, family in declared.items():
        if families().get(family.name, family) != family:
            raise InputError(f"{module} declares the family {family.name!r}, which is another one already: rename it")
    return declared, root


def _modules(path: Path) -> tuple[list[str], Path | None]:
    """Return the modules of a package's folder, of a family's own folder or file, and where they are imported from."""
    path = path.resolve()
    if path.suffix == ".py" and path.is_file():
        return ([path.parent.name], path.parents[1]) if path.stem == "__init__" else ([path.stem], path.parent)
    if (path / "__init__.py").is_file():
        return [path.name], path.parent
    if (path / "pyproject.toml").is_file():
        project = tomllib.loads((path / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
        modules = list(project.get("entry-points", {}).get(ENTRY_POINTS, {}).values())
        if not modules:
            raise InputError(f'{path / "pyproject.toml"} declares no [project.entry-points."{ENTRY_POINTS}"]: add one')
        return modules, path / "src" if (path / "src").is_dir() else path
    if path.is_dir():
        raise InputError(f"{path} has neither pyproject.toml nor __init__.py: use the folder of a package or family")
    return [], None


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _declared(module: str) -> Family:
    try:
        family = getattr(importlib.import_module(module), "FAMILY", None)
    except ImportError as error:
        raise InputError(f"{module} cannot be imported: {error}") from error
    if not isinstance(family, Family):
        raise InputError(f"{module} declares no family: set FAMILY = mentalese.Family(...) in it")
    return family


def _declare(folder: Path, found: dict[str, Family]) -> None:
    """Make the entry points that an installed package would have, for families that are not registered."""
    lines = [f"{family.name} = {module}\n" for module, family in found.items() if family.name not in families()]
    if lines:
        info = folder / "mentalese_check-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mentalese_check\nVersion: 0\n")
        (info / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n{''.join(lines)}")


# -- running it --------------------------------------------------------------------------------------------------------


def _pytest(folder: Path, what: str, root: Path | None, only: str | None) -> tuple[int, str]:
    """Run pytest; return its exit code and its output."""
    command = [sys.executable, "-m", "pytest", "test_contract.py", "-v", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["--junit-xml", "report.xml", *(["-k", only] if only else [])]
    paths = [str(folder), *([str(root)] if root else []), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    lines = []
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    with process, progress(f"Checking {what}", 100, show=True) as bar:
        for line in process.stdout:
            lines.append(line)
            if percent := re.search(r"\[ *(\d+)%\]$", line.rstrip()):
                bar.update(int(percent[1]))
    return process.returncode, "".join(lines)


def read_outcomes(report: Path) -> list[Outcome]:
    """Return the tests in a JUnit report of pytest, in their order."""
    if not report.is_file():
        return []
    outcomes = []
    for case in ElementTree.parse(report).iter("testcase"):
        test, _, recipe = case.get("name", "").removesuffix("]").partition("[")
        words = test.removeprefix("test_").replace("_", " ")
        problem = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        if problem is None:
            outcomes.append(Outcome(words, recipe, "passed"))
            continue
        result = "skipped" if problem.tag == "skipped" else "FAILED"
        reason = (problem.get("message") or "").strip().partition("\n")[0]
        outcomes.append(Outcome(words, recipe, result, reason, problem.text or ""))
    return outcomes


def _print(what: str, outcomes: list[Outcome]) -> None:
    several = len({re.sub(r"-\d+$", "", outcome.recipe) for outcome in outcomes}) > 1  # without other parameters
    header = ("test", *(["recipe"] if several else []), "result")
    rows = [(o.test, *([o.recipe] if several else []), o.result) for o in outcomes]
    print_table(header, rows)
    for outcome in outcomes:
        if outcome.result == "FAILED":
            lines = [line for line in outcome.details.splitlines() if line.startswith("E ")]
            print(f"\n{outcome.test} [{outcome.recipe}]:", *(lines or [outcome.reason]), sep="\n  ")
    counts = Counter(outcome.result for outcome in outcomes)
    summary = ", ".join(f"{counts[result]} {result.lower()}" for result in ("passed", "FAILED", "skipped"))
    print(f"\n{what}: {summary}")
