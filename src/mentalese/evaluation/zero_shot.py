"""Zero-shot questions asked through lm-eval: from local files as lm-eval has them, or lm-eval's own from the hub.

Thoughtbubbles (Table 1, appendix E) takes the choice whose whole text has the lowest perplexity; lm-eval takes the one
whose log-likelihood, summed over the choice, is the highest. These are different rankings, so both are reported.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mentalese.data.files import open_text, read_json_lines
from mentalese.data.plain_text import join_lines
from mentalese.errors import InputError, nearest
from mentalese.evaluation.options import EvaluationOptions, HubOptions, TaskOptions
from mentalese.files import sha256
from mentalese.install import install_command
from mentalese.models.saved import Saved
from mentalese.network import hub_or_cache

if TYPE_CHECKING:
    from mentalese.evaluation.harness import MentaleseLM

Row = dict[str, Any]

HUB = "hub:"
"""What the name of a task of lm-eval begins with."""


# -- how files are read ------------------------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[tuple[str, Row]]:
    """One text per line."""
    with open_text(path) as file:
        for i, line in enumerate(file, 1):
            if line.strip():
                yield f"{path}, line {i}", {"text": line.rstrip()}


def _articles(path: Path) -> Iterator[tuple[str, Row]]:
    """The articles of WikiText, which begin at level-one headings."""
    with open_text(path) as file:
        for i, document in enumerate(join_lines(file), 1):
            yield f"{path}, article {i}", {"page": document.text}


def _hellaswag(path: Path) -> Iterator[tuple[str, Row]]:
    """Published rows as lm-eval asks them; rows without `ctx_a` are already in that form."""
    for where, row in read_json_lines(path):
        if "ctx_a" in row:
            from lm_eval.tasks.hellaswag.utils import preprocess

            context = preprocess(f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}")
            row = {"ctx": context, "endings": [preprocess(end) for end in row["endings"]], "label": row["label"]}
        yield where, row


# -- the sets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QuestionSet:
    """The files of a set of questions, and its task for lm-eval.

    Attributes:
        files: a pattern inside the folder of all sets; files may be gzipped.
        fields: what every row has.
        config: lm-eval's task: names of fields, Jinja templates, or functions of a row.
        parts: the number of files; the metrics are means over the files, each of which counts the same.
        premise: what comes before a choice when perplexity ranks it; `None`: the context that lm-eval asks with.
        read: the rows of a file, each with its place for messages.
        label: the field that says which choice is right, counted from `first`.
        choices: the field of a list of choices; `None`: there are two.
        may_be_empty: fields of text that may have none.
    """

    files: str
    fields: tuple[str, ...]
    config: dict[str, Any]
    parts: int = 1
    premise: Callable[[Row], str] | None = None
    read: Callable[[Path], Iterator[tuple[str, Row]]] = read_json_lines
    label: str | None = None
    choices: str | None = None
    first: int = 0
    may_be_empty: tuple[str, ...] = ()


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


def _running(row: Row) -> str:
    """An article as lm-eval's detokenizer returns it."""
    from lm_eval.tasks.wikitext.preprocess_wikitext import wikitext_detokenizer

    return wikitext_detokenizer(row)


def _by_size(row: Row, results: tuple[float]) -> dict[str, tuple[float, int]]:
    """Words and bytes are those of the article as it was published."""
    words, size = len(re.split(r"\s+", row["page"])), len(row["page"].encode())
    names = {"word_perplexity": words, "byte_perplexity": size, "bits_per_byte": size}
    return {name: (*results, count) for name, count in names.items()}


_WIKITEXT = {
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": _running,
    "process_results": _by_size,
    "metric_list": [
        {"metric": name, "aggregation": aggregation, "higher_is_better": False}
        for name, aggregation in (
            ("word_perplexity", "weighted_perplexity"),
            ("byte_perplexity", "weighted_perplexity"),
            ("bits_per_byte", "bits_per_byte"),
        )
    ],
}
_ARC = _choices("query", "choices", "gold", "acc", "acc_norm")

