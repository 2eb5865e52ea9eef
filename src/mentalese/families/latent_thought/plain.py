"""Latent Thought Models in their plainest form: read this file first.

Kong et al., "Latent Thought Models with Variational Bayes Inference-Time Computation", arXiv 2502.01567. Sections and
equations are the paper's.

Each text has thoughts z, vectors that every layer of a decoder attends to. Fast learning fits a posterior over z by
gradient steps on the text's ELBO; slow learning updates the weights on the text given a draw from it. Nothing is shared
between fast steps, every gradient includes all weights, rows have no padding, attention computes all pairs, and Adam is
written out. The noise is that of `inference.py`, so outputs and gradients can be compared with `model.py`, which
computes the same, fast.

Letters in shapes: B rows of N tokens, N_z thoughts, d hidden size, v vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mentalese.nn.noise import Noise


@dataclass
class Learnt:
    """The result of `learn_reference`: thoughts, their posterior, and the curves and weight gradients of its steps."""

    z: Tensor
    mu: Tensor
    log_var: Tensor | None
    nll: list[Tensor] = field(default_factory=list)
    kl: list[Tensor] = field(default_factory=list)
    accumulated: list[Tensor] = field(default_factory=list)


def loss_reference(model: Any, ids: Tensor, seed: int, rate: float | None = None) -> tuple[Tensor, list[Tensor]]:
    """Algorithm 1 on a batch [B, N]: the slow loss, and the gradient of the weights."""
    learnt = learn_reference(model, ids, seed, rate)
    loss = nll_reference(model, ids, learnt.z).sum() / ids[:, 1:].numel()
    gradients = list(torch.autograd.grad(loss, list(model.parameters())))
    if model.config.slow_grad == "accumulate":
        gradients = [g + a / len(ids) for g, a in zip(gradients, learnt.accumulated)]
    return loss, gradients


def learn_reference(model: Any, ids: Tensor, seed: int, rate: float | None = None) -> Learnt:
    """Fast learning on a batch [B, N]."""
    config = model.config
    noise, shape = Noise.of(ids[:, 1:], seed, model.dtype), (config.num_latents, config.hidden_size)
    langevin = config.inference == "langevin"
    parameters = [0.01 * noise.draw(-3, shape)] + (
        [] if langevin else [0.1 * noise.draw(-2, shape) + config.initial_log_variance]
    )
    first = [torch.zeros_like(p) for p in parameters]
    second = [torch.zeros_like(p) for p in parameters]
    weights = list(model.parameters())
    learnt = Learnt(parameters[0], parameters[0], None, accumulated=[torch.zeros_like(w) for w in weights])
    for step in range(config.fast_steps):
        parameters = [p.detach().requires_grad_() for p in parameters]
        mu = parameters[0]
        if langevin:
            z, kl = mu, mu.square().sum((1, 2)) / 2
        else:
            log_var = parameters[1]
            z = mu + (log_var / 2).exp() * noise.draw(step if config.noise == "resampled" else 0, shape)
            kl = ((mu.square() + log_var.exp() - 1 - log_var) / 2).sum((1, 2))
        nll = nll_reference(model, ids, z)
        learnt.nll.append(nll.detach())
        learnt.kl.append(kl.detach())
        gradients = torch.autograd.grad((nll + kl).sum(), parameters + weights)
        learnt.accumulated = [a + g for a, g in zip(learnt.accumulated, gradients[len(parameters) :])]
        if langevin:  # Eq. 4
            s = config.langevin_step_size
            parameters = [mu - s * gradients[0] + math.sqrt(2 * s) * noise.draw(step, shape)]
            continue
        share = step / max(config.fast_steps - 1, 1)
        decay = {"constant": 1, "linear": 1 - 0.9 * share, "cosine": 0.1 + 0.9 * (1 + math.cos(math.pi * share)) / 2}
        lr = (rate or config.fast_learning_rate) * decay[config.fast_schedule]
        for i, (p, g) in enumerate(zip(parameters, gradients)):
            first[i] = 0.9 * first[i] + 0.1 * g
            second[i] = 0.999 * second[i] + 0.001 * g.square()
            mean, square = first[i] / (1 - 0.9 ** (step + 1)), second[i] / (1 - 0.999 ** (step + 1))
            kept = p * (1 - lr * 0.01) if config.fast_optimizer == "adamw" else p
            parameters[i] = kept - lr * mean / (square.sqrt() + 1e-8)
    learnt.mu = learnt.z = parameters[0].detach()
    if not langevin:
        learnt.log_var = parameters[1].detach()
        last = noise.draw(-1 if config.noise == "resampled" else 0, shape)
        learnt.z = learnt.mu + (learnt.log_var / 2).exp() * last
    return learnt


def amortised_loss_reference(model: Any, ids: Tensor, seed: int, kl_weight: float) -> Tensor:
    """Eq. 5 of a batch [B, N] under the posterior of a VAE's encoder, in nats per target."""
    mu, log_var = encode_reference(model, ids)
    z = mu + (log_var / 2).exp() * Noise.of(ids[:, 1:], seed, model.dtype).draw(-1, mu.shape[1:])
    kl = ((mu.square() + log_var.exp() - 1 - log_var) / 2).sum()
    return (nll_reference(model, ids, z).sum() + kl_weight * kl) / ids[:, 1:].numel()


