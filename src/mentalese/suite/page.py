"""The suite as one page: which part of the gap each family closes on each task, and every method compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mentalese.html import render


def suite_page(result: Mapping[str, Any]) -> str:
    """Return the page of `suite.json` as text."""
    methods = [method for task in result["tasks"] for method in task["methods"]]
    families = dict.fromkeys(
        method["family"] for role in ("mechanism", "other") for method in methods if method["role"] == role
    )
    return render("suite.html.j2", result=result, families=families, stands=stands)


def stands(method: Mapping[str, Any], methods: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a mechanism has a twin and a control and is better than all of them.

    Args:
        method, methods: one method and all methods of a task in `suite.json`.
    """
    tests = method.get("against", {})
    if not {"twin", "control"} <= {rival["role"] for rival in methods if rival["name"] in tests}:
        return False
    return all(test and test["conclusive"] and test["difference"] > 0 for test in tests.values())
