"""What a comparison shows, in one sentence: a winner only with three or more seeds and an interval without zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mentalese.evaluation.metric import ACCURACY, metric_of
from mentalese.evaluation.statistics import PairedTest, paired_t_test
from mentalese.formatting import scored_as

SEEDS_FOR_A_TEST = 3
FLOPS_TOLERANCE = 0.02
"""The share of a matched cost by which a run may miss it without a word."""


def metric(rows: Sequence[dict[str, Any]]) -> str:
    """Return the metric of a comparison, `perplexity` or `accuracy`: the same for all of its rows."""
    return metric_of(rows[0]).name


def paired_test(runs: Sequence[dict[str, Any]], reference: Sequence[dict[str, Any]]) -> PairedTest | None:
    """Runs against those of another recipe, seed by seed; `None` for fewer than three seeds, or if they were scored on
    different numbers of tokens or questions.

    Tested are accuracies, or nats per token (the logarithms of perplexities).
    """
    if min(len(runs), len(reference)) < SEEDS_FOR_A_TEST or not scored_alike([*runs, *reference]):
        return None
    test = metric_of(runs[0]["test"])
    values, others = ([run["test"][test.tested] for run in some] for some in (runs, reference))
    return paired_t_test(values, others, step=test.step(runs[0]["test"]))


def scored_alike(runs: Sequence[dict[str, Any]]) -> bool:
    """Whether all runs were scored on as many tokens, or questions."""
    counted = metric_of(runs[0]["test"]).counted
    return len({run["test"][counted] for run in runs}) == 1


def ranked(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The best first; equal rows keep their order."""
    measured = metric_of(rows[0])
    return measured.ranked(rows, lambda row: row[measured.name]["mean"])


def winner(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The row that is better than every other one, or `None` if the seeds do not show it."""
    best, *others = ranked(rows)
    tests = [paired_test(best["runs"], other["runs"]) for other in others]
    # Means of perplexities may be in another order than those of their logarithms, which are tested.
    ahead = [test is not None and test.conclusive and metric_of(best).better(test.difference, 0.0) for test in tests]
    return best if all(ahead) else None


def headline(rows: Sequence[dict[str, Any]]) -> str:
    """The result in a sentence."""
    best, second, *_ = ranked(rows)
    last = ranked(rows)[-1]
    measured = metric_of(best)
    names = f"test {measured.name}"
    if not scored_alike([run for row in rows for run in row["runs"]]):
        return (
            f"{len(rows)} models that were scored on different numbers of {measured.counted}, and so are not ranked: "
            f"{names} from {figure(best)} to {figure(last)}."
        )
    test = paired_test(best["runs"], second["runs"])
    if test is None:
        seeds = len(best["runs"])
        number = {1: "One seed", 2: "Two seeds"}[seeds]
        return (
            f"{number} of each of {len(rows)} models: {names} from {figure(best)} to {figure(last)}. "
            "Too few seeds to rank them."
        )
    if winner(rows) is None:
        return f"No model is ahead in {names}: {best['name']} has {figure(best)}, {second['name']} {figure(second)}."
    if measured is ACCURACY:
        low, high = (f"{100 * value:.1f}" for value in test.interval)
        gain = f"{100 * test.difference:.1f} points above {second['name']} (95% {low} to {high}, "
    else:
        high, low = (f"{-math.expm1(value):.1%}" for value in test.interval)
        gain = f"{-math.expm1(test.difference):.1%} below {second['name']} (95% {low} to {high}, "
    return f"{best['name']} has the best {names}, {figure(best)}, {gain}{significance(test.p, test.n)})."


def figure(row: dict[str, Any]) -> str:
    """The mean of the metric, with its unit."""
    measured = metric_of(row)
    text = measured.format(row[measured.name]["mean"])
    return text if measured is ACCURACY else text + estimator_label(row)


def perplexity_digits(row: dict[str, Any]) -> int:
    return 2 if row["perplexity"]["mean"] < 20 else 1


def estimator_label(row: dict[str, Any]) -> str:
    """What is written after a perplexity that is not an exact likelihood."""
    return scored_as(row["runs"][0]["test"]["protocol"])


def significance(p: float, n: int) -> str:
    """A p-value and the number of pairs, as they are printed."""
    return f"p {'< 0.001' if p < 0.001 else f'= {p:.3f}'}, n = {n}"
