"""Batches as pure functions of (seed, step, rank, world size), so that resuming a run needs one integer."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mentalese.data.batch import Batch
from mentalese.data.rows import (
    Epoch,
    as_arrays,
    assemble,
    check_latents,
    document_windows,
    pack_epoch,
    passes,
    sentence_start,
    sentence_streams,
    whole_records,
    within_sentences,
)
from mentalese.data.sentences import SentenceEncoder, cut_and_merge
from mentalese.data.store import Split
from mentalese.data.tokenizers import LATENT_MARKERS, MASK, corpus_encoder, special_token_ids
from mentalese.errors import InputError
from mentalese.nn.loss import IGNORED
from mentalese.recipe import WITH_MARKERS, Clock, DataConfig, EvaluationConfig, Recipe

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

_CHANGEABLE = (
    "sequence_length",
    "batch_size",
    "max_sentences",
    "tokens_per_batch",
    "bucket_width",
    "stage",
    "latents",
    "uniform_prob",
)


# -- the plan of a run -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Position:
    """Where a run is before a step.

    Attributes:
        epoch, index: batch `index` of epoch `epoch` comes next.
        tokens: lexical tokens that were targets so far.
        sentence_steps: sentence positions processed so far, the largest number in each global batch; flat batches
            count 1.
        progress: 0 to 1, in steps for a run given in steps, else in tokens, so that a change of batches does not make
            a schedule jump.
    """

    step: int
    epoch: int
    index: int
    tokens: int
    sentence_steps: int
    progress: float


class Plan:
    """What each step trains on, under which settings: all of it follows from the step.

    An epoch is built when it is first needed and the last two are kept; of earlier ones only the clocks remain.

    Args:
        split: the training split.
        recipe: `data`, `train`, `phases`.
        special: the tokenizer's marker ids, from `special_token_ids`.
        world_size: ranks that share a batch; the batches themselves do not depend on it.

    Raises:
        InputError: a batch that ranks and micro-batches cannot share evenly, too little text for one batch, records
            above `sequence_length`, or a phase that changes data which is fixed for the run.
    """

    def __init__(self, split: Split, recipe: Recipe, special: dict[str, int], world_size: int = 1) -> None:
        limit = recipe.data.train_tokens
        self.split = as_arrays(split if limit is None else split.head(limit))
        self.recipe, self.special = recipe, special
        self._check(world_size)
        self._first_steps = [0]  # of each epoch that is counted, and of the next one
        self._clocks: list[np.ndarray] = []  # of each epoch that is counted: [batches + 1, 2]
        self._counted = np.zeros(2, dtype=np.int64)  # tokens and sentence steps of all of them
        self._epoch = lru_cache(maxsize=2)(self._build)
        self._phase_starts: dict[int, float] = {}
        self._extend()
        self.total_steps = self._count_steps()
        self._total_tokens = 0 if recipe.train.steps is not None else self._clock(self.total_steps, "tokens")

    def position(self, step: int) -> Position:
        epoch, index, (tokens, sentence_steps) = self._locate(step)
        done = step / self.total_steps if self.recipe.train.steps is not None else tokens / self._total_tokens
        return Position(step, epoch, index, int(tokens), int(sentence_steps), min(float(done), 1.0))

    def batch(self, step: int, rank: int = 0, world_size: int = 1, micro: int = 0) -> Batch:
        """One rank's share of a step's batch; ranks and micro-batches together hold each row once.

        The longest row goes to rank 0, the next to rank 1, and so on, so that shares have similar sizes.
        A share that would be empty (streams of sentences only, where a batch has fewer streams than there are ranks and
        micro-batches) is a copy of the shortest row without labels: its gradient is zero, and the batches stay the
        same for every number of ranks.

        Returns:
            `input_ids`, `labels` int64 [rows, length], `attention_mask` where rows are padded, `question_lengths`
            [rows] for records.
        """
        number, index, _ = self._locate(step)
        epoch = self._epoch(number)
        everything = epoch.order[epoch.bounds[index] : epoch.bounds[index + 1]]
        share = everything[rank + world_size * micro :: world_size * self.recipe.train.gradient_accumulation_steps]
        chosen = share if len(share) else everything[-1:]
        batch = assemble(self.split, epoch.rows[chosen], self._data_of(number), self.special)
        if not len(share):
            batch["labels"].fill_(IGNORED)
        return batch

    def settings(self, step: int) -> dict[str, Any]:
        """The model settings that hold at a step; later phases override earlier ones."""
        settings: dict[str, Any] = {}
        for number, phase in enumerate(self.recipe.phases):
            if self._clock(step, phase.clock) >= phase.start:
                for name, value in phase.model.items():
                    ramp = isinstance(value, (tuple, list)) and len(value) == 2
                    settings[name] = self._ramp(number, step, *value) if ramp else value
        return settings

    def data(self, step: int) -> DataConfig:
        """The data settings that hold at a step."""
        return self._data_of(self._locate(step)[0])

    def reset_optimizer(self, step: int) -> bool:
        """True at the first step of a phase that forgets the optimiser's moments, never at step 0."""
        return step > 0 and any(
            phase.reset_optimizer and self._clock(step - 1, phase.clock) < phase.start <= self._clock(step, phase.clock)
            for phase in self.recipe.phases
        )

    def _check(self, world_size: int) -> None:
        data, parts = self.recipe.data, world_size * self.recipe.train.gradient_accumulation_steps
        if len(self.split.tokens) == len(self.split.document_bytes):  # nothing but ends of documents
            raise InputError(f"data.source is {data.source!r}: its training split has no text")
        for phase in self.recipe.phases:
            for name in phase.data:
                if name not in _CHANGEABLE:
                    raise InputError(f"phases.data is {name!r}: only {', '.join(_CHANGEABLE)} can change during a run")
        for config in self.recipe.readings():
            if config.batching != "sentences" and config.batch_size % parts:
                raise InputError(
                    f"data.batch_size is {config.batch_size}: give a multiple of {parts}, which is {world_size} ranks "
                    f"times train.gradient_accumulation_steps {self.recipe.train.gradient_accumulation_steps}"
                )
            if config.batching == "records":
                check_latents(config, self.special)
                for stage in range(config.stages + 1) if config.uniform_prob else (config.stage,):
                    whole_records(self.split, len(self.split.document_bytes), dataclasses.replace(config, stage=stage))

    def _count_steps(self) -> int:
        train = self.recipe.train
        if train.steps is not None:
            return train.steps
        if train.epochs is not None:
            whole, part = divmod(train.epochs, 1)
            while len(self._clocks) < train.epochs:
                self._extend()
            batches = len(self._clocks[int(whole)]) - 1 if part else 0
            return max(1, self._first_steps[int(whole)] + round(part * batches))
        assert train.tokens is not None
        while self._counted[0] < train.tokens:
            self._extend()
        return self._first_steps[-2] + int(np.searchsorted(self._clocks[-1][:, 0], train.tokens))

    def _build(self, epoch: int) -> Epoch:
        return pack_epoch(self.split, self._data_of(epoch), self.recipe.train.seed, epoch)

    def _extend(self) -> None:
        """Counts one more epoch."""
        epoch = self._epoch(len(self._clocks))
        self._clocks.append(self._counted + epoch.clocks(self.split, self.recipe.data))
        self._counted = self._clocks[-1][-1]
        self._first_steps.append(self._first_steps[-1] + len(epoch))

    def _locate(self, step: int) -> tuple[int, int, np.ndarray]:
        """Epoch, index in it, (tokens, sentence steps); an epoch's end is the next one's start."""
        while self._first_steps[-1] < step:
            self._extend()
        epoch = bisect_right(self._first_steps, step) - 1
        index = step - self._first_steps[epoch]
        return epoch, index, self._clocks[epoch][index] if epoch < len(self._clocks) else self._counted

    def _clock(self, step: int, clock: Clock) -> float:
        if clock == "steps":
            return step
        epoch, index, (tokens, sentence_steps) = self._locate(step)
        if clock == "epochs":
            return epoch + (index / (len(self._clocks[epoch]) - 1) if index else 0)
        return int(tokens if clock == "tokens" else sentence_steps)

    def _data_of(self, epoch: int) -> DataConfig:
        """The data settings of an epoch: phases take effect at the first epoch that begins at or after their start."""
        data, step = self.recipe.data, self._first_steps[epoch]
        for phase in self.recipe.phases:
            if phase.data and self._clock(step, phase.clock) >= phase.start:
                data = dataclasses.replace(data, **phase.data)
        return data

    def _ramp(self, number: int, step: int, a: float, b: float) -> float:
        """A line from a at the phase's first step, which is not after `step`, to b at the end of the run."""
        if number not in self._phase_starts:
            phase = self.recipe.phases[number]
            first = bisect_left(range(step + 1), phase.start, key=lambda s: self._clock(s, phase.clock))
            self._phase_starts[number] = self.position(first).progress
        return float(np.interp(self.position(step).progress, (self._phase_starts[number], 1.0), (a, b)))


