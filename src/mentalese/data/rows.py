"""Rows of a token store, and how an epoch packs them into batches.

    rows      small tables of offsets: which stretch of the text each row holds, and what of it is a target
    packing   an epoch's order of rows, drawn from a generator keyed by (seed, epoch), and its batches
    assembly  rows copied out of the memory map when their batch comes

Every document follows an end-of-document token (EOD): the one that ends the document before it; the first document
borrows the last one's, because `tokens[-1]` is an EOD too.

Where sentences matter the text is a stream with markers, `BOS w1..wn EOS BOS ..`, a document ending in `EOD EOS`. It is
never written out: sentence s begins at `segments[s] + 2 s`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from mentalese.data.batch import Batch
from mentalese.data.store import Split
from mentalese.errors import InputError
from mentalese.nn.loss import IGNORED
from mentalese.recipe import DataConfig

_BATCHES_SORTED_TOGETHER = 50


# -- rows --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Row i holds tokens start[i] to stop[i] - 1, of which those from target[i] on are targets; int64 [rows] each.

    Offsets are those of the store, or where `first` and `last` are there, of the stream with markers; row i then lies
    within segments first[i] to last[i] - 1. Where `rest` is there, row i holds tokens start[i] to target[i] - 1, then
    `gap[i]` markers and latents, then the tokens from rest[i] on, the targets.
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
        return Rows(*(None if f is None else f[which] for f in vars(self).values()))  # type: ignore[arg-type]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens in a row, markers and latents included."""
        if self.rest is None or self.gap is None:
            return self.stop - self.start
        return self.target - self.start + self.gap + self.stop - self.rest

    def lexical_targets(self, split: Split) -> np.ndarray:
        """Targets in a row that are text: no EOD, no sentence marker."""
        start, stop = self.target if self.rest is None else self.rest, self.stop
        if self.first is not None:
            start, stop = tokens_before(split, start), tokens_before(split, stop)
        ends = split.documents[1:] - 1
        return stop - start - (np.searchsorted(ends, stop) - np.searchsorted(ends, start))


def passes(rows: Rows, data: DataConfig) -> np.ndarray:
    """Sentence steps that each row takes: its sentences for models that read one after the other, else 1."""
    return rows.last - rows.first if data.batching == "sentences" else np.ones_like(rows.start)  # type: ignore[operator]


def sentence_start(split: Split, segment: np.ndarray) -> np.ndarray:
    """Where segments begin in the stream with markers."""
    return split.segments[segment] + 2 * segment


def tokens_before(split: Split, position: np.ndarray) -> np.ndarray:
    """How many of the store's tokens come before positions of the stream with markers."""
    last = len(split.segments) - 2
    starts = sentence_start(split, np.arange(last + 1))
    segment = np.searchsorted(starts, position, side="right") - 1
    return np.clip(position - 2 * segment - 1, split.segments[segment], split.segments[segment + 1])


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


def _blocks(begin: int, end: int, length: int) -> Rows:
    """One stretch of text, cut; the last block begins early enough to be full, its repeated tokens no targets."""
    rows = document_windows(np.array([begin]), np.array([end]), length, length - 1)
    return dataclasses.replace(rows, start=np.maximum(rows.stop - length, begin - 1))


def within_sentences(split: Split, rows: Rows) -> Rows:
    """Rows of the stream with markers, with the segments that they lie in."""
    starts = sentence_start(split, np.arange(len(split.segments)))
    first = np.searchsorted(starts, rows.start, side="right") - 1
    return dataclasses.replace(rows, first=first, last=np.searchsorted(starts, rows.stop))


