"""A comparison trains all recipes at equal cost on the same text, reuses what is done, and judges over seeds."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest

from comparisons import compare
from mentalese.compare.compare import _cost, _fit, flops_per_token
from mentalese.compare.comparison import NARROW_POINTS, Comparison, Row, paired_test
from mentalese.compare.report import print_comparison
from mentalese.data.layouts import Packed, QuestionAnswer
from mentalese.data.store import prepare
from mentalese.errors import InputError
from mentalese.evaluation.answers import AnswerRecord
from mentalese.evaluation.statistics import exact_test, paired_t_test, student_t_p, summary, wilson_interval
from mentalese.files import sealed
from mentalese.provenance import train_command
from mentalese.recipe import DataConfig, EvaluationConfig, OptimizerConfig, Phase, Recipe, TrainConfig
from mentalese.registry import get_recipe
from mentalese.training.loop import train

GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}


def recipe(name: str, **changes: Any) -> Recipe:
    defaults: dict[str, Any] = {"description": f"{name} for tests", "model": GPT2, "train": TrainConfig(tokens=1000)}
    return Recipe(name=name, **defaults | changes)


class FakeTrainer:
    """Stands in for `mentalese.training.loop.train`, in no time: a run folder, a result, reuse of a finished run.

    `perplexities[recipe name][seed]` are the results, or accuracies in percent; every token costs
    `cost[recipe name]` FLOPs.
    """

    def __init__(self, perplexities: dict[str, list[float]], cost: dict[str, int] | None = None) -> None:
        self.perplexities, self.cost = perplexities, cost or {}
        self.trained: list[Recipe] = []

    def __call__(self, recipe: Recipe, out: Path, *, resume: bool, show: bool) -> dict[str, Any]:
        path = out / "result.json"
        if resume and path.is_file():
            return json.loads(path.read_text())
        self.trained.append(recipe)
        tokens = recipe.train.tokens or 100 * (recipe.train.steps or 0)
        flops = tokens * self.cost.get(recipe.name, 10)
        value = self.perplexities[recipe.name][recipe.train.seed]
        score = {
            "nll": math.log(value), "tokens": 50, "bytes": 200, "perplexity": value,
            "bits_per_byte": math.log2(value) / 4, "protocol": {"tokens": "lexical"},
        }  # fmt: skip
        if recipe.evaluation.metric == "accuracy":
            score |= {"accuracy": value / 100, "exact_match": value / 100, "f1": value / 100, "questions": 50}
        point = {"step": 1, "tokens": tokens, "flops": flops, "seconds": 1.0}
        result = {
            "recipe": recipe.name, "parameters": {"total": 2000, "non_embedding": 1000}, "steps": 1, "tokens": tokens,
            "flops": flops, "train_flops_per_token": flops / tokens, "seconds": 1.0, "tokens_per_second": tokens,
            "peak_memory_bytes": 1, "validation": score, "test": score, "samples": [],
            "curve": [point | {"loss": 3.0}, point | {"validation_perplexity": value}], "config": recipe.to_dict(),
            "fingerprint": recipe.fingerprint(), "data_hash": "d", "seed": recipe.train.seed, "commit": "c",
            "hardware": {"device": "cpu"}, "versions": {"torch": "2"},
        }  # fmt: skip
        out.mkdir(parents=True)
        path.write_text(json.dumps(result))
        (out / "config.json").write_text(json.dumps({"fingerprint": recipe.fingerprint(), "recipe": recipe.to_dict()}))
        return result


SCORES = {"a/x": [100.0, 104.0, 98.0], "b/x": [90.0, 95.0, 88.0], "c/x": [99.0, 101.0, 99.0]}


def test_each_recipe_trains_with_each_seed_and_writes_files(tmp_path: Path) -> None:
    trainer = FakeTrainer(SCORES)
    result = compare([recipe("a/x"), recipe("b/x")], tmp_path, seeds=2, show=False, train=trainer)
    assert [(r.name, r.train.seed) for r in trainer.trained] == [("a/x", 0), ("a/x", 1), ("b/x", 0), ("b/x", 1)]
    assert (tmp_path / "b-x" / "seed-1" / "result.json").is_file()
    assert json.loads((tmp_path / "compare.json").read_text()) == result
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert not list(tmp_path.glob(".*"))  # no temporary file is left


def test_a_prepared_text_is_named_with_its_own_tokenizer(tmp_path: Path, corpus: Path) -> None:
    prepare(DataConfig(source=f"file:{corpus}", tokenizer="bpe:320"), out=tmp_path / "store", show=False)
    recipes = [recipe(name, data=DataConfig(source=f"store:{tmp_path / 'store'}")) for name in ("a/x", "b/x")]
    result = compare(recipes, tmp_path / "out", show=False, train=FakeTrainer(SCORES))
    assert result["tokenizer"] == "bpe:320"


def test_mean_spread_and_ratio_over_seeds(tmp_path: Path) -> None:
    result = compare([recipe("a/x"), recipe("b/x")], tmp_path, seeds=2, show=False, train=FakeTrainer(SCORES))
    first, second = result["rows"]
    assert first["perplexity"] == {"mean": 102.0, "std": pytest.approx(math.sqrt(8)), "min": 100.0, "max": 104.0}
    assert (first["baseline"], first["ratio"]) == (None, 1.0)
    assert second["baseline"] == "a/x"
    assert second["ratio"] == pytest.approx(math.sqrt(90 * 95 / (100 * 104)))
    assert second["paired_test"] is None  # two seeds say too little


def test_three_seeds_get_a_paired_test(tmp_path: Path) -> None:
    result = compare([recipe("a/x"), recipe("b/x")], tmp_path, seeds=3, show=False, train=FakeTrainer(SCORES))
    test = result["rows"][1]["paired_test"]
    assert test["n"] == 3
    assert test["difference"] == pytest.approx(math.log(90 / 100 * 95 / 104 * 88 / 98) / 3)
    assert 0 < test["p"] < 0.01
    assert result["rows"][0]["paired_test"] is None


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([90.0] * 20, 5),  # below with each seed
        ([90.0, 110.0] * 2 + [90.0] + [70.0] * 15, 10),  # below once there are ten
        ([90.0, 110.0, 100.0, 100.0] * 5, 20),  # undecided
        ([100.01, 99.99, 100.01, 99.99] * 5, 5),  # hardly differs
    ],
)
def test_seeds_are_added_until_they_decide(others: list[float], expected: int, tmp_path: Path) -> None:
    trainer = FakeTrainer({"a/x": [100.0] * 20_000, "b/x": others * 1000})  # seeds of trials are higher
    recipes, rates = [recipe("a/x"), recipe("b/x")], {"optimizer.learning_rate": ["1e-3", "2e-3", "3e-3"]}
    result = compare(recipes, tmp_path, seeds="auto", tuned_fields=rates, show=False, train=trainer)
    assert (result["seeds"], result["looks"]) == (expected, 4)
    assert {len(row["runs"]) for row in result["rows"]} == {expected}
    trained = [(each.name, each.train.seed, each.optimizer.learning_rate) for each in trainer.trained]
    assert len(trained) == len(set(trained)), "none twice"
    test = result["rows"][1]["paired_test"]
    values = [[math.log(x) for x in some[:expected]] for some in (others, [100.0] * expected)]
    low, high = paired_t_test(*values, confidence=0.9875).interval
    assert test["interval"] == (pytest.approx(low), pytest.approx(high))
    assert ("98.75%" in Comparison.from_json(result).headline()) == (expected < 20 and others[0] < 99)


@pytest.mark.parametrize(("seeds", "decided"), [(5, False), (10, True)])
def test_five_seeds_that_fail_alike_do_not_decide_on_questions(seeds: int, decided: bool) -> None:
    accuracies = [0.333 + 0.001 * (seed % 2) for seed in range(seeds)]
    runs = [{"test": {"accuracy": accuracy}} for accuracy in accuracies]
    own = Row("a/x", "", {}, {"accuracy": summary(accuracies)}, runs, baseline="b/x")
    own.paired_test = paired_t_test(accuracies, [0.333] * seeds, step=0.001)
    assert own.paired_test.interval[1] - own.paired_test.interval[0] < NARROW_POINTS
    assert own.is_decided is decided


def test_answers_have_their_tokens_and_seconds(tmp_path: Path) -> None:
    """Means over the questions that were asked, and over seeds."""

    class Answering(FakeTrainer):
        def __call__(self, recipe: Recipe, out: Path, *, resume: bool, show: bool) -> dict[str, Any]:
            result = super().__call__(recipe, out, resume=resume, show=show)
            length = 4 + 4 * (recipe.name == "b/x") + recipe.train.seed
            asked = [{"tokens": length, "seconds": 0.5}, {"tokens": length + 2, "seconds": 1.5}]
            lines = [line | {"asked": True, "correct": True, "document": 0} for line in asked]
            lines.append({"tokens": 0, "seconds": 0.0, "asked": False, "correct": False, "document": 1})
            lines = [vars(AnswerRecord(line["document"], "q", "1")) | line for line in lines]
            (out / "answers.jsonl").write_text("".join(json.dumps(sealed(line)) + "\n" for line in lines))
            return result

    fields = {"layout": QuestionAnswer(), "evaluation": EvaluationConfig(metric="accuracy")}
    asking = [recipe(name, **fields) for name in ("a/x", "b/x")]
    result = compare(asking, tmp_path, seeds=2, show=False, train=Answering(SCORES))
    assert [row["new_tokens"]["mean"] for row in result["rows"]] == [5.5, 9.5]
    assert [row["answer_seconds"]["mean"] for row in result["rows"]] == [1.0, 1.0]
    assert Comparison.from_json(result).to_json() == result
    page = (tmp_path / "report.html").read_text()
    assert "new tokens/answer" in page
    assert "9.5 ± 0.7" in page
    assert 'href="b-x/seed-1/answers.jsonl"' in page


@pytest.mark.parametrize("seeds", [1, 3])
def test_infinite_perplexity_does_not_stop_the_comparison(tmp_path: Path, seeds: int) -> None:
    class Exploded(FakeTrainer):
        """A bound of 800 nats per token is finite, its perplexity is not."""

        def __call__(self, recipe: Recipe, out: Path, *, resume: bool, show: bool) -> dict[str, Any]:
            result = super().__call__(recipe, out, resume=resume, show=show)
            if recipe.name == "b/x":
                for split in ("test", "validation"):
                    result[split] |= {"nll": 800.0 + recipe.train.seed, "perplexity": math.inf}
            return result

    result = compare([recipe("a/x"), recipe("b/x")], tmp_path, seeds=seeds, show=False, train=Exploded(SCORES))
    assert [row["ratio"] for row in result["rows"]] == [1.0, math.inf]
    assert result["rows"][1]["perplexity"]["mean"] == math.inf
    assert json.loads((tmp_path / "compare.json").read_text())["rows"][1]["ratio"] == math.inf
    assert "inf" in (tmp_path / "report.html").read_text()


def test_a_recipes_own_baseline_goes_before_the_first_one(tmp_path: Path) -> None:
    recipes = [recipe("a/x"), recipe("b/x", baseline="c/x"), recipe("c/x", baseline="not/compared")]
    rows = compare(recipes, tmp_path, show=False, train=FakeTrainer(SCORES))["rows"]
    assert [row["baseline"] for row in rows] == [None, "c/x", "a/x"]
    assert rows[1]["ratio"] == pytest.approx(90 / 99)


def asking(name: str, **changes: Any) -> Recipe:
    fields = {"layout": QuestionAnswer(), "evaluation": EvaluationConfig(metric="accuracy")}
    return recipe(name, **(fields | changes))


def test_accuracies_are_compared_in_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"a/x": [60.0, 64.0, 58.0], "b/x": [70.0, 75.0, 68.0]}
    # The curriculum is each recipe's own.
    other = QuestionAnswer(stage=3, stages=3, latents_per_step=1)
    result = compare([asking("a/x"), asking("b/x", layout=other)], tmp_path, seeds=3, train=FakeTrainer(scores))
    first, second = result["rows"]
    assert first["accuracy"]["mean"] == pytest.approx(0.6067, abs=1e-4)
    assert (first["difference"], first["paired_test"]) == (0.0, None)
    assert second["difference"] == pytest.approx((10 + 11 + 10) / 300)
    assert second["paired_test"]["difference"] == pytest.approx(second["difference"])
    assert second["paired_test"]["p"] < 0.01
    assert not {"perplexity", "bits_per_byte", "ratio"} & second.keys()
    capsys.readouterr()
    print_comparison(result)
    table = capsys.readouterr().out
    assert re.search(r"a/x +60\.7 ± 3\.1 +baseline +60\.7 ± 3\.1", table)
    assert re.search(r"b/x +71\.0 ± 3\.6 +\+10\.3 vs a/x \(p = 0\.00\d, n = 3\) +71\.0 ± 3\.6", table)
    assert "perplexity" not in table


# -- equal cost --------------------------------------------------------------------------------------------------------


def test_tokens_match_the_first_recipe_without_early_stopping(tmp_path: Path) -> None:
    trainer = FakeTrainer(SCORES)
    impatient = TrainConfig(epochs=3, early_stopping_patience=2)
    result = compare(
        [recipe("a/x"), recipe("b/x", train=impatient)], tmp_path, match="tokens", show=False, train=trainer
    )
    assert [(r.train.tokens, r.train.epochs) for r in trainer.trained] == [(1000, None)] * 2
    assert trainer.trained[1].train.early_stopping_patience is None
    assert result["match"] == {"by": "tokens", "budget": 1000}


def test_a_length_in_steps_gives_the_tokens_that_it_takes(tmp_path: Path, corpus: Path) -> None:
    trainer = FakeTrainer(SCORES)
    compare([_real("a/x", corpus), _real("b/x", corpus)], tmp_path, match="tokens", show=False, train=trainer)
    assert trainer.trained[0].train.steps == 6
    assert trainer.trained[1].train.tokens == pytest.approx(6 * 4 * 63, rel=0.01)  # steps, rows and targets in one


def test_each_run_has_the_command_that_trains_it_alone(tmp_path: Path) -> None:
    names = ("gpt2/340k", "gpt2-rope/340k")
    trainer = FakeTrainer({name: [100.0, 90.0] for name in names})
    lengths = (TrainConfig(tokens=700), TrainConfig(steps=7))
    shortened = [dataclasses.replace(get_recipe(name), train=length) for name, length in zip(names, lengths)]
    result = compare(shortened, tmp_path, match="tokens", seeds=2, show=False, train=trainer)
    commands = [command for row in result["rows"] for command in row["commands"]]
    assert commands == [
        train_command(run, tmp_path / run.name.replace("/", "-") / f"seed-{run.train.seed}") for run in trainer.trained
    ]
    assert "train.tokens=700" in commands[0]
    assert re.search("gpt2-rope/340k .*train.tokens=700 .*train.seed=1 ", commands[3])


def test_without_a_match_every_recipe_keeps_its_own_length(tmp_path: Path) -> None:
    trainer = FakeTrainer(SCORES)
    own = TrainConfig(epochs=3, early_stopping_patience=2, tokens=None)
    with_steps = TrainConfig(steps=5)
    recipes = [recipe("a/x", train=with_steps), recipe("b/x", train=dataclasses.replace(own, epochs=None, steps=3))]
    compare(recipes, tmp_path, show=False, train=trainer)
    assert [r.train for r in trainer.trained] == [r.train for r in recipes]


def _real(name: str, corpus: Path, **model: Any) -> Recipe:
    data = DataConfig(source=f"file:{corpus}", tokenizer="bpe:512")
    layout = Packed(sequence_length=64, batch_size=4)
    return recipe(name, model=GPT2 | model, data=data, layout=layout, train=TrainConfig(steps=6))


def test_flops_are_matched_through_the_models_own_count(tmp_path: Path, corpus: Path) -> None:
    """A wider model trains on as many fewer tokens as each of them costs more; its weights are never allocated."""
    recipes = [_real("a/x", corpus), _real("b/x", corpus, n_embd=64)]
    trainer = FakeTrainer(SCORES)
    compare(recipes, tmp_path, match="flops", show=False, train=trainer)

    def per_token(width: int) -> int:
        """By hand: a GPT-2 of 2 layers, vocabulary 512, rows of 64 of which 63 are targets."""
        linear = 2 * 12 * width * width + 512 * width
        attention = 2 * 64 * width * 2
        return 3 * 2 * (linear + attention)

    shorter = per_token(32) / per_token(64)
    assert trainer.trained[1].train.tokens == pytest.approx(6 * 4 * 63 * shorter, rel=0.03)


def test_cost_before_training_equals_cost_of_training(tmp_path: Path, corpus: Path) -> None:
    """Of a model that draws how deep it is, once per step."""
    short = dataclasses.replace(_real("a/x", corpus), model=get_recipe("looped/tiny").model)
    result = train(short, tmp_path / "run", show=False)
    assert (_cost(short, "flops", False), _cost(short, "tokens", False)) == (result["flops"], result["tokens"])


@pytest.mark.parametrize("changes", [{}, {"n_embd": 64}], ids=["its learning rate", "its width"])
def test_a_first_recipe_with_another_cost_is_fitted_too(changes: dict[str, Any], tmp_path: Path, corpus: Path) -> None:
    """A tuned learning rate costs nothing: the first recipe then keeps its length in steps."""
    first = _real("a/x", corpus)
    fit = _fit(first, "flops", 1, False)
    changed = fit(dataclasses.replace(first, model=first.model | changes, optimizer=OptimizerConfig(learning_rate=0.5)))
    assert changed.train.steps == (None if changes else 6)
    if changes:
        assert changed.train.tokens < 6 * 4 * 63


def test_flops_a_token_follow_the_curriculum() -> None:
    """Steps are drawn evenly from the whole plan, not from its cheap beginning."""

    class Model:
        def training_flops(self, batch: int, cost: int) -> int:
            return cost

    @dataclasses.dataclass
    class Position:
        tokens: int

    class Plan:
        total_steps = 100

        def batch(self, step: int, rank: int, world_size: int, micro: int) -> int:
            return step

        def settings(self, step: int) -> dict[str, int]:
            return {"cost": 100 if step < 50 else 300}

        def position(self, step: int) -> Position:
            return Position(10 * step)

    assert flops_per_token(Model(), Plan(), 1) == pytest.approx(20)
    assert flops_per_token(Model(), Plan(), 2) == pytest.approx(40)  # each micro-batch is a share of the step's tokens


def test_models_of_different_sizes_are_refused(tmp_path: Path, corpus: Path) -> None:
    trainer = FakeTrainer(SCORES)
    recipes = [_real("a/x", corpus), _real("b/x", corpus, n_layer=3)]
    with pytest.raises(InputError, match=r"of b/x is \d+: that is 4\d\.\d% more than a/x has"):
        compare(recipes, tmp_path, match="params", show=False, train=trainer)
    assert trainer.trained == []
    assert not any(tmp_path.iterdir())
    compare([recipes[0], _real("b/x", corpus)], tmp_path, match="params", show=False, train=trainer)
    assert len(trainer.trained) == 2


# -- what is refused, what is reused -----------------------------------------------------------------------------------


def _changed(section: str, **fields: Any) -> Recipe:
    kinds = {"data": DataConfig, "evaluation": EvaluationConfig}
    return recipe("b/x", **{section: kinds[section](**fields)})


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (_changed("data", source="file:x.txt"), "data.source of b/x"),
        (_changed("data", tokenizer="bpe:512"), "data.tokenizer of b/x"),
        (_changed("evaluation", tokens="all"), "evaluation.tokens of b/x"),
        (_changed("evaluation", joined=True), "evaluation.joined of b/x"),
        (asking("b/x"), "evaluation.metric of b/x"),
        (recipe("a/x"), "recipes"),
        (recipe("a-x"), "recipes"),
        (None, "recipes"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, other: Recipe | None, field: str) -> None:
    with pytest.raises(InputError) as refused:
        compare([recipe("a/x"), *([other] if other else [])], tmp_path, show=False, train=FakeTrainer(SCORES))
    assert refused.value.field == field
    assert not any(tmp_path.iterdir())


def test_runs_that_are_tested_seed_by_seed_have_the_same_seeds(tmp_path: Path) -> None:
    recipes = [recipe("a/x"), recipe("b/x", train=TrainConfig(tokens=1000, seed=1))]
    trainer = FakeTrainer({"a/x": [100.0, 104.0, 98.0], "b/x": [0.0, 90.0, 95.0, 88.0]})
    with pytest.raises(InputError, match=r"train\.seed of b/x is 1: set it to 0"):
        compare(recipes, tmp_path, seeds=3, show=False, train=trainer)
    assert trainer.trained == []
    compare(recipes, tmp_path, seeds=2, show=False, train=trainer)  # too few for a test
    assert len(trainer.trained) == 4


def test_no_seeds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="seeds is 0"):
        compare([recipe("a/x"), recipe("b/x")], tmp_path, seeds=0, train=FakeTrainer(SCORES))


def test_finished_runs_are_reused_by_a_larger_comparison(tmp_path: Path) -> None:
    compare([recipe("a/x"), recipe("b/x")], tmp_path, show=False, train=FakeTrainer(SCORES))
    trainer = FakeTrainer(SCORES)
    compare([recipe("a/x"), recipe("b/x"), recipe("c/x")], tmp_path, seeds=2, show=False, train=trainer)
    assert [(r.name, r.train.seed) for r in trainer.trained] == [("a/x", 1), ("b/x", 1), ("c/x", 0), ("c/x", 1)]


def test_another_run_in_the_folder_is_found_before_training(tmp_path: Path) -> None:
    compare([recipe("a/x"), recipe("b/x")], tmp_path, show=False, train=FakeTrainer(SCORES))
    trainer = FakeTrainer(SCORES)
    changed = recipe("b/x", phases=(Phase(model={"dropout": 0.1}),))
    with pytest.raises(InputError, match=r"contains another run \(phases was .* use another --out"):
        compare([recipe("c/x"), changed], tmp_path, show=False, train=trainer)
    assert trainer.trained == []


def test_table_is_plain_and_aligned_without_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = compare([recipe("a/x"), recipe("b/x")], tmp_path, show=False, train=FakeTrainer(SCORES))
    assert capsys.readouterr().out == ""
    print_comparison(result)
    header, first, second, _, said = capsys.readouterr().out.splitlines()
    assert header.split("  ")[0] == "model"
    assert re.fullmatch(r"a/x +100\.0 +baseline +1\.661 +2k +1k +10 +1,000", first)
    assert re.fullmatch(r"b/x +90\.0 +0\.900 of a/x +1\.623 +2k +1k +10 +1,000", second)
    assert len(first) == len(second) == len(header)
    assert said.endswith("Too few seeds to rank them.")


def test_a_comparison_says_by_how_much_runs_miss_the_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Coarse(FakeTrainer):
        """A step of one recipe is a third more than what was asked for."""

        def __call__(self, recipe: Recipe, out: Path, *, resume: bool, show: bool) -> dict[str, Any]:
            result = super().__call__(recipe, out, resume=resume, show=show)
            return result | {"tokens": result["tokens"] * 4 // 3} if recipe.name == "b/x" else result

    for trainer, words in ((FakeTrainer, False), (Coarse, True)):
        out = tmp_path / trainer.__name__
        found = compare([recipe("a/x"), recipe("b/x")], out, match="tokens", show=False, train=trainer(SCORES))
        print_comparison(found)
        assert ("Runs miss the tokens of the first model by up to 33%" in capsys.readouterr().out) is words
        assert (
            "training tokens, 1k per run, which runs miss by up to 33%" in (out / "report.html").read_text()
        ) is words


@pytest.mark.parametrize(
    "other",
    [{"tokens": 100}, {"protocol": {"documents": 20, "documents_seed": 0, "documents_available": 6999}}],
    ids=["more", "drawn from fewer"],
)
def test_models_scored_on_other_tokens_have_no_ratio(
    other: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = {"tokens": 50, "protocol": {"documents": 20, "documents_seed": 0, "documents_available": 7000}}

    class OnOthers(FakeTrainer):
        """One recipe is scored on other tokens."""

        def __call__(self, recipe: Recipe, out: Path, *, resume: bool, show: bool) -> dict[str, Any]:
            result = super().__call__(recipe, out, resume=resume, show=show)
            return result | {"test": result["test"] | same | (other if recipe.name == "b/x" else {})}

    result = compare([recipe("a/x"), recipe("b/x")], tmp_path, show=False, train=OnOthers(SCORES))
    print_comparison(result)
    assert [row["ratio"] for row in result["rows"]] == [1.0, None]
    said = capsys.readouterr().out
    assert "not comparable with a/x" in said
    assert "scored on different tokens, and so are not ranked" in said
    assert "not comparable<small>with a/x" in (tmp_path / "report.html").read_text()


# -- statistics --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("t", "degrees", "p"),
    [
        (12.706, 1, 0.05), (4.303, 2, 0.05), (2.920, 2, 0.10), (3.182, 3, 0.05), (5.841, 3, 0.01), (2.776, 4, 0.05),
        (2.571, 5, 0.05), (2.228, 10, 0.05), (2.131, 15, 0.05), (2.750, 30, 0.01),
    ],
)  # fmt: skip
def test_students_t_agrees_with_the_printed_tables(t: float, degrees: int, p: float) -> None:
    assert student_t_p(t, degrees) == pytest.approx(p, rel=1e-3)
    assert student_t_p(-t, degrees) == student_t_p(t, degrees)


def test_counts_of_seeds_have_an_interval_and_a_test() -> None:
    """Wilson (1927), by its formula at 7 of 10; Fisher's tea: three of four cups of each kind."""
    assert wilson_interval(7, 10) == pytest.approx((0.3968, 0.8922), abs=1e-4)
    assert wilson_interval(0, 5) == pytest.approx((0.0, 0.4345), abs=1e-4)
    assert wilson_interval(5, 5)[1] == 1
    assert exact_test((3, 4), (1, 4)) == pytest.approx(34 / 70)
    assert exact_test((4, 4), (0, 4)) == pytest.approx(2 / 70)
    assert exact_test((2, 4), (2, 4)) == 1


