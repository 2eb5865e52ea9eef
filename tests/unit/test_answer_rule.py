"""Answers are read and compared as people read and compare them."""

from __future__ import annotations

import pytest

from mentalese.evaluation.answer_rule import (
    AnswerRule,
    exact_match,
    f1,
    final_answer,
    free_answer,
    free_answer_ended,
    number_in,
)

EQUAL = [
    ("70", "70.0"),
    ("12", "12.0"),
    ("5", "$5"),
    ("5", "€ 5"),
    ("5", "5 €"),
    ("-5", "\u22125"),
    ("-5", "\uff0d5"),
    ("-5", "-$5"),
    ("-5", "$-5"),
    ("-5", "-5.0"),
    ("+5", "5"),
    ("5.", "5"),
    (".5", "0.5"),
    ("-.5", "-0.5"),
    ("50", "50%"),
    ("50", r"50 \%"),
    ("1,234", "1234"),
    ("1,234,567.50", "1234567.5"),
    ("1\u202f234", "1234"),
    ("5e3", "5000"),
    ("1.5E-3", "0.0015"),
    ("5 × 10^3", "5000"),
    ("1/2", "0.5"),
    ("1/2", "2/4"),
    ("1 1/2", "1.5"),
    ("\u00bd", "1/2"),
    ("1\u00bd", "3/2"),
    ("0.30000000000000004", "0.3"),
    ("0", "-0"),
]
UNEQUAL = [
    ("-5", "5"),
    ("\u22125", "5"),
    ("1.5", "15"),
    ("70.0", "700"),
    ("1/2", "12"),
    ("1,5", "15"),
    ("3,4", "34"),
    ("12,34", "1234"),
    ("1,2345", "12345"),
    ("1,2,3", "123"),
    ("1.234,5", "1234.5"),
    ("3:45", "345"),
    ("10-3", "103"),
    ("5\u00b2", "52"),
    ("1/0", "0"),
    ("1-2", "-1"),
    ("--5", "5"),
    ("5e3", "53"),
    ("1e-5", "1e5"),
    ("12345678901234567", "12345678901234568"),
    ("9" * 5000, "9"),
    ("", "0"),
    ("five", "5"),
]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_numbers_are_equal_by_value(one: str, other: str) -> None:
    rule = AnswerRule("number")
    assert rule.equal(one, other)
    assert rule.equal(other, one)
    assert exact_match(one, other)
    assert f1(one, other) == 1


@pytest.mark.parametrize(("one", "other"), UNEQUAL)
def test_other_numbers_differ_by_every_score(one: str, other: str) -> None:
    rule = AnswerRule("number")
    assert not rule.equal(one, other)
    assert not rule.equal(other, one)
    assert not exact_match(one, other)
    assert f1(one, other) == 0


def test_text_is_compared_to_the_letter() -> None:
    rule = AnswerRule("text")
    assert rule.equal("70", "70")
    assert not rule.equal("70", "70.0")
    assert not rule.equal("Yes", "yes")
    assert AnswerRule("number").equal("a jelpus", "a jelpus")
    assert not AnswerRule("number").equal("A jelpus", "a jelpus")


@pytest.mark.parametrize(
    ("answer", "expected", "right"),
    [
        ("B", "B", True),
        ("(b)", "B", True),
        ("B.", "(B)", True),
        ("B) a dog", "B", True),
        ("The answer is (B).", "B", True),
        ("The correct answer is **B**.", "B", True),
        ("The answer is **B. plant**", "B", True),
        ("**B**", "B", True),
        (r"Answer: \boxed{B}", "B", True),
        (r"$\text{(B)}$", "B", True),
        ("The correct option is B because dogs bark", "B", True),
        ("the answer is A dog", "A", False),
        ("C", "B", False),
        ("A dog", "A", False),
        ("the answer is a dog", "A", False),
        ("", "A", False),
        ("a dog", "a dog", True),
        ("a dog", "a cat", False),
    ],
)
def test_choices_are_compared_by_their_letter(answer: str, expected: str, right: bool) -> None:
    assert AnswerRule("choice").equal(answer, expected) is right


