"""Recurrent depth in one file: read this file first. It is a complete model with its loss, to train or to change.

Geiping et al., "Scaling up Test-Time Compute with Latent Reasoning: A Recurrent Depth Approach", arXiv 2502.05171;
sections and equations are the paper's. The gate is Ouro's: Zhu et al., "Scaling Latent Reasoning via Looped Language
Models", arXiv 2510.25741; its sections and equations are named so.

    e   = P(x)             the prelude: a few layers, once
    s_0 ~ N(0, sigma^2)    the state starts as noise
    s_t = R(e, s_{t-1})    the block: a map of [s, e], a few layers, a norm; runs r times with the same weights
    p   = C(s_r)           the coda: a few layers, once, the final norm, the head

With a gate (`exit_entropy`), a token exits after turn t of T with probability p(t):

    lambda_t = sigmoid(w s_t + b),  p(t) = lambda_t prod_{j<t} (1 - lambda_j),  p(T) = prod_{j<T} (1 - lambda_j)

At turn t a token attends to the states of earlier tokens at turn t; a token that stopped earlier keeps its last keys
and values (section 6.1). Layers are Llama's, rows have no padding, and nothing is cached. `model.py` computes the same,
fast and for other decoders too; tests compare outputs and gradients. Both read the same weights (`load`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mentalese.families.looped.config import LoopedConfig
from mentalese.nn.noise import Noise

SPREAD = 0.5  # sigma of Eq. 1
STATE_STD = math.sqrt(2 / 5)  # section 4.1
SLOPE, LEAST = 50.0, 0.005  # k and gamma, nats (Ouro, section 3.4)
PRIME = 1_000_003  # so that neighbouring positions and neighbouring steps have different seeds
Pair = tuple[Tensor, Tensor]
"""Keys and values, [batch, heads, length, head width] each."""
Keep = Callable[[Tensor, Tensor], Pair]
"""A function that maps a layer's new keys and values to the keys and values that tokens attend to."""


@dataclass
class Reading:
    """The states of a batch of rows after all turns.

    Attributes:
        hidden: [batch, length, hidden], the input of the head.
        states: [batch, length, hidden] after each turn; a token that has stopped keeps its state.
        turns: [batch, length], the number of turns that each token took.
    """

    hidden: Tensor
    states: list[Tensor] = field(default_factory=list)
    turns: Tensor = field(default_factory=lambda: torch.zeros(()))