# -- evaluation --------------------------------------------------------------------------------------------------------


def evaluation_batches(
    split: Split, data: DataConfig, evaluation: EvaluationConfig, special: dict[str, int]
) -> Iterator[Batch]:
    """A split's documents in batches whose labels hold every lexical token exactly once, whatever the batching.

    Blocks and documents become sliding windows inside each document, or in all of them joined where
    `evaluation.joined`; a document's first token is predicted from an EOD. `marked` is the same with its markers,
    document by document, and a sentence's first token is predicted from its BOS. Sentences become whole documents,
    records whole records. `evaluation.tokens="all"` labels the documents' ends and, where there are markers, the
    sentences' ends too. Rows are sorted by length, the longest first.

    Batches also hold `store_index` [rows, length]: where a label stands in `split.tokens`, -1 where it does not.

    Raises:
        InputError: a stride that does not fit the context, documents to be joined for a model that does not read
            blocks, or records above `sequence_length`; at the call.
    """
    split = as_arrays(split)
    documents = evaluation.documents(len(split.document_bytes))
    length, stride = evaluation.window(data)
    if data.batching == "sentences":
        rows = sentence_streams(split, documents, max(1, len(split.segments)))
    elif data.batching == "records":
        check_latents(data, special)
        rows = whole_records(split, documents, data)
    else:
        if not 0 < stride < length:
            field, value = ("stride", stride) if evaluation.stride else ("context_length", length)
            raise InputError(
                f"evaluation.{field} is {value}: give at least 2 tokens of context and a stride below the context "
                f"({length})"
            )
        lexical = evaluation.tokens == "lexical"
        if data.batching == "marked":  # a window begins with the BOS; `EOD EOS` at the end is no text
            starts = sentence_start(split, split.document_segments[: documents + 1])
            rows = document_windows(starts[:-1] + 1, starts[1:] - 2 * lexical, length, stride)
            rows = within_sentences(split, rows)
        else:
            bounds = split.documents[[0, documents]] if evaluation.joined else split.documents[: documents + 1]
            rows = document_windows(bounds[:-1], bounds[1:] - lexical, length, stride)
    order = np.lexsort((-rows.lengths, -passes(rows, data)))
    return (
        assemble(split, rows[order[i : i + evaluation.batch_size]], data, special, evaluation.tokens)
        for i in range(0, len(order), evaluation.batch_size)
    )


