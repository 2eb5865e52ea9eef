"""Tasks of the suite, one comparison each, and how much of the gap between floor and optimum every method closes.

A task is a comparison (`mentalese.compare`) of its methods: the same trials for all, chosen on validation, then fresh
seeds. Finished runs are reused, so the same command continues where it stopped.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from mentalese.compare.compare import compare, run_folder
from mentalese.compare.headline import SEEDS_FOR_A_TEST
from mentalese.data.split import Split
from mentalese.data.suite import Levels, task
from mentalese.data.suite.base import MarkovText
from mentalese.data.suite.recall import Recall
from mentalese.errors import InputError, nearest
from mentalese.evaluation.metric import metric_of
from mentalese.evaluation.options import EvaluationOptions
from mentalese.evaluation.statistics import paired_t_test, student_t_quantile, summary
from mentalese.evaluation.suite import run as evaluate
from mentalese.families.suite.methods import Further, SuiteTask
from mentalese.families.suite.recipes import DEFAULT, SUITE
from mentalese.files import check_page, read_json, sealed, write_json, write_text
from mentalese.models.saved import Saved, load
from mentalese.suite.page import suite_page

RATES = (1e-3, 2.5e-3, 6.3e-3, 4e-4, 1.6e-2)
"""Learning rates in the order in which trials take them; a range is extended if the best one is at its edge."""
VERSION = 3
"""Of `suite.json`; one of another version is written again."""
_SAME = ("spec", "scored", "match", "seeds", "size", "step", "levels")
"""What two calls of a task must agree on, for their methods to be in one table."""


def run_suite(
    names: Sequence[str],
    out: Path,
    *,
    recipes: Sequence[str] = (),
    trials: int = 3,
    seeds: int = 3,
    jobs: int = 1,
    executor: str | None = None,
    size: float = 1.0,
    show: bool = True,
) -> dict[str, Any]:
    """Runs tasks and writes `suite.json` and `suite.html` into `out`, after each task, with those of earlier calls.

    Args:
        names: of tasks; empty: all that are generated.
        out: gets one folder per task, with the runs and the report of its comparison.
        recipes: names or patterns of the methods that are compared, with their twins and controls; empty: all. The
            first one left sets the training FLOPs of text.
        trials: learning rates tried with every method; 1: its own, untuned.
        seeds: runs per method after tuning.
        jobs: trainings at once, each in a process with one thread, or one GPU.
        executor: sends them to a cluster, see `mentalese.compare.executors`.
        size: scales width, text and questions.

    Returns:
        The content of `suite.json`.

    Raises:
        InputError: no such task, or a number out of range; what `compare` raises.
    """
    for name in names:
        if name not in SUITE:
            raise InputError(f"the suite has no task {name!r}: use some of {', '.join(SUITE)}{nearest(name, SUITE)}")
    if not 1 <= trials <= len(RATES):
        raise InputError(f"trials is {trials}: use 1 to {len(RATES)}")
    if not 0.25 <= size <= 64:
        raise InputError(f"size is {size}: use 0.25 to 64")
    check_page(out / "suite.html", "suite.json")
    made = [SUITE[name](size) for name in names or DEFAULT]
    chosen_tasks = [_only(one, recipes) for one in made]
    _check_used(recipes, made)
    result: dict[str, Any] = {}
    for chosen in chosen_tasks:
        rates = {"optimizer.learning_rate": [f"{rate:g}" for rate in sorted(RATES[:trials])]} if trials > 1 else None
        comparison = compare(
            [method.recipe for method in chosen.methods],
            out / chosen.name,
            match=chosen.match,
            seeds=seeds,
            tuned_fields=rates,
            jobs=jobs,
            executor=executor,
            show=show,
        )
        judged = judge(chosen, comparison, out / chosen.name, size)
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        result = write_suite([judged], out, created)
    return result


def write_suite(judged: Sequence[dict[str, Any]], out: Path, created: str) -> dict[str, Any]:
    """Writes `suite.json` and its page into `out`: tasks, and all others that are there, in the order of the suite.

    Returns:
        The content of `suite.json`.
    """
    path = out / "suite.json"
    found = read_json(path) if path.is_file() else {}
    earlier = found["tasks"] if found.get("version") == VERSION else []
    tasks = {task["name"]: task for task in (*earlier, *judged)}
    result = {"version": VERSION, "created": created, "tasks": [tasks[name] for name in SUITE if name in tasks]}
    write_json(path, sealed(result))
    write_text(out / "suite.html", suite_page(result))
    return result


def _only(chosen: SuiteTask, patterns: Sequence[str]) -> SuiteTask:
    """The task with those of its methods that a pattern names, and the twins and controls of these."""
    if not patterns:
        return chosen
    names = [method.recipe.name.partition("/")[2] for method in chosen.methods]
    named = [m for m, name in zip(chosen.methods, names) if any(fnmatch(name, pattern) for pattern in patterns)]
    families = {family for m in named if m.role == "mechanism" for family in (m.family, m.shares)}
    kept = [m for m in chosen.methods if m in named or (m.role in ("twin", "control") and m.family in families)]
    if len(kept) < 2:
        raise InputError(
            f"recipes are {', '.join(patterns)}, which leaves {len(kept)} of the methods of {chosen.name}: use two or "
            f"more of {', '.join(names)}"
        )
    return dataclasses.replace(chosen, methods=tuple(kept))


def _check_used(patterns: Sequence[str], tasks: Sequence[SuiteTask]) -> None:
    """Raises `InputError` for a pattern that names a method of no task."""
    names = list(dict.fromkeys(m.recipe.name.partition("/")[2] for chosen in tasks for m in chosen.methods))
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in names):
            raise InputError(
                f"recipes contains {pattern}, which names no method of {', '.join(chosen.name for chosen in tasks)}"
                f"{nearest(pattern, names)}: remove it"
            )


def judge(chosen: SuiteTask, comparison: Mapping[str, Any], folder: Path, size: float = 1.0) -> dict[str, Any]:
    """A task's levels and, by method, scores and the share of the gap that they close, each against its family's twin.

    Args:
        comparison: what `compare` returned.
        folder: of the comparison.
        size: that the task was made at.
    """
    methods: list[dict[str, Any]] = []
    found, others = [], []
    for method, row in zip(chosen.methods, comparison["rows"], strict=True):
        runs = [run_folder(folder, method.recipe.name, run["seed"]) for run in row["runs"]]
        found.append([score(chosen, path, run["test"]) for path, run in zip(runs, row["runs"])])
        others.append({one.name: summary([further_score(one, path) for path in runs]) for one in chosen.further})
    levels = levels_of(chosen, statistics.fmean(found[0]))
    for method, row, scores, further in zip(chosen.methods, comparison["rows"], found, others):
        shares = [levels.closed(value) for value in scores]
        methods.append(
            {
                "name": method.recipe.name,
                "family": method.family,
                "role": method.role,
                "description": method.recipe.description,
                "estimator": row["runs"][0]["test"].get("protocol", {}).get("estimator", "exact"),
                "score": summary(scores),
                "closed": summary(shares) | {"interval": interval(shares), "seeds": shares},
                "learning_rate": row["runs"][0]["config"]["optimizer"]["learning_rate"],
                "trials": len(row.get("tuning", {}).get("trials", [0])),
                "at_edge": row.get("tuning", {}).get("at_edge", []),
                "parameters": row["parameters"]["non_embedding"],
                "flops": row["flops"]["mean"],
                "tokens": row["tokens"]["mean"],
                "commands": row["commands"],
                "further": further,
            }
        )
    test = comparison["rows"][0]["runs"][0]["test"]
    step = metric_of(test).step(test) / abs(levels.optimum - levels.floor)
    _add_tests(methods, chosen, step)
    return {
        "name": chosen.name,
        "spec": chosen.spec,
        "levels": dataclasses.asdict(levels),
        "scored": chosen.scored,
        "match": comparison["match"],
        "seeds": comparison["seeds"],
        "size": size,
        "step": step,
        "methods": methods,
        "calls": [
            {
                "created": comparison["created"],
                "command": comparison["command"],
                "report": f"{chosen.name}/report.html",
                "methods": [method["name"] for method in methods],
            }
        ],
    }


def joined(judged: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """A task with the methods that another call of it had, in the order of the suite; of one name the new one is kept.

    Args:
        judged, earlier: tasks of `suite.json`.

    Raises:
        InputError: the calls differ in the text, the length, the seeds or the levels, or a method is no longer there.
    """
    for name in _SAME:
        if judged[name] != earlier[name]:
            raise InputError(
                f"{name} of {judged['name']} is {judged[name]!r}, and {earlier[name]!r} in the results that it is to "
                "join: run all methods again, and replace them"
            )
    own = {method["name"] for method in judged["methods"]}
    kept = [dict(method) for method in earlier["methods"] if method["name"] not in own]
    calls = [
        call | {"methods": left}
        for call in earlier["calls"]
        if (left := [name for name in call["methods"] if name not in own])
    ]
    chosen = SUITE[judged["name"]](judged["size"])
    order = [method.recipe.name for method in chosen.methods]
    if gone := [method["name"] for method in kept if method["name"] not in order]:
        raise InputError(
            f"{judged['name']} no longer has {', '.join(gone)}, which the results that it is to join have: run all "
            "methods again, and replace them"
        )
    methods = sorted([*judged["methods"], *kept], key=lambda method: order.index(method["name"]))
    _add_tests(methods, chosen, judged["step"])
    return {**judged, "methods": methods, "calls": [*calls, *judged["calls"]]}


def _add_tests(methods: Sequence[dict[str, Any]], chosen: SuiteTask, step: float) -> None:
    """Adds to each mechanism its tests `against` the twin and the controls of its family; `step`: of a count."""
    of = {method.recipe.name: method for method in chosen.methods}
    for one in methods:
        mechanism = of[one["name"]]
        if mechanism.role == "mechanism":
            families = (mechanism.family, mechanism.shares)
            rivals = [m for m in methods if m["family"] in families and m["role"] in ("twin", "control")]
            one["against"] = {
                rival["name"]: _test(one["closed"]["seeds"], rival["closed"]["seeds"], step) for rival in rivals
            }


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Of the mean over seeds, 95%; `None` for fewer than three."""
    return interval_of(summary(values), len(values))


