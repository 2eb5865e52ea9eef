"""Sentences in flat streams: parsed by their markers, and generated well-formed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LogitsProcessor

from mentalese.errors import InputError
from mentalese.families.thought_gestalt.config import ThoughtGestaltConfig
from mentalese.models.inputs import check_width
from mentalese.nn.ragged import within


@dataclass
class Sentences:
    """The sentences of flat streams, step by step: the first of each stream, the second of each that has one, ..

    Within a step, streams with more sentences come first, so a step's streams are the first ones of the previous step.
    Everything is on the CPU. Letters: n sentences, N tokens.

    Attributes:
        streams: [n], the stream of each sentence.
        lengths: [n], the number of its tokens in this call.
        ended: bool [n], sentences that end in this call with their EOS.
        counts: the number of sentences of each step.
        source: [N], the index of each token in the flattened [B * L], sentence by sentence.
    """

    streams: Tensor
    lengths: Tensor
    ended: Tensor
    counts: list[int]
    source: Tensor

    @cached_property
    def starts(self) -> list[int]:
        """The first sentence of each step, and the number of all."""
        return [0, *accumulate(self.counts)]

    @cached_property
    def tokens(self) -> list[int]:
        """The first token of each step, and the number of all."""
        return F.pad(self.lengths.cumsum(0), (1, 0))[self.starts].tolist()

    def part(self, steps: range) -> Sentences:
        """Return the sentences of these steps."""
        sentences = slice(self.starts[steps.start], self.starts[steps.stop])
        return Sentences(
            streams=self.streams[sentences],
            lengths=self.lengths[sentences],
            ended=self.ended[sentences],
            counts=self.counts[steps.start : steps.stop],
            source=self.source[self.tokens[steps.start] : self.tokens[steps.stop]],
        )

    def parts(self, tokens: int) -> list[range]:
        """Return all steps in parts of at most this number of tokens, or one step if it has more."""
        parts, first = [], 0
        for k in range(1, len(self.counts)):
            if self.tokens[k + 1] - self.tokens[first] > tokens:
                parts.append(range(first, k))
                first = k
        return [*parts, range(first, len(self.counts))]

    def predicting(self) -> Tensor:
        """Return the tokens [N'] that precede another token of their sentence."""
        last = self.lengths.cumsum(0) - 1
        return torch.ones(len(self.source), dtype=torch.bool).index_fill_(0, last, False).nonzero()[:, 0]

    def pairs(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the indices [N'] in the flattened streams of these tokens, and of their targets."""
        predicting = self.predicting()
        return self.source[predicting].to(device), self.source[predicting + 1].to(device)


def find_sentences(
    input_ids: Tensor,
    attention_mask: Tensor | None,
    config: ThoughtGestaltConfig,
    first_position: Tensor | None = None,
) -> Sentences:
    """Return the sentences of streams [B, L], by their markers.

    Args:
        attention_mask: [B, L], 0 at padding.
        first_position: [B], number of tokens already read of the open sentence.

    Raises:
        InputError: there are no tokens, a mask of another width, the markers are unbalanced, or a sentence is longer
            than the table of positions.
    """
    if not input_ids.numel():
        raise InputError(f"input_ids has the shape {list(input_ids.shape)}: pass at least one token")
    length = input_ids.shape[1]
    if attention_mask is not None:
        check_width(attention_mask, length)
        input_ids = torch.where(attention_mask.bool(), input_ids, config.pad_token_id)
    input_ids = input_ids.cpu()  # all data-dependent decisions are made here, on the CPU
    real = input_ids != config.pad_token_id
    first_position = input_ids.new_zeros(len(input_ids)) if first_position is None else first_position.cpu()
    begins = real & (input_ids == config.sentence_start_token_id)
    was_open = (first_position > 0).long()
    _check_markers(input_ids, begins, first_position, config)
    sentence = (begins.cumsum(1) - 1 + was_open[:, None]).clamp(min=0)
    count = int(sentence.max()) + 1
    lengths = real.new_zeros(real.shape[0], count, dtype=torch.long).scatter_add(1, sentence, real.long())
    starts = lengths.cumsum(1) - lengths
    by_length = (lengths > 0).sum(1).argsort(descending=True, stable=True)
    step, place = (lengths[by_length] > 0).t().nonzero(as_tuple=True)  # step by step
    streams = by_length[place]
    sizes = lengths[streams, step]
    rows = streams.repeat_interleave(sizes)
    order = (~real).to(torch.uint8).argsort(dim=1, stable=True)  # real tokens first
    source = rows * length + order[rows, starts[streams, step].repeat_interleave(sizes) + within(sizes)]
    return Sentences(
        streams=streams,
        lengths=sizes,
        ended=input_ids.flatten()[source[sizes.cumsum(0) - 1]] == config.sentence_end_token_id,
        counts=step.bincount().tolist(),
        source=source,
    )


def _check_markers(ids: Tensor, begins: Tensor, first_position: Tensor, config: ThoughtGestaltConfig) -> None:
    """Raise `InputError` for the first of the tokens [B, L] at an impossible place in a sentence."""
    real, was_open = ids != config.pad_token_id, (first_position > 0).long()
    ends, size = ids == config.sentence_end_token_id, config.max_sentence_tokens + 3
    read = real.cumsum(1)
    start = torch.where(begins, read - 1, -first_position[:, None]).cummax(1).values
    is_open = was_open[:, None] + F.pad((begins.long() - ends.long()).cumsum(1), (1, 0))[:, :-1]  # before each token
    wrong = real & torch.where(is_open > 0, begins | (read - start > size), ~begins)
    if not bool(wrong.any()):
        return
    row, column = wrong.nonzero()[0].tolist()
    if not is_open[row, column]:
        why = f"a sentence must begin with sentence_start_token_id ({config.sentence_start_token_id})"
    elif begins[row, column]:
        why = (
            "a sentence begins inside another: end that one with "
            f"sentence_end_token_id ({config.sentence_end_token_id})"
        )
    else:
        why = (
            f"the sentence has more than the {size} tokens, markers included, that "
            "have positions: split it, or train with a larger max_sentence_tokens"
        )
    raise InputError(f"input_ids[{row}, {column}] is {ids[row, column]}: {why}")


# The state of a stream before its next token; the last two force this token.
_INSIDE, _STARTED, _FULL, _ENDED, _ENDED_DOCUMENT = range(5)


class SentenceMarkers(LogitsProcessor):
    """A logits processor for well-formed streams: a sentence starts after the end of one, and ends after EOD.

    Inside a sentence neither BOS nor PAD is generated, no sentence is empty, and one with `max_sentence_tokens` ends. A
    prompt that ends in EOD is continued by EOS and new sentences, which still read the memory of that document.
    """

    def __init__(self, config: ThoughtGestaltConfig) -> None:
        self.config = config
        self.tables: tuple[Tensor, Tensor] | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        config = self.config
        if self.tables is None:
            self.tables = self._tables(scores)
        kinds, added = self.tables
        column = torch.arange(input_ids.shape[1], device=scores.device)
        start = ((input_ids == config.sentence_start_token_id) * column).amax(1, keepdim=True)
        words = ((input_ids != config.pad_token_id) & (column > start)).sum(1)
        kind = kinds[input_ids[:, -1]]
        kind = torch.where((kind == _INSIDE) & (words >= config.max_sentence_tokens), _FULL, kind)
        changes = added[kind]
        return torch.where((kind >= _ENDED)[:, None], changes, scores + changes)

    def _tables(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the state after each token [vocabulary], and the scores to add in each state [5, vocabulary]."""
        config = self.config
        bos, eos, eod = config.sentence_start_token_id, config.sentence_end_token_id, config.eos_token_id
        kinds = torch.full((scores.shape[-1],), _INSIDE)
        kinds[bos], kinds[eos], kinds[eod] = _STARTED, _ENDED, _ENDED_DOCUMENT
        added = torch.zeros(5, scores.shape[-1], dtype=scores.dtype)
        added[_INSIDE, [bos, config.pad_token_id]] = -math.inf
        added[_STARTED, [bos, config.pad_token_id, eos, eod]] = -math.inf
        for kind, allowed in ((_FULL, [eos, eod]), (_ENDED, [bos]), (_ENDED_DOCUMENT, [eos])):
            added[kind] = -math.inf
            added[kind, allowed] = 0.0
        return kinds.to(scores.device), added.to(scores.device)
