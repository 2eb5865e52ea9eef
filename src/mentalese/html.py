"""HTML pages that need nothing else: one file, no network, and nothing in their data is ever run."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Undefined
from markupsafe import Markup

from mentalese.formatting import method_name, score_text, scored_as, share_text, short_count, time_text

TEMPLATES = Path(__file__).parent / "templates"
PALETTE = (TEMPLATES / "palette.css").read_text(encoding="utf-8")


def render(template: str, *, script: str = "", data: object = None, **values: object) -> str:
    """Return a page as text.

    Its Content-Security-Policy refuses every request and every script but `script`, which is identified by its hash and
    reads `data` as JSON from the element `data`.

    Args:
        template: a file of `TEMPLATES` that extends `page.html.j2`.
        values: variables of the template; text in them is escaped.
    """
    policy = ["default-src 'none'", "style-src 'unsafe-inline'", "base-uri 'none'", "form-action 'none'"]
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy[1:1] = [f"script-src 'sha256-{digest}'", "img-src data:"]  # for pictures that the script draws
    fixed = {"script": script, "data": as_json(data), "policy": "; ".join(policy), "palette": PALETTE}
    trusted = {name: Markup(text) for name, text in fixed.items()}
    return _engine().get_template(template).render(**trusted, **values)


def page(title: str, *, style: str, body: str, script: str = "", data: object = None) -> str:
    """Return a page whose style sheet and body are written by hand; see `render`."""
    return render("page.html.j2", script=script, data=data, title=title, style=Markup(style), body=Markup(body))


def markdown(template: str, *, filters: Mapping[str, Callable[..., str]], **values: object) -> str:
    """Return a document of a template, whose variables are Markdown; `cell` makes one of them a table's cell."""
    engine = _engine().overlay(autoescape=False, undefined=Undefined)
    engine.filters = engine.filters | {"cell": lambda text: text.replace("|", "\\|")} | dict(filters)
    return engine.get_template(template).render(values)


@cache
def _engine() -> Environment:
    engine = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: list[Callable[..., str]] = [method_name, score_text, scored_as, share_text, short_count, time_text]
    engine.filters |= {function.__name__: function for function in filters}
    engine.filters["pretty"] = partial(json.dumps, indent=2)
    return engine


def as_json(content: object) -> str:
    """Return JSON without characters that end a `<script>` element or a comment; raise `ValueError` for NaN."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))  # ASCII, so U+2028 and its like are escaped
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
