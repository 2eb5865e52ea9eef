"""Every recipe gets the same trials, the best of them on validation is compared, and other seeds are reported."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from comparisons import compare
from mentalese.compare.tuning import SEED, Tuned, grid, parse
from mentalese.data.layouts import Packed, QuestionAnswer
from mentalese.errors import InputError
from mentalese.files import write_json
from mentalese.recipe import DataConfig, EvaluationConfig, Recipe, TrainConfig

GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}


def recipe(name: str, **changes: Any) -> Recipe:
    return Recipe(name=name, description="for tests", model=GPT2, train=TrainConfig(tokens=1000), **changes)


class Trainer:
    """Stands in for training: perplexity is 100 at the recipe's best learning rate and grows with the distance.

    Args:
        best: recipe name -> its best learning rate.
        above: rates above which the loss is not finite.
    """

    def __init__(self, best: dict[str, float], above: float = math.inf) -> None:
        self.best, self.above = best, above
        self.trained: list[tuple[str, float, int]] = []

    def __call__(self, recipe: Recipe, out: Path, *, resume: bool, show: bool) -> dict[str, Any]:
        rate = recipe.optimizer.learning_rate
        self.trained.append((recipe.name, rate, recipe.train.seed))
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "config.json", {"fingerprint": recipe.fingerprint(), "recipe": recipe.to_dict()})
        if rate > self.above:
            raise FloatingPointError("the loss is nan at step 3")
        value = 100 * (1 + abs(math.log(rate / self.best[recipe.name])))
        score = {"nll": math.log(value), "tokens": 50, "bytes": 200, "perplexity": value, "bits_per_byte": 1.0,
                 "protocol": {"tokens": "lexical"}}  # fmt: skip
        tokens = recipe.train.tokens or 0
        return {
            "parameters": {"total": 2, "non_embedding": 1}, "steps": 1, "tokens": tokens, "flops": 10 * tokens,
            "train_flops_per_token": 10, "seconds": 1.0, "tokens_per_second": 1.0, "validation": score, "test": score,
            "samples": [], "curve": [], "config": recipe.to_dict(), "seed": recipe.train.seed, "commit": "c",
            "data_hash": "d", "hardware": {"device": "cpu"}, "versions": {"torch": "2"},
        }  # fmt: skip


def tuned(
    tmp_path: Path,
    best: dict[str, float],
    values: str,
    *,
    recipes: list[Recipe] | None = None,
    above: float = math.inf,
    seeds: int = 2,
    **options: Any,
) -> tuple[dict[str, Any], Trainer]:
    trainer = Trainer(best, above)
    fields = parse([f"optimizer.learning_rate={values}"])
    recipes = recipes or [recipe(name) for name in best]
    options = options | {"seeds": seeds, "tuned_fields": fields, "show": False, "train": trainer}
    return compare(recipes, tmp_path, **options), trainer


def test_each_recipe_has_its_best_value(tmp_path: Path) -> None:
    result, trainer = tuned(tmp_path, {"a/x": 3e-3, "b/x": 1e-2}, "1e-3,3e-3,1e-2,3e-2")
    assert [row["tuning"]["chosen"]["optimizer.learning_rate"] for row in result["rows"]] == ["3e-3", "1e-2"]
    assert [row["perplexity"]["mean"] for row in result["rows"]] == [100, 100]
    trials, reported = trainer.trained[:8], trainer.trained[8:]
    assert {seed for _, _, seed in trials} == {SEED}
    assert reported == [("a/x", 3e-3, 0), ("a/x", 3e-3, 1), ("b/x", 1e-2, 0), ("b/x", 1e-2, 1)]
    assert [len(row["tuning"]["trials"]) for row in result["rows"]] == [4, 4]
    assert result["rows"][0]["tuning"]["at_edge"] == []


def test_a_best_value_at_the_edge_is_extended_and_said(tmp_path: Path) -> None:
    result, _ = tuned(tmp_path, {"a/x": 9e-3, "b/x": 1.0}, "1e-3,3e-3")
    inside, outside = (row["tuning"] for row in result["rows"])
    assert [trial["settings"]["optimizer.learning_rate"] for trial in inside["trials"]] == [
        "1e-3", "3e-3", "0.009", "0.027",
    ]  # fmt: skip
    assert [trial["extended"] for trial in inside["trials"]] == [False, False, True, True]
    assert (inside["chosen"], inside["at_edge"]) == ({"optimizer.learning_rate": "0.009"}, [])
    assert (outside["chosen"], outside["at_edge"]) == (
        {"optimizer.learning_rate": "0.027"}, ["optimizer.learning_rate"],
    )  # fmt: skip


def test_the_mean_likelihood_over_seeds_decides(tmp_path: Path) -> None:
    asked = recipe("a/x", layout=QuestionAnswer(), evaluation=EvaluationConfig(metric="accuracy"))
    values = ["1", "2", "3", "4"]
    trials = Tuned(asked, tmp_path, lambda recipe: recipe, grid(asked, {"train.eval_every": values}), seeds=2)
    jobs = trials.jobs()
    assert [(job.recipe.train.eval_every, job.recipe.train.seed - SEED) for job in jobs[:4]] == [
        (1, 0), (1, 1), (2, 0), (2, 1),
    ]  # fmt: skip
    assert len({job.folder for job in jobs}) == 8
    # The second is best in the mean, the first in one seed; the third answers most; the fourth diverges once.
    figures = [(0.4, 1.0), (0.2, 3.0), (0.4, 1.5), (0.3, 1.9), (0.9, 2.5), (0.9, 2.5), (0.5, 0.1), None]
    trials.add([pair and {"validation": {"accuracy": pair[0], "nll": pair[1]}} for pair in figures])
    assert trials.recipe.train.eval_every == 2
    _, second, _, diverged = trials.to_dict()["trials"]
    assert (second["value"], second["nll"], second["seeds"]) == pytest.approx((0.35, 1.7, 2))
    assert second["nll_stderr"] == pytest.approx(0.2)
    assert diverged["value"] is None


def test_trials_come_before_the_seeds_of_a_recipe_that_is_tuned(tmp_path: Path) -> None:
    """`b/x` needs two more trials, one after the other; `a/x` is done after the first three."""
    _, trainer = tuned(tmp_path, {"a/x": 3e-3, "b/x": 1.0}, "1e-3,3e-3,9e-3", seeds=1)
    assert trainer.trained[6:] == [
        ("b/x", 0.027, SEED), ("b/x", 0.081, SEED), ("a/x", 3e-3, 0), ("b/x", 0.081, 0),
    ]  # fmt: skip


def test_more_values_with_another_best_one_train_the_seeds_again(tmp_path: Path) -> None:
    best = {"a/x": 3e-3, "b/x": 1e-2}
    tuned(tmp_path, best, "1e-3,4e-3,1.6e-2")
    result, again = tuned(tmp_path, best, "1e-3,3e-3,4e-3,1.6e-2")
    assert [row["runs"][0]["config"]["optimizer"]["learning_rate"] for row in result["rows"]] == [3e-3, 1.6e-2]
    assert {name for name in again.trained if name[2] != SEED} >= {("a/x", 3e-3, 0), ("a/x", 3e-3, 1)}
    assert sorted(path.name for path in (tmp_path / "a-x").glob("seed*")) == [
        "seed-0", "seed-0,optimizer.learning_rate=4e-3", "seed-1", "seed-1,optimizer.learning_rate=4e-3",
    ]  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "b-x").glob("seed*")) == ["seed-0", "seed-1"]


def test_a_setting_that_is_best_again_has_its_runs_back(tmp_path: Path) -> None:
    """More values, or more seeds of each, may change which one is best, and back."""
    for number, best in enumerate((1e-3, 4e-3, 1e-3, 4e-3)):
        tuned(tmp_path, {"a/x": best, "b/x": 1e-3}, "2.5e-4,1e-3,4e-3,1.6e-2", seeds=1)
        (tmp_path / f"a-x/seed-0/trained-{number}").touch()
    folders = sorted((tmp_path / "a-x").glob("seed*"))
    assert [path.name for path in folders] == ["seed-0", "seed-0,optimizer.learning_rate=1e-3"]
    trained = [sorted(file.name[-1] for file in path.glob("trained-*")) for path in folders]
    assert trained == [["1", "3"], ["0", "2"]]


def test_grid_without_extension_sets_extended_runs_aside(tmp_path: Path) -> None:
    best = {"a/x": 5e-4, "b/x": 1e-3}
    first, _ = tuned(tmp_path, best, "1e-3,2e-3")
    assert first["rows"][0]["tuning"]["chosen"] == {"optimizer.learning_rate": "0.0005"}
    tuned(tmp_path, best, "6e-4,1e-3,2e-3")
    assert sorted(path.name for path in (tmp_path / "a-x").glob("seed*")) == [
        "seed-0", "seed-0,optimizer.learning_rate=0.0005", "seed-1", "seed-1,optimizer.learning_rate=0.0005",
    ]  # fmt: skip


def test_a_trial_that_diverges_is_a_result_and_not_trained_again(tmp_path: Path) -> None:
    best = {"a/x": 3e-3, "b/x": 3e-3}
    result, _ = tuned(tmp_path, best, "1e-3,3e-3,1e-1", above=1e-2)
    assert [trial["value"] is None for trial in result["rows"][0]["tuning"]["trials"]] == [False, False, True]
    _, again = tuned(tmp_path, best, "1e-3,3e-3,1e-1", above=1e-2)
    assert ("a/x", 1e-1, SEED) not in again.trained
    with pytest.raises(FloatingPointError, match="a/x: the loss was not finite in any of 2 trials: tune over lower"):
        tuned(tmp_path / "all", best, "1e-1,2e-1", above=1e-2)


def test_trials_have_the_length_that_all_runs_share(tmp_path: Path) -> None:
    recipes = [recipe("a/x"), Recipe(name="b/x", description="", model=GPT2, train=TrainConfig(tokens=7))]
    best = {"a/x": 3e-3, "b/x": 3e-3}
    result, _ = tuned(tmp_path, best, "1e-3,3e-3,1e-2", recipes=recipes, match="tokens", seeds=1)
    assert [row["tokens"]["mean"] for row in result["rows"]] == [1000, 1000]
    assert result["match"]["budget"] == 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optimizer.learning_rate"], "--tune is 'optimizer.learning_rate'"),
        (["optimizer.learning_rate="], "--tune is 'optimizer.learning_rate='"),
        (["train.steps=1,2", "train.steps=3"], "--tune is 'train.steps=3'"),
    ],
)
def test_words_of_another_form_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(words)


def test_field_missing_in_one_recipe_is_refused(tmp_path: Path) -> None:
    trainer = Trainer({})
    other = Recipe(name="b/x", description="", model={"model_type": "llama"}, train=TrainConfig(tokens=1000))
    with pytest.raises(InputError, match=r"tuning b/x: model\.attn_pdrop: no such field"):
        compare([recipe("a/x"), other], tmp_path, tuned_fields={"model.attn_pdrop": ("0.0", "0.1")}, train=trainer)
    assert trainer.trained == []
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "match", "message"),
    [
        (["data.tokenizer=bpe:512,bpe:4096"], None, "tuned data.tokenizer"),
        (["train.tokens=1000,2000"], "tokens", "tuned train.tokens"),
        (["train.early-stopping-patience=1,2"], "flops", "tuned train.early_stopping_patience"),
        (["optimizer.eps=1e-8,0.00000001"], None, "tuning a/x is 'optimizer.eps=0.00000001'"),
        (["train.seed=1,2"], None, "tuning a/x is 'train.seed=2'"),
    ],
)
def test_impossible_tuning_is_refused_before_training(
    words: list[str], match: Any, message: str, tmp_path: Path
) -> None:
    trainer = Trainer({"a/x": 3e-3, "b/x": 3e-3})
    recipes = [recipe("a/x"), recipe("b/x")]
    with pytest.raises(InputError, match=message):
        compare(recipes, tmp_path, match=match, tuned_fields=parse(words), show=False, train=trainer)
    assert trainer.trained == []


def test_matched_parameters_are_those_of_every_setting(tmp_path: Path, corpus: Path) -> None:
    data = DataConfig(source=f"file:{corpus}", tokenizer="bpe:320")
    recipes = [recipe(name, data=data, layout=Packed(sequence_length=64)) for name in ("a/x", "b/x")]
    fields = parse(["model.n_layer=2,3"])
    trainer = Trainer({"a/x": 1e-3, "b/x": 1e-3})
    with pytest.raises(InputError, match=r"a/x with model\.n_layer=3 is \d+: that is 4\d\.\d% more than a/x has"):
        compare(recipes, tmp_path, match="params", tuned_fields=fields, show=False, train=trainer)
    assert trainer.trained == []


def test_a_range_of_shares_is_not_extended_to_what_is_none(tmp_path: Path) -> None:
    class Warmer(Trainer):
        """The longer the warm-up, the better."""

        def __call__(self, recipe: Recipe, out: Path, *, resume: bool, show: bool) -> dict[str, Any]:
            result = super().__call__(recipe, out, resume=resume, show=show)
            return result | {"validation": result["validation"] | {"nll": 4 - recipe.optimizer.warmup}}

    recipes, fields = [recipe("a/x"), recipe("b/x")], parse(["optimizer.warmup=0.2,0.4"])
    trainer = Warmer({"a/x": 1e-3, "b/x": 1e-3})
    result = compare(recipes, tmp_path, tuned_fields=fields, show=False, train=trainer)
    found = result["rows"][0]["tuning"]
    # The next value, 1.6, would be a number of steps.
    assert [trial["settings"]["optimizer.warmup"] for trial in found["trials"]] == ["0.2", "0.4", "0.8"]
    assert (found["chosen"], found["at_edge"]) == ({"optimizer.warmup": "0.8"}, ["optimizer.warmup"])


@pytest.mark.parametrize(
    ("word", "chosen", "at_edge"),
    [
        ("model.n_layer=2,3,4", "4", True),
        ("model.n_layer=2,4,3", "4", True),
        ("optimizer.weight_decay=0,0.1,0.2", "0.2", True),
        ("optimizer.max_grad_norm=none,1,2", "2", True),
        ("optimizer.max_grad_norm=1,none", "none", False),
        ("optimizer.schedule=constant,cosine", "cosine", False),
    ],
)
def test_best_value_at_the_edge_is_reported(word: str, chosen: str, at_edge: bool, tmp_path: Path) -> None:
    fields = parse([word])
    (name,) = fields
    one = Tuned(recipe("a/x"), tmp_path, lambda recipe: recipe, grid(recipe("a/x"), fields))
    values = [settings[name] for settings in one.pending]
    one.jobs()
    one.add([{"validation": {"nll": 1.0 if value == chosen else 2.0, "perplexity": 3.0}} for value in values])
    assert (one.pending, one.to_dict()["at_edge"]) == ([], [name] if at_edge else [])


def test_a_field_may_be_written_with_dashes(tmp_path: Path) -> None:
    fields = parse(["optimizer.learning-rate=1e-3,3e-3"])
    trainer = Trainer({"a/x": 9e-3, "b/x": 9e-3})
    result = compare([recipe("a/x"), recipe("b/x")], tmp_path, tuned_fields=fields, show=False, train=trainer)
    assert result["rows"][0]["tuning"]["chosen"] == {"optimizer.learning_rate": "0.009"}


def test_runs_of_a_setting_with_a_path_are_set_aside_too(tmp_path: Path) -> None:
    first = recipe("a/x")
    one = Tuned(first, tmp_path, lambda recipe: recipe, grid(first, parse(["train.init=runs/a,runs/b"])))
    one.jobs()
    one.add([{"validation": {"nll": value, "perplexity": value}} for value in (1.0, 2.0)])
    worse = dataclasses.replace(one.trials[1].recipe, train=TrainConfig(tokens=1000, init="runs/b"))
    folder = tmp_path / "seed-0"
    folder.mkdir()
    write_json(folder / "config.json", {"recipe": worse.to_dict()})
    one.set_aside(folder, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["seed-0,train.init=runs%2Fb"]


def test_the_file_keeps_every_trial(tmp_path: Path) -> None:
    result, _ = tuned(tmp_path, {"a/x": 3e-3, "b/x": 3e-3}, "1e-3,3e-3,1e-2")
    assert json.loads((tmp_path / "compare.json").read_text()) == result
