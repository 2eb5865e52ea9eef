"""The modules of Thoughtbubbles: blocks that weight streams by their scores, and the decision to fork.

Letters in shapes: B rows of N streams, d hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GradientCheckpointingLayer

from mentalese.errors import InputError
from mentalese.families.thoughtbubbles.config import NORM_EPS, ThoughtbubblesConfig
from mentalese.models.transformers_seam import attention_of
from mentalese.nn.attention import add_weighted, attend_with_scores, flex_attention_with_scores, with_scores
from mentalese.nn.blocks import MLP, ResidualLinear, merge_heads, rotary_heads
from mentalese.nn.controls import controlled

LOWEST = -20.0  # smallest log probability of a decision
UNKNOWN = 1.0  # threshold before training: not a log probability
CALIBRATION = 0.02  # step size of thresholds, as a share of the distance to the batch's threshold
FOLLOWING = 0.3  # the same if training selects by the threshold, which must then follow the scores
ROUNDING = 1e-5  # share of a threshold by which a score may miss it: a mean of equal scores is not quite that score


@dataclass
class StreamState:
    """The data that the blocks between two forks share.

    Attributes:
        layer: the next layer.
        rotary: cosines and sines [1 or B, 1, N, d_h / 2].
        scores: float32 [B, N], log p; `None` if all streams have weight 1.
        mask: bool [B, 1, N, m], the streams that each stream sees, with a cache in use; `None`: causal.
        slots: [B, N], the slots of these streams in `cache`, directly after the earlier ones of their row; `None`
            without a cache.
        end: number of slots in use in the longest row.
        cache: keys and values by layer, `k.LAYER` and `v.LAYER`, [B, heads, room, d_h (+ n)], see `with_scores`.
        attention: [B, N, N] per block, mean over heads, only for a trace.
    """

    layer: int
    rotary: tuple[Tensor, Tensor]
    scores: Tensor | None
    mask: Tensor | None
    slots: Tensor | None
    end: int
    cache: dict[str, Tensor] | None
    attention: list[Tensor] | None


class Attention(nn.Module):
    """Attention of Eq. 8, softmax((Q K^T + log p) / scale) (V p), with rotary positions (section D)."""

    def __init__(self, config: ThoughtbubblesConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.overwrite = config.score_scale == "overwrite"
        self.flex = attention_of(config) == "flex_attention"
        if self.flex and self.overwrite:
            raise InputError("score_scale is 'overwrite', which flex_attention does not support: set one of the two")
        width = config.hidden_size if config.score_scale == "model" and config.fork_layers else 0
        self.scale = (width or config.hidden_size // config.num_attention_heads) ** -0.5
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = ResidualLinear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        """Return the attention output [B, N, d]."""
        q, k, v = rotary_heads(self.qkv(x), self.heads, state.rotary)
        width = q.shape[-1]
        plain = state.cache is None and state.attention is None
        if self.flex and plain and state.scores is not None:
            return self.out(merge_heads(flex_attention_with_scores(q, k, v, state.scores, scale=self.scale)))
        if state.scores is not None:
            q, k, v = with_scores(q, k, v, state.scores, overwrite=self.overwrite)
        if state.cache is not None:
            k, v = (self._append(state, name, new) for name, new in (("k", k), ("v", v)))
        if state.attention is not None:
            logits = self.scale * (q @ k.transpose(-1, -2)).float()
            later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
            state.attention.append(logits.masked_fill(later, -math.inf).softmax(-1).mean(1))
        return self.out(attend_with_scores(q, k, v, width, scale=self.scale, attn_mask=state.mask))

    def _append(self, state: StreamState, name: str, new: Tensor) -> Tensor:
        """Return all keys or values so far, [B, heads, m, d_h (+ n)]."""
        name, end = f"{name}.{state.layer}", state.end
        assert state.cache is not None
        assert state.slots is not None
        old = state.cache.get(name, new[:, :, :0])
        graph = new.requires_grad or old.requires_grad
        if old.shape[2] < end:
            # Room for twice the length, so that most steps copy nothing; zeros, as masked slots are multiplied too.
            room = (end if graph else 2 * end) - old.shape[2]
            old = torch.cat((old, new.new_zeros(*new.shape[:2], room, new.shape[3])), dim=2)
        index = state.slots[:, None, :, None].expand_as(new)
        # Tensors with a gradient are not overwritten.
        state.cache[name] = old.scatter(2, index, new) if graph else old.scatter_(2, index, new)
        return state.cache[name][:, :, :end]


class Block(GradientCheckpointingLayer):
    """Pre-norm attention and MLP, each weighted by a stream's score (Eq. 9, 10)."""

    def __init__(self, config: ThoughtbubblesConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=NORM_EPS)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.hidden_size, eps=NORM_EPS)
        self.mlp = MLP(config.hidden_size, 4 * config.hidden_size, config.activation)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        """Return the states [B, N, d] after the block."""
        x = self._write(x, self.attention(self.attention_norm(x), state), state)
        return self._write(x, self.mlp(self.mlp_norm(x)), state)

    @staticmethod
    def _write(x: Tensor, update: Tensor, state: StreamState) -> Tensor:
        return x + update if state.scores is None else add_weighted(x, update, state.scores)


