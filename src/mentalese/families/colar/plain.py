"""CoLaR in one file: read this file first. It is a complete model with its loss, to train or to change.

Tan et al., "Think Silently, Think Fast: Dynamic Latent Compression of LLM Reasoning Chains", arXiv 2505.16552.

In training the written steps are cut into groups of c tokens, and the model reads one vector for each group: the sum of
the embeddings, divided by sqrt(c). It learns to predict the next vector with a second head. So it can go on thinking in
vectors, until its language head predicts the end of thinking. It reads c too, and a larger c means fewer latents.

The model reads one question at a time, without padding or cache, and reads everything again for every latent and every
new token. `model.py` computes the same, fast, for batches; tests compare outputs and gradients. Both have the same
`state_dict`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from mentalese.families.colar.config import ColarConfig
from mentalese.models.backbone import output_head_of


class Question(NamedTuple):
    """A question [q], its written steps [S] and its answer [A] with the end of the text, in tokens."""

    question: Tensor
    steps: Tensor
    answer: Tensor


class Colar(nn.Module):
    """A decoder with a second head, for the next latent."""

    def __init__(self, config: ColarConfig) -> None:
        super().__init__()
        assert config.latent_start_token_id is not None, "set the markers of latents"
        assert config.latent_end_token_id is not None, "set the markers of latents"
        assert config.latent_token_id is not None, "set the markers of latents"
        self.config = config
        self.start, self.end = config.latent_start_token_id, config.latent_end_token_id
        self.backbone = AutoModelForCausalLM.from_config(config.backbone_config, trust_remote_code=False)
        self.latent_head = LatentHead(config.hidden_size)
        self.speed = nn.Embedding(1, config.hidden_size)

    def loss(self, question: Question, factor: int) -> Tensor:
        """Return L_language + weight L_latent of a question whose steps are merged in groups of `factor`.

        Both are sums over what is predicted, divided by the same number: of latents, the end of thinking, and the
        answer's tokens.
        """
        groups = list(question.steps.split(factor)) if len(question.steps) else []
        latents = [self.merge(group) for group in groups]
        rest = torch.cat((torch.tensor([self.end]), question.answer))
        before = self.prompt(question.question, factor)
        states = self.read(torch.cat((before, *(latent[None] for latent in latents), self.embed(rest))))
        states = states[len(before) - 1 : -1]  # the first one predicts the first group
        log_p = output_head_of(self.backbone)(states).log_softmax(-1)
        # Any token of the group may be the label: the expectation of one drawn at random.
        language = -sum(log_p[n, group].mean() for n, group in enumerate(groups))
        language = language - sum(log_p[len(groups) + i, token] for i, token in enumerate(rest))
        latent = sum(self.latent_loss(state, target) for state, target in zip(states, latents))
        return (language + self.config.latent_weight * latent) / len(states)

    def latent_loss(self, state: Tensor, latent: Tensor) -> Tensor:
        """Return the loss of a state [hidden] that predicts a latent [hidden], a mean over channels.

        Distances are in units of the embeddings' root mean square. The target itself is not trained.
        """
        mean, log_std = self.latent_head(state)
        error = latent.detach() / self.scale() - mean
        if self.config.latent_loss == "nll":
            return (log_std + 0.5 * (error / log_std.exp()) ** 2).mean()
        # of a sample mean + std eps: E (error - std eps)^2 = error^2 + std^2; the entropy is log std and a constant
        return (error**2 + log_std.exp() ** 2 - self.config.entropy_weight * log_std).mean()

    @torch.no_grad()
    def answer(
        self, question: Tensor, factor: int, max_new_tokens: int, eos_token_id: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the latents [N, hidden], and the greedy answer [n] after the end of thinking, to a question [q].

        Thinking ends when its end is more likely than all tokens of steps together.
        """
        inputs, latents = self.prompt(question, factor), []
        for _ in range(self.config.max_latents):
            state = self.read(inputs)[-1]
            if self.words(state).softmax(-1)[self.end] > 0.5:
                break
            mean, log_std = self.latent_head(state)
            noise = self.config.latent_temperature * torch.randn_like(mean)
            latents.append(self.scale() * (mean + log_std.exp() * noise))
            inputs = torch.cat((inputs, latents[-1][None]))
        inputs, tokens = torch.cat((inputs, self.embed(torch.tensor([self.end])))), []
        for _ in range(max_new_tokens):
            tokens.append(self.words(self.read(inputs)[-1]).argmax())
            inputs = torch.cat((inputs, self.embed(tokens[-1][None])))
            if tokens[-1] == eos_token_id:
                break
        return torch.stack(latents) if latents else inputs[:0], torch.stack(tokens)

    def prompt(self, question: Tensor, factor: int) -> Tensor:
        """Return the vectors [q + 1, hidden] of a question and of the start of thinking, which has the factor."""
        start = self.embed(torch.tensor([self.start])) + math.log2(factor) * self.speed.weight
        return torch.cat((self.embed(question), start))

    def merge(self, group: Tensor) -> Tensor:
        """Return the vector [hidden] of a group of tokens [c]: a sum with the variance of one embedding."""
        return self.embed(group).sum(0) / math.sqrt(len(group))

    def scale(self) -> Tensor:
        """Return the root mean square of the embeddings."""
        return self.embed(torch.arange(self.config.vocab_size)).detach().square().mean().sqrt()

    def embed(self, tokens: Tensor) -> Tensor:
        return self.backbone.get_input_embeddings()(tokens)

    def words(self, state: Tensor) -> Tensor:
        """Return logits [vocabulary] after a state [hidden]; the markers of starts and latents are never written."""
        logits = output_head_of(self.backbone)(state)
        logits[[self.start, self.config.latent_token_id]] = -math.inf
        return logits

    def read(self, inputs: Tensor) -> Tensor:
        """Return the final hidden states [length, hidden] of vectors [length, hidden]."""
        return self.backbone.base_model(inputs_embeds=inputs[None], use_cache=False).last_hidden_state[0]


class LatentHead(nn.Module):
    """The second head: the mean and the log standard deviation of the next latent, in units of the embeddings'."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.mean, self.log_std = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        inner = self.body(state)
        return self.mean(inner), self.log_std(inner).clamp(min=-5)  # a certain latent would have any density
