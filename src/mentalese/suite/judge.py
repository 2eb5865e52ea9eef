"""Scores of methods, the share of the gap between floor and optimum that each closes, and the health of mechanisms."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mentalese.compare.compare import run_folder
from mentalese.compare.comparison import SEEDS_FOR_A_TEST, SEEDS_FOR_NARROW
from mentalese.data.split import Split
from mentalese.evaluation import ablation
from mentalese.evaluation.metric import metric_of
from mentalese.evaluation.options import AblationOptions
from mentalese.evaluation.statistics import (
    confidence_of,
    exact_test,
    paired_t_test,
    student_t_margin,
    summary,
    wilson_interval,
)
from mentalese.files import JsonObject, read_json, sealed, write_json
from mentalese.models.config import has_own_thoughts
from mentalese.models.saved import Saved, load
from mentalese.registry import families
from mentalese.suite.methods import SuiteTask
from mentalese.suite.tasks import Levels
from mentalese.suite.tasks import task as generated
from mentalese.suite.tasks.base import MarkovText
from mentalese.suite.tasks.recall import Recall
from mentalese.training.tracking import read_metrics

Judged = dict[str, Any]
"""A task of `suite.json`, a method of one, or a result that they are from."""
Verdict = Literal["better", "not better", "undecided", "not trained"]
"""The verdict on a mechanism: better than its twin and all controls; decided that it is not better than one of them;
neither yet; or idle or collapsed, which is not a verdict on the idea (`health`)."""
NARROW, NARROW_ON_TEXT = 0.1, 0.005
"""The widths below which an interval shows that two methods hardly differ: in shares of the gap, and on a corpus of
the first method's bits, since its optimum is unknown."""


def judge(
    task: SuiteTask, comparison: Judged, folder: Path, size: float = 1.0, looks: int = 1, earlier: Judged | None = None
) -> Judged:
    """Return a task's levels and, by method, scores and the share of the gap that they close, with tests.

    Args:
        comparison: the return value of `compare`, in `folder`.
        looks: the number of times that tests may be made, see `confidence_of`.
        earlier: the task after an earlier look, with all methods, whose levels are kept.
    """
    rows = comparison["rows"]
    folders = [
        [run_folder(folder, method.recipe.name, run["seed"]) for run in row["runs"]]
        for method, row in zip(task.methods, rows, strict=True)
    ]
    # A bound has no bits with ends, and then the twin and the controls of its family are read without them too.
    free = {
        method.family
        for method, row in zip(task.methods, rows)
        if task.is_corpus
        if not task.pays_ends or any(run["test"]["bits_per_byte_with_ends"] is None for run in row["runs"])
    }
    scores = [
        [score(task, path, run["test"], ends=method.family not in free) for path, run in zip(paths, row["runs"])]
        for method, paths, row in zip(task.methods, folders, rows)
    ]
    levels = Levels(**earlier["levels"]) if earlier else levels_of(task, statistics.fmean(scores[0]))
    methods: list[Judged] = []
    for method, row, values, paths in zip(task.methods, rows, scores, folders):
        shares = [levels.closed(value) for value in values]
        tuning = row.get("tuning", {})
        condition = {"health": health(paths)} if method.role == "mechanism" else {}
        methods.append(
            {
                "name": method.recipe.name,
                "family": method.family,
                "role": method.role,
                "description": method.recipe.description,
                "estimator": row["runs"][0]["test"].get("protocol", {}).get("estimator", "exact"),
                "score": summary(values),
                "closed": summary(shares) | {"interval": interval(summary(shares), len(shares)), "seeds": shares},
                "median": statistics.median(shares),
                "solved": None if task.is_corpus else solved(shares, task.solved),
                "learning_rate": row["runs"][0]["config"]["optimizer"]["learning_rate"],
                "trials": len(tuning.get("trials", [0])),
                "trial_seeds": tuning["trials"][0]["seeds"] if tuning else 1,
                "at_edge": tuning.get("at_edge", []),
                "parameters": row["parameters"]["non_embedding"],
                "flops": row["flops"]["mean"],
                "tokens": row["tokens"]["mean"],
                "commands": row["commands"],
            }
            | condition
        )
    test = rows[0]["runs"][0]["test"]
    step = metric_of(test).step(test) / abs(levels.optimum - levels.floor)
    add_tests(methods, task, step, confidence_of(looks))
    if levels.unit != "accuracy":
        runs = {method.recipe.name: row["runs"] for method, row in zip(task.methods, rows)}
        add_equal_flops(methods, runs, confidence_of(looks))
    call = {
        "created": comparison["created"],
        "command": comparison["command"],
        "commits": sorted({commit for row in rows for run in row["runs"] if (commit := run.get("commit"))}),
        "report": f"{task.name}/report-{comparison['seeds']}-seeds.html",
        "methods": [method["name"] for method in methods],
    }
    return {
        "name": task.name,
        "spec": task.spec,
        "levels": dataclasses.asdict(levels),
        "scored": task.scored,
        "seeds": comparison["seeds"],
        "looks": looks,
        "size": size,
        "step": step,
        "methods": methods,
        "calls": [call],
    }


