"""Zero-shot questions for lm-eval: from local files, or lm-eval's own from the hub. `harness.py` asks them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mentalese.errors import InputError, nearest, require
from mentalese.evaluation.options import EvaluationOptions
from mentalese.files import sha256
from mentalese.install import install_command
from mentalese.network import hub_or_cache

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

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


def read_questions(name: str, options: EvaluationOptions) -> Questions:
    """Read one of `SETS`, or a task of lm-eval as `hub:NAME`, whose questions lm-eval fetches.

    Raises:
        InputError: lm-eval is not installed; a folder, file, column or row is missing; lm-eval has no such task, or
            cannot fetch its questions.
    """
    try:
        import lm_eval  # noqa: F401
    except ImportError as error:
        raise InputError(f"task {name!r} needs lm-eval: {install_command('tasks')}") from error
    return _read_hub_task(name, options) if name.startswith(HUB) else _read_set(name, options)


def _read_set(name: str, options: EvaluationOptions) -> Questions:
    from lm_eval.tasks import TaskManager

    folder = options.task_files
    if folder is None:
        raise InputError(
            f"task_files is None: {name!r} reads its questions from a folder, set --task-files FOLDER, or use "
            f"{HUB}{name}",
            "task_files",
        )
    task_manager = TaskManager(include_path=_FOLDER, include_defaults=False)
    columns = task_manager.task_index[name].cfg["dataset_kwargs"]
    pattern, parts = columns["files"], columns.get("parts", 1)
    files = sorted([*folder.glob(pattern), *folder.glob(f"{pattern}.gz")])
    remedy = f"task {name!r} needs {parts} {pattern} or {pattern}.gz, not {len(files)}"
    require(len(files) == parts, "task_files", str(folder), remedy)
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


def _read_hub_task(task: str, options: EvaluationOptions) -> Questions:
    from lm_eval.tasks import TaskManager

    name, manager = task.removeprefix(HUB), TaskManager()
    require(name in manager.all_tasks, "tasks", task, f"lm-eval has no such task{nearest(name, manager.all_tasks)}")
    try:
        with hub_or_cache("tasks", task):
            loaded = manager.load([name])
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"task {task!r}: lm-eval cannot fetch its questions ({reason})") from error
    never = all(part.get_config("num_fewshot") == 0 for part in loaded["tasks"].values())
    require(not (options.shots and never), "shots", options.shots, f"{task!r} is asked without examples, remove it")
    return Questions(name, loaded, options.limit, options.shots)
