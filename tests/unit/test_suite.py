"""The suite: tasks with their methods, the share of the gap that each closes, and a page that claims no more."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import escape

from comparisons import HOSTILE
from mentalese import cli
from mentalese.compare.compare import compare
from mentalese.data.evaluation import evaluation_batches
from mentalese.data.store import prepare
from mentalese.errors import InputError
from mentalese.evaluation.statistics import confidence_of, paired_t_test, summary
from mentalese.files import read_json
from mentalese.models.build import build_model
from mentalese.recipe import Recipe
from mentalese.suite import judge as suite_judge
from mentalese.suite import run as suite_run
from mentalese.suite.demo import run_demo
from mentalese.suite.demo_models import DEMO
from mentalese.suite.judge import (
    add_equal_flops,
    add_tests,
    answer_levels,
    interval,
    judge,
    levels_of,
    nats_at,
    part_nats,
    solved,
    undecided,
    verdict,
)
from mentalese.suite.methods import Method, SuiteTask
from mentalese.suite.recipes import DEFAULT, RECIPES, SUITE
from mentalese.suite.run import Schedule, run_suite, suite_page
from mentalese.suite.tasks import Levels, task
from support import module_at

ROOT = Path(__file__).parents[2]
HEALTHY = {"signs": {}, "healthy": 0, "reason": ""}


@pytest.fixture(autouse=True)
def healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons here have no runs on disk; tests/unit/test_suite_health.py measures real ones."""
    monkeypatch.setattr(suite_judge, "health", lambda runs: HEALTHY | {"worth": [None] * len(runs)})


@pytest.mark.parametrize("name", DEFAULT)
def test_each_mechanism_stands_beside_its_twin_and_its_control(name: str) -> None:
    made = SUITE[name](1.0)
    roles = {
        family: {m.role for m in made.methods if m.family == family} for family in {m.family for m in made.methods}
    }
    mechanisms = {m.family for m in made.methods if m.role == "mechanism"}
    assert made.methods[0].role == "mechanism"  # whose cost is the budget
    assert made.methods[0].family in mechanisms
    assert roles[made.methods[0].family] == {"mechanism", "twin", "control"}
    assert all(m.recipe.name.startswith(f"{name}/") for m in made.methods)
    assert {m.recipe.data.source for m in made.methods} == {f"builtin:{made.spec}"}
    assert task(made.spec).levels().unit in ("nats", "accuracy")


def test_the_recipes_are_registered_and_sizes_scale(capsys: pytest.CaptureFixture[str]) -> None:
    assert len({recipe.name for recipe in RECIPES}) == len(RECIPES)
    assert cli.main(["show", "topics/latent_thought"]) == 0
    small, large = (SUITE["topics"](size).methods[0].recipe for size in (0.5, 2))
    assert (small.model["hidden_size"], large.model["hidden_size"]) == (16, 64)
    assert large.train.tokens == 4 * (small.train.tokens or 0)


def comparison(made: SuiteTask, scores: dict[str, list[float]]) -> dict[str, Any]:
    """What `compare` would return for these nats per token, by method."""
    rows = []
    for method in made.methods:
        values = scores[method.recipe.name.partition("/")[2]]
        config = method.recipe.to_dict()
        spent = {"config": config, "flops": 1e12, "curve": [], "commit": "0123abc"}
        runs = [{"seed": seed, "test": {"nll": value}} | spent for seed, value in enumerate(values)]
        rows.append(
            {
                "runs": runs,
                "parameters": {"non_embedding": 1000},
                "flops": {"mean": 1e12},
                "tokens": {"mean": 1e6},
                "commands": ["mentalese train <x>"] * len(values),
            }
        )
    about = {"created": "2026-01-01T00:00:00+00:00", "command": f"mentalese suite <{made.name}>", "seeds": len(values)}
    return {"rows": rows, "match": {"by": None}} | about


SCORES = {
    "latent_thought": [2.6, 2.62, 2.58],
    "latent_thought-twin": [3.23, 3.24, 3.22],
    "latent_thought-swapped": [3.25, 3.26, 3.24],
    "gpt2-rope": [2.5, 2.51, 2.52],
}


def result(scores: dict[str, list[float]], tmp_path: Path) -> dict[str, Any]:
    made = dataclasses.replace(SUITE["topics"](1.0), spec="topics", scored="all")
    judged = judge(made, comparison(made, scores), tmp_path)
    return {"tasks": [judged], "created": "2026-01-01T00:00:00+00:00"}


