"""Masked diffusion in one file: read this file first. It is a complete model with its loss, to train or to change.

    MDLM   Sahoo et al., 2024, "Simple and Effective Masked Diffusion Language Models", arXiv 2406.07524
    MD4    Shi et al., 2024, "Simplified and Generalized Masked Diffusion for Discrete Data", arXiv 2406.04329
    SEDD   Lou et al., 2024, "Discrete Diffusion Modeling by Estimating the Ratios of the Data Distribution",
           arXiv 2310.16834, with absorption

At a time t in (0, 1] each token is masked with probability p(t). The model reads the remaining tokens in both
directions and predicts each masked token. The loss at one time is an unbiased estimate of a bound on the nats of the
text:

    -log P(x)  <=  E_t [ p'(t) / p(t)  sum over masked i of  l_i ]

with l_i = -log softmax(f_i)[x_i] for MDLM and MD4. SEDD's q = exp(f) / v need not sum to one, and its l_i is
-log q_i[x_i] + sum_y q_i[y] - 1. MDLM's model does not see t; MD4's and SEDD's do, by adaLN.

Rows have no padding, and their first token is never masked. `model.py` computes the same for padded rows, scores texts
and generates; tests compare outputs, losses and gradients. Both have the same `state_dict`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mentalese.families.masked_diffusion.config import NORM_EPS, MaskedDiffusionConfig

WAVES = 256
"""Number of sines and cosines that represent the time."""
HIGHEST = 0.999
"""Largest mask probability in SEDD's sigma = -log(1 - p), which is infinite at p = 1."""


class MaskedDiffusion(nn.Module):
    """A bidirectional transformer that predicts masked tokens, with the loss of one of three papers."""

    def __init__(self, config: MaskedDiffusionConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, width)
        self.mask_embed = nn.Embedding(1, width)
        self.time = TimeEmbedding(config.conditioning_size) if config.sees_time else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.final_norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.final_modulation = modulation(config.conditioning_size, 2 * width) if config.sees_time else None
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed.weight

    def forward(self, input_ids: Tensor, masked: Tensor, p: Tensor) -> Tensor:
        """Return logits [batch, length, vocabulary] of the token at each position.

        Args:
            input_ids: [batch, length].
            masked: bool [batch, length]; the ids of masked tokens have no effect.
            p: [batch], the mask probability.
        """
        config, time = self.config, None
        if self.time is not None:
            time = self.time(-torch.log(1 - HIGHEST * p) if config.objective == "sedd" else 1000 * p)
        x = torch.where(masked[..., None], self.mask_embed.weight[0], self.embed(input_ids))
        for block in self.blocks:
            x = block(x, time)
        x = self.final_norm(x)
        if self.final_modulation is not None:
            shift, scale = self.final_modulation(time)[:, None].chunk(2, dim=-1)
            x = x * (1 + scale) + shift
        return self.lm_head(x)

    def loss(self, input_ids: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return an estimate of the bound of rows [batch, length] in nats per token, without each first token.

        The times of a batch are spread evenly over (0, 1], which lowers the estimate's variance (MDLM, appendix C).
        """
        rows, length = input_ids.shape
        times = 1 - (torch.rand((), generator=generator) + torch.arange(rows)) / rows
        p, _ = schedule(self.config.noise_schedule, times)
        masked = torch.rand(rows, length, generator=generator) < p[:, None]
        return self.loss_at(input_ids, times.to(input_ids.device), masked.to(input_ids.device))

    def loss_at(self, input_ids: Tensor, times: Tensor, masked: Tensor) -> Tensor:
        """Return the loss of rows [batch, length] at times [batch] with these masks, bool [batch, length]."""
        p, weight = schedule(self.config.noise_schedule, times)
        masked = masked & (torch.arange(input_ids.shape[1], device=masked.device) > 0)
        logits = self(input_ids, masked, p)
        if self.config.objective == "sedd":
            log_q = logits - math.log(logits.shape[-1])
            excess = log_q.exp().sum(-1) - 1
        else:
            log_q, excess = logits.log_softmax(-1), 0
        nll = excess - log_q.gather(-1, input_ids[..., None])[..., 0]
        return (weight[:, None] * masked * nll).sum() / input_ids[:, 1:].numel()


def schedule(kind: str, times: Tensor) -> tuple[Tensor, Tensor]:
    """Return p(t) and p'(t) / p(t), where p(t) is t or sin(pi t / 2)."""
    if kind == "linear":
        return times, 1 / times
    angle = math.pi / 2 * times
    return angle.sin(), math.pi / 2 * angle.cos() / angle.sin()


class Block(nn.Module):
    """Attention in both directions and SwiGLU, each after a norm; the time shifts, scales and gates both (adaLN)."""

    def __init__(self, config: MaskedDiffusionConfig) -> None:
        super().__init__()
        width, self.heads = config.hidden_size, config.num_attention_heads
        self.attention_norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width, eps=NORM_EPS)
        self.gate_up = nn.Linear(width, 2 * config.width, bias=False)
        self.mlp_out = nn.Linear(config.width, width, bias=False)
        self.modulation = modulation(config.conditioning_size, 6 * width) if config.sees_time else None

    def forward(self, x: Tensor, time: Tensor | None) -> Tensor:
        if self.modulation is None:
            x = x + self.attend(self.attention_norm(x))
            return x + self.mlp(self.mlp_norm(x))
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = self.modulation(time)[:, None].chunk(6, dim=-1)
        x = x + gate * self.attend(self.attention_norm(x) * (1 + scale) + shift)
        return x + gate_mlp * self.mlp(self.mlp_norm(x) * (1 + scale_mlp) + shift_mlp)

    def attend(self, x: Tensor) -> Tensor:
        """Return the output of attention among all positions [batch, length, hidden]."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = rotated(q), rotated(k)
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        return self.attention_out((weights @ v).transpose(1, 2).flatten(2))

    def mlp(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.mlp_out(F.silu(gate) * up)


class TimeEmbedding(nn.Module):
    """The embedding of the time: sines and cosines, then two maps (Peebles and Xie, 2023)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(WAVES, size), nn.Linear(size, size)

    def forward(self, time: Tensor) -> Tensor:
        """Return the embedding [batch, size] of times [batch]."""
        half = WAVES // 2
        angles = time[:, None] * 10_000.0 ** (-torch.arange(half, device=time.device) / half)
        waves = torch.cat((angles.cos(), angles.sin()), dim=-1).to(self.inner.weight.dtype)
        return F.silu(self.out(F.silu(self.inner(waves))))


def modulation(size: int, outputs: int) -> nn.Linear:
    """Return a map of the time that starts at zero, so that blocks initially add nothing (adaLN-zero)."""
    linear = nn.Linear(size, outputs)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def rotated(x: Tensor) -> Tensor:
    """Turn channels j and j + d / 2 of x [batch, heads, length, d] by position * 10,000^(-2 j / d)."""
    half = x.shape[-1] // 2
    positions = torch.arange(x.shape[-2], device=x.device)
    angles = positions[:, None] * 10_000.0 ** (-torch.arange(half, device=x.device) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
