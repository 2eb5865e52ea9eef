"""Installation of the package: the command that messages name, and the versions of transformers that were tested."""

from __future__ import annotations

import sys
import warnings
from importlib.metadata import requires, version

from packaging.specifiers import SpecifierSet

OURS = "ours"
REPOSITORY = "https://github.com/mentalese/mentalese"
PUBLISHED = False
"""True if the package index has this project under its name; `scripts/release.py check` compares."""


def install_command(extra: str = "", *, models: bool = False) -> str:
    """Return the command that installs the package with an extra of `pyproject.toml`, or the package of models."""
    name = "mentalese-models" if models else f"mentalese[{extra}]" if extra else "mentalese"
    if PUBLISHED:
        return f"pip install '{name}'" if extra else f"pip install {name}"
    return f"pip install '{name} @ git+{REPOSITORY}{'#subdirectory=models' if models else ''}'"


def owner_on_index(name: str) -> str | None:
    """Return `OURS`, or the addresses that the project of this name on pip's index gives; `None` without a project.

    It is a check against mistakes: a stranger can copy an address. No code of the project runs. Raise `LookupError` if
    the index cannot be reached.
    """
    metadata = _metadata_on_index(name)
    if metadata is None:
        # pip gives the same answer without a network, so a project that must be there is looked up too.
        if _metadata_on_index("packaging") is None:
            raise LookupError("pip cannot reach the package index")
        return None
    addresses = [address.partition(", ")[2] for address in metadata.get("project_url", [])]
    is_same_project = any(address.removesuffix("/") == REPOSITORY for address in addresses)
    return OURS if is_same_project else ", ".join(addresses) or "without an address"


def _metadata_on_index(name: str) -> dict[str, list[str]] | None:
    """Return the metadata of the newest wheel of a project; `None` if pip finds none."""
    import json
    import subprocess

    options = ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:", "--quiet", "--report", "-"]
    command = [sys.executable, "-m", "pip", "--retries", "0", "install", *options, name]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(process.stdout)["install"][0]["metadata"] if process.returncode == 0 else None


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
