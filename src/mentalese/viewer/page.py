"""What a model thought about a text, as one HTML page: its script draws a panel for each kind of data in a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mentalese import html
from mentalese.models.trace import ThoughtTrace
from mentalese.viewer.payload import payload as drawn

_HERE = Path(__file__).parent
_SCRIPT = (
    "base", "save", "traces", "text", "sentences", "streams", "passes", "chunks", "readings", "curves", "gain", "page",
)  # fmt: skip
_BODY = """<main></main>
<noscript><main><h1>This page needs its script</h1><p>Allow scripts to see what the model thought; the page makes no
network requests.</p></main></noscript>"""


def page(payload: dict[str, Any]) -> str:
    """The page of a `payload`: self-contained, no network, light and dark.

    Raises:
        ValueError: a number in it is NaN or infinite.
    """
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    parts = "".join((_HERE / "script" / f"{part}.js").read_text(encoding="utf-8") for part in _SCRIPT)
    script = f'"use strict";\n{{\n{parts}}}'  # in a block: nothing of it is global
    return html.page(payload["title"], style=style, body=_BODY, script=script, data=payload)


def trace_page(trace: ThoughtTrace) -> str:
    """The page of one trace whose tokens have text."""
    return page(drawn([trace]))
