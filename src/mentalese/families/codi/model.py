"""CODI on Coconut's passes, cache and generation; a map of two layers and a norm precedes each latent.

`plain.py` has the method. Only the training differs from Coconut's. A batch has pairs of rows, see `layout`: first all
teachers, then their students, both read in the same passes. Pairs are recognised by their tokens; all other rows are
trained without distillation.

Letters in shapes: R rows, H = R / 2 pairs, L tokens, d hidden size, M layers.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from mentalese.data.batch import Batch
from mentalese.families.coconut.model import CoconutEncoded, CoconutForCausalLM
from mentalese.families.codi.config import CodiConfig
from mentalese.models.base import LossOutput
from mentalese.models.hf import Limits
from mentalese.nn.loss import IGNORED


class CodiForCausalLM(CoconutForCausalLM):
    """A Hugging Face decoder whose latents learn from the steps that the same model writes."""

    config_class = CodiConfig
    steps_layout = "qa_pairs"
    about_thoughts = (
        "Hidden states that are fed back, through a small map, in place of tokens between a question and its answer. "
        "Only steps and answers are trained, so scores of the question mean little."
    )
    shown = {"retention": CoconutForCausalLM.shown["retention"]}  # noqa: RUF012 (nothing writes to it)

    def __init__(self, config: CodiConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.projection = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.LayerNorm(width)
        )
        self.post_init()

    @property
    def limits(self) -> Limits:
        inherited, loss = super().limits, "the weights of teachers and students, the distance between their states"
        return replace(inherited, loss=" and ".join(filter(None, (loss, inherited.loss))))

    def _thought(self, hidden: Tensor) -> Tensor:
        return self.projection(hidden)

    def _latent_weights(self) -> int:
        return 2 * self.config.hidden_size**2

    def target_weights(self, batch: Batch, **settings: object) -> Tensor:
        """Return weights [R, L] that sum to 1 over the targets of a row."""
        self.refuse(settings)
        targets = (self._targets(batch["labels"])[:, 1:] != IGNORED).sum(1).clamp(min=1)
        return (1 / targets)[:, None].expand(batch["labels"].shape)

    def training_loss(self, batch: Batch, **settings: object) -> LossOutput:
        """Return L_teacher + L_student + gamma L_KD (Eq. 5), means over questions of means over their targets.

        `metrics` holds `ntp`, the mean of the first two, and `distillation`.
        """
        gamma, weights = self.config.distillation_weight, self.target_weights(batch, **settings)
        encoded = self.encode(batch["input_ids"], batch.get("attention_mask"), output_hidden_states=gamma > 0)
        ntp, rows = self.next_token_loss(encoded.hidden, batch["labels"], weights)
        output = LossOutput(2 * ntp, rows, {"ntp": ntp.detach()}, encoded=lambda: encoded)  # a pair has two rows
        if encoded.hidden_states is not None:
            distance = self._distances(batch, encoded).sum() * 2 / rows.clamp(min=1)
            output.metrics["distillation"] = distance.detach()
            output.loss = output.loss + gamma * distance
            encoded.hidden_states = None  # frees copies that the backward pass does not need
        self._add_step_loss(output, batch, encoded)
        return self._all_trained(output)

    def _distances(self, batch: Batch, encoded: CoconutEncoded) -> Tensor:
        """Return the distances [H] of Eq. 4, means over layers of |sg(teacher) - student| / std; 0 without a pair."""
        ids = batch["input_ids"]
        real = self.real_tokens(ids, batch.get("attention_mask"))
        at, is_pair = distilled_tokens(ids, real, self.config.latent_token_id, self.config.space_token_id)
        assert encoded.hidden_states is not None
        rows, half = torch.arange(len(at), device=ids.device), len(is_pair)
        if not half:
            return encoded.hidden.new_zeros(0)
        states = torch.stack([level[rows, at] for level in encoded.hidden_states[1:]]).float()  # [M, 2 H, d]
        teacher, student = states[:, :half].detach(), states[:, half:]
        spread = teacher.std(-1).clamp(min=torch.finfo(torch.float32).tiny)
        distance = ((teacher - student).abs().mean(-1) / spread).mean(0)
        return torch.where(is_pair, distance, 0.0)


def distilled_tokens(ids: Tensor, real: Tensor, latent: int, space: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the columns of the tokens before the answers, int64 [2 H], and the rows that are pairs, bool [H].

    In a pair, row h has no latents, row H + h has latents, and both have the same question. The tokens after the end
    marker of the second row are also the end of the first row: `###`, the token `space` where it has one of its own,
    and the answer. Columns of other rows are arbitrary. Does not wait for a GPU.
    """
    half, length = len(ids) // 2, ids.shape[1]
    column = torch.arange(length, device=ids.device)
    first, tokens = real.long().argmax(1), real.sum(1)  # padding may be on the left
    ids = ids.gather(1, (column + first[:, None]).clamp(max=length - 1))
    is_latent = (ids == latent) & (column < tokens[:, None])
    teacher, student = slice(half), slice(half, 2 * half)
    question = torch.where(is_latent, column, length).amin(1)[student] - 1
    student_at = torch.where(is_latent, column, -1).amax(1)[student] + 2
    if space is not None:  # before it the next token is known, and the state there says nothing of the answer
        following = (student_at + 1).clamp(max=length - 1)
        student_at = student_at + (ids[student].gather(1, following[:, None])[:, 0] == space)
    teacher_at = tokens[teacher] - tokens[student] + student_at
    same = ((ids[teacher] == ids[student]) | (column >= question[:, None])).all(1)
    is_pair = is_latent[student].any(1) & ~is_latent[teacher].any(1) & same
    is_pair &= (student_at < tokens[student]) & (teacher_at >= question)
    at = torch.cat((teacher_at, student_at)).clamp(0, length - 1)
    answers = ids[: 2 * half].gather(1, at[:, None])[:, 0]
    is_pair &= answers[teacher] == answers[student]
    return (at + first[: 2 * half]).clamp(max=length - 1), is_pair
