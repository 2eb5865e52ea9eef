"""Rows of published sets of questions with solutions, as records of question, steps and answer.

- GSM8K (Cobbe et al., "Training Verifiers to Solve Math Word Problems", 2021): rows of question and answer, a solution
  in sentences and, after `####`, a number.
- GSM8K-Aug (Deng et al., "Implicit Chain of Thought Reasoning via Knowledge Distillation", 2023): lines
  `question||<<48/2=24>> <<48+24=72>> #### 72`.
- HotpotQA (Yang et al., "HotpotQA: A Dataset for Diverse, Explainable Multi-hop Question Answering", 2018): questions
  about two of ten paragraphs, and which of their sentences are needed.
- CLUTRR (Sinha et al., "CLUTRR: A Diagnostic Benchmark for Inductive Reasoning from Text", 2019): a story names
  relatives in brackets, `[Ann] took her son [Bob] to [Carl], Bob's uncle.`; a question asks how two of them are
  related, which follows from 2 to 10 relations in the story. A zip of CSV files for each task, `1.2,1.3_train.csv`
  (stories of 2 and 3 relations) to `1.10_test.csv`.

ProsQA's files are rows of question, steps and answer, which `file:PATH` reads.
"""

from __future__ import annotations

import csv
import io
import re
import zipfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from mentalese.data.documents import Document, answer_text, record, steps_of
from mentalese.data.files import ROW_SUFFIXES, TEXT_SUFFIXES, Row, RowReader, open_text, row_reader, split_files
from mentalese.errors import InputError

_EQUATION = re.compile(r"<<[^<>]+>>")
_QUERY = re.compile(r"""\((['"])(?P<of>[^'"]+)\1, (['"])(?P<who>[^'"]+)\3\)""")
_COLUMNS = ("story", "query", "target")
_REMEDY = "use the zip of a CLUTRR task, as it was published"


def gsm8k(where: str, row: dict[str, Any]) -> Document:
    """A record whose steps are the lines of the solution and whose answer is the number, without its commas."""
    question, answer = row.get("question"), row.get("answer")
    if not isinstance(question, str) or not isinstance(answer, str):
        raise InputError(f"{where} is no question of GSM8K: question and answer must be texts")
    solution, number = _solution(where, answer)
    steps = [line for line in solution.splitlines() if line.strip()]
    if not steps:
        raise InputError(f"{where}: there is no solution before ####: repair or remove it")
    return checked(where, question, steps, number)


def gsm8k_aug_files(path: Path) -> dict[str, list[RowReader]]:
    """Find files of lines as they were published or, where there are none, files of rows."""
    found = path.iterdir() if path.is_dir() else [path]
    if any(file.name.endswith(TEXT_SUFFIXES) for file in found):
        files = split_files(path, TEXT_SUFFIXES)
        return {split: [partial(_gsm8k_aug_rows, file) for file in parts] for split, parts in files.items()}
    return {split: [row_reader(file) for file in parts] for split, parts in split_files(path, ROW_SUFFIXES).items()}


def _gsm8k_aug_rows(path: Path) -> Iterator[Row]:
    """Lines as rows of question, steps (the equations, `<<48/2=24>>`) and answer, without the commas of numbers.

    About one published question in a hundred has no equations, and so no steps.
    """
    with open_text(path) as file:
        for i, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{path}, line {i}"
            question, bars, answer = line.partition("||")
            solution, number = _solution(where, answer)
            if not bars or _EQUATION.sub("", solution).strip():
                raise InputError(
                    f"{where} is no question of GSM8K-Aug: write question||<<equation>> <<equation>> #### answer"
                )
            yield where, {"question": question, "steps": _EQUATION.findall(solution), "answer": number}


def gsm8k_aug(where: str, row: dict[str, Any]) -> Document:
    """A record whose steps are a list, `steps`, or the equations, lines or sentences of a text, `cot`."""
    question, steps, answer = row.get("question"), row.get("steps"), answer_text(row.get("answer"))
    if steps is None and isinstance(cot := row.get("cot"), str):
        steps = steps_of(cot)
    texts = [question, answer, *(steps if isinstance(steps, list) else [None])]
    if not all(isinstance(text, str) for text in texts):
        raise InputError(
            f"{where} is no question of GSM8K-Aug: use question, steps (a list) or cot (a text), and answer"
        )
    return checked(where, str(question), [step for step in steps or () if step.strip()], str(answer).replace(",", ""))


def _solution(where: str, answer: str) -> tuple[str, str]:
    """The solution, and the number without commas."""
    solution, mark, number = answer.rpartition("####")
    if not mark:
        raise InputError(f"{where}: the answer has no ####, after which the number belongs: repair or remove it")
    return solution, number.replace(",", "")


