"""Does the thought matter? A trained model with its own thoughts, and with each control in their place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mentalese.errors import require
from mentalese.evaluation.answers import ask
from mentalese.evaluation.options import AblationOptions
from mentalese.evaluation.paired import compare_scores
from mentalese.evaluation.statistics import bootstrap_questions
from mentalese.models.generation import seeded
from mentalese.models.saved import Saved
from mentalese.nn.controls import CONTROLS
from mentalese.values import temporarily

OWN = "own"


def has_own_thoughts(saved: Saved) -> bool:
    """Test if a model thinks and was not trained under a control."""
    config = saved.model.config
    return getattr(config, "has_thoughts", False) and config.thought_control is None


def run(
    saved: Saved,
    options: AblationOptions | None = None,
    *,
    controls: Sequence[str] = CONTROLS,
    show: bool = False,
) -> dict[str, Any]:
    """Score a split's texts, or ask its questions, once with the model's own thoughts and once under each control.

    Returns:
        `ablations`, own thoughts first, without `swapped` if there is only one text: `thoughts` (`own`, or a control of
        `mentalese.nn.controls`), `score`, the `difference` from own thoughts, its 95% `interval` over documents or
        questions (`None` with too few), and the number of `unfinished` answers (`None` for texts). Then `unit` (`nats
        per token` or `accuracy`), `documents` or `questions`, `protocol`, and the origin of the text.
    """
    options = options or AblationOptions()
    config = saved.model.config
    thinks = getattr(config, "has_thoughts", False)
    require(thinks, "model", str(saved.path), "it has no thoughts to ablate, use a model of a family that thinks")
    control = config.thought_control
    require(control is None, f"thought_control of {saved.path}", control, "use a model that was trained without it")
    saved = options.read_by(saved)
    rows = max(2, saved.evaluation.batch_size)  # thoughts are swapped between them
    saved = saved.scored_by(max_documents=options.documents, tokens="lexical", batch_size=rows)
    part = options.part(saved)
    store = saved.store(part, show=show)
    split, questions = store.splits[part], saved.layout.questions
    answered = not questions or store.meta["kind"] == "records"
    require(answered, "source", saved.data.source, f"{saved.path} answers questions, use a source that has some")

    def scores(control: str | None) -> tuple[np.ndarray, int | None]:
        """Return a value per token [tokens], or per question, and the number of unfinished answers."""
        with temporarily(config, thought_control=control):
            if questions:
                answers = ask(saved, split, show=show)
                right = [record.correct for record in answers.records]
                return np.array(right, dtype=np.float64), answers.metrics().unfinished
            with seeded(saved.model, 0):
                return saved.token_scores(split, show=show), None

    values = {OWN: scores(None)} | {control: scores(control) for control in controls}
    reference, _ = values[OWN]
    ablations: list[dict[str, object]] = []
    documents = saved.evaluation.documents(len(split.document_bytes))
    for thoughts, (other, unfinished) in values.items():
        lone = thoughts == "swapped" and documents == 1 and "removed" in values
        if lone and np.array_equal(other, values["removed"][0], equal_nan=True):
            continue  # thoughts of a single row could only be removed; a long text has other windows
        difference: float | None = None
        interval: tuple[float, float] | None = None
        if thoughts != OWN and questions:
            gain = (other - reference)[:, None]
            bounds = bootstrap_questions(gain, -1.0, 1.0)
            difference = float(gain.mean())
            interval = None if bounds is None else (float(bounds[0, 0]), float(bounds[1, 0]))
        elif thoughts != OWN:
            overall = compare_scores(other, reference, split).overall
            difference, interval = overall.difference, overall.interval
        score = float(np.nanmean(other, dtype=np.float64))
        entry = {"thoughts": thoughts, "score": score, "difference": difference, "interval": interval}
        ablations.append(entry | {"unfinished": unfinished})
    tokens = int((~np.isnan(reference)).sum())
    counted = {"questions": len(reference)} if questions else {"documents": documents, "tokens": tokens}
    return {
        "unit": "accuracy" if questions else "nats per token",
        "ablations": ablations,
        **counted,
        "protocol": saved.layout.asked() if questions else saved.protocol,
        **options.origin(saved, store),
    }
