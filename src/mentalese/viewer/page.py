"""A model's thoughts about a text, as one HTML page: its script draws a panel for each kind of data in a trace."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from mentalese import html
from mentalese.models.trace import ThoughtTrace
from mentalese.viewer.payload import payload as drawn

_LONGEST_PAGE = 2000  # tokens; a notebook shows a table of longer traces
_HERE = Path(__file__).parent
_SCRIPT = (
    "base", "save", "traces", "text", "sentences", "streams", "passes", "chunks", "readings", "curves", "gain", "page",
)  # fmt: skip
_BODY = """<main></main>
<noscript><main><h1>This page needs its script</h1><p>Allow scripts to see what the model thought; the page makes no
network requests.</p></main></noscript>"""


def page(payload: dict[str, Any]) -> str:
    """Return the page of a `payload`: self-contained, no network, light and dark.

    Raises:
        ValueError: a number in it is NaN or infinite.
    """
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    parts = "".join((_HERE / "script" / f"{part}.js").read_text(encoding="utf-8") for part in _SCRIPT)
    script = f'"use strict";\n{{\n{parts}}}'  # in a block: nothing of it is global
    return html.page(payload["title"], style=style, body=_BODY, script=script, data=payload)


def notebook_page(trace: ThoughtTrace) -> str:
    """Return the page of a trace in a frame; a table if it is too long for a page, or its tokens have no text."""
    if not trace.tokens or len(trace.tokens) > _LONGEST_PAGE:
        return trace.to_pandas()._repr_html_()
    inside = escape(page(drawn([trace])), quote=True)
    style = "width: 100%; height: 48rem; border: 0"
    return f'<iframe sandbox="allow-scripts allow-downloads" style="{style}" srcdoc="{inside}"></iframe>'
