"""Makes gallery.md and its pictures from trained runs: python docs/gallery.py RUN [RUN+OTHER] ...

A run is shown what it was tested on: the first long paragraph, or the first question with the most steps, of its test
split. Its page (`mentalese think`) is opened in Chromium and the panels are photographed; OTHER is a run to look at the
same text with.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import tempfile
import textwrap
from itertools import islice
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from mentalese import load
from mentalese.data.sources import open_source
from mentalese.evaluation.answer_rule import final_answer
from mentalese.models.checkpoints import saved_recipe
from mentalese.models.config import has_own_thoughts
from mentalese.viewer import think_page

HERE = Path(__file__).parent
PICTURES = HERE / "gallery"
LARGEST = 60_000  # bytes of a picture
COLOURS = 160
WIDTH, HEIGHT = 1000, 640  # pixels of the page, and of a picture at most
WORDS = 100  # of a text at most; its paragraph has 60% of them, or the most of those looked at
TRIED = 200

# The element that is pointed at in a panel for its picture, and the picture's caption.
PANELS = {
    "what-each-thought-reads": (
        ".links li >> nth=-1",
        "Sentences, and by the arcs how much each reads of those before",
    ),
    "streams-by-layer": (".streams circle.fork >> nth=24", "A column for each token: its streams, fork by fork"),
    "pass-by-pass": (None, "What the latents contain, read out pass by pass"),
    "chunks-and-their-codes": (".chunks li >> nth=3", "Chunks, and which of their codes were predicted"),
    "curves": (None, "Other measurements along the way"),
    "what-the-model-would-write": (None, "What the model would write"),
    "where-they-differ": (None, "The tokens that one model predicted better than the other"),
}


def text_for(run: str) -> tuple[str, str | None]:
    """Return a text from the test split of the run's source, and its answer if it is a question."""
    recipe = saved_recipe(run)
    if recipe is None:
        raise SystemExit(f"{run} contains no recipe: use the folder of a run")
    documents = open_source(recipe.data.source).documents("test")
    if recipe.layout.questions:
        question, *_, answer = max((d.segments for d in islice(documents, TRIED)), key=len)
        return question, final_answer(answer)
    paragraphs = (paragraph.strip("\n") for document in documents for paragraph in document.text.split("\n\n"))
    found = max(islice(paragraphs, TRIED), key=lambda paragraph: min(len(paragraph.split()), 0.6 * WORDS))
    found = "".join(re.findall(r"\s*\S+", found)[:WORDS])
    return found[: found.rfind(".") + 1] or found, None  # whole sentences


def photograph(page: Page, panel: str, pointed: str | None, path: Path) -> None:
    """Write a picture of a panel, small enough, with the pointer on an element."""
    if pointed:
        page.locator(pointed).hover()
    page.wait_for_timeout(300)  # bars move for a fifth of a second
    top, bottom = page.evaluate(
        "(id) => {const box = document.getElementById(id).getBoundingClientRect();"
        " return [box.top + scrollY, box.bottom + scrollY]}",
        panel,
    )
    clip = {"x": 0, "y": top - 20, "width": WIDTH, "height": min(bottom - top + 40, HEIGHT)}
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True, clip=clip))).convert("RGB")
    few = picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.convert("RGB").save(path, lossless=True, method=6)
    if path.stat().st_size > LARGEST:
        raise SystemExit(f"{path} is larger than {LARGEST} bytes: show fewer words")


def entry(browser: Browser, run: str, other: str | None) -> str:
    """Write pictures of a run's panels; return their section in Markdown."""
    saved, against, (text, answer) = load(run), load(other) if other else None, text_for(run)
    thinks = has_own_thoughts(saved.model.config)
    html = think_page(saved, text, against=against, answer=answer, influence=thinks)
    with tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8") as file:
        file.write(html)
        file.flush()
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1.25)
        page.goto(Path(file.name).as_uri())
        title, about = (page.locator(kind).inner_text() for kind in ("h1", ".lead"))
        if other:
            page.locator("header .choose input").last.check(force=True)
            about = page.locator("#where-they-differ .about").first.inner_text()
        name = re.sub(
            r"\W+", "-", title.removeprefix("What ").removesuffix(" thought").removesuffix(" on the same text")
        )
        lines = [f"## {title}", textwrap.fill(about, 120)]
        shown = [panel for panel in PANELS if page.locator(f"#{panel}").count()][:1]
        page.add_style_tag(content=".save{visibility:hidden}")
        for panel in (*shown, "text"):
            pointed, words = PANELS.get(panel, (".token >> nth=-12", "The text, token by token"))
            picture = PICTURES / f"{name}-{panel}.webp"
            photograph(page, panel, pointed, picture)
            lines.append(f"![{words}]({picture.relative_to(HERE)})")
        page.close()
    return "\n\n".join(lines)


def main(runs: list[str]) -> None:
    if not runs:
        raise SystemExit(__doc__)
    shutil.rmtree(PICTURES, ignore_errors=True)
    PICTURES.mkdir()
    with sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        entries = [entry(browser, *(run.split("+") if "+" in run else (run, None))) for run in runs]
        browser.close()
    (HERE / "gallery.md").write_text("\n\n".join([INTRODUCTION, *entries]) + "\n", encoding="utf-8")


INTRODUCTION = """# What models think: a gallery

Pages of `mentalese think` (`python docs/gallery.py RUN ...` makes these pictures again). SmolLM2 has adapters; the
other models are small. All were trained on a CPU, each on a task made for its kind of thought; the texts are from test
splits. `mentalese think models:thought_gestalt-recall --text "..."` writes such a page for a model of the package of
trained models, and `mentalese demo` trains five such models and writes their pages. The pages themselves are
interactive: pointing at a token, sentence, stream or chunk highlights what belongs to it in every panel.

Pictures show what a model computes, not that it helps: see [what is withdrawn](../results/README.md#withdrawn)."""


if __name__ == "__main__":
    main(sys.argv[1:])
