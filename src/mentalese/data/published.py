"""Published sets of questions by name, from local files or the Hugging Face hub, and the rule of their answers.

`reasoning.py` has the records of GSM8K, GSM8K-Aug, HotpotQA and CLUTRR. The others are:

- SVAMP (Patel et al., "Are NLP Models Really Able to Solve Simple Math Word Problems?", 2021): SVAMP.json, or
  hub:ChilleD/SVAMP; rows of Body, Question and Answer.
- MultiArith (Roy and Roth, "Solving General Arithmetic Word Problems", 2015): MultiArith.json, rows of sQuestion and
  lSolutions, or hub:ChilleD/MultiArith, rows of question and final_ans.
- GSM-Hard (Gao et al., "PAL: Program-aided Language Models", 2022): GSM8K with large numbers; gsmhardv2.jsonl, or
  hub:reasoning-machines/gsm-hard; rows of input and target.
- ProntoQA (Saparov and He, "Language Models Are Greedy Reasoners", 2022): what its generator writes, a JSON object of
  examples, each with a test_example; or rows of context, question, options and answer, as Logic-LM has them
  (hub:renma/ProntoQA).
- CommonsenseQA (Talmor et al., 2019): rows of question, choices and answerKey, as published or on the hub
  (hub:tau/commonsense_qa), or with written steps, rows of question, cot and answer (hub:zen-E/CommonsenseQA-GPT4omini).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mentalese.data.config import AnswerRuleName
from mentalese.data.documents import Document, Reader, answer_text, steps_of
from mentalese.data.files import ROW_SUFFIXES, Row, RowReader, open_text, row_reader, split_files
from mentalese.data.hub import hub_rows
from mentalese.data.reasoning import checked, clutrr, clutrr_files, gsm8k, gsm8k_aug, gsm8k_aug_files, hotpotqa
from mentalese.errors import InputError

Columns = dict[str, Any]

_DECIMALS = re.compile(r"(-?\d+)\.0*")
_OPTION = re.compile(r"\(?(?P<letter>[A-Z])[).:]\s*(?P<text>.*)", re.DOTALL)


def row_files(path: Path) -> dict[str, list[RowReader]]:
    """Find the files of rows of each split; a lone file is train."""
    return {split: [row_reader(file) for file in files] for split, files in split_files(path, ROW_SUFFIXES).items()}


@dataclass(frozen=True)
class PublishedSet:
    """A published set of questions.

    Attributes:
        record: turns a row into a record; its first argument is the row's place, for messages.
        answer_rule: the rule by which its answers are compared with right ones.
        columns: names of columns by which a row of the set is recognised, for messages.
        files: finds the readers of the rows of each split at a path.
        hidden: tells a row without an answer; a split that begins with one is left out.
    """

    record: Callable[[str, Columns], Document]
    answer_rule: AnswerRuleName
    columns: tuple[tuple[str, ...], ...] = ()
    files: Callable[[Path], dict[str, list[RowReader]]] = row_files
    hidden: Callable[[Columns], bool] | None = None

    def rows(self, place: str) -> dict[str, list[RowReader]]:
        """Readers of the rows of each split; `place` is a path, or `hub:NAME` as in `data.source`.

        Raises:
            InputError: nothing is there.
        """
        if place.startswith("hub:"):
            return {split: [rows] for split, rows in hub_rows(place, answers=True).items()}
        return self.files(Path(place).expanduser())

    def readers(self, spec: str, place: str) -> tuple[dict[str, Reader], tuple[str, ...]]:
        """Readers of the records of each split that has answers, and remarks on splits without.

        Raises:
            InputError: nothing is there, or no answer; reading raises it for a row that is not a question.
        """

        def read(parts: list[RowReader]) -> Iterator[Document]:
            for part in parts:
                for where, row in part():
                    yield self.record(where, row)

        rows = self.rows(place)
        hidden = [split for split, parts in rows.items() if self.hidden and _begins(parts, self.hidden)]
        if len(hidden) == len(rows):
            raise InputError(f"{spec} has no answers: use a split that was published with them")
        remarks = tuple(f"{spec}: {split} was published without answers and is left out" for split in hidden)
        return {split: partial(read, parts) for split, parts in rows.items() if split not in hidden}, remarks


def _begins(parts: list[RowReader], hidden: Callable[[Columns], bool]) -> bool:
    return any(hidden(row) for _, row in next(zip(parts[0](), strict=False), ()))


# -- numbers -----------------------------------------------------------------------------------------------------------


def _svamp(where: str, row: Columns) -> Document:
    body, question = row.get("Body"), row.get("Question")
    if not isinstance(body, str) or not isinstance(question, str):
        raise InputError(f"{where} is no question of SVAMP: use Body, Question and Answer as published")
    return checked(where, f"{body.strip()} {question.strip()}", [], _number(where, row.get("Answer")))


def _multiarith(where: str, row: Columns) -> Document:
    question, answer = row.get("question", row.get("sQuestion")), row.get("final_ans", row.get("lSolutions"))
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if not isinstance(question, str):
        raise InputError(
            f"{where} is no question of MultiArith: use question and final_ans, or sQuestion and lSolutions"
        )
    return checked(where, question, [], _number(where, answer))


def _gsm_hard(where: str, row: Columns) -> Document:
    question = row.get("input")
    if not isinstance(question, str):
        raise InputError(f"{where} is no question of GSM-Hard: use input and target as published")
    return checked(where, question, [], _number(where, row.get("target")))


def _number(where: str, answer: object) -> str:
    """A number as text, without the commas of thousands and needless decimals: 1,200.0 is 1200."""
    text = (answer_text(answer) or "").strip().replace(",", "")
    try:
        float(text)
    except ValueError:
        raise InputError(f"{where}: the answer is {answer!r}, not a number: repair or remove it") from None
    match = _DECIMALS.fullmatch(text)
    return match[1] if match else text


# -- true or false, and choices ----------------------------------------------------------------------------------------


def _prontoqa_files(path: Path) -> dict[str, list[RowReader]]:
    return {
        split: [partial(_prontoqa_rows, file) for file in files]
        for split, files in split_files(path, ROW_SUFFIXES).items()
    }


def _prontoqa_rows(path: Path) -> Iterator[Row]:
    """The test examples of what the generator writes, an object of examples; rows of other files."""
    if path.name.endswith((".json", ".json.gz")):
        with open_text(path) as file:
            generated = file.read(100).lstrip().startswith("{")
        if generated:
            yield from _generated(path)
            return
    yield from row_reader(path)()


def _generated(path: Path) -> Iterator[Row]:
    try:
        with open_text(path) as file:
            examples = json.load(file)
    except InputError:  # a ValueError too
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error}): repair it, or call it .jsonl if each line is a row") from error
    for name, example in examples.items():
        where = f"{path}, {name}"
        test = example.get("test_example") if isinstance(example, dict) else None
        if not isinstance(test, dict):
            raise InputError(f"{where} has no test_example: use a file as the generator of ProntoQA writes it")
        yield where, test


def _prontoqa(where: str, row: Columns) -> Document:
    if "context" in row:
        parts, steps = (row.get("context"), row.get("question")), row.get("explanation") or []
        answer = _option(row.get("options"), row.get("answer"))
    else:
        parts, steps = (row.get("question"), row.get("query")), row.get("chain_of_thought")
        answer = row.get("answer")
    texts = [*parts, answer, *(steps if isinstance(steps, list) else [None])]
    if not all(isinstance(text, str) for text in texts):
        raise InputError(
            f"{where} is no question of ProntoQA: use question, query, chain_of_thought and answer as its generator "
            "writes them (without --proofs-only), or context, question, options and answer"
        )
    return checked(where, " ".join(str(part).strip() for part in parts), list(steps), str(answer))


def _option(options: object, letter: object) -> str | None:
    """The text of an option, such as `True` of `A) True`."""
    for option in options if isinstance(options, list) else ():
        match = _OPTION.fullmatch(option) if isinstance(option, str) else None
        if match and match["letter"] == letter:
            return match["text"]
    return None


def _commonsenseqa(where: str, row: Columns) -> Document:
    question, choices = row.get("question"), row.get("choices")
    answer, cot = row.get("answerKey", row.get("answer")), row.get("cot", "")
    if isinstance(question, dict):  # as it was published
        choices, question = question.get("choices"), question.get("stem")
    if choices is not None:
        question = f"Question: {question} Choices: {' '.join(_choices(where, choices))}"
    if not isinstance(question, str) or not isinstance(answer, str) or not isinstance(cot, str):
        raise InputError(
            f"{where} is no question of CommonsenseQA: use question, choices and answerKey, or question, cot and answer"
        )
    return checked(where, question, steps_of(cot), answer)


def _choices(where: str, choices: object) -> list[str]:
    """`A: bank`, of a list of objects as it was published, or of a list of each as the hub has it."""
    try:
        if isinstance(choices, dict):
            pairs = list(zip(choices["label"], choices["text"], strict=True))
        else:
            pairs = [(choice["label"], choice["text"]) for choice in choices]  # type: ignore[attr-defined]
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{where}: choices must have a label and a text each: repair or remove it") from None
    return [f"{label}: {text}" for label, text in pairs]


def _no_answer(row: Columns) -> bool:
    return not (row.get("answerKey") or row.get("answer"))


PUBLISHED: dict[str, PublishedSet] = {
    "clutrr": PublishedSet(clutrr, "text", files=clutrr_files),
    "commonsenseqa": PublishedSet(
        _commonsenseqa, "choice", columns=(("question", "answerKey"), ("question", "choices")), hidden=_no_answer
    ),
    "gsm8k": PublishedSet(gsm8k, "number"),
    "gsm8k-aug": PublishedSet(gsm8k_aug, "number", files=gsm8k_aug_files),
    "gsm8k-aug-nl": PublishedSet(gsm8k_aug, "number"),
    "gsm-hard": PublishedSet(_gsm_hard, "number", columns=(("input", "code", "target"),)),
    "hotpotqa": PublishedSet(hotpotqa, "text", columns=(("question", "context", "supporting_facts"),)),
    "multiarith": PublishedSet(_multiarith, "number", columns=(("question", "final_ans"), ("sQuestion", "lSolutions"))),
    "prontoqa": PublishedSet(
        _prontoqa, "text", columns=(("context", "question", "options"), ("question", "query")), files=_prontoqa_files
    ),
    "svamp": PublishedSet(_svamp, "number", columns=(("Body", "Question", "Answer"),)),
}
"""The sets that `data.source` names, NAME:PATH or NAME:hub:NAME."""