def test_no_difference_has_p_one() -> None:
    assert all(student_t_p(0, degrees) == pytest.approx(1) for degrees in range(1, 9))
    assert paired_t_test([1.0, 2.0], [1.0, 2.0]).p == 1
    same = paired_t_test([0.5] * 5, [0.5] * 5, step=0.05)
    assert (same.t, same.p) == (0.0, 1.0)
    assert same.interval == pytest.approx((-0.0253, 0.0253), abs=1e-4)
    assert not same.decided(0.05), "equal by chance, with 20 questions"


def test_paired_test_finds_a_difference_and_is_calibrated() -> None:
    generator = random.Random(0)

    def p(shift: float) -> float:
        hard = [generator.gauss(0, 1) for _ in range(4)]  # what a seed's data order does to both
        ours, theirs = ([h + generator.gauss(off, 0.1) for h in hard] for off in (shift, 0.0))
        return paired_t_test(ours, theirs).p

    assert sum(p(0.0) < 0.05 for _ in range(2000)) / 2000 == pytest.approx(0.05, abs=0.015)
    assert sum(p(0.6) < 0.05 for _ in range(200)) > 180


def test_one_question_more_with_each_seed_is_no_proof() -> None:
    """Differences of whole questions are equal by chance: a spread of zero would make p zero."""
    before = [70 / 100, 73 / 100, 71 / 100]
    test = paired_t_test([value + 1 / 100 for value in before], before, step=1 / 100)
    assert test.p == pytest.approx(0.051, abs=0.001)
    assert not test.conclusive
    assert paired_t_test([value + 0.2 for value in before], before, step=1 / 100).p < 0.001
    assert paired_t_test(before, before, step=1 / 100).p == 1

    def runs(values: list[float]) -> list[dict[str, Any]]:
        return [{"test": {"accuracy": value, "questions": 100, "protocol": {}}} for value in values]

    compared = paired_test(runs([value + 1 / 100 for value in before]), runs(before))
    assert compared is not None
    assert compared.p == pytest.approx(test.p)


def test_a_single_value_has_no_spread() -> None:
    assert summary([3.0]) == {"mean": 3.0, "std": 0.0, "min": 3.0, "max": 3.0}