def add_tests(methods: Sequence[Judged], task: SuiteTask, step: float, confidence: float) -> None:
    """Add to each mechanism its tests `against` its rivals.

    A test is `conclusive` if its interval excludes zero, and `decided` if it is, or if the interval is narrow. Seeds
    below the floor count as at the floor: to be better than what has collapsed is not a gain. But a gain is tested with
    the mechanism's own seeds as they are: at the floor their scatter would have one side, and look like a gain itself.

    Args:
        step: one question's share of the gap, see `paired_t_test`; 0 if the task is not scored by accuracy.
    """
    judged = {method["name"]: method for method in methods}
    for method in task.methods:
        if method.role != "mechanism":
            continue
        one = judged[method.recipe.name]
        one["against"] = {}
        for rival in (judged[each.recipe.name] for each in task.rivals(method)):
            seeds, others = (each["closed"]["seeds"] for each in (one, rival))
            one["against"][rival["name"]] = None
            if len(seeds) < SEEDS_FOR_A_TEST:
                continue
            at_floor = seeds
            if not task.is_corpus:
                at_floor, others = ([max(0.0, share) for share in each] for each in (seeds, others))
            loss, gain = (paired_t_test(own, others, step=step, confidence=confidence) for own in (at_floor, seeds))
            test = gain if loss.difference > 0 else loss
            low, high = test.interval
            conclusive = test.conclusive and (gain.difference > 0 or loss.difference < 0)
            narrow = NARROW_ON_TEXT if task.is_corpus else NARROW
            if (step or task.scored == "answers") and len(seeds) < SEEDS_FOR_NARROW:  # a seed answers all or nothing
                narrow = 0.0
            found: Judged = {"conclusive": conclusive, "decided": conclusive or high - low < narrow}
            if one["solved"] is not None:
                counts = [(each["solved"]["count"], each["solved"]["of"]) for each in (one, rival)]
                found["solved_p"] = exact_test(*counts)
            one["against"][rival["name"]] = dataclasses.asdict(test) | found


def add_equal_flops(methods: Sequence[Judged], runs: Mapping[str, list[Judged]], confidence: float) -> None:
    """Add to each test `at_equal_flops`: the gain in nats per token of validation when both had spent the same FLOPs.

    These are, for each seed, all that the cheaper of the two runs has spent; `flops` is their mean. The other run's
    learning curve is read there: its learning rate has not yet fallen to its end, which is to its disadvantage. Left
    out if fewer than three seeds can be read there (`nats_at`).
    `runs` has the results of each method's runs, by name.
    """
    for one in methods:
        for name in one.get("against", {}):
            budgets = [min(run["flops"], rival["flops"]) for run, rival in zip(runs[one["name"]], runs[name])]
            own, other = (list(map(nats_at, runs[each], budgets)) for each in (one["name"], name))
            read = [(a, b, spent) for a, b, spent in zip(own, other, budgets) if a is not None and b is not None]
            if one["against"][name] is not None and len(read) >= SEEDS_FOR_A_TEST:
                gain = paired_t_test([b for _, b, _ in read], [a for a, _, _ in read], confidence=confidence)
                flops = statistics.fmean(spent for _, _, spent in read)
                found = {"flops": flops, "gain": gain.difference, "interval": gain.interval, "seeds": gain.n}
                one["against"][name]["at_equal_flops"] = found | {"conclusive": gain.conclusive}


