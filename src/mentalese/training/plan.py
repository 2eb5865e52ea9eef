"""Batches as pure functions of (seed, step, rank, world size), so that resuming a run needs one integer."""

from __future__ import annotations

import dataclasses
import hashlib
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from mentalese.data.batch import Batch
from mentalese.data.layouts import Layout
from mentalese.data.rows import Rows
from mentalese.data.split import Split
from mentalese.errors import InputError, require
from mentalese.nn.loss import IGNORED
from mentalese.recipe import Clock, Phase, Recipe

MOST_EPOCHS = 1_000_000
"""Epochs of a run, whose batches are counted before it starts."""


class _Epoch(NamedTuple):
    """Rows of an epoch's batches: batch i has rows `order[bounds[i]:bounds[i + 1]]`, the longest first."""

    split: Split
    rows: Rows
    order: np.ndarray
    bounds: np.ndarray


@dataclass(frozen=True)
class Position:
    """The position of a run before a step: batch `index` of epoch `epoch` comes next.

    Attributes:
        tokens: lexical tokens that were targets so far.
        sentence_steps: sentence positions processed so far, the largest number in each global batch; flat batches
            count 1 (Thought Gestalt, appendix C).
        progress: 0 to 1, or to `train.schedule_share`, in the unit of the run's length: steps, epochs or tokens.
            Epochs count alike, though a curriculum that replaces written steps by latents has fewer targets in each.
    """

    epoch: int
    index: int
    tokens: int
    sentence_steps: int
    progress: float


