"""Published sets of questions by name: how their rows become records, and the rule of their answers.

ProsQA's files are rows of question, steps and answer, which `file:PATH` reads.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mentalese.data.config import AnswerRuleName
from mentalese.data.documents import Document, record
from mentalese.data.files import ROW_SUFFIXES, TEXT_SUFFIXES, ZIP, Columns
from mentalese.data.records import EQUATION, RowFormat, answer_text, list_of_texts, steps_of, with_cot

_DECIMALS = re.compile(r"(-?\d+)\.0*")
_OPTION = re.compile(r"\(?(?P<letter>[A-Z])[).:]\s*(?P<text>.*)", re.DOTALL)
_QUERY = re.compile(r"""\((['"])(?P<of>[^'"]+)\1, (['"])(?P<who>[^'"]+)\3\)""")


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


def _gsm8k(row: Columns) -> Document:
    steps, number = _solution(row["answer"])
    if not steps:
        raise ValueError("there is no solution before ####")
    return record(row["question"], steps, number)


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


def _svamp(row: Columns) -> Document:
    return record(f"{row['Body'].strip()} {row['Question'].strip()}", [], _number(row["Answer"]))


def _multiarith(row: Columns) -> Document:
    if "sQuestion" in row:
        [answer] = row["lSolutions"]
        return record(row["sQuestion"], [], _number(answer))
    return record(row["question"], [], _number(row["final_ans"]))


def _gsm_hard(row: Columns) -> Document:
    return record(row["input"], [], _number(row["target"]))


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


def _literal(text: str) -> Any:
    """Return the Python literal in a column."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError("the proof is not a list of rules") from error


def _clutrr(row: Columns) -> Document:
    """Read a story that names relatives in brackets (`[Ann] took her son [Bob] to [Carl], Bob's uncle.`).

    The query is a pair of relatives, and the target the relation of the second to the first. Steps are the rules of the
    proof, if there is one: `Ann father Bob, Bob sister Dora: Ann aunt Dora`; the last one is the query's.
    """
    story, pair = row["story"].strip(), _QUERY.fullmatch(row["query"].strip())
    if pair is None or not all(f"[{pair[name]}]" in story for name in ("of", "who")):
        raise ValueError(f"the query is {row['query']!r}, where two names of the story belong, ('Ann', 'Bob')")
    steps = []
    for rule in reversed(_literal(row.get("proof_state") or "[]")):
        [(found, known)] = rule.items()
        steps.append(f"{', '.join(map(' '.join, known))}: {' '.join(found)}")
    return record(f"{story} How is [{pair['who']}] related to [{pair['of']}]?", steps, row["target"])


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

    @classmethod
    def of(cls, title: str, rows: str, read: Callable[[Columns], Document], **settings: Any) -> PublishedSet:
        return cls("records", read, f"rows of {rows}, as {title} was published", **settings)


_AUG = "Deng et al., Implicit Chain of Thought Reasoning via Knowledge Distillation, 2023"
PUBLISHED: dict[str, PublishedSet] = {
    "clutrr": PublishedSet.of(
        "CLUTRR (Sinha et al., A Diagnostic Benchmark for Inductive Reasoning from Text, 2019)",
        "story, query, target and perhaps proof_state, in the zip of a task",
        _clutrr,
        answer_rule="text",
        kinds=(ZIP,),
    ),
    "commonsenseqa": PublishedSet.of(
        "CommonsenseQA (Talmor et al., 2019)",
        "question, choices and answerKey, or question, cot and answer",
        _commonsenseqa,
        answer_rule="choice",
        hidden=lambda row: not (row.get("answerKey") or row.get("answer")),
    ),
    "gsm8k": PublishedSet.of(
        "GSM8K (Cobbe et al., Training Verifiers to Solve Math Word Problems, 2021)",
        "question and answer, a solution in lines and, after ####, a number",
        _gsm8k,
    ),
    "gsm8k-aug": PublishedSet.of(
        f"GSM8K-Aug ({_AUG})",
        "question, steps or cot, and answer, or lines question||<<equation>> <<equation>> #### answer",
        _gsm8k_aug,
        kinds=(TEXT_SUFFIXES, ROW_SUFFIXES),
    ),
    "gsm8k-aug-nl": PublishedSet.of(f"GSM8K-Aug-NL ({_AUG})", "question, steps or cot, and answer", _gsm8k_aug),
    "gsm-hard": PublishedSet.of("GSM-Hard (Gao et al., PAL, 2022)", "input and target", _gsm_hard),
    "hotpotqa": PublishedSet.of(
        "HotpotQA (Yang et al., 2018)", "question, answer, context and supporting_facts", _hotpotqa, answer_rule="text"
    ),
    "multiarith": PublishedSet.of(
        "MultiArith (Roy and Roth, 2015)", "question and final_ans, or sQuestion and lSolutions", _multiarith
    ),
    "prontoqa": PublishedSet.of(
        "ProntoQA (Saparov and He, Language Models Are Greedy Reasoners, 2022)",
        "question, query, chain_of_thought and answer, or context, question, options and answer",
        _prontoqa,
        answer_rule="text",
    ),
    "svamp": PublishedSet.of("SVAMP (Patel et al., 2021)", "Body, Question and Answer", _svamp),
}
"""The sets that `data.source` names, NAME:PATH or NAME:hub:NAME."""
