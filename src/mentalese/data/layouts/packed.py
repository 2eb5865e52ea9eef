"""Running text in rows of one length: joined documents, one document per row, or sentences between markers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mentalese.data.layouts.base import RowLayout
from mentalese.data.rows import Rows, document_windows, joined_windows, sentence_start, within_sentences
from mentalese.data.split import Split
from mentalese.errors import require
from mentalese.values import checked_dataclass

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