def nats_at(run: Judged, flops: float) -> float | None:
    """Return a run's validation nats per token when it had spent `flops`.

    `None` without validations around then, or before the end of the warm-up, where a rate that is still small says
    nothing about the method.
    """
    points = [point for point in run["curve"] if "validation_perplexity" in point]
    if not points:
        return None
    warm = run["config"]["optimizer"]["warmup"] * points[-1]["flops"]
    if not max(warm, points[0]["flops"]) <= flops <= 1.01 * points[-1]["flops"]:
        return None
    nats = np.log([point["validation_perplexity"] for point in points])
    return float(np.interp(flops, [point["flops"] for point in points], nats))


def solved(shares: Sequence[float], least: float) -> Judged:
    """Return how many of the seeds closed the gap by `least`, and the 95% interval of that share."""
    count = sum(round(share, 9) >= least for share in shares)  # a share such as (0.95 - 0.5) / 0.5 is 0.9 too
    return {"count": count, "of": len(shares), "interval": wilson_interval(count, len(shares))}


def undecided(judged: Judged) -> list[str]:
    """Return the names of mechanisms whose verdict further seeds may change: a test of theirs has not decided."""
    return [
        method["name"]
        for method in judged["methods"]
        if verdict(method, judged["methods"]) not in ("not trained", "not better")
        if any(test is None or not test["decided"] for test in method.get("against", {}).values())
    ]


def verdict(method: Judged, methods: Sequence[Judged]) -> Verdict:
    """Return the verdict on a method of a task in `suite.json`; `undecided` if it is not a mechanism."""
    tests = method.get("against", {})
    compared = {rival["role"] for rival in methods if rival["name"] in tests}
    is_ahead = all(test and test["conclusive"] and test["difference"] > 0 for test in tests.values())
    if is_ahead and {"twin", "control"} <= compared:
        return "better"
    solved_by = (method.get("solved") or {"count": 0})["count"]
    if method.get("health", {}).get("reason") and not solved_by:  # of most seeds, and none has solved the task
        return "not trained"
    if any(
        test and test.get("decided", test["conclusive"]) and not (test["conclusive"] and test["difference"] > 0)
        for test in tests.values()
    ):
        return "not better"
    return "undecided"


def interval(score: dict[str, float], seeds: int) -> tuple[float, float] | None:
    """Return the 95% interval of the mean of a `summary` over seeds; `None` for fewer than three."""
    if seeds < SEEDS_FOR_A_TEST:
        return None
    margin = student_t_margin(seeds - 1) * score["std"] / seeds**0.5
    return score["mean"] - margin, score["mean"] + margin


