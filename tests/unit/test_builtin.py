"""Built-in data: the same in every process, and true to its own ground truth."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from mentalese.data.builtin import BUILTIN, MIN_WORDS, stdlib
from mentalese.data.generated import families


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
        "import hashlib; from mentalese.data import builtin, generated; print(hashlib.sha256(repr(["
        "builtin.stdlib(), generated.families()[:300], generated.arithmetic()[:300], generated.prosqa_questions(300), "
        "generated.prosqa_questions(300, size=generated.SMALL)]).encode()).hexdigest())"
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


def test_stories_agree_with_themselves() -> None:
    parent = r"(\w+) is the (father|mother) of (\w+)|(\w+)'s (father|mother) is (\w+)"
    for document in families()[:200]:
        text, ages, parents = document.text, dict[str, str](), dict[tuple[str, str], str]()
        for name, age in re.findall(r"(\w+)(?:, who)? (?:is|turned) (\d+)", text):
            assert ages.setdefault(name, age) == age
        for older, younger in re.findall(r"(\w+) (?:is older than|was born before) (\w+)", text):
            assert int(ages.get(older, 99)) > int(ages.get(younger, 0))
        for a, kind, b, child, other_kind, name in re.findall(parent, text):
            key, name = ((b, kind), a) if a else ((child, other_kind), name)
            assert parents.setdefault(key, name) == name
            assert int(ages.get(name, 99)) - int(ages.get(key[0], 0)) >= 15


def test_families_has_sentences_as_segments() -> None:
    for document in BUILTIN["families"].documents()[:50]:
        assert document.segments
        assert "".join(document.segments) == document.text
        assert all(sentence.rstrip()[-1] == "." for sentence in document.segments)
