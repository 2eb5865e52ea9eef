"""Does the thought matter? A trained model with its own thoughts, and with each control in their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mentalese.errors import InputError
from mentalese.evaluation.answers import ask
from mentalese.evaluation.options import AblationOptions
from mentalese.evaluation.paired import compare_scores
from mentalese.evaluation.statistics import bootstrap_questions
from mentalese.models.generation import seeded
from mentalese.models.saved import Saved
from mentalese.nn.controls import CONTROLS
from mentalese.values import temporarily

OWN = "own"


@dataclass(frozen=True)
class Ablation:
    """A model's score with its own thoughts, or under a control.

    Attributes:
        thoughts: `own`, or a control, see `mentalese.nn.controls`.
        score: nats per token, or the share of questions that are answered correctly.
        difference: difference from the score with the model's own thoughts; `None` for the latter.
        interval: 95% interval of the difference, over documents or questions; `None` with too few of them.
        unfinished: number of answers that were cut at the limit of new tokens; `None` for texts.
    """

    thoughts: str
    score: float
    difference: float | None = None
    interval: tuple[float, float] | None = None
    unfinished: int | None = None


def has_own_thoughts(saved: Saved) -> bool:
    """Test if a model thinks and was not trained under a control."""
    config = saved.model.config
    return getattr(config, "has_thoughts", False) and config.thought_control is None


def run(saved: Saved, options: AblationOptions | None = None, *, show: bool = False) -> dict[str, Any]:
    """Score a split's texts, or ask its questions, once with the model's own thoughts and once under each control.

    Returns:
        `ablations`, a list of `Ablation`s as dictionaries, own thoughts first, without `swapped` if there is only one
        text; `unit` (`nats per token` or `accuracy`), `documents` or `questions`, `protocol`, and the origin of the
        text.

    Raises:
        InputError: the model has no thoughts; errors of `Saved.store`.
    """
    options = options or AblationOptions()
    config = saved.model.config
    if not getattr(config, "has_thoughts", False):
        raise InputError(f"{saved.path} has no thoughts to ablate: use a model of a family that thinks")
    if config.thought_control is not None:
        raise InputError(
            f"{saved.path} was trained with thought_control={config.thought_control!r}: there is nothing left to ablate"
        )
    saved = options.read_by(saved)
    rows = max(2, saved.evaluation.batch_size)  # thoughts are swapped between them
    saved = saved.scored_by(max_documents=options.documents, tokens="lexical", batch_size=rows)
    part = options.part(saved)
    store = saved.store(part, show=show)
    split, questions = store.splits[part], saved.layout.questions
    if questions and store.meta["kind"] != "records":
        raise InputError(f"{saved.path} answers questions and {saved.data.source} contains none: use another --data")

    def scores() -> tuple[np.ndarray, int | None]:
        """Return a value per token [tokens], or per question, and the number of unfinished answers."""
        if questions:
            answers = ask(saved, split, show=show)
            right = [record.correct for record in answers.records]
            return np.array(right, dtype=np.float64), answers.metrics().unfinished
        with seeded(saved.model, 0):
            return saved.token_scores(split, show=show), None

    reference, unfinished = scores()
    ablations = [Ablation(OWN, float(np.nanmean(reference, dtype=np.float64)), unfinished=unfinished)]
    scores_by_control: dict[str, np.ndarray] = {}
    is_single = saved.evaluation.documents(len(split.document_bytes)) == 1
    for control in CONTROLS:
        with temporarily(config, thought_control=control):
            other, unfinished = scores()
            scores_by_control[control] = other
        if control == "swapped" and is_single and np.array_equal(other, scores_by_control["removed"], equal_nan=True):
            continue  # thoughts of a single row could only be removed; a long text has other windows
        difference, interval = _difference(other, reference) if questions else _paired(other, reference, split)
        score = float(np.nanmean(other, dtype=np.float64))
        ablations.append(Ablation(control, score, difference, interval, unfinished))
    counted = {"questions": len(reference)} if questions else {
        "documents": saved.evaluation.documents(len(split.document_bytes)), "tokens": int((~np.isnan(reference)).sum()),
    }  # fmt: skip
    return {
        "unit": "accuracy" if questions else "nats per token",
        "ablations": [vars(ablation) for ablation in ablations],
        **counted,
        "protocol": saved.layout.asked() if questions else saved.protocol,
        **options.origin(saved, store),
    }


def _paired(other: np.ndarray, own: np.ndarray, split: Any) -> tuple[float, tuple[float, float] | None]:
    overall = compare_scores(other, own, split).overall
    return overall.difference, overall.interval


def _difference(other: np.ndarray, own: np.ndarray) -> tuple[float, tuple[float, float] | None]:
    gain = (other - own)[:, None]
    interval = bootstrap_questions(gain, -1.0, 1.0)
    return float(gain.mean()), None if interval is None else (float(interval[0, 0]), float(interval[1, 0]))
