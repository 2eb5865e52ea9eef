"""Two models on the same tokens: how much better one predicts each, and where in a sentence."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mentalese.data.layouts import Layout
from mentalese.data.store import Split
from mentalese.errors import InputError
from mentalese.evaluation.statistics import bootstrap_ratio
from mentalese.evaluation.tasks import open_evaluation, open_text
from mentalese.models.scoring import protocol, token_scores
from mentalese.recipe import DataConfig, EvaluationConfig

POSITIONS = 12


@dataclass(frozen=True)
class Difference:
    """Nats a token that a model needs more than its reference; below zero it predicts better.

    Attributes:
        tokens: how many tokens the mean is over.
        difference: mean of `scores - reference`.
        interval: 95% over documents drawn with replacement; `None` where there is but one.
        position: place of the tokens in their sentence, from 1; `None` for all of them. The last place stands for all
            from there on.
    """

    tokens: int
    difference: float
    interval: tuple[float, float] | None
    position: int | None = None


@dataclass(frozen=True)
class PairedScores:
    """A comparison token by token.

    Attributes:
        nll, reference_nll: mean nats a token of the two models, over the same tokens.
        overall: the mean difference.
        by_position: the same for the first token of every sentence, the second, ...
    """

    documents: int
    nll: float
    reference_nll: float
    overall: Difference
    by_position: list[Difference]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def compare_scores(
    scores: np.ndarray, reference: np.ndarray, split: Split, *, positions: int = POSITIONS
) -> PairedScores:
    """Compares two models' `token_scores` of one split.

    Args:
        scores, reference: [len(split.tokens)], NaN where not scored, at the same places.
        split: tells documents and sentences apart.
        positions: places in a sentence that are told apart.

    Raises:
        InputError: other tokens were scored, or none.
    """
    index = np.flatnonzero(~np.isnan(scores))
    if not np.array_equal(index, np.flatnonzero(~np.isnan(reference))):
        raise InputError(
            f"the two models were scored on other tokens ({len(index):,} and {int((~np.isnan(reference)).sum()):,}): "
            "score both on the same documents"
        )
    if not len(index):
        raise InputError("no token was scored: give a split with text")
    _, document = np.unique(np.searchsorted(split.documents, index, side="right"), return_inverse=True)
    start = split.segments[np.searchsorted(split.segments, index, side="right") - 1]
    place = np.minimum(index - start, positions - 1)
    gain = scores[index].astype(np.float64) - reference[index]
    # Sums by document; the first column is all tokens, the others are places in the sentence.
    shape = (int(document.max()) + 1, positions + 1)
    tokens, nats = np.zeros(shape), np.zeros(shape)
    for column in (np.zeros_like(place), place + 1):
        np.add.at(tokens, (document, column), 1)
        np.add.at(nats, (document, column), gain)
    held = np.flatnonzero(tokens.sum(0))
    interval = bootstrap_ratio(nats[:, held], tokens[:, held])
    differences = [
        Difference(
            tokens=int(tokens[:, column].sum()),
            difference=float(nats[:, column].sum() / tokens[:, column].sum()),
            interval=None if interval is None else (float(interval[0, i]), float(interval[1, i])),
            position=int(column) or None,
        )
        for i, column in enumerate(held)
    ]
    return PairedScores(
        documents=len(tokens),
        nll=float(scores[index].mean(dtype=np.float64)),
        reference_nll=float(reference[index].mean(dtype=np.float64)),
        overall=differences[0],
        by_position=differences[1:],
    )


def compare_models(
    path: str,
    reference: str,
    *,
    source: str | None = None,
    split: str = "test",
    device: str | torch.device = "cpu",
    show: bool = True,
) -> dict[str, Any]:
    """Two saved models, each read by its own protocol, on the same tokens of one text.

    Args:
        path, reference: folders of runs or of saved models.
        source: the text, as in `DataConfig.source`; `None` takes the one that the model of `path` was trained on.

    Returns:
        `PairedScores` as a dictionary, and both `protocol`s. Places in a sentence are those of the first model's text.

    Raises:
        InputError: no model, or tokenizers that give the text other tokens.
    """
    ours = open_scoring(path, source=source, split=split, device=device, show=show)
    theirs = open_scoring(reference, source=ours.source, split=split, device=device, show=show)
    if not np.array_equal(ours.split.tokens, theirs.split.tokens):
        raise InputError(
            f"{path} and {reference} read {ours.source} in other tokens: compare their bits a byte instead"
        )
    paired = compare_scores(ours.scores(device, show), theirs.scores(device, show), ours.split)
    return paired.to_dict() | {
        "protocol": ours.protocol(), "reference_protocol": theirs.protocol(), "source": ours.source,
    }  # fmt: skip


@dataclass(frozen=True)
class Scoring:
    """A saved model and a text in its tokens, to be scored by the model's own protocol.

    Attributes:
        data, layout, evaluation: how the model reads and scores it.
        split: the part of the text.
    """

    model: Any
    tokenizer: Any
    data: DataConfig
    layout: Layout
    evaluation: EvaluationConfig
    split: Split

    @property
    def source(self) -> str:
        return self.data.source

    @property
    def length(self) -> int:
        """Tokens that the model reads at once: those of a window, or of the longest document."""
        window = self.layout.window(self.evaluation)
        return window[0] if window else int(np.diff(self.split.documents).max(initial=1))

    def scores(self, device: str | torch.device, show: bool) -> np.ndarray:
        """The model's `token_scores` [len(split.tokens)]: nats, NaN where not scored."""
        return token_scores(
            self.model, self.tokenizer, self.split, self.data, self.layout, self.evaluation, device=device, show=show
        )

    def protocol(self) -> dict[str, Any]:
        return protocol(self.model, self.data, self.layout, dataclasses.replace(self.evaluation, tokens="lexical"))


def open_scoring(
    path: str,
    *,
    source: str | None = None,
    split: str = "test",
    documents: int | None = None,
    device: str | torch.device = "cpu",
    show: bool = True,
) -> Scoring:
    """Opens a model and its text; nothing is scored yet.

    Takes and raises what `compare_models` does; of the text the first so many `documents`, `None`: all.
    """
    model, tokenizer, data, layout, evaluation = open_evaluation(path, source, device)
    evaluation = dataclasses.replace(evaluation, max_documents=documents)
    text = open_text(tokenizer, data, layout, split, show).splits[split]
    return Scoring(model, tokenizer, data, layout, evaluation, text)
