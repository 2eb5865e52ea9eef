"""Layouts: how documents become rows, batches and prompts. One class each; a family may bring its own.

    packed      `Packed` (documents joined and cut), `PerDocument` (rows within a document), `Marked` (sentence markers)
    sentences   `SentenceStreams` (whole sentences, read one after the other)
    qa          `QuestionAnswer` (question, steps, answer, perhaps with latents between them)

Importing them loads neither torch nor transformers, so that recipes can name them.
"""

from mentalese.data.layouts.base import Layout, RowLayout
from mentalese.data.layouts.packed import Marked, Packed, PerDocument
from mentalese.data.layouts.qa import QuestionAnswer
from mentalese.data.layouts.sentences import SentenceStreams

__all__ = ["Layout", "Marked", "Packed", "PerDocument", "QuestionAnswer", "RowLayout", "SentenceStreams"]
