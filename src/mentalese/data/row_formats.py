"""Formats of rows: the way in which rows of published sets, and of any other set, become documents.

ProsQA's files are rows of question, steps and answer, as any set may have them.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mentalese.data.config import AnswerRuleName
from mentalese.data.documents import Document, Kind, record
from mentalese.data.files import ROW_SUFFIXES, TEXT_SUFFIXES, ZIP, Columns, Row
from mentalese.errors import InputError, require

EQUATION = re.compile(r"<<[^<>]+>>")
_DECIMALS = re.compile(r"(-?\d+)\.0*")
_OPTION = re.compile(r"\(?(?P<letter>[A-Z])[).:]\s*(?P<text>.*)", re.DOTALL)
_QUERY = re.compile(r"""\((['"])(?P<of>[^'"]+)\1, (['"])(?P<who>[^'"]+)\3\)""")


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
    if isinstance(answer, float):
        if not math.isfinite(answer):
            raise TypeError(f"the answer is {answer}, which is not a finite number")
        answer = int(answer) if answer.is_integer() else answer
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


# -- published sets ----------------------------------------------------------------------------------------------------

_AUG = "Deng et al., Implicit Chain of Thought Reasoning via Knowledge Distillation, 2023"


@dataclass(frozen=True)
class PublishedSet(RowFormat):
    """A published set of questions.

    Attributes:
        answer_rule: the rule for the comparison of answers with right ones.
        kinds: endings of its files; only files of the first kind that occurs are read.
        hidden: test for a row without an answer; a split that begins with such a row is left out.
    """

    answer_rule: AnswerRuleName = "number"
    kinds: tuple[tuple[str, ...], ...] = (ROW_SUFFIXES,)
    hidden: Callable[[Columns], bool] | None = None


PUBLISHED: dict[str, PublishedSet] = {}
"""The sets that `data.source` names, NAME:PATH or NAME:hub:NAME."""
Read = Callable[[Columns], Document]


def _published(name: str, title: str, columns: str, **settings: Any) -> Callable[[Read], Read]:
    """Return a decorator of the function that reads the rows of a published set."""

    def register(read: Read) -> Read:
        use = f"rows of {columns}, as {title} was published"
        PUBLISHED[name] = PublishedSet("records", read, use, **settings)
        return read

    return register


def _number(answer: object) -> str:
    """Return a number as text, without the commas of thousands and needless decimals: 1,200.0 is 1200."""
    text = answer_text(answer).strip().replace(",", "")
    float(text)  # raises
    match = _DECIMALS.fullmatch(text)
    return match[1] if match else text


def _pairs(column: Any, *names: str) -> list[tuple[Any, Any]]:
    """Return pairs of a column: a list of pairs, or on the hub a list for each name."""
    if isinstance(column, dict):
        column = zip(*(column[name] for name in names), strict=True)
    return [(first, second) for first, second in column]


def _solution(answer: str) -> tuple[list[str], str]:
    """Split `lines #### number` into lines, and the number without commas."""
    lines, mark, number = answer.rpartition("####")
    if not mark:
        raise ValueError("the answer has no ####, after which the number belongs")
    return [line for line in lines.splitlines() if line.strip()], number.replace(",", "")


@_published(
    "gsm8k",
    "GSM8K (Cobbe et al., Training Verifiers to Solve Math Word Problems, 2021)",
    "question and answer, a solution in lines and, after ####, a number",
)
def _gsm8k(row: Columns) -> Document:
    steps, number = _solution(row["answer"])
    if not steps:
        raise ValueError("the solution before #### is missing")
    return record(row["question"], steps, number)


@_published(
    "gsm8k-aug",
    f"GSM8K-Aug ({_AUG})",
    "question, steps or cot, and answer, or lines question||<<equation>> <<equation>> #### answer",
    kinds=(TEXT_SUFFIXES, ROW_SUFFIXES),
)
@_published("gsm8k-aug-nl", f"GSM8K-Aug-NL ({_AUG})", "question, steps or cot, and answer")
def _gsm8k_aug(row: Columns) -> Document:
    """Read a row of the hub, or a published line, `question||<<48/2=24>> <<24+1=25>> #### 25`."""
    if "text" in row:
        question, _, answer = row["text"].partition("||")
        steps, number = _solution(answer)
        if EQUATION.sub("", "".join(steps)).strip():
            raise ValueError("there is more than equations before ####")
        return record(question, EQUATION.findall("".join(steps)), number)
    if row.get("steps") is None:
        steps = steps_of(row["cot"])
    else:
        steps = [step for step in list_of_texts(row["steps"]) if step.strip()]
    return record(row["question"], steps, answer_text(row["answer"]).replace(",", ""))


@_published("svamp", "SVAMP (Patel et al., 2021)", "Body, Question and Answer")
def _svamp(row: Columns) -> Document:
    return record(f"{row['Body'].strip()} {row['Question'].strip()}", [], _number(row["Answer"]))


@_published("multiarith", "MultiArith (Roy and Roth, 2015)", "question and final_ans, or sQuestion and lSolutions")
def _multiarith(row: Columns) -> Document:
    if "sQuestion" in row:
        [answer] = row["lSolutions"]
        return record(row["sQuestion"], [], _number(answer))
    return record(row["question"], [], _number(row["final_ans"]))


@_published("gsm-hard", "GSM-Hard (Gao et al., PAL, 2022)", "input and target")
def _gsm_hard(row: Columns) -> Document:
    return record(row["input"], [], _number(row["target"]))


@_published(
    "prontoqa",
    "ProntoQA (Saparov and He, Language Models Are Greedy Reasoners, 2022)",
    "question, query, chain_of_thought and answer, or context, question, options and answer",
    answer_rule="text",
)
def _prontoqa(row: Columns) -> Document:
    """Read an example of the generator's files, or a row of Logic-LM, whose options are such as `A) True`."""
    row = row.get("test_example", row)
    if "context" not in row:
        return record(
            f"{row['question'].strip()} {row['query'].strip()}", list_of_texts(row["chain_of_thought"]), row["answer"]
        )
    options = {
        match["letter"]: match["text"] for match in map(_OPTION.fullmatch, list_of_texts(row["options"])) if match
    }
    question = f"{row['context'].strip()} {row['question'].strip()}"
    return record(question, list_of_texts(row.get("explanation") or []), options[row["answer"]])


@_published(
    "commonsenseqa",
    "CommonsenseQA (Talmor et al., 2019)",
    "question, choices and answerKey, or question, cot and answer",
    answer_rule="choice",
    hidden=lambda row: not (row.get("answerKey") or row.get("answer")),
)
def _commonsenseqa(row: Columns) -> Document:
    """Read a row as it was published or as the hub has it, or with a cot."""
    if "cot" in row:
        return with_cot(row)
    question, choices = row["question"], row.get("choices")
    if isinstance(question, dict):
        question, choices = question["stem"], question["choices"]
    if isinstance(choices, list):
        choices = {name: [choice[name] for choice in choices] for name in ("label", "text")}
    listed = " ".join(": ".join(choice) for choice in _pairs(choices, "label", "text"))
    return record(" ".join(["Question:", question, "Choices:", listed]), [], row["answerKey"])


@_published(
    "hotpotqa", "HotpotQA (Yang et al., 2018)", "question, answer, context and supporting_facts", answer_rule="text"
)
def _hotpotqa(row: Columns) -> Document:
    """Read a question after the paragraphs that it needs; its steps are the sentences that it needs, if they exist."""
    facts = [(title, int(number)) for title, number in _pairs(row["supporting_facts"], "title", "sent_id")]
    paragraphs: dict[str, list[str]] = {}
    for title, sentences in _pairs(row["context"], "title", "sentences"):
        paragraph = [sentence.strip() for sentence in sentences]
        if paragraphs.setdefault(title, paragraph) != paragraph:  # facts name a paragraph by its title
            raise ValueError(f"two paragraphs are called {title!r}")
    needed = {title for title, _ in facts}
    steps = [paragraphs[title][number] for title, number in facts if 0 <= number < len(paragraphs.get(title, ()))]
    if not any(steps) or not needed <= paragraphs.keys() or not row["question"].strip():
        raise ValueError("the question is empty, or supporting facts are not in the context")
    context = [f"{title}: {' '.join(paragraph)}" for title, paragraph in paragraphs.items() if title in needed]
    return record(" ".join([*context, row["question"]]), filter(None, steps), row["answer"])


@_published(
    "clutrr",
    "CLUTRR (Sinha et al., A Diagnostic Benchmark for Inductive Reasoning from Text, 2019)",
    "story, query, target and perhaps proof_state, in the zip of a task",
    answer_rule="text",
    kinds=(ZIP,),
)
def _clutrr(row: Columns) -> Document:
    """Read a story that names relatives in brackets (`[Ann] took her son [Bob] to [Carl], Bob's uncle.`).

    The query is a pair of relatives, and the target the relation of the second to the first. Steps are the rules of the
    proof, if there is one: `Ann father Bob, Bob sister Dora: Ann aunt Dora`; the last one is the query's.
    """
    story, pair = row["story"].strip(), _QUERY.fullmatch(row["query"].strip())
    if pair is None or not all(f"[{pair[name]}]" in story for name in ("of", "who")):
        raise ValueError(f"the query is {row['query']!r}, where two names of the story belong, ('Ann', 'Bob')")
    try:
        proof: list[dict[tuple[str, ...], list[tuple[str, ...]]]] = ast.literal_eval(row.get("proof_state") or "[]")
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError("the proof is not a list of rules") from error
    steps = []
    for rule in reversed(proof):
        [(found, known)] = rule.items()
        steps.append(f"{', '.join(map(' '.join, known))}: {' '.join(found)}")
    return record(f"{story} How is [{pair['who']}] related to [{pair['of']}]?", steps, row["target"])


# -- other rows --------------------------------------------------------------------------------------------------------

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
    remark = f"{spec}: {name} are read as texts without a chat template, since not every row is one question with "
    remark += "an answer of one line"
    return RowFormat("text", lambda row: _as_text(turns(row)), _CHAT, remark=remark)


def _turns(messages: Iterable[dict[str, str]]) -> list[Turn]:
    """Return the turns of a chat, as `role` and `content` or, by ShareGPT, as `from` and `value`."""
    turns = [(turn["role"], turn["content"]) if "role" in turn else (turn["from"], turn["value"]) for turn in messages]
    if not turns or not all(isinstance(text, str) for turn in turns for text in turn):
        raise TypeError("a chat has messages, each with a role and a content, which are texts, not calls of tools")
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
