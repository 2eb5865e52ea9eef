"""Thoughtbubbles in one file: read this file first. It is a complete model with its loss, to train or to change.

Liu et al., "Thoughtbubbles: an Unsupervised Method for Parallel Thinking in Latent Space", arXiv 2510.00219; sections
and equations are the paper's.

Each token enters as one residual stream. Before some blocks every stream may fork, and only the best streams continue
(section 2.3). A stream's cumulative score scales what it writes and how much attention it gets (section 2.4), so the
loss of the next token trains the scores. At the end a token's streams make one prediction (section 2.5).

The model reads one text at a time, without padding or cache. `model.py` computes the same, fast, for batches; tests
compare outputs, gradients and steps of training. Both have the same `state_dict`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mentalese.families.thoughtbubbles.config import NORM_EPS, ThoughtbubblesConfig

LOWEST = -20.0  # smallest log-probability of a decision
UNKNOWN = 1.0  # threshold before training, which no log-probability reaches
ROUNDING = 1e-5  # share of a threshold by which a score may miss it: a mean of equal scores is not quite that score


@dataclass
class Streams:
    """The residual streams of a text, in order: the forks of a token come before its own stream (section 2.2).

    Attributes:
        x: [streams, hidden].
        scores: [streams], log p_cum.
        token: [streams], the token of each stream.
        own: bool [streams], True for the original stream of a token.
    """

    x: Tensor
    scores: Tensor
    token: Tensor
    own: Tensor

    def positions(self, rotation: str) -> Tensor:
        """Return the positions [streams]: k - p/q for fork p of token k, with p = 0 for its own stream (Eq. 13).

        Tokens k count from 1.

        Args:
            rotation: the meaning of q, the number of a token's `streams` or of its `forks`, which is one less.
        """
        same = self.token[:, None] == self.token
        p, q = same.triu(1).sum(1), same.sum(1) - int(rotation == "forks")
        return self.token + 1 - p / q.clamp(min=1)


class Thoughtbubbles(nn.Module):
    """A GPT-2 with rotary positions whose residual streams fork before the blocks `fork_layers` (section 2.1)."""

    def __init__(self, config: ThoughtbubblesConfig) -> None:
        super().__init__()
        self.config, width = config, config.hidden_size
        self.embed = nn.Embedding(config.vocab_size, width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers_per_turn or config.num_hidden_layers))
        self.fork_decisions = nn.ModuleDict({str(layer): ForkDecision(config) for layer in config.fork_layers})
        self.final_norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:  # as in GPT-2: maps that write to a stream start smaller in deeper models
                depth = math.sqrt(2 * config.num_hidden_layers) if name.endswith(".out.weight") else 1
                nn.init.normal_(parameter, std=config.initializer_range / depth)
            elif name.endswith(".bias"):
                nn.init.constant_(parameter, 0.0)

    def forward(self, text: Tensor) -> Tensor:
        """Return the log-probabilities [length, vocabulary] of the token after each token of a text [length]."""
        return self.predict(self.read(text, self.config.selection))

    def loss(self, rows: Tensor) -> Tensor:
        """Return the mean cross-entropy of all tokens except the first of each row [batch, length] (section 2.1)."""
        if self.training and self.config.selection == "causal":
            self.find_first_thresholds()
        return torch.stack([F.nll_loss(self(row)[:-1], row[1:]) for row in rows]).mean()

    def read(self, text: Tensor, selection: str) -> Streams:
        """Return the streams of a text [length] after all blocks."""
        copies, length = self.config.copies, len(text)  # more than 1 in the baselines of section 3.3
        streams = Streams(
            x=self.embed(text).repeat_interleave(copies, dim=0),
            scores=torch.zeros(copies * length, device=text.device),  # p_cum = 1
            token=torch.arange(length, device=text.device).repeat_interleave(copies),
            own=torch.arange(1, copies * length + 1, device=text.device) % copies == 0,
        )
        for layer in range(self.config.num_hidden_layers):
            if layer in self.config.fork_layers:
                streams = self.fork_decisions[str(layer)](streams, length, selection)
            streams = replace(streams, x=self.blocks[layer % len(self.blocks)](streams))
        return streams

    def predict(self, streams: Streams) -> Tensor:
        """Return the log-probabilities [length, vocabulary] by Eq. 11 (`mixture`) or one of three other read-outs."""
        readout = self.config.readout if self.config.fork_layers else "rightmost"
        of_token = [streams.token == token for token in range(int(streams.own.sum()))]
        if readout == "mixture":
            joint = self.lm_head(self.final_norm(streams.x)).log_softmax(-1) + streams.scores[:, None]
            return torch.stack([joint[s].logsumexp(0) - streams.scores[s].logsumexp(0) for s in of_token])
        weights = torch.stack(of_token) * streams.scores.exp()  # [length, streams]
        if readout == "rightmost":
            hidden = self.final_norm(streams.x[streams.own])
        elif readout == "residual":
            hidden = self.final_norm(weights @ streams.x)
        else:
            hidden = weights @ self.final_norm(streams.x)
        return self.lm_head(hidden).log_softmax(-1)

    def after_step(self) -> None:
        """Move the thresholds of the causal selection; call it after each step of the optimizer (ours)."""
        for decision in self.fork_decisions.values():
            assert isinstance(decision, ForkDecision)
            decision.move_threshold(0.3 if self.config.selection == "causal" else 0.02)

    @torch.no_grad()
    def find_first_thresholds(self) -> None:
        """Estimate thresholds before the first step from random tokens, as a batch would reveal its later tokens."""
        config = self.config
        if not any(bool(decision.threshold == UNKNOWN) for decision in self.fork_decisions.values()):
            return
        shape, generator = (8, config.max_position_embeddings), torch.Generator().manual_seed(0)
        for row in torch.randint(config.vocab_size, shape, generator=generator):
            self.read(row.to(self.embed.weight.device), "block")
        self.after_step()


class ForkDecision(nn.Module):
    """A forking layer (section 2.3), with a threshold for the causal selection (ours)."""

    threshold: Tensor

    def __init__(self, config: ThoughtbubblesConfig) -> None:
        super().__init__()
        self.config, width = config, config.hidden_size
        self.norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.decide = nn.Linear(width, 2, bias=False)
        self.embedding = nn.Parameter(torch.randn(width) / width**0.5)
        self.register_buffer("threshold", torch.tensor(UNKNOWN))
        self.lowest: list[Tensor] = []

    def forward(self, streams: Streams, length: int, selection: str) -> Streams:
        """Return the streams after the fork: the selected ones of all streams and their forks."""
        decisions = F.logsigmoid(self.decide(self.norm(streams.x))).clamp(min=LOWEST)  # Eq. 1: fork, keep
        candidates = Streams(
            x=torch.stack((streams.x + self.embedding, streams.x), dim=1).flatten(0, 1),
            scores=(streams.scores[:, None] + decisions).flatten(),  # Eq. 2 and 3
            token=streams.token.repeat_interleave(2),
            own=torch.stack((torch.zeros_like(streams.own), streams.own), dim=1).flatten(),
        )
        merit = candidates.scores.detach().masked_fill(candidates.own, math.inf)  # Eq. 4
        kappa = self.config.streams(length)
        if self.training:
            everything = merit.new_tensor(-math.inf)
            self.lowest.append(merit.sort(descending=True).values[kappa - 1] if kappa < len(merit) else everything)
        selected = best(merit, kappa) if selection == "block" else self.select_causal(candidates, merit, length)
        return Streams(
            candidates.x[selected], candidates.scores[selected], candidates.token[selected], candidates.own[selected]
        )

    def select_causal(self, candidates: Streams, merit: Tensor, length: int) -> Tensor:
        """Return indices of candidates that reach the threshold, within the budget of the tokens so far (ours)."""
        selected: list[Tensor] = []
        reaches = candidates.own | (merit >= self.threshold * (1 + ROUNDING))
        for token in range(length):
            good = ((candidates.token == token) & reaches).nonzero()[:, 0]
            room = self.config.streams(token + 1) - sum(map(len, selected))
            selected.append(good[best(merit[good], room)])
        return torch.cat(selected)

    @torch.no_grad()
    def move_threshold(self, share: float) -> None:
        """Move the threshold towards the mean, since the last call, of the lowest scores in the top-k."""
        if not self.lowest:
            return
        lowest, self.lowest = torch.stack(self.lowest).clamp(max=0.0), []
        target = lowest[lowest > -math.inf].mean() if lowest.isfinite().any() else lowest[0]
        moved = self.threshold.lerp(target, share)
        self.threshold.copy_(moved if moved.isfinite() and self.threshold != UNKNOWN else target)


def best(merit: Tensor, count: int) -> Tensor:
    """Return the sorted indices of the `count` largest values of merit [n]; the earlier one among equals."""
    return merit.argsort(descending=True, stable=True)[:count].sort().values


class Block(nn.Module):
    """Pre-norm attention and MLP, with outputs multiplied by the scores (Eq. 9 and 10)."""

    def __init__(self, config: ThoughtbubblesConfig) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = (nn.LayerNorm(config.hidden_size, eps=NORM_EPS) for _ in range(2))
        self.attention, self.mlp = Attention(config), MLP(config)

    def forward(self, streams: Streams) -> Tensor:
        """Return the states [streams, hidden] after the block."""
        p = streams.scores.exp()[:, None]
        x = streams.x + p * self.attention(self.attention_norm(streams.x), streams)
        return x + p * self.mlp(self.mlp_norm(x))


class Attention(nn.Module):
    """Attention weighted by the scores of streams (Eq. 8), with fractional rotary positions (section D)."""

    def __init__(self, config: ThoughtbubblesConfig) -> None:
        super().__init__()
        self.config, width = config, config.hidden_size
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, streams: Streams) -> Tensor:
        config, scores = self.config, streams.scores
        q, k, v = self.qkv(x).unflatten(-1, (3, config.num_attention_heads, -1)).permute(1, 2, 0, 3)
        positions, scale = streams.positions(config.rotation), q.shape[-1]
        q, k = (rotated(part, positions) for part in (q, k))
        if config.fork_layers and config.score_scale == "model":
            scale = config.hidden_size  # as printed
        if config.fork_layers and config.score_scale == "overwrite":
            q, k = q[..., :-1], k[..., :-1]  # the release puts log P in the last channel
        logits = (q @ k.transpose(-1, -2) + scores) / math.sqrt(scale)
        later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        weights = logits.masked_fill(later, -math.inf).softmax(-1)
        return self.out((weights @ (v * scores.exp()[:, None])).transpose(0, 1).flatten(1))


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Turn channels i and i + d / 2 of x [heads, streams, d] by position * 10,000^(-2 i / d) (Eq. 12 and 13)."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * 10_000.0 ** (-torch.arange(half, device=x.device) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)


class MLP(nn.Module):
    """GPT-2's MLP."""

    def __init__(self, config: ThoughtbubblesConfig) -> None:
        super().__init__()
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"
        self.up = nn.Linear(config.hidden_size, 4 * config.hidden_size)
        self.out = nn.Linear(4 * config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.gelu(self.up(x), approximate=self.approximate))
