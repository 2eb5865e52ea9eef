"""Plain text: its division into documents, and tokenised sets as running text.

Lines become documents at headings and marks, and a long text without either is cut into documents.

Zero-shot perplexities refer to running text (Radford et al., "Language Models are Unsupervised Multitask Learners",
2019, section 3.1). Other projects undo a little more or less of the format of a set, so their perplexities of the same
set differ.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from mentalese.data.documents import SPLITS, Document
from mentalese.data.files import read_lines

HEADING = re.compile(r" ?= [^=](?:.*[^=])? = ?\n?")
_END_OF_DOCUMENT = "<|endoftext|>"
_DOCUMENT = 10_000  # characters of a document of a long text, or a hundredth of a text of less than a million
_SHORTEST = 200  # characters of a document that is cut by length


def join_lines(lines: Iterable[str]) -> Iterator[Document]:
    """Yield documents that begin at level-one headings and after lines `<|endoftext|>`; blank ones are left out."""
    return map(Document, _cut(lines, sys.maxsize, sys.maxsize))


def read_documents(paths: Iterable[Path]) -> Iterator[Document]:
    """Yield the documents of files; each file begins one."""
    return chain.from_iterable(join_lines(read_lines(path)) for path in paths)


def length_of_few(paths: Iterable[Path]) -> int | None:
    """Count the characters of a text with too few documents for three splits, `None` for others, in little memory."""
    documents = characters = 0
    for path in paths:
        inside = False
        for line in read_lines(path):
            ends = line.strip() == _END_OF_DOCUMENT
            inside = inside and not ends and not HEADING.fullmatch(line)
            if not inside and not ends and line.strip():
                inside, documents = True, documents + 1
                if documents == len(SPLITS):
                    return None
            characters += len(line)
    return characters


def cut_documents(paths: Iterable[Path], characters: int) -> Iterator[Document]:
    """Yield documents of a text of `characters` characters that has too few.

    A document ends at the first blank line after a hundredth of the text, or after 10,000 characters if that is less.
    If twice as many characters have no blank line, it ends at the end of a line or, in a very long line, of a word.
    """
    least = min(_DOCUMENT, characters // 100)
    most = max(2 * least, _SHORTEST)
    for path in paths:
        parts = chain.from_iterable(_words(line, most // 4) for line in read_lines(path))
        yield from (Document(text.strip()) for text in _cut(parts, least, most))


def _cut(lines: Iterable[str], least: int, most: int) -> Iterator[str]:
    """Yield texts that end at headings, marks, the first blank line after `least` characters, or after `most`."""
    pieces: list[str] = []
    size = 0
    for line in chain(lines, [_END_OF_DOCUMENT]):
        text = line.strip()
        ends = text == _END_OF_DOCUMENT
        if ends or size >= most or (not text and size >= least) or HEADING.fullmatch(line):
            if (document := "".join(pieces)).strip():
                yield document
            pieces, size = [], 0
        if not ends:
            pieces.append(line)
            size += len(line) if text or size else 0


def _words(line: str, most: int) -> Iterator[str]:
    """Yield the line, or pieces of about `most` characters, which end at the end of a word if one is there."""
    start = 0
    while len(line) - start > most:
        end = line.rfind(" ", start, start + most) + 1 or start + most
        yield line[start:end]
        start = end
    yield line[start:]


# -- detokenizers ------------------------------------------------------------------------------------------------------

# Quotes of the Penn Treebank, which open with ` and close with ', and typographic quotes.
_QUOTES = [
    (r"`` ?| ?''|[“”]", '"'),
    (r"(?<!\S)` | '(?=\s|$)|[‘’]", "'"),
]
# Double quotes open and close in turn. A single quote may be the apostrophe of a plural: `the ships ' crews`.
_SPACES = [
    (r" (n't|'(?:s|m|d|t|re|ve|ll))(?!\w)", r"\1"),
    (r"(?<!\S)([(\[{]) +", r"\1"),
    (r" +([)\]}])", r"\1"),
    (r'(?<![^\s(\[{])" +([^"\n]*?) +"(?!\w)', r'"\1"'),
    (r"""(?<![^\s(\[{"])(?<!s )' +((?:[^'\n]|(?<=\w)'(?=\w))+?) +'(?!\w)""", r"'\1'"),
    (r" '(?=\s|$)", "'"),
    (r""" +([.,:;?!]+)(?=[\s"')\]}]|$)""", r"\1"),
    (r"(?<!\S)([$£€#]) +(?=\d)", r"\1"),
    (r"(?<=\d) +%", "%"),
    (r" *\n *", "\n"),
    (r"^ +| +$", ""),
]
_FORMATS = {
    # `2 @.@ 5`, `red @-@ tipped`, `= = Part = =`, `20 ° C`
    "wikitext": [
        (r" @([-,.])@ ", r"\1"),
        (r"(?<==) (?==)", ""),
        (r"(?<=\d) ° (?=[CF]\b)", " °"),
        (r"(?<=\d) °(?=\s)", "°"),
        *_SPACES,
    ],
    # In lower case, so that each N is a number; without punctuation; rare words are `<unk>`
    "ptb": [(r"\bN\b", "1"), (r"\\/", "/"), *_SPACES, (r"<unk>", "?")],
    "lm1b": [(r"(https?) : / / ", r"\1://"), (r"(?<=\S) / (?=\S)", "/"), *_SPACES],
    "lambada": [*_QUOTES, *_SPACES],
    "scientific_papers": [*_QUOTES, *_SPACES],
}
DETOKENIZERS = {name: [(re.compile(found), new) for found, new in rules] for name, rules in _FORMATS.items()}
"""The rules of each format, applied one after the other."""


def detokenize(text: str, name: str) -> str:
    """Return a text of the named format as running text."""
    for pattern, new in DETOKENIZERS[name]:
        text = pattern.sub(new, text)
    return text
