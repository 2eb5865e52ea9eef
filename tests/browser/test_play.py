"""In a browser: a reader types, sees the text grow and its thoughts appear, stops it, and meets no other reader."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mentalese import get_recipe
from mentalese.models.saved import load
from support import saved, shrink

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Gradio builds the settings when they are first shown, and one frame later sets them to their first values.
TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
PROMPT = "Anna has a <img src=x onerror=alert(1)> son & 'Paul'"


@pytest.fixture(scope="module")
def model(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained Thoughtbubbles, slow for its size: it reads its text anew for each token."""
    return saved(tmp_path_factory.mktemp("play") / "run", shrink(get_recipe("thoughtbubbles/tiny"), corpus))


@pytest.fixture(scope="module")
def address(model: Path) -> Iterator[str]:
    """Where `mentalese play` serves it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mentalese", "play", str(model), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        found = re.search(r"http://\S+", said)
        assert found, said + server.stdout.read()
        yield found[0]
        server.terminate()


@pytest.fixture
def reader(browser: Browser, address: str) -> Iterator[Callable[[], Page]]:
    """Opens the page for one more reader; it asks nothing of any other place and says nothing on the console."""
    contexts, said, asked = [], [], []

    def open_page() -> Page:
        contexts.append(browser.new_context())
        page = contexts[-1].new_page()
        page.set_default_timeout(120_000)  # a busy machine writes slowly
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address, wait_until="networkidle")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


def ask(page: Page, prompt: str, tokens: int, seed: int = 0) -> None:
    length, number = page.get_by_label("number input for New tokens"), page.get_by_label("Seed")
    if not number.is_visible():
        page.get_by_role("button", name="Settings and command").click()
        length.wait_for()
        number.wait_for()
        page.evaluate(TWO_FRAMES)
    page.get_by_label("Prompt").fill(prompt)
    length.fill(str(tokens))
    number.fill(str(seed))
    page.get_by_role("button", name="Write").click()


def finished(page: Page) -> None:
    """Waits until the text is over and its thoughts are there, which appear while it grows."""
    page.locator("iframe.thoughts").wait_for()
    page.locator("button:enabled", has_text="Write").wait_for()


def expected(model: Path, prompt: str, tokens: int, seed: int) -> str:
    """What `mentalese generate` writes at the temperature that the page starts with."""
    return load(model).generate(prompt, max_new_tokens=tokens, seed=seed, do_sample=True, temperature=0.8)[0]


def test_a_text_grows_and_its_thoughts_appear(reader: Callable[[], Page], model: Path) -> None:
    page = reader()
    ask(page, PROMPT, 12, seed=3)
    thoughts = page.frame_locator("iframe.thoughts")
    thoughts.get_by_role("heading", name="What thoughtbubbles/run thought").wait_for()
    finished(page)
    text = page.locator("section.text")
    assert text.locator(".given").text_content() == PROMPT
    assert text.text_content() == expected(model, PROMPT, 12, seed=3)
    assert text.locator("img").count() == thoughts.locator("img").count() == 0
    command = page.get_by_label("Equivalent command").input_value()
    assert command.endswith("--max-new-tokens 12 --temperature 0.8 --seed 3")


def test_thoughts_are_shown_while_the_text_grows(reader: Callable[[], Page]) -> None:
    page = reader()
    ask(page, "Anna has a son", 120)
    tokens = page.frame_locator("iframe.thoughts").locator(".token")
    tokens.first.wait_for()
    early = tokens.count()
    assert page.get_by_text("Writing").is_visible(), "the text is not over"
    page.evaluate("document.querySelector('iframe.thoughts').dataset.first = 'yes'")
    finished(page)
    tokens.nth(early).wait_for()
    assert page.locator("iframe.thoughts").get_attribute("data-first") == "yes", "the same frame, sent another payload"


def test_stop_keeps_the_text_so_far_and_shows_its_thoughts(reader: Callable[[], Page], model: Path) -> None:
    page = reader()
    ask(page, "Anna has a son", 120)
    page.get_by_text("Writing").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped.", exact=True).wait_for()
    finished(page)
    written, whole = page.locator("section.text").text_content(), expected(model, "Anna has a son", 120, seed=0)
    assert written is not None
    assert "Anna has a son" < written < whole
    assert whole.startswith(written)


def test_what_cannot_be_done_is_said_in_a_sentence(reader: Callable[[], Page]) -> None:
    page = reader()
    ask(page, "a b " * 300, 12)
    page.get_by_role("alert").get_by_text("the model's context is").wait_for()
    ask(page, "Anna", 4)  # and goes on
    page.locator("iframe.thoughts").wait_for()


def test_two_readers_each_get_their_own_text(reader: Callable[[], Page], model: Path) -> None:
    readers = [(reader(), f"Anna has {name}", seed) for seed, name in enumerate(("a son", "a daughter"))]
    for page, prompt, seed in readers:
        ask(page, prompt, 24, seed)
    for page, prompt, seed in readers:
        finished(page)
        assert page.locator("section.text").text_content() == expected(model, prompt, 24, seed)
