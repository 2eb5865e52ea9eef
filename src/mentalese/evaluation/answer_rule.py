"""Reading of answers from a model's text, and rules for the comparison with the right answers.

`math-verify` was tried for the rule `number`: it reads 5e3 as 5, 1,2,3 as 1.2 and 1-2 as -1, and cannot read U+2212, +5
or -$5.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from mentalese.data.config import AnswerRuleName
from mentalese.data.row_formats import PUBLISHED

_MINUS_SIGNS = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d", "-"))
_SPACES = "\u00a0\u2009\u202f"  # separators of thousands: no-break, thin and narrow no-break
_CURRENCY = r"\\?[$¢£¤¥\u20a0-\u20cf]"
_GROUPED = rf"[1-9]\d{{0,2}}(?:[,{_SPACES}]\d{{3}})+"
_EXPONENT = r"(?:[eE]|\s?[x×*·]\s?10\^)(?P<exponent>[+-]?\d{1,3})"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)(?:{_CURRENCY}\s?)?(?P<inner>[+-]?)"
    rf"(?:(?:(?P<whole>\d+)\s+)?(?P<top>\d+)\s?/\s?(?P<bottom>\d+)"
    rf"|(?P<digits>(?:{_GROUPED}|\d+)(?:\.\d*)?|\.\d+)(?:{_EXPONENT})?)"
    rf"(?:\s?(?:{_CURRENCY}|\\?%))?\.?"
)
_RUN = re.compile(
    rf"(?:(?<![\w)])-)?(?:{_CURRENCY}\s?-?)?"
    rf"(?:\d+\s\d+/\d+|(?:\d|\.\d)[\d.,/{_SPACES}]*(?:{_EXPONENT.replace('?P<exponent>', '')})?)"
)
"""Digits of a text that belong together, with their sign, whether they are a number (1,234) or not (1,2,3)."""
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)")
_LONGEST = 300
"""Characters of the longest text that is read as a number; Python refuses integers of 4,300 digits."""
_ROUNDING = Fraction(1, 10**12)
"""The relative difference of two numbers that are written as floats, such as 0.1 + 0.2 and 0.3."""

_CHOICE = re.compile(r"[(\[]?([A-Za-z])[)\].:]?|[(\[]?([A-Z])[)\].:]+\s.*", re.DOTALL)
_MARKUP = re.compile(r"\\(?:boxed|text\w*|math\w+)\b|\\?[*_`{}$]")
_CHOICE_IN_TEXT = re.compile(r"\b(?i:answer|option|choice)(?:\s+is)?\s*:?\s*[(\[]?([A-Z])\b(?!['’]|(?<=[AI])\s+[a-z])")

_WHOLE = ("yes", "no", "noanswer")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = f"[{re.escape(string.punctuation)}]"
_DROPPED = re.compile(
    rf"(?!(?<=\d){_PUNCTUATION}\d)(?!(?<!\w)-\.?\d)(?!\.\d){_PUNCTUATION}"  # not inside a number, nor its sign or point
)
_AROUND = "()[]{}\"'`,;:!?*_"

_HASHES = r"(?:^[ \t]*#+|#{3,})"  # not the one of "#1" or "C#"
_MARK = re.compile(rf"({_HASHES})[ \t]*([^\n]*)", re.MULTILINE)
_BEFORE_NUMBER = re.compile(r"\s*(?i:the )?(?i:final )?(?i:answer)?(?i: is)?\s*[:=]?\s*")
"""Words and signs that may precede a number after a mark."""
_NOT_ANSWER = re.compile(r"(?:st|nd|rd|th)\b|:\d|\s*[-+*/×=]\s*\S")
"""Signs and letters after a number that is not the answer, as in `1st step`, `10:30` and `3 + 4`."""
_NUMBERED = re.compile(r"\s*\d+[.):]\s+\S")
"""The beginning of a numbered heading, such as `1. Add`."""
_ENDED = re.compile(rf"\S[^\n]*\n[ \t]*\n|{_HASHES}[ \t]*[^\s#][^\n]*\n", re.MULTILINE)


@dataclass(frozen=True)
class AnswerRule:
    """The rule by which an answer is compared with the right one.

    Attributes:
        name: `text`: to the letter; `number`: by value where the right answer is a number (`number_in`), else to the
            letter; `choice`: by the letter of the choice where the right answer has one, else to the letter.
    """

    name: AnswerRuleName

    @classmethod
    def of(cls, source: str, answers: Iterable[str], chosen: AnswerRuleName | None = None) -> AnswerRule:
        """Return the chosen rule, or else the rule of the source.

        It is `text` for generated questions, and the rule of the paper for a published set. For other sources, such as
        files, it is `number` if any right answer is a number.
        """
        kind = source.partition(":")[0]
        rule = chosen or ("text" if kind == "builtin" else PUBLISHED[kind].answer_rule if kind in PUBLISHED else None)
        if rule is None:
            rule = "number" if any(number_in(answer) is not None for answer in answers) else "text"
        return cls(rule)

    def equal(self, answer: str, expected: str) -> bool:
        """Test if an answer is right."""
        if self.name == "number" and (expected_number := number_in(expected)) is not None:
            number = number_in(answer)
            if number is None or number.denominator == expected_number.denominator == 1:
                return number == expected_number  # integers to the last digit
            return abs(number - expected_number) <= _ROUNDING * max(abs(number), abs(expected_number))
        if self.name == "choice" and (letter := _choice_in(expected)) is not None:
            return _choice_in(answer) == letter
        return answer == expected


def number_in(text: str) -> Fraction | None:
    """Return the number that a whole text states; `None` if it is not a number.

    A number may have a sign (also U+2212), a decimal point, an exponent (5e3, 5 × 10^3), separated thousands, a sign of
    currency or percent and a full stop, and be a fraction (1/2, 1 1/2, ½). A comma separates thousands only.
    """
    match = _number_match(text)
    if match is None:
        return None
    sign = -1 if "-" in (match["sign"], match["inner"]) else 1
    if match["digits"] is None:
        return sign * (int(match["whole"] or 0) + Fraction(int(match["top"]), int(match["bottom"])))
    return sign * Fraction(_digits(match["digits"])) * Fraction(10) ** int(match["exponent"] or 0)


FINAL_ANSWER = "the text after the last ###, without separators of thousands"


def final_answer(text: str) -> str:
    """Return the answer in a text: everything after the last `###`, or else after the last `#`.

    See Hao et al., "Coconut", 2024; the answer may contain a `#`, such as C#. Separators of thousands are removed.
    """
    return _without_thousands(text.rpartition("###" if "###" in text else "#")[2]).strip()


FREE_ANSWER = (
    "what follows the longest run of #s in the text (up to an empty line, if it is not a chat model's), for a number "
    "the first that a number follows; without any, its last number if the right answer is a number, else all of it"
)


def free_answer(text: str, expected: str, *, whole: bool) -> str:
    """Return the answer of a model that was not trained to end one.

    The answer follows the longest run of `#`s, on the same line. If a number is expected, it is the first number there,
    or else the last number of the text, written with digits, sign and point (5e3 as 5000); headings, such as
    `## Step 1`, are not answers.

    Args:
        whole: read all of the text, as of a chat model, which ends its turn, and of which only `####` marks words; else
            only up to an empty line, which ends a shot.
    """
    paragraphs = re.split(r"\n[ \t]*\n", text.strip())
    parts = [text] if whole else paragraphs
    if number_in(expected) is None:
        # A chat model's headings are not marks; it may name a choice in its last paragraph.
        marked = _longest_marks(parts[0]) if not whole or "####" in text else []
        unmarked = text if whole and _CHOICE.fullmatch(expected) else paragraphs[0]
        return _without_thousands(marked[0] if marked else unmarked).strip()
    for part in parts:
        if (answer := _free_number(part)) is not None:
            return answer
        if not _MARK.search(part):
            break
    return ""


def free_answer_ended(text: str) -> bool:
    """Test if a text goes on after the answer that `free_answer` reads from it."""
    return _ENDED.search(text.lstrip()) is not None


def exact_match(answer: str, expected: str) -> bool:
    """Equal without capitals, punctuation and articles, and with numbers by value (Rajpurkar et al., "SQuAD", 2016)."""
    return _words(answer) == _words(expected)


def f1(answer: str, expected: str) -> float:
    """Return the F1 of the answers' words, normalised in the same way.

    `yes`, `no` and `noanswer` are right or wrong as a whole (Yang et al., "HotpotQA", 2018).
    """
    answer_words, expected_words = _words(answer), _words(expected)
    if answer_words != expected_words and any(" ".join(words) in _WHOLE for words in (answer_words, expected_words)):
        return 0.0
    common = (Counter(answer_words) & Counter(expected_words)).total()
    return 2 * common / (len(answer_words) + len(expected_words)) if common else 0.0


def _number_match(text: str) -> re.Match[str] | None:
    match = _NUMBER.fullmatch(_plain(text).strip()) if len(text) <= _LONGEST else None
    if match is None or (match["sign"] and match["inner"]) or (match["bottom"] and not int(match["bottom"])):
        return None
    return match


def _plain(text: str) -> str:
    """Return a text with one kind of minus, and ½ as 1/2."""
    text = text.translate(_MINUS_SIGNS)
    for character in set(text):
        if unicodedata.decomposition(character).startswith("<fraction>"):
            fraction = unicodedata.normalize("NFKC", character).replace("\u2044", "/")
            text = re.sub(rf"(?<=\d){character}", f" {fraction}", text).replace(character, fraction)
    return text


def _digits(text: str) -> str:
    return re.sub(rf"[,{_SPACES}]", "", text).rstrip(".")


def _written(text: str) -> str | None:
    """Return a number with digits, sign and point, or as a fraction; `None` for another text."""
    match = _number_match(text)
    if match is None:
        return None
    sign = "-" if "-" in (match["sign"], match["inner"]) else ""
    if match["digits"] is None:
        return sign + " ".join(filter(None, (match["whole"], f"{match['top']}/{match['bottom']}")))
    return sign + format(Decimal(f"{_digits(match['digits'])}e{match['exponent'] or 0}"), "f")


def _without_thousands(text: str) -> str:
    return _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)


def _free_number(text: str) -> str | None:
    """Return the number that answers a question; `None` for a text with only headings."""
    longest = _longest_marks(text)
    every = [match[2] for match in _MARK.finditer(text)]
    for marked in [*longest, *every]:
        if (number := _written(marked)) is not None:
            return number
    for marked in longest if "###" in text else ():
        plain = _BEFORE_NUMBER.sub("", _plain(_MARKUP.sub("", marked)), count=1)
        run = None if "####" not in text and _NUMBERED.match(plain) else _RUN.match(plain)
        if run is not None and not _NOT_ANSWER.match(plain, run.end()):
            return _number_of(run[0])
    runs = [match[0] for match in _RUN.finditer(_plain(_MARK.sub("", text)))]
    return _number_of(runs[-1]) if runs else None


def _number_of(run: str) -> str:
    run = run.rstrip(f".,/{_SPACES}")
    return _written(run) or run


def _longest_marks(text: str) -> list[str]:
    """Return the rest of the line after each of the longest runs of `#`s."""
    matches = [(len(match[1].strip()), match[2]) for match in _MARK.finditer(text)]
    longest = max((length for length, _ in matches), default=0)
    return [marked for length, marked in matches if length == longest]


def _choice_in(text: str) -> str | None:
    """Return the letter of a choice: B, (b), **B**, B) a dog, or `the answer is B`; `None` without one."""
    text = _MARKUP.sub("", text)
    whole, letters = _CHOICE.fullmatch(text.strip()), _CHOICE_IN_TEXT.findall(text)
    if whole is None:
        return letters[-1] if letters else None
    return str(whole[1] or whole[2]).upper()


def _words(text: str) -> list[str]:
    """Return words without capitals, punctuation and articles, unless there is nothing else: an answer may be A, or +.

    Numbers are written by their value. In digits that are not a number, punctuation stays: 1,5 is not 15.
    """
    if (number := number_in(text)) is not None:
        return [_by_value(number)]
    text = text.lower().translate(_MINUS_SIGNS)
    parts = []
    for word in text.split():
        number = number_in(word.strip(_AROUND))
        parts.append(_DROPPED.sub("", word) if number is None else _by_value(number))
    plain = " ".join(parts)
    return _ARTICLES.sub(" ", plain).split() or plain.split() or text.split()


def _by_value(number: Fraction) -> str:
    return str(number) if number.denominator == 1 else f"{float(number):.12g}"