def test_closed_share_follows_from_the_levels(tmp_path: Path) -> None:
    [judged] = result(SCORES, tmp_path)["tasks"]
    levels = task("topics").levels()
    own = judged["methods"][0]
    assert own["closed"]["mean"] == pytest.approx((levels.floor - 2.6) / (levels.floor - levels.optimum))
    low, high = own["closed"]["interval"]
    assert low < own["closed"]["mean"] < high
    assert set(own["against"]) == {"topics/latent_thought-twin", "topics/latent_thought-swapped"}
    assert all(test["conclusive"] and test["difference"] > 0 for test in own["against"].values())
    assert "against" not in judged["methods"][1]
    assert [call["commits"] for call in judged["calls"]] == [["0123abc"]]


def test_a_cell_is_filled_only_for_what_beats_twin_and_control(tmp_path: Path) -> None:
    made = result(SCORES, tmp_path)
    page = suite_page(made)
    assert page.count('class="filled"') == 1
    assert "against latent_thought-twin (95%" in page
    looked = made | {"tasks": [task | {"looks": 4} for task in made["tasks"]]}
    assert "against latent_thought-twin (98.75%" in suite_page(looked), "four looks together err in 5%"
    assert "mentalese suite &lt;topics&gt;" in page
    assert "nats; size 1, " in page
    assert "mentalese train &lt;x&gt;" in page
    survived = SCORES | {"latent_thought-swapped": [2.6, 2.6, 2.6]}  # the gain survives its control
    assert 'class="filled"' not in suite_page(result(survived, tmp_path))
    few = {name: values[:2] for name, values in SCORES.items()}  # too few seeds
    assert 'class="filled"' not in suite_page(result(few, tmp_path))


def test_a_verdict_is_no_more_than_its_tests(tmp_path: Path) -> None:
    """A mechanism that was not trained has none, and no further seeds."""
    [judged] = result(SCORES, tmp_path)["tasks"]
    assert (verdict(judged["methods"][0], judged["methods"]), undecided(judged)) == ("better", [])
    [judged] = result(SCORES | {"latent_thought-twin": [2.6, 2.9, 3.1]}, tmp_path)["tasks"]
    own, twin, *_ = judged["methods"]
    assert (verdict(own, judged["methods"]), undecided(judged)) == ("undecided", [own["name"]])
    assert verdict(twin, judged["methods"]) == "undecided"
    own["health"]["reason"] = "kl is below 1"
    assert (verdict(own, judged["methods"]), undecided(judged)) == ("not trained", [])
    [ahead] = result(SCORES, tmp_path)["tasks"]
    ahead["methods"][0]["health"]["reason"] = "kl is below 1"
    assert verdict(ahead["methods"][0], ahead["methods"]) == "better", "what is better than its controls works"
    assert "<b>not trained</b> at equal tokens: kl is below 1" in suite_page(
        {"tasks": [judged], "created": "2026-01-01T00:00:00+00:00"}
    )
    [judged] = result(SCORES | {"latent_thought-twin": [2.5, 2.5, 2.5]}, tmp_path)["tasks"]
    assert verdict(judged["methods"][0], judged["methods"]) == "not better"
    open_control = {"latent_thought-twin": [2.5, 2.5, 2.5], "latent_thought-swapped": [2.5, 2.7, 2.5]}
    [judged] = result(SCORES | open_control, tmp_path)["tasks"]
    assert not judged["methods"][0]["against"]["topics/latent_thought-swapped"]["decided"]
    assert undecided(judged) == [], "further seeds cannot change the verdict"
    for scores, said in ((SCORES, "undecided"), (SCORES | {"latent_thought-twin": [2.5, 2.5, 2.5]}, "not better")):
        [judged] = result(scores, tmp_path)["tasks"]
        own = judged["methods"][0]
        own["against"] = {name: test for name, test in own["against"].items() if name.endswith("-twin")}
        assert verdict(own, judged["methods"]) == said, "without a control"


