"""Zero-shot questions from local files, asked through lm-eval: LAMBADA, BLiMP, and sets of questions with choices.

Thoughtbubbles (Table 1, appendix E) takes the choice whose whole text has the lowest perplexity; lm-eval takes the one
whose log-likelihood, summed over the choice, is the highest. These are different rankings, so both are given.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mentalese.data.sources import read_json_lines
from mentalese.errors import InputError
from mentalese.files import sha256

if TYPE_CHECKING:
    from mentalese.evaluate.lm import MentaleseLM

Row = dict[str, Any]


@dataclass(frozen=True)
class QuestionSet:
    """Where a set of questions lies, and what lm-eval is told of it.

    Attributes:
        files: a pattern inside the folder of all sets, for JSON lines, as they are or gzipped.
        fields: what every row has.
        config: lm-eval's task: names of fields, Jinja templates, or functions of a row.
        parts: of how many files the set is; the figures are means over the files, each of which counts the same.
        premise: what stands before a choice where perplexity ranks it; the context that lm-eval asks with unless given.
    """

    files: str
    fields: tuple[str, ...]
    config: dict[str, Any]
    parts: int = 1
    premise: Callable[[Row], str] | None = None


def _choices(context: Any, choices: Any, gold: Any, *metrics: str, delimiter: str = " ") -> dict[str, Any]:
    return {
        "output_type": "multiple_choice",
        "doc_to_text": context,
        "doc_to_choice": choices,
        "doc_to_target": gold,
        "target_delimiter": delimiter,
        "metric_list": [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in metrics],
    }


def _final_word(row: Row, results: list[tuple[float, bool]]) -> dict[str, float]:
    ((log_likelihood, greedy),) = results
    return {"acc": float(greedy), "nll": -log_likelihood}


_LAMBADA = {
    "output_type": "loglikelihood",
    "doc_to_text": lambda row: row["text"].rpartition(" ")[0],
    "doc_to_target": lambda row: " " + row["text"].rpartition(" ")[2],
    "process_results": _final_word,
    "metric_list": [
        {"metric": "acc", "aggregation": "mean", "higher_is_better": True},
        {"metric": "nll", "aggregation": "mean", "higher_is_better": False},
    ],
}
_ARC = _choices("query", "choices", "gold", "acc", "acc_norm")

SETS = {
    "lambada": QuestionSet("lambada*.jsonl*", ("text",), _LAMBADA),
    "hellaswag": QuestionSet(
        "hellaswag*.jsonl*", ("ctx", "endings", "label"), _choices("ctx", "endings", "label", "acc", "acc_norm")
    ),
    # A sentence opens its text, where lm-eval has a space before it. The index of the good one is 0.
    "blimp": QuestionSet(
        "blimp/*.jsonl*",
        ("sentence_good", "sentence_bad"),
        _choices("", lambda row: [row["sentence_good"], row["sentence_bad"]], 0, "acc", delimiter=""),
        parts=67,
    ),
    "piqa": QuestionSet(
        "piqa*.jsonl*",
        ("goal", "sol1", "sol2", "label"),
        _choices("Question: {{goal}}\nAnswer:", lambda row: [row["sol1"], row["sol2"]], "label", "acc", "acc_norm"),
        premise=lambda row: row["goal"],
    ),
    "arc_easy": QuestionSet("arc_easy*.jsonl*", ("query", "choices", "gold"), _ARC),
    "arc_challenge": QuestionSet("arc_challenge*.jsonl*", ("query", "choices", "gold"), _ARC),
    "sciq": QuestionSet(
        "sciq*.jsonl*",
        ("question", "distractor1", "distractor2", "distractor3", "correct_answer", "support"),
        _choices(
            "{{support.lstrip()}}\nQuestion: {{question}}\nAnswer:",
            lambda row: [row[f"distractor{i}"] for i in (1, 2, 3)] + [row["correct_answer"]],
            3,
            "acc",
            "acc_norm",
        ),
    ),
    # The choices stand before what is scored (Trinh and Le, 2018); lm-eval then has text and target swapped.
    "winogrande": QuestionSet(
        "winogrande*.jsonl*",
        ("sentence", "option1", "option2", "answer"),
        _choices(
            lambda row: int(row["answer"]) - 1,
            lambda row: [row["sentence"].partition("_")[0] + row[f"option{i}"] for i in (1, 2)],
            lambda row: row["sentence"].partition("_")[2].strip(),
            "acc",
        ),
    ),
}
"""What `mentalese eval --tasks` knows beside perplexity and probes."""


@dataclass(frozen=True)
class Questions:
    """A set that was read.

    Attributes:
        name: in `SETS`.
        parts: the rows of each file, by its name without endings.
        limit: the most rows that were read of a file.
        data_hash: of the files.
    """

    name: str
    parts: dict[str, list[Row]]
    limit: int | None
    data_hash: str = field(repr=False)


def read_questions(name: str, folder: Path | None, limit: int | None = None) -> Questions:
    """The questions of a set.

    Args:
        name: one of `SETS`.
        folder: holds the sets' files, see `QuestionSet.files`.
        limit: read the first so many of each file.

    Raises:
        InputError: no folder, no file of that name or several, files missing of a set of many, a row without a field,
            no row; or lm-eval is not installed.
    """
    questions = SETS[name]
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}: give at least 1, or leave it out for all questions")
    if folder is None:
        raise InputError(f"task {name!r} reads its questions from a folder: give it with --task-files FOLDER")
    try:
        import lm_eval  # noqa: F401
    except ImportError as error:
        raise InputError(f"task {name!r} needs lm-eval: install it with pip install 'mentalese[tasks]'") from error
    files = sorted(path for path in folder.glob(questions.files) if path.name.endswith((".jsonl", ".jsonl.gz")))
    if len(files) != questions.parts:
        found = ", ".join(path.name for path in files[:3]) + (", ..." if len(files) > 3 else "") or "none"
        needed = "one file" if questions.parts == 1 else f"{questions.parts} files"
        raise InputError(
            f"task {name!r} needs {needed} {questions.files.removesuffix('*')} or .jsonl.gz in {str(folder)!r}, and "
            f"there {'is' if len(files) == 1 else 'are'} {len(files)} ({found}): give the folder that holds just those"
        )
    parts = {path.name.partition(".jsonl")[0]: _rows(path, questions.fields, limit) for path in files}
    digests = "".join(sha256(path) for path in files)
    return Questions(name, parts, limit, hashlib.sha256(digests.encode()).hexdigest()[:16])


def _rows(path: Path, fields: tuple[str, ...], limit: int | None) -> list[Row]:
    rows = []
    for where, row in islice(read_json_lines(path), limit):
        for name in fields:
            if name not in row:
                raise InputError(f"{where} has no {name!r} (but {', '.join(row)}): give the set's own files")
        rows.append({name: row[name] for name in fields})
    if not rows:
        raise InputError(f"{path} has no questions: fetch it again")
    return rows


def zero_shot(lm: MentaleseLM, questions: Questions) -> dict[str, Any]:
    """What a model answers.

    Returns:
        Each figure with its standard error over questions, `NAME_stderr` (`None` for a single one):
        for sets with choices `acc_perplexity` (the share of questions whose right choice has, with what stands before
        it, the lowest perplexity), `acc` and `acc_norm` (lm-eval's: the highest log-likelihood of the choice, and that
        over its number of characters); for LAMBADA `acc` (each token of the final word is the likeliest one) and
        `perplexity` (of the final words, a word). Then `items`, `data_hash`, `protocol`, and for a set of many files
        `subsets`: the same of each.
    """
    from mentalese.evaluate.lm import ask

    about = SETS[questions.name]
    parts = ask(lm, {name: (rows, about.config, about.premise) for name, rows in questions.parts.items()})
    figures = _mean(list(parts.values()))
    if "nll" in figures:
        nll, error = figures.pop("nll"), figures.pop("nll_stderr")
        perplexity = math.exp(nll) if nll < 700 else math.inf
        # The delta method: a small error of the logarithm is the relative error of the figure.
        figures |= {"perplexity": perplexity, "perplexity_stderr": None if error is None else perplexity * error}
    result: dict[str, Any] = figures | {
        "items": sum(map(len, questions.parts.values())),
        "data_hash": questions.data_hash,
    }
    if len(parts) > 1:
        result["subsets"] = {name: part | {"items": len(questions.parts[name])} for name, part in parts.items()}
    return result | {"protocol": {"limit": questions.limit, **lm.protocol()}}


def _mean(parts: list[dict[str, float | None]]) -> dict[str, Any]:
    """The mean over parts of each figure, and its standard error where the parts are all there is."""
    found: dict[str, Any] = {}
    for name in parts[0]:
        values = [part[name] for part in parts]
        if not name.endswith("_stderr"):
            found[name] = sum(v for v in values if v is not None) / len(values)
        else:
            known = [v for v in values if v is not None]
            found[name] = math.hypot(*known) / len(values) if len(known) == len(values) else None
    return found
