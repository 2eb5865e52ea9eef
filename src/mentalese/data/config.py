"""The text that a run reads, and the protocol by which it is scored: two sections of a recipe."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from mentalese.data.documents import HELD_OUT
from mentalese.errors import require
from mentalese.values import NonNegative, Positive, PositiveNumber, Texts, checked_dataclass

AnswerRuleName = Literal["text", "number", "choice"]
AS_IT_IS: dict[str, Any] = {"text_column": None, "detokenizer": None, "train_tokens": None, "held_out": HELD_OUT}
"""Fields of `DataConfig` where another source replaces a recipe's: they describe how the recipe's own text is read, and
how much of it."""

READING = ("text_column", "detokenizer", "held_out")
"""Fields of `DataConfig` that decide which documents a source has, and which of them are held out."""

SENTENCE_FIELDS = ("sentences", "min_sentence_tokens", "max_sentence_tokens")
"""Fields of `DataConfig` that decide where sentences end."""


def _named(source: object) -> object:
    if not isinstance(source, str):
        raise ValueError("use the name of a source; texts from Python get one from mentalese.as_source(texts)")
    return source


SourceName = Annotated[str, BeforeValidator(_named)]
Detokenizer = Literal["wikitext", "ptb", "lm1b", "lambada", "scientific_papers"]


@checked_dataclass("data")
class DataConfig:
    """The text of a recipe, its tokenizer and its division into sentences.

    Attributes:
        source: `builtin:NAME`, `file:PATH` (txt, jsonl, json, csv, tsv or parquet, or a folder with train, validation
            and test files), `hub:NAME[@REVISION][:CONFIG[:SPLIT]]`, `store:PATH` (from `mentalese data prepare`), or
            a published set of questions: `gsm8k`, `gsm8k-aug`, `gsm8k-aug-nl`, `gsm-hard`, `svamp`, `multiarith`,
            `prontoqa`, `commonsenseqa`, `hotpotqa` or `clutrr`, as `gsm8k:PATH` or `gsm8k:hub:NAME`. Texts from Python
            are `python:HASH`, see `mentalese.as_source`.
        text_column: the column that contains the text; `None`: `text`, or the only candidate.
        detokenizer: the format of a set published as tokens, which is then read as running text
            (`mentalese.data.plain_text`); bits per byte refer to that text. `None`: read as it is.
        tokenizer: `bpe:SIZE` (trained on the training split, seeded), a folder, `models:NAME`, `gguf:FILE` or
            `hub:NAME`.
        sentences: the sentence splitter: `sentencex`, `syntok`, `sat`, `fixed:N` (spans of N tokens) or `none`.
        min_sentence_tokens: shorter sentences are merged with the next one.
        max_sentence_tokens: longer sentences are cut, after punctuation if there is any.
        train_tokens: train on the first whole documents that contain this many tokens; `None`: on all of them. Another
            source than the recipe's is read whole, unless this is set too.
        held_out: documents that become validation and test, half each, if the source lacks these splits. Below 1: a
            share, chosen by a hash of the text (0.001: validation is as large as nanoGPT's). From 2 on: the last N
            documents, of an odd N one fewer (Latent Thought Models and MDLM: 100,000).
    """

    source: SourceName = "builtin:stdlib"
    text_column: str | None = None
    detokenizer: Detokenizer | None = None
    tokenizer: str = "bpe:4096"
    sentences: str = "sentencex"
    min_sentence_tokens: Positive = 3
    max_sentence_tokens: Positive = 64
    train_tokens: Positive | None = None
    held_out: PositiveNumber = HELD_OUT

    def __post_init__(self) -> None:
        held_out, least, most = self.held_out, self.min_sentence_tokens, self.max_sentence_tokens
        is_count = held_out >= 2 and held_out == int(held_out)
        remedy = "set a share between 0 and 1, or a number of documents from 2 on"
        require(held_out < 1 or is_count, "data.held_out", held_out, remedy)
        remedy = f"set more than data.min_sentence_tokens ({least})"
        require(most > least, "data.max_sentence_tokens", most, remedy)


@checked_dataclass("evaluation")
class EvaluationConfig:
    """The protocol of a perplexity, or of answers to questions; every result records it.

    Attributes:
        metric: the score that selects the best model and that `compare` reports. `accuracy` is for layouts of
            questions (`qa` and others). Questions are asked at the current stage of training; the best model is the
            best one of the last stage.
        answer_tokens: new tokens that an answer may have, steps included. If the longest steps and answer of the data
            have more, an answer may have as many as these; answers that end at the limit are counted as `unfinished`.
        answer_rule: the comparison of answers with the right ones: `text` to the letter, `number` by value where the
            right answer is a number, `choice` by the letter of the choice. `None`: the rule of a published set, `text`
            for generated tasks, and for other sources `number` if any right answer is a number.
        tokens: `lexical` scores only the text; `all` also scores the end of each document and, for models of
            sentences, the end of each sentence.
        context_length: tokens per window; `None` takes `layout.sequence_length`. Layouts that read whole documents
            or questions have no windows.
        stride: new tokens per window; `None` takes half of `context_length`, or all but one of joined documents. The
            first `context_length - stride` tokens of later windows are context only.
        joined: cut windows from all documents joined by their ends, as layout `packed` does in training, instead of
            from each document; with the default stride they share one token.
        batch_size: windows or documents at once; results depend on it only if thoughts are swapped between rows, or
            get noise of the same size as the thoughts of the batch.
        max_documents: score only the first N documents of the split (validation during training).
        max_test_documents: score only the first N documents of the test split after training; `None`: all of them.
        documents_seed: seeds a random choice of the N documents, for sources that are sorted; `None`: the first N.
        estimator: the scoring rule, for models that have several (`estimators`); `None`: the model's first.
        sample_prompts: prompts of the samples in `result.json`; empty: the beginnings of two test documents, or two
            test questions.
        sample_tokens: new tokens per prompt of these samples.
    """

    metric: Literal["perplexity", "accuracy"] = "perplexity"
    answer_tokens: Positive = 64
    answer_rule: AnswerRuleName | None = None
    tokens: Literal["lexical", "all"] = "lexical"
    context_length: Annotated[Positive, Field(ge=2)] | None = None
    stride: Positive | None = None
    joined: bool = False
    batch_size: Positive = 16
    max_documents: Positive | None = None
    max_test_documents: Positive | None = None
    documents_seed: NonNegative | None = None
    estimator: str | None = None
    sample_prompts: Texts = ()
    sample_tokens: Positive = 40

    def __post_init__(self) -> None:
        if self.context_length is not None and self.stride is not None:
            remedy = f"set less than evaluation.context_length ({self.context_length})"
            require(self.stride < self.context_length, "evaluation.stride", self.stride, remedy)

    def documents(self, available: int) -> int:
        """Return the number of a split's documents that are scored."""
        return min(available, self.max_documents or available)

    def of_one_text(self) -> EvaluationConfig:
        """Return the protocol for a text by itself, which is neither joined nor counted."""
        stride = None if self.joined else self.stride
        return dataclasses.replace(self, max_documents=None, joined=False, stride=stride)

    def of_test(self) -> EvaluationConfig:
        """Return the protocol for the test split after training."""
        seed = None if self.max_test_documents is None else self.documents_seed
        return dataclasses.replace(self, max_documents=self.max_test_documents, documents_seed=seed)

    def chosen(self, available: int) -> np.ndarray:
        """Return the numbers of documents that are scored, int64, in the split's order."""
        how_many = self.how_many(available)
        count, seed = how_many["documents"], how_many.get("documents_seed")
        if seed is None:
            return np.arange(count)
        return np.sort(np.random.default_rng(seed).choice(available, count, replace=False))

    def how_many(self, available: int) -> dict[str, int]:
        """Return the number of documents that are scored; of a random choice also the seed, and how many there were."""
        count, seed = self.documents(available), self.documents_seed
        drawn = {} if seed is None or count == available else {"documents_seed": seed, "documents_available": available}
        return {"documents": count} | drawn
