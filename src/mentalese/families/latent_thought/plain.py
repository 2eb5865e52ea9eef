"""Latent Thought Models in one file: read this file first. It is a complete model with its loss, to train or to change.

Kong et al., "Latent Thought Models with Variational Bayes Inference-Time Computation", arXiv 2502.01567; sections and
equations are the paper's.

    p(z) = N(0, I)                         thoughts z: a few vectors for each layer of a decoder (section 2.1)
    p(x | z) = prod_n p(x_n | z, x_<n)     each layer attends to its thoughts; the window of tokens is short (Eq. 1)
    q(z | x) = N(mu, sigma^2)              fast learning: T_fast steps of Adam on the text's ELBO (Eq. 5)
    loss = -log p(x | z), z ~ q(z | x)     slow learning: the weights, given a draw of the thoughts (Algorithm 1)

The paper's baselines infer thoughts by Langevin dynamics (Eq. 4) or by the encoder of a VAE. Rows have no padding,
nothing is cached or shared between fast steps, and attention computes all pairs. `model.py` computes the same, fast;
tests compare thoughts, losses and gradients. Both have the same `state_dict`, and in both the noise depends only
on a seed and a row (`Noise`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mentalese.families.latent_thought.config import NORM_EPS, LTMConfig
from mentalese.nn.noise import Noise

MEANS, VARIANCES, FINAL = -3, -2, -1
"""Numbers of the noise draws for initial means, initial variances and the final sample; fast steps count from 0."""


@dataclass
class Posterior:
    """The posterior N(mu, exp(log_var)) over the thoughts of each row.

    Attributes:
        mu: means [batch, thoughts, hidden]; for Langevin dynamics the end of the chain.
        log_var: log variances [batch, thoughts, hidden]; `None` for Langevin dynamics.
        noise: [batch, thoughts, hidden], used by `sample`.
        nll, kl: nats of each row [batch] before each fast step; their sum is the negative ELBO.
    """

    mu: Tensor
    log_var: Tensor | None
    noise: Tensor
    nll: list[Tensor] = field(default_factory=list)
    kl: list[Tensor] = field(default_factory=list)

    def sample(self) -> Tensor:
        """Return a draw [batch, thoughts, hidden] with the reparametrisation trick."""
        return self.mu if self.log_var is None else self.mu + (self.log_var / 2).exp() * self.noise


class LatentThought(nn.Module):
    """A decoder with a short attention window whose layers attend to thoughts inferred for each text."""

    def __init__(self, config: LTMConfig) -> None:
        super().__init__()
        width, layers, self.config = config.hidden_size, config.num_hidden_layers, config
        self.embed = nn.Embedding(config.vocab_size, width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(layers))
        self.final_norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        self.encoder = Encoder(config) if config.inference == "amortised" else None
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed.weight
        for name, weights in self.named_parameters():
            if weights.ndim > 1:  # maps that write to the residual stream start smaller (GPT-2)
                added = name.endswith("out.weight")
                nn.init.normal_(weights, std=config.initializer_range / (math.sqrt(2 * layers) if added else 1))

    # -- 2.1 the thought-guided generator

    def forward(self, input_ids: Tensor, z: Tensor | None = None) -> Tensor:
        """Return logits [batch, length, vocabulary] of tokens [batch, length].

        Args:
            input_ids: [batch, length].
            z: [batch, thoughts, hidden], in the order of layers; `None`: the prior mean, zeros.
        """
        config, n = self.config, self.config.latents_per_layer
        if z is None:
            z = self.embed.weight.new_zeros(len(input_ids), config.num_latents, config.hidden_size)
        x = self.embed(input_ids)
        for layer, block in enumerate(self.blocks):
            x = block(x, z if config.shared_latents else z[:, layer * n : (layer + 1) * n])
        return self.lm_head(self.final_norm(x))

    def nll(self, input_ids: Tensor, z: Tensor) -> Tensor:
        """Return -log p(x | z) of each row (Eq. 1), [batch] in nats."""
        logits = self(input_ids, z)[:, :-1]
        return F.cross_entropy(logits.transpose(1, 2), input_ids[:, 1:], reduction="none").sum(1)

    # -- 2.2 learning and posterior inference

    def loss(self, input_ids: Tensor, seed: int, kl_weight: float = 1.0) -> Tensor:
        """Return the loss of Algorithm 1's slow step in nats per target; for a VAE the negative ELBO (Eq. 5).

        With `slow_grad="accumulate"` the value is the same, but the weights also receive the gradient of each fast
        step's negative log-likelihood, summed over the tokens of a row (the release).

        Args:
            input_ids: [batch, length].
            seed: seeds the noise of the step.
            kl_weight: weight of the KL divergence in the loss of a VAE.
        """
        posterior = self.infer(input_ids, seed)
        loss = self.nll(input_ids, posterior.sample()).sum()
        if self.encoder is not None and posterior.log_var is not None:
            loss = loss + kl_weight * divergence(posterior.mu, posterior.log_var).sum()
        loss = loss / input_ids[:, 1:].numel()
        if self.config.slow_grad == "accumulate":
            fast = torch.stack(posterior.nll).sum() / len(input_ids)
            loss = loss + (fast - fast.detach())
        return loss

    @torch.enable_grad()
    def infer(self, input_ids: Tensor, seed: int) -> Posterior:
        """Return the posterior of rows [batch, length] by the method `config.inference`."""
        noise = Noise.of(input_ids[:, 1:], seed, self.embed.weight.dtype)
        if self.encoder is not None:
            mu, log_var = self.encoder(self.embed(input_ids))
            return Posterior(mu, log_var, noise.draw(FINAL, mu.shape[1:]))
        if self.config.inference == "langevin":
            return self.langevin(input_ids, noise)
        return self.fast_learning(input_ids, noise)

    def fast_learning(self, input_ids: Tensor, noise: Noise) -> Posterior:
        """Fit means and log variances by Adam on the ELBO (Eq. 5; Algorithm 1, lines 6 to 11)."""
        config, shape = self.config, (self.config.num_latents, self.config.hidden_size)
        resampled = config.noise == "resampled"
        mu, log_var = 0.01 * noise.draw(MEANS, shape), 0.1 * noise.draw(VARIANCES, shape) + config.initial_log_variance
        posterior = Posterior(mu, log_var, noise.draw(FINAL if resampled else 0, shape))
        parameters = torch.stack((mu, log_var)).requires_grad_()
        adam = torch.optim.AdamW([parameters], weight_decay=0.01 if config.fast_optimizer == "adamw" else 0.0)
        for step in range(config.fast_steps):
            mu, log_var = parameters
            z = mu + (log_var / 2).exp() * noise.draw(step if resampled else 0, shape)
            kl = divergence(mu, log_var).sum((1, 2))
            parameters.grad = self.slope(posterior, parameters, self.nll(input_ids, z), kl)
            factor = schedule(config.fast_schedule, step, config.fast_steps)
            adam.param_groups[0]["lr"] = config.fast_learning_rate * factor
            adam.step()
        posterior.mu, posterior.log_var = parameters.detach()
        return posterior

    def langevin(self, input_ids: Tensor, noise: Noise) -> Posterior:
        """Draw thoughts from the posterior by Langevin dynamics (Eq. 4)."""
        shape, size = (self.config.num_latents, self.config.hidden_size), self.config.langevin_step_size
        z = 0.01 * noise.draw(MEANS, shape)
        posterior = Posterior(z, None, torch.zeros_like(z))
        for step in range(self.config.fast_steps):
            z = z.detach().requires_grad_()
            slope = self.slope(posterior, z, self.nll(input_ids, z), z.square().sum((1, 2)) / 2)
            z = z - size * slope + math.sqrt(2 * size) * noise.draw(step, shape)
        posterior.mu = z.detach()
        return posterior

    def slope(self, posterior: Posterior, parameters: Tensor, nll: Tensor, kl: Tensor) -> Tensor:
        """Return the gradient of the negative ELBO, summed over rows, and append its parts [batch] to the posterior."""
        accumulate = self.config.slow_grad == "accumulate"  # then the loss needs the graph of this step
        posterior.nll.append(nll if accumulate else nll.detach())
        posterior.kl.append(kl.detach())
        return torch.autograd.grad((nll + kl).sum(), parameters, retain_graph=accumulate)[0]

    # -- 2.3 generation

    @torch.no_grad()
    def generate(self, input_ids: Tensor, max_new_tokens: int, seed: int = 0) -> Tensor:
        """Return greedy continuations [batch, new] of prompts [batch, length], given their thoughts (Eq. 7)."""
        z, ids = self.infer(input_ids, seed).sample(), input_ids
        for _ in range(max_new_tokens):
            ids = torch.cat((ids, self(ids, z)[:, -1:].argmax(-1)), dim=1)
        return ids[:, input_ids.shape[1] :]


def divergence(mu: Tensor, log_var: Tensor) -> Tensor:
    """Return the KL divergence of N(mu, exp(log_var)) from the prior N(0, 1) in each channel."""
    return (mu.square() + log_var.exp() - 1 - log_var) / 2


def schedule(kind: str, step: int, steps: int) -> float:
    """Return the learning-rate factor of a fast step; `linear` and `cosine` end at a tenth (the release)."""
    share = step / max(steps - 1, 1)
    return {"constant": 1.0, "linear": 1 - 0.9 * share, "cosine": 0.1 + 0.45 * (1 + math.cos(math.pi * share))}[kind]


class Block(nn.Module):
    """A layer of the generator: attention to the window, attention to thoughts, and SwiGLU, each after a norm."""

    def __init__(self, config: LTMConfig) -> None:
        super().__init__()
        self.attention_norm, self.cross_norm, self.mlp_norm = (
            nn.RMSNorm(config.hidden_size, eps=NORM_EPS) for _ in range(3)
        )
        self.attention, self.cross_attention, self.mlp = SelfAttention(config), CrossAttention(config), SwiGLU(config)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        x = x + self.cross_attention(self.cross_norm(x), z)
        return x + self.mlp(self.mlp_norm(x))


class SelfAttention(nn.Module):
    """Causal attention to the last `window_size` tokens, including the token itself."""

    def __init__(self, config: LTMConfig) -> None:
        super().__init__()
        width, self.config = config.hidden_size, config
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        ago = positions[:, None] - positions
        seen = (ago >= 0) & (ago < self.config.window_size)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.out(attend(q, k, v, positions, positions, self.config, seen))


class CrossAttention(nn.Module):
    """Attention of all tokens to all thoughts of a layer."""

    def __init__(self, config: LTMConfig) -> None:
        super().__init__()
        width, self.config = config.hidden_size, config
        self.query, self.key_value = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        k, v = self.key_value(z).chunk(2, dim=-1)
        return self.out(attend(self.query(x), k, v, positions, thought_positions(self.config, x.device), self.config))


class SwiGLU(nn.Module):
    def __init__(self, config: LTMConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.out(F.silu(gate) * up)


class Encoder(nn.Module):
    """The encoder of a VAE (section 2.2, table 4), which reads the text and a learned query for each thought."""

    def __init__(self, config: LTMConfig) -> None:
        super().__init__()
        width, self.config = config.hidden_size, config
        self.queries = nn.Parameter(torch.zeros(config.num_latents, width))
        self.blocks = nn.ModuleList(EncoderBlock(config) for _ in range(config.encoder_layers))
        self.final_norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.posterior = nn.Linear(width, 2 * width, bias=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log variances [batch, thoughts, hidden] from embedded tokens [batch, length, hidden]."""
        config, count = self.config, len(self.queries)
        of_queries = thought_positions(config, tokens.device).repeat(count // config.latents_per_layer)
        positions = torch.cat((of_queries, torch.arange(tokens.shape[1], device=tokens.device)))
        x = torch.cat((self.queries.expand(len(tokens), -1, -1), tokens), dim=1)
        for block in self.blocks:
            x = block(x, positions)
        mu, log_var = self.posterior(self.final_norm(x[:, :count])).chunk(2, dim=-1)
        return mu, log_var


class EncoderBlock(nn.Module):
    """Bidirectional attention among queries and tokens, then SwiGLU."""

    def __init__(self, config: LTMConfig) -> None:
        super().__init__()
        width, self.config = config.hidden_size, config
        self.attention_norm, self.mlp_norm = (nn.RMSNorm(width, eps=NORM_EPS) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = SwiGLU(config)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        q, k, v = self.qkv(self.attention_norm(x)).chunk(3, dim=-1)
        x = x + self.out(attend(q, k, v, positions, positions, self.config))
        return x + self.mlp(self.mlp_norm(x))


def thought_positions(config: LTMConfig, device: torch.device) -> Tensor:
    """Return the positions of a layer's thoughts, which are the same in each layer (the release)."""
    return torch.arange(config.latents_per_layer, device=device) * (
        config.max_position_embeddings // config.num_latents
    )


def attend(
    q: Tensor, k: Tensor, v: Tensor, at: Tensor, of: Tensor, config: LTMConfig, seen: Tensor | None = None
) -> Tensor:
    """Return the attention output [batch, n, hidden] of several heads with rotary positions.

    Args:
        q: queries [batch, n, hidden].
        k: keys [batch, m, hidden].
        v: values [batch, m, hidden].
        at: positions [n] of queries.
        of: positions [m] of keys.
        config: settings of the model.
        seen: bool [n, m], the keys that each query may read; `None`: all.
    """
    q, k, v = (x.unflatten(-1, (config.num_attention_heads, -1)).transpose(1, 2) for x in (q, k, v))
    q, k = rotated(q, at), rotated(k, of)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Turn channels j and j + d / 2 of x [batch, heads, n, d] by position * 10,000^(-2 j / d)."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * 10_000.0 ** (-torch.arange(half, device=x.device) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