def interval_of(score: Mapping[str, float], seeds: int) -> tuple[float, float] | None:
    """The same from the `mean` and `std` of a `summary` over seeds."""
    if seeds < SEEDS_FOR_A_TEST:
        return None
    margin = student_t_quantile(0.975, seeds - 1) * score["std"] / seeds**0.5
    return score["mean"] - margin, score["mean"] + margin


def _test(values: Sequence[float], others: Sequence[float], step: float) -> dict[str, Any] | None:
    if len(values) < SEEDS_FOR_A_TEST:
        return None
    test = paired_t_test(values, others, step=step)
    return test.to_dict() | {"conclusive": test.conclusive}


# -- scores ------------------------------------------------------------------------------------------------------------


def levels_of(chosen: SuiteTask, first: float = math.nan) -> Levels:
    """The levels of what is scored of a task; `first` is the mean score of its first method."""
    if chosen.spec.startswith("file:"):
        return Levels(0.0, first, 8.0, "bits per byte")
    made = task(chosen.spec)
    if chosen.scored == "second half":
        assert isinstance(made, MarkovText)
        return made.levels(made.ids("test").shape[1] // 2)
    return answer_levels(made.levels()) if chosen.scored == "answers" else made.levels()


def answer_levels(levels: Levels) -> Levels:
    """Levels of guessing as nats: a reader who sees the binding pays nothing, another one log(values)."""
    values = 1 / levels.chance
    unseen = (1 - levels.floor) / (1 - levels.chance)
    return Levels(0.0, unseen * float(np.log(values)), float(np.log(values)), "nats")


def score(chosen: SuiteTask, run: Path, test: Mapping[str, Any]) -> float:
    """The score of a run in the unit of its task: accuracy, nats per token that is scored, or bits per byte."""
    if chosen.spec.startswith("file:"):
        return _paid_bits(test)
    if chosen.scored == "all":
        return float(test[metric_of(test).tested])
    return part_nats(run, chosen)


def _paid_bits(result: Mapping[str, Any]) -> float:
    """Bits per byte with ends paid for. Of a bound that price is not known, and no ends are given to these models."""
    paid = result["bits_per_byte_with_ends"]
    return float(result["bits_per_byte"] if paid is None else paid)


def further_score(further: Further, run: Path) -> float:
    """A run's second score; kept in its folder, as a set of questions takes minutes."""
    path = run / "further.json"
    kept = read_json(path) if path.is_file() else {}
    options = {name: str(value) for name, value in further.options.items()}
    if kept.get(further.name, {}).get("options") != options:
        [result] = evaluate(load(run), EvaluationOptions(**further.options)).values()
        score = float(result["acc"]) if "acc" in result else _paid_bits(result)
        kept |= {further.name: {"options": options, "score": score}}
        write_json(path, sealed(kept))
    return float(kept[further.name]["score"])


def part_nats(run: Path, chosen: SuiteTask) -> float:
    """Nats per scored token of the test split's documents; kept in the run's folder."""
    path = run / "suite.json"
    if path.is_file():
        return float(read_json(path)["nats"])
    scores = scored_nats(load(run), chosen)
    write_json(path, sealed({"scored": chosen.scored, "nats": float(scores.mean()), "tokens": len(scores)}))
    return float(scores.mean())


def scored_nats(saved: Saved, chosen: SuiteTask) -> np.ndarray:
    """Nats of each token that is scored, float64 [tokens], in the documents of the model's protocol (test split)."""
    split = saved.split("test")
    scores = saved.token_scores(split).astype(np.float64)
    if chosen.scored != "all":
        scores = scores[_places(chosen, split)]
        if saved.evaluation.max_documents is None and np.isnan(scores).any():
            estimator = saved.evaluation.estimator
            raise ValueError(f"{saved.path}: tokens that count are not scored by the estimator {estimator!r}")
    return scores[~np.isnan(scores)]


def _places(chosen: SuiteTask, split: Split) -> list[int]:
    """The indices of all tokens that are scored."""
    if chosen.scored == "second half":
        ends = [
            (start, end - 1) for start, end in itertools.pairwise(split.documents.tolist())
        ]  # the last token ends it
        return [place for start, end in ends for place in range(start + (end - start) // 2, end)]
    made = task(chosen.spec)
    assert isinstance(made, Recall)
    documents = zip(split.documents.tolist(), made.documents("test"))
    return [start + place for start, document in documents for place in made.answers(document)]