def levels_of(task: SuiteTask, first: float = math.nan) -> Levels:
    """Return the levels of the scored part of a task; `first`: the mean score of its first method."""
    if task.is_corpus:
        return Levels(0.0, first, 8.0, "bits per byte")
    source = generated(task.spec)
    if task.scored == "second half":
        assert isinstance(source, MarkovText)
        return source.levels(source.ids("test").shape[1] // 2)
    return answer_levels(source.levels()) if task.scored == "answers" else source.levels()


def answer_levels(levels: Levels) -> Levels:
    """Return levels of guessing as nats: a reader who sees the binding pays nothing, others log(possible values)."""
    floor, chance = (float(-np.log(accuracy)) for accuracy in (levels.floor, levels.chance))
    return Levels(0.0, floor, chance, "nats")


def score(task: SuiteTask, run: Path, test: Judged, *, ends: bool = True) -> float:
    """Return the score of a run in the unit of its task: accuracy, nats per scored token, or bits per byte.

    On a corpus `ends` of documents and sentences are paid for too.
    """
    if task.is_corpus:
        return float(test["bits_per_byte_with_ends" if ends else "bits_per_byte"])
    if task.scored == "all":
        return float(test[metric_of(test).tested])
    return part_nats(run, task)


def part_nats(run: Path, task: SuiteTask) -> float:
    """Return nats per scored token of the test split's documents, stored in the run's folder."""
    path = run / "suite.json"
    stored = read_json(path) if path.is_file() else {}
    if stored.get("scored") == task.scored:
        return float(stored["nats"])
    scores = scored_nats(load(run), task)
    write_json(path, sealed({"scored": task.scored, "nats": float(scores.mean()), "tokens": len(scores)}))
    return float(scores.mean())


def scored_nats(saved: Saved, task: SuiteTask) -> np.ndarray:
    """Return nats of each scored token, float64 [tokens], in the documents of the model's protocol (test split)."""
    split = saved.split("test")
    scores = saved.token_scores(split).astype(np.float64)
    if task.scored != "all":
        scores = scores[_places(task, split)]
        whole = saved.evaluation.max_documents is None
        assert not (whole and np.isnan(scores).any()), f"{saved.path}: the estimator skips tokens that count"
    return scores[~np.isnan(scores)]


def _places(task: SuiteTask, split: Split) -> list[int]:
    """Return the indices of all scored tokens."""
    starts = split.documents.tolist()
    if task.scored == "second half":
        pairs = itertools.pairwise(starts)  # the last token ends the document
        return [place for start, end in pairs for place in range(start + (end - 1 - start) // 2, end - 1)]
    source = generated(task.spec)
    assert isinstance(source, Recall)
    return [start + source.answer(document) for start, document in zip(starts, source.documents("test"))]


# -- health ------------------------------------------------------------------------------------------------------------

DOCUMENTS = 200
"""Documents, or questions, on which the worth of thoughts is measured."""
HEALTH_FILE = "health.json"


Worth = JsonObject | None
"""The `loss` of a model's score, nats per token or accuracy, with another text's thoughts in place of its own, and its
95% `interval` over documents or questions, `None` with too few; `None` if the model has no thoughts to replace."""


def health(runs: Sequence[Path]) -> JsonObject:
    """Return the health of a mechanism's runs, of which each is a seed.

    A run is healthy if each figure that its family lists (`Family.signs`) is above the line there, as a mean over the
    last tenth of the training's log lines; and if its score on test documents falls when it reads the thoughts of
    another text: the 95% interval of the loss over documents, or questions, is above zero.

    Returns:
        `signs`, the figures of its training (`Family.signs`), and `worth` for each seed; `healthy`, the number of
        healthy seeds; `reason`, what most other seeds lack, empty if at least half of the seeds are healthy.
    """
    model_type = read_json(runs[0] / "config.json")["recipe"]["model"]["model_type"]
    lines = next((family.signs[model_type] for family in families().values() if model_type in family.signs), {})
    signs, worth = [signs_of(run, lines) for run in runs], [worth_of(run) for run in runs]
    lacks = [_lacks(sign, value, lines) for sign, value in zip(signs, worth, strict=True)]
    healthy = lacks.count("")
    names = dict.fromkeys(name for sign in signs for name in sign)
    return {
        "signs": {name: [sign[name] for sign in signs if name in sign] for name in names},
        "worth": worth,
        "healthy": healthy,
        "reason": "" if 2 * healthy >= len(runs) else statistics.mode(lack for lack in lacks if lack),
    }


def signs_of(run: Path, lines: dict[str, float | None]) -> dict[str, float]:
    """Return means over the last tenth of a run's log lines; a name in `lines` stands for its parts `NAME.PART` too."""
    logged = [record for record in read_metrics(run / "metrics.jsonl") if "loss" in record]
    last = logged[-max(1, len(logged) // 10) :]
    found: dict[str, list[float]] = {}
    for record in last:
        for name, value in record.items():
            if name in lines or name.partition(".")[0] in lines:
                found.setdefault(name, []).append(value)
    return {name: statistics.fmean(values) for name, values in found.items()}


def worth_of(run: Path) -> Worth:
    """Return what a run's thoughts are worth, stored in its folder."""
    path = run / HEALTH_FILE
    stored = read_json(path) if path.is_file() else {}
    if stored.get("documents") != DOCUMENTS:
        saved = load(run)
        found = None
        if has_own_thoughts(saved.model.config):
            _, other = ablation.run(saved, AblationOptions(documents=DOCUMENTS), controls=["swapped"])["ablations"]
            sign = -1 if saved.layout.questions else 1  # an accuracy falls where nats rise
            interval = other["interval"] and sorted(sign * bound for bound in other["interval"])
            found = {"loss": sign * other["difference"], "interval": interval}
        stored = {"documents": DOCUMENTS, "worth": found}
        write_json(path, sealed(stored))
    worth: Worth = stored["worth"]
    return worth


def _lacks(signs: dict[str, float], worth: Worth, lines: dict[str, float | None]) -> str:
    """Return why a run is not healthy, in words; empty if it is."""
    for name, least in lines.items():
        if least is not None and not signs.get(name, math.nan) >= least:
            words = name.replace("_", " ")
            return f"{words} is below {least:g}" if name in signs else f"{words} was not measured"
    if worth is not None and not (worth["interval"] and worth["interval"][0] > 0):
        return "its score does not fall with another text's thoughts"
    return ""