def hotpotqa(where: str, row: dict[str, Any]) -> Document:
    """A record whose question follows the paragraphs it needs, and whose steps are the sentences it needs.

    Paragraphs are in the order of the context, sentences in the order of the supporting facts. A fact that points at no
    sentence of its paragraph, or at an empty one, is left out.
    """
    try:
        context = [
            (_text(title), [_text(sentence).strip() for sentence in sentences])
            for title, sentences in _pairs(row["context"], "sentences")
        ]
        facts = [(_text(title), int(number)) for title, number in _pairs(row["supporting_facts"], "sent_id")]
        question, answer = _text(row["question"]), _text(row["answer"])
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"{where} is no question of HotpotQA: use question, answer, context and supporting_facts as published"
        ) from None
    paragraphs = dict(context)
    for title, sentences in context:
        if paragraphs[title] != sentences:  # facts name a paragraph by its title
            raise InputError(f"{where}: two paragraphs are called {title!r}: rename one, or remove the question")
    for title, _ in facts:
        if title not in paragraphs:
            raise InputError(f"{where}: no paragraph is called {title!r}: use the distractor setting")
    needed = {title for title, _ in facts}
    told = [f"{title}: {' '.join(sentences)}" for title, sentences in paragraphs.items() if title in needed]
    steps = [paragraphs[title][number] for title, number in facts if 0 <= number < len(paragraphs[title])]
    if not any(steps):
        raise InputError(f"{where}: there are no supporting facts: repair or remove it")
    return checked(where, question, [step for step in steps if step], answer, before=told)


def _pairs(column: Any, second: str) -> list[tuple[Any, Any]]:
    """(title, value) of a column as it was published, a list of pairs, or as the hub has it, a list of each."""
    if isinstance(column, dict):
        column = zip(column["title"], column[second], strict=True)
    return [(title, value) for title, value in column]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is no text")
    return value


def checked(where: str, question: str, steps: list[str], answer: str, before: Iterable[str] = ()) -> Document:
    for name, text in (("question", question), ("answer", answer)):
        if not text.strip():
            raise InputError(f"{where}: the {name} is empty: repair or remove it")
    return record(" ".join([*before, question]), steps, answer)


def clutrr_files(path: Path) -> dict[str, list[RowReader]]:
    """Find the files in the zip, or in the only zip of a folder: all `*_train.csv` are train, all `*_test.csv` test."""
    if path.is_dir():
        found = sorted(path.glob("*.zip"))
        if len(found) != 1:
            raise InputError(f"{path} contains {len(found)} zip files: use the one of CLUTRR by its name")
        path = found[0]
    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(archive.namelist())
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: check data.source") from None
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"{path} is no readable zip ({error}): {_REMEDY}") from error
    files = {split: [name for name in names if name.endswith(f"_{split}.csv")] for split in ("train", "test")}
    for split, parts in files.items():
        if not parts:
            raise InputError(f"{path} contains no *_{split}.csv: {_REMEDY}")

    return {split: [partial(_csv_in_zip, path, name) for name in parts] for split, parts in files.items()}


def _csv_in_zip(path: Path, name: str) -> Iterator[Row]:
    file = f"{path}/{name}"
    try:
        with zipfile.ZipFile(path) as archive, archive.open(name) as binary:
            rows = csv.DictReader(io.TextIOWrapper(binary, "utf-8", newline=""), strict=True)
            missing = [column for column in _COLUMNS if column not in (rows.fieldnames or ())]
            if missing:
                raise InputError(f"{file} has no column {missing[0]!r}: {_REMEDY}")
            for row in rows:
                yield f"{file}, line {rows.line_num}", row
    except (csv.Error, UnicodeDecodeError, zipfile.BadZipFile) as error:
        raise InputError(f"{file} cannot be read ({error}): fetch the zip again") from error


def clutrr(where: str, row: dict[str, Any]) -> Document:
    """A record whose question is a story and `How is [B] related to [A]?`, and whose answer is the relation, `aunt`."""
    if not all(isinstance(row.get(column), str) for column in _COLUMNS):
        raise InputError(f"{where} is no question of CLUTRR: {_REMEDY}")
    story, query, target = (row[column].strip() for column in _COLUMNS)
    pair = _QUERY.fullmatch(query)
    if pair is None:
        raise InputError(
            f"{where}: the query is {query!r}, where two names belong, ('Ann', 'Bob'): repair or remove it"
        )
    for name in (pair["of"], pair["who"]):
        if f"[{name}]" not in story:
            raise InputError(f"{where}: the query asks about {name!r}, who is not in the story: repair or remove it")
    if not target:
        raise InputError(f"{where}: there is no target, the relation asked for: repair or remove it")
    return record(f"{story} How is [{pair['who']}] related to [{pair['of']}]?", [], target)
