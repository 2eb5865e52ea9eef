"""Plain text: lines become documents at headings and marks, and a long text without either is cut into documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from mentalese.data.documents import SPLITS, Document
from mentalese.data.files import open_text
from mentalese.errors import InputError

HEADING = re.compile(r" ?= [^=](?:.*[^=])? = ?\n?")
_END_OF_DOCUMENT = "<|endoftext|>"
_PIECE = 1_000_000  # characters that are read at once of a line without end
_DOCUMENT = 10_000  # characters of a document of a long text, or a hundredth of a text of less than a million
_SHORTEST = 200  # characters of a document that is cut by length


def read_lines(path: Path) -> Iterator[str]:
    """Lines with their ends; of a line of more than a million characters, pieces. Raises `InputError` if binary."""
    with open_text(path) as file:
        while line := file.readline(_PIECE):
            if "\0" in line:
                raise InputError(f"{path} is binary: use UTF-8 text")
            yield line


def join_lines(lines: Iterable[str]) -> Iterator[Document]:
    """Documents that begin at level-one headings and after lines `<|endoftext|>`; blank ones are left out."""
    held: list[str] = []
    for line in chain(lines, [_END_OF_DOCUMENT]):
        separator = line.strip() == _END_OF_DOCUMENT
        if separator or HEADING.fullmatch(line):
            text = "".join(held)
            if text.strip():
                yield Document(text)
            held = []
        if not separator:
            held.append(line)


def read_documents(paths: Iterable[Path]) -> Iterator[Document]:
    """The documents of files; each file begins one."""
    for path in paths:
        yield from join_lines(read_lines(path))


def length_of_few(paths: Iterable[Path]) -> int | None:
    """The characters of a text with too few documents for training, validation and test; `None` if it has enough."""
    documents = characters = 0
    for path in paths:
        inside = False
        for line in read_lines(path):
            separator = line.strip() == _END_OF_DOCUMENT
            characters += len(line)
            if separator or HEADING.fullmatch(line):
                inside = False
            if not inside and not separator and line.strip():
                inside, documents = True, documents + 1
                if documents == len(SPLITS):
                    return None
    return characters


def cut_documents(paths: Iterable[Path], characters: int) -> Iterator[Document]:
    """Documents of a text of `characters` characters that has too few.

    A document ends at the first blank line after a hundredth of the text, at most 10,000 characters. Where twice as
    many have no blank line, it ends at the end of a line or, in a line without end, at the end of a word.
    """
    least = min(_DOCUMENT, characters // 100)
    most = max(2 * least, _SHORTEST)
    for path in paths:
        yield from _cut(read_lines(path), least, most)


def _cut(lines: Iterable[str], least: int, most: int) -> Iterator[Document]:
    held: list[str] = []
    size = 0
    for part in chain.from_iterable(_words(line, most // 4) for line in chain(lines, [_END_OF_DOCUMENT])):
        separator = part.strip() == _END_OF_DOCUMENT
        blank = not part.strip()
        if separator or HEADING.fullmatch(part) or size >= most or (blank and size >= least):
            if text := "".join(held).strip():
                yield Document(text)
            held, size = [], 0
        if not separator:
            held.append(part)
            size += 0 if blank and not size else len(part)


def _words(line: str, most: int) -> Iterator[str]:
    """The line, or pieces of it of about `most` characters, which end at the end of a word if one is there."""
    start = 0
    while len(line) - start > most:
        end = line.rfind(" ", start, start + most) + 1 or start + most
        yield line[start:end]
        start = end
    yield line[start:]