SETS = {
    "lambada_openai": QuestionSet("lambada*.jsonl", ("text",), _LAMBADA),
    "lambada_standard": QuestionSet("lambada*.txt", ("text",), _LAMBADA, read=_lines),
    "wikitext": QuestionSet("wikitext*/test.txt", ("page",), _WIKITEXT, read=_articles),
    "hellaswag": QuestionSet(
        "hellaswag*.jsonl",
        ("ctx", "endings", "label"),
        _choices("ctx", "endings", "label", "acc", "acc_norm"),
        read=_hellaswag,
        label="label",
        choices="endings",
    ),
    # A sentence starts its text, whereas lm-eval puts a space before it. The index of the good one is 0.
    "blimp": QuestionSet(
        "blimp/*.jsonl",
        ("sentence_good", "sentence_bad"),
        _choices("", lambda row: [row["sentence_good"], row["sentence_bad"]], 0, "acc", delimiter=""),
        parts=67,
    ),
    "piqa": QuestionSet(
        "piqa*.jsonl",
        ("goal", "sol1", "sol2", "label"),
        _choices("Question: {{goal}}\nAnswer:", lambda row: [row["sol1"], row["sol2"]], "label", "acc", "acc_norm"),
        premise=lambda row: row["goal"],
        label="label",
    ),
    "arc_easy": QuestionSet("arc_easy*.jsonl", ("query", "choices", "gold"), _ARC, label="gold", choices="choices"),
    "arc_challenge": QuestionSet(
        "arc_challenge*.jsonl", ("query", "choices", "gold"), _ARC, label="gold", choices="choices"
    ),
    "sciq": QuestionSet(
        "sciq*.jsonl",
        ("question", "distractor1", "distractor2", "distractor3", "correct_answer", "support"),
        _choices(
            "{{support.lstrip()}}\nQuestion: {{question}}\nAnswer:",
            lambda row: [row[f"distractor{i}"] for i in (1, 2, 3)] + [row["correct_answer"]],
            3,
            "acc",
            "acc_norm",
        ),
        may_be_empty=("support",),
    ),
    # The choices come before what is scored (Trinh and Le, 2018); lm-eval then has text and target swapped.
    "winogrande": QuestionSet(
        "winogrande*.jsonl",
        ("sentence", "option1", "option2", "answer"),
        _choices(
            lambda row: row["answer"] - 1,
            lambda row: [row["sentence"].partition("_")[0] + row[f"option{i}"] for i in (1, 2)],
            lambda row: row["sentence"].partition("_")[2].strip(),
            "acc",
        ),
        label="answer",
        first=1,
    ),
}
"""What `mentalese eval --tasks` reads from `--task-files`, by lm-eval's names."""


@dataclass(frozen=True)
class Questions:
    """A set that was read.

    Attributes:
        name: in `SETS`.
        parts: the rows of each file, by its name without endings.
        limit: the most rows that were read from each file.
        data_hash: of the files.
    """

    name: str
    parts: dict[str, list[Row]]
    limit: int | None
    data_hash: str = field(repr=False)


def read(name: str, options: EvaluationOptions) -> Questions | HubTask:
    """The questions of a task: one of `SETS`, or `hub:NAME`. Raises what `read_questions` and `read_hub_task` do."""
    if name.startswith(HUB):
        return read_hub_task(name.removeprefix(HUB), options)
    return read_questions(name, options)


def run(saved: Saved, asked: Questions | HubTask, *, show: bool = False) -> dict[str, Any]:
    """A model's results on questions that were read, see `zero_shot` and `hub_task`.

    Raises:
        InputError: a model of questions, a tokenizer without markers, or what `hub_task` raises.
    """
    from mentalese.evaluation.harness import MentaleseLM

    lm = MentaleseLM(saved, show=show)
    return hub_task(lm, asked) if isinstance(asked, HubTask) else zero_shot(lm, asked)


