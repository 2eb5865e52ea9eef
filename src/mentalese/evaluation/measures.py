"""The measures of `mentalese eval`, by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from mentalese.errors import nearest, require
from mentalese.evaluation import reversal
from mentalese.evaluation.options import EvaluationOptions, TextOptions
from mentalese.evaluation.zero_shot import HUB, SETS, Questions, read_questions
from mentalese.models.build import check_length
from mentalese.models.saved import Saved

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
