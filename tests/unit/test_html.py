"""Pages in one file: what users wrote stays text, and only the page's own script may run."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest

from mentalese.html import as_json, page

NASTY = "</script><script>alert(1)</script><!-- & \u2028 \u2029 😀 ü"


def test_json_in_a_page_cannot_end_its_element() -> None:
    text = as_json({"prompt": NASTY})
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"prompt": NASTY}


def test_what_json_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_json([float("nan")])


def test_a_page_lets_its_own_script_run_and_nothing_else_load() -> None:
    text = page("A & B", style="p{margin:0}", body="<p>", script="let a = '<';", data=[NASTY])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    digest = base64.b64encode(hashlib.sha256(b"let a = '<';").digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy[1]
    assert policy[1].startswith("default-src 'none';")
    assert "<title>A &amp; B</title>" in text
    assert text.count("<script") == 2


def test_a_page_without_a_script_allows_none() -> None:
    text = page("still", style="", body="<p>still</p>")
    assert "script" not in text
