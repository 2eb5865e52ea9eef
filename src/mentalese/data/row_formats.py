"""Formats of the rows of any set, recognised by the first rows: a column of text, records, prompts or chats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from mentalese.data.documents import Document, record
from mentalese.data.files import Columns, Row
from mentalese.data.published import PUBLISHED
from mentalese.data.records import RowFormat, steps_of, with_cot, with_steps
from mentalese.errors import InputError, require

_LONG_TEXT = 100
FIRST_ROWS = 100
"""Number of rows by which the format of a source is recognised."""
_LISTED = 15  # columns in a message
_RECORD = ("question", "steps", "answer")
_EXAMPLE = 'rows such as {"question": "How many?", "steps": [], "answer": "4"}'
_CHAT = 'messages such as {"role": "user", "content": "How many?"}'
_SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}


def find_format(spec: str, every_row: Callable[[], Iterator[Row]], text_column: str | None) -> RowFormat:
    """Return the format of a source's rows by the first ones.

    Args:
        every_row: reads the rows of all splits, the training split first.

    Raises:
        InputError: the column of text is missing or ambiguous, or columns of records are missing.
    """
    rows = [row for _, row in islice(every_row(), FIRST_ROWS)]
    if not rows:
        raise InputError(f"{spec} is empty: use a source with text")
    columns = dict.fromkeys(name for row in rows for name in row)
    chats = [name for name in ("messages", "conversations") if isinstance(rows[0].get(name), list)]
    if text_column is not None:
        require(text_column in columns, "data.text_column", text_column, f"{spec} has only {_listed(columns)}")
        if isinstance(rows[0].get(text_column), list):
            return RowFormat("text", lambda row: _as_text(_turns(row[text_column])), _CHAT)
        return _text(text_column)
    if columns.keys() >= {*_RECORD}:
        return RowFormat("records", with_steps, _EXAMPLE)
    if "text" in columns:
        return _text("text")
    if columns.keys() >= {"question", "cot", "answer"}:
        return RowFormat("records", with_cot, "question, cot (its steps, which may be empty) and answer")
    if columns.keys() >= {"prompt", "completion"}:
        return _exchanges(spec, every_row, "prompt and completion", _prompt_and_completion)
    if chats:
        return _exchanges(spec, every_row, chats[0], lambda row: _turns(row[chats[0]]))
    _check_questions(spec, rows[0], columns)
    return _text(_longest_text(spec, rows, columns))


# -- texts -------------------------------------------------------------------------------------------------------------


def _text(column: str) -> RowFormat:
    def read(row: Columns) -> Document:
        text = row[column]
        if not isinstance(text, str | None):
            raise TypeError(f"column {column!r} contains {type(text).__name__}, not text")
        return Document(text or "")

    return RowFormat("text", read, "texts, or set data.text_column", column)


def _longest_text(spec: str, rows: list[Columns], columns: Iterable[str]) -> str:
    """Return the only column with strings, or else the only one with long strings."""
    lengths = {
        name: [len(row[name]) for row in rows if isinstance(row.get(name), str)]
        for name in columns
        if all(isinstance(row.get(name), str | None) for row in rows)
    }
    strings = [name for name, sizes in lengths.items() if sizes]
    long = [name for name in strings if sum(lengths[name]) >= _LONG_TEXT * len(lengths[name])]
    for candidates in (strings, long):
        if len(candidates) == 1:
            return candidates[0]
    problem = "several columns may contain" if strings else "no column contains"
    raise InputError(
        f"{spec}: {problem} the text; name one by data.text_column (it has {_listed(columns)}), or use rows of "
        f"question, steps and answer, e.g. {_EXAMPLE}"
    )


def _listed(columns: Iterable[str]) -> str:
    names = [name if len(name) <= 60 else f"{name[:60]}.." for name in columns]
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


def _check_questions(spec: str, row: Columns, columns: Iterable[str]) -> None:
    """Raise `InputError` for rows of questions that are not records, and name a published set with such rows."""
    asks = any(name.lower() in ("question", "squestion") for name in columns)
    if not asks and not {"input", "code", "target"} <= set(columns):
        return
    sets = [f"{name}:PATH" for name, published in PUBLISHED.items() if published.reads(row)]
    missing = ", ".join(repr(name) for name in _RECORD if name not in columns)
    advice = f"; for rows of a published set write {' or '.join(sets)}" if sets else ""
    raise InputError(
        f"{spec} has questions (its columns are {_listed(columns)}), but there is no column {missing}: use {_EXAMPLE}, "
        f"in which steps may be []{advice}; to read one column as text, name it by data.text_column"
    )


# -- prompts and chats -------------------------------------------------------------------------------------------------

Turn = tuple[str, str]
"""A role and a text; a prompt and its completion have no roles."""


def _exchanges(
    spec: str, every_row: Callable[[], Iterator[Row]], name: str, turns: Callable[[Columns], list[Turn]]
) -> RowFormat:
    """Return records if every row is one question and an answer that can be separated from its steps, else texts."""
    remark = f"{spec}: {name} are read as questions, steps (before ####, if there are some) and answers"
    records = RowFormat("records", lambda row: _as_record(turns(row)), _CHAT, remark=remark)
    if all(records.reads(row) for _, row in every_row()):
        return records
    remark = f"{spec}: {name} are read as texts, since not every row is one question with an answer of one line"
    return RowFormat("text", lambda row: _as_text(turns(row)), _CHAT, remark=remark)


def _turns(messages: Iterable[dict[str, str]]) -> list[Turn]:
    """Return the turns of a chat, as `role` and `content` or, by ShareGPT, as `from` and `value`."""
    turns = [(turn["role"], turn["content"]) if "role" in turn else (turn["from"], turn["value"]) for turn in messages]
    if not turns or not all(isinstance(text, str) for turn in turns for text in turn):
        raise TypeError("a chat has messages, each with a role and a content, which are texts")
    return [(_SHAREGPT_ROLES.get(role, role), text) for role, text in turns]


def _prompt_and_completion(row: Columns) -> list[Turn]:
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        return [("", prompt), ("", completion)]
    return _turns([*prompt, *completion])


def _as_record(turns: list[Turn]) -> Document:
    """Return a record of instructions and question, then an answer of one line or the answer after ####."""
    roles = [role for role, _ in turns]
    *before, completion = (text.strip() for _, text in turns)
    question = "\n".join(before)
    solution, mark, answer = completion.rpartition("####")
    asks = roles in (["", ""], ["system"] * (len(roles) - 2) + ["user", "assistant"])
    if not asks or len(answer.strip().splitlines()) != 1:
        raise ValueError("it is not one question with an answer of one line")
    return record(question, steps_of(solution) if mark else [], answer)


def _as_text(turns: list[Turn]) -> Document:
    """Return a chat with the role before each turn; a prompt and its completion as they follow each other."""
    if any(role for role, _ in turns):
        return Document("\n\n".join(f"{role.capitalize()}: {text.strip()}" for role, text in turns))
    (_, prompt), (_, completion) = turns
    apart = prompt[-1:].isspace() or completion[:1].isspace()
    return Document(f"{prompt}{'' if apart else chr(10)}{completion}")
