"""Built-in data, without downloads and without texts by other people in the package.

`stdlib` is real English that comes with every CPython; the rest is generated, so its ground truth is known:
by generated.py and the tasks of `mentalese.suite`.
"""

from __future__ import annotations

import ast
import os
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from mentalese.data.documents import SPLITS, Document, Kind, Reader
from mentalese.data.generated import arithmetic, families, prosqa, prosqa_small, word_problems
from mentalese.errors import InputError, nearest
from mentalese.suite.tasks import TASKS, Task, task

MIN_WORDS = 100

_NOT_LIBRARY = {"test", "tests", "idle_test", "idlelib", "turtledemo", "lib2to3", "site-packages", "dist-packages"}


class Builtin(NamedTuple):
    """A built-in source: a line for `mentalese list`, the kind of its documents, and a function that returns them."""

    description: str
    kind: Kind
    documents: Callable[[], tuple[Document, ...]]


@cache
def stdlib() -> tuple[Document, ...]:
    """Return each topic of CPython's language reference and each library file's docstrings, if of 100 words or more."""
    from pydoc_data.topics import topics

    root = Path(sysconfig.get_path("stdlib"))
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _NOT_LIBRARY]
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    files.sort(key=lambda path: path.relative_to(root).as_posix())
    texts = [topics[name].strip() for name in sorted(topics)]
    texts += ["\n\n".join(filter(None, _docstrings(ast.parse(path.read_bytes())))) for path in files]
    return tuple(Document(text) for text in dict.fromkeys(texts) if len(text.split()) >= MIN_WORDS)


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Yield the docstrings of a file in its order."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield (ast.get_docstring(node) or "").strip()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield from _docstrings(child)


BUILTIN: dict[str, Builtin] = {
    "stdlib": Builtin("CPython's documentation: real English, about 340 documents, 2 MB", "text", stdlib),
    "families": Builtin("2,000 generated stories of families, every relation known", "text", families),
    "prosqa": Builtin(
        "generated questions like ProsQA's (16,768, 945 and 973), 3 to 6 steps through a graph", "records", prosqa
    ),
    "prosqa-small": Builtin(
        "smaller ones (18,002, 981 and 1,017), 2 or 3 steps among about 7 entities", "records", prosqa_small
    ),
    "arithmetic": Builtin("generated word problems (9,024, 476 and 500), 1 to 4 equations each", "records", arithmetic),
    "word-problems": Builtin(
        "easier ones in English (8,961, 496 and 543), 2 to 4 equations each, for pretrained models",
        "records",
        word_problems,
    ),
}


def open_builtin(spec: str) -> tuple[Kind, dict[str, Reader]]:
    """Return the kind of `builtin:SPEC`, and a reader for each split that the data define.

    `spec` is a name of `BUILTIN`, or a task of the suite, perhaps with options (`recall:distance=8,keys=4`).
    """
    name, colon, options = spec.partition(":")
    if name in TASKS:
        generator = task(spec)
        return generator.kind, {split: partial(generator.documents, split) for split in SPLITS}
    if name in BUILTIN and not colon:
        builtin = BUILTIN[name]
        return builtin.kind, {"train": lambda: iter(builtin.documents())}
    names = [*BUILTIN, *TASKS]
    problem = f"no such built-in data{nearest(name, names) or '; use one of ' + ', '.join(names)}"
    if name in BUILTIN:
        problem = f"builtin:{name} has no options, remove {(options or ':')!r}"
    raise InputError(f"data.source is 'builtin:{spec}': {problem}")


def described() -> dict[str, str]:
    """Return every built-in source with its line for `mentalese list`."""
    sources: dict[str, Builtin | type[Task]] = {**BUILTIN, **TASKS}
    return {f"builtin:{name}": source.description for name, source in sources.items()}
