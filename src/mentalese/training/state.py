"""The state of a run beside its tensors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class State:
    """The part of a checkpoint beside tensors; everything else follows from the step.

    Attributes:
        stage: stage of the last validation; `best` and `best_nll` belong to it.
        best, best_nll: the recipe's metric and the likelihood at `best_step`.
        unfinished: answers of the validation at `best_step` that were cut at the limit of new tokens.
        to_beat: the metric that early stopping compares with.
        validation_due: the step's validation has not been made yet.
    """

    step: int = 0
    stage: int = 0
    best_step: int | None = None
    best: float | None = None
    best_nll: float | None = None
    unfinished: int = 0
    to_beat: float | None = None
    validations_without_gain: int = 0
    validation_due: bool = False
    flops: int = 0
    seconds: float = 0.0