def sentence_streams(split: Split, documents: int, max_sentences: int, min_sentences: int = 1) -> Rows:
    """Documents of at least `min_sentences` sentences, cut into streams of at most `max_sentences`."""
    begin, end = split.document_segments[:documents], split.document_segments[1 : documents + 1]
    pieces = np.where(end - begin < min_sentences, 0, -(-(end - begin) // max_sentences))
    first = np.repeat(begin, pieces) + max_sentences * _ordinals(pieces)
    last = np.minimum(first + max_sentences, np.repeat(end, pieces))
    start = sentence_start(split, first)
    return Rows(start, start, sentence_start(split, last), first, last)


def whole_records(split: Split, documents: int, data: DataConfig, generator: np.random.Generator | None = None) -> Rows:
    """One record a row, at the stage of `data`; its first segment is the question, its last one the answer.

    Args:
        generator: draws what is drawn in training; `None`: nothing is.

    Raises:
        InputError: a document that is no record, or rows above `data.sequence_length`.
    """
    start, stop = split.documents[:documents], split.documents[1 : documents + 1]
    first, last = split.document_segments[:documents], split.document_segments[1 : documents + 1] - 1
    target = split.segments[np.minimum(first + 1, last)]
    broken = int(((last == first) | (target == start)).sum())
    if broken:
        raise InputError(f"data.batching is 'records': {broken} of {documents} documents lack a question or an answer")
    answer, stage = split.segments[last], np.full(documents, data.stage)
    if generator is not None and data.uniform_prob:
        drawn = generator.integers(0, data.stages, documents, endpoint=True)
        stage = np.where(generator.random(documents) < data.uniform_prob, drawn, stage)
    if data.removal == "tokens":
        removed = stage
        if generator is not None and data.removal_smoothing is not None:
            removed = stage + generator.geometric(1 - np.exp(-data.removal_smoothing), documents) - 1
        rest = np.minimum(target + removed, answer)
    else:
        rest = split.segments[np.minimum(first + 1 + stage, last)]
    rest = np.where(stage > data.stages, answer, rest)
    latents = np.array([data.latents_at(number) for number in range(max(data.stage, data.stages) + 1)])
    rows = Rows(start, target, stop, rest=rest, gap=latents[stage] + 2 if data.has_latents else np.zeros_like(start))
    longer = int((rows.lengths > data.sequence_length).sum())
    if longer:
        raise InputError(
            f"data.sequence_length is {data.sequence_length}: {longer} of {documents} records are longer, "
            f"give at least {int(rows.lengths.max())} or leave them out"
        )
    return rows


def check_latents(data: DataConfig, special: dict[str, int]) -> None:
    """Raises `InputError` where records are to have latents and the tokenizer has no such tokens."""
    if data.has_latents and "latent_token_id" not in special:
        raise InputError(
            "data asks for latents and the tokenizer has no tokens for them: "
            "add them with mentalese.data.tokenizers.add_markers(tokenizer, latents=True), or use `mentalese grow`"
        )


def _training_rows(split: Split, data: DataConfig, generator: np.random.Generator) -> Rows:
    tokens, segments = len(split.tokens), len(split.segments) - 1
    if data.batching == "blocks":
        return _blocks(0, tokens, data.sequence_length)
    if data.batching == "marked":  # the stream's first BOS follows nothing and is no target
        return within_sentences(split, _blocks(1, tokens + 2 * segments, data.sequence_length))
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
    return whole_records(split, len(split.document_bytes), data, generator)


# -- packing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Epoch:
    """Batch i holds rows `order[bounds[i]:bounds[i + 1]]`, the longest first."""

    rows: Rows
    order: np.ndarray
    bounds: np.ndarray

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def clocks(self, split: Split, data: DataConfig) -> np.ndarray:
        """int64 [batches + 1, 2]: lexical target tokens and sentence steps before each batch and after the last.

        A sentence step is one sentence position processed across the batch (Thought Gestalt, appendix C); a flat
        batch is one step.
        """
        rows = self.rows[self.order]
        tokens = np.add.reduceat(rows.lexical_targets(split), self.bounds[:-1])
        steps = np.maximum.reduceat(passes(rows, data), self.bounds[:-1])
        return np.concatenate([[(0, 0)], np.cumsum(np.stack([tokens, steps], axis=1), axis=0)])


def pack_epoch(split: Split, data: DataConfig, seed: int, epoch: int) -> Epoch:
    """An epoch's batches; a pure function of its arguments."""
    generator = np.random.Generator(np.random.Philox(key=[seed % 2**64, epoch]))
    rows = _training_rows(split, data, generator)
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
    bucket = (passes(rows, data)[shuffled] - 1) // data.bucket_width
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


# What is no token of the store, in place of its index, and which marker it is.
_BOS, _EOS, _PAD, _LATENT_START, _LATENT, _LATENT_END = -1, -2, -3, -4, -5, -6
_MARKERS = (
    "latent_end_token_id",
    "latent_token_id",
    "latent_start_token_id",
    "pad_token_id",
    "sentence_end_token_id",
    "sentence_start_token_id",
)


def assemble(
    split: Split,
    rows: Rows,
    data: DataConfig,
    special: dict[str, int],
    scored: Literal["lexical", "all"] | None = None,
    *,
    left: bool = False,
) -> Batch:
    """Copies rows out of the store, to train on, or to score what `scored` says (see `EvaluationConfig.tokens`).

    Args:
        left: pad on the left, to be continued.
    """
    column, lengths = np.arange(int(rows.lengths.max())), rows.lengths[:, None]
    real = column >= len(column) - lengths if left else column < lengths
    index = np.full(real.shape, _PAD)
    index[real] = _indices(split, rows)
    markers = np.array([special.get(name, -1) for name in _MARKERS])
    ids = np.where(index < 0, markers[np.minimum(index, -1)], split.tokens[np.maximum(index, 0)])
    given = rows.target - rows.start + (0 if rows.gap is None else rows.gap)
    labels = np.where(real & (column >= given[:, None]), ids, IGNORED)
    if scored or data.batching == "sentences":
        labels[index == _BOS] = IGNORED
    if scored == "lexical":
        labels[(index < 0) | (ids == special["eos_token_id"])] = IGNORED
    batch: Batch = {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}
    if scored:
        batch["store_index"] = torch.from_numpy(np.where(labels != IGNORED, index, -1))
    if not real.all():
        batch["attention_mask"] = torch.from_numpy(real.astype(np.int64))
    if data.batching == "records":
        batch["question_lengths"] = torch.from_numpy(rows.target - rows.start)
    return batch


def _indices(split: Split, rows: Rows) -> np.ndarray:
    """Index in the store of every token, row by row; below 0 at markers and latents."""
    if rows.rest is not None and rows.gap is not None:
        row, place = np.repeat(np.arange(len(rows)), rows.lengths), _ordinals(rows.lengths)
        inside = place - (rows.target - rows.start)[row]  # of the gap, from 0 on
        behind = inside - rows.gap[row]
        index = np.where(behind >= 0, rows.rest[row] + behind, rows.start[row] + place)
        gap = (inside >= 0) & (behind < 0)
        index[gap] = _LATENT
        index[gap & (inside == 0)] = _LATENT_START
        index[gap & (behind == -1)] = _LATENT_END
        return index
    if rows.first is None or rows.last is None:
        return (np.repeat(rows.start, rows.lengths) + _ordinals(rows.lengths)) % len(split.tokens)
    sentences = rows.last - rows.first
    segment = np.repeat(rows.first, sentences) + _ordinals(sentences)
    sizes = split.segments[segment + 1] - split.segments[segment] + 2
    within = _ordinals(sizes)
    index = np.repeat(split.segments[segment] - 1, sizes) + within
    index[within == 0] = _BOS
    index[np.cumsum(sizes) - 1] = _EOS
    position = np.repeat(sentence_start(split, segment), sizes) + within
    start, stop = (np.repeat(np.repeat(bound, sentences), sizes) for bound in (rows.start, rows.stop))
    return index[(start <= position) & (position < stop)]  # a row may begin and end inside a sentence
