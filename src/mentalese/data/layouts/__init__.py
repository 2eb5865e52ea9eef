"""Layouts: how documents become rows, batches and prompts. One class each; a family may bring its own.

    packed      `Packed` (documents joined and cut), `PerDocument` (rows within a document), `Marked` (sentence markers)
    sentences   `SentenceStreams` (whole sentences, read one after the other)
    qa          `QuestionAnswer` (question, steps, answer, perhaps with latents between them)

Families bring `qa_steps` (Coconut's `QuestionSteps`) and `qa_pairs` (CODI's `QuestionPairs`).

Importing them loads neither torch nor transformers, so that recipes can name them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from mentalese.data.layouts.base import Layout, RowLayout
from mentalese.data.layouts.packed import Marked, Packed, PerDocument
from mentalese.data.layouts.qa import QuestionAnswer
from mentalese.data.layouts.sentences import SentenceStreams
from mentalese.errors import InputError, nearest

__all__ = [
    "Layout",
    "Marked",
    "Packed",
    "PerDocument",
    "QuestionAnswer",
    "RowLayout",
    "SentenceStreams",
    "layout_class",
]

_BUILT_IN = {layout.kind: layout for layout in (Packed, PerDocument, Marked, SentenceStreams, QuestionAnswer)}

BROUGHT: list[Callable[[], dict[str, str]]] = []
"""Functions that return further layouts, kind -> `module:Class`; the registry adds one for all families."""


def layout_class(kind: Any) -> type[Layout]:
    """The layout of this kind, a built-in one or a family's.

    Raises:
        InputError: no layout has this kind.
    """
    if isinstance(kind, str) and kind in _BUILT_IN:
        return _BUILT_IN[kind]
    brought = {name: reference for more in BROUGHT for name, reference in more().items()}
    if not isinstance(kind, str) or kind not in brought:
        known = [*_BUILT_IN, *brought]
        raise InputError(f"layout.kind is {kind!r}: use one of {', '.join(known)}{nearest(str(kind), known)}")
    module, _, name = brought[kind].partition(":")
    return getattr(importlib.import_module(module), name)
