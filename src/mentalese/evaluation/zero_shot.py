"""Zero-shot questions through lm-eval: from local files as lm-eval has them, or lm-eval's own from the hub."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mentalese.errors import InputError, nearest
from mentalese.evaluation.options import EvaluationOptions, HubOptions, TaskOptions
from mentalese.files import sha256
from mentalese.install import install_command
from mentalese.models.saved import Saved
from mentalese.network import hub_or_cache

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

    from mentalese.evaluation.harness import MentaleseLM

HUB = "hub:"
"""Prefix of the names of lm-eval's own tasks."""
_FOLDER = Path(__file__).parent / "tasks"
SETS = (
    "lambada_openai", "lambada_standard", "wikitext", "hellaswag", "blimp", "piqa", "arc_easy", "arc_challenge", "sciq",
    "winogrande",
)  # fmt: skip
"""Sets of local files, by lm-eval's names: one YAML file each in `tasks/`."""


@dataclass(frozen=True)
class Questions:
    """Questions from a set of local files, or from a task, group or tag of lm-eval.

    Attributes:
        name: one of `SETS`, or lm-eval's name.
        tasks: the result of `lm_eval.tasks.TaskManager.load`; for a set one task per file, by the file's name.
        limit: the most questions of each file or task.
        shots: examples before each question; `None`: the task's default.
        data_hash: hash of the files; `None` for tasks of lm-eval.
    """

    name: str
    tasks: TaskDict
    limit: int | None
    shots: int | None = None
    data_hash: str | None = None

    @property
    def read_whole(self) -> bool:
        """Test if whole texts are scored and not continuations."""
        return all(task.OUTPUT_TYPE == "loglikelihood_rolling" for task in self.tasks["tasks"].values())


def read(name: str, options: EvaluationOptions) -> Questions:
    """Read one of `SETS`, or `hub:NAME`; errors as in `read_questions` and `read_hub_task`."""
    if name.startswith(HUB):
        return read_hub_task(name.removeprefix(HUB), options)
    return read_questions(name, options)


def run(saved: Saved, questions: Questions, *, show: bool = False) -> dict[str, object]:
    """Return a model's results on questions, see `zero_shot`.

    Raises:
        InputError: a model of questions, or a tokenizer without markers; errors of `zero_shot`.
    """
    from mentalese.evaluation.harness import MentaleseLM

    return zero_shot(MentaleseLM(saved, show=show), questions)


def _check_installed(name: str) -> None:
    try:
        import lm_eval  # noqa: F401
    except ImportError as error:
        raise InputError(f"task {name!r} needs lm-eval: {install_command('tasks')}") from error


def read_questions(name: str, options: TaskOptions) -> Questions:
    """Read a set of local files.

    Args:
        name: one of `SETS`.
        options: the folder of the sets' files, and the most rows of each file.

    Raises:
        InputError: a folder, file, column or row is missing, there are several files of one name, or lm-eval is not
            installed.
    """
    folder = options.task_files
    if folder is None:
        raise InputError(
            f"task {name!r} reads its questions from a folder: set --task-files FOLDER, or use {HUB}{name}"
        )
    _check_installed(name)
    from lm_eval.tasks import TaskManager

    task_manager = TaskManager(include_path=_FOLDER, include_defaults=False)
    columns = task_manager.task_index[name].cfg["dataset_kwargs"]
    pattern, parts = columns["files"], columns.get("parts", 1)
    files = sorted([*folder.glob(pattern), *folder.glob(f"{pattern}.gz")])
    if len(files) != parts:
        names = ", ".join(path.name for path in files[:3]) + (", ..." if len(files) > 3 else "") or "none"
        raise InputError(
            f"task {name!r} needs {'one file' if parts == 1 else f'{parts} files'} {pattern} or {pattern}.gz in "
            f"{str(folder)!r}, and there {'is' if len(files) == 1 else 'are'} {len(files)} ({names}): use a folder "
            "with exactly those"
        )
    tasks = {}
    for path in files:
        metadata = {"file": str(path), "limit": options.limit}
        manager = TaskManager(include_path=_FOLDER, include_defaults=False, metadata=metadata)
        part = path.name.partition(".")[0]
        tasks[part] = manager.load(name)["tasks"][name]
        tasks[part].set_config("task", part)
    digests = "".join(sha256(path) for path in files)
    data_hash = hashlib.sha256(digests.encode()).hexdigest()[:16]
    return Questions(name, {"tasks": tasks}, options.limit, data_hash=data_hash)


