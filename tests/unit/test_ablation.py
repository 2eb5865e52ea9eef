"""`mentalese ablate`: one model, its own thoughts and each control, on the same tokens or questions."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from mentalese import cli, get_recipe, load
from mentalese.compare.compare import compare
from mentalese.compare.report import print_comparison
from mentalese.errors import InputError
from mentalese.evaluation import ablation
from mentalese.evaluation.options import AblationOptions
from mentalese.files import read_json, write_json
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


def test_a_comparison_says_what_it_costs_to_lose_the_thoughts(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipes = [shrink(get_recipe(name), corpus) for name in ("gpt2/tiny", "thought_gestalt/tiny")]
    compared = compare(recipes, tmp_path, ablate=True, show=False)
    plain, thinking = compared["rows"]
    assert "ablation" not in plain
    folder = tmp_path / "thought_gestalt-tiny" / "seed-0"
    assert thinking["ablation"] == ablation.run(load(folder)) == read_json(folder / "ablation.json")
    print_comparison(compared)
    [removed] = [part for part in thinking["ablation"]["ablations"] if part["thoughts"] == "removed"]
    shown = f"{removed['difference']:+.3f} nats/token"
    assert shown in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert shown in page
    assert cli.main(["ablate", str(folder), "--documents", "2", "--out", str(folder / "ablation.json")]) == 2
    assert "belongs to the run" in capsys.readouterr().err
    part = ablation.run(load(folder), AblationOptions(documents=2))
    write_json(folder / "ablation.json", part)  # of somebody who was here before
    assert compare(recipes, tmp_path, ablate=True, show=False)["rows"][1]["ablation"] == thinking["ablation"]
    assert read_json(folder / "ablation.json") == json.loads(json.dumps(part))
    write_json(folder / "ablation.json", thinking["ablation"])
    monkeypatch.setattr(ablation, "run", lambda *_, **__: pytest.fail("scored twice"))
    assert compare(recipes, tmp_path, ablate=True, show=False)["rows"][1]["ablation"] == thinking["ablation"]
    assert "ablation" not in compare(recipes, tmp_path, show=False)["rows"][1]


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("gpt2/tiny", {}, "it has no thoughts to ablate, use a model"),
        ("latent_thought/tiny-ar", {}, "has no thoughts to ablate"),
        ("conceptlm/tiny", {"thought_control": "swapped"}, "thought_control of .* is 'swapped'"),
    ],
)
def test_a_model_without_thoughts_is_refused(
    name: str, fields: dict[str, str], message: str, tmp_path: Path, corpus: Path
) -> None:
    model = load(saved(tmp_path / "run", shrink(get_recipe(name), corpus), **fields))
    with pytest.raises(InputError, match=message):
        ablation.run(model)
