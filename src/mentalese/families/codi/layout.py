"""Questions as pairs of rows: the teacher's with written steps, and the student's with latents in their place.

    teacher   question, all steps except the last, ### answer
    student   question, <start>, latents, <end>, ### answer

A batch has first the teachers' rows, then the students' rows in the same order. Both end in the same tokens, so that
the model finds the token before the answer, `###` or a space after it, in both. Scores and answers come from students.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from mentalese.data.layouts import Layout, QuestionAnswer, Scored
from mentalese.data.rows import Rows
from mentalese.errors import require
from mentalese.families.coconut.questions import StudentQuestions, sized, written_steps
from mentalese.values import Positive, checked_dataclass

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from mentalese.data.batch import Batch
    from mentalese.data.config import DataConfig, EvaluationConfig
    from mentalese.data.split import Split

MARK = "###"
"""The text before every answer, one token; the hidden states of the token before the answer are brought together."""


@checked_dataclass("layout")
class QuestionPairs(StudentQuestions):
    """Two rows per question: the teacher's with written steps, and the student's with latents.

    Attributes:
        latents: the number of latents in a student's row.
        last_step: the teacher's row has the last step too, whose result is the answer (the paper leaves it out).
    """

    latents: Positive = 6
    last_step: bool = False

    kind = "qa_pairs"
    mark = MARK

    @property
    def teacher(self) -> QuestionAnswer:
        """The layout with written steps."""
        return sized(QuestionAnswer, self)

    @property
    def student(self) -> QuestionAnswer:
        """The layout with latents instead of all steps."""
        return dataclasses.replace(self.teacher, stage=1, latents=self.latents)

    def at(self, stage: int | None, latents: int | None) -> Layout:
        """Return the teacher's layout at stage 0, which writes all steps; a student has no stage."""
        if stage == 0 and latents is None:
            return self.teacher
        require(stage is None, "stage", stage, "layout 'qa_pairs' has only stage 0, without latents; remove one")
        return self if latents is None else dataclasses.replace(self, latents=latents)

    def check(self, split: Split, tokenizer: PreTrainedTokenizerBase, ranks: int, micro_batches: int) -> None:
        super().check(split, tokenizer, ranks, micro_batches)
        self.teacher.check(split, tokenizer, ranks, micro_batches)
        opening = int(split.tokens[split.segments[split.document_segments[1] - 1]])
        first = str(tokenizer.decode([opening])).strip()
        remedy = (
            f"the tokenizer begins an answer with {first!r}, and CODI finds it by one token {MARK!r} before it; "
            "use a base from `mentalese grow`, or a data.tokenizer trained on the questions"
        )
        require(first == MARK, "layout", self.kind, remedy)

    def training_rows(self, split: Split, generator: np.random.Generator) -> Rows:
        """Return questions with all of their steps, from which `assemble` builds pairs."""
        return self.teacher.training_rows(split, generator)

    def assemble(
        self, split: Split, rows: Rows, tokenizer: PreTrainedTokenizerBase, scored: Scored = None, *, left: bool = False
    ) -> Batch:
        """Return, for training, the pairs of rows and the steps that the students' latents replace (`written_steps`).

        N latents replace all steps; SIM-CoT's release has N + 1 latents and leaves out the last step (README).
        """
        if scored is not None or left:
            return self.student.assemble(split, rows, tokenizer, scored, left=left)
        import torch

        ends = np.searchsorted(split.segments, rows.stop)
        answer = split.segments[ends - 1]
        steps_end = answer if self.last_step else np.maximum(split.segments[ends - 2], rows.target)
        gap = np.repeat((0, self.latents + 2), len(rows))
        target = np.concatenate((steps_end, rows.target))
        pairs = Rows(np.tile(rows.start, 2), target, np.tile(rows.stop, 2), rest=np.tile(answer, 2), gap=gap)
        batch = super().assemble(split, pairs, tokenizer)
        ids, questions = batch["input_ids"], torch.from_numpy(rows.target - rows.start)
        mask = batch.get("attention_mask", torch.ones_like(ids))
        is_step = (torch.arange(ids.shape[1]) >= questions[:, None]) & mask[: len(rows)].bool()
        batch["labels"][: len(rows)] = torch.where(is_step, ids[: len(rows)], batch["labels"][: len(rows)])
        batch |= {"attention_mask": mask, "question_lengths": questions.repeat(2)}
        return batch | written_steps(split, rows.target, answer, gap[len(rows) :] - 2, 1, first_row=len(rows))

    def protocol(self, evaluation: EvaluationConfig, data: DataConfig) -> dict[str, Any]:
        context = "whole records: the answer after the question and its latents"
        return super().protocol(evaluation, data) | {"context": context}
