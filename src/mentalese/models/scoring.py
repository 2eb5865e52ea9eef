"""Perplexity, bits per byte and nats per token, each with the protocol that it was measured by."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mentalese.data.batch import Batch, to_device
from mentalese.data.evaluation import evaluation_batches
from mentalese.data.layouts import Layout
from mentalese.data.split import Split
from mentalese.data.tokenizers import beginning, decode, lost_in_tokens
from mentalese.errors import InputError
from mentalese.models.contract import ONE_PASS, Contract, evaluation_mode
from mentalese.nn.loss import IGNORED
from mentalese.recipe import DataConfig, EvaluationConfig
from mentalese.screen import progress

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Perplexity:
    """How well a model predicts a text.

    Attributes:
        nll: mean negative log-likelihood, nats per scored token.
        tokens: scored tokens.
        bytes: UTF-8 bytes of the scored text: whole documents, or of records the steps and the answer that are scored.
        perplexity: `exp(nll)`; depends on the tokenizer.
        bits_per_byte: total bits over `bytes`; comparable across tokenizers. `None` if the estimator scores only a
            part of the text, or its tokens lost something of it (`lost` in the protocol).
        protocol: what was scored, given what context, and how.
        parts: the terms that `nll` is the sum of, by name (`nll` and `kl` of a bound); empty if there is only one.
        bits_per_byte_with_ends: bits per byte including the ends of sentences and documents, which models of sentences
            are otherwise told: it compares all kinds of models. `None` if the estimator is no likelihood of one pass,
            or the tokens lost something.
    """

    nll: float
    tokens: int
    bytes: int
    perplexity: float
    bits_per_byte: float | None
    protocol: dict[str, Any]
    parts: dict[str, float] = field(default_factory=dict)
    bits_per_byte_with_ends: float | None = None

    def to_dict(self) -> dict[str, Any]:
        figures = dataclasses.asdict(self)
        protocol, parts = figures.pop("protocol"), figures.pop("parts")
        return figures | {"protocol": protocol} | ({"parts": parts} if parts else {})


@dataclass(frozen=True)
class TextScore:
    """How well a model predicts one text.

    Attributes:
        nll: nats of the whole text.
        tokens: scored tokens.
        bytes: UTF-8 bytes of the text.
        estimator: the scoring rule; only `exact` and `causal` are autoregressive likelihoods in one pass.
        lost: what the tokens do not tell of the text: unknown words, or capital letters; `None`: nothing known of.
    """

    nll: float
    tokens: int
    bytes: int
    estimator: str
    lost: str | None = None

    @property
    def perplexity(self) -> float:
        """Depends on the tokenizer."""
        return _exp(self.nll / self.tokens)

    @property
    def bits_per_byte(self) -> float | None:
        """Comparable across tokenizers; ends of sentences and of the text are not paid for. `None` if the tokens lost
        something of the text."""
        return self.nll / math.log(2) / self.bytes if self.lost is None else None


def text_scores(
    scores: np.ndarray, split: Split, tokenizer: PreTrainedTokenizerBase, estimator: str
) -> list[TextScore]:
    """`token_scores` [len(split.tokens)] summed by document; raises `InputError` for one without a scored token."""
    results = []
    for number, (start, end, size) in enumerate(zip(split.documents, split.documents[1:], split.document_bytes)):
        nats = scores[start:end]
        tokens = int((~np.isnan(nats)).sum())
        if not tokens:
            raise InputError(f"texts[{number}] has no token to score by the estimator {estimator!r}: use a longer text")
        lost = lost_in_tokens(tokenizer, split.tokens[start:end])
        results.append(TextScore(float(np.nansum(nats.astype(np.float64))), tokens, int(size), estimator, lost))
    return results


def perplexity(
    model: Contract,
    tokenizer: PreTrainedTokenizerBase,
    split: Split,
    data: DataConfig,
    layout: Layout,
    evaluation: EvaluationConfig,
    *,
    device: str | torch.device = "cpu",
    show: bool = False,
) -> Perplexity:
    """Scores a split's documents; the result does not depend on the batch size.

    Args:
        model: an `nn.Module` that scores as `Contract` describes, by the first of its `estimators` or the one that
            `evaluation` names; left in the mode it came in.
        split: what is scored; bits per byte divide by the bytes of its documents, or of their steps and answers.
        data: how the text is split into sentences, for the protocol.
        layout: how documents become rows.
        evaluation: which tokens count and how far a model may look back.

    Raises:
        InputError: there is nothing to score, or the model has no such estimator.
        FloatingPointError: a batch's likelihood is not finite; the message names the batch.
    """
    totals: Counter[str] = Counter()
    tokens = left_out = answers = 0
    ends = 0.0
    apart = check_estimator(model, evaluation) in ONE_PASS
    read = dataclasses.replace(evaluation, tokens="all") if apart else evaluation
    end = layout.special_ids(tokenizer)["eos_token_id"]
    for batch, labels, parts in _scored(model, tokenizer, split, layout, read, device, show):
        asked = batch["labels"][:, 1:] != IGNORED
        if layout.questions:
            answers += _text_bytes(batch, end, tokenizer)
        if evaluation.tokens == "lexical":
            text = (batch["store_index"] >= 0) & (batch["labels"] != end)
            ends += sum(float(nats.masked_fill(text, 0.0).sum()) for nats in parts.values())
            parts = {name: nats.masked_fill(~text, 0.0) for name, nats in parts.items()}
            labels, asked = labels.masked_fill(~text, IGNORED), asked & text[:, 1:]
        # Sums in float64: a float32 sum of millions of tokens would depend on the batch size.
        totals.update({name: float(nats.sum()) for name, nats in parts.items()})
        counted = int((labels != IGNORED).sum())
        tokens, left_out = tokens + counted, left_out + int(asked.sum()) - counted
    available = len(split.document_bytes)
    chosen = evaluation.chosen(available)
    if not tokens:
        raise _nothing(len(chosen))
    total, size = totals.total(), answers if layout.questions else int(split.document_bytes[chosen].sum())
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
        protocol=protocol(model, data, layout, evaluation) | evaluation.how_many(available) | told,
        parts={name: nats / tokens for name, nats in totals.items()} if len(totals) > 1 else {},
    )


def _text_bytes(batch: Batch, end: int, tokenizer: PreTrainedTokenizerBase) -> int:
    """UTF-8 bytes of the text that has labels in a batch."""
    text = (batch["store_index"] >= 0) & (batch["labels"] != end)
    return sum(len(decode(ids[own], tokenizer).encode()) for ids, own in zip(batch["labels"], text))


def token_scores(
    model: Contract,
    tokenizer: PreTrainedTokenizerBase,
    split: Split,
    data: DataConfig,
    layout: Layout,
    evaluation: EvaluationConfig,
    *,
    device: str | torch.device = "cpu",
    show: bool = False,
) -> np.ndarray:
    """The same scores token by token, so that models with other contexts and batches can be compared on each token.

    Takes and raises what `perplexity` does. `evaluation.tokens` is read as `lexical`, since the store contains no ends
    of sentences.

    Returns:
        float32 [len(split.tokens)]: nats of each lexical token, in the store's order; NaN if not scored
        (ends of documents, questions of records, documents beside `evaluation.max_documents`, what the estimator
        skips).
    """
    evaluation = dataclasses.replace(evaluation, tokens="lexical")
    scores = np.full(len(split.tokens), np.nan, dtype=np.float32)
    for batch, labels, parts in _scored(model, tokenizer, split, layout, evaluation, device, show):
        index = batch["store_index"].masked_fill(labels == IGNORED, -1)
        scores[index[index >= 0].numpy()] = torch.stack([*parts.values()]).sum(0)[index >= 0].numpy()
    return scores


def _scored(
    model: Contract,
    tokenizer: PreTrainedTokenizerBase,
    split: Split,
    layout: Layout,
    evaluation: EvaluationConfig,
    device: str | torch.device,
    show: bool,
) -> Iterator[tuple[Batch, Tensor, dict[str, Tensor]]]:
    """Every evaluation batch with the labels that were scored, and their nats by part: float64 [rows, length], on the
    CPU, 0 without a label.
    """
    documents, estimator = evaluation.chosen(len(split.document_bytes)), check_estimator(model, evaluation)
    settings = {} if estimator == model.estimators[0] else {"estimator": estimator}
    total, tokens = 0.0, 0
    with progress("Scoring", int(np.diff(split.documents)[documents].sum()), show=show) as bar:
        for number, batch in enumerate(evaluation_batches(split, layout, evaluation, tokenizer)):
            read = {name: value for name, value in batch.items() if name != "store_index"}
            with evaluation_mode(model), torch.no_grad():
                scores = model.nll_parts(to_device(read, device), **settings)
                labels = model.scored_labels(read, estimator)
            parts = {name: nats.cpu().double() for name, nats in scores.items()}
            total += sum(float(nats.sum()) for nats in parts.values())
            if not math.isfinite(total):
                rows, length = batch["input_ids"].shape
                raise FloatingPointError(
                    f"the log-likelihood of evaluation batch {number} ({rows} rows of {length} tokens) is "
                    f"{total}: the model's weights or activations are not finite"
                )
            tokens += int((labels != IGNORED).sum())
            bar.update(tokens, f"perplexity {_exp(total / max(tokens, 1)):.1f}")
            yield batch, labels, parts
    if tokens == 0:
        raise _nothing(len(documents))


def _nothing(documents: int) -> InputError:
    return InputError(f"the split has {documents} documents and no tokens to score: use one with text")


def check_estimator(model: Contract, evaluation: EvaluationConfig) -> str:
    """Return the name of the scoring rule; raises `InputError` for one that the model does not have."""
    if evaluation.estimator not in (None, *model.estimators):
        raise InputError(
            f"evaluation.estimator is {evaluation.estimator!r}: this model has {', '.join(model.estimators)}; use one "
            "of them"
        )
    return evaluation.estimator or model.estimators[0]


def _exp(nll: float) -> float:
    return math.exp(nll) if nll < 700 else math.inf


def protocol(model: Contract, data: DataConfig, layout: Layout, evaluation: EvaluationConfig) -> dict[str, Any]:
    """How a perplexity was measured, in words to publish with it; without the batch size, which changes nothing."""
    layout.check_evaluation(evaluation)
    estimator = check_estimator(model, evaluation)
    return {
        "tokens": evaluation.tokens,
        **layout.protocol(evaluation, data),
        "estimator": estimator,
        **model.scoring_protocol(estimator),
        **layout.asked(),
    }
