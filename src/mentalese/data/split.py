"""A split of a text: its documents as arrays of tokens, with where documents and sentences begin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Split:
    """A split: n documents with m segments (sentences, spans, or the parts of a record).

    Attributes:
        tokens: uint16 or uint32, all documents joined; each document is followed by one end-of-document token.
        documents: int64 [n + 1], offset in `tokens` of each document's first token; the last one is `len(tokens)`.
        segments: int64 [m + 1], offset in `tokens` of each segment's first token; the end-of-document token belongs
            to its document's last segment.
        document_segments: int64 [n + 1], index in `segments` of each document's first segment.
        document_bytes: int64 [n], UTF-8 bytes of each document's text.
        beginning: number of tokens that another project's tokenizer puts before each document. They belong to its first
            segment, but are not text.
    """

    tokens: np.ndarray
    documents: np.ndarray
    segments: np.ndarray
    document_segments: np.ndarray
    document_bytes: np.ndarray
    beginning: int = 0

    def select(self, documents: np.ndarray) -> Split:
        """Return the documents of this mask, bool [n]; a copy in memory."""
        tokens, segments = np.diff(self.documents), np.diff(self.document_segments)
        mask = np.repeat(documents, segments)
        starts = [0]
        return Split(
            tokens=self.tokens[np.repeat(documents, tokens)],
            documents=np.concatenate([starts, np.cumsum(tokens[documents])]),
            segments=np.concatenate([starts, np.cumsum(np.diff(self.segments)[mask])]),
            document_segments=np.concatenate([starts, np.cumsum(segments[documents])]),
            document_bytes=self.document_bytes[documents],
            beginning=self.beginning,
        )

    def segment(self, number: int) -> np.ndarray:
        """Return the tokens of a segment, int64 [length]."""
        return self.tokens[self.segments[number] : self.segments[number + 1]].astype("int64")

    def head(self, tokens: int) -> Split:
        """Return the first whole documents, as many as it takes to hold `tokens` tokens, or all there are."""
        count = min(int(np.searchsorted(self.documents, tokens)), len(self.document_bytes))
        segments = int(self.document_segments[count])
        return Split(
            tokens=self.tokens[: self.documents[count]],
            documents=self.documents[: count + 1],
            segments=self.segments[: segments + 1],
            document_segments=self.document_segments[: count + 1],
            document_bytes=self.document_bytes[:count],
            beginning=self.beginning,
        )


ARRAYS = ("tokens", "documents", "segments", "document_segments", "document_bytes")
"""The arrays of a split."""
