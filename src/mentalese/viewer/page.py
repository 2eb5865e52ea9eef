"""A model's thoughts about a text, as one HTML page: its script draws a panel for each kind of data in a trace."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from mentalese import html
from mentalese.errors import InputError
from mentalese.models.saved import Saved
from mentalese.models.trace import ThoughtTrace
from mentalese.viewer.payload import payload

_LONGEST_PAGE = 2000  # tokens; a notebook shows a table of longer traces
_HERE = Path(__file__).parent
_SCRIPT = (
    "base", "save", "traces", "text", "sentences", "streams", "passes", "chunks", "readings", "curves", "gain", "page",
)  # fmt: skip
_BODY = """<main></main>
<noscript><main><h1>This page needs its script</h1><p>Allow scripts to see what the model thought; the page makes no
network requests.</p></main></noscript>"""


def page(content: Mapping[str, Any]) -> str:
    """Return the page of a result of `payload`: self-contained, no network, light and dark.

    Raises:
        ValueError: a number in it is NaN or infinite.
    """
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    parts = "".join((_HERE / "script" / f"{part}.js").read_text(encoding="utf-8") for part in _SCRIPT)
    script = f'"use strict";\n{{\n{parts}}}'  # in a block: nothing of it is global
    return html.page(content["title"], style=style, body=_BODY, script=script, data=content)


def notebook_page(trace: ThoughtTrace) -> str:
    """Return the page of a trace in a frame; a table if it is too long for a page, or its tokens have no text."""
    if not trace.tokens or len(trace.tokens) > _LONGEST_PAGE:
        return trace.to_pandas()._repr_html_()
    inside = escape(page(payload([trace])), quote=True)
    style = "width: 100%; height: 48rem; border: 0"
    return f'<iframe sandbox="allow-scripts allow-downloads" style="{style}" srcdoc="{inside}"></iframe>'


def think_page(
    saved: Saved,
    text: str,
    *,
    against: Saved | None = None,
    answer: str | None = None,
    influence: bool = False,
    patch: str | None = None,
    command: str = "",
    **options: Any,
) -> str:
    """Return the page of a model's thoughts about a text, next to another model's thoughts.

    Args:
        against: another model, which reads the text without `options`; or the same one under a `thought_control`, with
            them.
        answer: the right answer, if the text is a question: the page shows if the model's own is right.
        influence, patch: options of `Saved.think` for the first model, about its own thoughts.
        command: the command that made the page, shown on it.
        options: further options of `Saved.think`.

    Raises:
        InputError: `Saved.think` raises it; the message names the model. Or there is an `answer` without a question.
    """
    control = None
    readings = [(saved, options | {"influence": influence, "patch": patch})]
    if against is not None:
        control = getattr(against.model.config, "thought_control", None) if against.path == saved.path else None
        readings.append((against, options if control else {}))
    models = [model for model, _ in readings]
    if answer is not None and not any(model.answers for model in models):
        raise InputError(f"answer is {answer!r}, and {saved.path} does not answer questions: remove it")
    traces = []
    for model, own in readings:
        try:
            traces.append(model.think(text, **own))
        except InputError as error:
            raise InputError(f"{model.path}: {error}") from error
    return page(payload(traces, models=models, control=control, text=text, expected=answer, command=command))
