"""HTML pages that need nothing else: one file, no network, and nothing in their data is ever run."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from typing import Any

# Colours of every page. c0 to c5 tell things apart after Okabe and Ito (2008), for colour-blind eyes too; `more` and
# `less` are the two ends of scales, blue and orange.
PALETTE = """
:root{color-scheme:light dark;--bg:#fff;--card:#f6f7f9;--ink:#16191d;--muted:#5d6673;--rule:#e2e5ea;--accent:#0072b2;
--c0:#4d5663;--c1:#0072b2;--c2:#d55e00;--c3:#00875f;--c4:#b4488f;--c5:#a87400;--more:#2a8fcd;--less:#e8853a}
@media screen and (prefers-color-scheme:dark){:root{--bg:#121418;--card:#1b1e24;--ink:#e8eaee;--muted:#9aa3b0;
--rule:#2d323a;--accent:#6bbcf0;--c0:#b6bfcb;--c1:#56b4e9;--c2:#ff8b4a;--c3:#2fc79b;--c4:#ea94c8;--c5:#e9bd3a;
--more:#1f7fbd;--less:#c2601a}}
"""


def page(title: str, *, style: str, body: str, script: str = "", data: Any = None) -> str:
    """A whole page.

    Its Content-Security-Policy refuses every request and every script but `script`, which is known by its hash and
    finds `data` as JSON in the element `data`.

    Args:
        title: as text.
        style: CSS, after `PALETTE`.
        body: HTML; what comes from users is escaped already.
        script: JavaScript, run when the body is there; none without one.
        data: anything that JSON can hold.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    scripts = f"script-src 'sha256-{digest}'; img-src data:; " if script else ""  # a picture that it draws itself
    policy = f"default-src 'none'; {scripts}style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    scripted = f'<script type="application/json" id="data">{as_json(data)}</script>\n<script>{script}</script>\n'
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(title)}</title>
<style>{PALETTE}{style}</style>
</head>
<body>
{body}
{scripted if script else ""}</body>
</html>
"""


def as_json(content: Any) -> str:
    """JSON that can stand inside a `<script>` element: no character of it can end the element or start a comment.

    Raises:
        ValueError: NaN or infinity, which JSON does not have.
    """
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))  # ASCII, so U+2028 and its like are escaped
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
