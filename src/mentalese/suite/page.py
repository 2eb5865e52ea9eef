"""The suite as one page: which part of the gap each family closes on each task, and every method compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mentalese.html import render
from mentalese.suite.judge import stands


def suite_page(result: Mapping[str, Any]) -> str:
    """Return the page of `suite.json` as text."""
    methods = [method for task in result["tasks"] for method in task["methods"]]
    families = dict.fromkeys(
        method["family"] for role in ("mechanism", "other") for method in methods if method["role"] == role
    )
    return render("suite.html.j2", result=result, families=families, stands=stands)
