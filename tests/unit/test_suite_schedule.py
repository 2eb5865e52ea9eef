"""The order in which a suite looks at its tasks, what it publishes in between, and what its status counts."""

from __future__ import annotations

import dataclasses
import json
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comparisons import compare, run
from mentalese import cli
from mentalese.compare.compare import RunCounts, count_runs, run_folder
from mentalese.compare.tuning import SEED as TRIALS
from mentalese.files import write_json
from mentalese.recipe import Recipe
from mentalese.suite import judge as suite_judge
from mentalese.suite import run as suite_run
from mentalese.suite.recipes import SUITE
from mentalese.suite.run import Look, Schedule, TaskStatus, most_to_gain, read_status, run_suite

METHODS = ("coconut", "sim-cot")
SEEDS = (3, 5, 7)
HEALTHY = {"signs": {}, "healthy": 0, "reason": ""}
WIDE, SMALL = "reachability", "composition"


class Stopped(KeyboardInterrupt):
    """Stands in for a signal."""


class Suite:
    """Trains nothing: on one task Coconut is never decided, on the other SIM-CoT is not either.

    The best rate is the middle one, and for SIM-CoT the lowest one, so that it has a trial more.

    Attributes:
        trained: folders of runs that ended.
        looks: tasks and seeds of comparisons that ended.
        stop_after: the number of runs after which a signal comes.
    """

    def __init__(self, out: Path, monkeypatch: pytest.MonkeyPatch, stop_after: float = math.inf) -> None:
        self.out, self.stop_after = out, stop_after
        self.trained: list[str] = []
        self.looks: list[tuple[str, int]] = []
        self.published: list[dict[str, int]] = []
        monkeypatch.setattr(suite_run, "compare", self.compare)
        monkeypatch.setattr(suite_run, "LOOKS", SEEDS)
        monkeypatch.setattr(suite_judge, "health", lambda runs: HEALTHY | {"worth": [None] * len(runs)})
        monkeypatch.setattr("mentalese.compare.compare.report", lambda *_: "a report")

    def run(self) -> dict[str, Any]:
        result = run_suite([SMALL, WIDE], self.out, Schedule.of(tune_seeds=1), recipes=METHODS)
        self.published.append(self.seeds())
        return result

    def status(self) -> list[TaskStatus]:
        return read_status([SMALL, WIDE], self.out, Schedule.of(tune_seeds=1), recipes=METHODS)

    def seeds(self) -> dict[str, int]:
        """Return the most seeds of a method in `suite.json`, by task, whose reports all exist."""
        if not (self.out / "suite.json").is_file():
            return {}
        tasks = json.loads((self.out / "suite.json").read_text())["tasks"]
        assert all((self.out / call["report"]).is_file() for task in tasks for call in task["calls"])
        return {task["name"]: max(len(one["closed"]["seeds"]) for one in task["methods"]) for task in tasks}

    def compare(self, recipes: list[Recipe], out: Path, **options: Any) -> dict[str, Any]:
        self.published.append(self.seeds())
        result = compare(recipes, out, train=self.train, **options | {"jobs": None})
        self.looks.append((out.name, options["seeds"]))
        return result

    def train(self, recipe: Recipe, out: Path, **_: object) -> dict[str, Any]:
        path = out / "result.json"
        if path.is_file():
            found: dict[str, Any] = json.loads(path.read_text())
            return found
        if len(self.trained) >= self.stop_after:
            raise Stopped
        task, name = recipe.name.split("/")
        is_open = name == "coconut" or (name == "sim-cot" and task == WIDE)
        accuracy = 0.05 + 0.3 * (recipe.train.seed % 2) if is_open else 0.97 if name == "sim-cot" else 0.2
        best = 1e-3 if name == "sim-cot" else 2.5e-3
        score = {"nll": 1 + abs(math.log(recipe.optimizer.learning_rate / best)), "accuracy": accuracy}
        score |= {"questions": 100, "exact_match": accuracy, "f1": accuracy, "protocol": {}, "tokens": 1, "bytes": 1}
        result = run(recipe.name, 2.0, seed=recipe.train.seed) | {"validation": score, "test": score, "samples": []}
        result |= {"config": recipe.to_dict(), "seconds": 360.0, "curve": []}
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "config.json", {"fingerprint": recipe.fingerprint(), "recipe": recipe.to_dict()})
        write_json(path, result)
        self.trained.append(str(out))
        return result


