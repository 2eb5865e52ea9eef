"""Installation of the package: the command that messages name, and the versions of transformers that were tested."""

from __future__ import annotations

import warnings
from importlib.metadata import requires, version

from packaging.specifiers import SpecifierSet

REPOSITORY = "https://github.com/mentalese/mentalese"
PUBLISHED = False
"""True if the package index has this project under its name; `scripts/release.py check` compares."""


def install_command(extra: str = "", *, models: bool = False) -> str:
    """Return the command that installs the package with an extra of `pyproject.toml`, or the package of models."""
    name = "mentalese-models" if models else f"mentalese[{extra}]" if extra else "mentalese"
    if PUBLISHED:
        return f"pip install '{name}'" if extra else f"pip install {name}"
    return f"pip install '{name} @ git+{REPOSITORY}{'#subdirectory=models' if models else ''}'"


def warn_of_untested_transformers() -> None:
    """Warn if the installed transformers is newer than the versions that this package was tested with."""
    name, installed = "transformers", version("transformers")
    needs = next(need.partition(";")[0].strip() for need in requires("mentalese") or () if need.startswith(name))
    tested = SpecifierSet(needs.removeprefix(name))
    if not tested.contains(installed, prereleases=True):
        warnings.warn(
            f"transformers is {installed}, and mentalese {version('mentalese')} was tested with {tested}: "
            f"if something fails, pip install '{name}{tested}'",
            stacklevel=3,
        )
