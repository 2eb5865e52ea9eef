"""Metrics by which runs are chosen and compared: perplexity of texts, accuracy of questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Metric:
    """A metric of a split.

    Attributes:
        name: field of a result, and `evaluation.metric` of a recipe.
        larger_is_better: direction of the metric.
        figures: fields of a result that a table shows, the metric first.
        tested: field of a result for tests over seeds: the logarithm for perplexities.
        counted: field of a result with the number of scored tokens or questions.
        change: name of the difference or ratio to a baseline.
        clock: field of a learning curve against which the metric is drawn.
    """

    name: str
    larger_is_better: bool
    figures: tuple[str, ...]
    tested: str
    counted: str
    change: str
    clock: str

    def format(self, value: float) -> str:
        """Return a value as a table shows it."""
        if self.larger_is_better:
            return f"{value:.1%}"
        return f"{value:,.{1 if value >= 20 else 2}f}"

    def better(self, value: float, than: float, by: float = 0.0) -> bool:
        """Test if a value, or one of the field `tested`, is better than another one by more than `by`."""
        return value > than + by if self.larger_is_better else value < than - by

    def ranked(self, items: Iterable[T], value: Callable[[T], float]) -> list[T]:
        """Return items with the best value first; equal ones keep their order."""
        return sorted(items, key=value, reverse=self.larger_is_better)

    def step(self, result: Mapping[str, int]) -> float:
        """Return the step between possible values: one question for an accuracy; 0 if there is none."""
        return 1 / result[self.counted] if self.larger_is_better else 0.0


PERPLEXITY = Metric(
    name="perplexity",
    larger_is_better=False,
    figures=("perplexity", "bits_per_byte", "bits_per_byte_with_ends"),
    tested="nll",
    counted="tokens",
    change="ratio",
    clock="tokens",
)
ACCURACY = Metric(
    name="accuracy",
    larger_is_better=True,
    figures=("accuracy", "exact_match", "f1"),
    tested="accuracy",
    counted="questions",
    change="difference",
    clock="step",
)
METRICS = {metric.name: metric for metric in (PERPLEXITY, ACCURACY)}


def metric_of(result: Mapping[str, object]) -> Metric:
    """Return the metric of a result, or of a row of a comparison: accuracy if questions were answered."""
    return ACCURACY if ACCURACY.name in result else PERPLEXITY
