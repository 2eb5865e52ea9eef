"""Thought Gestalt in its plainest form: read this file first.

Borazjanizadeh and McClelland, "Modeling Language as a Sequence of Thoughts", arXiv 2512.25026.

A document is read one sentence at a time. Tokens attend to their own sentence and, by cross-attention, to a memory with
one vector per earlier sentence. Each sentence writes its vector to the memory with its graph. Here every sentence is
padded to the maximum, every step runs all layers, and the memory's keys and values are projected again in each step.
`model.py` computes the same with the same weights, fast; tests compare outputs and gradients, without dropout.
`benchmarks/thought_gestalt.py` measures how much the fast model saves.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mentalese.data.batch import Batch
from mentalese.families.thought_gestalt.blocks import CrossAttention, SelfAttention, Step
from mentalese.families.thought_gestalt.config import ThoughtGestaltConfig
from mentalese.families.thought_gestalt.model import ThoughtGestaltForCausalLM
from mentalese.nn.loss import IGNORED


def hidden_states_reference(model: ThoughtGestaltForCausalLM, input_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Final hidden states [B, L, d] of fresh streams, zero at padding, and the vectors' lengths [B, S] before the norm.

    Letters: S sentence steps, T = `max_sentence_tokens` + 3 positions.
    """
    hidden, norms, _ = _read(model, input_ids)
    return hidden, norms


