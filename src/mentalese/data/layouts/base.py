"""The base class of layouts: a section of a recipe with methods to pack, score and prompt text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from mentalese.data.rows import BOS, MARKER_NAMES, PAD, Rows, store_index
from mentalese.data.split import Split
from mentalese.errors import InputError, require
from mentalese.values import Positive, checked_dataclass

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from mentalese.data.batch import Batch
    from mentalese.data.config import DataConfig, EvaluationConfig
    from mentalese.data.prompts import PromptEncoder, TextRow


_BATCHES_SORTED_TOGETHER = 50
Scored = Literal["lexical", "all"] | None
"""The tokens with labels in a batch, see `EvaluationConfig.tokens`; `None`: the targets of training."""
KINDS: dict[str, type[Layout]] = {}
"""Every layout that has been imported, by kind: the built-in ones, and those that families bring."""


@checked_dataclass("layout")
class Layout(ABC):
    """The way from documents to rows for training and scoring, and from texts to prompts.

    A subclass is a `checked_dataclass("layout")` whose fields are the options `--layout.NAME` of its recipes; a family
    declares it in `Family.layouts`.

    Attributes:
        kind: the name in a saved recipe.
        changeable: fields that a phase may change.
        markers: sentences are between markers in the stream.
        sequential: a row of any length is read in full, sentence by sentence.
        plain: text is running text without markers, and documents may be joined.
        questions: documents are a question, steps and an answer, so that answers can be scored.
        beginning: the beginning of a text, in words.
        mark: text that is one token in rows; `mentalese grow` adds it to a tokenizer that divides it.
    """

    kind: ClassVar[str]
    changeable: ClassVar[tuple[str, ...]] = ()
    markers: ClassVar[bool] = False
    sequential: ClassVar[bool] = False
    plain: ClassVar[bool] = False
    questions: ClassVar[bool] = False
    beginning: ClassVar[str] = "after the beginning-of-text token"
    mark: ClassVar[str | None] = None

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

    def asked(self) -> dict[str, int | None]:
        """Return the stage and the latents of questions, for results; empty for texts."""
        return {}

    def at(self, stage: int | None, latents: int | None) -> Layout:
        """Return the layout at a stage, with a number of latents; raise `InputError` if it has neither."""
        for name, value in (("stage", stage), ("latents", latents)):
            require(value is None, name, value, f"the layout {self.kind!r} has no {name}; remove it")
        return self

    def special_ids(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
        """Return the ids of the markers that rows need, by their names in configs; raise `InputError` if one lacks."""
        from mentalese.data.tokenizers import special_token_ids

        return special_token_ids(tokenizer, sentences=self.markers)

    def fitting(self, split: Split) -> np.ndarray | None:
        """Return which documents are read, bool [documents]; `None`: all of them."""
        return None

    # -- rows ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def training_rows(self, split: Split, generator: np.random.Generator) -> Rows:
        """Return an epoch's rows; the generator draws all random choices."""

    @abstractmethod
    def pack(self, rows: Rows, split: Split, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return `order` and `bounds`, int64: batch i has rows `order[bounds[i]:bounds[i + 1]]`, the longest first."""

    @abstractmethod
    def evaluation_rows(self, split: Split, evaluation: EvaluationConfig) -> Rows:
        """Return rows of the documents that are scored, in which every lexical token is a target exactly once."""

    def question_rows(self, split: Split) -> Rows:
        """Return one row per document, up to where a model continues."""
        raise InputError(f"the layout {self.kind!r} has no questions: use a model trained on layout 'qa'")

    def answer_lengths(self, split: Split) -> np.ndarray:
        """Return the tokens of each record's steps and answer, including the end, int64 [documents]."""
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
        """Raise `InputError` if processes with this many micro-batches each cannot train on this split."""
        self.special_ids(tokenizer)

    # -- batches -------------------------------------------------------------------------------------------------------

    def assemble(
        self, split: Split, rows: Rows, tokenizer: PreTrainedTokenizerBase, scored: Scored = None, *, left: bool = False
    ) -> Batch:
        """Copy rows out of the store; `left`: padded on the left, so that they can be continued.

        Args:
            scored: the tokens with labels, see `EvaluationConfig.tokens`; `None`: the targets of training.

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
        chat: bool = False,
    ) -> Batch:
        """Encode prompts for a model of this layout to continue. A marker's name in a prompt is plain text.

        Args:
            data: the text of training, as `PromptEncoder` takes it.
            mask_token_id: the token that stands for a gap, if the model fills gaps.
            before: a text in front of each prompt, such as shots, that is not changed; `None`: nothing.
            chat: each prompt is a message of a user, in the tokenizer's chat template.

        Returns:
            `input_ids` and `attention_mask`, int64 [texts, length], padded on the left.

        Raises:
            InputError: a prompt is empty or not in Unicode, or has a mask that the layout does not allow.
        """
        from mentalese.data.prompts import PromptEncoder, check_prompts, pad_left

        special = self.special_ids(tokenizer)
        check_prompts(texts, whole_sentences=self.markers and mask_token_id is not None)
        encoder = PromptEncoder(tokenizer, data, mask_token_id)
        rows = []
        for text, first in zip(texts, before or [""] * len(texts), strict=True):
            if chat and not self.questions:
                rows.append(encoder.message(first + text).ids)
            else:
                rows.append(self.prompt_row(first + text, encoder.after(first) if self.questions else encoder).ids)
        return pad_left(rows, special["pad_token_id"])

    def prompt_row(self, text: str, encoder: PromptEncoder) -> TextRow:
        """Return a row of `encode_prompts`, after EOD as in training, or another project's beginning of a text."""
        from mentalese.data.prompts import TextRow

        start = TextRow.of_markers(self.special_ids(encoder.tokenizer)["bos_token_id"])
        return (encoder.beginning or start) + encoder.text(self.prompt_text(text))

    def chat_template(self, tokenizer: PreTrainedTokenizerBase) -> str | None:
        """Return the template of `tokenizer.apply_chat_template`, if a prompt is a message."""
        return None

    # -- the protocol --------------------------------------------------------------------------------------------------

    def window(self, evaluation: EvaluationConfig) -> tuple[int, int] | None:
        """Tokens that are read at once when a text is scored, and how many of them are new; `None`: all of a row."""
        return None

    @abstractmethod
    def protocol(self, evaluation: EvaluationConfig, data: DataConfig) -> dict[str, str | None]:
        """Return the entries that are published with a perplexity: `context`, `first_token` and `sentences`."""

    def check_evaluation(self, evaluation: EvaluationConfig) -> None:
        """Raise `InputError` for a protocol that this layout does not have."""
        kind, accuracy, joined = f"layout {self.kind!r}", evaluation.metric == "accuracy", evaluation.joined
        remedy = f"{kind} has no questions; use layout 'qa'"
        require(not accuracy or self.questions, "evaluation.metric", evaluation.metric, remedy)
        remedy = f"{kind} does not join documents; remove it, or use layout 'packed' or 'per_document'"
        require(not joined or self.plain, "evaluation.joined", joined, remedy)
        for name in ("context_length", "stride") if self.window(evaluation) is None else ():
            value = getattr(evaluation, name)
            require(value is None, f"evaluation.{name}", value, f"{kind} reads no windows; remove it")


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
        factors = f"{ranks} ranks times train.gradient_accumulation_steps {micro_batches}"
        remedy = f"set a multiple of {parts}, which is {factors}"
        require(self.batch_size % parts == 0, "layout.batch_size", self.batch_size, remedy)

    def pack(self, rows: Rows, split: Split, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Pack batches of `batch_size` rows of similar length; an incomplete last batch is left out this epoch.

        Rows are shuffled and sorted by length inside groups of 50 batches, then the batches are shuffled. So padding is
        rare, and each epoch has other batches. For rows of one length this is a shuffle.
        """
        size, batches = self.batch_size, len(rows) // self.batch_size
        remedy = f"the training split has only {len(rows)} rows of at most {self.sequence_length} tokens"
        require(batches > 0, "layout.batch_size", size, f"{remedy}; set a smaller batch or use more text")
        order = generator.permutation(len(rows))[: batches * size]
        group = np.arange(len(order)) // (_BATCHES_SORTED_TOGETHER * size)
        order = order[np.lexsort((-rows.lengths[order], group))].reshape(batches, size)
        return order[generator.permutation(batches)].reshape(-1), np.arange(batches + 1) * size
