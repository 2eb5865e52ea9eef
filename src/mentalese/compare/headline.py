"""The result of a comparison in one sentence: a winner only with three or more seeds and an interval without zero."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mentalese.compare.comparison import Row, paired_test, scored_alike
from mentalese.evaluation.metric import ACCURACY
from mentalese.formatting import scored_as


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Return the best row first; equal rows keep their order."""
    return rows[0].metric.ranked(rows, lambda row: row.value)


def winner(rows: Sequence[Row]) -> Row | None:
    """Return the row that is better than every other one, or `None` if the seeds do not show it."""
    best, *others = ranked(rows)
    tests = [paired_test(best.runs, other.runs) for other in others]
    # Means of perplexities may be in another order than those of their logarithms, which are tested.
    ahead = [test is not None and test.conclusive and best.metric.better(test.difference, 0.0) for test in tests]
    return best if all(ahead) else None


def headline(rows: Sequence[Row]) -> str:
    """Return the result in a sentence."""
    best, second, *_ = order = ranked(rows)
    last, names = order[-1], f"test {best.metric.name}"
    if not scored_alike([run for row in rows for run in row.runs]):
        return (
            f"{len(rows)} models that were scored on different numbers of {best.metric.counted}, and so are not "
            f"ranked: {names} from {figure(best)} to {figure(last)}."
        )
    test = paired_test(best.runs, second.runs)
    if test is None:
        number = {1: "One seed", 2: "Two seeds"}[len(best.runs)]
        return (
            f"{number} of each of {len(rows)} models: {names} from {figure(best)} to {figure(last)}. "
            "Too few seeds to rank them."
        )
    if winner(rows) is None:
        return f"No model is ahead in {names}: {best.name} has {figure(best)}, {second.name} {figure(second)}."
    if best.metric is ACCURACY:
        low, high = (f"{100 * value:.1f}" for value in test.interval)
        gain = f"{100 * test.difference:.1f} points above {second.name} (95% {low} to {high}, "
    else:
        high, low = (f"{-math.expm1(value):.1%}" for value in test.interval)
        gain = f"{-math.expm1(test.difference):.1%} below {second.name} (95% {low} to {high}, "
    return f"{best.name} has the best {names}, {figure(best)}, {gain}{significance(test.p, test.n)})."


def figure(row: Row) -> str:
    """Return the mean of the metric, with its unit and the label of its estimator."""
    return row.metric.format(row.value) + estimator_label(row)


def estimator_label(row: Row) -> str:
    """Return the label after a perplexity that is not an exact likelihood."""
    return "" if row.metric is ACCURACY else scored_as(row.protocol)


def significance(p: float, n: int) -> str:
    """Return a p-value and the number of pairs, as they are printed."""
    return f"p {'< 0.001' if p < 0.001 else f'= {p:.3f}'}, n = {n}"
