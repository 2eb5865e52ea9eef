"""`mentalese ablate`: one model, its own thoughts and each control, on the same tokens or questions."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mentalese import cli, get_recipe, load
from mentalese.compare.compare import compare
from mentalese.compare.report import print_comparison
from mentalese.errors import InputError
from mentalese.evaluation import ablation
from mentalese.evaluation.answer_rule import AnswerRule
from mentalese.evaluation.answers import AnswerRecord, Answers
from mentalese.evaluation.options import AblationOptions
from mentalese.files import read_json, write_json
from mentalese.models.influence import influence
from mentalese.models.thinking import document_ids
from mentalese.models.trace import Thought, ThoughtTrace
from mentalese.nn.controls import CONTROLS
from support import saved, shrink


def test_texts_are_scored_with_each_kind_of_thoughts(tmp_path: Path, corpus: Path) -> None:
    model = load(saved(tmp_path / "run", shrink(get_recipe("thought_gestalt/tiny"), corpus)))
    result = ablation.run(model, AblationOptions(split="train", documents=6))
    assert [part["thoughts"] for part in result["ablations"]] == ["own", *CONTROLS]
    assert (result["unit"], result["documents"]) == ("nats per token", 6)
    own, *others = result["ablations"]
    split = model.split("train")
    assert own["score"] == pytest.approx(model.scored_by(max_documents=6).perplexity(split).nll, rel=1e-5)
    assert own["difference"] is None
    for part in others:
        low, high = part["interval"]
        assert part["difference"] == pytest.approx(part["score"] - own["score"], abs=1e-5)
        assert low <= part["difference"] <= high
        assert part["difference"] != 0
    assert model.model.config.thought_control is None  # the model is as it was
    assert ablation.run(model, AblationOptions(split="train", documents=6)) == result  # noise and all


def test_the_protocol_names_the_tokens_that_are_scored(tmp_path: Path, corpus: Path) -> None:
    model = load(saved(tmp_path / "run", shrink(get_recipe("thought_gestalt/tiny"), corpus))).scored_by(tokens="all")
    result = ablation.run(model, AblationOptions(documents=2))
    own = model.scored_by(tokens="lexical", max_documents=2).perplexity(model.split("test"))
    assert result["tokens"] == own.tokens
    assert result["protocol"]["tokens"] == "lexical"


def test_the_table_names_a_bound(tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = saved(tmp_path / "run", shrink(get_recipe("latent_thought/tiny"), corpus))
    assert cli.main(["ablate", str(run), "--documents", "2"]) == 0
    assert capsys.readouterr().out.rstrip().endswith(" (elbo-bound)")


def test_thoughts_are_swapped_whatever_the_batch_size(tmp_path: Path, corpus: Path) -> None:
    model = load(saved(tmp_path / "run", shrink(get_recipe("thought_gestalt/tiny"), corpus)))
    scores = [
        {
            part["thoughts"]: part["score"]
            for part in ablation.run(one, AblationOptions(split="train", documents=2))["ablations"]
        }
        for one in (model.scored_by(batch_size=1), model.scored_by(batch_size=2))
    ]
    assert scores[0] == scores[1]
    assert scores[0]["swapped"] != scores[0]["removed"]


@pytest.mark.parametrize("name", ["thought_gestalt/tiny", "coconut/tiny"])
def test_nothing_is_swapped_where_there_is_no_other_text(tmp_path: Path, corpus: Path, name: str) -> None:
    model = load(saved(tmp_path / "run", shrink(get_recipe(name), corpus)))
    result = ablation.run(model, AblationOptions(documents=1))
    assert [part["thoughts"] for part in result["ablations"]] == ["own", "removed", "noisy"]


def test_a_model_that_ignores_its_thoughts_does_not_change(tmp_path: Path, corpus: Path) -> None:
    recipe = shrink(get_recipe("thought_gestalt/tiny"), corpus)
    model = load(saved(tmp_path / "run", dataclasses.replace(recipe, model=recipe.model | {"context_seeding": False})))
    with torch.no_grad():
        for block in model.model.blocks:
            if getattr(block, "memory_attention", None) is not None:
                block.memory_attention.gate.zero_()
    result = ablation.run(model, AblationOptions(split="train", documents=4))
    assert [part["difference"] for part in result["ablations"][1:]] == [0.0, 0.0, 0.0]


def test_questions_are_asked_and_the_table_is_in_points(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = saved(tmp_path / "run", shrink(get_recipe("coconut/tiny"), corpus))
    assert cli.main(["ablate", str(run), "--documents", "5", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["unit"], result["questions"]) == ("accuracy", 5)
    own, *others = result["ablations"]
    for part in others:  # an untrained model, five times wrong: other questions may be answered all the same
        low, high = part["interval"]
        assert (own["score"], part["difference"]) == (0.0, 0.0)
        assert (low, high) == (pytest.approx(0.025**0.2 - 1), pytest.approx(1 - 0.025**0.2))
    assert len(result["ablations"]) == 4


@pytest.mark.slow
def test_a_comparison_says_what_it_costs_to_lose_the_thoughts(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipes = [shrink(get_recipe(name), corpus) for name in ("gpt2/tiny", "thought_gestalt/tiny")]
    compared = compare(recipes, tmp_path, ablate=True, show=False)
    plain, thinking = compared["rows"]
    assert "ablation" not in plain
    folder = tmp_path / "thought_gestalt-tiny" / "seed-0"
    fingerprint = read_json(folder / "result.json")["fingerprint"]
    assert thinking["ablation"] == {"run": fingerprint} | ablation.run(load(folder))
    assert thinking["ablation"] == read_json(folder / "ablation.json")
    print_comparison(compared)
    [removed] = [part for part in thinking["ablation"]["ablations"] if part["thoughts"] == "removed"]
    shown = f"{removed['difference']:+.3f} nats/token"
    assert shown in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert shown in page
    assert cli.main(["ablate", str(folder), "--documents", "2", "--out", str(folder / "ablation.json")]) == 2
    assert "belongs to the run" in capsys.readouterr().err
    saved = load(folder)
    saved.model.config.memory_size = 1
    part = ablation.run(saved)
    write_json(folder / "ablation.json", part)  # by another command before, of the same documents
    assert compare(recipes, tmp_path, ablate=True, show=False)["rows"][1]["ablation"] == thinking["ablation"]
    assert read_json(folder / "ablation.json") == json.loads(json.dumps(part))
    write_json(folder / "ablation.json", thinking["ablation"])
    monkeypatch.setattr(ablation, "run", lambda *_, **__: pytest.fail("scored twice"))
    assert compare(recipes, tmp_path, ablate=True, show=False)["rows"][1]["ablation"] == thinking["ablation"]
    assert "ablation" not in compare(recipes, tmp_path, show=False)["rows"][1]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("gpt2/tiny", {}),
        ("latent_thought/tiny-ar", {}),
        ("conceptlm/tiny", {"thought_control": "swapped"}),
    ],
)
def test_a_model_without_thoughts_is_refused(name: str, fields: dict[str, str], tmp_path: Path, corpus: Path) -> None:
    model = load(saved(tmp_path / "run", shrink(get_recipe(name), corpus), **fields))
    with pytest.raises(InputError, match=f"model is '{model.path}': the model has no thoughts of its own, use one of"):
        ablation.run(model)


def test_each_latent_is_replaced_by_itself(tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = saved(tmp_path / "run", shrink(get_recipe("coconut/tiny-coconut"), corpus))
    latents = load(run).layout.asked()["latents"]
    assert cli.main(["ablate", str(run), "--documents", "4", "--each"]) == 0
    rows = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()[1:] if "%" in line]
    assert rows == ["own", *CONTROLS, *(f"thought {n + 1}, {control}" for n in range(latents) for control in CONTROLS)]


def test_the_only_question_has_nothing_to_swap(tmp_path: Path, corpus: Path) -> None:
    model = load(saved(tmp_path / "run", shrink(get_recipe("coconut/tiny-coconut"), corpus)))
    parts = ablation.run(model, AblationOptions(documents=1, each=True))["ablations"]
    assert {part["thoughts"].rpartition(", ")[2] for part in parts} == {"own", "removed", "noisy"}


def test_answers_of_others_count_only_if_they_differ() -> None:
    def answer(number: int, expected: str, given: str) -> AnswerRecord:
        return AnswerRecord(number, "", expected, answer=given)

    records = [answer(0, "1", "2"), answer(1, "2", "2"), answer(2, "2", "1")]
    answers = Answers(records, AnswerRule.of("", ["1"]), {})
    assert ablation._others(answers, {0: 1, 1: 2, 2: 0}) == 1.0  # the second has the same right answer as its donor
    assert ablation._others(answers, {0: 1, 1: 0, 2: 1}) == 0.5
    assert ablation._others(answers, {0: 0, 1: 2, 2: 1}) is None


@pytest.mark.parametrize(
    ("name", "names"),
    [
        pytest.param("thought_gestalt/tiny", ["0 back", "1 back"], marks=pytest.mark.slow),
        ("conceptlm/tiny", ["0 back", "1 back"]),
        pytest.param("latent_thought/tiny", ["thought 1", "thought 2"], marks=pytest.mark.slow),
        ("looped/tiny", ["thought 1"]),
    ],
)
def test_thoughts_of_texts_are_replaced_one_by_one(name: str, names: list[str], tmp_path: Path, corpus: Path) -> None:
    model = load(saved(tmp_path / "run", shrink(get_recipe(name), corpus)))
    plain = ablation.run(model, AblationOptions(split="train", documents=2))["ablations"]
    every = ablation.run(model, AblationOptions(split="train", documents=2, each=True))["ablations"]
    assert every[: len(plain)] == plain
    found = {part["thoughts"]: part for part in every[len(plain) :]}
    assert [*found][: len(names)] == [f"{name}, removed" for name in names]
    for part in found.values():
        assert part["score"] is None, "own thoughts' score is of other tokens"
    changed = [each for each in names if abs(found[f"{each}, removed"]["difference"]) > 1e-5]
    assert changed == (names[1:] if name == "thought_gestalt/tiny" else names)


def test_a_document_of_one_part_is_counted_by_distance_as_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = ([2, 4], [4])  # of the sentences of two documents
    traces = [
        ThoughtTrace(
            torch.arange(4),
            special=[False] * 4,
            thoughts=[Thought(torch.zeros(1), end - 2, end, "sentence") for end in each],
        )
        for each in ends
    ]
    model = SimpleNamespace(read_thoughts=lambda trace: [*range(len(trace.thoughts))], config=None)
    evaluation = SimpleNamespace(documents=lambda _: 2)
    saved_model = SimpleNamespace(model=model, evaluation=evaluation, trace=lambda ids: traces[ids[0]])
    monkeypatch.setattr(ablation, "document_ids", lambda _, __, number: [number])
    monkeypatch.setattr(ablation, "context_length", lambda _: None)
    monkeypatch.setattr(ablation, "influence", lambda model, ids: torch.ones(2, 4))
    split = SimpleNamespace(document_bytes=[4, 4])
    rows = ablation._changes(saved_model, split, show=False)
    assert [[*row] for row in rows] == [["0 back", "1 back"], ["0 back"]]
    rows.append({"0 back": torch.tensor([math.nan]), "2 back": torch.tensor([math.nan])})  # only ends of sentences
    several, one = ablation._one_by_one(rows)
    assert several["interval"] == (1.0, 1.0)
    assert one["interval"] is None, "one document has such tokens"


@pytest.mark.slow
def test_the_mean_of_one_thought_is_over_its_tokens(tmp_path: Path, corpus: Path) -> None:
    model = load(saved(tmp_path / "run", shrink(get_recipe("thought_gestalt/tiny"), corpus)))
    split = model.split("train")
    parts = ablation.run(model, AblationOptions(split="train", documents=2, each=True))["ablations"]
    before: list[float] = []
    for number in range(2):
        trace = model.trace(document_ids(model, split, number))
        nats = influence(model.model, trace.input_ids)
        for i, thought in enumerate(trace.thoughts[1:]):
            span = slice(thought.start, thought.end)
            values = zip(nats[i, span].tolist(), trace.special[span])
            before += [value for value, special in values if not (special or math.isnan(value))]
    [part] = [part for part in parts if part["thoughts"] == "1 back, removed"]
    assert part["difference"] == pytest.approx(sum(before) / len(before), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("thoughtbubbles/tiny", "each is True: the model's thoughts are decisions about single tokens"),
        ("looped/tiny-questions", "each is True: the model has no latents, or decides their number, leave out --each"),
    ],
)
def test_thoughts_that_cannot_be_counted_are_refused(
    name: str, message: str, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = shrink(get_recipe(name.removesuffix("-questions")), corpus)
    if name.endswith("questions"):
        recipe = dataclasses.replace(shrink(get_recipe("coconut/tiny"), corpus), model=recipe.model)
    model = load(saved(tmp_path / "run", recipe))
    monkeypatch.delattr(ablation, "_scored")  # before anything is scored
    with pytest.raises(InputError, match=message):
        ablation.run(model, AblationOptions(documents=1, each=True))