def read_questions(name: str, options: TaskOptions) -> Questions:
    """The questions of a set.

    Args:
        name: one of `SETS`.
        options: the folder of the sets' files, see `QuestionSet.files`, and how many rows of each are read.

    Raises:
        InputError: no folder, no file of that name or several, some of a set's many files are missing, a row without a
            field, or no row; or lm-eval is not installed.
    """
    folder = options.task_files
    questions = SETS[name]
    if folder is None:
        raise InputError(
            f"task {name!r} reads its questions from a folder: set --task-files FOLDER, or use {HUB}{name}"
        )
    _check_installed(name)
    files = sorted([*folder.glob(questions.files), *folder.glob(f"{questions.files}.gz")])
    if len(files) != questions.parts:
        names = ", ".join(path.name for path in files[:3]) + (", ..." if len(files) > 3 else "") or "none"
        needed = "one file" if questions.parts == 1 else f"{questions.parts} files"
        raise InputError(
            f"task {name!r} needs {needed} {questions.files} or {questions.files}.gz in {str(folder)!r}, and there "
            f"{'is' if len(files) == 1 else 'are'} {len(files)} ({names}): use a folder with exactly those"
        )
    parts = {path.name.partition(".")[0]: _rows(path, questions, options.limit) for path in files}
    digests = "".join(sha256(path) for path in files)
    return Questions(name, parts, options.limit, hashlib.sha256(digests.encode()).hexdigest()[:16])


def _check_installed(name: str) -> None:
    try:
        import lm_eval  # noqa: F401
    except ImportError as error:
        raise InputError(f"task {name!r} needs lm-eval: {install_command('tasks')}") from error


def _rows(path: Path, questions: QuestionSet, limit: int | None) -> list[Row]:
    rows = []
    for where, row in islice(questions.read(path), limit):
        for name in questions.fields:
            if name not in row:
                raise InputError(f"{where} has no {name!r} (but {', '.join(row)}): use the set's own files")
        rows.append(_checked({name: row[name] for name in questions.fields}, questions, where))
    if not rows:
        raise InputError(f"{path} has no questions: download it again")
    return rows


def _checked(row: Row, questions: QuestionSet, where: str) -> Row:
    """The row with its label as a number; raises `InputError` if it has none of a choice, or if a text is missing."""
    label, choices = questions.label, questions.choices
    for name, value in row.items():
        texts = value if name == choices else [] if name == label else [value]
        whole = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
        if not whole or not (name in questions.may_be_empty or all(text.strip() for text in texts)):
            raise InputError(f"{where}: {name} is {value!r}, where a text is missing: use the set's own files")
    if label is None:
        return row
    count, first = 2 if choices is None else len(row[choices]), questions.first
    given = str(row[label]).strip()
    if not given.isdecimal() or not first <= int(given) < first + count:
        raise InputError(
            f"{where}: {label} is {row[label]!r}, and its choices are {first} to {first + count - 1}: use a split "
            "whose labels are published"
        )
    return row | {label: int(given)}


def zero_shot(lm: MentaleseLM, questions: Questions) -> dict[str, Any]:
    """A model's results on a set.

    Returns:
        Each metric with its standard error over questions, `NAME_stderr` (`None` for a single one):
        for sets with choices `acc_perplexity` (the share of questions whose right choice has, together with what comes
        before it, the lowest perplexity), `acc` and `acc_norm` (lm-eval's: the highest log-likelihood of the choice,
        and that per character); for LAMBADA `acc` (each token of the final word is the most likely one) and
        `perplexity` (per final word); for WikiText `word_perplexity`, `byte_perplexity` and `bits_per_byte`, by the
        published articles' words and bytes. Then `items`, `data_hash`, `protocol`, and for a set of many files
        `subsets`: the same for each.
    """
    from mentalese.evaluation.harness import ask

    about = SETS[questions.name]
    parts = ask(lm, {name: (rows, about.config, about.premise) for name, rows in questions.parts.items()})
    metrics = _mean(list(parts.values()))
    if "nll" in metrics:
        nll, error = metrics.pop("nll"), metrics.pop("nll_stderr")
        perplexity = math.exp(nll) if nll < 700 else math.inf
        # The delta method: a small error of the logarithm is the relative error of the perplexity.
        metrics |= {"perplexity": perplexity, "perplexity_stderr": None if error is None else perplexity * error}
    result: dict[str, Any] = metrics | {
        "items": sum(map(len, questions.parts.values())),
        "data_hash": questions.data_hash,
    }
    if len(parts) > 1:
        result["subsets"] = {name: part | {"items": len(questions.parts[name])} for name, part in parts.items()}
    blocks = about.config["output_type"] == "loglikelihood_rolling"
    return result | {"protocol": {"limit": questions.limit, **lm.protocol(blocks=blocks)}}


