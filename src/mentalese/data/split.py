"""A split of a text: its documents as arrays of tokens, with where documents and sentences begin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

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
        beginning: tokens before each document, of another project's tokenizer, that are not text.
    """

    tokens: np.ndarray
    documents: np.ndarray
    segments: np.ndarray
    document_segments: np.ndarray
    document_bytes: np.ndarray
    beginning: int = field(default=0, kw_only=True)

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> Split:
        """Return the split with another form of its arrays."""
        return Split(*(function(getattr(self, name)) for name in ARRAYS), beginning=self.beginning)

    def select(self, documents: np.ndarray) -> Split:
        """Return the documents of this mask, bool [n]; a copy in memory."""
        tokens, segments = np.diff(self.documents), np.diff(self.document_segments)
        segment_tokens = np.diff(self.segments)[np.repeat(documents, segments)]
        sizes = (tokens[documents], segment_tokens, segments[documents])
        starts = (np.append(0, np.cumsum(each)) for each in sizes)
        text = self.tokens[np.repeat(documents, tokens)]
        return Split(*(text, *starts, self.document_bytes[documents]), beginning=self.beginning)

    def segment(self, number: int) -> np.ndarray:
        """Return the tokens of a segment, int64 [length]."""
        return self.tokens[self.segments[number] : self.segments[number + 1]].astype("int64")

    def first(self, documents: int) -> Split:
        """Return this many documents, without a copy."""
        segments = int(self.document_segments[documents])
        sizes = (int(self.documents[documents]), documents + 1, segments + 1, documents + 1, documents)
        arrays = (getattr(self, name)[:size] for name, size in zip(ARRAYS, sizes, strict=True))
        return Split(*arrays, beginning=self.beginning)

    def head(self, tokens: int) -> Split:
        """Return the first whole documents, as many as it takes to hold `tokens` tokens, or all there are."""
        return self.first(min(int(np.searchsorted(self.documents, tokens)), len(self.document_bytes)))


ARRAYS = ("tokens", "documents", "segments", "document_segments", "document_bytes")
"""The arrays of a split."""
