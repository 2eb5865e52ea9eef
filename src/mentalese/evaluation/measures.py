"""The measures of `mentalese eval`, by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from mentalese.errors import InputError, nearest
from mentalese.evaluation import perplexity, reversal, zero_shot
from mentalese.evaluation.options import EvaluationOptions, HubOptions, PerplexityOptions, TaskOptions
from mentalese.evaluation.zero_shot import HUB, SETS, Questions
from mentalese.models.saved import Saved

TASKS = ("perplexity", "reversal", *SETS)
"""The tasks that are not lm-eval's own (`hub:NAME`)."""

_MOVED = {
    "accuracy": "mentalese answer",
    "unconditional": "mentalese sample",
    "conditional": "mentalese sample --kind conditional",
}


def read_tasks(options: EvaluationOptions) -> dict[str, Questions]:
    """Return the questions of the tasks that have questions; check the options before a model is opened.

    Raises:
        InputError: an unknown task, or an option that none of the tasks uses; errors of `zero_shot.read`.
    """
    if not options.tasks:
        raise InputError(f"tasks is empty: use one of {', '.join(TASKS)} or {HUB}NAME")
    for task in options.tasks:
        if task in _MOVED:
            raise InputError(f"tasks contains {task!r}: use the command `{_MOVED[task]}` instead")
        if task not in TASKS and (task == HUB or not task.startswith(HUB)):
            raise InputError(
                f"tasks: no task is called {task!r}{nearest(task, TASKS)} (known: {', '.join(TASKS)}, {HUB}NAME)"
            )
    _check_used(options)
    return {task: zero_shot.read(task, options) for task in options.tasks if task in SETS or task.startswith(HUB)}


def run(
    saved: Saved,
    options: EvaluationOptions | None = None,
    questions: dict[str, Questions] | None = None,
    *,
    show: bool = False,
) -> dict[str, dict[str, Any]]:
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
            results[task] = perplexity.run(saved, options, show=show)
        elif task == "reversal":
            results[task] = reversal.run(saved, show=show)
        else:
            results[task] = zero_shot.run(saved, questions[task], show=show)
    return results


def _options_of(task: str) -> type | None:
    """Return the options that a task uses; `None` if there are none."""
    if task == "perplexity":
        return PerplexityOptions
    return TaskOptions if task in SETS else HubOptions if task.startswith(HUB) else None


def _check_used(options: EvaluationOptions) -> None:
    """Raise `InputError` for an option that is set and that none of the tasks uses."""
    names = {"tasks"}
    for task in options.tasks:
        users = _options_of(task)
        names |= {field.name for field in dataclasses.fields(users)} if users else set()
    for field in dataclasses.fields(EvaluationOptions):
        value = getattr(options, field.name)
        if value != field.default and field.name not in names:
            text = repr(str(value)) if isinstance(value, Path) else repr(value)
            raise InputError(f"{field.name} is {text}, which {' and '.join(options.tasks)} cannot use: remove it")
