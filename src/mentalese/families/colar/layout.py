"""Questions whose written steps are between the markers of latents; the model merges them, or thinks in their place.

    training, scores      question, <start>, steps, <end>, ### answer
    questions             question, <start>
    if `latents` is set   question, <start>, latents, <end>

After a question the model makes its latents and ends them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from mentalese.data.layouts import Layout, QuestionAnswer, Scored
from mentalese.data.rows import Rows
from mentalese.errors import require
from mentalese.families.coconut.questions import StudentQuestions, sized
from mentalese.values import NonNegative, checked_dataclass

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from mentalese.data.batch import Batch
    from mentalese.data.prompts import PromptEncoder, TextRow
    from mentalese.data.split import Split


@checked_dataclass("layout")
class CompressedSteps(StudentQuestions):
    """Rows of one question with its steps between markers and its answer; everything after `<start>` is predicted.

    `sequence_length` counts tokens before they are merged.

    Attributes:
        latents: the number of latents of questions and scores (`--latents`); `None`: the model ends thinking, and
            scores read the written steps. Training has `None`.
    """

    latents: NonNegative | None = None

    kind = "qa_compressed"

    @property
    def student(self) -> QuestionAnswer:
        """The layout whose rows have `<start>`, latents and `<end>` in front of the steps, or instead of them."""
        return sized(QuestionAnswer, self, stage=0 if self.latents is None else 1, latents=self.latents or 0)

    def at(self, stage: int | None, latents: int | None) -> Layout:
        require(stage is None, "stage", stage, "layout 'qa_compressed' has no stage; remove it")
        return self if latents is None else dataclasses.replace(self, latents=latents)

    def check(self, split: Split, tokenizer: PreTrainedTokenizerBase, ranks: int, micro_batches: int) -> None:
        remedy = "training merges written steps; remove it, and ask with --latents"
        require(self.latents is None, "layout.latents", self.latents, remedy)
        super().check(split, tokenizer, ranks, micro_batches)

    def answer_lengths(self, split: Split) -> np.ndarray:
        """With the end of thinking."""
        return super().answer_lengths(split) + 1

    def assemble(
        self, split: Split, rows: Rows, tokenizer: PreTrainedTokenizerBase, scored: Scored = None, *, left: bool = False
    ) -> Batch:
        """Return the batch of every layout; in training the end of thinking has a label too."""
        import torch

        batch = super().assemble(split, rows, tokenizer, scored, left=left)
        if left:  # questions, whose last column is <end>
            return batch if self.latents is not None else {name: values[:, :-1] for name, values in batch.items()}
        assert rows.rest is not None
        assert rows.gap is not None
        steps = split.segments[np.searchsorted(split.segments, rows.stop) - 1] - rows.rest
        first = rows.target - rows.start + rows.gap - 1  # the column of <end>, which moves behind the steps
        column, first, last = np.arange(batch["input_ids"].shape[1]), first[:, None], (first + steps)[:, None]
        source = np.where(column == last, first, column + ((column >= first) & (column < last)))
        batch = {name: values.gather(1, torch.from_numpy(source)) for name, values in batch.items()}
        if scored is None:
            is_end = torch.from_numpy(column == last)
            batch["labels"] = torch.where(is_end, batch["input_ids"], batch["labels"])
        return batch

    def prompt_row(self, text: str, encoder: PromptEncoder) -> TextRow:
        row = super().prompt_row(text, encoder)
        return row if self.latents is not None else row[:-1]

    def chat_template(self, tokenizer: PreTrainedTokenizerBase) -> str:
        """Return the template of questions; the question that is asked last ends in `<start>`, as in `prompt_row`."""
        from mentalese.data.tokenizers import LATENT_MARKERS

        template = super().chat_template(tokenizer)
        before, _, after = template.rpartition(LATENT_MARKERS["latent_end_token_id"])
        return template if self.latents is not None else before + after
