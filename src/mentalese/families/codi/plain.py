"""CODI in one file: read this file first. It is a complete model with its loss, to train or to change.

Shen et al., "CODI: Compressing Chain-of-Thought into Continuous Space via Self-Distillation", arXiv 2502.21074, whose
equations are cited.

One model reads a question twice: as a teacher it writes the steps and the answer, as a student it thinks a few
continuous thoughts and writes only the answer. The student's hidden states at the token before the answer are drawn to
the teacher's. The model reads one row at a time, without padding or cache, and reads everything again for every thought
and every new token. `model.py` computes the same, fast, for batches; tests compare outputs and gradients. Both have the
same `state_dict`. SIM-CoT's loss of steps, which `model.py` adds, is in Coconut's file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from mentalese.families.codi.config import CodiConfig
from mentalese.models.backbone import output_head_of


class Pair(NamedTuple):
    """The two rows of a question.

    Attributes:
        teacher: [length], question, steps, `###`, answer.
        student: [length], question, start marker, latents, end marker, `###`, answer.
        question: number of tokens in the question.
        answer: number of tokens from `###` to the end.
    """

    teacher: Tensor
    student: Tensor
    question: int
    answer: int


class Codi(nn.Module):
    """A decoder whose latents learn from the steps that the same model writes."""

    def __init__(self, config: CodiConfig) -> None:
        super().__init__()
        width, self.config = config.hidden_size, config
        self.backbone = AutoModelForCausalLM.from_config(config.backbone_config, trust_remote_code=False)
        # maps the last hidden state to a thought (section 3.3)
        self.projection = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.LayerNorm(width)
        )

    def forward(self, row: Tensor) -> Tensor:
        """Return logits [length, vocabulary] of a row [length]."""
        return output_head_of(self.backbone)(self.states(row)[-1])

    def loss(self, pairs: Sequence[Pair]) -> Tensor:
        """Return L_teacher + L_student + gamma L_KD (Eq. 5 with alpha and beta 1), the mean over questions."""
        teacher, student, distance = torch.stack([torch.stack(self.pair_losses(pair)) for pair in pairs]).mean(0)
        return teacher + student + self.config.distillation_weight * distance

    def pair_losses(self, pair: Pair) -> tuple[Tensor, Tensor, Tensor]:
        """Return L_teacher (Eq. 1), L_student (Eq. 2) and L_KD (Eq. 4) of one question."""
        teacher, student = self.states(pair.teacher), self.states(pair.student)
        written = self._nll(teacher[-1], pair.teacher)[pair.question - 1 :].mean()
        answered = self._nll(student[-1], pair.student)[-pair.answer :].mean()
        # the token before the answer: `###`, or a space after it
        before = -pair.answer + int(pair.student[1 - pair.answer] == self.config.space_token_id)
        distances = []
        for layer_of_teacher, layer_of_student in zip(teacher, student):
            target = layer_of_teacher[before].detach()
            distances.append((target - layer_of_student[before]).abs().mean() / target.std())
        return written, answered, torch.stack(distances).mean()

    def states(self, row: Tensor) -> list[Tensor]:
        """Return the hidden states [length, hidden] of a row after each layer; the last ones include the final norm."""
        inputs: list[Tensor] = []
        embed, latent = self.backbone.get_input_embeddings(), self.config.latent_token_id
        if self.config.parallel_passes is not None:  # PCCoT, see Coconut
            inputs = [*embed(row)]
            for _ in range(self.config.parallel_passes):
                thoughts = self.projection(self._layers(inputs)[-1])
                inputs = [thoughts[i - 1] if token == latent else embed(token) for i, token in enumerate(row)]
            return self._layers(inputs)
        for token in row:
            if token == latent:
                inputs.append(self.projection(self._layers(inputs)[-1][-1]))
            else:
                inputs.append(embed(token))
        return self._layers(inputs)

    @torch.no_grad()
    def generate(self, row: Tensor, max_new_tokens: int, eos_token_id: int | None = None) -> Tensor:
        """Return the greedy continuation [n] of a question and its latents [length]."""
        ids = row
        for _ in range(max_new_tokens):
            token = self(ids)[-1].argmax()
            ids = torch.cat((ids, token[None]))
            if token == eos_token_id:
                break
        return ids[len(row) :]

    def _nll(self, hidden: Tensor, row: Tensor) -> Tensor:
        """Return the negative log-likelihood [length - 1] of each token except the first."""
        return F.cross_entropy(output_head_of(self.backbone)(hidden[:-1]), row[1:], reduction="none")

    def _layers(self, inputs: list[Tensor]) -> list[Tensor]:
        vectors = torch.stack(inputs)[None]
        output = self.backbone.base_model(inputs_embeds=vectors, use_cache=False, output_hidden_states=True)
        return [state[0] for state in output.hidden_states[1:]]