class Looped(nn.Module):
    """A decoder, a Llama, whose middle layers are a block that runs several times."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()
        inner, width = config.backbone_config, config.hidden_size
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.adapter = nn.Linear(2 * width, width, bias=False)
        self.block_norm = nn.RMSNorm(width, inner.rms_norm_eps) if config.norms == "sandwich" else None
        self.exit_gate = nn.Linear(width, 1) if config.exit_entropy is not None else None
        self.norm = nn.RMSNorm(width, inner.rms_norm_eps)
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        if inner.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    @property
    def parts(self) -> tuple[nn.ModuleList, nn.ModuleList, nn.ModuleList]:
        """The layers of the prelude, the block and the coda."""
        first, last = self.config.prelude_layers, len(self.layers) - self.config.coda_layers
        return self.layers[:first], self.layers[first:last], self.layers[last:]

    def load(self, weights: Mapping[str, Tensor]) -> Looped:
        """Load the `state_dict` of a `LoopedForCausalLM` and return the model."""
        self.load_state_dict({plain_name(name): value for name, value in weights.items()})
        return self

    def forward(self, input_ids: Tensor, turns: int | None = None) -> Tensor:
        """Return logits [batch, length, vocabulary] of tokens [batch, length] after `turns` or the config's turns."""
        return self.lm_head(self.read(input_ids, turns or self.config.turns).hidden)

    def loss(self, input_ids: Tensor, seed: int, turns: int | None = None) -> Tensor:
        """Return the mean cross-entropy of all tokens but the first of each row; with a gate see `exit_loss`.

        Args:
            input_ids: [batch, length].
            seed: seeds the number of turns (Eq. 1 and 2) and the noise of the first state.
            turns: fixed number of turns; `None`: drawn, or with a gate the config's.
        """
        if self.exit_gate is not None:
            return self.exit_loss(input_ids, seed, turns or self.config.turns)
        turns = turns or drawn_turns(self.config.turns, seed)
        logits = self.lm_head(self.read(input_ids, turns, seed).hidden)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())

    def exit_loss(self, input_ids: Tensor, seed: int, turns: int) -> Tensor:
        """Return the mean over tokens of sum_t p(t) L_t - beta H(p) (Ouro, Eq. 4)."""
        reading, survival = self.read(input_ids, turns, seed), torch.ones(())
        expected, entropy = torch.zeros(()), torch.zeros(())
        for turn, (state, loss) in enumerate(zip(reading.states, self.losses(reading, input_ids)), 1):
            chance = self.exit_chance(state[:, :-1]) if turn < turns else torch.ones(())
            p = chance * survival  # Eq. 3
            expected, entropy = expected + p * loss, entropy + torch.special.entr(p)
            survival = survival * (1 - chance)
        assert self.config.exit_entropy is not None
        return (expected - self.config.exit_entropy * entropy).mean()

    def gate_loss(self, input_ids: Tensor, seed: int, turns: int) -> Tensor:
        """Return the loss of the gate of a trained model, whose other weights get no gradient (Ouro, Eq. 5 and 6)."""
        with torch.no_grad():
            reading = self.read(input_ids, turns, seed)
            losses = self.losses(reading, input_ids)
        total = torch.zeros(())
        for state, before, after in zip(reading.states[1:], losses, losses[1:]):
            improvement = (before - after).clamp(min=0)  # Eq. 5
            label = torch.sigmoid(SLOPE * (improvement - LEAST))  # near 1: go on
            total = total + F.binary_cross_entropy(1 - self.exit_chance(state[:, :-1]), label)  # Eq. 6
        return total / turns

    def exit_chance(self, state: Tensor) -> Tensor:
        """Return lambda [batch, length], the chance that a token in this state exits now (Ouro, section 3.2)."""
        assert self.exit_gate is not None
        return torch.sigmoid(self.exit_gate(state))[..., 0]

    def losses(self, reading: Reading, input_ids: Tensor) -> list[Tensor]:
        """Return L_t [batch, length - 1] for each turn t: the costs of all tokens but the first if it were the last."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = [self.norm(run(self.parts[2], state, positions)) for state in reading.states]
        logits = [self.lm_head(each[:, :-1]).transpose(1, 2) for each in hidden]
        return [F.cross_entropy(each, input_ids[:, 1:], reduction="none") for each in logits]

    def read(self, input_ids: Tensor, turns: int, seed: int = 0) -> Reading:
        """Read rows [batch, length]; without a gate only the last `backprop_turns` have a gradient (section 3.3).

        In training mode no token stops before the last turn: exits are for test time (section 6.1; Ouro, section 3.2).
        """
        config, (prelude, block, coda) = self.config, self.parts
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        embedded = config.embedding_scale * self.embed_tokens(input_ids)
        injected = run(prelude, embedded, positions)
        state = initial_state(input_ids, positions[None], config.hidden_size, seed).to(embedded.dtype)
        stopped = torch.zeros(input_ids.shape, dtype=torch.bool, device=input_ids.device)
        survival = torch.ones(input_ids.shape, device=input_ids.device)
        reading, memory = Reading(state, turns=torch.zeros_like(input_ids)), [Memory(stopped) for _ in block]
        for turn in range(turns):
            with torch.set_grad_enabled(torch.is_grad_enabled() and turn >= config.turns_without_gradient(turns)):
                new = self.turn(state, injected, positions, memory)
            new = torch.where(stopped[..., None], state, new)
            reading.turns = reading.turns + ~stopped
            if config.exit_distance is not None and not self.training:
                stopped |= (new - state).norm(dim=-1) < config.exit_distance * new.norm(dim=-1)
            if config.exit_probability is not None and not self.training:
                survival = survival * (1 - self.exit_chance(new))  # the chance that it has not exited
                stopped |= survival <= 1 - config.exit_probability
            state = new
            reading.states.append(state)
        reading.hidden = self.norm(run(coda, state, positions))
        return reading

    def turn(self, state: Tensor, injected: Tensor, positions: Tensor, memory: Sequence[Keep]) -> Tensor:
        """Return R(e, s) (section 3.2), [batch, length, hidden]; `memory` has one entry for each layer of the block."""
        state = self.adapter(torch.cat((state, injected), dim=-1))
        state = run(self.parts[1], state, positions, memory)
        return state if self.block_norm is None else self.block_norm(state)


def drawn_turns(mean: float, seed: int) -> int:
    """Draw r from a log-normal Poisson distribution with this mean (Eq. 1 and 2); equal seeds give equal draws.

    tau ~ N(log(mean - 1) - sigma^2 / 2, sigma), and r ~ Poisson(e^tau) + 1.
    """
    if mean <= 1:
        return round(mean)
    generator = torch.Generator().manual_seed(seed % 2**63)
    tau = math.log(mean - 1) - SPREAD**2 / 2 + SPREAD * torch.randn((), generator=generator, dtype=torch.float64)
    return 1 + int(torch.poisson(tau.exp(), generator=generator))


def initial_state(input_ids: Tensor, positions: Tensor, width: int, seed: int) -> Tensor:
    """Return s_0, float32 [batch, length, hidden]: noise that depends only on a token, its position and a seed.

    Args:
        input_ids: [batch, length].
        positions: [batch or 1, length], counted from each row's first token.
    """
    seeds = (positions * PRIME + seed % 2**62).expand_as(input_ids).reshape(-1)
    return STATE_STD * Noise.of(input_ids.reshape(-1, 1), seeds).draw(0, (width,)).view(*input_ids.shape, width)


def plain_name(name: str) -> str:
    """Return the name in this file of a weight of `LoopedForCausalLM`."""
    return name.removeprefix("backbone.").removeprefix("model.")


class Memory:
    """Keys and values of a layer of the block; once a token has stopped, its keys and values no longer change.

    Args:
        stopped: bool [batch, length], updated in place when tokens stop.
    """

    def __init__(self, stopped: Tensor) -> None:
        self.stopped = stopped
        self.last: Pair | None = None

    def __call__(self, keys: Tensor, values: Tensor) -> Pair:
        """Return the keys and values that this turn attends to."""
        if self.last is not None:
            out = self.stopped[:, None, :, None]
            keys, values = torch.where(out, self.last[0], keys), torch.where(out, self.last[1], values)
        self.last = keys, values
        return self.last


def run(layers: nn.ModuleList, x: Tensor, positions: Tensor, memory: Sequence[Keep] | None = None) -> Tensor:
    """Run layers in sequence on x [batch, length, hidden]."""
    for layer, keep in zip(layers, memory or [lambda *pair: pair] * len(layers)):
        x = layer(x, positions, keep)
    return x


class Layer(nn.Module):
    """Attention and MLP; with `norms="sandwich"` there is a norm before and after each (section 3.2)."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()
        inner, width = config.backbone_config, config.hidden_size
        self.self_attn, self.mlp = Attention(inner), MLP(width, inner.intermediate_size)
        self.input_layernorm, self.post_attention_layernorm = (nn.RMSNorm(width, inner.rms_norm_eps) for _ in range(2))
        self.attention_out_norm: nn.Module = nn.Identity()
        self.mlp_out_norm: nn.Module = nn.Identity()
        if config.norms == "sandwich":
            self.attention_out_norm, self.mlp_out_norm = (nn.RMSNorm(width, inner.rms_norm_eps) for _ in range(2))

    def forward(self, x: Tensor, positions: Tensor, keep: Keep) -> Tensor:
        x = self.attention_out_norm(x + self.self_attn(self.input_layernorm(x), positions, keep))
        return self.mlp_out_norm(x + self.mlp(self.post_attention_layernorm(x)))


class Attention(nn.Module):
    """Llama's attention: rotary positions and grouped key-value heads."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        width, self.groups = inner.hidden_size, inner.num_attention_heads // inner.num_key_value_heads
        self.head_width, self.theta = width // inner.num_attention_heads, inner.rope_parameters["rope_theta"]
        self.q_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(width, width // self.groups, bias=False) for _ in range(2))

    def forward(self, x: Tensor, positions: Tensor, keep: Keep) -> Tensor:
        q, k, v = (
            project(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        k, v = keep(rotated(k, positions, self.theta), v)
        k, v = (part.repeat_interleave(self.groups, dim=1) for part in (k, v))
        scores = rotated(q, positions, self.theta) @ k.transpose(-1, -2) / self.head_width**0.5
        later = positions[:, None] < torch.arange(k.shape[2], device=x.device)
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2))


def rotated(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Turn channels j and j + d / 2 of x [batch, heads, length, d] by position * theta^(-2 j / d)."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** (-torch.arange(half, device=x.device) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class MLP(nn.Module):
    """Llama's MLP, a SwiGLU."""

    def __init__(self, width: int, inner_width: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, inner_width, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner_width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