def read_hub_task(name: str, options: HubOptions) -> Questions:
    """Read a task of lm-eval by its name; lm-eval fetches the questions, mostly from the network.

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
    return Questions(name, loaded, options.limit, options.shots)


def zero_shot(lm: MentaleseLM, questions: Questions) -> dict[str, object]:
    """Return a model's results on questions.

    Returns:
        Each metric with its standard error over questions, `NAME_stderr` (`None` for a single one), and `items`.
        Of lm-eval's own tasks: lm-eval's metrics; of a group the group's, with `subsets`: the same for each task; of a
        tag, which has no metrics, `{task: metrics}`; for generated answers also `unfinished`, those that were cut at
        the limit of new tokens.
        Of sets with choices: `acc_perplexity` (the share of questions whose right choice has, together with what comes
        before it, the lowest perplexity), `acc` and `acc_norm` (lm-eval's: the highest log-likelihood of the choice,
        and that per character); of LAMBADA `acc` (each token of the final word is the most likely one) and
        `perplexity` (per final word); of WikiText `word_perplexity`, `byte_perplexity` and `bits_per_byte`, by the
        published articles' words and bytes; of a set of many files the mean, with `subsets`. Then `data_hash`.
        Last `protocol`.

    Raises:
        InputError: a metric of the task needs a package that is not installed, or there are too few examples.
    """
    from mentalese.evaluation.harness import ask

    unfinished = lm.unfinished
    try:
        outcome = ask(lm, questions.tasks, questions.limit, questions.shots)
    except ModuleNotFoundError as error:
        raise InputError(f"task '{HUB}{questions.name}' needs {error.name}: pip install {error.name}") from error
    except ValueError as error:
        if not questions.shots or "larger than population" not in str(error):
            raise
        raise InputError(f"shots is {questions.shots}: '{HUB}{questions.name}' has fewer examples; set less") from error
    metrics, items = outcome.metrics, sum(outcome.items.values())
    parts = {name: {**metrics[name], "items": count} for name, count in outcome.items.items()}
    result: dict[str, object] = {}
    protocol: dict[str, object] = {"limit": questions.limit}
    if questions.data_hash is not None:
        result |= {**_mean([metrics[name] for name in parts]), "items": items, "data_hash": questions.data_hash}
        result |= {"subsets": parts} if len(parts) > 1 else {}
    else:
        protocol["shots"] = outcome.shots
        if questions.name in parts:
            result |= parts[questions.name]
        elif metrics.get(questions.name):
            result |= {**metrics[questions.name], "items": items, "subsets": parts}
        else:
            result |= parts
        if any(task.OUTPUT_TYPE == "generate_until" for task in questions.tasks["tasks"].values()):
            result["unfinished"] = lm.unfinished - unfinished
    return result | {"protocol": protocol | lm.protocol(blocks=questions.read_whole)}


def _mean(parts: list[dict[str, float | None]]) -> dict[str, float | None]:
    """Return each metric's mean over the parts, and its standard error with the parts fixed."""
    means: dict[str, float | None] = {}
    for name in parts[0]:
        values = [value for part in parts if (value := part[name]) is not None]
        if not name.endswith("_stderr"):
            means[name] = sum(values) / len(parts)
        else:
            means[name] = math.hypot(*values) / len(parts) if len(values) == len(parts) else None
    if (nll := means.pop("nll", None)) is not None:
        error = means.pop("nll_stderr")
        perplexity = math.exp(nll) if nll < 700 else math.inf
        # The delta method: a small error of the logarithm is the relative error of the perplexity.
        means |= {"perplexity": perplexity, "perplexity_stderr": None if error is None else perplexity * error}
    return means
