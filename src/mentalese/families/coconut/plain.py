"""Coconut and AGCLR in their plainest form: read this file first.

Hao et al., "Training Large Language Models to Reason in a Continuous Latent Space", arXiv 2412.06769; Farhan and
Chaudhary, "Why Limit the Residual Stream to Layers and Not Tokens?" (AGCLR), arXiv 2606.07720, whose equations are
cited.

A latent position reads no token. Its input is the last hidden state at the position before it; in AGCLR three gates
mix that state with a memory. One row at a time, without padding or cache: everything is read again for every latent and
every new token. `model.py` computes the same, fast, and tests compare outputs and gradients.

Letters in shapes: L tokens, d hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mentalese.families.coconut.model import CoconutForCausalLM


def hidden_states(model: CoconutForCausalLM, input_ids: Tensor) -> Tensor:
    """Final hidden states [L, d] of one row [L] without padding."""
    return _read(model, read_vectors(model, input_ids))


def read_vectors(model: CoconutForCausalLM, input_ids: Tensor) -> list[Tensor]:
    """What the decoder reads at each position of one row [L]: L vectors [d]."""
    config, embed = model.config, model.get_input_embeddings()
    inputs: list[Tensor] = []
    memory = torch.zeros(config.hidden_size)
    latents = 0
    for token in input_ids:
        if token != config.latent_token_id or config.mode == "pause":
            inputs.append(embed(token))
            continue
        hidden = _read(model, inputs)[-1]
        if config.mode == "agclr":
            hidden, memory = concept_stream(model, hidden, memory, latents)
        inputs.append(hidden)
        latents += 1
    return inputs


def concept_stream(model: Any, hidden: Tensor, memory: Tensor, latents: int) -> tuple[Tensor, Tensor]:
    """Eq. 1 to 4 for one latent: h' and c, all [d]; `latents` are those before it."""
    stream, config = model.concept_stream, model.config
    normed = stream.norm(hidden)

    def gate(name: str) -> Tensor:
        if name not in config.gates:
            return torch.zeros_like(hidden)
        layer = stream.gates[name]
        return torch.sigmoid(layer.weight @ normed + layer.bias)

    gated = (1 - gate("forget")) * hidden + gate("read") * memory
    if config.write_passes is not None and latents >= config.write_passes:
        return gated, memory
    return gated, stream.memory_norm(memory + gate("write") * gated)


def step_nll(model: CoconutForCausalLM, input_ids: Tensor, steps: list[Tensor], per_step: int) -> Tensor:
    """SIM-CoT: the negative log-likelihood of each token of one row's steps, one after the other.

    The step decoder reads the latents that stand for a step, then the tokens of the step before the one that it says.
    """
    decoder, embed = model.step_decoder, model.get_input_embeddings()
    assert decoder is not None
    read = read_vectors(model, input_ids)
    latents = [vector for vector, token in zip(read, input_ids) if token == model.config.latent_token_id]
    said = []
    for number, step in enumerate(steps):
        inputs = latents[number * per_step : (number + 1) * per_step]
        for token in step:
            states = decoder.body(inputs_embeds=torch.stack(inputs)[None], use_cache=False).last_hidden_state
            said.append(-model.get_output_embeddings()(states[0, -1]).log_softmax(-1)[token])
            inputs = [*inputs, embed(token)]
    return torch.stack(said)


@torch.no_grad()
def generate(model: CoconutForCausalLM, input_ids: Tensor, max_new_tokens: int, eos_token_id: int | None) -> Tensor:
    """Greedy continuation [n] of one prompt [L], without a cache, as the authors' release decodes."""
    ids = input_ids
    for _ in range(max_new_tokens):
        token = model.get_output_embeddings()(hidden_states(model, ids)[-1]).argmax()
        ids = torch.cat((ids, token[None]))
        if token == eos_token_id:
            break
    return ids[len(input_ids) :]


def _read(model: CoconutForCausalLM, inputs: list[Tensor]) -> Tensor:
    output = model.backbone.base_model(inputs_embeds=torch.stack(inputs)[None], use_cache=False)
    return output.last_hidden_state[0]