def look(undecided: int, seconds: float, name: str = "topics") -> Look:
    task = dataclasses.replace(SUITE["topics"](1.0), name=name)
    return Look(task, 10, undecided, {"one": RunCounts(finished=3, planned=4, seeds=1, seconds=seconds)})


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 10**6)), min_size=1, max_size=8))
def test_the_look_with_most_to_gain_comes_first(figures: list[tuple[int, int]]) -> None:
    looks = [look(undecided, seconds, str(i)) for i, (undecided, seconds) in enumerate(figures)]
    chosen = int(most_to_gain(looks).task.name)
    rates = [undecided / seconds for undecided, seconds in figures]
    assert rates[chosen] == max(rates)
    assert chosen == rates.index(max(rates)), "of equal ones the first"


def test_only_runs_that_are_left_cost() -> None:
    dear, done = look(9, 1e6), look(1, 1e6, "done")
    done = dataclasses.replace(done, counts={"one": RunCounts(finished=4, planned=4, seeds=1, seconds=1e6)})
    assert (dear.runs_left, dear.seconds_left) == (1, 1e6)
    assert (done.runs_left, done.seconds_left) == (0, 0.0)
    assert most_to_gain([dear, done]) is done


def test_every_task_has_a_look_before_one_has_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = Suite(tmp_path, monkeypatch)
    result = suite.run()
    # Two mechanisms of five methods, then one of four, at 6 minutes a run.
    wide, small = ([(task, count) for count in SEEDS[1:]] for task in (WIDE, SMALL))
    assert suite.looks == [(SMALL, 3), (WIDE, 3), *wide, *small]
    assert len(suite.trained) == len(set(suite.trained))
    last = {}
    for (task, count), published in zip(suite.looks, suite.published[1:], strict=True):
        last[task] = count
        assert published == last, "after each look"
    assert [task["name"] for task in result["tasks"]] == [WIDE, SMALL]
    small_task = result["tasks"][1]["methods"]
    assert {one["name"].partition("/")[2]: len(one["closed"]["seeds"]) for one in small_task}["sim-cot"] == 3
    small, wide = suite.status()
    assert (small.planned, small.decided, small.undecided, small.hours_left) == (0, 1, 1, 0.0)
    assert (wide.planned, wide.decided, wide.undecided, wide.hours_left) == (0, 0, 2, 0.0)
    assert [sorted({*status.seeds.values()}) for status in (small, wide)] == [[3, 7], [7]]


def test_a_task_whose_run_diverges_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = Suite(tmp_path, monkeypatch)

    def diverging(recipes: list[Recipe], out: Path, **options: Any) -> dict[str, Any]:
        if out.name == SMALL:
            raise FloatingPointError(f"{out}: the loss is not finite")
        return suite.compare(recipes, out, **options)

    monkeypatch.setattr(suite_run, "compare", diverging)
    with pytest.raises(FloatingPointError, match=f"{SMALL}: the loss is not finite"):
        suite.run()
    assert suite.looks == [(WIDE, count) for count in SEEDS]
    assert suite.seeds() == {WIDE: SEEDS[-1]}


