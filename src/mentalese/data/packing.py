"""Packing of rows into the batches of an epoch, in an order drawn from a generator.

Packing functions return `order` and `bounds`, int64: batch i has rows `order[bounds[i]:bounds[i + 1]]`, the longest
first.
"""

from __future__ import annotations

import numpy as np

from mentalese.data.rows import Rows

_BATCHES_SORTED_TOGETHER = 50


def pack_rows(rows: Rows, batch_size: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Pack batches of `batch_size` rows of similar length; an incomplete last batch is left out this epoch.

    Rows are shuffled and sorted by length inside groups of 50 batches, then the batches are shuffled. So padding is
    rare, and each epoch has other batches. For rows of one length this is a shuffle.
    """
    batches = len(rows) // batch_size
    order = generator.permutation(len(rows))[: batches * batch_size]
    group = np.arange(len(order)) // (_BATCHES_SORTED_TOGETHER * batch_size)
    order = order[np.lexsort((-rows.lengths[order], group))].reshape(batches, batch_size)
    return order[generator.permutation(batches)].reshape(-1), np.arange(batches + 1) * batch_size


def pack_streams(
    sizes: np.ndarray, sentences: np.ndarray, budget: int, bucket_width: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Pack batches of sentence streams under a token budget (Thought Gestalt, appendix B.1).

    Streams are grouped by number of sentences, shuffled inside their group and dealt, longest group first, into
    preallocated batches. Each stream goes to the next batch in turn that stays within `budget` lexical tokens and the
    maximum number of streams. B.1 gives no value of this maximum; here it is `budget` over the mean number of tokens of
    a stream, rounded up. A stream that fits nowhere opens a new batch, and a stream above the budget is a batch.

    Args:
        sizes, sentences: lexical tokens and sentences per stream, int64 [streams].
    """
    limit = -(-budget * len(sizes) // int(sizes.sum()))
    batches = -(-int(sizes[sizes <= budget].sum()) // budget)

    shuffled = generator.permutation(len(sizes))
    bucket = (sentences[shuffled] - 1) // bucket_width
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
