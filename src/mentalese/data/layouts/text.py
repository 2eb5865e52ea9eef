"""Running text in rows of one length, or in streams of whole sentences, which a model reads one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mentalese.data.layouts.base import Layout, RowLayout
from mentalese.data.rows import (
    Rows,
    document_windows,
    joined_windows,
    sentence_start,
    sentence_streams,
    within_sentences,
)
from mentalese.data.split import Split
from mentalese.errors import InputError, require
from mentalese.values import Positive, checked_dataclass

if TYPE_CHECKING:
    from mentalese.data.config import DataConfig, EvaluationConfig
    from mentalese.data.prompts import PromptEncoder, TextRow


@checked_dataclass("layout")
class Packed(RowLayout):
    """Documents joined by end-of-document tokens and cut into rows."""

    kind = "packed"
    plain = True

    def training_rows(self, split: Split, generator: np.random.Generator) -> Rows:
        return joined_windows(0, len(split.tokens), self.sequence_length)

    def evaluation_rows(self, split: Split, evaluation: EvaluationConfig) -> Rows:
        bounds = split.documents[[0, -1]] if evaluation.joined else split.documents
        ends = bounds[1:] - (evaluation.tokens == "lexical")
        return document_windows(bounds[:-1] + split.beginning, ends, *self.window(evaluation), split.beginning or 1)

    def window(self, evaluation: EvaluationConfig) -> tuple[int, int]:
        length = evaluation.context_length or self.sequence_length
        stride = evaluation.stride or (length - 1 if evaluation.joined else length // 2)
        field, value = ("stride", stride) if evaluation.stride else ("context_length", length)
        remedy = f"set at least 2 tokens of context and a stride below the context ({length})"
        require(0 < stride < length, f"evaluation.{field}", value, remedy)
        return length, stride

    def protocol(self, evaluation: EvaluationConfig, data: DataConfig) -> dict[str, str | None]:
        length, stride = self.window(evaluation)
        where = "of the documents joined by end-of-document tokens" if evaluation.joined else "inside a document"
        kind = "windows" if evaluation.joined else "sliding windows"
        return {
            "context": f"{kind} of {length} tokens {where}, {stride} new tokens per window",
            "first_token": "a document's first token is scored after the end-of-document token; a sentence's first "
            "token after the sentence before it, like any other token",
            "sentences": None,
        }


@checked_dataclass("layout")
class AsIs(Packed):
    """Documents as `packed` has them, and prompts with only what the tokenizer itself puts before a text.

    Models of other projects are read like this.
    """

    kind = "as_is"
    beginning = "the text as its tokenizer encodes it"

    def prompt_row(self, text: str, encoder: PromptEncoder) -> TextRow:
        return encoder.beginning + encoder.text(self.prompt_text(text))


@checked_dataclass("layout")
class PerDocument(Packed):
    """Rows that never cross a document; shorter rows are padded."""

    kind = "per_document"

    def training_rows(self, split: Split, generator: np.random.Generator) -> Rows:
        begin, end = split.documents[:-1] + split.beginning, split.documents[1:]
        return document_windows(begin, end, self.sequence_length, self.sequence_length - 1, split.beginning or 1)


@checked_dataclass("layout")
class Marked(Packed):
    """Documents joined and cut into rows, with a marker before and after each sentence."""

    kind = "marked"
    plain = False
    markers = True
    beginning = "sentences between markers"

    def training_rows(self, split: Split, generator: np.random.Generator) -> Rows:
        length = len(split.tokens) + 2 * (len(split.segments) - 1)
        # The stream's first BOS follows nothing and is not a target.
        return within_sentences(split, joined_windows(1, length, self.sequence_length))

    def evaluation_rows(self, split: Split, evaluation: EvaluationConfig) -> Rows:
        starts = sentence_start(split, split.document_segments)
        # A window begins with the BOS; `EOD EOS` at the end is not text.
        end = starts[1:] - 2 * (evaluation.tokens == "lexical")
        return within_sentences(split, document_windows(starts[:-1] + 1, end, *self.window(evaluation)))

    def protocol(self, evaluation: EvaluationConfig, data: DataConfig) -> dict[str, str | None]:
        return {
            "context": f"{super().protocol(evaluation, data)['context']}, sentence markers included",
            "first_token": "a sentence's first token is scored after its sentence-start token, which is given, and "
            "what comes before it in the window; a document's first token after only the sentence-start token",
            "sentences": data.sentences,
        }

    def prompt_row(self, text: str, encoder: PromptEncoder) -> TextRow:
        return encoder.sentences(text)


@checked_dataclass("layout")
class SentenceStreams(Layout):
    """Streams of whole sentences of one document, with a marker before and after each sentence.

    Attributes:
        max_sentences: sentences per stream at most (Thought Gestalt's S).
        tokens_per_batch: lexical tokens per optimiser step, over all ranks.
        bucket_width: streams are grouped by their number of sentences in buckets of this width.
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
        rows = sentence_streams(split, self.max_sentences, min_sentences=2)
        if not len(rows):
            raise InputError(
                "layout is 'sentence_streams': every document of the training split is a single sentence, and a memory "
                "needs two or more; use longer documents, set another data.sentences, or use another layout"
            )
        return rows

    def pack(self, rows: Rows, split: Split, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Pack streams into batches under a token budget (Thought Gestalt, appendix B.1).

        Streams are grouped by number of sentences, shuffled inside their group and dealt, longest group first, into
        preallocated batches. Each stream goes to the next batch in turn that stays within `tokens_per_batch` and the
        maximum number of streams. B.1 gives no value of this maximum; here it is the budget over the mean number of
        tokens of a stream, rounded up. A stream that fits nowhere opens a new batch, and a stream above the budget is a
        batch.
        """
        sizes, budget = rows.lexical_targets(split), self.tokens_per_batch
        limit = -(-budget * len(sizes) // int(sizes.sum()))
        batches = -(-int(sizes[sizes <= budget].sum()) // budget)

        shuffled = generator.permutation(len(sizes))
        bucket = (self.passes(rows)[shuffled] - 1) // self.bucket_width
        shuffled = shuffled[np.argsort(-bucket, kind="stable")]

        batch_of = np.empty(len(sizes), dtype=np.int64)
        free = np.full(batches + len(sizes), budget)  # lexical tokens that still fit; -1: closed
        streams = np.zeros_like(free)
        turn = 0
        for row, size in zip(shuffled.tolist(), sizes[shuffled].tolist()):
            if size > budget:
                batch, batches = batches, batches + 1
                free[batch] = -1
            else:
                batch = turn
                if batch >= batches or size > free[batch]:
                    fits = np.flatnonzero(free[:batches] >= size)
                    if len(fits):
                        batch = int(fits[np.searchsorted(fits, turn) % len(fits)])
                    else:
                        batch, batches = batches, batches + 1
                turn = (batch + 1) % batches
                free[batch] -= size
                streams[batch] += 1
                if streams[batch] == limit:
                    free[batch] = -1
            batch_of[row] = batch

        _, batch_of, counts = np.unique(batch_of, return_inverse=True, return_counts=True)  # some may have stayed empty
        place = generator.permutation(len(counts))
        order = np.lexsort((-sizes, place[batch_of]))
        return order, np.concatenate([[0], np.cumsum(counts[np.argsort(place)])])

    def evaluation_rows(self, split: Split, evaluation: EvaluationConfig) -> Rows:
        """Return whole documents."""
        return sentence_streams(split, max(1, len(split.segments)))

    def passes(self, rows: Rows) -> np.ndarray:
        assert rows.first is not None
        assert rows.last is not None
        return rows.last - rows.first

    def protocol(self, evaluation: EvaluationConfig, data: DataConfig) -> dict[str, str | None]:
        return {
            "context": "whole documents, sentence by sentence, with the model's memory of earlier sentences",
            "first_token": "a sentence's first token is scored after its sentence-start token, which is given, and the "
            "model's memory of earlier sentences; a document's first token after only the sentence-start token",
            "sentences": data.sentences,
        }

    def prompt_row(self, text: str, encoder: PromptEncoder) -> TextRow:
        return encoder.sentences(text)
