"""CODI in its plainest form: read this file first.

Shen et al., "CODI: Compressing Chain-of-Thought into Continuous Space via Self-Distillation", arXiv 2502.21074, whose
equations are cited.

One model reads a question twice: as a teacher it writes the steps and the answer, as a student it thinks a few
continuous thoughts and writes the answer alone. The student's hidden states at the token before the answer are drawn
to the teacher's. One row at a time, without padding or cache: everything is read again for every thought and every new
token. `model.py` computes the same, fast, and tests compare outputs and gradients.

Letters in shapes: L tokens, d hidden size, M layers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mentalese.families.codi.model import CodiForCausalLM


def thought(model: CodiForCausalLM, hidden: Tensor) -> Tensor:
    """The continuous thought [d] that is read after a last hidden state [d]: a two-layer map, then a norm (3.3)."""
    inner, _, outer, norm = model.projection
    inside = F.gelu(inner.weight @ hidden + inner.bias)  # type: ignore[operator]
    return norm(outer.weight @ inside + outer.bias)  # type: ignore[operator]


def states(model: CodiForCausalLM, row: Tensor) -> list[Tensor]:
    """Hidden states [L, d] of one row [L] after each of the M layers, the last after the final norm."""
    embed = model.get_input_embeddings()
    inputs: list[Tensor] = []
    for token in row:
        if token == model.config.latent_token_id:
            inputs.append(thought(model, _layers(model, inputs)[-1][-1]))
        else:
            inputs.append(embed(token))
    return _layers(model, inputs)


def pair_losses(
    model: CodiForCausalLM, teacher: Tensor, student: Tensor, question: int, answer: int
) -> tuple[Tensor, Tensor, Tensor]:
    """L_teacher (Eq. 1), L_student (Eq. 2) and L_KD (Eq. 4) of one question.

    Args:
        teacher: [L], question, steps, `###`, answer.
        student: [L], question, start of latents, latents, their end, `###`, answer.
        question: tokens of the question.
        answer: tokens from `###` on.
    """
    of_teacher, of_student = states(model, teacher), states(model, student)
    written = _nll(model, of_teacher[-1], teacher)[question - 1 :].mean()
    answered = _nll(model, of_student[-1], student)[-answer:].mean()
    distances = []
    for theirs, own in zip(of_teacher, of_student):
        target = theirs[-answer].detach()
        distances.append((target - own[-answer]).abs().mean() / target.std())
    return written, answered, torch.stack(distances).mean()


def loss(model: CodiForCausalLM, pairs: list[tuple[Tensor, Tensor, int, int]]) -> Tensor:
    """alpha L_teacher + beta L_student + gamma L_KD (Eq. 5), the mean over questions; arguments of `pair_losses`."""
    config, total = model.config, torch.zeros(())
    for pair in pairs:
        written, answered, distance = pair_losses(model, *pair)
        total = total + config.teacher_weight * written
        total = total + config.student_weight * answered
        total = total + config.distillation_weight * distance
    return total / len(pairs)


@torch.no_grad()
def generate(model: CodiForCausalLM, row: Tensor, max_new_tokens: int, eos_token_id: int | None) -> Tensor:
    """Greedy continuation [n] of one question with its latents, [L]."""
    ids = row
    for _ in range(max_new_tokens):
        token = model.get_output_embeddings()(states(model, ids)[-1][-1]).argmax()
        ids = torch.cat((ids, token[None]))
        if token == eos_token_id:
            break
    return ids[len(row) :]


def _nll(model: CodiForCausalLM, hidden: Tensor, row: Tensor) -> Tensor:
    """Of each token but the first, given those before it, [L - 1]."""
    return F.cross_entropy(model.get_output_embeddings()(hidden[:-1]), row[1:], reduction="none")


def _layers(model: CodiForCausalLM, inputs: list[Tensor]) -> list[Tensor]:
    vectors = torch.stack(inputs)[None]
    output = model.backbone.base_model(inputs_embeds=vectors, use_cache=False, output_hidden_states=True)
    return [state[0] for state in output.hidden_states[1:]]
