"""Streams of whole sentences between markers, which a model reads one after the other (Thought Gestalt)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mentalese.data.layouts.base import Layout
from mentalese.data.packing import pack_streams
from mentalese.data.rows import Rows, sentence_streams
from mentalese.data.split import Split
from mentalese.errors import InputError
from mentalese.values import Positive, checked_dataclass

if TYPE_CHECKING:
    from mentalese.data.config import DataConfig, EvaluationConfig
    from mentalese.data.prompts import PromptEncoder, TextRow


@checked_dataclass("layout")
class SentenceStreams(Layout):
    """Streams of whole sentences of one document, with a marker before and after each sentence.

    Attributes:
        max_sentences: sentences per stream at most (Thought Gestalt's S).
        tokens_per_batch: lexical tokens per optimiser step, over all ranks.
        bucket_width: streams are grouped by their number of sentences in buckets of this width (the release's: 20).
    """

    max_sentences: Positive = 30
    tokens_per_batch: Positive = 4096
    bucket_width: Positive = 5

    kind = "sentence_streams"
    changeable = ("max_sentences", "tokens_per_batch", "bucket_width")
    markers = True
    sequential = True
    beginning = "sentences between markers, read with the model's memory of earlier sentences"

    def training_rows(self, split: Split, generator: np.random.Generator) -> Rows:
        # As in the release of Thought Gestalt: a document of one sentence trains no memory.
        rows = sentence_streams(split, len(split.document_bytes), self.max_sentences, min_sentences=2)
        if not len(rows):
            raise InputError(
                "layout is 'sentence_streams': every document of the training split is a single sentence, and a memory "
                "needs two or more; use longer documents, set another data.sentences, or use another layout"
            )
        return rows

    def pack(self, rows: Rows, split: Split, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        sizes = rows.lexical_targets(split)
        return pack_streams(sizes, self.passes(rows), self.tokens_per_batch, self.bucket_width, generator)

    def evaluation_rows(self, split: Split, evaluation: EvaluationConfig) -> Rows:
        """Whole documents."""
        documents = evaluation.documents(len(split.document_bytes))
        return sentence_streams(split, documents, max(1, len(split.segments)))

    def passes(self, rows: Rows) -> np.ndarray:
        assert rows.first is not None
        assert rows.last is not None
        return rows.last - rows.first

    def protocol(self, evaluation: EvaluationConfig, data: DataConfig) -> dict[str, Any]:
        return {
            "context": "whole documents, sentence by sentence, with the model's memory of earlier sentences",
            "first_token": "a sentence's first token is scored after its sentence-start token, which is given, and the "
            "model's memory of earlier sentences; a document's first token after the sentence-start token alone",
            "sentences": data.sentences,
        }

    def prompt_row(self, text: str, encoder: PromptEncoder) -> TextRow:
        return encoder.sentences(text)
