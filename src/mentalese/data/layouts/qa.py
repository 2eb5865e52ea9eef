"""Questions with their steps and answers, whose steps may be replaced by latents stage by stage."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

import numpy as np

from mentalese.data.documents import one_line
from mentalese.data.layouts.base import RowLayout, Scored
from mentalese.data.rows import Rows
from mentalese.data.split import Split
from mentalese.errors import InputError, require
from mentalese.values import NonNegative, PositiveNumber, Share, checked_dataclass

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from mentalese.data.batch import Batch
    from mentalese.data.config import DataConfig, EvaluationConfig
    from mentalese.data.prompts import PromptEncoder, TextRow


@checked_dataclass("layout")
class QuestionRows(RowLayout):
    """Rows of one question each.

    Attributes:
        sequence_length: the most tokens per row.
        batch_size: questions per optimiser step, over all ranks and micro-batches.
        too_long: the treatment of records longer than `sequence_length`: `error` refuses the run; `skip` leaves out, of
            every split, each record that is longer with all of its steps and the most latents, and reports their
            number.
    """

    too_long: Literal["error", "skip"] = "error"

    questions = True


@checked_dataclass("layout")
class QuestionAnswer(QuestionRows):
    """Rows of one question with its steps and its answer; the model predicts everything after the question.

    Attributes:
        stage: the number of first steps that are left out; above `stages`, all of them (Coconut's curriculum; phases
            raise it).
        stages: the last stage that keeps later steps.
        removal: the unit of a stage: `steps` (Coconut), or `tokens` of the steps (iCoT).
        removal_smoothing: iCoT's lambda: in training a question loses o more tokens with a probability proportional to
            exp(-lambda o); `None`: it loses no more.
        uniform_prob: the share of an epoch's questions that are read at a stage drawn from 0 to `stages`.
        latents_per_step: latents between markers after the question, times the stage (at most `stages`); `None`:
            neither latents nor markers.
        latents: the number of latents at every stage; `None`: it follows from `latents_per_step`.
    """

    stage: NonNegative = 0
    stages: NonNegative = 0
    removal: Literal["steps", "tokens"] = "steps"
    removal_smoothing: PositiveNumber | None = None
    uniform_prob: Share = 0.0
    latents_per_step: NonNegative | None = None
    latents: NonNegative | None = None

    kind = "qa"
    changeable = (*RowLayout.changeable, "stage", "latents", "uniform_prob")

    def __post_init__(self) -> None:
        tokens, smoothing, uniform = self.removal == "tokens", self.removal_smoothing, self.uniform_prob
        require(tokens or smoothing is None, "layout.removal_smoothing", smoothing, "it needs layout.removal 'tokens'")
        remedy = "it draws stages of layout.removal 'steps'"
        require(not (tokens and uniform), "layout.uniform_prob", uniform, remedy)

    @property
    def has_latents(self) -> bool:
        """True if rows contain latents, or at least their markers."""
        return self.latents is not None or self.latents_per_step is not None

    def latents_at(self, stage: int) -> int:
        """Latents of a question that is read at this stage."""
        return min(stage, self.stages) * (self.latents_per_step or 0) if self.latents is None else self.latents

    def asked(self) -> dict[str, int | None]:
        """Return the stage, and latents per question (`None`: not even their markers)."""
        return {"stage": self.stage, "latents": self.latents_at(self.stage) if self.has_latents else None}

    def at(self, stage: int | None, latents: int | None) -> QuestionAnswer:
        last = self.stages + 1
        require(stage is None or stage <= last, "stage", stage, f"set 0 to {last}, at which all steps are left out")
        layout = self if stage is None else dataclasses.replace(self, stage=stage)
        return layout if latents is None else dataclasses.replace(layout, latents=latents)

    def fitting(self, split: Split) -> np.ndarray | None:
        if self.too_long == "error":
            return None
        latents = max(self.latents_at(stage) for stage in {self.stage, self.stages}) + 2 if self.has_latents else 0
        return np.diff(split.documents) + latents <= self.sequence_length

    def special_ids(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
        special = super().special_ids(tokenizer)
        if self.has_latents and "latent_token_id" not in special:
            raise InputError(
                "layout asks for latents and the tokenizer has no tokens for them: "
                "add them with mentalese.data.tokenizers.add_markers(tokenizer, latents=True), or use `mentalese grow`"
            )
        return special

    def check(self, split: Split, tokenizer: PreTrainedTokenizerBase, ranks: int, micro_batches: int) -> None:
        super().check(split, tokenizer, ranks, micro_batches)
        for stage in range(self.stages + 1) if self.uniform_prob else (self.stage,):
            dataclasses.replace(self, stage=stage).rows(split)

    def training_rows(self, split: Split, generator: np.random.Generator) -> Rows:
        return self.rows(split, generator)

    def evaluation_rows(self, split: Split, evaluation: EvaluationConfig) -> Rows:
        return self.rows(split)

    def question_rows(self, split: Split) -> Rows:
        """Return questions and their latents. Steps are not read, so rows too long for training can be asked, too."""
        rows = self._rows(split)
        assert rows.rest is not None
        return dataclasses.replace(rows, stop=rows.rest)

    def without_steps(self, split: Split) -> int:
        return 0 if self.stage > self.stages else int((np.diff(split.document_segments) == 2).sum())

    def answer_lengths(self, split: Split) -> np.ndarray:
        """Without the steps that the stage leaves out."""
        rows = self._rows(split)
        assert rows.rest is not None
        return rows.stop - rows.rest

    def rows(self, split: Split, generator: np.random.Generator | None = None) -> Rows:
        """Return the documents at `stage`, one row each; the generator draws the random choices of training."""
        rows = self._rows(split, generator)
        longer, longest = int((rows.lengths > self.sequence_length).sum()), int(rows.lengths.max(initial=0))
        remedy = f"{longer} of {len(rows)} questions are longer; set at least {longest}"
        remedy += ", or layout.too_long=skip" if self.too_long == "error" else ", for the latents of all phases"
        require(longer == 0, "layout.sequence_length", self.sequence_length, remedy)
        return rows

    def _rows(self, split: Split, generator: np.random.Generator | None = None) -> Rows:
        """Return rows of documents whose first segment is the question and whose last one is the answer."""
        start, stop, documents = split.documents[:-1], split.documents[1:], len(split.document_bytes)
        first, last = split.document_segments[:-1], split.document_segments[1:] - 1
        target = split.segments[np.minimum(first + 1, last)]
        broken = int(((last == first) | (target == start)).sum())
        remedy = f"{broken} of {documents} documents lack a question or an answer; remove them, or use another layout"
        require(broken == 0, "layout", "qa", remedy)
        answer, stage = split.segments[last], np.full(documents, self.stage)
        if generator is not None and self.uniform_prob:
            random_stages = generator.integers(0, self.stages, documents, endpoint=True)
            stage = np.where(generator.random(documents) < self.uniform_prob, random_stages, stage)
        if self.removal == "tokens":
            removed = stage
            if generator is not None and self.removal_smoothing is not None:
                removed = stage + generator.geometric(1 - np.exp(-self.removal_smoothing), documents) - 1
            rest = np.minimum(target + removed, answer)
        else:
            rest = split.segments[np.minimum(first + 1 + stage, last)]
        rest = np.where(stage > self.stages, answer, rest)
        latents = np.array([self.latents_at(number) for number in range(max(self.stage, self.stages) + 1)])
        gap = latents[stage] + 2 if self.has_latents else np.zeros_like(start)
        return Rows(start, target, stop, rest=rest, gap=gap)

    def assemble(
        self, split: Split, rows: Rows, tokenizer: PreTrainedTokenizerBase, scored: Scored = None, *, left: bool = False
    ) -> Batch:
        """Return the batch of every layout, with `question_lengths` int64 [rows]."""
        import torch

        batch = super().assemble(split, rows, tokenizer, scored, left=left)
        return batch | {"question_lengths": torch.from_numpy(rows.target - rows.start)}

    def prompt_text(self, prompt: str) -> str:
        """Return a question as it is in a record, on one line without white space around it."""
        return f"{one_line(prompt)}\n"

    def _latents(self, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Return the latents of a question between their markers, if there are any."""
        if not self.has_latents:
            return []
        from mentalese.data.tokenizers import LATENT_MARKERS

        first, latent, last = (self.special_ids(tokenizer)[name] for name in LATENT_MARKERS)
        return [first, *[latent] * self.latents_at(self.stage), last]

    def prompt_row(self, text: str, encoder: PromptEncoder) -> TextRow:
        from mentalese.data.prompts import TextRow

        return encoder.question(text) + TextRow.of_markers(*self._latents(encoder.tokenizer))

    def chat_template(self, tokenizer: PreTrainedTokenizerBase) -> str:
        """Return a question from the user, the latents, and the assistant's steps and answer, as in training.

        Around the chat template of a base, latents begin each turn of the assistant.
        """
        from mentalese.data.tokenizers import base_chat_template, beginning
        from mentalese.html import TEMPLATES

        base = base_chat_template(tokenizer)
        parts = {
            "BEGINNING": beginning(tokenizer),
            "LATENTS": self._latents(tokenizer),
            "END": [self.special_ids(tokenizer)["eos_token_id"]],
        }
        texts = [(TEMPLATES / "chat.j2").read_text(encoding="utf-8")]
        if base is not None:
            texts = (TEMPLATES / "chat_with_latents.j2").read_text(encoding="utf-8").removesuffix("\n").split("CHAT")
        for name, ids in parts.items():
            texts = [text.replace(name, "".join(tokenizer.convert_ids_to_tokens(ids))) for text in texts]
        return (base or "").join(texts)

    def protocol(self, evaluation: EvaluationConfig, data: DataConfig) -> dict[str, str | None]:
        return {
            "context": "whole records: steps and answer after the question",
            "first_token": "the first token after the question is scored given the question",
            "sentences": None,
        }