def test_curves_are_read_where_the_cheaper_method_ends(tmp_path: Path) -> None:
    """The mechanism falls from 4 to 2 nats in 2e12 FLOPs, its twin to 2.5 in half of them."""
    [judged] = result(SCORES, tmp_path)["tasks"]
    curves = {"": ([0.0, 1e12, 2e12], [4.0, 3.0, 2.0]), "-twin": ([0.0, 1e12], [4.0, 2.5]), "-swapped": ([2e12], [2.0])}
    runs = {
        f"topics/latent_thought{name}": [
            {
                "flops": flops[-1],
                "config": {"optimizer": {"warmup": 0.1}},
                "curve": [{"flops": 0.0, "loss": 9.0}]
                + [{"flops": f, "validation_perplexity": math.exp(n + seed / 9)} for f, n in zip(flops, nats)],
            }
            for seed in range(3)
        ]
        for name, (flops, nats) in curves.items()
    }
    add_equal_flops(judged["methods"], runs, 0.95)
    twin, swapped = judged["methods"][0]["against"].values()
    assert twin["at_equal_flops"]["flops"] == 1e12
    assert twin["at_equal_flops"]["gain"] == pytest.approx(-0.5)
    assert twin["at_equal_flops"]["conclusive"]
    assert swapped["at_equal_flops"]["gain"] == pytest.approx(0, abs=1e-9)
    longer = runs["topics/latent_thought-twin"][2]
    longer["flops"] = longer["curve"][-1]["flops"] = 1.5e12  # a budget of the seed, not of the mean
    add_equal_flops(judged["methods"], runs, 0.95)
    assert twin["at_equal_flops"]["flops"] == pytest.approx(3.5e12 / 3)
    assert (twin["at_equal_flops"]["seeds"], twin["at_equal_flops"]["gain"]) == (3, pytest.approx(-1 / 3))
    runs["topics/latent_thought-twin"][0]["curve"] = []
    del twin["at_equal_flops"]
    add_equal_flops(judged["methods"], runs, 0.95)
    assert "at_equal_flops" not in twin, "two seeds are too few"


def test_a_curve_is_not_read_before_its_warm_up_ends() -> None:
    """A mechanism of ten times its twin's FLOPs would be read where its learning rate has hardly begun."""
    points = [{"flops": flops, "validation_perplexity": math.exp(3 - flops)} for flops in (0.0, 1.0, 2.0)]
    run = {"config": {"optimizer": {"warmup": 0.1}}, "curve": points}
    assert nats_at(run, 0.19) is None
    assert nats_at(run, 0.2) == pytest.approx(2.8)
    assert nats_at(run, 2.1) is None


def test_a_corpus_keeps_its_first_level_when_seeds_are_added(tmp_path: Path) -> None:
    """A decoder sets it, which gets no more seeds, and is not left out of a choice of methods."""
    made = SUITE["text"](1.0)
    rivals = tuple(method for method in made.methods if method.family == "thoughtbubbles")

    def judged(methods: tuple[Method, ...], earlier: dict[str, Any] | None = None) -> dict[str, Any]:
        part = dataclasses.replace(made, methods=methods)
        compared = comparison(
            part, {method.name: [1.8, 1.8, 1.8] for method in rivals} | {"gpt2-rope": [2.0, 2.0, 2.0]}
        )
        for run in (run for row in compared["rows"] for run in row["runs"]):
            run["test"] |= {"bits_per_byte_with_ends": run["test"]["nll"], "perplexity": 1.0, "tokens": 100}
        return judge(part, compared, tmp_path, earlier=earlier)

    first = judged((made.methods[0], *rivals))
    again = judged(rivals, first)
    assert first["levels"] == again["levels"]
    assert [method["closed"]["mean"] for method in again["methods"]] == pytest.approx([0.1] * 5)
    [chosen] = suite_run.tasks_of(["text"], ["thoughtbubbles"])
    assert [method.name for method in chosen.methods] == ["gpt2-rope", *(method.name for method in rivals)]


def test_names_with_markup_are_text_on_the_page(tmp_path: Path) -> None:
    plain, hostile = result(SCORES, tmp_path), result(SCORES, tmp_path)
    [judged] = hostile["tasks"]
    judged["command"] = hostile["created"] = HOSTILE
    for method in judged["methods"]:
        method |= {"name": HOSTILE, "family": HOSTILE}
    page = suite_page(hostile)
    assert page.count("<script") == suite_page(plain).count("<script")
    assert "<img" not in page
    assert escape(HOSTILE) in page


def judged_accuracies(scores: dict[str, list[float]], questions: int, folder: Path, looks: int = 1) -> dict[str, Any]:
    """Return the task `composition` with accuracies of some of its methods, by name."""
    made = SUITE["composition"](1.0)
    made = dataclasses.replace(made, methods=tuple(m for m in made.methods if m.recipe.name[12:] in scores))
    compared = comparison(made, scores)
    for run in (run for row in compared["rows"] for run in row["runs"]):
        run["test"] |= {"accuracy": run["test"]["nll"], "questions": questions}
    return judge(made, compared, folder, looks=looks)