# -- lm-eval's own ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HubTask:
    """A task of lm-eval, or a group or a tag of tasks, whose questions were fetched.

    Attributes:
        tasks: what `lm_eval.tasks.TaskManager.load` returned.
        limit: the most questions per task.
        shots: examples before each question; `None`: the task's own number.
    """

    name: str
    tasks: Any
    limit: int | None
    shots: int | None = None


def read_hub_task(name: str, options: HubOptions) -> HubTask:
    """A task that lm-eval knows, by lm-eval's name; lm-eval fetches its questions, mostly from the network.

    Raises:
        InputError: lm-eval is not installed or has no such task, or it cannot fetch the questions.
    """
    _check_installed(f"{HUB}{name}")
    from lm_eval.tasks import TaskManager

    manager = TaskManager()
    if name not in manager.all_tasks:
        raise InputError(f"tasks: lm-eval has no task {name!r}{nearest(name, manager.all_tasks)}")
    try:
        with hub_or_cache("tasks", f"{HUB}{name}"):
            loaded = manager.load([name])
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"task '{HUB}{name}': lm-eval cannot fetch its questions ({reason})") from error
    if options.shots and all(task.get_config("num_fewshot") == 0 for task in loaded["tasks"].values()):
        raise InputError(f"shots is {options.shots}: lm-eval asks {name!r} without examples; remove it")
    return HubTask(name, loaded, options.limit, options.shots)


def hub_task(lm: MentaleseLM, asked: HubTask) -> dict[str, Any]:
    """A model's results on a task of lm-eval.

    Returns:
        Each of lm-eval's metrics of the task or group with its standard error, as in `zero_shot`, `items`, and
        `subsets`: the same for each task of a group. A tag has no metrics of its own: `{task: metrics}`. Then, for
        generated answers, `unfinished`, those that were cut at the limit of new tokens, and `protocol`.

    Raises:
        InputError: a metric of the task needs a package that is not installed.
    """
    from mentalese.evaluation.harness import ask_loaded

    before = lm.unfinished
    try:
        metrics, about = ask_loaded(lm, asked.tasks, asked.limit, asked.shots)
    except ModuleNotFoundError as error:
        raise InputError(f"task '{HUB}{asked.name}' needs {error.name}: pip install {error.name}") from error
    except ValueError as error:
        if not asked.shots or "larger than population" not in str(error):
            raise
        raise InputError(f"shots is {asked.shots}: '{HUB}{asked.name}' has fewer examples; set less") from error
    items = {name: count["effective"] for name, count in about["n-samples"].items()}
    parts = {name: metrics[name] | {"items": count} for name, count in items.items()}
    result: dict[str, Any]
    if asked.name in parts:
        result = parts[asked.name]
    elif metrics.get(asked.name):
        result = metrics[asked.name] | {"items": sum(items.values()), "subsets": parts}
    else:
        result = parts
    generated = any(task.OUTPUT_TYPE == "generate_until" for task in asked.tasks["tasks"].values())
    unfinished = {"unfinished": lm.unfinished - before} if generated else {}
    shots = {name: about["n-shot"][name] for name in items}
    blocks = all(task.OUTPUT_TYPE == "loglikelihood_rolling" for task in asked.tasks["tasks"].values())
    protocol = {"limit": asked.limit, "shots": shots, **lm.protocol(blocks=blocks)}
    return result | unfinished | {"protocol": protocol}


def _mean(parts: list[dict[str, float | None]]) -> dict[str, Any]:
    """Each metric's mean over the parts, and its standard error if these parts are all there are."""
    means: dict[str, Any] = {}
    for name in parts[0]:
        values = [part[name] for part in parts]
        known = [value for value in values if value is not None]
        if not name.endswith("_stderr"):
            means[name] = sum(known) / len(values)
        else:
            means[name] = math.hypot(*known) / len(values) if len(known) == len(values) else None
    return means
