"""The measures of `mentalese eval`, by name, and the questions of its zero-shot sets, which `harness.py` asks."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from pathlib import Path
from typing import Any

from mentalese.errors import InputError, nearest, require
from mentalese.evaluation import reversal
from mentalese.evaluation.options import EvaluationOptions, Questions, TextOptions
from mentalese.files import sha256
from mentalese.install import install_command
from mentalese.models.build import check_length
from mentalese.models.saved import Saved
from mentalese.network import hub_or_cache

HUB = "hub:"
"""Prefix of the names of lm-eval's own tasks."""
_FOLDER = Path(__file__).parent / "tasks"
SETS = tuple(sorted(path.stem for path in _FOLDER.glob("[!_]*.yaml")))
"""Sets of local files, by lm-eval's names: one YAML file each in `tasks/`."""
TASKS = ("perplexity", "reversal", *SETS)
"""The tasks that are not lm-eval's own (`hub:NAME`)."""

Result = dict[str, Any]
_TEXT = {field.name for field in dataclasses.fields(TextOptions)}
_PERPLEXITY = _TEXT | {"estimators", "joined", "context_length", "documents", "stage", "latents"}


def read_tasks(options: EvaluationOptions) -> dict[str, Questions]:
    """Return the questions of the tasks that have questions; check the options before a model is opened.

    Raises:
        InputError: an unknown task, or an option that none of the tasks uses; errors of `read_questions`.
    """
    tasks = options.tasks
    require(bool(tasks), "tasks", tasks, f"use one of {', '.join(TASKS)} or {HUB}NAME")
    uses = {"tasks"}
    for task in tasks:
        exists = task in TASKS or (task != HUB and task.startswith(HUB))
        require(exists, "tasks", task, f"use one of {', '.join(TASKS)} or {HUB}NAME{nearest(task, TASKS)}")
        if task == "perplexity":
            uses |= _PERPLEXITY
        elif task != "reversal":
            uses |= {"limit", "task_files" if task in SETS else "shots"}
    for field in dataclasses.fields(EvaluationOptions):
        value = getattr(options, field.name)
        value = str(value) if isinstance(value, Path) else value
        used = value == field.default or field.name in uses
        require(used, field.name, value, f"{' and '.join(tasks)} cannot use it, remove it")
    return {task: read_questions(task, options) for task in tasks if task not in ("perplexity", "reversal")}


def run(
    saved: Saved,
    options: EvaluationOptions | None = None,
    questions: dict[str, Questions] | None = None,
    *,
    show: bool = False,
) -> dict[str, Result]:
    """Evaluate a model: `{task: result}`.

    Args:
        questions: the result of `read_tasks`; `None`: read now.

    Raises:
        InputError: errors of `read_tasks` and of the tasks.
    """
    options = options or EvaluationOptions()
    questions = read_tasks(options) if questions is None else questions
    results = {}
    for task in options.tasks:
        if task == "perplexity":
            results[task] = perplexity(saved, options, show=show)
        elif task == "reversal":
            results[task] = reversal.run(saved, show=show)
        else:
            from mentalese.evaluation.harness import MentaleseLM, zero_shot  # lm-eval is optional

            results[task] = zero_shot(MentaleseLM(saved, show=show), questions[task])
    return results


def perplexity(saved: Saved, options: EvaluationOptions, *, show: bool = False) -> Result:
    """Score a text, or a split of one.

    Returns:
        `Perplexity.to_dict()` with the number of `documents`, and `split`, `source`, `detokenizer` and `data_hash` of
        the text; with `options.estimators`: `{estimator: the same}`.

    Raises:
        InputError: the model has no such scoring rule or protocol, or its layout no stage or latents; errors of
            `Saved.store`.
    """
    saved = options.read_by(saved).at(options.stage, options.latents)
    if options.documents is not None:
        saved = saved.scored_by(max_documents=options.documents)
    if options.joined or options.context_length is not None:
        name, value = ("joined", True) if options.joined else ("context_length", options.context_length)
        has_windows = saved.layout.window(saved.evaluation) is not None
        require(has_windows, name, value, f"layout {saved.layout.kind!r} of {saved.path} has no windows, remove it")
        check_length(saved.model.config, "context_length", options.context_length)
        length = options.context_length or saved.evaluation.context_length
        # The recipe's stride belongs to its own windows.
        joined = options.joined or saved.evaluation.joined
        saved = saved.scored_by(context_length=length, stride=None, joined=joined)
    rules = saved.model.estimators
    for rule in options.estimators:
        require(rule in rules, "estimators", rule, f"this model has {', '.join(rules)}, use some of them")
    part = options.part(saved)
    store = saved.store(part, show=show)
    split = store.splits[part]
    about = {"documents": saved.evaluation.documents(len(split.document_bytes))} | options.origin(saved, store)
    if not options.estimators:
        return saved.perplexity(split, show=show).to_dict() | about
    scorers = {rule: saved.scored_by(estimator=rule) for rule in options.estimators}
    return {rule: scorer.perplexity(split, show=show).to_dict() | about for rule, scorer in scorers.items()}


# -- zero-shot questions -----------------------------------------------------------------------------------------------


def read_questions(name: str, options: EvaluationOptions) -> Questions:
    """Read one of `SETS`, or a task of lm-eval as `hub:NAME`, whose questions lm-eval fetches."""
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

    from mentalese.evaluation.harness import seeded

    name, manager = task.removeprefix(HUB), TaskManager()
    require(name in manager.all_tasks, "tasks", task, f"lm-eval has no such task{nearest(name, manager.all_tasks)}")
    try:
        with hub_or_cache("tasks", task), seeded():
            loaded = manager.load([name])
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        reason = next(filter(re.compile(r"\w").search, str(error).splitlines()), type(error).__name__)  # no banner
        raise InputError(f"task {task!r}: lm-eval cannot fetch its questions ({reason.strip()})") from error
    for kind, what in {"UNSAFE_CODE": "runs code that a model has written", "MULTIMODAL": "shows images"}.items():
        has_it = any(getattr(part, kind, False) for part in loaded["tasks"].values())
        require(not has_it, "tasks", task, f"it {what}, which is not supported: use another")
    never = all(part.get_config("num_fewshot") == 0 for part in loaded["tasks"].values())
    require(not (options.shots and never), "shots", options.shots, f"{task!r} is asked without examples, remove it")
    return Questions(name, loaded, options.limit, options.shots)