def test_one_question_more_with_each_seed_fills_no_cell(tmp_path: Path) -> None:
    scores = {name: [70 / 100, 73 / 100, 71 / 100] for name in ("sim-cot", "no-cot", "pause-curriculum")}

    def conclusive(gain: float) -> list[bool]:
        gained = scores | {"sim-cot": [value + gain for value in scores["no-cot"]]}
        judged = judged_accuracies(gained, 100, tmp_path)
        return [test["conclusive"] for test in judged["methods"][0]["against"].values()]

    assert conclusive(0.01) == [False, False]
    assert conclusive(0.1) == [True, True]


@pytest.mark.parametrize(("seeds", "verdict_of_all"), [(5, "undecided"), (10, "not better")])
def test_a_few_seeds_that_all_fail_decide_nothing(seeds: int, verdict_of_all: str, tmp_path: Path) -> None:
    """On questions a seed finds the computation or does not, and the spread of failures tells nothing of the next."""
    scores = {
        name: [0.2 + (seed + place) % 3 / 1000 for seed in range(seeds)]
        for place, name in enumerate(("sim-cot", "no-cot", "pause-curriculum"))
    }
    judged = judged_accuracies(scores, 1000, tmp_path, looks=4)
    assert judged["methods"][0]["solved"]["count"] == 0
    assert verdict(judged["methods"][0], judged["methods"]) == verdict_of_all
    assert bool(undecided(judged)) == (seeds == 5)


def test_scatter_around_the_floor_is_no_gain_over_collapse(tmp_path: Path) -> None:
    """At the floor half of the mechanism's seeds would count, and none of its rivals'."""
    around = [1 / 3 + 0.02 * (-1) ** seed for seed in range(20)]
    scores = {"sim-cot": around, "no-cot": [0.2] * 20, "pause-curriculum": [0.2] * 20}
    judged = judged_accuracies(scores, 1000, tmp_path, looks=4)
    own = judged["methods"][0]
    assert verdict(own, judged["methods"]) != "better"
    assert all(abs(test["difference"]) < 1e-9 and not test["conclusive"] for test in own["against"].values())
    judged = judged_accuracies(scores | {"sim-cot": [score + 0.1 for score in around]}, 1000, tmp_path, looks=4)
    assert verdict(judged["methods"][0], judged["methods"]) == "better"
    scores = {"sim-cot": [0.2] * 20, "no-cot": around, "pause-curriculum": around}
    judged = judged_accuracies(scores, 1000, tmp_path, looks=4)
    for test in judged["methods"][0]["against"].values():
        assert test["difference"] == pytest.approx(-0.5 * 0.02 / (2 / 3)), "below the floor is not worse than at it"


@pytest.mark.parametrize(("seeds", "decided"), [(5, False), (10, True)])
def test_a_few_seeds_without_answers_in_a_text_decide_nothing(seeds: int, decided: bool, tmp_path: Path) -> None:
    made = dataclasses.replace(SUITE["topics"](1.0), spec="topics", scored="all")
    near = [3.0845 - (seed % 3) / 10_000 for seed in range(seeds)]
    scores = dict.fromkeys(("latent_thought-twin", "latent_thought-swapped", "gpt2-rope"), near)
    scores |= {"latent_thought": near[::-1]}
    methods = judge(made, comparison(made, scores), tmp_path)["methods"]
    assert all(test["decided"] for test in methods[0]["against"].values())
    add_tests(methods, dataclasses.replace(made, scored="answers"), 0.0, confidence_of(4))
    assert [test["decided"] for test in methods[0]["against"].values()] == [decided, decided]


def test_a_share_of_nine_tenths_is_solved() -> None:
    assert solved([(0.95 - 0.5) / 0.5, 0.899], SUITE["composition"](1.0).solved)["count"] == 1


def test_a_seed_solves_search_if_it_does_as_written_steps_do() -> None:
    """Written steps close 86 to 93% of `reachability`'s gap, a first latent search 84%."""
    task = SUITE["reachability"](1.0)
    assert solved([0.84, 0.93, 0.4], task.solved)["count"] == 2


def test_dots_beyond_the_scale_stand_at_its_edge(tmp_path: Path) -> None:
    page = suite_page(result(SCORES | {"gpt2-rope": [9.0, 9.0, 9.0]}, tmp_path))
    assert page.count('<circle cx="0.0"') == 3


def test_an_interval_needs_three_seeds() -> None:
    assert interval(summary([0.1, 0.2]), 2) is None
    low, high = interval(summary([0.1, 0.2, 0.3]), 3) or (0.0, 0.0)
    assert (low, high) == (pytest.approx(0.2 - 4.3027 * 0.1 / math.sqrt(3), abs=1e-4), pytest.approx(0.4484, abs=1e-4))


