"""The modules of Thought Gestalt, and the sentences that they compute together.

Letters in shapes: B streams of L tokens; n sentences and N tokens of a step, R streams of it; m vectors that are read,
d hidden size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GradientCheckpointingLayer

from mentalese.families.thought_gestalt.config import ThoughtGestaltConfig
from mentalese.families.thought_gestalt.plan import OpenPlan, readable
from mentalese.families.thought_gestalt.repeated import Part, by_step, repeated, unit
from mentalese.models.hf import ResidualLinear
from mentalese.nn.ragged import Ragged, attend, causal_attention, reading_attention, split_heads


@dataclass
class Step:
    """Sentences that are computed together: the k-th of every stream that has one, or those of all steps at once.

    Attributes:
        layer: that is next.
        sequences: where their tokens are; vectors before a sentence (`memory` = `prefix`) are part of it.
        memory: a pair of keys and values [n, m, d] for each cross layer, sentences in `sequences.order`.
        used: bool [n, m] in that order, which of the m may be read; `None`: all.
        has_memory: bool [N, 1], whether a token's sentence has a vector to read; `None`: all do.
        cache: keys and values of the tokens of open sentences, if generation needs them.
        one: attention of one token a stream, which takes the place of all that has to do with sequences.
        attention: one [N, m] for each cross layer, mean over heads, if a trace was asked for.
        maps: for training, this step's part of the maps of the block that is next, by name.
    """

    layer: int = 0
    sequences: Ragged | None = None
    memory: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    used: Tensor | None = None
    has_memory: Tensor | None = None
    cache: OpenSentences | None = None
    one: OneToken | None = None
    attention: list[Tensor] | None = None
    maps: dict[str, Part] = field(default_factory=dict)

    def linear(self, name: str, module: nn.Module, x: Tensor) -> Tensor:
        """`module(x)`, by its part in `maps` if there is one."""
        part = self.maps.get(name)
        return module(x) if part is None else part(x)

    def norm(self, name: str, norm: nn.LayerNorm, x: Tensor) -> Tensor:
        """`norm(x)`, without its weights if the part of the map after it contains them."""
        return norm(x) if self.maps.get(name) is None else F.layer_norm(x, x.shape[-1:], eps=norm.eps)


@dataclass
class OpenSentences:
    """Keys and values of the current sentence of each stream, by slot: vectors before the sentence, then its tokens.

    Attributes:
        plan: where the tokens of this step are.
        state: the cache's, `self.LAYER` is [B, slots, 2 d].
        batch: B.
        size: slots for the longest possible sentence.
    """

    plan: OpenPlan
    state: dict[str, Tensor]
    batch: int
    size: int

    def attend(self, layer: int, qkv: Tensor, sequences: Ragged, heads: int) -> Tensor:
        """Causal attention of the new tokens [N, 3 d] to their sentence so far, [N, d]. Sequences are one group."""
        name, plan = f"self.{layer}", self.plan
        q, kv = qkv.split((qkv.shape[1] // 3, qkv.shape[1] * 2 // 3), dim=-1)
        slots = self.state.get(name)
        if slots is None:
            slots = kv.new_zeros(self.batch, self.size, kv.shape[1])
        put = slots.index_put if torch.is_grad_enabled() else slots.index_put_
        slots = self.state[name] = put((plan.rows, plan.slots), kv)
        k, v = (split_heads(x, heads) for x in slots[plan.streams, : plan.end].chunk(2, dim=-1))
        ((query,),) = sequences.pad(q, heads)
        slot, last = torch.arange(plan.end, device=q.device), plan.slots[sequences.index][..., None]
        seen = (slot <= last) & (slot >= plan.first[:, None, None])
        return sequences.unpad([attend(query, k, v, attn_mask=seen[:, None])])


class OneToken:
    """Attention of one token a stream to its open sentence and to the memory, in place of `OpenSentences`.

    Attributes:
        rows, position: [B], the streams, and the slot of each one's token.
        end, slots: slots of the sentence, and of the memory, that are read.
        seen: bool [B, 1, 1, end], `None`: all.
        used: bool [B, 1, 1, slots], `None`: all.
    """

    def __init__(self, state: dict[str, Tensor], size: int, memory_size: int) -> None:
        self.state, self.position, count = state, state["position"], state["count"]
        device = self.position.device
        self.rows = torch.arange(len(count), device=device)
        self.end, self.slots = size, memory_size
        self.seen: Tensor | None = None
        self.used: Tensor | None = None
        self.has_memory: Tensor | None = None
        positions = counts = [-1, 0]  # on a GPU unknown: all differ
        if device.type == "cpu":
            positions, counts = self.position.tolist(), count.tolist()
            self.end, self.slots = max(positions) + 1, max(1, *counts, 1)
        if len(set(positions)) > 1:
            self.seen = (torch.arange(self.end, device=device) <= self.position[:, None])[:, None, None]
        if len(set(counts)) > 1 or not counts[0]:
            self.has_memory = (count > 0)[:, None]
            used = torch.arange(self.slots, device=device) < count[:, None]
            self.used = readable(used)[:, None, None]

    def attend(self, layer: int, qkv: Tensor, heads: int) -> Tensor:
        """[B, 3 d] to [B, d]."""
        width = qkv.shape[1] // 3
        slots = self.state[f"self.{layer}"]
        slots.index_put_((self.rows, self.position), qkv[:, width:].to(slots.dtype))
        keys, values = slots[:, : self.end].to(qkv.dtype).chunk(2, dim=-1)
        return self._attend(qkv[:, :width], keys, values, self.seen, heads)

    def read(self, q: Tensor, keys: Tensor, values: Tensor, heads: int) -> Tensor:
        """[B, d] to [B, d], of the memory."""
        return self._attend(q, keys, values, self.used, heads)

    @staticmethod
    def _attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, heads: int) -> Tensor:
        k, v = split_heads(keys, heads), split_heads(values, heads)
        return F.scaled_dot_product_attention(q.view(len(q), heads, 1, -1), k, v, attn_mask=mask).reshape(q.shape)


class SelfAttention(nn.Module):
    """Causal attention among the tokens of one sentence (section 2.2)."""

    def __init__(self, config: ThoughtGestaltConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.num_attention_heads, config.attention_dropout
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = ResidualLinear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return step.linear("out", self.out, self._attend(step.linear("qkv", self.qkv, x), step))

    def _attend(self, qkv: Tensor, step: Step) -> Tensor:
        if step.one is not None or step.cache is not None:
            return self._attend_cached(qkv, step)
        assert step.sequences is not None
        return causal_attention(qkv, step.sequences, self.heads, self.dropout if self.training else 0.0)

    @torch.compiler.disable
    def _attend_cached(self, qkv: Tensor, step: Step) -> Tensor:
        if step.one is not None:
            return step.one.attend(step.layer, qkv, self.heads)
        assert step.cache is not None
        assert step.sequences is not None
        return step.cache.attend(step.layer, qkv, step.sequences, self.heads)


class CrossAttention(nn.Module):
    """The gated read of the memory (section 2.2). A sentence with an empty memory reads exactly zero."""

    def __init__(self, config: ThoughtGestaltConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.num_attention_heads, config.attention_dropout
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key_value = nn.Linear(config.hidden_size, 2 * config.hidden_size)  # applied by `MemoryMap`
        self.out = ResidualLinear(config.hidden_size, config.hidden_size)
        self.gate = nn.Parameter(torch.empty(1))

    def forward(self, x: Tensor, step: Step) -> Tensor:
        read = step.linear("read", self.out, self._attend(step.linear("query", self.query, x), step))
        read = read if "read" in step.maps else self.gate * read
        return read if step.has_memory is None else torch.where(step.has_memory, read, 0.0)

    def _attend(self, q: Tensor, step: Step) -> Tensor:
        keys, values = step.memory[step.layer]
        if step.one is not None:
            return step.one.read(q, keys, values, self.heads)
        assert step.sequences is not None
        if step.attention is not None:
            step.attention.append(self._weights(q, keys, step))
        dropout = self.dropout if self.training else 0.0
        return reading_attention(q, keys, values, step.used, step.sequences, self.heads, dropout)

    def _weights(self, q: Tensor, keys: Tensor, step: Step) -> Tensor:
        """[N, m], the mean over heads of the attention weights, for traces. Sequences are one group."""
        assert step.sequences is not None
        ((query,),) = step.sequences.pad(q, self.heads)
        scores = query @ split_heads(keys, self.heads).transpose(-1, -2)
        if step.used is not None:
            scores = scores.masked_fill(~step.used[:, None, None], -math.inf)
        weights = (scores / math.sqrt(q.shape[-1] / self.heads)).softmax(-1).mean(1)
        return weights.flatten(0, 1)[step.sequences.place]


class MLP(nn.Module):
    def __init__(self, config: ThoughtGestaltConfig) -> None:
        super().__init__()
        self.gated = config.activation == "swiglu"
        self.up = nn.Linear(config.hidden_size, config.mlp_width * (2 if self.gated else 1))
        self.out = ResidualLinear(config.mlp_width, config.hidden_size)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        up = step.linear("up", self.up, x)
        if not self.gated:
            return step.linear("down", self.out, F.gelu(up))
        gate, up = up.chunk(2, dim=-1)
        return step.linear("down", self.out, F.silu(gate) * up)


class Block(GradientCheckpointingLayer):
    """Pre-norm attention and MLP. A block attends to the sentence, to the memory (Figure 3), or to both (Table 1)."""

    def __init__(self, config: ThoughtGestaltConfig, layer: int) -> None:
        super().__init__()
        self.layout, self.dropout = config.attention_layout, config.residual_dropout
        self.reads = layer in config.cross_layers
        self.attends = not self.reads or self.layout != "alternate"
        if self.attends:
            self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
            self.attention = SelfAttention(config)
        if self.reads:
            self.memory_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
            self.memory_attention = CrossAttention(config)
        self.mlp_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """[N, d] to [N, d]."""
        if self.layout == "parallel":
            x = x + self._attend(x, step) + self._read(x, step)
        elif self.layout == "cross_self":
            x = x + self._read(x, step)
            x = x + self._attend(x, step)
        else:
            if self.attends:
                x = x + self._attend(x, step)
            if self.reads:
                x = x + self._read(x, step)
        return x + F.dropout(self.mlp(step.norm("up", self.mlp_norm, x), step), self.dropout, self.training)

    def repeated(self, sizes: list[int]) -> list[dict[str, Part]]:
        """The maps of this block for steps of these sizes, with the weights of the norms before them and the gate."""
        maps = {"up": repeated(self.mlp.up, sizes, norm=self.mlp_norm), "down": repeated(self.mlp.out, sizes)}
        if self.attends:
            maps["qkv"] = repeated(self.attention.qkv, sizes, norm=self.attention_norm)
            maps["out"] = repeated(self.attention.out, sizes)
        if self.reads:
            read = self.memory_attention
            maps["query"] = repeated(read.query, sizes, norm=self.memory_norm)
            maps["read"] = repeated(read.out, sizes, scale=read.gate)
        return by_step(maps, len(sizes))

    def _attend(self, x: Tensor, step: Step) -> Tensor:
        return F.dropout(self.attention(step.norm("qkv", self.attention_norm, x), step), self.dropout, self.training)

    def _read(self, x: Tensor, step: Step) -> Tensor:
        return F.dropout(
            self.memory_attention(step.norm("query", self.memory_norm, x), step), self.dropout, self.training
        )


class SentenceHead(nn.Module):
    """s_t = W_sent h_EOS (section 2.2), after dropout (B.2); `normalized` norms its input and makes s_t unit length.

    The norm has no weights: the linear map after it includes them.
    """

    def __init__(self, config: ThoughtGestaltConfig) -> None:
        super().__init__()
        self.normalized, self.eps = config.sentence_head == "normalized", config.layer_norm_eps
        self.linear = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, h: Tensor, dropout: float, step: Step) -> tuple[Tensor, Tensor]:
        """[R, d] to the vectors [R, d] and their lengths [R] before normalisation."""
        if self.normalized:
            h = F.layer_norm(h, h.shape[-1:], eps=self.eps)
        s = step.linear("head", self.linear, F.dropout(h, dropout, self.training))
        s = s.to(torch.promote_types(s.dtype, torch.float32))
        return unit(s) if self.normalized else (s, s.norm(dim=-1))
