"""Pages in headless Chromium; what a page of ours says on the console or asks of a network fails its test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")  # of a module, not the session: playwright keeps an event loop running while it is open
def browser() -> Iterator[Browser]:
    """Chromium; without it tests are skipped with the reason, and fail where CI is `true`."""
    missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("needs playwright: pip install '.[test]'")
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        missing("needs Chromium: `make browser`, or a browser called " + " or ".join(CHROMIUM))
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page."""
    empty = browser.new_page()
    empty.set_default_timeout(10_000)
    yield empty
    empty.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens a page given as text, from a file, at `width` pixels; options are those of playwright's contexts."""
    contexts, said, asked = [], [], []

    def open_page(html: str, width: int = 1200, **options: Any) -> Page:
        file = tmp_path / f"page{len(contexts)}.html"
        file.write_text(html, encoding="utf-8")
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url) if request.url != file.as_uri() else None)
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == [], "the page's console"
    assert asked == [], "requests of the page"