def _read(model: ThoughtGestaltForCausalLM, input_ids: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """`hidden_states_reference`, and the vectors, one [B, d] per step."""
    config = model.config
    ids, place = _sentences(input_ids, config)  # [B, S, T]
    memory: list[Tensor] = []  # one [B, d] per step; a stream that has ended continues with padding
    outputs, norms = [], []
    for k in range(ids.shape[1]):
        x, read = model.embed(ids[:, k]), memory[-config.memory_size :]
        if memory and config.seeded:
            seed = memory[-1] if config.memory_gradient_window != 0 else memory[-1].detach()
            x = torch.cat((seed[:, None], x[:, 1:]), dim=1)
        x = x + model.position_embed.weight
        read = [_constant(s, len(read) - i, config) for i, s in enumerate(read)]  # the newest is one sentence old
        prefix = 0
        if config.memory == "prefix" and read:
            vectors = torch.stack(read, dim=1) + _positions(len(read), config)
            x, prefix = torch.cat((vectors, x), dim=1), len(read)
        last = prefix + (place[:, k] >= 0).sum(1) - 1
        for layer, block in enumerate(model.layers):
            x = _block(block, x, read, config)
            if layer == config.vector_layer and config.memory != "none":
                vector, norm = model.sentence_head(x[torch.arange(len(x)), last.clamp(min=0)], 0.0, Step())
                memory.append(vector)
                norms.append(norm)
        outputs.append(model.final_norm(x[:, prefix:]))
    hidden = torch.stack(outputs, dim=1)
    flat = hidden.new_zeros(input_ids.numel(), hidden.shape[-1])
    flat = flat.index_copy(0, place[place >= 0], hidden[place >= 0])
    lengths = torch.stack(norms, dim=1) if norms else hidden.new_zeros(len(ids), 0)
    return flat.view(*input_ids.shape, -1), lengths, memory


def training_loss_reference(model: ThoughtGestaltForCausalLM, batch: Batch, eos_weight: float = 1.0) -> Tensor:
    """The weighted mean cross-entropy (section 2.3), with the whole table of logits; without the hinge. Plus the loss
    of the next sentence's vector, if it has a weight."""
    hidden, _, vectors = _read(model, batch["input_ids"])
    logits = model.lm_head(hidden[:, :-1]).flatten(0, 1)
    labels = batch["labels"][:, 1:].flatten()
    weights = torch.where(labels == model.config.sentence_end_token_id, eos_weight, 1.0) * (labels != IGNORED)
    nll = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
    loss = (weights * nll).sum()
    if model.config.next_vector_weight:
        by_token = F.pad(weights.view(len(batch["labels"]), -1), (1, 0))
        loss = loss + model.config.next_vector_weight * _next_vectors(model, batch["input_ids"], vectors, by_token)
    return loss / weights.sum()


def _next_vectors(
    model: ThoughtGestaltForCausalLM, input_ids: Tensor, vectors: list[Tensor], weights: Tensor
) -> Tensor:
    """Squared distances of each vector from what the one before it predicts, weighted by its sentence's targets."""
    config = model.config
    _, place = _sentences(input_ids, config)
    loss = weights.new_zeros(())
    for row in range(len(input_ids)):
        for k in range(1, len(vectors)):
            tokens = place[row, k][place[row, k] >= 0]
            if not len(tokens) or input_ids.flatten()[tokens[-1]] != config.sentence_end_token_id:
                continue  # there is no such sentence, or it has not ended
            before = vectors[k - 1][row].detach() if config.memory_gradient_window == 0 else vectors[k - 1][row]
            error = (model.next_vector(before) - vectors[k][row].detach()).square().sum()
            loss = loss + weights.flatten()[tokens].sum() * error
    return loss


def _sentences(input_ids: Tensor, config: ThoughtGestaltConfig) -> tuple[Tensor, Tensor]:
    """Tokens by sentence [B, S, T], and the index of each in the flattened streams, -1 at padding."""
    streams: list[list[list[int]]] = []
    for row, tokens in enumerate(input_ids.tolist()):
        streams.append([])
        for column, token in enumerate(tokens):
            if token == config.sentence_start_token_id:
                streams[-1].append([])
            if token != config.pad_token_id:
                streams[-1][-1].append(row * input_ids.shape[1] + column)
    place = torch.full((len(streams), max(map(len, streams)), config.max_sentence_tokens + 3), -1)
    for row, sentences in enumerate(streams):
        for k, places in enumerate(sentences):
            place[row, k, : len(places)] = torch.tensor(places)
    ids = torch.where(place >= 0, input_ids.flatten()[place.clamp(min=0)], config.pad_token_id)
    return ids, place


def _constant(vector: Tensor, age: int, config: ThoughtGestaltConfig) -> Tensor:
    window = config.memory_gradient_window
    return vector if window is None or age <= window else vector.detach()


def _block(block: Any, x: Tensor, read: list[Tensor], config: ThoughtGestaltConfig) -> Tensor:
    """The layouts of Table 1 in terms of two increments."""
    layout = block.layout

    def attend(y: Tensor) -> Tensor:
        return _self_attention(block.attention, block.attention_norm(y)) if block.attends else torch.zeros_like(y)

    def look(y: Tensor) -> Tensor:
        if not block.reads or not read:
            return torch.zeros_like(y)
        return _cross_attention(block.memory_attention, block.memory_norm(y), torch.stack(read, dim=1), config)

    if layout == "parallel":
        x = x + attend(x) + look(x)
    elif layout == "cross_self":
        x = x + look(x)
        x = x + attend(x)
    else:
        x = x + attend(x)
        x = x + look(x)
    return x + block.mlp(block.mlp_norm(x), Step())


def _self_attention(module: SelfAttention, x: Tensor) -> Tensor:
    q, k, v = module.qkv(x).chunk(3, dim=-1)
    causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    return module.out(_attention(q, k, v, module.heads, causal))


def _cross_attention(module: CrossAttention, x: Tensor, memory: Tensor, config: ThoughtGestaltConfig) -> Tensor:
    """K = W_K (s + PE[rank]), V = W_V s, both projected in each step."""
    d = x.shape[-1]
    weight, bias = module.key_value.weight, module.key_value.bias
    k = F.linear(memory + _positions(memory.shape[1], config), weight[:d], bias[:d])
    v = F.linear(memory, weight[d:], bias[d:])
    return module.gate * module.out(_attention(module.query(x), k, v, module.heads, None))


def _attention(q: Tensor, k: Tensor, v: Tensor, heads: int, mask: Tensor | None) -> Tensor:
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def _positions(count: int, config: ThoughtGestaltConfig) -> Tensor:
    """PE [count, d], number by number."""
    d = config.hidden_size
    table = torch.zeros(count, d)
    for rank in range(count):
        for i in range(0, d, 2):
            angle = rank / 10_000 ** (i / d)
            table[rank, i], table[rank, i + 1] = math.sin(angle), math.cos(angle)
    return table / table.norm(dim=-1, keepdim=True) if config.memory_position_scale == "unit" else table
