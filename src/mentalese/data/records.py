"""Records of questions: conversion of their columns, and errors of rows that are not records."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

from mentalese.data.documents import Document, record
from mentalese.data.files import Columns
from mentalese.errors import InputError

EQUATION = re.compile(r"<<[^<>]+>>")

T = TypeVar("T")


def read_row(where: str, row: Columns, read: Callable[[Columns], T], use: str) -> T:
    """Read a row; raise `InputError` with its place, the fault and the remedy if it has another form."""
    try:
        return read(row)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        fault = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{where} is malformed ({fault}): use {use}") from error


def with_steps(row: Columns) -> Document:
    """Read question, steps (a list) and answer."""
    return record(row["question"], list_of_texts(row["steps"]), answer_text(row["answer"]))


def with_cot(row: Columns) -> Document:
    """Read question, cot (a text) and answer."""
    return record(row["question"], steps_of(row["cot"]), answer_text(row["answer"]))


def list_of_texts(column: Any) -> list[str]:
    """Return a column as it is; raise `TypeError` if it is not a list."""
    if not isinstance(column, list):
        raise TypeError(f"there is {type(column).__name__} where a list of texts belongs")
    return column


def answer_text(answer: Any) -> str:
    """Return an answer as text, a whole number without decimals (12.0 is 12)."""
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise TypeError(f"the answer is {answer!r}, neither text nor number")
    if isinstance(answer, float) and math.isfinite(answer) and answer.is_integer():
        answer = int(answer)
    return str(answer)


def steps_of(solution: str) -> list[str]:
    """Return the steps of a written solution.

    They are its equations `<<..>>` if it has only these, else its lines, or the sentences of its only line.
    """
    equations = EQUATION.findall(solution)
    if equations and not EQUATION.sub("", solution).strip():
        return equations
    lines = [line.strip() for line in solution.splitlines() if line.strip()]
    if len(lines) != 1:
        return lines
    import sentencex

    return [sentence.strip() for sentence in sentencex.segment("en", lines[0]) if sentence.strip()]
