"""What docstrings say about each field of a class, for `--help` and `mentalese show`."""

from __future__ import annotations

import inspect
import re

_ENTRY = re.compile(r"    (\w+(?:, \w+)*): (.*)")
_HUGGING_FACE_ENTRY = re.compile(r"( *)(\w+) \(.*\):\s*")


def attribute_docs(docstring: str | None) -> dict[str, str]:
    """Field name -> its text in the `Attributes:` section; names that share an entry share its text."""
    docs: dict[str, str] = {}
    names: list[str] = []
    _, _, section = inspect.cleandoc(docstring or "").partition("Attributes:\n")
    for line in section.splitlines():
        if line and not line.startswith("    "):
            break
        if entry := _ENTRY.fullmatch(line):
            names = entry[1].split(", ")
            docs |= dict.fromkeys(names, entry[2])
        else:
            docs |= {name: f"{docs[name]} {line.strip()}".rstrip() for name in names}
    return docs


def class_docs(cls: type) -> dict[str, str]:
    """As `attribute_docs`, of a class and its bases."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        docs |= attribute_docs(base.__doc__)
    return docs


def hugging_face_docs(docstring: str | None) -> dict[str, str]:
    """Field name -> its text in a docstring of transformers: `name (type):` and an indented text."""
    docs: dict[str, str] = {}
    name, indent = None, 0
    for line in inspect.cleandoc(docstring or "").splitlines():
        if entry := _HUGGING_FACE_ENTRY.fullmatch(line):
            name, indent = entry[2], len(entry[1])
            docs[name] = ""
        elif line.strip() and len(line) - len(line.lstrip()) <= indent:
            name = None
        elif name is not None:
            docs[name] = f"{docs[name]} {line.strip()}".strip()
    return docs
