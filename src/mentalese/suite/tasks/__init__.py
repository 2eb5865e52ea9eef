"""The mechanism suite: generated tasks with known best scores, with and without a mechanism.

Each task has a file; docs/tasks.md lists them all. This package does not import torch.
"""

from __future__ import annotations

from mentalese.errors import InputError, nearest
from mentalese.suite.tasks.base import Levels, Task, with_options
from mentalese.suite.tasks.composition import Composition
from mentalese.suite.tasks.expressions import Expressions
from mentalese.suite.tasks.phrases import Phrases
from mentalese.suite.tasks.reachability import Reachability
from mentalese.suite.tasks.recall import Recall
from mentalese.suite.tasks.topics import Topics

__all__ = ["TASKS", "Levels", "Task", "task"]

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (Topics, Recall, Reachability, Composition, Expressions, Phrases)
}


def task(spec: str) -> Task:
    """Return a task by its name, with its options if there are any: `topics`, `recall:distance=8,keys=16`.

    Raises:
        InputError: no such task or option, or a value that an option cannot have.
    """
    name, colon, options = spec.partition(":")
    if name not in TASKS:
        raise InputError(f"the task is {name!r}: use one of {', '.join(TASKS)}{nearest(name, TASKS)}")
    if colon and not options:
        raise InputError(f"the task is {spec!r}: name options after the colon, or remove it")
    return with_options(TASKS[name], options)
