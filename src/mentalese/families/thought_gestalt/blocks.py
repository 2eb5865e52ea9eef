"""The modules of Thought Gestalt.

Letters in shapes: n sentences and N tokens of a step; m vectors to read, d hidden size.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GradientCheckpointingLayer

from mentalese.families.thought_gestalt.config import ThoughtGestaltConfig
from mentalese.families.thought_gestalt.plan import Step
from mentalese.families.thought_gestalt.repeated import Unit, Use, uses_of
from mentalese.nn.blocks import MLP, ResidualLinear
from mentalese.nn.ragged import causal_attention, reading_attention, split_heads

if TYPE_CHECKING:
    from mentalese.families.thought_gestalt.model import ThoughtGestaltForCausalLM


class SelfAttention(nn.Module):
    """Causal attention among the tokens of one sentence (section 2.2)."""

    def __init__(self, config: ThoughtGestaltConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.num_attention_heads, config.attention_dropout
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = ResidualLinear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        qkv, dropout = step.linear("qkv", self.qkv, x), self.dropout if self.training else 0.0
        if step.cache is not None:
            return self.out(step.cache.attend(step.layer, qkv, self.heads, dropout))
        return step.linear("out", self.out, causal_attention(qkv, step.sequences, self.heads, dropout))


class CrossAttention(nn.Module):
    """The gated read of the memory (section 2.2). With an empty memory a sentence reads exactly zero."""

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
        (keys, values), dropout = step.memory[step.layer], self.dropout if self.training else 0.0
        if step.cache is not None:
            return step.cache.read(q, keys, values, self.heads, dropout, step.cache.used)
        if step.attention is not None:
            step.attention.append(self._weights(q, keys, step))
        return reading_attention(q, keys, values, step.used, step.sequences, self.heads, dropout)

    def _weights(self, q: Tensor, keys: Tensor, step: Step) -> Tensor:
        """Return the attention weights [N, m], averaged over heads, for traces. All slots are used."""
        ((query,),) = step.sequences.pad(q, self.heads)
        scores = query @ split_heads(keys, self.heads).transpose(-1, -2)
        weights = (scores / math.sqrt(q.shape[-1] / self.heads)).softmax(-1).mean(1)
        return weights.flatten(0, 1)[step.sequences.place]


class Block(GradientCheckpointingLayer):
    """Pre-norm attention and MLP. They read the sentence, the memory (Figure 3), or both (Table 1)."""

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
        self.mlp = MLP(config.hidden_size, config.mlp_width, config.activation)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """Return the states [N, d] after the block."""
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
        up = step.linear("up", self.mlp.up, step.norm("up", self.mlp_norm, x))
        return x + self._dropped(step.linear("down", self.mlp.out, self.mlp.activate(up)))

    def uses(self, sizes: list[int]) -> list[dict[str, Use]]:
        """Return the uses of this block's maps for steps of these sizes, including preceding norms and the gate."""
        maps = {"up": uses_of(self.mlp.up, sizes, norm=self.mlp_norm), "down": uses_of(self.mlp.out, sizes)}
        if self.attends:
            maps["qkv"] = uses_of(self.attention.qkv, sizes, norm=self.attention_norm)
            maps["out"] = uses_of(self.attention.out, sizes)
        if self.reads:
            read = self.memory_attention
            maps["query"] = uses_of(read.query, sizes, norm=self.memory_norm)
            maps["read"] = uses_of(read.out, sizes, scale=read.gate)
        return [{name: of[k] for name, of in maps.items() if of is not None} for k in range(len(sizes))]

    def _attend(self, x: Tensor, step: Step) -> Tensor:
        return self._dropped(self.attention(step.norm("qkv", self.attention_norm, x), step))

    def _read(self, x: Tensor, step: Step) -> Tensor:
        return self._dropped(self.memory_attention(step.norm("query", self.memory_norm, x), step))

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class SentenceHead(nn.Module):
    """The map s_t = W_sent h_EOS (section 2.2), after dropout (B.2); `normalized` norms h and scales s_t to length 1.

    The norm has no weights, because the linear map after it includes them.
    """

    def __init__(self, config: ThoughtGestaltConfig) -> None:
        super().__init__()
        self.normalized, self.eps = config.sentence_head == "normalized", config.layer_norm_eps
        self.linear = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, h: Tensor, dropout: float, use: Use | None = None) -> tuple[Tensor, Tensor]:
        """Return the vectors [n, d] of states [n, d], and their lengths [n] before normalisation."""
        if self.normalized:
            h = F.layer_norm(h, h.shape[-1:], eps=self.eps)
        s = (use or self.linear)(F.dropout(h, dropout, self.training))
        s = s.to(torch.promote_types(s.dtype, torch.float32))
        return Unit.apply(s) if self.normalized else (s, s.norm(dim=-1))

    def uses(self, sizes: list[int]) -> list[dict[str, Use]]:
        """Return the uses of the map for steps with these numbers of sentences."""
        uses = uses_of(self.linear, sizes)
        return [{} if uses is None else {"head": uses[k]} for k in range(len(sizes))]


Layered = tuple[Tensor, Tensor | None, Tensor | None]
"""A step's states [N, d], and its vectors [n, d] and their lengths [n] if its layers make any."""


class CompiledLayers(nn.Module):
    """The compiled `run_layers` of a model, with one graph for each `_kind` of step."""

    def __init__(self, model: ThoughtGestaltForCausalLM) -> None:
        super().__init__()
        self.model = model

    def compile(self, **options: Any) -> None:
        # Weights are among the inputs: sizes that never change would only make compilation ten times slower.
        run = torch.compile(self.model.run_layers, **(options | {"dynamic": None}))
        kinds: set[tuple[bool, ...]] = set()

        def compiled(x: Tensor, steps: list[Step], sentence_dropout: float) -> Layered:
            kind = _kind(steps[0])
            if kind not in kinds:
                kinds.add(kind)
                _mark_sizes(x, steps)
            return run(x, steps, sentence_dropout)

        self.model.compiled_layers = compiled


def _kind(step: Step) -> tuple[bool, ...]:
    """Return all properties that a graph depends on: gradients, first sentences, places of tokens, sizes of 1."""
    slots = [keys.shape[1] > 1 for keys, _ in step.memory.values()]
    return torch.is_grad_enabled(), step.has_memory is None, step.sequences.even, len(step.sequences.order) > 1, *slots


def _mark_sizes(x: Tensor, steps: list[Step]) -> None:
    """Mark the sizes that differ from step to step: numbers of tokens, of sentences and of vectors in memory.

    The compiler uses these marks only when it builds a graph.
    """
    mark, step = torch._dynamo.maybe_mark_dynamic, steps[0]
    rows = [x, step.last, step.sequences.place, step.has_memory]
    rows += [tensor for step in steps for use in step.maps.values() for tensor in (use.rows, use.inputs)]
    for tensor in rows:
        if tensor is not None:
            mark(tensor, 0)
    for tensor in (step.sequences.index, *(tensor for pair in step.memory.values() for tensor in pair)):
        mark(tensor, [0, 1])