class ForkDecision(nn.Module):
    """The decisions of Eq. 1 to 3 in log space: log p_cum plus the log probabilities of forking and of keeping.

    `threshold` is the running mean of the lowest log score in the top-k (ours). It moves only between steps, so that it
    is the same for all micro-batches and ranks of a step and does not depend on the tokens of that step.
    Under transformers' own `Trainer` it moves after each micro-batch.
    """

    threshold: Tensor

    def __init__(self, config: ThoughtbubblesConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size, eps=NORM_EPS)
        self.decide = nn.Linear(config.hidden_size, 2, bias=False)
        self.config = config
        self.embedding = nn.Parameter(torch.empty(config.hidden_size))
        self.register_buffer("threshold", torch.tensor(UNKNOWN))
        self.observed: Tensor | None = None

    def forward(self, x: Tensor, scores: Tensor | None, tokens: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the scores, float32 [B, 2 N], of each stream's fork and the stream, and the embedding of forks [d].

        Inputs are states [B, N, d], scores, float32 [B, N], the numbers of the streams' tokens, int64 [B, N], and the
        places in use, bool [B, N]. The embedding is read here because sharded weights are available only during a call.
        """
        decided = self.decide(self.norm(x))
        decisions = F.logsigmoid(decided.to(torch.promote_types(decided.dtype, torch.float32))).clamp(min=LOWEST)
        control = self.config.thought_control
        decisions = controlled(decisions, control, math.log(0.5), tokens, real).clamp(max=0.0)
        decisions = decisions if scores is None else decisions + scores[..., None]
        return decisions.flatten(1), self.embedding

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ForkDecision:
        """Apply as `nn.Module` does, but keep the threshold float32: lower precision would lose small changes."""
        threshold = self.threshold
        super()._apply(fn, recurse)
        moved = self.threshold
        if moved.dtype != torch.float32:
            self.threshold = (
                torch.empty_like(moved, dtype=torch.float32) if threshold.is_meta else threshold.to(moved.device)
            )
        return self

    @torch.no_grad()
    def observe(self, lowest: Tensor) -> None:
        """Keep the lowest scores [B] in the top-k of rows (see `lowest_kept`) until the end of the step."""
        lowest = lowest.to(self.threshold.dtype).clamp(max=0.0)  # inf: only original streams stay
        real = lowest.isfinite()  # short rows keep everything and give no threshold
        totals = torch.stack((lowest.masked_fill(~real, 0.0).sum(), real.sum().to(lowest.dtype)))
        self.observed = totals if self.observed is None else self.observed + totals

    @torch.no_grad()
    def after_step(self, share: float) -> None:
        """Move the threshold by a share towards the mean over the rows of the step on all ranks."""
        if self.observed is None:
            return
        totals, self.observed = self.observed, None
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(totals)
        lowest = torch.where(totals[1] > 0, totals[0] / totals[1].clamp(min=1), -math.inf)
        moved = self.threshold.lerp(lowest, share)
        keeps = moved.isfinite() & (self.threshold != UNKNOWN)
        self.threshold.copy_(torch.where(keeps, moved, lowest))
