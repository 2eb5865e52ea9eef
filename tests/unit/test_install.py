"""The command that installs the package, the name on the index, and a transformers that was not tested."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from mentalese import install
from support import module_at

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def _wheel(folder: Path, name: str, address: str) -> None:
    """Write a wheel without code, whose metadata give this address."""
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        lines = ("Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", f"Project-URL: Source, {address}", "")
        wheel.writestr(f"{about}/METADATA", "\n".join(lines))
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that pip takes for its index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    _wheel(tmp_path, "packaging", "https://example.com/packaging")
    return tmp_path


@pytest.fixture
def release() -> ModuleType:
    return module_at(ROOT / "scripts" / "release.py")


def test_the_owner_of_a_name_on_the_index_is_found(index: Path, release: ModuleType) -> None:
    assert release.owner_on_index("mentalese") is None
    _wheel(index, "mentalese", install.REPOSITORY)
    _wheel(index, "mentalese_models", "https://example.com/other")
    assert release.owner_on_index("mentalese") == release.OURS
    assert release.owner_on_index("mentalese-models") == "https://example.com/other"


def test_an_index_that_cannot_be_reached_is_not_an_answer(
    tmp_path: Path, release: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(LookupError):
        release.owner_on_index("mentalese")


def test_a_release_checks_both_names(index: Path, release: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    release.check_names()
    monkeypatch.setattr(install, "PUBLISHED", True)
    with pytest.raises(SystemExit, match="PUBLISHED is True"):
        release.check_names()
    _wheel(index, "mentalese_models", "https://example.com/other")
    with pytest.raises(SystemExit, match=r"other projects under our names: .'mentalese-models'"):
        release.check_names()


@pytest.mark.parametrize(
    ("published", "extra", "models", "command"),
    [
        (False, "", False, "pip install 'mentalese @ git+https://github.com/mentalese/mentalese'"),
        (False, "play", False, "pip install 'mentalese[play] @ git+https://github.com/mentalese/mentalese'"),
        (
            *(False, "", True),
            "pip install 'mentalese-models @ git+https://github.com/mentalese/mentalese#subdirectory=models'",
        ),
        (True, "", False, "pip install mentalese"),
        (True, "play", False, "pip install 'mentalese[play]'"),
        (True, "", True, "pip install mentalese-models"),
    ],
)
def test_the_command_installs_what_there_is(
    published: bool, extra: str, models: bool, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "PUBLISHED", published)
    assert install.install_command(extra, models=models) == command


def test_no_other_file_names_the_command() -> None:
    """Publishing changes one line."""
    sources = {path.name: path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py")}
    assert [name for name, text in sources.items() if re.search("pip install '?mentalese", text)] == []
    assert "pip install '{name}'" in sources["install.py"]


@pytest.mark.parametrize(("number", "warns"), [("5.24.9", False), ("5.25.0", True), ("6.0.0.dev0", True)])
def test_a_newer_transformers_gives_one_warning(number: str, warns: bool) -> None:
    code = (
        "import importlib.metadata as m, warnings\n"
        f"found = m.version\nm.version = lambda name: {number!r} if name == 'transformers' else found(name)\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import mentalese\n"
        "print(*(warning.message for warning in caught), sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.strip().splitlines()
    assert len(lines) == warns
    if warns:
        assert lines[0].startswith(f"transformers is {number}, and mentalese ")
        assert "<5.25,>=5.17" in lines[0]
