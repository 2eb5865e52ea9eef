"""What a release contains and states."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from support import module_at

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def release() -> ModuleType:
    return module_at(ROOT / "scripts" / "release.py")


def test_the_version_is_the_same_everywhere(release: ModuleType) -> None:
    assert len(set(release.versions().values())) == 1, release.versions()


@pytest.mark.parametrize(
    ("names", "size", "found"),
    [
        (["mentalese/api.py", "mentalese-0.2.0/docs/faq.md"], 700_000, 0),
        (["mentalese-0.2.0/results/bench.json"], 1000, 1),
        (["mentalese/model.safetensors", "docs/gallery/a.webp"], 1000, 2),
        ([], 5_000_001, 1),
    ],
)
def test_a_distribution_with_results_or_weights_is_refused(
    names: list[str], size: int, found: int, release: ModuleType
) -> None:
    assert len(release.problems(names, size)) == found


def test_all_is_every_tool_that_a_command_uses(pyproject: dict[str, Any]) -> None:
    extras = pyproject["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(everything.removeprefix("mentalese[").removesuffix("]").split(","))
    assert named == set(extras) - {"all", "test", "lint", "ecosystem", "docs", "release"}


def test_what_the_project_is_built_and_tested_with_is_pinned(pyproject: dict[str, Any]) -> None:
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    extras = pyproject["project"]["optional-dependencies"]
    wanted = {re.split(r"[<>=\[]", name)[0] for extra in ("lint", "docs", "release") for name in extras[extra]}
    assert wanted <= pinned


def test_on_the_package_index_no_link_is_relative(pyproject: dict[str, Any]) -> None:
    (substitution,) = pyproject["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    source = pyproject["project"]["urls"]["Source"]
    text = re.sub(substitution["pattern"], substitution["replacement"], (ROOT / "README.md").read_text())
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) > 10
    assert all(target.startswith("https://") for target in targets)
    assert f"]({source}/blob/v$HFPR_VERSION/docs/training.md)" in text
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["repository-code"] == source
    assert all(url.startswith(source) for url in pyproject["project"]["urls"].values())


def test_the_readme_is_short_and_starts_with_the_installation() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 800
    assert re.search(r"```bash\n(.*)", text)[1].startswith("pip install . ./models")


def test_the_page_of_results_is_short() -> None:
    assert len((ROOT / "results" / "README.md").read_text().split()) <= 3000


@pytest.mark.parametrize("form", ["bug", "family", "result"])
def test_an_issue_form_asks_for_what_is_needed(form: str) -> None:
    found = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{form}.yml").read_text())
    assert found["name"]
    assert found["description"]
    assert any(field.get("validations", {}).get("required") for field in found["body"])


def test_published_results_name_no_local_folder() -> None:
    published = [path for folder in ("results", "models") for path in (ROOT / folder).rglob("*")]
    texts = [path for path in published if path.suffix in (".json", ".html", ".svg", ".md", ".jsonl")]
    assert len(texts) > 50
    absolute = re.compile(r"(?<![\w./-])/(home|root|work|tmp|mnt|opt|var|Users)/")
    assert not [path.name for path in texts if absolute.search(path.read_text(encoding="utf-8"))]
