"""Thoughtbubbles in its plainest form: read this file first.

Liu et al., "Thoughtbubbles: an Unsupervised Method for Parallel Thinking in Latent Space", arXiv 2510.00219. Equations
are the paper's.

Each token enters as one residual stream. Before some blocks every stream may fork, and only the best streams continue.
A stream's cumulative score scales what it writes and how much attention it gets; at the end a token's streams are
averaged. One text, streams in a list, every sum written out, and everything differentiable. `model.py` computes the
same, fast, and tests compare outputs and gradients.

Letters in shapes: L tokens, N streams, d hidden size, v vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mentalese.families.thoughtbubbles.config import ThoughtbubblesConfig


@dataclass
class Stream:
    """One residual stream: its state [d], its log cumulative score, its token, and whether it entered as that token."""

    x: Tensor
    score: Tensor
    token: int
    own: bool


def log_probabilities_reference(model: Any, input_ids: Tensor, selection: str | None = None) -> Tensor:
    """[L, v], the log probabilities that each token [L] of a text predicts."""
    return read_out(model, streams_reference(model, input_ids, selection), len(input_ids))


def streams_reference(model: Any, input_ids: Tensor, selection: str | None = None) -> list[Stream]:
    """The streams of a text [L] after the last block."""
    config = model.config
    streams = [
        Stream(model.embed.weight[token], torch.zeros(()), i, copy == config.copies - 1)
        for i, token in enumerate(input_ids.tolist())
        for copy in range(config.copies)
    ]
    for layer, block in enumerate(model.layers):
        if layer in config.fork_layers:
            streams = fork_reference(
                streams, model.fork_decisions[str(layer)], config, len(input_ids), selection or config.selection
            )
        x = torch.stack([s.x for s in streams])
        p = torch.stack([s.score for s in streams]).exp()
        x = x + p[:, None] * attention_reference(block.attention, block.attention_norm(x), streams, config)  # Eq. 9
        x = x + p[:, None] * block.mlp(block.mlp_norm(x))  # Eq. 10
        streams = [Stream(row, s.score, s.token, s.own) for row, s in zip(x, streams)]
    return streams


def fork_reference(
    streams: list[Stream], module: Any, config: ThoughtbubblesConfig, length: int, selection: str
) -> list[Stream]:
    """Eq. 1 to 6: every stream and its fork are candidates, and some of them stay, in order."""
    candidates = []
    for s in streams:
        fork, keep = F.logsigmoid(module.decide(module.norm(s.x))).clamp(min=-20)
        candidates.append(Stream(s.x + module.embedding, s.score + fork, s.token, False))
        candidates.append(Stream(s.x, s.score + keep, s.token, s.own))
    merit = [math.inf if c.own else c.score.item() for c in candidates]  # Eq. 4
    by_merit = sorted(range(len(candidates)), key=lambda i: (-merit[i], i))
    kept: set[int] = set()
    if selection == "block":
        tokens = config.max_position_embeddings if config.budget_mode == "fixed" else length
        kept = set(by_merit[: config.streams(tokens)])
    else:
        for token in range(length):
            good = [i for i in by_merit if candidates[i].token == token]
            good = [i for i in good if candidates[i].own or merit[i] >= float(module.threshold)]
            room = int(config.most_streams(torch.tensor(token + 1), config.budget_mode))
            kept |= set(good[: room - len(kept)])
    return [candidates[i] for i in sorted(kept)]


def positions_reference(streams: list[Stream], config: ThoughtbubblesConfig) -> list[float]:
    """Eq. 13: fork p of token i, counted from its own stream, is p/q before position i + 1."""
    positions = []
    for i, s in enumerate(streams):
        p = sum(other.token == s.token for other in streams[i + 1 :])
        q = sum(other.token == s.token for other in streams) - (config.rotation == "forks")
        positions.append(s.token + 1 - (p / q if p else 0.0))
    return positions


def attention_reference(module: Any, x: Tensor, streams: list[Stream], config: ThoughtbubblesConfig) -> Tensor:
    """Eq. 8, [N, d] to [N, d], head by head."""
    positions, scores = positions_reference(streams, config), torch.stack([s.score for s in streams])
    width = config.hidden_size // config.num_attention_heads
    scored = bool(config.fork_layers)
    scale = math.sqrt(config.hidden_size if scored and config.score_scale == "model" else width)
    causal = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    heads = []
    for head in range(config.num_attention_heads):
        q, k, v = (y[:, head * width : (head + 1) * width] for y in module.qkv(x).chunk(3, dim=-1))
        q, k = rotate_by_position(q, positions, config), rotate_by_position(k, positions, config)
        if scored and config.score_scale == "overwrite":
            q, k = q[:, :-1], k[:, :-1]
        logits = (q @ k.T + scores) / scale
        weights = logits.masked_fill(~causal, -math.inf).softmax(-1)
        heads.append(weights @ (v * scores.exp()[:, None]))
    return module.out(torch.cat(heads, dim=-1))


def rotate_by_position(x: Tensor, positions: list[float], config: ThoughtbubblesConfig) -> Tensor:
    """Channel i turns with channel i + d_h / 2 by position * theta^(-2 i / d_h)."""
    half = x.shape[-1] // 2
    rows = []
    for row, position in zip(x, positions):
        angles = torch.tensor([position * config.rope_theta ** (-i / half) for i in range(half)])
        a, b = row[:half], row[half:]
        rows.append(torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin())))
    return torch.stack(rows)


def read_out(model: Any, streams: list[Stream], length: int) -> Tensor:
    """[L, v]: Eq. 11, or one of the three other read-outs."""
    rows = []
    for token in range(length):
        of_token = [s for s in streams if s.token == token]
        x, p = torch.stack([s.x for s in of_token]), torch.stack([s.score for s in of_token]).exp()
        readout = model.config.readout if model.config.fork_layers else "rightmost"
        if readout == "mixture":
            distributions = model.lm_head(model.final_norm(x)).softmax(-1)
            rows.append(((p[:, None] * distributions).sum(0) / p.sum()).log())
            continue
        if readout == "rightmost":
            hidden = model.final_norm(of_token[-1].x)
        elif readout == "residual":
            hidden = model.final_norm((p[:, None] * x).sum(0))
        else:
            hidden = (p[:, None] * model.final_norm(x)).sum(0)
        rows.append(model.lm_head(hidden).log_softmax(-1))
    return torch.stack(rows)
