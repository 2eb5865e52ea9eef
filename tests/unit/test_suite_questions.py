"""`recall`, `reachability`, `composition` and `expressions`: true to their own words, and without shortcuts."""

from __future__ import annotations

import ast
import math
import re
from collections import Counter, defaultdict
from itertools import islice, pairwise, permutations, product
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from mentalese.data.builtin import open_builtin
from mentalese.data.documents import SPLITS, Document, Source
from mentalese.data.generated import Question
from mentalese.data.tokenizers import corpus_encoder, open_tokenizer
from mentalese.suite.tasks import Levels, task
from mentalese.suite.tasks.composition import Composition
from mentalese.suite.tasks.expressions import Expressions, distributions
from mentalese.suite.tasks.reachability import Reachability
from mentalese.suite.tasks.recall import Recall
from reachability_rules import RULES, rule_accuracy


def parts(document: Document) -> tuple[str, list[str], str]:
    """Question, steps, answer."""
    question, *steps, answer = document.segments or ()
    return question.strip(), [step.strip() for step in steps], answer.removeprefix("### ")


# -- recall ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recall", [Recall(), Recall(distance=1, keys=1), Recall(distance=20, keys=7, values=7)])
def test_bindings_stand_at_the_distance_and_not_nearer(recall: Recall) -> None:
    distances = []
    for document in islice(recall.documents("test"), 200):
        words, sentences = document.text.split(), document.segments or ()
        place = recall.answer(document)
        assert words[place - 1] == "?"
        assert "?" not in words[: place - 1], "a later question may repeat an answer"
        assert words.count("?") == 8
        value, (first, second) = words[place], words[place - 3 : place - 1]
        told = [i for i, sentence in enumerate(sentences) if sentence.startswith(f" {first} {second} owns")]
        assert [sentences[i].split()[3] for i in told] == [value]
        distances.append(place // 5 - told[0])
    assert min(distances) == recall.distance
    assert max(distances) == recall.distance + recall.keys - 1
    assert len(set(distances)) == recall.keys  # a fixed offset does not find the value


def test_every_question_has_the_value_of_its_key() -> None:
    for split in SPLITS:
        for document in islice(Recall(keys=3).documents(split), 200):
            bound = {}
            for sentence in document.segments or ():
                *key, verb, value, _ = sentence.split()
                if verb == "owns":
                    bound[tuple(key)] = value
                elif verb == "?":
                    assert bound[tuple(key)] == value
            assert len(set(bound.values())) == len(bound), "a value belongs to one key"


def test_values_say_nothing_about_whose_they_are() -> None:
    """With as many values as keys, neither the key, the place of its binding nor what is near says the value."""
    recall = Recall(values=4, key_words=1, distance=2)
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for document in islice(recall.documents("test"), 1000):
        words = document.text.split()
        place = recall.answer(document)
        value, told = words[place], words.index(words[place - 2])
        seen["all"][value] += 1
        seen[f"binding {told // 5}"][value] += 1
        seen[f"before {words[4 * 5 - 2]}"][value] += 1  # the last binding's value
    assert {len(counts) for counts in seen.values()} == {4}
    for name, counts in seen.items():
        expected = sum(counts.values()) / 4
        spread = sum((count - expected) ** 2 / expected for count in counts.values())
        assert spread < 3 + 6 * math.sqrt(6), name
    by_key: dict[str, Counter[str]] = defaultdict(Counter)
    for document in recall.documents("train"):
        words = document.text.split()
        place = recall.answer(document)
        by_key[words[place - 2]][words[place]] += 1
    assert len(by_key) == 32
    assert fmean(max(counts.values()) / counts.total() for counts in by_key.values()) < 0.25 + 0.03


def test_keys_of_the_splits_differ_and_their_words_do_not() -> None:
    pairs = Recall().pairs
    assert sum(map(len, pairs.values())) == len(set().union(*pairs.values())) == 1024
    for i in (0, 1):
        assert len({pair.split()[i] for pair in pairs["train"]}) == 32
    asked = {
        split: set(re.findall(r" (\w+ \w+) \?", " ".join(d.text for d in Recall(count=2000).documents(split))))
        for split in SPLITS
    }
    assert not asked["train"] & asked["test"]
    assert not asked["train"] & asked["validation"]


def test_easier_documents_are_only_in_training() -> None:
    def shapes(split: str) -> Counter[tuple[int, int]]:
        """Count the bindings and the irrelevant sentences of documents."""
        made = [document.segments or () for document in task("recall:distance=6,keys=3,count=1000").documents(split)]
        keys = [sum(" owns " in sentence for sentence in sentences) for sentences in made]
        return Counter((n, len(sentences) - n - 8 + 1) for n, sentences in zip(keys, made))

    found = shapes("train")
    assert sorted(found) == [(keys, distance) for keys in (1, 2, 3) for distance in (1, 2, 4, 6)]
    assert min(found.values()) > 50
    assert set(shapes("test")) == set(shapes("validation")) == {(3, 6)}


def test_recall_floor_knows_values_and_not_whose_they_are() -> None:
    assert Recall(keys=4, values=4).levels() == Levels(1.0, 0.25, 0.25, "accuracy")
    assert Recall(keys=2, values=16).levels() == Levels(1.0, 0.5, 1 / 16, "accuracy")


# -- reachability ------------------------------------------------------------------------------------------------------


def reach(question: Question, start: int) -> dict[int, int]:
    """Distances by breadth-first search, independently of the generator."""
    found, front = {start: 0}, [start]
    for node in front:
        for parent, child in question.edges:
            if parent == node and child not in found:
                found[child] = found[node] + 1
                front.append(child)
    return found


@pytest.mark.parametrize("spec", ["reachability", "reachability:hops=7-8,nodes=32", "reachability:hops=3,nodes=40"])
def test_candidate_is_reached_in_as_many_steps_as_written(spec: str) -> None:
    chosen = task(spec)
    assert isinstance(chosen, Reachability)
    for question, document in zip(islice(chosen.questions("test"), 500), chosen.documents("test")):
        text, steps, answer = parts(document)
        assert (text, steps, answer) == (question.question, list(question.steps), question.answer)
        distances = reach(question, question.root)
        assert question.negative_target not in distances
        hops = distances[question.target]
        assert chosen.hops[0] <= hops == len(steps) <= chosen.hops[1]
        children = {child for _, child in question.edges}
        people = [i for i in range(len(question.symbols)) if i not in children]
        assert people == [i for i, word in enumerate(question.symbols) if word[0].isupper()]
        # The other candidate is as far from somebody who does not reach the true one.
        others = [reach(question, person) for person in people if person != question.root]
        assert any(o.get(question.negative_target) == hops and question.target not in o for o in others)
        assert all(child > parent for parent, child in question.edges)
        words = question.symbols
        sentences = [f"{'' if a in people else 'Every '}{words[a]} is a {words[b]}." for a, b in question.edges]
        facts, asked = text.rsplit(". Is ", 1)
        assert sorted(f"{facts}.".replace(". ", ".|").split("|")) == sorted(sentences)
        assert set(steps) <= set(sentences)
        assert steps[0].split()[0] == words[question.root]
        assert steps[-1].endswith(f" is a {words[question.target]}.")
        names = {words[question.target], words[question.negative_target]}
        assert {*re.findall(r"a (\w+) or (\w+)\?", asked)[0]} == names
        for before, after in pairwise(steps):
            assert after.startswith(f"Every {before.removesuffix('.').split()[-1]} is")


@pytest.mark.parametrize("spec", ["reachability:hops=3,nodes=11", "reachability:hops=7-8,nodes=32"])
def test_steps_of_a_search_are_all_edges_at_each_distance(spec: str) -> None:
    paths, chosen = task(spec), task(f"{spec},steps=frontier")
    assert isinstance(chosen, Reachability)
    ordered = set[bool]()
    for question, path, document in zip(
        islice(chosen.questions("test"), 300), paths.documents("test"), chosen.documents("test")
    ):
        text, steps, answer = parts(document)
        assert (text, answer) == (parts(path)[0], parts(path)[2])  # the questions do not depend on the steps
        distances, words = reach(question, question.root), question.symbols
        assert len(steps) == distances[question.target]
        for distance, step in enumerate(steps):
            found = [
                f"{'' if words[a][0].isupper() else 'Every '}{words[a]} is a {words[b]}."
                for a, b in question.edges
                if distances.get(a) == distance
            ]
            facts = step.replace(". ", ".|").split("|")
            assert sorted(facts) == sorted(found)
            assert set(facts) <= set(text.replace(". ", ".|").split("|"))
            ordered.add(facts == found)
        assert f" is a {words[question.target]}." in steps[-1]
    assert ordered == {True, False}  # drawn, not that of the graph


def test_pairs_of_words_are_the_same_questions() -> None:
    sentences, pairs = (task(f"reachability:hops=3,nodes=11,steps=frontier{more}") for more in ("", ",facts=pairs"))
    assert sentences.levels() == pairs.levels()
    for long, short in zip(sentences.documents("test"), pairs.documents("test")):
        asked, steps, answer = parts(long)
        facts, root, first, second = re.fullmatch(r"(.*) Is (\w+) a (\w+) or (\w+)\?", asked).groups()  # type: ignore[union-attr]
        expected = f"{in_pairs(facts)} ? {root} {first} {second}", [in_pairs(step) for step in steps], in_pairs(answer)
        assert parts(short) == expected


def test_one_word_facts_are_the_same_graphs(tmp_path: Path) -> None:
    sentences, words = (task(f"reachability:hops=3,nodes=11,steps=frontier{more}") for more in ("", ",facts=words"))
    assert isinstance(sentences, Reachability)
    assert isinstance(words, Reachability)
    assert sentences.levels() == words.levels()
    spec = "reachability:hops=3,nodes=11,steps=frontier,facts=words,count=5000"
    source = Source(f"builtin:{spec}", *open_builtin(spec))
    encoder = corpus_encoder(open_tokenizer("bpe:640", source, cache=tmp_path, show=False))
    for long, short in zip(islice(sentences.questions("test"), 300), words.questions("test")):
        assert long.edges == short.edges  # names, and which of the two people is asked about, are drawn after them
        names = short.symbols
        facts, asked = short.question.removeprefix("> ").split(" ? ")
        assert sorted(facts.split()) == sorted(f"{names[a]}{names[b]}" for a, b in short.edges)
        root, *candidates = asked.split()
        assert root == names[short.root]
        assert sorted(candidates) == sorted(names[end] for end in (short.target, short.negative_target))
        assert short.answer == names[short.target]
        distances = reach(short, short.root)
        for distance, step in enumerate(short.steps):
            found = [f"{names[a]}{names[b]}" for a, b in short.edges if distances.get(a) == distance]
            assert sorted(step.removeprefix("> ").split()) == sorted(found)
        for line in (short.question, *short.steps):
            assert encoder.encode(line).tokens == [">", *(f"Ġ{word}" for word in line.split()[1:])]


def in_pairs(facts: str) -> str:
    return re.sub(r"(?:Every )?(\w+) is a (\w+)\.", r"> \1 \2", facts)


def test_graphs_are_of_the_size_that_was_measured() -> None:
    questions = list(islice(Reachability().questions("train"), 2000))
    assert fmean(len(q.symbols) for q in questions) == pytest.approx(13.6, abs=0.4)
    assert fmean(len(q.edges) for q in questions) == pytest.approx(16, abs=0.5)


def colours(question: Question) -> list[int]:
    """Colour refinement of the graph, nodes without names, the person who is asked about unknown."""
    found = [0] * len(question.symbols)
    for _ in found:
        views = [
            (
                found[node],
                tuple(sorted(found[a] for a, b in question.edges if b == node)),
                tuple(sorted(found[b] for a, b in question.edges if a == node)),
            )
            for node in range(len(found))
        ]
        order = sorted(set(views))
        found = [order.index(view) for view in views]
    return found


def test_candidates_look_alike_from_every_distance() -> None:
    for spec in ("reachability", "reachability:hops=7-8,nodes=32"):
        chosen = task(spec)
        assert isinstance(chosen, Reachability)
        for question in islice(chosen.questions("test"), 100):
            found = colours(question)
            assert found[question.target] == found[question.negative_target]


def test_search_answers_everything_and_local_rules_nothing() -> None:
    by_hops = {hops: rule_accuracy(islice(Reachability(hops=(hops, hops)).questions("test"), 2000)) for hops in (3, 4)}
    for hops, found in by_hops.items():
        assert found.keys() == RULES.keys()
        for name, accuracy in found.items():
            what, forward, back = RULES[name]
            if what == "search" and forward + back >= hops:
                assert accuracy == 1.0
            else:
                assert abs(accuracy - 0.5) < 0.04, name
        for name in ("1 forward, 1 back", "2 forward, 0 back", "0 forward, 2 back", "named more often"):
            assert found[name] == 0.5
    assert by_hops[4]["2 forward, 2 back"] == by_hops[3]["2 forward, 1 back"] == 1.0


def test_degrees_around_the_candidates_do_not_tell_them_apart() -> None:
    """Where the two sides only grow alike, a rule learned from these is right in 59% of questions of 3 hops."""
    for question in islice(Reachability(hops=(3, 3)).questions("train"), 1000):
        out, into = Counter(a for a, _ in question.edges), Counter(b for _, b in question.edges)
        views = []
        for end in (question.target, question.negative_target):
            near = {a for a, b in question.edges if b == end}
            far = {a for a, b in question.edges if b in near}
            views.append([sorted(degree[node] for node in ring) for ring in (near, far) for degree in (out, into)])
        assert views[0] == views[1]


def test_no_two_candidates_are_asked_about_in_two_splits() -> None:
    asked: dict[str, set[frozenset[str]]] = {}
    graphs: dict[str, set[tuple[str, ...]]] = {}
    for split in SPLITS:
        questions = list(islice(Reachability().questions(split), 1500))
        asked[split] = {frozenset((q.symbols[q.target], q.symbols[q.negative_target])) for q in questions}
        graphs[split] = {tuple(sorted(f"{q.symbols[a]} {q.symbols[b]}" for a, b in q.edges)) for q in questions}
    for first, second in (("train", "test"), ("train", "validation"), ("validation", "test")):
        assert not asked[first] & asked[second]
        assert not graphs[first] & graphs[second]
    assert {word for pair in asked["test"] for word in pair} <= {word for pair in asked["train"] for word in pair}


# -- composition -------------------------------------------------------------------------------------------------------


def composed(moves: list[str]) -> str:
    """By moving things, independently of the generator's table."""
    things = moves[0]
    for move in moves[1:]:
        things = "".join(things["abcde".index(letter)] for letter in move)
    return things


@pytest.mark.parametrize("composition", [Composition(), Composition(things=5, length=(2, 16)), Composition(steps=0)])
def test_products_are_those_of_the_permutations(composition: Composition) -> None:
    lengths = Counter[int]()
    for document in composition.documents("test"):
        question, steps, answer = parts(document)
        moves = question.removesuffix(" =").split()
        assert answer == composed(moves)
        assert steps == ([composed(moves[: i + 1]) for i in range(len(moves))] if composition.steps else [])
        lengths[len(moves)] += 1
    low, high = composition.length
    assert set(lengths) == set(range(low, high + 1))


def test_permutations_are_a_group() -> None:
    table = Composition().group_table
    assert all(table[table[a][b]][c] == table[a][table[b][c]] for a, b, c in product(table, repeat=3))
    assert table["bac"]["cab"] != table["cab"]["bac"]


def sign(word: str) -> int:
    return math.prod(1 if a < b else -1 for i, a in enumerate(word) for b in word[i + 1 :])


@pytest.mark.parametrize("things", [3, 5])
def test_composition_floor_is_the_best_guess_from_the_sign(things: int) -> None:
    """Enumerated for two permutations, and counted on documents."""
    elements = ["".join(word) for word in permutations("abcde"[:things])]
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for a, b in product(elements, repeat=2):
        assert sign(a) * sign(b) == sign(composed([a, b]))
        counts[sign(a) * sign(b)][composed([a, b])] += 1
    levels = Composition(things=things).levels()
    best = sum(max(count.values()) for count in counts.values()) / len(elements) ** 2
    assert levels.floor == pytest.approx(best)
    assert levels.chance == pytest.approx(1 / len(elements))
    answers = [parts(document)[2] for document in Composition(things=things).documents("train")]
    shares = np.array([answers.count(element) for element in elements]) / len(answers)
    assert abs(shares - 1 / len(elements)).max() < 5 / math.sqrt(len(answers) * len(elements))


# -- expressions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expressions", [Expressions(), Expressions(depth=(1, 6)), Expressions(steps=0)])
def test_values_are_those_that_python_finds(expressions: Expressions) -> None:
    depths = Counter[int]()
    for document in expressions.documents("test"):
        question, steps, answer = parts(document)
        assert int(answer) == eval(question) % 10
        if expressions.steps:
            assert len(steps) == question.count("(")
            left = question
            for step in steps:  # each is a bracket of digits that are there by then
                bracket, value = step.split(" = ")
                assert eval(bracket) % 10 == int(value)
                assert f"( {bracket} )" in left
                left = left.replace(f"( {bracket} )", value, 1)
            assert left == answer
        else:
            assert steps == []
        nested, depth = question, 0
        while "(" in nested:
            nested, depth = re.sub(r"\( [^()]* \)", "0", nested), depth + 1
        assert expressions.group(document) == depth
        depths[depth] += 1
    assert set(depths) == set(range(expressions.depth[0], expressions.depth[1] + 1))


def test_swapped_operands_are_in_the_same_split() -> None:
    def forms(node: ast.expr) -> frozenset[str]:
        """Return all ways to write an expression by swapped operands of `+` and `*`."""
        if not isinstance(node, ast.BinOp):
            return frozenset([ast.unparse(node)])
        pairs = list(product(forms(node.left), forms(node.right)))
        sign = type(node.op).__name__
        return frozenset(
            f"({a} {sign} {b})" for pair in pairs for a, b in ([pair] if sign == "Sub" else [pair, pair[::-1]])
        )

    seen: dict[str, set[frozenset[str]]] = {}
    for split in SPLITS:
        documents = islice(task("expressions:depth=2,count=3000").documents(split), 3000)
        seen[split] = {forms(ast.parse(parts(document)[0], mode="eval").body) for document in documents}
    assert not seen["train"] & (seen["validation"] | seen["test"])
    assert not seen["validation"] & seen["test"]
    assert len(seen["test"]) > 500


def test_the_levels_of_expressions_equal_enumeration() -> None:
    """All expressions of depth 1 and 2 with their probabilities, and counts of generated ones for the deeper."""
    leaves = [(str(digit), digit, 0.1) for digit in range(10)]

    def brackets(lefts: list[tuple[str, int, float]], rights: list[tuple[str, int, float]], share: float):  # type: ignore[no-untyped-def]
        for (a, left, p), (b, right, q) in product(lefts, rights):
            for operation, value in (("+", left + right), ("-", left - right), ("*", left * right)):
                yield f"( {a} {operation} {b} )", value % 10, p * q * share / 3

    one = list(brackets(leaves, leaves, 1.0))
    two = [*brackets(one, leaves, 0.25), *brackets(leaves, one, 0.25), *brackets(one, one, 0.5)]
    for depth, every in ((1, one), (2, two)):
        values = np.zeros(10)
        for _, value, probability in every:
            values[value] += probability
        np.testing.assert_allclose(distributions(depth)[depth], values, atol=1e-12)
        levels = Expressions(depth=(depth, depth)).levels()
        assert levels.chance == pytest.approx(values.max())
        seen: dict[str, np.ndarray] = {}
        for text, value, probability in every:  # the outermost bracket: those inside are `x`
            seen.setdefault(re.sub(r"\( [^()]* \)", "x", text[1:-1]), np.zeros(10))[value] += probability
        assert levels.floor == pytest.approx(sum(counts.max() for counts in seen.values()))
    answers = [int(parts(document)[2]) for document in Expressions(depth=(4, 4)).documents("train")]
    np.testing.assert_allclose(np.bincount(answers) / len(answers), distributions(4)[4], atol=0.02)


def test_records_without_steps_are_read_as_question_and_answer() -> None:
    for name in ("composition", "expressions"):
        document = next(task(f"{name}:steps=0").documents("test"))
        assert len(document.segments or ()) == 2
        assert document.text.splitlines()[1].startswith("### ")
