"""Questions whose batches also contain the written steps that latents replace, for a step decoder (SIM-CoT).

`StudentQuestions` is the base of layouts that train on written steps in their own way, and ask like Coconut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mentalese.data.layouts import QuestionAnswer, QuestionRows, Scored
from mentalese.data.rows import Rows, ordinals
from mentalese.errors import require
from mentalese.values import checked_dataclass

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from mentalese.data.batch import Batch
    from mentalese.data.config import DataConfig, EvaluationConfig
    from mentalese.data.prompts import PromptEncoder, TextRow
    from mentalese.data.split import Split

Questions = TypeVar("Questions", bound=QuestionRows)


@checked_dataclass("layout")
class QuestionSteps(QuestionAnswer):
    """Layout `qa`, whose training batches also have the tensors of `written_steps`.

    Attributes:
        latents: the number of latents at every stage, one per step; `None`: it follows from `latents_per_step`.
    """

    kind = "qa_steps"

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "steps are predicted from latents; set at least 1, or use layout 'qa'"
        require(bool(self.latents or self.latents_per_step), "layout.latents_per_step", self.latents_per_step, remedy)
        remedy = "latents replace whole steps; set 'steps', or use layout 'qa'"
        require(self.removal != "tokens", "layout.removal", self.removal, remedy)

    def check(self, split: Split, tokenizer: PreTrainedTokenizerBase, ranks: int, micro_batches: int) -> None:
        super().check(split, tokenizer, ranks, micro_batches)
        require_steps(self.kind, split)

    def assemble(
        self, split: Split, rows: Rows, tokenizer: PreTrainedTokenizerBase, scored: Scored = None, *, left: bool = False
    ) -> Batch:
        """Return a batch of `qa`; in training it also has the steps."""
        batch = super().assemble(split, rows, tokenizer, scored, left=left)
        if scored is not None or left:
            return batch
        assert rows.rest is not None
        assert rows.gap is not None
        per_step = 1 if self.latents is not None else self.latents_per_step or 1
        return batch | written_steps(split, rows.target, rows.rest, rows.gap - 2, per_step)


class StudentQuestions(QuestionRows):
    """Rows of one question that are asked and scored as layout `qa` has them; a subclass lays out those for training.

    Attributes:
        latents: the number of latents in the place of all steps.
    """

    latents: int | None

    @property
    def student(self) -> QuestionAnswer:
        """The layout of questions."""
        raise NotImplementedError

    def asked(self) -> dict[str, int | None]:
        return {"stage": None, "latents": self.latents}

    def special_ids(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
        return self.student.special_ids(tokenizer)

    def fitting(self, split: Split) -> np.ndarray | None:
        return self.student.fitting(split)

    def check(self, split: Split, tokenizer: PreTrainedTokenizerBase, ranks: int, micro_batches: int) -> None:
        super().check(split, tokenizer, ranks, micro_batches)
        self.student.check(split, tokenizer, ranks, micro_batches)
        require_steps(self.kind, split)

    def without_steps(self, split: Split) -> int:
        return QuestionAnswer().without_steps(split)  # training has all steps

    def training_rows(self, split: Split, generator: np.random.Generator) -> Rows:
        return self.student.training_rows(split, generator)

    def evaluation_rows(self, split: Split, evaluation: EvaluationConfig) -> Rows:
        return self.student.evaluation_rows(split, evaluation)

    def question_rows(self, split: Split) -> Rows:
        return self.student.question_rows(split)

    def answer_lengths(self, split: Split) -> np.ndarray:
        return self.student.answer_lengths(split)

    def prompt_text(self, prompt: str) -> str:
        return self.student.prompt_text(prompt)

    def prompt_row(self, text: str, encoder: PromptEncoder) -> TextRow:
        return self.student.prompt_row(text, encoder)

    def chat_template(self, tokenizer: PreTrainedTokenizerBase) -> str:
        return self.student.chat_template(tokenizer)

    def protocol(self, evaluation: EvaluationConfig, data: DataConfig) -> dict[str, Any]:
        return self.student.protocol(evaluation, data)


def sized(kind: type[Questions], layout: QuestionRows, **fields: Any) -> Questions:
    """Return a layout of this kind with the sizes of another one, and with other fields."""
    names = ("sequence_length", "batch_size", "too_long")
    return kind(**{name: getattr(layout, name) for name in names}, **fields)


def require_steps(kind: str, split: Split) -> None:
    """Raise `InputError` if no question has steps, for a layout that needs them."""
    remedy = (
        f"it learns from written steps, and none of the {len(split.document_bytes):,} training questions has any; use "
        "questions with steps, or a recipe that learns from answers, such as coconut/tiny-no-cot"
    )
    require(bool((np.diff(split.document_segments) > 2).any()), "layout", kind, remedy)


def written_steps(
    split: Split, start: np.ndarray, stop: np.ndarray, latents: np.ndarray, per_step: int, first_row: int = 0
) -> Batch:
    """Return the steps that latents replace, in order; the last latents replace all remaining steps.

    Args:
        start, stop: [rows], the range of each row's steps in the store.
        latents: [rows], the number of latents in each row.
        per_step: c, the number of latents that replace one step.
        first_row: the number of the first row in its batch.

    Returns:
        `steps` int64 [M, S], their tokens, -100 after them; `step_rows` [M], the row of each; `step_latents` [M, c],
        the row's latents that replace it. M is 0 if no row has both steps and latents.
    """
    import torch

    from mentalese.nn.loss import IGNORED

    first, last = (np.searchsorted(split.segments, bound) for bound in (start, stop))
    counts = np.minimum(last - first, latents // per_step)
    row, number = np.repeat(np.arange(len(start)), counts), ordinals(counts)
    begin = split.segments[first[row] + number]
    end = np.where(number == counts[row] - 1, stop[row], split.segments[first[row] + number + 1])
    column, lengths = np.arange(int((end - begin).max(initial=0))), (end - begin)[:, None]
    index = np.minimum(begin[:, None] + column, len(split.tokens) - 1)
    steps = np.where(column < lengths, split.tokens[index].astype(np.int64), IGNORED)
    which = number[:, None] * per_step + np.arange(per_step)
    arrays = {"steps": steps, "step_rows": row + first_row, "step_latents": which}
    return {name: torch.from_numpy(values.astype(np.int64)) for name, values in arrays.items()}
