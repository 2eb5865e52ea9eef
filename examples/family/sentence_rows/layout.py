"""Each sentence is a row, after the token before it."""

from mentalese.data.layouts import RowLayout
from mentalese.data.rows import document_windows
from mentalese.values import checked_dataclass


@checked_dataclass("layout")
class SentenceRows(RowLayout):
    """One sentence per row.

    Attributes:
        sequence_length: tokens per row at most.
        batch_size: rows per optimiser step, over all ranks and micro-batches.
    """

    kind = "sentence_rows"

    def training_rows(self, split, generator):
        return document_windows(split.segments[:-1], split.segments[1:], self.sequence_length, self.sequence_length - 1)

    def evaluation_rows(self, split, evaluation):
        return self.training_rows(split, None)

    def protocol(self, evaluation, data):
        return {"context": "one sentence", "first_token": "after the token before it", "sentences": data.sentences}
