"""The mechanism suite: for each task the families that it tests, their twins without the mechanism, and controls.

`TASK/METHOD` is a method on a task, e.g. `recall/thought_gestalt`. Methods of a task share text, tokens, rows and
length. Learning rates are where tuning begins (`mentalese suite`).

    mechanism   the family with its thoughts
    twin        the same layers without them
    control     thoughts at the same cost, without their content (`thought_control`, pause tokens)
    other       models that are good at the task for another reason, such as all of the text in view
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mentalese.suite.methods import SuiteTask
from mentalese.suite.questions import composition, expressions, reachability
from mentalese.suite.texts import composed, concepts, gestalt_table, phrases, recall, text, text_thoughts, topics

_TABLES = {f"table2-{suffix}": partial(gestalt_table, suffix=suffix) for suffix in ("340k", "1.3m")}
_TEXTBOOKS = {"text": text, "text-thoughts": text_thoughts} | _TABLES
SUITE: dict[str, Callable[[float], SuiteTask]] = {
    made.__name__: made
    for made in (topics, recall, phrases, concepts, reachability, expressions, composition, composed)
}
"""By task; the argument is the size, 1 by default: it scales width, text and questions."""
SUITE |= _TEXTBOOKS

DEFAULT = tuple(name for name in SUITE if name not in ("phrases", *_TEXTBOOKS))
"""Tasks that run if none is named; the others read textbooks and take days on a CPU, or cannot show a gain (`phrases`,
whose place `concepts` takes)."""

RECIPES = [method.recipe for make in SUITE.values() for method in make(1.0).methods]