class Plan:
    """A plan of each step's data and settings: all of it follows from the step.

    An epoch is built when it is first needed and the last two are kept; of earlier ones only the clocks remain. The
    batches do not depend on `world_size`.

    Raises:
        InputError: ranks and micro-batches cannot share a batch evenly, or not in a way that allows swapping thoughts,
            there is too little text for one batch, or `Layout.check` raises it.
    """

    def __init__(self, split: Split, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, world_size: int = 1) -> None:
        limit = recipe.data.train_tokens
        self.split = (split if limit is None else split.head(limit)).map(np.asarray)
        self.available_documents = len(split.document_bytes)
        documents = recipe.train.epoch_documents
        self._parts = 1 if documents is None else max(1, round(len(self.split.document_bytes) / documents))
        self.recipe, self.tokenizer = recipe, tokenizer
        self._check(world_size)
        self._first_steps = [0]  # of each epoch that is counted, and of the next one
        self._tokens, self._sentence_steps = array("q", [0]), array("q", [0])  # before each step that is counted
        self._epoch = lru_cache(maxsize=2)(self._build)
        self._count_epoch()
        self.total_steps = self._count_steps()

    def position(self, step: int) -> Position:
        epoch, train = self._epoch_of(step), self.recipe.train
        clock: Clock = "epochs" if train.epochs is not None else "tokens" if train.tokens is not None else "steps"
        progress = min(self._clock(step, clock) / self._clock(self.total_steps, clock), 1.0) * train.schedule_share
        index = step - self._first_steps[epoch]
        return Position(epoch, index, self._tokens[step], self._sentence_steps[step], progress)

    @property
    def schedule_steps(self) -> int:
        """Steps of the learning rate's schedule, of which the run may be the beginning."""
        return round(self.total_steps / self.recipe.train.schedule_share)

    def batch(self, step: int, rank: int = 0, world_size: int = 1, micro: int = 0) -> Batch:
        """Return one rank's share of a step's batch, as `Layout.assemble` makes it; all shares contain each row once.

        The longest row goes to rank 0, the next to rank 1, and so on, so that shares have similar sizes. An empty share
        (fewer streams of sentences than shares) is a copy of the shortest row without labels: its gradient is zero, and
        the batches stay the same for every number of ranks.
        """
        number = self._epoch_of(step)
        epoch, index = self._epoch(number), step - self._first_steps[number]
        everything = epoch.order[epoch.bounds[index] : epoch.bounds[index + 1]]
        share = everything[rank + world_size * micro :: world_size * self.recipe.train.gradient_accumulation_steps]
        chosen = share if len(share) else everything[-1:]
        batch = self._layout_of(number).assemble(epoch.split, epoch.rows[chosen], self.tokenizer)
        if not len(share):
            batch["labels"].fill_(IGNORED)
        return batch

    @cached_property
    def longest_steps(self) -> list[int]:
        """The steps of the first and of the last epoch whose rows take the most columns.

        Phases may make rows longer, or their passes more.
        """
        steps = []
        for number in dict.fromkeys((0, self._epoch_of(self.total_steps - 1))):
            epoch, first = self._epoch(number), self._first_steps[number]
            longest = np.maximum.reduceat(epoch.rows.lengths[epoch.order], epoch.bounds[:-1])
            columns = (longest * np.diff(epoch.bounds))[: self.total_steps - first]
            steps.append(first + int(columns.argmax()))
        return steps

    def settings(self, step: int) -> dict[str, object]:
        """Return the model settings at a step; later phases override earlier ones."""
        settings: dict[str, object] = {}
        for phase in self.recipe.phases:
            if self._has_begun(phase, step):
                for name, value in phase.model.items():
                    ramp = isinstance(value, (tuple, list)) and len(value) == 2
                    settings[name] = self._ramp(phase, step, *value) if ramp else value
        return settings

    def layout_after(self, step: int) -> Layout:
        """Return the layout after a step: questions as training last read them, text always in the same way."""
        return self._layout_of(self._epoch_of(max(step - 1, 0))) if self.recipe.layout.questions else self.recipe.layout

    def text_read(self) -> dict[str, int]:
        """Return numbers of tokens, documents and questions without steps that the run reads, and of all documents."""
        documents = len(self._read.document_bytes)
        without_steps = {"without_steps": count} if (count := self.without_steps()) else {}
        return without_steps | {
            "train_tokens": len(self._read.tokens) - documents,
            "train_documents": documents,
            "available_documents": self.available_documents,
        }

    def is_validation(self, step: int) -> bool:
        """Return True every `eval_every` steps, at each epoch's end, and at the end of the run."""
        every = self.recipe.train.eval_every
        if step == self.total_steps:
            return True
        return step % every == 0 if every is not None else self._epoch_of(step) > self._epoch_of(step - 1)

    def validations(self) -> int:
        """Return the number of validations, if the run does not end early."""
        every, last = self.recipe.train.eval_every, self.total_steps
        if every is not None:
            return -(-last // every)
        ends = self._epoch_of(last)
        return ends + (self._epoch_of(last - 1) == ends)

    def without_steps(self) -> int:
        """Count the training questions without steps, of a layout that reads steps."""
        return max(layout.without_steps(self._read) for layout in self.recipe.layouts())

    def remarks(self) -> list[str]:
        """Return remarks for before the run: unused parts of its text and recipe, and missing data."""
        phases, documents, last = self.recipe.phases, len(self._read.document_bytes), self.total_steps - 1
        remarks = []
        if (first := len(self.split.document_bytes)) < self.available_documents:
            remarks.append(
                f"the run trains on the first {first:,} of {self.available_documents:,} documents "
                f"(data.train_tokens is {self.recipe.data.train_tokens:,}); for all of them set this field to None"
            )
        if documents < first:
            remarks.append(
                f"the run reads {documents:,} of {first:,} documents before it ends "
                f"(train.epoch_documents is {self.recipe.train.epoch_documents:,})"
            )
        late = [phase for phase in phases if not self._has_begun(phase, last)]
        if late:
            changes = ", ".join(f"{name}={value}" for name, value in (late[0].layout | late[0].model).items())
            begin = "begins" if len(late) == 1 else "begin"
            remarks.append(
                f"the run ends before {len(late)} of its {len(phases)} phases {begin}, from {late[0].clock} "
                f"{late[0].start:g} ({changes}) on; train longer, or set phases that begin earlier"
            )
        if self.recipe.optimizer.warmup_steps(self.schedule_steps) > self.total_steps:
            remarks.append(
                f"the learning rate still rises when the run ends, after {self.total_steps:,} steps "
                f"(optimizer.warmup is {self.recipe.optimizer.warmup:,g})"
            )
        if (share := self.recipe.train.schedule_share) < 1:
            remarks.append(f"the run ends after {share:.0%} of its learning rate's schedule (train.schedule_share)")
        if count := self.without_steps():
            remarks.append(f"{count:,} of {documents:,} training questions have no steps")
        return remarks

    def reset_optimizer(self, step: int) -> bool:
        """Return True at the first step of a phase that forgets the optimiser's moments, never at step 0."""
        return step > 0 and any(
            phase.reset_optimizer and self._has_begun(phase, step) and not self._has_begun(phase, step - 1)
            for phase in self.recipe.phases
        )

    def _check(self, world_size: int) -> None:
        has_text = len(self.split.tokens) > len(self.split.document_bytes)  # not only ends of documents
        require(has_text, "data.source", self.recipe.data.source, "its training split has no text")
        micro_batches = self.recipe.train.gradient_accumulation_steps
        shares, swapped = world_size * micro_batches, self.recipe.model.get("thought_control") == "swapped"
        for layout in self.recipe.layouts():
            layout.check(self.split, self.tokenizer, world_size, micro_batches)
            rows = getattr(layout, "batch_size", None)
            remedy = f"with model.thought_control 'swapped' each share of a batch needs two, set at least {2 * shares}"
            require(not swapped or rows is None or rows >= 2 * shares, "layout.batch_size", rows, remedy)

    def _count_steps(self) -> int:
        """Return the steps of the run; refuse more epochs, each like the first one, than can be counted."""
        train = self.recipe.train
        for name, each in {"steps": self._first_steps[1], "epochs": 1, "tokens": self._tokens[-1]}.items():
            length = getattr(train, name)
            remedy = f"the text has {each:,} in an epoch, set at most {MOST_EPOCHS:,} epochs"
            require(length is None or length <= MOST_EPOCHS * each, f"train.{name}", length, remedy)
        if train.steps is not None:
            return train.steps
        if train.tokens is not None:
            while self._tokens[-1] < train.tokens:
                self._count_epoch()
            return bisect_left(self._tokens, train.tokens)
        whole, part = divmod(train.epochs or 0, 1)
        while len(self._first_steps) - 1 < (train.epochs or 0):
            self._count_epoch()
        first = self._first_steps[int(whole)]
        batches = self._first_steps[int(whole) + 1] - first if part else 0
        return max(1, first + round(part * batches))

    def _build(self, number: int) -> _Epoch:
        """Return an epoch's batches, a pure function of the recipe and the number."""
        layout, seed = self._layout_of(number), self.recipe.train.seed
        generator = np.random.Generator(np.random.Philox(key=[seed % 2**64, number]))
        split = self._documents(range(number, number + 1))
        rows = layout.training_rows(split, generator)
        try:
            return _Epoch(split, rows, *layout.pack(rows, split, generator))
        except InputError as error:
            documents = self.recipe.train.epoch_documents
            if self._parts == 1:
                raise
            raise InputError(f"train.epoch_documents is {documents}: {error}", "train.epoch_documents") from error

    @cached_property
    def _read(self) -> Split:
        """The documents that the run reads."""
        return self._documents(range(self._epoch_of(self.total_steps - 1) + 1))

    def _documents(self, epochs: range) -> Split:
        """Return the documents that these epochs read."""
        if len(epochs) >= self._parts:
            return self.split
        parts = np.arange(len(self.split.document_bytes)) % self._parts
        return self.split.select(np.isin(parts, [epoch % self._parts for epoch in epochs]))

    def _count_epoch(self) -> None:
        """Count one more epoch."""
        epoch = self._epoch(len(self._first_steps) - 1)
        rows, starts = epoch.rows[epoch.order], epoch.bounds[:-1]
        tokens = np.add.reduceat(rows.lexical_targets(epoch.split), starts)
        steps = np.maximum.reduceat(self.recipe.layout.passes(rows), starts)
        for clock, counts in ((self._tokens, tokens), (self._sentence_steps, steps)):
            clock.extend((clock[-1] + np.cumsum(counts, dtype=np.int64)).tolist())
        self._first_steps.append(self._first_steps[-1] + len(starts))

    def _epoch_of(self, step: int) -> int:
        """Return the epoch of a step; an epoch's end is the next one's start."""
        while self._first_steps[-1] < step:
            self._count_epoch()
        return bisect_right(self._first_steps, step) - 1

    def _clock(self, step: int, clock: Clock) -> float:
        if clock == "steps":
            return step
        epoch = self._epoch_of(step)
        if clock == "epochs":
            first = self._first_steps[epoch]
            return epoch + ((step - first) / (self._first_steps[epoch + 1] - first) if step > first else 0)
        return self._tokens[step] if clock == "tokens" else self._sentence_steps[step]

    def _has_begun(self, phase: Phase, step: int) -> bool:
        """Test if a phase applies; one that changes the layout begins where an epoch does."""
        at = self._first_steps[self._epoch_of(step)] if phase.layout else step
        return self._clock(at, phase.clock) >= phase.start

    def _layout_of(self, epoch: int) -> Layout:
        layout, step = self.recipe.layout, self._first_steps[epoch]
        for phase in self.recipe.phases:
            if self._has_begun(phase, step):
                layout = dataclasses.replace(layout, **phase.layout)
        return layout

    def _ramp(self, phase: Phase, step: int, a: float, b: float) -> float:
        """Return the value of a line from a at the phase's first step, not after `step`, to b at the end of the run."""
        first = bisect_left(range(step + 1), True, key=lambda s: self._has_begun(phase, s))
        return float(np.interp(self.position(step).progress, (self.position(first).progress, 1.0), (a, b)))


def step_seed(seed: int, step: int, rank: int, micro: int) -> int:
    """Return the seed of all randomness in one micro-batch's forward and backward pass."""
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}/{micro}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")
