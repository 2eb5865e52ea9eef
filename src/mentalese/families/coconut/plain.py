"""Coconut and AGCLR in one file: read this file first. It is a complete model with its loss, to train or to change.

Hao et al., "Training Large Language Models to Reason in a Continuous Latent Space", arXiv 2412.06769; Farhan and
Chaudhary, "Why Limit the Residual Stream to Layers and Not Tokens?" (AGCLR), arXiv 2606.07720, whose equations are
cited; with a step decoder, Wei et al., "SIM-CoT: Supervised Implicit Chain-of-Thought", arXiv 2509.20317; with latents
in parallel, Wu et al., "Parallel Continuous Chain-of-Thought with Jacobi Iteration" (PCCoT), arXiv 2506.18582.

A latent position reads no token. Its input is the last hidden state at the position before it; in AGCLR three gates
mix that state with a memory. The model reads one row at a time, without padding or cache, and reads everything again
for every latent and every new token. `model.py` computes the same, fast, for batches; tests compare outputs and
gradients. Both have the same `state_dict`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM

from mentalese.families.coconut.config import GATES, CoconutConfig
from mentalese.models.backbone import output_head_of


class Coconut(nn.Module):
    """A decoder (`backbone`) whose latent positions read hidden states."""

    def __init__(self, config: CoconutConfig) -> None:
        super().__init__()
        assert config.latent_token_id is not None, "set the token of a latent"
        self.config, self.latent = config, config.latent_token_id
        self.backbone = AutoModelForCausalLM.from_config(config.backbone_config, trust_remote_code=False)
        self.concept_stream = ConceptStream(config) if config.mode == "agclr" else None
        self.step_decoder = StepDecoder(config) if config.step_decoder_layers else None

    def forward(self, row: Tensor) -> Tensor:
        """Return logits [length, vocabulary] of a row [length]."""
        return output_head_of(self.backbone)(self.hidden_states(row))

    def loss(self, row: Tensor, question: int, steps: Sequence[Tensor] = (), latents_per_step: int = 1) -> Tensor:
        """Return the mean cross-entropy of a row [length] after its question; latents and markers are never targets.

        Args:
            row: question, start marker, latents, end marker, remaining steps, answer.
            question: number of tokens in the question.
            steps: the written steps that latents replace; only for a model with a step decoder (L_step, SIM-CoT). The
                last latents predict all steps that are left.
            latents_per_step: c, the number of latents that replace one step.
        """
        config = self.config
        markers = [config.latent_start_token_id, config.latent_end_token_id]
        given = torch.tensor([self.latent, *(token for token in markers if token is not None)])
        targets = row.masked_fill(torch.isin(row, given), -100)[1:]
        loss = F.cross_entropy(self(row)[question - 1 : -1], targets[question - 1 :])
        groups = min(len(steps), int((row == self.latent).sum()) // latents_per_step)
        if groups:
            replaced = [*steps[: groups - 1], torch.cat([*steps[groups - 1 :]])]
            loss = loss + config.step_weight * self.step_nll(row, replaced, latents_per_step).mean()
        return loss

    def hidden_states(self, row: Tensor) -> Tensor:
        """Return the final hidden states [length, hidden] of a row [length]."""
        return self._read(self.read_vectors(row))

    def read_vectors(self, row: Tensor) -> list[Tensor]:
        """Return the decoder's input at each position of a row [length], as a list of vectors [hidden]."""
        inputs: list[Tensor] = []
        embed = self.backbone.get_input_embeddings()
        if self.config.parallel_passes is not None:  # PCCoT: every latent again, from the states of the pass before
            inputs = [*embed(row)]
            for _ in range(self.config.parallel_passes):
                states = self._read(inputs)
                inputs = [states[i - 1] if token == self.latent else embed(token) for i, token in enumerate(row)]
            return inputs
        memory, latents = torch.zeros(self.config.hidden_size), 0
        for token in row:
            if token != self.latent or self.config.mode == "pause":
                inputs.append(embed(token))
                continue
            hidden = self._read(inputs)[-1]
            if self.concept_stream is not None:
                hidden, memory = self.concept_stream(hidden, memory, latents)
            inputs.append(hidden)
            latents += 1
        return inputs

    def step_nll(self, row: Tensor, steps: Sequence[Tensor], latents_per_step: int) -> Tensor:
        """Return the negative log-likelihood of each token of a row's steps (SIM-CoT).

        The step decoder reads the latents that replace a step, then the step's tokens before the predicted one.
        """
        assert self.step_decoder is not None
        embed, head = self.backbone.get_input_embeddings(), output_head_of(self.backbone)
        latents = [v for v, token in zip(self.read_vectors(row), row) if token == self.latent]
        nll = []
        for number, step in enumerate(steps):
            inputs = latents[number * latents_per_step : (number + 1) * latents_per_step]
            for token in step:
                nll.append(-head(self.step_decoder(inputs)).log_softmax(-1)[token])
                inputs = [*inputs, embed(token)]
        return torch.stack(nll)

    @torch.no_grad()
    def generate(self, row: Tensor, max_new_tokens: int, eos_token_id: int | None = None) -> Tensor:
        """Return the greedy continuation [n] of a prompt [length], without a cache, as the authors' release decodes."""
        ids = row
        for _ in range(max_new_tokens):
            token = self(ids)[-1].argmax()
            ids = torch.cat((ids, token[None]))
            if token == eos_token_id:
                break
        return ids[len(row) :]

    def _read(self, inputs: list[Tensor]) -> Tensor:
        output = self.backbone.base_model(inputs_embeds=torch.stack(inputs)[None], use_cache=False)
        return output.last_hidden_state[0]


class ConceptStream(nn.Module):
    """AGCLR's memory (Eq. 1 to 4): gates read the memory, forget parts of the state, and write the state back."""

    def __init__(self, config: CoconutConfig) -> None:
        super().__init__()
        width, self.write_passes = config.hidden_size, config.write_passes
        self.norm, self.memory_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.gates = nn.ModuleDict()
        for name, bias in zip(GATES, config.gate_biases):
            if name in config.gates:
                self.gates[name] = gate = nn.Linear(width, width)
                nn.init.zeros_(gate.weight)  # appendix A.3
                nn.init.constant_(gate.bias, bias)

    def forward(self, hidden: Tensor, memory: Tensor, latents: int) -> tuple[Tensor, Tensor]:
        """Return the gated state h' and the new memory c, [hidden] each, from a state h and the previous memory.

        Args:
            latents: the number of latents before this one; after `write_passes` latents the memory no longer changes
                (appendix A.1).
        """
        normed = self.norm(hidden)
        read, forget, write = (
            torch.sigmoid(self.gates[name](normed)) if name in self.gates else torch.zeros_like(hidden)
            for name in GATES
        )
        gated = (1 - forget) * hidden + read * memory
        if self.write_passes is not None and latents >= self.write_passes:
            return gated, memory
        return gated, self.memory_norm(memory + write * gated)


class StepDecoder(nn.Module):
    """SIM-CoT's second decoder, which shares the model's embeddings and head and runs only in training."""

    def __init__(self, config: CoconutConfig) -> None:
        super().__init__()
        inner = config.backbone_config
        inner.num_hidden_layers = config.step_decoder_layers
        self.body = AutoModel.from_config(inner, trust_remote_code=False)
        self.body.set_input_embeddings(nn.Identity())

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Return the final hidden state [hidden] at the last of some input vectors [hidden]."""
        return self.body(inputs_embeds=torch.stack(inputs)[None], use_cache=False).last_hidden_state[0, -1]
