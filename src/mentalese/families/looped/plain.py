"""Recurrent depth in its plainest form: read this file first.

Geiping et al., "Scaling up Test-Time Compute with Latent Reasoning: A Recurrent Depth Approach", arXiv 2502.05171;
sections and equations are the paper's.

    e   = P(x)             the prelude: some layers, once
    s_0 ~ N(0, sigma^2)    the state starts as noise
    s_t = R(e, s_{t-1})    the block: a map of [s, e], some layers, a norm; the same weights at each turn, r times
    p   = C(s_r)           the coda: some layers, once, the final norm, the head

One row, token by token, turn by turn. At turn t a token attends to what earlier tokens were at turn t; to their last
turn where they stopped before (section 6.1). Everything is differentiable, but for all but the last k turns
(section 3.3). `model.py` computes the same for whole rows at once, and tests compare outputs and gradients.

Letters in shapes: L tokens, d hidden size, n heads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mentalese.families.looped.turns import initial_state


@dataclass
class Row:
    """What is known of a row so far.

    Attributes:
        keys: layer and slot -> of each token so far its key and value [n, d / n]. A turn of the block has a slot; the
            prelude and the coda have one each.
        states: of each token so far s_0, s_1, .. up to where it stopped, [d] each.
        hidden: of each token so far what the head reads [d].
    """

    keys: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = field(default_factory=dict)
    states: list[list[Tensor]] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)


def read(model: Any, ids: Tensor, turns: int, seed: int = 0) -> Row:
    """A row of tokens [L], at `turns` turns each."""
    config, row = model.config, Row()
    prelude, block, coda = parts(model)
    starts = initial_state(ids[None], torch.arange(len(ids))[None], config.hidden_size, config.state_std, seed)[0]
    for i, token in enumerate(ids.tolist()):
        x = config.embedding_scale * model.get_input_embeddings().weight[token]
        for number in prelude:
            x = layer(model, row, number, 0, i, x)
        states = [starts[i].to(x.dtype)]
        for t in range(turns):
            with torch.set_grad_enabled(torch.is_grad_enabled() and t >= turns - config.backprop_turns):
                states.append(turn(model, row, block, t, i, states[-1], x))
            if config.exit_distance is not None and not moves(states, config.exit_distance):
                break
        for later in range(len(states) - 1, slots(config, turns)):  # what it is at turns that it did not take
            for number in block:
                last = (len(states) - 2) % slots(config, turns)
                put(row, number, later, i, *row.keys[number, last][i])
        y = states[-1]
        for number in coda:
            y = layer(model, row, number, 0, i, y)
        row.states.append(states)
        row.hidden.append(model.final_norm(y))
    return row


def parts(model: Any) -> tuple[range, range, range]:
    """The numbers of the layers of prelude, block and coda."""
    first, layers = model.config.prelude_layers, model.config.num_hidden_layers
    last = layers - model.config.coda_layers
    return range(first), range(first, last), range(last, layers)


def slots(config: Any, turns: int) -> int:
    """Turns of which keys and values are kept (section 6.2)."""
    return min(turns, config.cache_turns or turns)


def moves(states: list[Tensor], least: float) -> bool:
    """Whether the last turn moved the state by this share of its length."""
    return bool((states[-1] - states[-2]).norm() >= least * states[-1].norm())


def turn(model: Any, row: Row, block: range, t: int, i: int, state: Tensor, x: Tensor) -> Tensor:
    """R (section 3.2)."""
    slot = t % (model.config.cache_turns or t + 1)
    state = model.adapter(torch.cat((state, x)))
    for number in block:
        state = layer(model, row, number, slot, i, state)
    return state if model.block_norm is None else model.block_norm(state)


def layer(model: Any, row: Row, number: int, slot: int, i: int, x: Tensor) -> Tensor:
    """One layer, for token i: x [d] to [d]."""
    module = model.layers[number]
    attended = attention(model, row, number, slot, i, module.input_layernorm(x))
    if model.config.norms == "own":
        x = x + attended
        return x + module.mlp(module.post_attention_layernorm(x))
    x = module.attention_out_norm(x + attended)
    return module.mlp_out_norm(x + module.mlp(module.post_attention_layernorm(x)))


def attention(model: Any, row: Row, number: int, slot: int, i: int, x: Tensor) -> Tensor:
    """Llama's attention of token i to itself and those before it, head by head."""
    module, inner = model.layers[number].self_attn, model.backbone.config
    heads, groups = inner.num_attention_heads, inner.num_attention_heads // inner.num_key_value_heads
    q, k, v = (project(x).view(-1, module.head_dim) for project in (module.q_proj, module.k_proj, module.v_proj))
    theta = inner.rope_parameters["rope_theta"]
    q, k = (rotated(heads_, i, theta) for heads_ in (q, k))
    put(row, number, slot, i, k, v)
    earlier, out = row.keys[number, slot], []
    for head in range(heads):
        own = head // groups
        scores = torch.stack([(q[head] * key[own]).sum() for key, _ in earlier]) / module.head_dim**0.5
        weights = scores.softmax(0)
        out.append(sum((w * value[own] for w, (_, value) in zip(weights, earlier)), torch.zeros_like(q[head])))
    return module.o_proj(torch.cat(out))


def put(row: Row, number: int, slot: int, i: int, key: Tensor, value: Tensor) -> None:
    """Keeps token i's key and value, in place of what it had there."""
    kept = row.keys.setdefault((number, slot), [])
    del kept[i:]
    kept.append((key, value))


def rotated(x: Tensor, position: int, theta: float) -> Tensor:
    """Channels j and j + d / 2 of [n, d] turn by position * theta^(-2 j / d)."""
    half = x.shape[-1] // 2
    angles = torch.tensor([position * theta ** (-j / half) for j in range(half)], dtype=torch.float32).to(x.dtype)
    a, b = x[:, :half], x[:, half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)


def loss(model: Any, ids: Tensor, turns: int, seed: int = 0) -> Tensor:
    """The mean cross-entropy of a row's tokens [L] but the first."""
    hidden, head = read(model, ids, turns, seed).hidden, model.get_output_embeddings().weight
    nll = []
    for state, target in zip(hidden, ids[1:].tolist()):
        logits = head @ state
        nll.append(logits.exp().sum().log() - logits[target])
    return torch.stack(nll).mean()