def question_batches(
    split: Split, data: DataConfig, evaluation: EvaluationConfig, special: dict[str, int]
) -> Iterator[Batch]:
    """A split's records up to where a model goes on: questions, and latents where `data` has them, for `generate`.

    Returns:
        Batches of `input_ids`, `attention_mask`, int64 [rows, length], padded on the left, and `documents` int64
        [rows], which of the split's documents each row asks; the longest first.

    Raises:
        InputError: latents without tokens for them, or records above `sequence_length`; at the call.
    """
    split = as_arrays(split)
    check_latents(data, special)
    rows = whole_records(split, evaluation.documents(len(split.document_bytes)), data)
    assert rows.rest is not None
    rows = dataclasses.replace(rows, stop=rows.rest)
    order = np.argsort(-rows.lengths, kind="stable")

    def batch(documents: np.ndarray) -> Batch:
        made = assemble(split, rows[documents], data, special, left=True)
        mask = made.get("attention_mask", torch.ones_like(made["input_ids"]))
        return {"input_ids": made["input_ids"], "attention_mask": mask, "documents": torch.from_numpy(documents)}

    size = evaluation.batch_size
    return (batch(order[i : i + size]) for i in range(0, len(order), size))


# -- text in, text out -------------------------------------------------------------------------------------------------


def shown_prompt(prompt: str, data: DataConfig) -> str:
    """A prompt as new text follows it: a record's question stands on a line of its own."""
    return f"{prompt.rstrip()}\n" if data.batching == "records" else prompt


