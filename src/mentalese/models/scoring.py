"""Perplexity, bits per byte and nats per token, each with the protocol of its measurement."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mentalese.data.batch import Batch, to_device
from mentalese.data.evaluation import evaluation_batches
from mentalese.data.split import Split
from mentalese.data.tokenizers import beginning, decode, lost_in_tokens
from mentalese.errors import require
from mentalese.models.base import ONE_PASS, evaluation_mode
from mentalese.nn.loss import IGNORED
from mentalese.screen import progress

if TYPE_CHECKING:
    from mentalese.models.saved import Saved


@dataclass(frozen=True)
class Perplexity:
    """Score of a text or split.

    Attributes:
        nll: mean negative log-likelihood, nats per scored token.
        tokens: scored tokens.
        bytes: UTF-8 bytes of the scored text: whole documents, or the scored steps and answers of records.
        perplexity: `exp(nll)`; depends on the tokenizer.
        bits_per_byte: total bits over `bytes`; comparable across tokenizers. `None` if the estimator scores only a part
            of the text, or its tokens lost information (`lost` in the protocol).
        protocol: scored tokens, their context, and the estimator.
        parts: the terms that `nll` is the sum of, by name (`nll` and `kl` of a bound); empty if there is only one.
        bits_per_byte_with_ends: bits per byte including the ends of sentences and documents, which models of sentences
            otherwise receive as input: it compares all kinds of models. `None` if the estimator is not a likelihood of
            one pass, or the tokens lost information.
    """

    nll: float
    tokens: int
    bytes: int
    perplexity: float
    bits_per_byte: float | None
    protocol: dict[str, object]
    parts: dict[str, float] = field(default_factory=dict)
    bits_per_byte_with_ends: float | None = None

    def to_dict(self) -> dict[str, object]:
        figures = dataclasses.asdict(self)
        protocol, parts = figures.pop("protocol"), figures.pop("parts")
        return figures | {"protocol": protocol} | ({"parts": parts} if parts else {})


@dataclass(frozen=True)
class TextScore:
    """Score of one text.

    Attributes:
        nll: nats of the whole text.
        tokens: scored tokens.
        bytes: UTF-8 bytes of the text.
        estimator: the scoring rule; only `exact` and `causal` are autoregressive likelihoods in one pass.
        lost: information that tokenisation discards, such as unknown words or capital letters; `None` if unknown.
    """

    nll: float
    tokens: int
    bytes: int
    estimator: str
    lost: str | None = None

    @property
    def perplexity(self) -> float:
        """Perplexity per token; depends on the tokenizer."""
        return _exp(self.nll / self.tokens)

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte without ends, comparable across tokenizers; `None` if the tokens lost information."""
        return self.nll / math.log(2) / self.bytes if self.lost is None else None


def text_scores(saved: Saved, split: Split) -> list[TextScore]:
    """Return `token_scores` summed by document; raise `InputError` for a document without a scored token."""
    scores, results = token_scores(saved, split), []
    for number, (start, end, size) in enumerate(zip(split.documents, split.documents[1:], split.document_bytes)):
        nats = scores[start:end]
        tokens = int((~np.isnan(nats)).sum())
        require(tokens > 0, f"the number of scored tokens of texts[{number}]", tokens, "use a longer text")
        lost = lost_in_tokens(saved.tokenizer, split.tokens[start:end])
        results.append(TextScore(float(np.nansum(nats.astype(np.float64))), tokens, int(size), saved.estimator, lost))
    return results


