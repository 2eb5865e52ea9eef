"""Formats of rows: columns of text, records, prompts with completions, and chats, told by a source's first rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from mentalese.data.documents import Document, Kind, answer_text, record, steps_of
from mentalese.data.files import Row
from mentalese.data.published import PUBLISHED
from mentalese.errors import InputError

_RECORD = ("question", "steps", "answer")
_LONG_TEXT = 100
FIRST_ROWS = 100
"""Rows of a source that tell its format."""
_SHOWN = 60  # characters of a cell or a name in a message
_LISTED = 15  # columns in a message
_SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}

Columns = dict[str, Any]


@dataclass(frozen=True)
class RowFormat:
    """The way in which rows become documents.

    Attributes:
        kind: texts or records.
        document: turns a row into a document; its first argument is the row's place, for messages.
        column: the column of text, if there is one.
        remark: a line about a format that a user may not expect.
    """

    kind: Kind
    document: Callable[[str, Columns], Document]
    column: str | None = None
    remark: str | None = None


def find_format(spec: str, every_row: Callable[[], Iterator[Row]], text_column: str | None) -> RowFormat:
    """Find out how the rows of a source become documents.

    Args:
        spec: the source's name, for messages.
        every_row: reads the rows of all splits, the training split first.
        text_column: `data.text_column`.

    Raises:
        InputError: no column is that of a text, or several may be; columns of records are missing.
    """
    rows = [row for _, row in islice(every_row(), FIRST_ROWS)]
    if not rows:
        raise InputError(f"{spec} is empty: use a file with text")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if text_column is not None:
        if text_column not in columns:
            raise InputError(f"data.text_column is {text_column!r}: {spec} has only {_listed(columns)}")
        return _chats_as_text(text_column) if _is_chat(rows[0].get(text_column)) else _column(text_column)
    if set(_RECORD) <= set(columns):
        return RowFormat("records", _record)
    if "text" in columns:
        return _column("text")
    if {"question", "cot", "answer"} <= set(columns):
        return RowFormat("records", _record_with_cot)
    if {"prompt", "completion"} <= set(columns):
        return _exchanges(spec, every_row, "prompt and completion", _prompt_and_completion)
    for name in ("messages", "conversations"):
        if _is_chat(rows[0].get(name)):
            return _exchanges(spec, every_row, name, partial(_chat, name))
    _check_questions(spec, rows[0], columns)
    return _column(_longest_text(spec, rows, columns))


# -- texts -------------------------------------------------------------------------------------------------------------


def _column(name: str) -> RowFormat:
    return RowFormat("text", lambda where, row: column_text(where, row, name), name)


def column_text(where: str, row: Columns, column: str) -> Document:
    """The text in a column; nothing is an empty text. Raises `InputError` for another type, or no such column."""
    if column not in row:
        raise InputError(f"{where} has no column {column!r} (it has {_listed(row)}): add it, or set data.text_column")
    value = row[column]
    if not isinstance(value, str | None):
        kind = type(value).__name__
        raise InputError(f"{where}: column {column!r} contains {kind}, not text: choose data.text_column")
    return Document(value or "")


def _longest_text(spec: str, rows: list[Columns], columns: list[str]) -> str:
    lengths = {
        name: [len(row[name]) for row in rows if isinstance(row.get(name), str)]
        for name in columns
        if all(isinstance(row.get(name), str | None) for row in rows)
    }
    strings = [name for name, found in lengths.items() if found]
    long = [name for name in strings if sum(lengths[name]) >= _LONG_TEXT * len(lengths[name])]
    for candidates in (strings, long):
        if len(candidates) == 1:
            return candidates[0]
    problem = "several columns may contain" if long or strings else "no column contains"
    raise InputError(
        f"{spec}: {problem} the text; name one by data.text_column (it has {_listed(columns)}), or use rows of "
        "question, steps and answer"
    )


# -- questions ---------------------------------------------------------------------------------------------------------


def _record(where: str, row: Columns) -> Document:
    missing = [name for name in _RECORD if row.get(name) is None]
    if missing:
        raise InputError(f"{where} is no record: it has {_listed(row)}, and {_missing(missing)}, e.g. {_example(row)}")
    question, steps, answer = row["question"], row["steps"], answer_text(row["answer"])
    texts = [question, answer, *(steps if isinstance(steps, list) else [None])]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise InputError(
            f"{where} is no record: question and answer must be texts and steps a list of texts, none of them empty, "
            f"e.g. {_example(row)}"
        )
    return record(question, steps, str(answer))


def _record_with_cot(where: str, row: Columns) -> Document:
    cot = row.get("cot")
    if not isinstance(cot, str):
        raise InputError(f"{where} is no record: cot, its steps, must be a text; it may be empty")
    own = {name: row[name] for name in ("question", "answer") if name in row}
    return _record(where, own | {"steps": steps_of(cot)})


def _missing(names: list[str]) -> str:
    if names == ["steps"]:
        return "there is no column 'steps': add it, the steps before the answer as a list, [] where there are none"
    return f"there is no column {', '.join(map(repr, names))}: add what is missing; steps may be []"


def _example(row: Columns) -> str:
    """A record in JSON, from what there is in a row."""
    lower = {name.lower(): value for name, value in row.items()}
    question = next((lower[name] for name in ("question", "prompt", "input") if isinstance(lower.get(name), str)), None)
    answer = next((text for name in ("answer", "final_ans", "target") if (text := answer_text(lower.get(name)))), None)
    steps = lower.get("steps")
    shown = [_short(step) for step in steps[:2] if isinstance(step, str)] if isinstance(steps, list) else []
    example = {"question": _short(question or "How many?"), "steps": shown, "answer": _short(answer or "4")}
    return json.dumps(example, ensure_ascii=False)


def _listed(columns: Iterable[str]) -> str:
    """Names of columns for a message, as many as one can read."""
    names = list(map(_short, columns))
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}.."


def _check_questions(spec: str, row: Columns, columns: list[str]) -> None:
    """Raises `InputError` for rows of questions that are no records, and names a set that has such columns."""
    names = [name for name, known in PUBLISHED.items() if any(set(own) <= set(columns) for own in known.columns)]
    if isinstance(answer := row.get("answer"), str) and "question" in row and "####" in answer:
        names = ["gsm8k"]
    asks = any(name.lower() == "question" for name in columns)
    if not asks and not names:
        return
    missing = [name for name in _RECORD if name not in columns]
    known = f"; for rows of a published set write {' or '.join(f'{name}:PATH' for name in names)}" if names else ""
    raise InputError(
        f"{spec} has questions (its columns are {_listed(columns)}), but {_missing(missing)}, e.g. {_example(row)}"
        f"{known}; to read one column as text, name it by data.text_column"
    )


# -- prompts and chats -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Turn:
    role: str
    text: str


def _exchanges(
    spec: str, every_row: Callable[[], Iterator[Row]], name: str, turns: Callable[[str, Columns], list[_Turn]]
) -> RowFormat:
    """Records if every row is one question and an answer that can be told from its steps, else texts."""
    if all(_as_record(turns(where, row)) is not None for where, row in every_row()):

        def document(where: str, row: Columns) -> Document:
            found = _as_record(turns(where, row))
            if found is None:
                raise InputError(f"{where} has changed while it was read: read it again")
            return found

        remark = f"{spec}: {name} are read as questions, steps (before ####, if there are some) and answers"
        return RowFormat("records", document, remark=remark)
    remark = f"{spec}: {name} are read as texts, since not every row is one question with an answer of one line"
    return RowFormat("text", lambda where, row: _as_text(turns(where, row)), remark=remark)


def _chats_as_text(column: str) -> RowFormat:
    return RowFormat("text", lambda where, row: _as_text(_chat(column, where, row)))


def _is_chat(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(turn, dict) and ({"role", "content"} <= set(turn) or {"from", "value"} <= set(turn))
            for turn in value
        )
    )


def _chat(column: str, where: str, row: Columns) -> list[_Turn]:
    return _turns(where, row.get(column))


def _turns(where: str, messages: object) -> list[_Turn]:
    """The turns of a chat, as `role` and `content` or, by ShareGPT, as `from` and `value`."""
    if not isinstance(messages, list) or not _is_chat(messages):
        raise InputError(f'{where} is no chat: use a list of messages, {{"role": "user", "content": "How many?"}}')
    turns = []
    for message in messages:
        role, text = (message["role"], message["content"]) if "role" in message else (message["from"], message["value"])
        if not isinstance(role, str) or not isinstance(text, str):
            raise InputError(f"{where} is no chat of texts: the role and content of each message must be texts")
        turns.append(_Turn(_SHAREGPT_ROLES.get(role, role), text))
    return turns


def _prompt_and_completion(where: str, row: Columns) -> list[_Turn]:
    prompt, completion = row.get("prompt"), row.get("completion")
    if isinstance(prompt, str) and isinstance(completion, str):
        return [_Turn("", prompt), _Turn("", completion)]
    if isinstance(prompt, list) and isinstance(completion, list):
        return _turns(where, [*prompt, *completion])
    raise InputError(f"{where}: prompt and completion must both be texts, or both lists of messages")


def _as_record(turns: list[_Turn]) -> Document | None:
    """A record: instructions and question, then an answer of one line or, after ####, the answer of a solution."""
    while len(turns) > 2 and turns[0].role == "system":
        first, second = turns[:2]
        turns = [_Turn(second.role, f"{first.text}\n{second.text}"), *turns[2:]]
    if len(turns) != 2 or [turn.role for turn in turns] not in (["user", "assistant"], ["", ""]):
        return None
    question, completion = (turn.text.strip() for turn in turns)
    solution, mark, answer = completion.rpartition("####")
    if not question or not answer.strip() or len(answer.strip().splitlines()) > 1:
        return None
    return record(question, steps_of(solution) if mark else [], answer)


def _as_text(turns: list[_Turn]) -> Document:
    """A chat with the role before each turn; a prompt and its completion as they follow each other."""
    if not any(turn.role for turn in turns):
        prompt, completion = (turn.text for turn in turns)
        apart = prompt[-1:].isspace() or completion[:1].isspace()
        return Document(f"{prompt}{'' if apart else chr(10)}{completion}")
    return Document("\n\n".join(f"{turn.role.capitalize()}: {turn.text.strip()}" for turn in turns))
