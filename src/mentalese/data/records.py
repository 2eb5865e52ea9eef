"""Rows of files and sets, and the way in which they become documents."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from mentalese.data.documents import Document, Kind, record
from mentalese.data.files import Columns
from mentalese.errors import InputError

EQUATION = re.compile(r"<<[^<>]+>>")


@dataclass(frozen=True)
class RowFormat:
    """The way in which rows become documents.

    Attributes:
        kind: texts or records.
        read: function from a row to a document; it raises `TypeError`, `ValueError` and the like for rows of another
            form.
        use: the alternative to such rows, for messages.
        column: the column of text, if there is one.
        remark: a line about a format that a user may not expect.
    """

    kind: Kind
    read: Callable[[Columns], Document]
    use: str
    column: str | None = None
    remark: str | None = None

    def document(self, where: str, row: Columns) -> Document:
        """Turn a row into a document; raise `InputError` with its place for a row of another form."""
        try:
            return self.read(row)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            fault = f"there is no {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(f"{where} is malformed ({fault}): use {self.use}") from error

    def reads(self, row: Columns) -> bool:
        try:
            return bool(self.document("", row))
        except InputError:
            return False


def with_steps(row: Columns) -> Document:
    """Read question, steps (a list) and answer."""
    return record(row["question"], list_of_texts(row["steps"]), answer_text(row["answer"]))


def with_cot(row: Columns) -> Document:
    """Read question, cot (a text) and answer."""
    return record(row["question"], steps_of(row["cot"]), answer_text(row["answer"]))


def list_of_texts(column: object) -> list[str]:
    if not isinstance(column, list):
        raise TypeError(f"there is {type(column).__name__} where a list of texts belongs")
    return column


def answer_text(answer: object) -> str:
    """Return an answer as text, a whole number without decimals (12.0 is 12)."""
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise TypeError(f"the answer is {answer!r}, neither text nor number")
    if isinstance(answer, float) and math.isfinite(answer) and answer.is_integer():
        answer = int(answer)
    return str(answer)


def steps_of(solution: str) -> list[str]:
    """Return the equations `<<..>>` of a solution of only these, else its lines, or the sentences of its only line."""
    equations = EQUATION.findall(solution)
    if equations and not EQUATION.sub("", solution).strip():
        return equations
    lines = [line.strip() for line in solution.splitlines() if line.strip()]
    if len(lines) != 1:
        return lines
    import sentencex

    return [sentence.strip() for sentence in sentencex.segment("en", lines[0]) if sentence.strip()]
