"""Lay out the site: `python docs/pages.py FOLDER [NOTEBOOKS]`.

Each page of the site is a file of the repository, so that every text has one source; here they get a place and a title,
and links between files become links between pages. FOLDER gets `pages/` and the `mkdocs.yml` that builds them.
NOTEBOOKS holds the notebooks as they were executed; without it they are shown without their output.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
FAMILIES = "src/mentalese/families"
METHOD = re.compile(r"\*\*The methods? in one file: \[(\w+\.py)\]")

NAV: dict[str, Any] = {
    "Start": "README.md",
    "Which model for what": "docs/faq.md",
    "Notebooks": {
        "Look at thoughts": "examples/notebooks/look_at_thoughts.ipynb",
        "Compare two models": "examples/notebooks/compare_two_models.ipynb",
        "Add a family": "examples/notebooks/add_a_family.ipynb",
    },
    "Families": {"Overview": "docs/families.md"},  # and a page for each folder of FAMILIES
    "Guides": {
        "Training": "docs/training.md",
        "What a run is": "docs/runs.md",
        "Evaluation": "docs/evaluation.md",
        "Evaluation protocol": "docs/protocol.md",
        "Compare honestly": "docs/comparing.md",
        "Tasks with known levels": "docs/tasks.md",
        "Hugging Face": "docs/hugging_face.md",
        "Serving": "docs/serving.md",
        "Reliability": "docs/reliability.md",
    },
    "Gallery": "docs/gallery.md",
    "Results": "results/README.md",
    "API": {
        "From Python": "docs/api/index.md",
        "Recipes": "docs/api/recipes.md",
        "Writing a family": "docs/api/families.md",
    },
    "Contribute": {
        "Contributing, a new family": "CONTRIBUTING.md",
        "Architecture": "docs/architecture.md",
        "Changelog": "CHANGELOG.md",
        "Security": "SECURITY.md",
        "Code of conduct": "CODE_OF_CONDUCT.md",
    },
}
COPIED = {".svg", ".webp", ".png", ".json"}
"""What pages show or refer to and the site therefore contains. Links to other files lead to the repository."""

_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2[ ]*$", re.MULTILINE | re.DOTALL)
_TARGET = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_NUMBERED = re.compile(r"\d+\. ")


def navigation() -> dict[str, Any]:
    """`NAV` with the families that there are: their pages, and the one file of each one's method."""
    found = dict(NAV["Families"])
    for readme in sorted((ROOT / FAMILIES).glob("*/README.md")):
        text = readme.read_text(encoding="utf-8")
        title = text.partition("\n")[0].removeprefix("# ")
        method = METHOD.search(text)
        about = readme.relative_to(ROOT).as_posix()
        found[title] = {title: about, method[1]: f"{about.removesuffix('README.md')}{method[1]}"} if method else about
    return NAV | {"Families": found}


def sources(nav: dict[str, Any]) -> Iterator[str]:
    """Yield the files of all pages, in the order of the navigation."""
    for entry in nav.values():
        if isinstance(entry, dict):
            yield from sources(entry)
        else:
            yield entry


def place(source: str) -> str:
    """Where a file's page is in the site."""
    path = Path(source)
    if source == "README.md":
        return "index.md"
    if source.startswith(FAMILIES):
        family = path.parent.name
        return f"families/{family}.md" if path.name == "README.md" else f"families/{family}-{path.stem}.md"
    if path.name == "README.md":
        return (path.parent / "index.md").as_posix()
    if path.suffix == ".ipynb":
        return f"notebooks/{path.stem}.md"
    return path.with_suffix(".md").as_posix().removeprefix("docs/").lower()


