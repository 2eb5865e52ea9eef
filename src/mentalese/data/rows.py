"""Rows of a token store, and how an epoch packs them into batches.

    rows      small tables of token offsets: which stretch of the store each row holds, and what of it is a target
    packing   an epoch's order of rows, drawn from a generator keyed by (seed, epoch), and its batches
    assembly  rows copied out of the memory map when their batch comes

Every document follows an end-of-document token (EOD): the one that ends the document before it; the first document
borrows the last one's, because `tokens[-1]` is an EOD too.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch

from mentalese.data.store import Split
from mentalese.errors import InputError
from mentalese.models.base import IGNORED, Batch
from mentalese.recipe import DataConfig

_BATCHES_SORTED_TOGETHER = 50


# -- rows --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Row i holds `tokens[start[i]:stop[i]]`, of which those from `target[i]` on are targets; int64 [rows] each.

    Streams of sentences also have `first` and `last`: row i is made of segments first[i] to last[i] - 1, each put
    between markers.
    """

    start: np.ndarray
    target: np.ndarray
    stop: np.ndarray
    first: np.ndarray | None = None
    last: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, which: np.ndarray) -> Rows:
        return Rows(*(None if f is None else f[which] for f in vars(self).values()))  # type: ignore[arg-type]

    @property
    def sentences(self) -> np.ndarray:
        """Passes that a row needs: its sentences, or 1 where rows are flat."""
        return np.ones_like(self.start) if self.first is None or self.last is None else self.last - self.first

    @property
    def lengths(self) -> np.ndarray:
        """Tokens in a row, sentence markers included."""
        return self.stop - self.start + (0 if self.first is None else 2 * self.sentences)

    def lexical_targets(self, split: Split) -> np.ndarray:
        """Targets in a row that are text: no EOD, no sentence marker."""
        ends = split.documents[1:] - 1
        return self.stop - self.target - (np.searchsorted(ends, self.stop) - np.searchsorted(ends, self.target))