def perplexity(
    saved: Saved, split: Split, *, show: bool = False, before_batch: Callable[[], None] = lambda: None
) -> Perplexity:
    """Score a split's documents; the result does not depend on the batch size.

    Args:
        saved: a model, scored by the first of its `estimators` or the one of its `evaluation`; its mode is unchanged.
        before_batch: called before each batch; it may raise to end the evaluation.

    Raises:
        InputError: there is nothing to score, or the model has no such estimator.
        FloatingPointError: a batch's likelihood is not finite; the message names the batch.
    """
    tokenizer, evaluation, questions = saved.tokenizer, saved.evaluation, saved.layout.questions
    totals: Counter[str] = Counter()
    tokens = left_out = answers = 0
    ends = 0.0
    apart = saved.estimator in ONE_PASS
    end = saved.layout.special_ids(tokenizer)["eos_token_id"]
    for batch, labels, parts in _scored(saved.scored_by(tokens="all") if apart else saved, split, show, before_batch):
        has_label = batch["labels"][:, 1:] != IGNORED
        text = (batch["store_index"] >= 0) & (batch["labels"] != end)
        if questions:
            answered = (decode(ids[mask], tokenizer) for ids, mask in zip(batch["labels"], text))
            answers += sum(len(each.encode()) for each in answered)
        if evaluation.tokens == "lexical":
            ends += sum(float(nats.masked_fill(text, 0.0).sum()) for nats in parts.values())
            parts = {name: nats.masked_fill(~text, 0.0) for name, nats in parts.items()}
            labels, has_label = labels.masked_fill(~text, IGNORED), has_label & text[:, 1:]
        # Sums in float64: a float32 sum of millions of tokens would depend on the batch size.
        totals.update({name: float(nats.sum()) for name, nats in parts.items()})
        counted = int((labels != IGNORED).sum())
        tokens, left_out = tokens + counted, left_out + int(has_label.sum()) - counted
    available = len(split.document_bytes)
    chosen = evaluation.chosen(available)
    require(tokens > 0, "the number of scored tokens", tokens, "use a split with text")
    total, size = totals.total(), answers if questions else int(split.document_bytes[chosen].sum())
    spans = zip(split.documents[chosen], split.documents[np.asarray(chosen) + 1])
    lost = lost_in_tokens(tokenizer, np.concatenate([split.tokens[start:stop] for start, stop in spans]))
    told = {} if lost is None else {"lost": lost}
    if split.beginning:
        told["beginning"] = "".join(tokenizer.convert_ids_to_tokens(beginning(tokenizer)))
    return Perplexity(
        nll=total / tokens,
        tokens=tokens,
        bytes=size,
        perplexity=_exp(total / tokens),
        bits_per_byte=None if left_out or lost else total / math.log(2) / size,
        bits_per_byte_with_ends=(total + ends) / math.log(2) / size if apart and not lost else None,
        protocol=saved.protocol | evaluation.how_many(available) | told,
        parts={name: nats / tokens for name, nats in totals.items()} if len(totals) > 1 else {},
    )


def token_scores(saved: Saved, split: Split, *, show: bool = False) -> np.ndarray:
    """Return the scores of `perplexity` token by token, to compare models of different contexts on each token.

    Returns:
        float32 [len(split.tokens)]: nats of each lexical token, in the store's order; NaN if not scored (ends of
        documents, questions, documents beyond `evaluation.max_documents`, tokens that the estimator skips).
    """
    scores = np.full(len(split.tokens), np.nan, dtype=np.float32)
    for batch, labels, parts in _scored(saved.scored_by(tokens="lexical"), split, show):
        index = batch["store_index"].masked_fill(labels == IGNORED, -1)
        scores[index[index >= 0].numpy()] = torch.stack([*parts.values()]).sum(0)[index >= 0].numpy()
    return scores


def _scored(
    saved: Saved, split: Split, show: bool, before_batch: Callable[[], None] = lambda: None
) -> Iterator[tuple[Batch, Tensor, dict[str, Tensor]]]:
    """Yield each batch with its scored labels and their nats by part, float64 [rows, length], 0 without a label."""
    require(isinstance(split, Split), "split", split, "pass what Saved.split(name) returns")
    model, evaluation, estimator = saved.model, saved.evaluation, saved.estimator
    documents = evaluation.chosen(len(split.document_bytes))
    settings = {} if estimator == model.estimators[0] else {"estimator": estimator}
    total, tokens, rows_read = 0.0, 0, 0
    questions = saved.layout.questions  # most of their tokens are not scored
    whole = len(documents) if questions else int(np.diff(split.documents)[documents].sum())
    with progress("Scoring", whole, show=show) as bar:
        for number, batch in enumerate(evaluation_batches(split, saved.layout, evaluation, saved.tokenizer)):
            before_batch()
            read = {name: value for name, value in batch.items() if name != "store_index"}
            with evaluation_mode(model), torch.no_grad():
                scores = model.nll_parts(to_device(read, saved.device), **settings)
                labels = model.scored_labels(read, estimator)
            parts = {name: nats.cpu().double() for name, nats in scores.items()}
            total += sum(float(nats.sum()) for nats in parts.values())
            if not math.isfinite(total):
                rows, length = batch["input_ids"].shape
                raise FloatingPointError(
                    f"the log-likelihood of evaluation batch {number} ({rows} rows of {length} tokens) is "
                    f"{total}: the model's weights or activations are not finite"
                )
            tokens, rows_read = tokens + int((labels != IGNORED).sum()), rows_read + len(labels)
            bar.update(rows_read if questions else tokens, f"perplexity {_exp(total / max(tokens, 1)):.1f}")
            yield batch, labels, parts
    require(tokens > 0, "the number of scored tokens", tokens, "use a split with text")


def _exp(nll: float) -> float:
    return math.exp(nll) if nll < 700 else math.inf