def test_the_page_has_a_spread_only_over_seeds(tmp_path: Path) -> None:
    made = result({name: [2.0, 2.0, 2.0] for name in SCORES}, tmp_path)
    assert suite_page(made).count("2.000 ± 0.000") == len(SCORES)
    for method in made["tasks"][0]["methods"]:
        method["closed"]["seeds"] = method["closed"]["seeds"][:1]
    assert "±" not in suite_page(made)


def test_answers_in_a_text_cost_what_guessing_costs() -> None:
    levels = answer_levels(Levels(1.0, 0.25, 0.0625, "accuracy"))
    assert (levels.optimum, levels.chance) == (0.0, pytest.approx(math.log(16)))
    assert levels.floor == pytest.approx(math.log(4))


def test_only_answers_are_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every scored place holds the value that the document's answer is."""
    made = SUITE["recall"](1.0)
    made = dataclasses.replace(made, spec=made.spec + ",count=50")
    recipe = made.methods[0].recipe
    data = dataclasses.replace(recipe.data, source=f"builtin:{made.spec}")
    store, tokenizer = prepare(data, recipe.layout, show=False)
    split = store.splits["test"]

    class Model:
        evaluation = recipe.evaluation

        def scored_by(self, **protocol: Any) -> Any:
            assert protocol == {"max_documents": None}
            return self

        def split(self, name: str) -> Any:
            return split

        def token_scores(self, split: Any) -> Any:
            """Nothing for a value after a question mark, one nat elsewhere."""
            words = [tokenizer.decode([i]).strip() for i in split.tokens.tolist()]
            asked = [False, *(before == "?" for before in words[:-1])]
            return np.where(asked, 0.0, 1.0).astype(np.float32)

    monkeypatch.setattr(suite_judge, "load", lambda path: Model())
    assert part_nats(tmp_path, made) == 0.0
    assert json.loads((tmp_path / "suite.json").read_text())["tokens"] == 1000
    monkeypatch.setattr(suite_judge, "load", lambda path: pytest.fail("scored twice"))
    assert part_nats(tmp_path, made) == 0.0


def test_text_is_compared_in_bits_per_byte_with_ends_paid_for(tmp_path: Path) -> None:
    """Shares are bits saved against the first method. A bound has no ends: its family does not pay for them either."""
    made = SUITE["text"](1.0)
    assert [method.family for method in made.methods if method.role == "mechanism"] == ["conceptlm", "thoughtbubbles"]
    for family in ("conceptlm", "thoughtbubbles"):
        assert {m.role for m in made.methods if m.family == family} == {"mechanism", "twin", "control"}
    compared = comparison(made, {method.name: [1.0, 1.0, 1.0] for method in made.methods})
    for method, row in zip(made.methods, compared["rows"]):
        bound = (method.family, method.role) == ("conceptlm", "mechanism")
        for i, run in enumerate(row["runs"]):
            ends = None if bound else 2.3 + 0.01 * i
            run["test"] = {"bits_per_byte": 2.2 + 0.01 * i, "bits_per_byte_with_ends": ends}
            run["test"]["protocol"] = {"estimator": "elbo-bound" if bound else "exact"}
    judged = judge(made, compared, tmp_path)
    assert [method["estimator"] for method in judged["methods"]].count("elbo-bound") == 1
    page = suite_page(result(SCORES, tmp_path) | {"tasks": [judged]})
    assert page.count("(elbo-bound)") == 1
    assert "bits per byte; size 1, 3 seeds; " in " ".join(page.split())
    for method in judged["methods"]:
        paid = 2.21 if method["family"] == "conceptlm" else 2.31
        assert method["score"]["mean"] == pytest.approx(paid)
        assert method["closed"]["mean"] == pytest.approx((2.21 - paid) / 2.21)
    assert judged["levels"] == {"optimum": 0.0, "floor": pytest.approx(2.21), "chance": 8.0, "unit": "bits per byte"}


def test_second_halves_are_scored_given_first_halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = SUITE["topics"](1.0)
    made = dataclasses.replace(made, spec=made.spec + ",count=50")
    recipe = made.methods[0].recipe
    data = dataclasses.replace(recipe.data, source=f"builtin:{made.spec}")
    store, tokenizer = prepare(data, recipe.layout, show=False)
    split = store.splits["test"]
    rows = next(iter(evaluation_batches(split, recipe.layout, recipe.evaluation, tokenizer)))
    model = build_model(recipe.model, tokenizer, seed=0)
    scored = model.scored_labels(rows, "prefix") != -100
    places = rows["store_index"][scored].tolist()

    class Model:
        evaluation = recipe.evaluation

        def scored_by(self, **protocol: Any) -> Any:
            return self

        def split(self, name: str) -> Any:
            return split

        def token_scores(self, split: Any) -> Any:
            scores = np.full(len(split.tokens), np.nan, dtype=np.float32)
            first = len(rows["input_ids"])
            scores[split.documents[first] :] = 1.0
            scores[places] = 1.0
            return scores

    monkeypatch.setattr(suite_judge, "load", lambda path: Model())
    assert part_nats(tmp_path, made) == 1.0  # no place is left out, or it would not be a number
    assert json.loads((tmp_path / "suite.json").read_text())["tokens"] == 32 * 1000
    assert levels_of(made).optimum < task(made.spec).levels().optimum  # more is known in the second half


