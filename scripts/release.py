"""Makes a release, step by step; only `publish` sends anything anywhere.

python scripts/release.py check     the version is the same everywhere, and the work tree is clean
python scripts/release.py build     check, then dist/: sdist and wheel, examined
python scripts/release.py tag       build, then the tag vVERSION in this clone
python scripts/release.py publish   uploads what the tag was made of, with twine's own settings and credentials

Needs `pip install '.[release]'`. Push the tag by hand, after `tag` and before `publish`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

from mentalese import install

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
OURS = "ours"
LARGEST = 5_000_000
"""Bytes of an sdist or a wheel: results, pictures and weights have no place in either."""


def versions() -> dict[str, str]:
    """The version, as each file states it."""
    stated = {
        "CITATION.cff": r"^version: (\S+)$",
        "CHANGELOG.md": r"^## \[(\d\S*)\]",
    }
    found = {
        "pyproject.toml": tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    }
    for name, pattern in stated.items():
        match = re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        found[name] = match[1] if match else "none"
    return found


def run(*words: str) -> str:
    """Runs a command in the repository; stops the release if it fails."""
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed\n{done.stdout}")
    return done.stdout


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
    is_same_project = any(address.removesuffix("/") == install.REPOSITORY for address in addresses)
    return OURS if is_same_project else ", ".join(addresses) or "without an address"


def _metadata_on_index(name: str) -> dict[str, list[str]] | None:
    """Return the metadata of the newest wheel of a project; `None` if pip finds none."""
    options = ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:", "--quiet", "--report", "-"]
    command = [sys.executable, "-m", "pip", "--retries", "0", "install", *options, name]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(process.stdout)["install"][0]["metadata"] if process.returncode == 0 else None


def check_names() -> None:
    """Stop the release if the index has another project under one of our names, or is missing where it is named."""
    owners = {name: owner_on_index(name) for name in ("mentalese", "mentalese-models")}
    strangers = {name: owner for name, owner in owners.items() if owner not in (None, OURS)}
    if strangers:
        sys.exit(f"the package index has other projects under our names: {strangers}")
    if install.PUBLISHED and None in owners.values():
        sys.exit(f"mentalese.install.PUBLISHED is True, and the index has {owners}")


def check() -> str:
    found = versions()
    if len(set(found.values())) != 1:
        sys.exit(f"the versions differ: {found}")
    if changed := run("git", "status", "--porcelain"):
        sys.exit(f"commit or remove first:\n{changed}")
    return found["pyproject.toml"]


def problems(names: list[str], size: int) -> list[str]:
    """What must not be in a distribution of these files and bytes."""
    found = [name for name in names if re.search(r"(^|/)(results|runs)/|\.(safetensors|webp)$", name)]
    if size > LARGEST:
        found.append(f"{size:,} bytes, more than {LARGEST:,}")
    return found


def build() -> str:
    version = check()
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", str(DIST))
    for path in sorted(DIST.iterdir()):
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                names = wheel.namelist()
        else:
            with tarfile.open(path) as sdist:
                names = sdist.getnames()
        if found := problems(names, path.stat().st_size):
            sys.exit(f"{path.name} contains {', '.join(found)}")
        print(f"{path.name}: {len(names)} files, {path.stat().st_size:,} bytes")
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(DIST.iterdir())))
    return version


def tag() -> str:
    version = build()
    run("git", "tag", "--annotate", f"v{version}", "--message", f"Mentalese {version}")
    print(f"Tagged v{version}. Look at dist/, push the tag, then publish.")
    return version


def publish() -> str:
    version = check()
    check_names()
    if run("git", "rev-list", "-1", f"v{version}") != run("git", "rev-parse", "HEAD"):
        sys.exit(f"HEAD is not v{version}: check it out")
    files = [str(path) for path in sorted(DIST.glob(f"mentalese-{version}*"))]
    if len(files) != 2:
        sys.exit(f"dist/ contains {len(files)} files of {version}, not an sdist and a wheel: run `tag` first")
    run(sys.executable, "-m", "twine", "upload", *files)
    return version


if __name__ == "__main__":
    steps = {"check": check, "build": build, "tag": tag, "publish": publish}
    if len(sys.argv) != 2 or sys.argv[1] not in steps:
        sys.exit(__doc__)
    print(f"{sys.argv[1]}: {steps[sys.argv[1]]()}")
