"""Built-in data: the same in every process, and true to its own ground truth."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from mentalese.data.builtin import BUILTIN, MIN_WORDS, stdlib
from mentalese.data.stories import family_stories


@pytest.mark.slow
def test_stdlib_is_english_prose_in_documents_of_some_length() -> None:
    documents = stdlib()
    assert len(documents) > 200
    assert all(len(document.text.split()) >= MIN_WORDS for document in documents)
    words = re.findall(r"[a-z]+", " ".join(document.text.lower() for document in documents))
    assert sum(word in {"the", "a", "of", "to", "is", "and", "in"} for word in words) > 0.12 * len(words)
    assert len({document.text for document in documents}) == len(documents)


@pytest.mark.slow
def test_builtin_data_is_the_same_in_every_process() -> None:
    """Question i does not depend on how many are made, so that a few show what would differ: the order of a set."""
    code = (
        "import hashlib; from mentalese.data import arithmetic, builtin, prosqa, stories; print(hashlib.sha256(repr(["
        "builtin.stdlib(), stories.family_stories(300), arithmetic.word_problems(300), prosqa.prosqa_questions(300), "
        "prosqa.prosqa_questions(300, size=prosqa.SMALL)]).encode()).hexdigest())"
    )
    first, second = (
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    )
    assert first == second


def test_stories_agree_with_their_facts() -> None:
    for story in family_stories(200):
        people = {person.name: person for person in story.people}
        assert len(people) == len(story.people)
        text = " ".join(story.sentences)
        for name, age in re.findall(r"(\w+)(?:, who)? (?:is|turned) (\d+)", text):
            assert people[name].age == int(age)
        for name, city in re.findall(r"(\w+) lives in (\w+)", text):
            assert name not in people or people[name].city == city
        for older, younger in re.findall(r"(\w+) (?:is older than|was born before) (\w+)", text):
            assert people[older].age > people[younger].age
        for parent, child in re.findall(r"(\w+) is the (?:father|mother) of (\w+)", text):
            assert (parent, child) in story.parents
        for child, parent in re.findall(r"(\w+) is the (?:son|daughter) of (\w+)", text):
            assert (parent, child) in story.parents
        for husband, wife in re.findall(r"(\w+) is married to (\w+)", text):
            assert (husband, wife) in story.couples


def test_stories_have_every_parent_at_possible_ages() -> None:
    for story in family_stories(200):
        people = {person.name: person for person in story.people}
        for parent, child in story.parents:
            assert people[parent].age - people[child].age >= 15
            assert people[child].age > 0
            assert any(
                re.search(rf"\b{parent}\b", sentence)
                and re.search(rf"\b{child}\b", sentence)
                and re.search("father|mother|son|daughter", sentence)
                for sentence in story.sentences
            )


def test_a_story_does_not_depend_on_the_count() -> None:
    assert family_stories(3) == family_stories(5)[:3]
    assert family_stories(3, seed=1) != family_stories(3, seed=2)


def test_families_has_sentences_as_segments() -> None:
    for document in BUILTIN["families"].documents()[:50]:
        assert document.segments
        assert "".join(document.segments) == document.text
        assert all(sentence.rstrip()[-1] == "." for sentence in document.segments)
