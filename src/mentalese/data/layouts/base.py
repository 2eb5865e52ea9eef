"""The base class of layouts: a section of a recipe with methods to pack, score and prompt text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from mentalese.data.packing import pack_rows
from mentalese.data.rows import BOS, MARKER_NAMES, PAD, Rows, store_index
from mentalese.data.split import Split
from mentalese.errors import InputError
from mentalese.values import Positive, checked_dataclass

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from mentalese.data.batch import Batch
    from mentalese.data.config import DataConfig, EvaluationConfig
    from mentalese.data.prompts import PromptEncoder, TextRow


KINDS: dict[str, type[Layout]] = {}
"""Every layout that has been imported, by kind: the built-in ones, and those that families bring."""


@checked_dataclass("layout")
class Layout(ABC):
    """A layout: the way from documents to rows for training and scoring, and from texts to prompts.

    A subclass is a `checked_dataclass("layout")` whose fields are the options `--layout.NAME` of its recipes. It sets
    `kind` and implements `training_rows`, `evaluation_rows`, `pack` and `protocol`; everything else has a default. A
    family declares its layouts in `Family.layouts`.

    Attributes:
        kind: the name in a saved recipe.
        changeable: fields that a phase may change.
        markers: sentences are between markers in the stream.
        sequential: a row of any length is read in full, sentence by sentence.
        plain: text is running text without markers, and documents may be joined.
        questions: documents are a question, steps and an answer, so that answers can be scored.
        beginning: the beginning of a text, in words.
    """

    kind: ClassVar[str]
    changeable: ClassVar[tuple[str, ...]] = ()
    markers: ClassVar[bool] = False
    sequential: ClassVar[bool] = False
    plain: ClassVar[bool] = False
    questions: ClassVar[bool] = False
    beginning: ClassVar[str] = "after the beginning-of-text token"

    def __init_subclass__(cls) -> None:
        if (kind := cls.__dict__.get("kind")) is not None:
            other = KINDS.setdefault(kind, cls)
            if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                raise InputError(f"two packages declare the layout {kind!r}: uninstall or rename one")

    # -- settings ------------------------------------------------------------------------------------------------------

    @property
    def sequence_length(self) -> int | None:
        """Tokens per row at most; `None`: rows of any length."""
        return None

    @property
    def stage(self) -> int:
        """The stage of the curriculum, for layouts that have one."""
        return 0

    @property
    def has_latents(self) -> bool:
        """True if rows contain latents, or at least their markers."""
        return False

    def asked(self) -> dict[str, int | None]:
        """Return the stage and the latents of questions, as a result records them; empty for texts."""
        return {}

    def at(self, stage: int | None, latents: int | None) -> Layout:
        """Return the same layout at a stage, with a number of latents; `None` changes nothing.

        Raises:
            InputError: this layout has neither.
        """
        for name, value in (("stage", stage), ("latents", latents)):
            if value is not None:
                raise InputError(f"{name} is {value}: the layout {self.kind!r} has no {name}; remove it")
        return self

    def special_ids(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
        """Return the ids of the markers that rows need, by the names that model configs use.

        Raises:
            InputError: the tokenizer lacks one of them.
        """
        from mentalese.data.tokenizers import special_token_ids

        return special_token_ids(tokenizer, sentences=self.markers)

    def fitting(self, split: Split) -> np.ndarray | None:
        """Return a mask of the documents that training and evaluation read, bool [documents]; `None`: all of them."""
        return None

    # -- rows ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def training_rows(self, split: Split, generator: np.random.Generator) -> Rows:
        """Return an epoch's rows; the generator draws all random choices.

        Raises:
            InputError: the split has no row of this layout.
        """

    @abstractmethod
    def pack(self, rows: Rows, split: Split, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return an epoch's batches: `order` and `bounds`, see `mentalese.data.packing`.

        Raises:
            InputError: too few rows for one batch.
        """

    @abstractmethod
    def evaluation_rows(self, split: Split, evaluation: EvaluationConfig) -> Rows:
        """Rows of the split's first documents in which every lexical token is a target exactly once.

        Raises:
            InputError: the split or the protocol does not fit this layout.
        """

    def question_rows(self, split: Split, evaluation: EvaluationConfig) -> Rows:
        """One row per document, up to where a model continues.

        Raises:
            InputError: this layout has no questions.
        """
        raise InputError(f"the layout {self.kind!r} has no questions: use a model trained on layout 'qa'")

    def answer_lengths(self, split: Split) -> np.ndarray:
        """Return the tokens of each record's steps and answer, including the end, int64 [documents].

        A model that answers like the record writes as many.
        """
        parts = np.diff(split.document_segments)
        answers = split.documents[1:] - split.segments[split.document_segments[:-1] + 1]
        return answers + (2 * parts if self.markers else 0)

    def passes(self, rows: Rows) -> np.ndarray:
        """Sentence steps that each row takes, int64 [rows]."""
        return np.ones_like(rows.start)

    def without_steps(self, split: Split) -> int:
        """Questions that this layout reads for their steps, and that have none."""
        return 0

    def check(self, split: Split, tokenizer: PreTrainedTokenizerBase, ranks: int, micro_batches: int) -> None:
        """Raise `InputError` if a run cannot train on this split, found before it starts.

        Args:
            ranks: processes that share each batch.
            micro_batches: number of micro-batches of each process.
        """
        self.special_ids(tokenizer)

    # -- batches -------------------------------------------------------------------------------------------------------

    def assemble(
        self,
        split: Split,
        rows: Rows,
        tokenizer: PreTrainedTokenizerBase,
        scored: Literal["lexical", "all"] | None = None,
        *,
        left: bool = False,
    ) -> Batch:
        """Copy rows out of the store.

        Args:
            scored: the tokens with labels, see `EvaluationConfig.tokens`; `None`: the targets of training.
            left: pad on the left, so that the rows can be continued.

        Returns:
            `input_ids`, `labels` int64 [rows, length], `attention_mask` if rows are padded, and if `scored` the
            `store_index` of each label in `split.tokens`, -1 if it has none.
        """
        import torch

        from mentalese.nn.loss import IGNORED

        special = self.special_ids(tokenizer)
        column, lengths = np.arange(int(rows.lengths.max())), rows.lengths[:, None]
        real = column >= len(column) - lengths if left else column < lengths
        index = np.full(real.shape, PAD)
        index[real] = store_index(split, rows)
        markers = np.array([special.get(name, -1) for name in MARKER_NAMES])
        ids = np.where(index < 0, markers[np.minimum(index, -1)], split.tokens[np.maximum(index, 0)])
        context = rows.target - rows.start + (0 if rows.gap is None else rows.gap)
        labels = np.where(real & (column >= context[:, None]), ids, IGNORED)
        if scored or self.sequential:  # the start of a sentence is not predicted
            labels[index == BOS] = IGNORED
        if split.beginning:  # not predicted either
            document = np.searchsorted(split.documents, index, side="right") - 1
            labels[(index >= 0) & (index - split.documents[document] < split.beginning)] = IGNORED
        elif self.plain and special["bos_token_id"] != special["eos_token_id"]:
            # In the store a document follows the end of the previous one; a row begins with the beginning of a text.
            ids[:, 0] = np.where(ids[:, 0] == special["eos_token_id"], special["bos_token_id"], ids[:, 0])
        if scored == "lexical":
            labels[(index < 0) | (ids == special["eos_token_id"])] = IGNORED
        batch: Batch = {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}
        if scored:
            batch["store_index"] = torch.from_numpy(np.where(labels != IGNORED, index, -1))
        if not real.all():
            batch["attention_mask"] = torch.from_numpy(real.astype(np.int64))
        return batch

    # -- prompts -------------------------------------------------------------------------------------------------------

    def prompt_text(self, prompt: str) -> str:
        """Return a prompt as new text follows it."""
        return prompt

    def encode_prompts(
        self,
        texts: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        data: DataConfig,
        mask_token_id: int | None = None,
        *,
        before: Sequence[str] | None = None,
    ) -> Batch:
        """Encode prompts for a model of this layout to continue. A marker's name in a prompt is plain text.

        Args:
            data: states the sentence splitter.
            mask_token_id: replaces each `<|mask|>` in a prompt, with the spaces before it (they belong to its word);
                `None`: the mask is plain text.
            before: a text in front of each prompt, such as shots, that is not changed; `None`: nothing.

        Returns:
            `input_ids` and `attention_mask`, int64 [texts, length], padded on the left.

        Raises:
            InputError: a prompt is empty or not in Unicode, the layout does not allow masks, or the tokenizer lacks a
                marker.
        """
        from mentalese.data.prompts import PromptEncoder, check_prompts, pad_left

        special = self.special_ids(tokenizer)
        check_prompts(texts, whole_sentences=self.markers and mask_token_id is not None)
        encoder = PromptEncoder(tokenizer, data, mask_token_id)
        rows = []
        for text, first in zip(texts, before or [""] * len(texts), strict=True):
            rows.append(self.prompt_row(first + text, encoder.after(first) if self.questions else encoder).ids)
        return pad_left(rows, special["pad_token_id"])

    def prompt_row(self, text: str, encoder: PromptEncoder) -> TextRow:
        """Return a row of `encode_prompts`, which starts after EOD, as in training.

        For a model of another project it starts with that model's beginning of a text.
        """
        from mentalese.data.prompts import TextRow

        start = TextRow.of_markers(self.special_ids(encoder.tokenizer)["bos_token_id"])
        return (encoder.beginning or start) + encoder.text(self.prompt_text(text))

    def chat_template(self, tokenizer: PreTrainedTokenizerBase) -> str | None:
        """Return the template of `tokenizer.apply_chat_template`, for layouts of which a prompt is a message."""
        return None

    # -- the protocol --------------------------------------------------------------------------------------------------

    def window(self, evaluation: EvaluationConfig) -> tuple[int, int] | None:
        """Tokens that are read at once when a text is scored, and how many of them are new; `None`: all of a row.

        Raises:
            InputError: the two do not fit.
        """
        return None

    @abstractmethod
    def protocol(self, evaluation: EvaluationConfig, data: DataConfig) -> dict[str, Any]:
        """Return the entries that are published with a perplexity: `context`, `first_token` and `sentences`."""

    def check_evaluation(self, evaluation: EvaluationConfig) -> None:
        """Raise `InputError` for a protocol that this layout does not have."""
        if evaluation.metric == "accuracy" and not self.questions:
            raise InputError(f"evaluation.metric is 'accuracy': layout {self.kind!r} has no questions; use layout 'qa'")
        if evaluation.joined and not self.plain:
            raise InputError(
                f"evaluation.joined is True: layout {self.kind!r} does not join documents; remove it, or use layout "
                "'packed' or 'per_document'"
            )
        for name in ("context_length", "stride") if self.window(evaluation) is None else ():
            if (value := getattr(evaluation, name)) is not None:
                raise InputError(f"evaluation.{name} is {value}: layout {self.kind!r} reads no windows; remove it")


@checked_dataclass("layout")
class RowLayout(Layout):
    """Rows of at most `sequence_length` tokens, a fixed number of them per step.

    Attributes:
        sequence_length: tokens per row at most, markers included.
        batch_size: rows per optimiser step, over all ranks and micro-batches.
    """

    sequence_length: Annotated[Positive, Field(ge=2)] = 256
    batch_size: Positive = 16

    changeable: ClassVar[tuple[str, ...]] = ("sequence_length", "batch_size")

    def check(self, split: Split, tokenizer: PreTrainedTokenizerBase, ranks: int, micro_batches: int) -> None:
        super().check(split, tokenizer, ranks, micro_batches)
        parts = ranks * micro_batches
        if self.batch_size % parts:
            raise InputError(
                f"layout.batch_size is {self.batch_size}: set a multiple of {parts}, which is {ranks} ranks times "
                f"train.gradient_accumulation_steps {micro_batches}"
            )

    def pack(self, rows: Rows, split: Split, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        if len(rows) < self.batch_size:
            raise InputError(
                f"layout.batch_size is {self.batch_size}: the training split has only {len(rows)} rows of at most "
                f"{self.sequence_length} tokens; set a smaller batch or use more text"
            )
        return pack_rows(rows, self.batch_size, generator)
