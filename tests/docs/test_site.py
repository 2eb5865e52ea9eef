"""The site: every text has one source, every link leads somewhere, and nothing public is left out."""

from __future__ import annotations

import importlib
import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import mentalese
from mentalese.registry import families
from support import module_at

ROOT = Path(__file__).parents[2]
PAPER = re.compile(r"\(https://arxiv\.org/abs/\d{4}\.\d{5}\)")
CODE = re.compile(r"Authors' code:\s+\[[^\]]+\]\(https://github\.com/[\w.-]+/[\w.-]+\)")
BASES = {"baselines"}  # transformers' own classes


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    return module_at(ROOT / "docs" / "pages.py")


@pytest.fixture(scope="module")
def site(pages: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as they are handed to MkDocs."""
    folder = tmp_path_factory.mktemp("site") / "site"
    pages.Layout(folder).write()
    return folder


def outside_code(text: str) -> str:
    return re.sub(r"^( *)(```+).*?^\1\2 *$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Those of a page's headings, as Python-Markdown and GitHub both make them."""
    headings = re.findall(r"^#{1,6} (.+)$", outside_code(page.read_text()), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)) for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading.strip().lower()) for heading in plain}


def test_every_link_between_pages_leads_to_a_page_and_a_heading(site: Path) -> None:
    seen = 0
    for page in sorted((site / "pages").rglob("*.md")):
        for target in re.findall(r"\]\(([^)\s]+)\)", outside_code(page.read_text())):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            place = page.parent / name if name else page
            assert place.is_file(), f"{page.relative_to(site)} links to {target}"
            assert not anchor or anchor in anchors(place), f"{page.relative_to(site)} links to {target}"
            seen += 1
    assert seen > 100


def test_links_to_the_repository_lead_to_files_of_it(site: Path) -> None:
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    text = "\n".join(page.read_text() for page in (site / "pages").rglob("*.md"))
    paths = re.findall(rf"\]\({re.escape(source)}/blob/main/([^)#]+)", text)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("target", ["nowhere.md", "../../outside.md"])
def test_a_link_to_nothing_stops_the_build(target: str, pages: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"docs/faq.md links to {target}: there is no such file"):
        pages.Layout(tmp_path).link(target, "docs/faq.md")


def test_code_is_unchanged_and_numbered_items_keep_blocks(pages: ModuleType) -> None:
    text = "1. one [a](b):\n\n   ```python\n   x = [a](b)\n   ```\n\n   more [a](b)\n\nend\n   ```\n"
    changed = pages.outside_code(text, lambda part: part.replace("(b)", "(c)"))
    assert changed == "1. one [a](c):\n\n    ```python\n    x = [a](b)\n    ```\n\n    more [a](c)\n\nend\n   ```\n"


def test_every_document_is_a_page(pages: ModuleType) -> None:
    documents = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    documents |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "examples" / "notebooks").glob("*.ipynb")}
    listed = list(pages.sources(pages.navigation()))
    assert documents <= set(listed)
    assert len(listed) == len({pages.place(source) for source in listed})


@pytest.mark.parametrize("name", sorted(set(families()) - BASES))
def test_a_familys_page_links_paper_code_and_method(name: str, site: Path) -> None:
    if not families()[name].classes:  # recipes of other families
        pytest.skip("a family without models of its own")
    text = (site / "pages" / "families" / f"{name}.md").read_text()
    assert PAPER.search(text)
    assert CODE.search(text)
    method = re.search(r"\*\*The methods? in one file: \[\w+\.py\]\(([^)]+)\)", text)
    assert method is not None
    assert "```python" in (site / "pages" / "families" / method[1]).read_text()
    assert "## Settings" in text


def test_the_overview_has_every_family_that_has_a_plain_form() -> None:
    text = (ROOT / "docs" / "families.md").read_text()
    for plain in (ROOT / "src" / "mentalese" / "families").glob("*/plain.py"):
        assert f"families/{plain.parent.name}/plain.py" in text


def documented() -> list[str]:
    text = "\n".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    return re.findall(r"^::: (\S+)", text, re.MULTILINE)


def test_the_reference_has_all_that_is_public() -> None:
    assert {f"mentalese.{name}" for name in mentalese.__all__} <= set(documented())


@pytest.mark.parametrize("name", documented())
def test_what_the_reference_names_exists_and_is_documented(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    found = (
        importlib.import_module(name) if name in sys.modules else getattr(importlib.import_module(module), attribute)
    )
    assert found.__doc__


def test_the_site_loads_nothing_from_elsewhere() -> None:
    """No fonts of another server, no counts of stars, no analytics."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert config["theme"]["font"] is False
    assert not {"repo_url", "extra_javascript", "extra_css"} & set(config)
    assert config["strict"] is True


# -- notebooks ---------------------------------------------------------------------------------------------------------

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_output(path: Path) -> None:
    """`make notebooks` executes them; kept output would be of another version."""
    for cell in json.loads(path.read_text())["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        if cell["cell_type"] == "code":
            compile("".join(cell["source"]), path.name, "exec")


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ({"output_type": "stream", "name": "stdout", "text": ["a < b\n", "\n", "c"]}, "a &lt; b&#10;&#10;c"),
        ({"output_type": "execute_result", "data": {"text/plain": ["3"], "text/html": ["<b>\n3</b>"]}}, "<b> 3</b>"),
        ({"output_type": "display_data", "data": {"text/html": ['<p srcdoc="a\n\nb">']}}, "a&#10;&#10;b"),
    ],
)
def test_what_a_cell_showed_is_one_block(output: dict, shown: str, pages: ModuleType, tmp_path: Path) -> None:
    cell = {"cell_type": "code", "source": ["x = 1\n", "x"], "outputs": [output]}
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [cell]}))
    code, _, block = pages.notebook_text(tmp_path / "a.ipynb").partition("\n\n")
    assert code == "```python\nx = 1\nx\n```"
    assert shown in block
    assert "\n" not in block.rstrip("\n")
