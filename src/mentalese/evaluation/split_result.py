"""The result of a split: `validation` and `test` of a run."""

from __future__ import annotations

from dataclasses import dataclass

from mentalese.evaluation.answers import AnswerMetrics
from mentalese.evaluation.metric import ACCURACY, Metric
from mentalese.models.scoring import Perplexity


@dataclass(frozen=True)
class SplitResult:
    """Scores of a split, and of questions the answers at a stage of the curriculum."""

    scores: Perplexity
    answers: AnswerMetrics | None = None
    stage: int | None = None

    def value(self, metric: Metric) -> float:
        if metric is ACCURACY and self.answers is not None:
            return self.answers.accuracy
        return self.scores.perplexity

    @property
    def unfinished(self) -> int:
        """The number of answers that were cut at the limit of new tokens."""
        return 0 if self.answers is None else self.answers.unfinished

    def to_dict(self) -> dict[str, object]:
        if self.answers is None:
            return self.scores.to_dict()
        protocol = self.scores.protocol | self.answers.protocol
        return self.scores.to_dict() | self.answers.to_dict() | {"stage": self.stage, "protocol": protocol}