def encode_reference(model: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Means and log variances [B, N_z, d]: queries, at their thoughts' positions, and tokens see all of each other."""
    config, encoder, rows = model.config, model.encoder, len(ids)
    x = torch.cat((encoder.queries.expand(rows, -1, -1), model.embed.weight[ids]), dim=1)
    places = latent_positions(config) * (config.num_latents // config.latents_per_layer) + list(range(ids.shape[1]))
    seen = torch.ones(len(places), len(places), dtype=torch.bool)
    for block in encoder.blocks:
        q, k, v = (norm_reference(x, block.attention_norm) @ block.qkv.weight.T).chunk(3, dim=-1)
        heads = config.num_attention_heads
        x = x + attention_reference(q, k, v, places, places, seen, heads, config) @ block.out.weight.T
        x = x + swiglu_reference(norm_reference(x, block.mlp_norm), block.mlp)
    mu, log_var = (norm_reference(x[:, : config.num_latents], encoder.final_norm) @ encoder.posterior.weight.T).chunk(
        2, dim=-1
    )
    return mu, log_var


def nll_reference(model: Any, ids: Tensor, z: Tensor) -> Tensor:
    """[B], Eq. 1 in nats, of rows [B, N] and thoughts [B, N_z, d]."""
    logits = logits_reference(model, ids, z)[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").sum(1)


def logits_reference(model: Any, ids: Tensor, z: Tensor) -> Tensor:
    """[B, N, v], the thought-guided generator (section 2.1)."""
    config = model.config
    n, heads = config.latents_per_layer, config.num_attention_heads
    tokens = list(range(ids.shape[1]))
    latents = latent_positions(config)
    ago = torch.arange(len(tokens))[:, None] - torch.arange(len(tokens))
    x = model.embed.weight[ids]
    for layer, block in enumerate(model.blocks):
        h = norm_reference(x, block.attention_norm)
        q, k, v = (h @ block.attention.qkv.weight.T).chunk(3, dim=-1)
        seen = (ago >= 0) & (ago < config.window_size)
        x = x + attention_reference(q, k, v, tokens, tokens, seen, heads, config) @ block.attention.out.weight.T
        thoughts = z if config.shared_latents else z[:, layer * n : (layer + 1) * n]
        cross = block.cross_attention
        q = norm_reference(x, block.cross_norm) @ cross.query.weight.T
        k, v = (thoughts @ cross.key_value.weight.T).chunk(2, dim=-1)
        seen = torch.ones(len(tokens), n, dtype=torch.bool)
        x = x + attention_reference(q, k, v, tokens, latents, seen, heads, config) @ cross.out.weight.T
        x = x + swiglu_reference(norm_reference(x, block.mlp_norm), block.mlp)
    return norm_reference(x, model.final_norm) @ model.lm_head.weight.T


def latent_positions(config: Any) -> list[int]:
    """The positions of a layer's thoughts."""
    return [j * (config.max_position_embeddings // config.num_latents) for j in range(config.latents_per_layer)]


def swiglu_reference(x: Tensor, mlp: Any) -> Tensor:
    gate, up = (x @ mlp.gate_up.weight.T).chunk(2, dim=-1)
    return (gate * gate.sigmoid() * up) @ mlp.out.weight.T


def norm_reference(x: Tensor, norm: Any) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight


def attention_reference(
    q: Tensor, k: Tensor, v: Tensor, at: list[int], of: list[int], seen: Tensor, heads: int, config: Any
) -> Tensor:
    """[B, N, d] of queries at positions `at` to keys at positions `of`, if `seen` [N, m]."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    q, k = rotate_reference(q, at, config.rope_theta), rotate_reference(k, of, config.rope_theta)
    logits = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf)
    return (logits.softmax(-1) @ v).transpose(1, 2).flatten(2)


def rotate_reference(x: Tensor, positions: list[int], theta: float) -> Tensor:
    """Channel i of a head turns with channel i + d_h / 2 by position * theta^(-2 i / d_h)."""
    half = x.shape[-1] // 2
    angles = torch.tensor([[p * theta ** (-i / half) for i in range(half)] for p in positions])
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)
