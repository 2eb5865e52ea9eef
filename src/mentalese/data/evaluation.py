"""Batches of a split for scoring, or for answers to its questions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mentalese.data.batch import Batch
from mentalese.data.config import EvaluationConfig
from mentalese.data.layouts import Layout
from mentalese.data.rows import Rows
from mentalese.data.split import Split


def evaluation_batches(
    split: Split,
    layout: Layout,
    evaluation: EvaluationConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    every: int = 1,
) -> Iterator[Batch]:
    """Return a split's documents in batches of `Layout.assemble`, in which every lexical token has a label once.

    `evaluation.tokens="all"` also labels the ends of documents and, if there are markers, the ends of sentences. Rows
    are sorted by length, the longest first, and rows of one length by their place in their document: neighbours, whose
    thoughts are swapped, are of different documents as far as possible. Only every n-th batch (`every`) estimates the
    cost of scoring.
    """
    split, _, places = _drawn(split.map(np.asarray), evaluation)
    layout.special_ids(tokenizer)  # checks
    layout.check_evaluation(evaluation)
    rows = layout.evaluation_rows(split, evaluation)
    order = np.lexsort((rows.places(split), -rows.lengths, -layout.passes(rows)))

    def batch(chosen: Rows) -> Batch:
        assembled = layout.assemble(split, chosen, tokenizer, evaluation.tokens)
        if places is not None:
            index = assembled["store_index"]
            assembled["store_index"] = torch.where(index < 0, index, places[index.clamp(min=0)])
        return assembled

    size = evaluation.batch_size
    return (batch(rows[order[i : i + size]]) for i in range(0, len(order), size * every))


def question_batches(
    split: Split,
    layout: Layout,
    evaluation: EvaluationConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    longest: int | None = None,
) -> Iterator[Batch]:
    """Return a split's questions, with their latents if the layout has some, for `generate` to continue.

    Questions of more than `longest` tokens each have a separate batch.

    Returns:
        Batches of `input_ids`, `attention_mask`, int64 [rows, length], padded on the left, and `documents` int64
        [rows], the document of each question; the longest first.
    """
    split, numbers, _ = _drawn(split.map(np.asarray), evaluation)
    layout.special_ids(tokenizer)  # checks
    rows = layout.question_rows(split)

    def batch(documents: np.ndarray) -> Batch:
        assembled = layout.assemble(split, rows[documents], tokenizer, left=True)
        ids = assembled["input_ids"]
        mask = assembled.get("attention_mask", torch.ones_like(ids))
        return {"input_ids": ids, "attention_mask": mask, "documents": torch.from_numpy(numbers[documents])}

    return map(batch, by_length(rows.lengths, evaluation.batch_size, longest))


def by_length(lengths: np.ndarray, size: int, longest: int | None = None) -> list[np.ndarray]:
    """Group the numbers of rows, at most `size` each, the longest first; above `longest` tokens each by itself."""
    order = np.argsort(-lengths, kind="stable")
    singles = 0 if longest is None else int((lengths > longest).sum())
    starts = [*range(singles), *range(singles, len(order), size)]
    return np.split(order, starts[1:]) if len(order) else []


def _drawn(split: Split, evaluation: EvaluationConfig) -> tuple[Split, np.ndarray, Tensor | None]:
    """Return the documents that are scored, their numbers, and the places of their tokens (`None`: the same)."""
    available = len(split.document_bytes)
    numbers = evaluation.chosen(available)
    if np.array_equal(numbers, np.arange(len(numbers))):
        return split.first(len(numbers)), numbers, None
    mask = np.zeros(available, dtype=bool)
    mask[numbers] = True
    places = np.flatnonzero(np.repeat(mask, np.diff(split.documents)))
    return split.select(mask), numbers, torch.from_numpy(places)