class Layout:
    """The pages of a site, written into a folder."""

    def __init__(self, folder: Path, notebooks: Path | None = None) -> None:
        self.folder, self.notebooks = folder, notebooks
        self.nav = navigation()
        self.places = {source: place(source) for source in sources(self.nav)}
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        self.repository, self.about = project["urls"]["Source"], project["description"]

    def write(self) -> None:
        """Write all pages, the files that they show, and `mkdocs.yml`."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for source, where in self.places.items():
            page = self.folder / "pages" / where
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(self.page(source), encoding="utf-8")
        config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
        config |= {"site_description": self.about, "nav": self._nav(self.nav)}
        config["extra"] = {
            "social": [{"icon": "fontawesome/brands/git-alt", "link": self.repository, "name": "Source"}]
        }
        config |= {"docs_dir": "pages", "site_dir": "html"}
        reference = config["plugins"][-1]["mkdocstrings"]
        reference["options"]["extensions"] = [str(ROOT / "docs" / "shared_names.py")]
        config["plugins"][-1]["mkdocstrings"] = {"handlers": {"python": {"paths": [str(ROOT / "src")], **reference}}}
        (self.folder / "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")

    def page(self, source: str) -> str:
        """Return the Markdown of a file's page."""
        if source.endswith(".py"):
            code = (ROOT / source).read_text(encoding="utf-8")
            family = (Path(source).parent / "README.md").as_posix()
            back = os.path.relpath(self.places[family], Path(self.places[source]).parent)
            title = source.removeprefix("src/")
            return f"# {title}\n\nThe method in one file: [about it]({back}).\n\n```python\n{code}```\n"
        if source.endswith(".ipynb"):
            text = notebook_text((self.notebooks or ROOT / Path(source).parent) / Path(source).name)
        else:
            text = (ROOT / source).read_text(encoding="utf-8")
        if source.startswith(FAMILIES):
            text += settings(Path(source).parent.name)
        return outside_code(text, partial(_TARGET.sub, lambda match: self.link(match[1], source)))

    def link(self, target: str, source: str) -> str:
        """Return a link of a file, as its page has it: to another page, to a copy, or to the repository."""
        if re.match(r"[a-z]+:|#", target):
            return target
        name, hash_, anchor = target.partition("#")
        path = Path(os.path.normpath(ROOT / Path(source).parent / name))
        if not path.exists() or ROOT not in path.parents:
            raise ValueError(f"{source} links to {target}: there is no such file in the repository")
        if (path / "README.md").exists():
            path /= "README.md"
        to, here = path.relative_to(ROOT).as_posix(), Path(self.places[source]).parent
        if to in self.places:
            return os.path.relpath(self.places[to], here).replace(os.sep, "/") + hash_ + anchor
        if path.suffix in COPIED:
            copy = self.folder / "pages" / place(to).removesuffix(".md")
            copy = copy.with_suffix(path.suffix)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            return os.path.relpath(copy, self.folder / "pages" / here).replace(os.sep, "/")
        return f"{self.repository}/blob/main/{to}{hash_}{anchor}"

    def _nav(self, nav: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {title: self._nav(entry) if isinstance(entry, dict) else self.places[entry]} for title, entry in nav.items()
        ]


def outside_code(text: str, change: Any) -> str:
    """Return the text, changed outside blocks of code, with numbered items indented as Python-Markdown wants them."""
    text, done, end = _four_spaces(text), [], 0
    for fence in _FENCE.finditer(text):
        done += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*done, change(text[end:])])


def _four_spaces(text: str) -> str:
    """Numbered items continue after three spaces in CommonMark, and after four in Python-Markdown."""
    lines, inside = [], False
    for line in text.split("\n"):
        if line and not line.startswith(" "):
            inside = bool(_NUMBERED.match(line))
        lines.append(f" {line}" if inside and line.startswith("   ") else line)
    return "\n".join(lines)


def settings(family: str) -> str:
    """Return the reference of the settings of a family's models."""
    classes = importlib.import_module(f"mentalese.families.{family}").FAMILY.classes.values()
    names = [config.replace(":", ".") for config, _ in classes]
    if not names:
        return ""
    return "\n## Settings\n\n" + "\n".join(f"::: {name}\n" for name in names)


# -- notebooks ---------------------------------------------------------------------------------------------------------


def notebook_text(path: Path) -> str:
    """Return a notebook as Markdown: its texts, its code, and what the code showed."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        content = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(content)
        else:
            parts.append(f"```python\n{content}\n```")
            parts += filter(None, map(_output, cell["outputs"]))
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    """Return what a cell showed: a page or a picture if there is one, else text."""
    if output["output_type"] == "stream":
        return "" if output["name"] == "stderr" else _plain("".join(output["text"]))
    data = output.get("data", {})
    if "text/html" in data:
        return f'<div class="output">{_one_line("".join(data["text/html"]))}</div>'
    if "image/svg+xml" in data:
        return f'<div class="output">{_one_line("".join(data["image/svg+xml"]))}</div>'
    return _plain("".join(data.get("text/plain", "")))


def _one_line(html: str) -> str:
    """HTML without blank lines, at which Markdown would end the block; line breaks in a page's own page are kept."""
    return html.replace("\n", "&#10;" if "srcdoc=" in html else " ")


def _plain(text: str) -> str:
    return f'<pre class="output"><code>{escape(text.rstrip()).replace(chr(10), "&#10;")}</code></pre>'


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    laid_out = Layout(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) == 3 else None)
    laid_out.write()
    print(f"{len(laid_out.places)} pages in {sys.argv[1]}")
