"""Detokenizers: rules that undo the spaces, escapes and quotes of tokenised sets, for models of running text.

Zero-shot perplexities refer to such text (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019,
section 3.1). The rules here follow the formats of the sets. Other projects undo a little more or less, so their
perplexities of the same set differ.
"""

from __future__ import annotations

import re

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
