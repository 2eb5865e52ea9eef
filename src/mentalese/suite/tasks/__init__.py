"""The mechanism suite: generated tasks with known best scores, with and without a mechanism.

docs/tasks.md lists all tasks. This package does not import torch.
"""

from __future__ import annotations

from mentalese.errors import nearest, require
from mentalese.suite.tasks.base import Levels, Task
from mentalese.suite.tasks.composition import Composition
from mentalese.suite.tasks.expressions import Expressions
from mentalese.suite.tasks.phrases import Concepts, Phrases
from mentalese.suite.tasks.reachability import Reachability
from mentalese.suite.tasks.recall import Recall
from mentalese.suite.tasks.topics import Topics
from mentalese.values import checked

__all__ = ["TASKS", "Levels", "Task", "task"]

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (Topics, Recall, Reachability, Composition, Expressions, Phrases, Concepts)
}


def task(spec: str) -> Task:
    """Return a task by its name, with options if there are any: `topics`, `recall:distance=8,keys=16`, `..:hops=3-4`.

    Raises:
        InputError: no such task or option, or a value that an option cannot have.
    """
    name, colon, options = spec.partition(":")
    require(name in TASKS, "task", name, f"use one of {', '.join(TASKS)}{nearest(name, TASKS)}")
    where = f"builtin:{name}"
    pairs = [option.partition("=") for option in options.split(",")] if colon else []
    values = {option.strip(): value.strip() for option, _, value in pairs}
    valid = len(values) == len(pairs) and "" not in values
    require(valid, where, options, "set options as name=value,name=value, each once, or remove the colon")
    task_type: type[Task] = TASKS[name]
    return checked(where, task_type, values, parse=True)