def results(suite: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return all of a suite except times and the folder."""
    return [
        (
            [(call["report"], call["methods"]) for call in task["calls"]],
            [{name: value for name, value in method.items() if name != "commands"} for method in task["methods"]],
            {name: value for name, value in task.items() if name not in ("calls", "methods")},
        )
        for task in json.loads(json.dumps(suite["tasks"]))
    ]


@pytest.mark.slow
def test_a_stopped_suite_goes_on_and_takes_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Suite(tmp_path / "whole", monkeypatch)
    expected = results(whole.run())
    out, trained = tmp_path / "stopped", list[str]()
    for stop_after in (17, 40, 9, 14, math.inf):  # in trials, in a first look, and twice in later ones
        suite = Suite(out, monkeypatch, stop_after)
        before = suite.seeds()
        with pytest.raises(Stopped) if stop_after < math.inf else nullcontext():
            assert results(suite.run()) == expected
        trained += suite.trained
        for published in suite.published:
            assert all(published[task] >= seeds for task, seeds in before.items())
    assert len(trained) == len(set(trained)) == len(whole.trained), "a finished run is not trained again"


def test_a_suite_killed_between_two_renames_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, renamed = Path.replace, list[str]()

    def once(path: Path, target: Path) -> Path:
        if renamed:
            raise Stopped
        if path.name in ("report.html", "compare.json"):
            renamed.append(path.name)
        return rename(path, target)

    suite = Suite(tmp_path, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", once)
        with pytest.raises(Stopped):
            suite.run()
    assert renamed
    suite.run()


def test_status_counts_the_runs_of_a_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = Suite(tmp_path, monkeypatch, stop_after=20)
    small, wide = suite.status()
    assert (small.finished, small.planned, small.not_begun, small.hours_left) == (0, 36, 2, None)
    assert not any(tmp_path.iterdir())
    with pytest.raises(Stopped):
        suite.run()
    small, wide = suite.status()
    assert (small.finished, small.planned) == (20, 37), "a rate at the edge has one more"
    assert small.hours_left == pytest.approx(17 * 0.1)
    assert sum(small.seeds.values()) == 20 - 6 * 3 - 1
    assert (wide.finished, wide.planned, wide.not_begun, wide.hours_left) == (0, 36, 2, None)
    suite.stop_after = 37 + 37 + 7
    with pytest.raises(Stopped):
        suite.run()
    small, wide = suite.status()
    assert (small.finished, small.planned) == (4 * (3 + 3), 4 * (3 + 5)), "only what is not decided and its rivals"
    assert (wide.finished, wide.planned) == (37 + 7, 37 + 12)
    assert (small.decided, small.undecided, small.not_begun) == (1, 1, 0)
    assert (wide.decided, wide.undecided, wide.not_begun) == (0, 2, 0)


def test_times_are_of_methods_that_have_finished_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = Suite(tmp_path, monkeypatch, stop_after=1)
    with pytest.raises(Stopped):
        suite.run()
    small, _ = suite.status()
    assert (small.finished, small.planned, small.untimed, small.hours_left) == (1, 36, 5, pytest.approx(0.5, abs=0.05))


def test_runs_of_other_recipes_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = Suite(tmp_path, monkeypatch)
    [method, *_] = SUITE[SMALL](1.0).methods
    recipe, fields = method.recipe, {"optimizer.learning_rate": ["1e-3", "2.5e-3"]}
    for seed in range(2):
        suite.train(recipe.replace(train={"seed": seed}), run_folder(tmp_path, recipe.name, seed))
    assert count_runs(recipe, tmp_path, 3) == RunCounts(finished=2, planned=3, seeds=2, seconds=360.0)
    assert count_runs(recipe.replace(model={"n_embd": 16}), tmp_path, 3).finished == 0
    for name in ("1e-3", "2.5e-3"):
        folder = tmp_path / recipe.name.replace("/", "-") / "trials" / f"optimizer.learning_rate={name}"
        folder.mkdir(parents=True)
        write_json(folder / "diverged.json", {"fingerprint": "of another recipe"})
    assert count_runs(recipe, tmp_path, 3, tuned_fields=fields) == RunCounts(0, 5, 0, None)
    for name in ("1e-3", "2.5e-3"):
        trial = recipe.replace(optimizer={"learning_rate": float(name)}, train={"seed": TRIALS})
        folder = tmp_path / recipe.name.replace("/", "-") / "trials" / f"optimizer.learning_rate={name}"
        write_json(folder / "diverged.json", {"fingerprint": trial.fingerprint()})
    assert count_runs(recipe, tmp_path, 3, tuned_fields=fields) == RunCounts(2, 5, 0, None)


def test_the_command_prints_the_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["suite", SMALL, "--status", "--out", str(tmp_path / "none")]
    assert cli.main(words) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["task", "runs", "seeds", "decided", "undecided", "not", "begun", "CPU", "hours", "left"]
    assert row.split()[:4] == [SMALL, "0", "of", "210"]
    assert cli.main([*words, "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert (found["task"], found["planned"], found["hours_left"]) == (SMALL, 210, None)
    assert not (tmp_path / "none").exists()
