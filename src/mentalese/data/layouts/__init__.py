"""Layouts: classes that turn documents into rows, batches and prompts. Families may add layouts."""

from __future__ import annotations

from mentalese.data.layouts.base import KINDS, Layout, RowLayout, Scored
from mentalese.data.layouts.qa import QuestionAnswer, QuestionRows
from mentalese.data.layouts.text import AsIs, Marked, Packed, PerDocument, SentenceStreams
from mentalese.errors import InputError, nearest
from mentalese.values import checked

__all__ = [
    "AsIs",
    "Layout",
    "Marked",
    "Packed",
    "PerDocument",
    "QuestionAnswer",
    "QuestionRows",
    "RowLayout",
    "Scored",
    "SentenceStreams",
    "layout_class",
    "layout_of",
]


def layout_class(kind: object) -> type[Layout]:
    """Return the layout of this kind, a built-in one or a family's; raises `InputError` with the nearest name."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"layout.kind is {kind!r}: use one of {', '.join(KINDS)}{nearest(kind, KINDS)}")
    return KINDS[kind]


def layout_of(fields: object) -> object:
    """Return the layout that `kind` and its fields describe; a layout is returned as it is."""
    if not isinstance(fields, dict):
        return fields
    options = {name: value for name, value in fields.items() if name != "kind"}
    return checked("layout", layout_class(fields.get("kind")), options, parse=True)