def document_windows(begin: np.ndarray, end: np.ndarray, length: int, stride: int) -> Rows:
    """Windows of at most `length` tokens over stretches `tokens[begin:end]`, each token a target exactly once.

    The first window of a stretch starts with the token before it (an EOD), later ones repeat `length - stride` tokens
    as context.
    """
    windows = np.where(end > begin, 1 + np.maximum(-(-(end - begin + 1 - length) // stride), 0), 0)
    which = np.repeat(np.arange(len(begin)), windows)
    window = _ordinals(windows)
    start = begin[which] - 1 + window * stride
    target = np.where(window == 0, start + 1, start + length - stride)
    return Rows(start, target, np.minimum(start + length, end[which]))


def as_arrays(split: Split) -> Split:
    """The same memory without the memory map's class, whose own indexing is slow."""
    return Split(**{name: np.asarray(array) for name, array in vars(split).items()})


def _ordinals(counts: np.ndarray) -> np.ndarray:
    """[2, 3] -> [0, 1, 0, 1, 2]"""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _blocks(split: Split, length: int) -> Rows:
    """All documents in a row, cut; the last block begins early enough to be full, its repeated tokens no targets."""
    rows = document_windows(split.documents[:1], split.documents[-1:], length, length - 1)
    return dataclasses.replace(rows, start=np.maximum(rows.stop - length, -1))


def sentence_streams(split: Split, documents: int, max_sentences: int, min_sentences: int = 1) -> Rows:
    """Documents of at least `min_sentences` sentences, cut into streams of at most `max_sentences`."""
    begin, end = split.document_segments[:documents], split.document_segments[1 : documents + 1]
    pieces = np.where(end - begin < min_sentences, 0, -(-(end - begin) // max_sentences))
    first = np.repeat(begin, pieces) + max_sentences * _ordinals(pieces)
    last = np.minimum(first + max_sentences, np.repeat(end, pieces))
    start = split.segments[first]
    return Rows(start, start, split.segments[last], first, last)


def whole_records(split: Split, documents: int, length: int) -> Rows:
    """One record a row; its first segment is the question."""
    start, stop = split.documents[:documents], split.documents[1 : documents + 1]
    first = split.document_segments[:documents]
    target = split.segments[first + 1]
    broken = int(((split.document_segments[1 : documents + 1] - first < 2) | (target == start)).sum())
    if broken:
        raise InputError(f"data.batching is 'records': {broken} of {documents} documents lack a question or an answer")
    longer = int((stop - start > length).sum())
    if longer:
        raise InputError(
            f"data.sequence_length is {length}: {longer} of {documents} records are longer, "
            f"give at least {int((stop - start).max())} or leave them out"
        )
    return Rows(start, target, stop)


def _training_rows(split: Split, data: DataConfig) -> Rows:
    if data.batching == "blocks":
        return _blocks(split, data.sequence_length)
    if data.batching == "documents":
        return document_windows(
            split.documents[:-1], split.documents[1:], data.sequence_length, data.sequence_length - 1
        )
    if data.batching == "sentences":
        # A document of one sentence trains no memory: left out, as in the release of Thought Gestalt's authors.
        rows = sentence_streams(split, len(split.document_bytes), data.max_sentences, min_sentences=2)
        if not len(rows):
            raise InputError(
                f"data.sentences is {data.sentences!r}: every document of the training split is a single sentence, and "
                "data.batching 'sentences' trains on documents of two and more; give longer documents, another "
                "splitter or other batching"
            )
        return rows
    return whole_records(split, len(split.document_bytes), data.sequence_length)


# -- packing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Epoch:
    """Batch i holds rows `order[bounds[i]:bounds[i + 1]]`, the longest first."""

    rows: Rows
    order: np.ndarray
    bounds: np.ndarray

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def clocks(self, split: Split) -> np.ndarray:
        """int64 [batches + 1, 2]: lexical target tokens and sentence steps before each batch and after the last.

        A sentence step is one sentence position processed across the batch (Thought Gestalt, appendix C); a flat
        batch is one step.
        """
        rows = self.rows[self.order]
        tokens = np.add.reduceat(rows.lexical_targets(split), self.bounds[:-1])
        steps = np.maximum.reduceat(rows.sentences, self.bounds[:-1])
        if self.rows.first is None:
            steps = np.ones_like(tokens)
        return np.concatenate([[(0, 0)], np.cumsum(np.stack([tokens, steps], axis=1), axis=0)])


def pack_epoch(split: Split, data: DataConfig, seed: int, epoch: int) -> Epoch:
    """An epoch's batches; a pure function of its arguments."""
    generator = np.random.Generator(np.random.Philox(key=[seed % 2**64, epoch]))
    rows = _training_rows(split, data)
    pack = _pack_streams if data.batching == "sentences" else _pack_rows
    return Epoch(rows, *pack(rows, split, data, generator))


def _pack_rows(
    rows: Rows, split: Split, data: DataConfig, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Batches of `batch_size` rows of similar length; the rows of the incomplete last batch are left out this epoch.

    Rows are shuffled, sorted by length inside groups of 50 batches, and the batches shuffled: little padding, and
    other neighbours each epoch. Blocks all have one length, for them this is a shuffle.
    """
    batches = len(rows) // data.batch_size
    if batches == 0:
        raise InputError(
            f"data.batch_size is {data.batch_size}: the training split makes only {len(rows)} rows of at most "
            f"{data.sequence_length} tokens, give a smaller batch or more text"
        )
    order = generator.permutation(len(rows))[: batches * data.batch_size]
    group = np.arange(len(order)) // (_BATCHES_SORTED_TOGETHER * data.batch_size)
    order = order[np.lexsort((-rows.lengths[order], group))].reshape(batches, data.batch_size)
    return order[generator.permutation(batches)].reshape(-1), np.arange(batches + 1) * data.batch_size


def _pack_streams(
    rows: Rows, split: Split, data: DataConfig, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Token-budget batches of sentence streams (Thought Gestalt, appendix B.1).

    Streams are grouped by number of sentences, shuffled inside their group and dealt, longest group first, into
    preallocated batches: each goes to the next batch in turn that keeps within `tokens_per_batch` lexical tokens and
    the maximum number of streams, which is `tokens_per_batch` over the mean stream's tokens, rounded up (ours; the
    paper gives none). What fits nowhere opens a new batch; a stream above the budget has one of its own.
    """
    budget, sizes = data.tokens_per_batch, rows.lexical_targets(split)
    limit = -(-budget * len(sizes) // int(sizes.sum()))
    batches = -(-int(sizes[sizes <= budget].sum()) // budget)

    shuffled = generator.permutation(len(rows))
    bucket = (rows.sentences[shuffled] - 1) // data.bucket_width
    shuffled = shuffled[np.argsort(-bucket, kind="stable")]

    batch_of = np.empty(len(rows), dtype=np.int64)
    free = np.full(batches + len(rows), budget)  # lexical tokens that still fit; -1: closed
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


# -- one batch ---------------------------------------------------------------------------------------------------------


def assemble(split: Split, rows: Rows, data: DataConfig, special: dict[str, int], tokens: str = "all") -> Batch:
    """Copies rows out of the store; `tokens="lexical"` takes EOD and sentence ends out of the labels."""
    width = int(rows.lengths.max())
    fill = _fill_flat if rows.first is None else _fill_sentences
    ids, labels = fill(split, rows, width, special)
    if tokens == "lexical":
        labels[(ids == special["eos_token_id"]) | (ids == special["sentence_end_token_id"])] = IGNORED
    batch: Batch = {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}
    if (rows.lengths < width).any():
        batch["attention_mask"] = torch.from_numpy((np.arange(width) < rows.lengths[:, None]).astype(np.int64))
    if data.batching == "records":
        batch["question_lengths"] = torch.from_numpy(rows.target - rows.start)
    if data.batching == "sentences":
        batch["num_sentences"] = int(rows.sentences.max())
    return batch


def _fill_flat(split: Split, rows: Rows, width: int, special: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    index = rows.start[:, None] + np.arange(width)
    real = index < rows.stop[:, None]
    ids = split.tokens[np.where(real, index, 0)].astype(np.int64)
    ids[~real] = special["pad_token_id"]
    return ids, np.where(real & (index >= rows.target[:, None]), ids, IGNORED)


def _fill_sentences(split: Split, rows: Rows, width: int, special: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """`BOS w1..wn EOS BOS ..`; a document's last sentence ends in `EOD EOS`. Everything but BOS is a target."""
    sentences = rows.sentences
    ordinal = _ordinals(sentences)  # of each sentence in its row
    segment = np.repeat(rows.first, sentences) + ordinal  # type: ignore[arg-type]
    begin, length = split.segments[segment], split.segments[segment + 1] - split.segments[segment]
    row = np.repeat(np.arange(len(rows)), sentences)
    bos = row * width + begin - rows.start[row] + 2 * ordinal  # where each sentence starts in the flattened batch
    within = _ordinals(length)
    index = np.repeat(begin, length) + within

    ids = np.full(len(rows) * width, special["pad_token_id"])
    labels = np.full(len(rows) * width, IGNORED)
    ids[bos] = special["sentence_start_token_id"]
    ids[bos + length + 1] = labels[bos + length + 1] = special["sentence_end_token_id"]
    inside = np.repeat(bos + 1, length) + within
    ids[inside] = labels[inside] = split.tokens[index]
    return ids.reshape(len(rows), width), labels.reshape(len(rows), width)
