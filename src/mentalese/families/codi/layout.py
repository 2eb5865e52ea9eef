"""Questions as pairs of rows: one with written steps, the teacher's, and one with latents in their place.

    teacher   question, steps but the last, ### answer
    student   question, <start>, latents, <end>, ### answer

A batch has the teachers' rows first, then the students' in the same order. Both end in the same tokens, so that the
model finds the token before the answer, `###`, in both. Whatever is scored or asked is a student.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mentalese.data.layouts import Layout, QuestionAnswer, RowLayout
from mentalese.data.rows import Rows
from mentalese.errors import InputError, require
from mentalese.families.coconut.questions import no_steps, written_steps

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from mentalese.data.batch import Batch
    from mentalese.data.config import DataConfig, EvaluationConfig
    from mentalese.data.prompts import PromptEncoder, TextRow
    from mentalese.data.split import Split

MARK = "###"
"""What comes before every answer; its token is the one whose hidden states are brought together."""


@dataclass(frozen=True, kw_only=True)
class QuestionPairs(RowLayout):
    """Two rows per question: the teacher's with written steps, and the student's with latents.

    Attributes:
        sequence_length: the most tokens per row.
        batch_size: questions per optimiser step, over all ranks and micro-batches.
        latents: the number of latents in a student's row.
        last_step: the teacher's row has the last step too, whose result is the answer (the paper leaves it out).
        too_long: what happens to records longer than `sequence_length`: `error` refuses the run; `skip` leaves out, of
            every split, each record that is longer with all of its steps and the latents, and reports their number.
    """

    latents: int = 6
    last_step: bool = False
    too_long: Literal["error", "skip"] = "error"

    kind = "qa_pairs"
    questions = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.latents >= 1, "layout.latents", self.latents, "set at least 1")
        require(self.too_long in ("error", "skip"), "layout.too_long", self.too_long, "set error or skip")

    @property
    def teacher(self) -> QuestionAnswer:
        """Written steps."""
        return QuestionAnswer(sequence_length=self.sequence_length, batch_size=self.batch_size, too_long=self.too_long)

    @property
    def student(self) -> QuestionAnswer:
        """Latents instead of all steps."""
        return dataclasses.replace(self.teacher, stage=1, latents=self.latents)

    # -- settings ------------------------------------------------------------------------------------------------------

    @property
    def has_latents(self) -> bool:
        return True

    def asked(self) -> dict[str, int | None]:
        return {"stage": None, "latents": self.latents}

    def at(self, stage: int | None, latents: int | None) -> Layout:
        """Stage 0 is the teacher, who writes steps; a student has no stage."""
        if stage == 0 and latents is None:
            return self.teacher
        if stage is not None:
            raise InputError(
                f"stage is {stage} and latents is {latents}: layout 'qa_pairs' has stage 0 alone, steps without "
                "latents; remove one"
            )
        return self if latents is None else dataclasses.replace(self, latents=latents)

    def special_ids(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
        return self.student.special_ids(tokenizer)

    def fitting(self, split: Split) -> np.ndarray | None:
        return self.student.fitting(split)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def check(self, split: Split, tokenizer: PreTrainedTokenizerBase, ranks: int, micro_batches: int) -> None:
        super().check(split, tokenizer, ranks, micro_batches)
        for layout in (self.teacher, self.student):
            layout.check(split, tokenizer, ranks, micro_batches)
        if self.without_steps(split) == len(split.document_bytes):
            raise no_steps(self.kind, split)
        first = tokenizer.decode([int(split.tokens[split.segments[split.document_segments[1] - 1]])]).strip()
        if first != MARK:
            raise InputError(
                f"layout is 'qa_pairs': the tokenizer begins an answer with {first!r}, and CODI distils the state of "
                f"one token {MARK!r} before it; use a data.tokenizer that has it, such as one trained on the questions"
            )

    def without_steps(self, split: Split) -> int:
        return self.teacher.without_steps(split)

    def training_rows(self, split: Split, generator: np.random.Generator) -> Rows:
        """A question with all of its steps each; `assemble` makes the pair of it."""
        return self.teacher.training_rows(split, generator)

    def evaluation_rows(self, split: Split, evaluation: EvaluationConfig) -> Rows:
        return self.student.evaluation_rows(split, evaluation)

    def question_rows(self, split: Split, evaluation: EvaluationConfig) -> Rows:
        return self.student.question_rows(split, evaluation)

    def answer_lengths(self, split: Split) -> np.ndarray:
        return self.student.answer_lengths(split)

    def assemble(
        self,
        split: Split,
        rows: Rows,
        tokenizer: PreTrainedTokenizerBase,
        scored: Literal["lexical", "all"] | None = None,
        *,
        left: bool = False,
    ) -> Batch:
        """To train on: the pairs of rows, and the steps that the students' latents stand for (`written_steps`).

        All steps are explained, by N latents; SIM-CoT's release has N + 1 and leaves the last step out (README).
        """
        if scored is not None or left:
            return self.student.assemble(split, rows, tokenizer, scored, left=left)
        import torch

        from mentalese.nn.loss import IGNORED

        ends = np.searchsorted(split.segments, rows.stop)
        answer = split.segments[ends - 1]
        kept = answer if self.last_step else np.maximum(split.segments[ends - 2], rows.target)
        gap = np.full_like(answer, self.latents + 2)
        students = self.student.assemble(split, dataclasses.replace(rows, rest=answer, gap=gap), tokenizer)
        written = dataclasses.replace(rows, target=kept, rest=answer, gap=np.zeros_like(answer))
        teachers = self.teacher.assemble(split, written, tokenizer)
        teachers["question_lengths"] = students["question_lengths"]
        ids, column = teachers["input_ids"], torch.arange(teachers["input_ids"].shape[1])
        is_target = (column >= teachers["question_lengths"][:, None]) & _mask(teachers).bool()
        teachers["labels"] = ids.where(is_target, IGNORED)  # the steps too
        width = max(ids.shape[1], students["input_ids"].shape[1])
        pad = self.special_ids(tokenizer)["pad_token_id"]
        batch: Batch = {
            "input_ids": torch.cat([_wider(part["input_ids"], width, pad) for part in (teachers, students)]),
            "labels": torch.cat([_wider(part["labels"], width, IGNORED) for part in (teachers, students)]),
            "attention_mask": torch.cat([_wider(_mask(part), width, 0) for part in (teachers, students)]),
            "question_lengths": teachers["question_lengths"].repeat(2),
        }
        return batch | written_steps(split, rows.target, answer, gap - 2, 1, first_row=len(rows))

    # -- prompts -------------------------------------------------------------------------------------------------------

    def prompt_text(self, prompt: str) -> str:
        return self.student.prompt_text(prompt)

    def prompt_row(self, text: str, encoder: PromptEncoder) -> TextRow:
        return self.student.prompt_row(text, encoder)

    def chat_template(self, tokenizer: PreTrainedTokenizerBase) -> str | None:
        return self.student.chat_template(tokenizer)

    def protocol(self, evaluation: EvaluationConfig, data: DataConfig) -> dict[str, Any]:
        return self.student.protocol(evaluation, data) | {
            "context": "whole records: the answer after the question and its latents"
        }


def _mask(batch: Batch) -> Any:
    """int64 [rows, length], 1 where a batch has tokens."""
    import torch

    return batch.get("attention_mask", torch.ones_like(batch["input_ids"]))


def _wider(tensor: Any, width: int, fill: int) -> Any:
    """Rows [rows, length] padded with `fill` to a width."""
    import torch

    return torch.nn.functional.pad(tensor, (0, width - tensor.shape[1]), value=fill)
