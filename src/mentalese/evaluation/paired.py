"""Two models on the same tokens: how much better one of them predicts each token, and where in a sentence."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from mentalese.data.split import Split
from mentalese.errors import require
from mentalese.evaluation.options import TextOptions
from mentalese.evaluation.statistics import bootstrap_ratio
from mentalese.models.saved import Saved, on_one_text

POSITIONS = 12  # in a sentence; the last one includes all later ones


@dataclass(frozen=True)
class Difference:
    """A mean difference between a model and its reference in nats per token; below zero the model predicts better.

    Attributes:
        interval: 95% interval, over documents drawn with replacement; `None` if only one has such tokens.
        position: position of the tokens in their sentence, from 1; the last one includes all later ones. `None`: all.
    """

    tokens: int
    difference: float
    interval: tuple[float, float] | None
    position: int | None = None


@dataclass(frozen=True)
class PairedScores:
    """A comparison token by token: mean nats of the two models, and differences over all tokens and by position."""

    documents: int
    nll: float
    reference_nll: float
    overall: Difference
    by_position: list[Difference]


def compare_scores(scores: np.ndarray, reference: np.ndarray, split: Split) -> PairedScores:
    """Compare two models' `token_scores` of one split; raise `InputError` for other tokens, or none."""
    index = np.flatnonzero(~np.isnan(scores))
    other = np.flatnonzero(~np.isnan(reference))
    counts = len(index), len(other)
    require(np.array_equal(index, other), "scored tokens", counts, "score both models on the same documents")
    require(counts[0] > 0, "scored tokens", counts, "use a split with text")
    after = np.searchsorted(split.documents, index, side="right")
    _, document = np.unique(after, return_inverse=True)
    text = split.documents[after - 1] + split.beginning
    start = np.maximum(split.segments[np.searchsorted(split.segments, index, side="right") - 1], text)
    place = np.minimum(index - start, POSITIONS - 1)
    gain = scores[index].astype(np.float64) - reference[index]
    # Sums by document; the first column is all tokens, the others are positions in the sentence.
    shape = (int(document.max()) + 1, POSITIONS + 1)
    tokens, nats = np.zeros(shape), np.zeros(shape)
    for column in (np.zeros_like(place), place + 1):
        np.add.at(tokens, (document, column), 1)
        np.add.at(nats, (document, column), gain)
    columns = np.flatnonzero(tokens.sum(0))
    interval = bootstrap_ratio(nats[:, columns], tokens[:, columns])
    several = (tokens[:, columns] > 0).sum(0) > 1
    differences = [
        Difference(
            tokens=int(tokens[:, column].sum()),
            difference=float(nats[:, column].sum() / tokens[:, column].sum()),
            interval=(float(interval[0, i]), float(interval[1, i])) if interval is not None and several[i] else None,
            position=int(column) or None,
        )
        for i, column in enumerate(columns)
    ]
    return PairedScores(
        documents=len(tokens),
        nll=float(scores[index].mean(dtype=np.float64)),
        reference_nll=float(reference[index].mean(dtype=np.float64)),
        overall=differences[0],
        by_position=differences[1:],
    )


def run(saved: Saved, other: Saved, options: TextOptions | None = None, *, show: bool = False) -> dict[str, Any]:
    """Compare two trained models, each under its own protocol, on the same tokens of one text.

    `other` is the reference. Without `options` the text is the test split of the data that `saved` was trained on.

    Returns:
        `PairedScores` as a dictionary, both `protocol`s, the `source` and the `split`.

    Raises:
        InputError: tokenizers that split the text into different tokens; errors of `Saved.store`.
    """
    options = options or TextOptions()
    read = on_one_text((saved, other), options.source, text_column=options.text_column, detokenizer=options.detokenizer)
    saved, other = (one.scored_by(tokens="lexical") for one in read)
    data = saved.data
    part = options.part(saved, other)
    split, reference = (model.split(part, show=show) for model in (saved, other))
    tokenizers = [saved.data.tokenizer, other.data.tokenizer]
    alike = np.array_equal(split.tokens, reference.tokens)
    require(alike, "tokenizers", tokenizers, f"they split {data.source} differently, compare bits per byte instead")
    scores, reference_scores = saved.token_scores(split, show=show), other.token_scores(reference, show=show)
    if not np.array_equal(np.isnan(scores), np.isnan(reference_scores)):
        estimators = [model.protocol.get("estimator", "exact") for model in (saved, other)]
        remedy = "they score different tokens, compare models that are scored alike"
        require(estimators[0] == estimators[1], "estimators", estimators, remedy)
    return dataclasses.asdict(compare_scores(scores, reference_scores, split)) | {
        "protocol": saved.protocol,
        "reference_protocol": other.protocol,
        "source": data.source,
        "split": part,
    }
