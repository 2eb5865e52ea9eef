"""Rows of a token store: small tables with the offsets of each row's text and targets.

Every document follows an end-of-document token (EOD), which ends the document before it. The first document uses the
EOD of the last document, `tokens[-1]`.

With sentence markers the text is a stream, `BOS w1..wn EOS BOS ..`, in which a document ends in `EOD EOS`. The stream
is never written out: sentence s begins at `segments[s] + 2 s`.

Only numpy is needed here, so that layouts can be declared in recipes without torch.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mentalese.data.split import Split


@dataclass(frozen=True)
class Rows:
    """Rows: row i has tokens start[i] to stop[i] - 1, with targets from target[i] on; int64 [rows] each.

    Offsets refer to the store. If `first` and `last` are set, offsets refer to the stream with markers, and row i lies
    within segments first[i] to last[i] - 1. If `rest` and `gap` are set, row i has tokens start[i] to target[i] - 1,
    then `gap[i]` latents and their markers, then the tokens from rest[i] on, which are the targets.
    """

    start: np.ndarray
    target: np.ndarray
    stop: np.ndarray
    first: np.ndarray | None = None
    last: np.ndarray | None = None
    rest: np.ndarray | None = None
    gap: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, which: np.ndarray) -> Rows:
        return Rows(**{name: values[which] for name, values in vars(self).items() if values is not None})

    @property
    def lengths(self) -> np.ndarray:
        """Tokens per row, including markers and latents."""
        if self.rest is None or self.gap is None:
            return self.stop - self.start
        return self.target - self.start + self.gap + self.stop - self.rest

    def places(self, split: Split) -> np.ndarray:
        """Return the place of each row among the rows of its document, which follow each other."""
        starts, at = (split.documents, self.target) if self.first is None else (split.document_segments, self.first)
        return ordinals(np.unique(np.searchsorted(starts, at, side="right"), return_counts=True)[1])

    def lexical_targets(self, split: Split) -> np.ndarray:
        """Count the targets per row that are text, without sentence markers and the tokens around documents."""
        start, stop = self.target if self.rest is None else self.rest, self.stop
        if self.first is not None:
            start, stop = tokens_before(split, start), tokens_before(split, stop)
        around = [split.documents[1:] - 1, *(split.documents[:-1] + i for i in range(split.beginning))]
        return stop - start - sum(np.searchsorted(places, stop) - np.searchsorted(places, start) for places in around)


def ordinals(counts: np.ndarray) -> np.ndarray:
    """Return the place of each item in its group: [2, 3] -> [0, 1, 0, 1, 2]."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


# -- windows -----------------------------------------------------------------------------------------------------------


def document_windows(begin: np.ndarray, end: np.ndarray, length: int, stride: int, given: int = 1) -> Rows:
    """Return windows of at most `length` tokens over stretches `tokens[begin:end]`; each token is a target once.

    The first window of a stretch starts with the `given` tokens before it (an EOD, or the tokens that a tokenizer puts
    before a text). Later windows repeat `length - stride` tokens as context.
    """
    windows = np.where(end > begin, 1 + np.maximum(-(-(end - begin + given - length) // stride), 0), 0)
    which = np.repeat(np.arange(len(begin)), windows)
    window = ordinals(windows)
    start = begin[which] - given + window * stride
    target = np.where(window == 0, start + given, start + length - stride)
    return Rows(start, target, np.minimum(start + length, end[which]))


def joined_windows(begin: int, end: int, length: int) -> Rows:
    """Cut one stretch of text; the last row begins early enough to be full, and repeats tokens without targets."""
    rows = document_windows(np.array([begin]), np.array([end]), length, length - 1)
    return dataclasses.replace(rows, start=np.maximum(rows.stop - length, begin - 1))


# -- sentences ---------------------------------------------------------------------------------------------------------


def sentence_start(split: Split, segment: np.ndarray) -> np.ndarray:
    """Return the positions in the stream with markers at which segments begin."""
    return split.segments[segment] + 2 * segment


def tokens_before(split: Split, position: np.ndarray) -> np.ndarray:
    """Count the store's tokens before positions of the stream with markers."""
    last = len(split.segments) - 2
    starts = sentence_start(split, np.arange(last + 1))
    segment = np.searchsorted(starts, position, side="right") - 1
    return np.clip(position - 2 * segment - 1, split.segments[segment], split.segments[segment + 1])


def within_sentences(split: Split, rows: Rows) -> Rows:
    """Return rows of the stream with markers, with the segments that they lie in."""
    starts = sentence_start(split, np.arange(len(split.segments)))
    first = np.searchsorted(starts, rows.start, side="right") - 1
    return dataclasses.replace(rows, first=first, last=np.searchsorted(starts, rows.stop))


def sentence_streams(split: Split, max_sentences: int, min_sentences: int = 1) -> Rows:
    """Cut documents of at least `min_sentences` sentences into streams of at most `max_sentences`."""
    begin, end = split.document_segments[:-1], split.document_segments[1:]
    pieces = np.where(end - begin < min_sentences, 0, -(-(end - begin) // max_sentences))
    first = np.repeat(begin, pieces) + max_sentences * ordinals(pieces)
    last = np.minimum(first + max_sentences, np.repeat(end, pieces))
    start = sentence_start(split, first)
    return Rows(start, start, sentence_start(split, last), first, last)


# -- tokens of rows ----------------------------------------------------------------------------------------------------

# Places of a row that are not in the store: negative numbers, which index the names from the end.
BOS, EOS, PAD, LATENT_START, LATENT, LATENT_END = -1, -2, -3, -4, -5, -6
MARKER_NAMES = (
    "latent_end_token_id",
    "latent_token_id",
    "latent_start_token_id",
    "pad_token_id",
    "sentence_end_token_id",
    "sentence_start_token_id",
)


def store_index(split: Split, rows: Rows) -> np.ndarray:
    """Return the index in the store of every token, row after row; below 0 at markers and latents."""
    if rows.rest is not None and rows.gap is not None:
        row, place = np.repeat(np.arange(len(rows)), rows.lengths), ordinals(rows.lengths)
        inside = place - (rows.target - rows.start)[row]  # place in the gap, from 0
        after = inside - rows.gap[row]
        index = np.where(after >= 0, rows.rest[row] + after, rows.start[row] + place)
        gap = (inside >= 0) & (after < 0)
        index[gap] = LATENT
        index[gap & (inside == 0)] = LATENT_START
        index[gap & (after == -1)] = LATENT_END
        return index
    if rows.first is None or rows.last is None:
        return (np.repeat(rows.start, rows.lengths) + ordinals(rows.lengths)) % len(split.tokens)
    sentences = rows.last - rows.first
    segment = np.repeat(rows.first, sentences) + ordinals(sentences)
    sizes = split.segments[segment + 1] - split.segments[segment] + 2
    within = ordinals(sizes)
    index = np.repeat(split.segments[segment] - 1, sizes) + within
    index[within == 0] = BOS
    index[np.cumsum(sizes) - 1] = EOS
    position = np.repeat(sentence_start(split, segment), sizes) + within
    start, stop = (np.repeat(np.repeat(bound, sentences), sizes) for bound in (rows.start, rows.stop))
    return index[(start <= position) & (position < stop)]  # a row may begin and end inside a sentence