def test_a_task_may_be_compared_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def compare(recipes: list[Recipe], out: Path, **options: Any) -> dict[str, Any]:
        asked.append([recipe.name for recipe in recipes])
        made = SUITE["composition"](1.0)
        for name in ("report.html", "compare.json"):
            out.mkdir(exist_ok=True)
            (out / name).write_text("the last comparison")
        scores = {recipe.name.partition("/")[2]: [0.9, 0.8, 0.7] for recipe in recipes}
        kept = tuple(method for method in made.methods if method.recipe in recipes)
        return comparison(dataclasses.replace(made, methods=kept), scores)

    monkeypatch.setattr(suite_run, "compare", compare)
    rivals = ("sim-cot-swapped", "no-cot", "pause-curriculum", "no-thoughts")
    result = run_suite(["composition"], tmp_path, Schedule.of(), recipes=["sim-*", "cot"])
    assert asked == [[f"composition/{name}" for name in ("coconut", "sim-cot", *rivals, "cot")]]
    (judged,) = result["tasks"]
    assert list(judged["methods"][1]["against"]) == [f"composition/{name}" for name in (*rivals, "coconut")]
    assert (tmp_path / "suite.html").is_file()

    path = tmp_path / "suite.json"
    path.write_text(json.dumps(result | {"tasks": [{**judged, "name": "recall"}, {**judged, "seeds": 7}]}))
    kept = run_suite(["composition"], tmp_path, Schedule.of(), recipes=["sim-*", "cot"])["tasks"]
    assert [(task["name"], task["seeds"]) for task in kept] == [("recall", 3), ("composition", 3)]
    page = (tmp_path / "suite.html").read_text()
    assert page.count('<section id="') == 2
    with pytest.raises(InputError, match=r"its suite.json has composition/coconut, .*: use another folder"):
        run_suite(["composition"], tmp_path, Schedule.of(), recipes=["cot", "no-cot"])
    assert len(asked) == 2, "refused before anything is trained"
    path.write_text(json.dumps(result | {"version": 1}))
    assert len(run_suite(["composition"], tmp_path, Schedule.of(), recipes=["cot", "no-cot"])["tasks"]) == 1