@pytest.mark.parametrize(
    ("source", "answers", "rule"),
    [
        ("gsm8k:FOLDER", [], "number"),
        ("gsm8k-aug:FOLDER", [], "number"),
        ("hotpotqa:FOLDER", ["1984"], "text"),
        ("builtin:arithmetic", ["7"], "text"),
        ("file:my.jsonl", ["yes", "7"], "number"),
        ("python:0123", ["-1/2"], "number"),
        ("file:my.jsonl", ["yes", "no"], "text"),
    ],
)
def test_a_source_has_the_rule_of_its_paper_or_answers(source: str, answers: list[str], rule: str) -> None:
    assert AnswerRule.of(source, answers).name == rule
    assert AnswerRule.of(source, answers, "choice").name == "choice"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The U.S.", "us"),
        ("well-known", "wellknown"),
        ("a 5-year-old", "5yearold"),
        ("They paid $1,234.50.", "they paid 1234.5"),
        ("from 3 to -3", "from 3 to \u22123"),
    ],
)
def test_words_lose_punctuation_and_numbers_do_not(text: str, words: str) -> None:
    assert exact_match(text, words)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("### 1,234", "1234"),
        ("### 12,345.5", "12345.5"),
        ("### 1,5", "1,5"),
        ("### 1,2,3", "1,2,3"),
        ("## Step 1: 5\n#### 7", "7"),
        ("### red, green", "red, green"),
    ],
)
def test_only_separators_of_thousands_are_removed(text: str, answer: str) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\u22127", "-7"),
        ("It is .5", "0.5"),
        ("So 5e3.", "5000"),
        ("1,2,3", "1,2,3"),
        ("## Step 1: 5\n#### 7", "7"),
        ("## Step 1: 5\n\n#### 7", "7"),
        ("### Step 1: 5\n### Step 2: 6\n### 7", "7"),
        ("## Step 1: add\nSo it is 7", "7"),
        ("# 7", "7"),
        ("#### $7", "7"),
        ("#### 1,234 apples", "1234"),
        ("#### **7** (seven)", "7"),
        ("#### \\boxed{7}", "7"),
        ("3 and 4\n### Answer: 7", "7"),
        ("### 1. Add 3 and 4.\nIt is 7.", "7"),
        ("I am #1 with 7 points", "7"),
        ("### 1st step\nIt is 7", "7"),
        ("### 3 + 4\nIt is 7", "7"),
        ("a 9\n#### 7. She makes it.", "7"),
        ("a 9\n#### \\$7 left", "7"),
        ("### 7 dollars\n    # 5 apples", "7"),
        ("10-3=7.", "7"),
        ("x = -$1,234.5.", "-1234.5"),
        ("- 5 apples", "5"),
        ("**50%**", "50"),
        ("that is \u00bd", "1/2"),
        ("1 1/2 cups", "1 1/2"),
        ("on 3/4/2020", "3/4/2020"),
    ],
)
def test_free_answers_keep_sign_point_and_exponent(text: str, answer: str) -> None:
    assert free_answer(text, "5", whole=False) == free_answer(text, "5", whole=True) == answer
    assert number_in("1,2,3") is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("To find it, we add the apples.\n\n3 + 4 = 7\n\nThe answer is 7.", "7"),
        ("Her ducks lay 16 eggs.\n\nShe sells 9 for $2.\n\n#### 18", "18"),
        ("### Step 1: 3 + 4\n\n3 + 4 = 7\n\n### Step 2: 7 - 5\n\nThe total is **2**.", "2"),
    ],
)
def test_of_a_chat_model_the_whole_text_is_read(text: str, answer: str) -> None:
    assert free_answer(text, "5", whole=True) == answer != free_answer(text, "5", whole=False)


@pytest.mark.parametrize(
    ("text", "expected", "answer"),
    [
        ("The answer is **B**.\n\n### Explanation\nBecause dogs bark.", "B", None),
        ("Dogs bark.\n\nSo the answer is (B).", "B", None),
        ("Paris\n\n# Notes\nIt is in France.", "Paris", "Paris"),
        ("It is in France.\n\n#### Paris", "Paris", "Paris"),
    ],
)
def test_headings_of_a_chat_model_are_not_answers(text: str, expected: str, answer: str | None) -> None:
    read = free_answer(text, expected, whole=True)
    assert read == answer if answer else AnswerRule("choice").equal(read, expected)


def test_a_free_answer_ends_before_a_line_or_a_shot() -> None:
    assert free_answer_ended("#### 7\nmore")
    assert free_answer_ended("\n\nIt is 7.\n\nQ")
    assert not free_answer_ended("#### 7")
    assert not free_answer_ended("I am #1\nand")
    assert not free_answer_ended("It is 7\nand")
