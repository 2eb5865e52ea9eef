"""What all tasks of the mechanism suite have in common: options, splits, words that are tokens, levels in order."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from mentalese import InputError
from mentalese.data.builtin import BUILTIN, described, open_builtin
from mentalese.data.documents import SPLITS, Source
from mentalese.data.tokenizers import corpus_encoder, open_tokenizer
from mentalese.suite.tasks import TASKS, Levels, task
from mentalese.suite.tasks.reachability import Reachability
from reachability_rules import RULES, rule_accuracy

DOCS = Path(__file__).parents[2] / "docs" / "tasks.md"
HARDER = {
    "topics": "length=128",
    "recall": "distance=32",
    "reachability": "hops=7-8,nodes=32",
    "composition": "length=9-16",
    "expressions": "depth=5-6",
    "phrases": "length=32",
    "concepts": "length=32",
}


def opened(spec: str) -> Source:
    return Source(f"builtin:{spec}", *open_builtin(spec))


def test_every_task_opens_as_a_source_with_its_three_splits() -> None:
    for name in TASKS:
        source = opened(f"{name}:count=100")
        assert source.kind == TASKS[name].kind
        counts = [sum(1 for _ in source.documents(split)) for split in SPLITS]
        assert counts[1:] == [500, 1000]
        assert counts[0] == 100
        assert sum(source.dropped.values()) == sum(source.empty.values()) == 0
        for document in islice(source.documents("test"), 20):
            assert document.segments
            assert "".join(document.segments) == document.text


def test_splits_share_no_document() -> None:
    for name in TASKS:
        found = {split: {document.text for document in task(f"{name}:count=2000").documents(split)} for split in SPLITS}
        assert not found["train"] & found["test"]
        assert not found["train"] & found["validation"]
        assert not found["validation"] & found["test"]


@pytest.mark.slow
def test_tasks_are_the_same_in_another_process() -> None:
    code = (
        "from mentalese.data.builtin import open_builtin; from mentalese.data.documents import Source\n"
        f"for name in {list(TASKS)}: print(Source(name, *open_builtin(name + ':count=50')).fingerprint)"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert other == [opened(f"{name}:count=50").fingerprint for name in TASKS]
    assert len(set(other)) == len(TASKS)


def test_a_document_does_not_depend_on_how_many_are_asked_for() -> None:
    for name in TASKS:
        first = list(task(f"{name}:count=3").documents("train"))
        assert first == list(islice(task(f"{name}:count=300").documents("train"), 3))
        assert first != list(task(f"{name}:count=3,seed=1").documents("train"))


def test_fingerprint_follows_options_not_their_spelling() -> None:
    same = {
        opened(spec).fingerprint for spec in ("recall:count=50", "recall:distance=8,count=50", "recall: count = 50")
    }
    assert len(same) == 1
    others = {opened(f"{name}:count=50,{options}").fingerprint for name, options in HARDER.items()}
    assert len(others | {opened(f"{name}:count=50").fingerprint for name in TASKS}) == 2 * len(TASKS)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("recal", "data.source is 'builtin:recal': no such built-in data; did you mean 'recall'"),
        ("xyz", "data.source is 'builtin:xyz': no such built-in data; use one of stdlib, families"),
        ("families:count=3", "builtin:families has no options, remove 'count=3'"),
    ],
)
def test_bad_names_are_refused_with_a_remedy(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_builtin(spec)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ("recall:distanc=3", "builtin:recall.distanc"),
        ("recall:distance=x", "builtin:recall.distance"),
        ("recall:distance=2-3", "builtin:recall.distance"),
        ("recall:distance", "builtin:recall.distance"),
        ("recall:distance=-1", "builtin:recall.distance"),
        ("recall:distance=3,distance=4", "builtin:recall"),
        ("recall:keys=33,key_words=1", "builtin:recall.keys"),
        ("recall:values=33", "builtin:recall.values"),
        ("recall:count=0", "builtin:recall.count"),
        ("topics:table=trigram", "builtin:topics.table"),
        ("topics:window=65", "builtin:topics.window"),
        ("phrases:words=2", "builtin:phrases.words"),
        ("phrases:order=65", "builtin:phrases.order"),
        ("concepts:words=5", "builtin:concepts.words"),
        ("concepts:phrases=25", "builtin:concepts.phrases"),
        ("concepts:tokens=6", "builtin:concepts.tokens"),
        ("concepts:order=65", "builtin:concepts.order"),
        ("concepts:memory=3", "builtin:concepts.memory"),
        ("reachability:hops=2", "builtin:reachability.hops"),
        ("reachability:hops=7,facts=words", "builtin:reachability.hops"),
        ("reachability:hops=4-3", "builtin:reachability.hops"),
        ("reachability:hops=3-4-5", "builtin:reachability.hops"),
        ("reachability:hops=7", "builtin:reachability.nodes"),
        ("reachability:steps=tree", "builtin:reachability.steps"),
        ("reachability:facts=words,nodes=19", "builtin:reachability.nodes"),
        ("composition:things=4", "builtin:composition.things"),
        ("composition:length=2", "builtin:composition.length"),
        ("expressions:depth=0-3", "builtin:expressions.depth"),
        ("expressions:steps=2", "builtin:expressions.steps"),
    ],
)
def test_bad_options_are_refused_by_their_name(spec: str, field: str) -> None:
    with pytest.raises(InputError, match=f"^{field}") as refused:
        open_builtin(spec)
    assert refused.value.field.startswith(field)


def test_all_built_in_sources_are_described() -> None:
    assert set(described()) == {f"builtin:{name}" for name in [*BUILTIN, *TASKS]}
    assert all(len(line) < 110 for line in described().values())


@pytest.mark.parametrize("name", [name for name in TASKS if TASKS[name].kind == "text"])
def test_every_word_is_one_token_also_beyond_the_trained_size(name: str, tmp_path: Path) -> None:
    encoder = corpus_encoder(open_tokenizer("bpe:512", opened(f"{name}:count=3000"), cache=tmp_path, show=False))
    for spec in (name, f"{name}:{HARDER[name]}"):
        for document in islice(task(spec).documents("test"), 200):
            assert document.segments
            for sentence in document.segments:
                assert encoder.encode(sentence).tokens == [f"Ġ{word}" for word in sentence.split()]


@pytest.mark.parametrize("name", TASKS)
def test_harder_documents_have_no_other_words(name: str) -> None:
    known = {word for document in task(f"{name}:count=5000").documents("train") for word in document.text.split()}
    harder = {word for d in islice(task(f"{name}:{HARDER[name]}").documents("test"), 200) for word in d.text.split()}
    assert harder <= known


def test_closed_share_is_0_at_the_floor_and_1_at_the_optimum() -> None:
    for levels in (Levels(2.0, 3.0, 3.5, "nats"), Levels(1.0, 0.5, 0.5, "accuracy")):
        assert levels.closed(levels.floor) == 0
        assert levels.closed(levels.optimum) == 1
        assert levels.closed((levels.floor + levels.optimum) / 2) == pytest.approx(0.5)


def test_a_task_without_a_gap_is_refused() -> None:
    with pytest.raises(InputError, match=r"the task's floor is 1\.0: that is its optimum too"):
        Levels(1.0, 1.0, 0.5, "accuracy").closed(0.7)


@pytest.mark.slow
def test_documentation_has_levels_and_example_of_each_task() -> None:
    text = DOCS.read_text()
    for name in TASKS:
        found = task(name).levels()
        numbers = [found.optimum, found.floor, found.chance]
        shown = [f"{100 * n:.1f}%" if found.unit == "accuracy" else f"{n:.3f}" for n in numbers]
        optimum, floor, chance = numbers if found.unit == "accuracy" else [-n for n in numbers]
        assert optimum > floor
        assert floor >= chance - 0.04, "a rule without any merit, on 1,000 questions"
        [row] = re.findall(rf"^\| `{name}` \|.*$", text, re.MULTILINE)
        assert [cell.strip() for cell in row.split("|")[4:7]] == shown
        example = next(task(name).documents("test")).text.strip()
        assert example.replace("\n", " ") in text.replace("\n", " ")


def test_the_documentation_has_what_each_rule_scores() -> None:
    found = [rule_accuracy(islice(Reachability(hops=(h, h)).questions("test"), 1000)) for h in (3, 4)]
    rows = dict(re.findall(r"^\| ([^|`]+) \| (\S+ \| \S+) \|$", DOCS.read_text(), re.MULTILINE))
    shown = {name: " | ".join(f"{100 * scores[name]:.1f}%" for scores in found) for name in RULES}
    assert {name: cells for name, cells in rows.items() if name in RULES} == shown


def test_distances_are_those_of_the_shortest_paths() -> None:
    """The path to the target has one edge per step; the false target is never reached from the root."""
    for question in islice(Reachability().questions("test"), 50):
        distances = question.distances()
        assert distances[question.root] == 0
        assert distances[question.target] == len(question.steps)
        assert distances[question.negative_target] is None
        for a, b in question.edges:
            assert distances[a] is None or (distances[b] is not None and distances[b] <= distances[a] + 1)