def encode_prompts(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, data: DataConfig, mask_token_id: int | None = None
) -> Batch:
    """Prompts as a model of this data reads them, to be continued.

    A document starts after EOD, as in training (another project's model reads its own beginning of a text). A record's
    question starts the row and stands on a line of its own; latents follow it where `data` has them. For `sentences`
    and `marked` each complete sentence is `BOS .. EOS` and the last one is left open, so that the model decides whether
    it goes on. A marker's name in a prompt is plain text.

    Args:
        mask_token_id: what each `<|mask|>` in a prompt becomes, with the spaces before it (they belong to its word);
            `None`: plain text.

    Returns:
        `input_ids` and `attention_mask`, int64 [texts, length], padded on the left.

    Raises:
        InputError: a prompt without any text or of no Unicode, masks in sentences between markers, or latents that the
            tokenizer has no tokens for.
    """
    for index, text in enumerate(texts):
        if not text.strip():
            raise InputError(f"prompts[{index}] is {text!r}: give some text to go on from")
        try:
            text.encode()
        except UnicodeEncodeError as error:  # a terminal's bytes that are no UTF-8
            raise InputError(f"prompts[{index}] is no Unicode text (at character {error.start}): give UTF-8") from None
        if mask_token_id is not None and MASK in text and data.batching in WITH_MARKERS:
            raise InputError(f"prompts[{index}] holds {MASK}: this model reads sentences, each of them whole")
    special = special_token_ids(tokenizer, sentences=data.batching in WITH_MARKERS)
    if data.batching in WITH_MARKERS:
        encoder = SentenceEncoder(tokenizer, data)
        rows = [_open_sentences(text, encoder, special) for text in texts]
    else:
        backend = corpus_encoder(tokenizer)
        start, end = [special["bos_token_id"]], []
        if data.batching == "records":
            check_latents(data, special)
            start = []
            if data.has_latents:
                first, latent, last = (special[name] for name in LATENT_MARKERS)
                end = [first, *[latent] * data.latents_at(data.stage), last]
        shown = [shown_prompt(text, data) for text in texts]
        rows = [start + _masked_ids(text, backend, mask_token_id) + end for text in shown]
    ids = torch.full((len(rows), max(map(len, rows))), special["pad_token_id"])
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, -len(row) :] = torch.tensor(row)
        mask[i, -len(row) :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def _masked_ids(text: str, backend: Tokenizer, mask_token_id: int | None) -> list[int]:
    if mask_token_id is None:
        return backend.encode(text, add_special_tokens=False).ids
    *before, last = text.split(MASK)
    pieces = [backend.encode(piece.rstrip(" "), add_special_tokens=False).ids for piece in before]
    held = list(chain.from_iterable([*piece, mask_token_id] for piece in pieces))
    return held + backend.encode(last, add_special_tokens=False).ids


def _open_sentences(text: str, encoder: SentenceEncoder, special: dict[str, int]) -> list[int]:
    """`BOS .. EOS BOS ..`: sentences as in the store, the last one without its end."""
    pieces = [encoder.backend.encode(piece, add_special_tokens=False).ids for piece in encoder.split(text)]
    ids = list(chain.from_iterable(pieces))
    if encoder.whole or encoder.fixed:
        lengths = [encoder.fixed or len(ids)] * -(-len(ids) // (encoder.fixed or len(ids)))
    else:
        # The last sentence may be a beginning: it counts as long enough, or it would join the one before.
        missing = max(0, encoder.minimum - len(pieces[-1]))
        may_cut = np.append(encoder.may_cut(np.array(ids)), np.zeros(missing, dtype=bool))
        lengths = [*map(len, pieces[:-1]), len(pieces[-1]) + missing]
        lengths, _, _ = cut_and_merge(lengths, may_cut, minimum=encoder.minimum, cap=encoder.cap)
    bos, eos = special["sentence_start_token_id"], special["sentence_end_token_id"]
    stream, rest = [], iter(ids)
    for length in lengths:
        stream += [bos, *islice(rest, length), eos]
    return stream[:-1]


def decode(ids: Sequence[int] | Tensor, tokenizer: PreTrainedTokenizerBase) -> str:
    """The text of token ids [length], markers removed."""
    markers = set(special_token_ids(tokenizer, sentences=False).values())
    return tokenizer.decode([i for i in torch.as_tensor(ids).tolist() if i not in markers])