def test_seeds_are_added_until_a_mechanism_is_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[set[str], int]] = []

    def compare(recipes: list[Recipe], out: Path, **options: Any) -> dict[str, Any]:
        names, seeds = [recipe.name.partition("/")[2] for recipe in recipes], options["seeds"]
        asked.append(({*names}, seeds))
        out.mkdir(exist_ok=True)
        for name in ("report.html", "compare.json"):
            (out / name).write_text(f"{seeds} seeds")
        scores = {name: [0.2] * seeds for name in names}
        scores |= {name: [0.97] * seeds for name in names if name in ("coconut", "cot")}
        scores |= {"codi": [0.97, 0.1, 0.97, 0.1, 0.3, *[0.97] * (seeds - 5)]} if "codi" in names else {}
        made = SUITE["composition"](1.0)
        kept = tuple(method for method in made.methods if method.recipe in recipes)
        return comparison(dataclasses.replace(made, methods=kept), scores)

    monkeypatch.setattr(suite_run, "compare", compare)
    (judged,) = run_suite(["composition"], tmp_path, Schedule.of(), recipes=["coconut", "codi", "cot"])["tasks"]
    rivals = {"codi-no-distillation", "codi-pause", "no-cot", "pause-curriculum", "no-thoughts"}
    assert asked == [({"coconut", "codi", "cot", *rivals}, 5), ({"codi", *rivals}, 10)]
    methods = {method["name"].partition("/")[2]: method for method in judged["methods"]}
    assert [len(methods[name]["closed"]["seeds"]) for name in ("coconut", "codi", "no-cot")] == [5, 10, 10]
    reports = [call["report"] for call in judged["calls"]]
    assert reports == ["composition/report-5-seeds.html", "composition/report-10-seeds.html"]
    assert [(tmp_path / report).read_text() for report in reports] == ["5 seeds", "10 seeds"]
    assert (methods["codi"]["solved"]["count"], methods["no-cot"]["solved"]["count"]) == (7, 0)
    test = methods["codi"]["against"]["composition/no-cot"]
    assert test["decided"]
    assert test["solved_p"] == pytest.approx(2 * math.comb(10, 7) / math.comb(20, 7), rel=0.01)
    closed = [max(0.0, share) for share in methods["codi"]["closed"]["seeds"]]  # all of `no-cot` is below the floor
    narrower = paired_t_test(closed, [0.0] * 10).interval
    assert test["interval"][0] < narrower[0], "four looks err as rarely as one"
    assert "solved by 7 of 10 seeds" in " ".join(suite_page({"tasks": [judged], "created": "2026-01-01"}).split())


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"names": ["topic"]}, "tasks"),
        ({"names": ["topics", "recall"], "recipes": ["latent*"]}, "recipes"),
        ({"names": ["composition"], "recipes": ["cot", "no-cot", "coconnut"]}, "recipes"),
        ({"size": 0.0}, "size"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(arguments: dict[str, Any], field: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        run_suite(**({"names": [], "out": tmp_path, "schedule": Schedule.of()} | arguments))
    assert refused.value.field == field
    assert not any(tmp_path.iterdir())
    with pytest.raises(InputError) as refused:
        Schedule.of(trials=9)
    assert refused.value.field == "trials"
    with pytest.raises(InputError, match="tune_seeds is 7: with one trial nothing is tuned: remove it"):
        Schedule.of(trials=1, tune_seeds=7)


def test_trials_are_about_the_rate_of_a_task() -> None:
    schedule, name = Schedule.of(), "optimizer.learning_rate"
    assert schedule.tuned_fields(SUITE["topics"](1.0)) == {name: ["0.001", "0.0025", "0.0063"]}
    assert schedule.tuned_fields(SUITE["table2-340k"](1.0)) == {name: ["0.0016", "0.004", "0.01"]}
    assert Schedule.of(trials=1).tuned_fields(SUITE["topics"](1.0)) is None


def test_the_demo_scores_what_it_trains_on() -> None:
    for shown in DEMO.values():
        assert shown.recipe.data.source == f"builtin:{shown.task.spec}"
        assert shown.recipe.model["model_type"] == shown.task.methods[0].recipe.model["model_type"]  # its family
    assert "steps=0" not in DEMO["forks"].task.spec  # its page says that steps are written


def test_published_tasks_join_the_others_without_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = module_at(ROOT / "scripts" / "publish.py")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    published = json.loads((ROOT / "results" / "suite-2" / "suite.json").read_text(encoding="utf-8"))
    first, second, *_ = published["tasks"]
    runs, results = tmp_path / "runs", tmp_path / "results"
    results.mkdir()
    (runs / second["name"]).mkdir(parents=True)
    (results / "suite.json").write_text(json.dumps(published | {"tasks": [first]}))
    call, place = second["calls"][0], f"{second['name']}/compare-5-seeds.json"
    made = second | {"calls": [call | {"command": f"mentalese suite x --out {tmp_path}/runs"}]}
    (runs / "suite.json").write_text(json.dumps(published | {"tasks": [made]}))
    run = {"command": f"mentalese train --out {tmp_path}/runs/a", "test": {"nll": 2.5}}
    made_here = {"rows": [{"name": "a", "runs": [run | {"curve": [{"step": 1}], "samples": []}]}], "seeds": 1}
    (runs / place).write_text(json.dumps(made_here))
    script.publish(runs, [second["name"]], results)
    found = json.loads((results / "suite.json").read_text())["tasks"]
    assert found == [first, second | {"calls": [call | {"command": "mentalese suite x --out runs", "report": place}]}]
    run["command"] = "mentalese train --out runs/a"
    assert json.loads((results / place).read_text()) == {"rows": [{"name": "a", "runs": [run]}], "seeds": 1}
    assert str(tmp_path) not in (results / "suite.html").read_text()
    with pytest.raises(SystemExit, match=f"has no {first['name']}: use some of {second['name']}"):
        script.publish(runs, [first["name"]], results)
    (results / "suite.json").write_text(json.dumps(published | {"version": 1}))
    with pytest.raises(SystemExit, match="is of another version: use another folder"):
        script.publish(runs, [second["name"]], results)
    script.publish(runs, [second["name"]], tmp_path / "new")
    assert [task["name"] for task in read_json(tmp_path / "new" / "suite.json")["tasks"]] == [second["name"]]
    (runs / "suite.json").write_text(json.dumps(published | {"version": 1}))
    with pytest.raises(SystemExit, match="has version 1: run `mentalese suite` again"):
        script.publish(runs, [second["name"]], results)


@pytest.mark.parametrize(
    ("page", "run"),
    [
        ("index.html", run_demo),
        ("suite.html", lambda out: run_suite(["composition"], out, Schedule.of())),
        ("report.html", lambda out: compare([RECIPES[0], RECIPES[1]], out, show=False)),
    ],
)
def test_a_page_of_somebody_else_is_not_replaced(
    page: str, run: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_: Any, **__: Any) -> Any:
        raise AssertionError("a training has begun")

    for place in ("suite.demo.run_jobs", "suite.run.compare", "compare.compare.run_jobs"):
        monkeypatch.setattr(f"mentalese.{place}", train)
    (tmp_path / page).write_text("mine")
    with pytest.raises(InputError, match=f"it has another {page}: use another folder"):
        run(tmp_path)
    assert (tmp_path / page).read_text() == "mine"


def test_published_methods_stand_against_twin_and_control() -> None:
    """`models/export.py` and the page read the same rule from suite.json."""
    files = [ROOT / "results" / name / "suite.json" for name in ("suite", "suite-2")]
    tasks = [task for file in files for task in json.loads(file.read_text())["tasks"]]
    standing = {
        method["name"] for task in tasks for method in task["methods"] if verdict(method, task["methods"]) == "better"
    }
    assert {"composition/sim-cot", "recall/thought_gestalt", "reachability/sim-cot"} <= standing
    assert {"expressions/thoughtbubbles", "composition/coconut"}.isdisjoint(standing)


def listed_rows(columns: int) -> list[list[str]]:
    """Return the cells of each verdict in the results' table of so many columns, without mechanisms and remarks."""
    lines = (ROOT / "results" / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]
    return [
        [task, *(re.sub(r"(?<=\]).*", "", cell.removesuffix(" ✗")) for cell in cells)]
        for task, _, *cells in rows
        if len(cells) == columns - 2
    ]


def test_results_list_the_verdict_of_each_mechanism() -> None:
    """Its row: task, mechanism, axis, verdict, share of the gap, differences from the twin and the nearest control."""
    tasks = read_json(ROOT / "results" / "suite" / "suite.json")["tasks"]
    assert all(published["seeds"] == 3 for published in tasks)
    assert sorted(listed_rows(7)) == sorted([*row] for published in tasks for row in verdict_rows(published))


def test_results_list_each_verdict_of_the_second_edition() -> None:
    """Its row: task, mechanism, verdict, seeds, share, differences, and the gain over the twin at equal FLOPs."""
    expected = []
    for published in read_json(ROOT / "results" / "suite-2" / "suite.json")["tasks"]:
        mechanisms = [method for method in published["methods"] if method["role"] == "mechanism"]
        for method, row in zip(mechanisms, verdict_rows(published | {"match": {"by": "tokens"}}), strict=True):
            twins = {one["name"] for one in published["methods"] if one["role"] == "twin"}
            [equal] = [test.get("at_equal_flops") for name, test in method["against"].items() if name in twins]
            gain = "{:.3f} [{:.3f},{:.3f}]".format(equal["gain"], *equal["interval"]) if equal else "not read"
            name, _, found, *figures = row
            expected.append([name, found, str(len(method["closed"]["seeds"])), *figures, gain])
    assert sorted(listed_rows(8)) == sorted(expected)


def verdict_rows(task: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield what the table of results has of each mechanism of a task."""
    places = 1 if task["name"] == "text" else 0
    twins = {method["name"] for method in task["methods"] if method["role"] == "twin"}

    def points(share: float) -> str:
        return f"{100 * share:z.{places}f}"

    for method in task["methods"]:
        if method["role"] == "mechanism":
            nearest: dict[str, Any] = {}
            for name, test in method["against"].items():
                role = "twin" if name in twins else "control"  # also a mechanism that this one adds to
                if role not in nearest or test["difference"] < nearest[role]["difference"]:
                    nearest[role] = test
            differences = [
                f"{points(test['difference'])} [{','.join(map(points, test['interval']))}]" if test else "none"
                for test in (nearest["twin"], nearest.get("control"))
            ]
            axis = {"flops": "FLOPs", "tokens": "tokens", None: "epochs"}[task["match"]["by"]]
            closed = f"{points(method['closed']['mean'])}%"
            yield f"`{task['name']}`", axis, verdict(method, task["methods"]), closed, *differences
