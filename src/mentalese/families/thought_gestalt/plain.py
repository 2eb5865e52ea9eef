"""Thought Gestalt in one file: read this file first. It is a complete model with its losses, to train or to change.

Borazjanizadeh and McClelland, "Modeling Language as a Sequence of Thoughts", arXiv 2512.25026; sections are the
paper's.

The model reads a document one sentence at a time. Tokens attend to their own sentence and, by cross-attention, to a
memory with one vector for each earlier sentence (section 2.2). The vector of a sentence enters the memory with its
graph, so the next-token loss of later sentences trains it (Figure 1).

As in section 2.1, every sentence is padded to the maximum. Every step runs all layers, and the memory's keys and values
are computed again in each step. `model.py` computes the same, fast; tests compare outputs, losses and gradients, and
`benchmarks/thought_gestalt.py` compares speed. Both have the same `state_dict`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mentalese.families.thought_gestalt.config import HINGE_WEIGHT, ThoughtGestaltConfig


@dataclass
class Reading:
    """The states of streams after all steps, sentence by sentence.

    Attributes:
        ids: [batch, sentences, tokens], padded to `max_sentence_tokens` + 3.
        hidden: [batch, sentences, tokens, hidden], the input of the head.
        vectors: s_t [batch, hidden] of each step; empty without a memory.
        norms: lengths [batch] of these vectors before normalisation.
    """

    ids: Tensor
    hidden: Tensor
    vectors: list[Tensor]
    norms: list[Tensor]


class ThoughtGestalt(nn.Module):
    """A decoder of sentences `BOS w1..wn EOS` that reads the vectors of earlier sentences (Figure 3)."""

    def __init__(self, config: ThoughtGestaltConfig) -> None:
        super().__init__()
        self.config, width = config, config.hidden_size
        self.embed = nn.Embedding(config.vocab_size, width)
        self.position_embed = nn.Embedding(config.max_sentence_tokens + 3, width)
        self.blocks = nn.ModuleList(Block(config, i) for i in range(config.layers_per_turn or config.num_hidden_layers))
        self.sentence_head = SentenceHead(config) if config.memory != "none" else None
        self.next_vector = nn.Linear(width, width) if config.next_vector_weight else None
        self.final_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:  # as in GPT-2: what is added to the residual stream is smaller the deeper the model
                depth = math.sqrt(2 * config.num_hidden_layers) if name.endswith(".out.weight") else 1
                nn.init.normal_(parameter, std=config.initializer_range / depth)
            elif name.endswith(".bias"):
                nn.init.zeros_(parameter)

    def forward(self, rows: Tensor) -> Tensor:
        """Return logits [batch, length, vocabulary] of streams [batch, length] with padding at any place."""
        return self.lm_head(self.hidden_states(rows))

    def hidden_states(self, rows: Tensor) -> Tensor:
        """Return the final hidden states [batch, length, hidden] of streams [batch, length], zero at padding."""
        reading, pad = self.read(rows), self.config.pad_token_id
        hidden = reading.hidden.new_zeros(*rows.shape, self.config.hidden_size)
        hidden[rows != pad] = reading.hidden[reading.ids != pad]  # both sides keep the order of tokens
        return hidden

    def loss(
        self, rows: Tensor, eos_weight: float = 1.0, token_dropout: float = 0.0, sentence_dropout: float = 0.0
    ) -> Tensor:
        """Return the mean loss of all tokens except the first of each sentence.

        Args:
            rows: streams [batch, length].
            eos_weight: weight of ends of sentences (section 2.3).
            token_dropout, sentence_dropout: rates of appendix B.2, used only in training mode.
        """
        config = self.config
        reading = self.read(rows, token_dropout, sentence_dropout)
        targets, real = reading.ids[..., 1:], reading.ids[..., 1:] != config.pad_token_id
        weights = torch.where(targets == config.sentence_end_token_id, eos_weight, 1.0) * real
        nll = F.cross_entropy(self.lm_head(reading.hidden[:, :, :-1][real]), targets[real], reduction="none")
        loss = (weights[real] * nll).sum()
        of_sentence = weights.sum(-1) * (targets == config.sentence_end_token_id).any(-1)  # 0 without an end
        if config.memory != "none" and config.sentence_head == "normalized":  # the release's loss, not the paper's
            norms = torch.stack(reading.norms, dim=1)
            outside = F.relu(norms - 1.1) + F.relu(0.9 - norms)
            loss = loss + HINGE_WEIGHT * (of_sentence * outside.square()).sum()
        if self.next_vector is not None:  # ours
            vectors = torch.stack(reading.vectors, dim=1)
            before = vectors[:, :-1].detach() if config.memory_gradient_window == 0 else vectors[:, :-1]
            errors = (self.next_vector(before) - vectors[:, 1:].detach()).square().sum(-1)
            loss = loss + config.next_vector_weight * (of_sentence[:, 1:] * errors).sum()
        return loss / weights.sum()

    def read(self, rows: Tensor, token_dropout: float = 0.0, sentence_dropout: float = 0.0) -> Reading:
        """Read streams [batch, length] sentence by sentence; padding follows a stream that has ended."""
        config = self.config
        ids, window = self.sentences(rows), config.memory_gradient_window
        hidden: list[Tensor] = []
        vectors: list[Tensor] = []
        norms: list[Tensor] = []
        for step in ids.unbind(1):
            memory = vectors[-config.memory_size :]  # the newest last, with an age of 1
            if window is not None:  # Table 1: older vectors get no gradient
                memory = [s if len(memory) - rank <= window else s.detach() for rank, s in enumerate(memory)]
            x = F.dropout(self.embedded(step, vectors, token_dropout), config.embedding_dropout, self.training)
            prefix = 0
            if config.memory == "prefix" and memory:
                prefix = len(memory)
                x = torch.cat((torch.stack(memory, dim=1) + memory_positions(prefix, config, x), x), dim=1)
            last = prefix + ((step != config.pad_token_id).sum(1) - 1).clamp(min=0)
            for layer in range(config.num_hidden_layers):
                x = self.blocks[layer % len(self.blocks)](x, memory)
                if layer == config.vector_layer and self.sentence_head is not None:
                    vector, norm = self.sentence_head(x[torch.arange(len(x)), last], sentence_dropout)
                    vectors.append(vector)
                    norms.append(norm)
            hidden.append(self.final_norm(x[:, prefix:]))
        return Reading(ids, torch.stack(hidden, dim=1), vectors, norms)

    def sentences(self, rows: Tensor) -> Tensor:
        """Return the padded sentences, [batch, sentences, max_sentence_tokens + 3] (section 2.1)."""
        config = self.config
        count = int((rows == config.sentence_start_token_id).sum(1).max())
        ids = rows.new_full((len(rows), count, config.max_sentence_tokens + 3), config.pad_token_id)
        for row, tokens in enumerate(rows):
            k, place, ended = -1, 0, True
            for token in tokens[tokens != config.pad_token_id].tolist():
                if ended != (token == config.sentence_start_token_id):
                    raise ValueError(f"row {row}: markers of sentences are unbalanced at {token}")
                k, place = (k + 1, 0) if ended else (k, place + 1)
                ids[row, k, place], ended = token, token == config.sentence_end_token_id
        return ids

    def embedded(self, ids: Tensor, vectors: list[Tensor], token_dropout: float) -> Tensor:
        """Return X^(0) [batch, tokens, hidden] of sentences [batch, tokens]: E[x] + P, the seed in place of E[BOS].

        The formula of section 2.2 replaces P at the start too; here it is added, as in the paper's text.
        """
        config, x = self.config, self.embed(ids)
        if vectors and config.context_seeding:
            seed = vectors[-1].detach() if config.memory_gradient_window == 0 else vectors[-1]
            x = torch.cat((seed[:, None], x[:, 1:]), dim=1)
        x = x + self.position_embed.weight
        if self.training and token_dropout:  # whole embeddings, not channels (appendix B.2)
            dropped = torch.rand(ids.shape, device=x.device) < token_dropout
            for marker in (config.sentence_start_token_id, config.sentence_end_token_id, config.eos_token_id):
                dropped &= ids != marker
            x = x.masked_fill(dropped[..., None], 0.0)
        return x


class SentenceHead(nn.Module):
    """The map s_t = W_sent h_EOS (section 2.2); `normalized` (the release) norms h first and scales s_t to length 1."""

    def __init__(self, config: ThoughtGestaltConfig) -> None:
        super().__init__()
        self.normalized, self.eps = config.sentence_head == "normalized", config.layer_norm_eps
        self.linear = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, h: Tensor, dropout: float) -> tuple[Tensor, Tensor]:
        """Return the vectors [batch, hidden] of states [batch, hidden], and their lengths [batch] before scaling."""
        h = F.layer_norm(h, h.shape[-1:], eps=self.eps) if self.normalized else h
        s = self.linear(F.dropout(h, dropout, self.training))
        norms = s.norm(dim=-1)
        return s / norms.clamp(min=1e-6)[:, None] if self.normalized else s, norms


class Block(nn.Module):
    """Pre-norm attention to the sentence, to the memory (Figure 3), or to both (Table 1), then an MLP."""

    def __init__(self, config: ThoughtGestaltConfig, layer: int) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.layout, self.dropout = config.attention_layout, nn.Dropout(config.residual_dropout)
        self.reads = layer in config.cross_layers
        self.attends = not self.reads or self.layout != "alternate"
        if self.attends:
            self.attention_norm, self.attention = nn.LayerNorm(width, eps=eps), SelfAttention(config)
        if self.reads:
            self.memory_norm, self.memory_attention = nn.LayerNorm(width, eps=eps), CrossAttention(config)
        self.mlp_norm, self.mlp = nn.LayerNorm(width, eps=eps), MLP(config)

    def forward(self, x: Tensor, memory: list[Tensor]) -> Tensor:
        """Return the states [batch, tokens, hidden] after the block; the oldest vector comes first in the memory."""
        if self.layout == "parallel":
            x = x + self.attend(x) + self.read(x, memory)
        elif self.layout == "cross_self":
            x = x + self.read(x, memory)
            x = x + self.attend(x)
        else:
            x = x + self.attend(x)
            x = x + self.read(x, memory)
        return x + self.dropout(self.mlp(self.mlp_norm(x)))

    def attend(self, x: Tensor) -> Tensor | float:
        return self.dropout(self.attention(self.attention_norm(x))) if self.attends else 0.0

    def read(self, x: Tensor, memory: list[Tensor]) -> Tensor | float:
        return self.dropout(self.memory_attention(self.memory_norm(x), memory)) if self.reads and memory else 0.0


class SelfAttention(nn.Module):
    """Causal attention within the sentence."""

    def __init__(self, config: ThoughtGestaltConfig) -> None:
        super().__init__()
        self.heads, self.dropout, width = config.num_attention_heads, config.attention_dropout, config.hidden_size
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        return self.out(attention(q, k, v, self.heads, self.dropout if self.training else 0.0, later))


class CrossAttention(nn.Module):
    """The gated read of the memory (section 2.2): K = W_K (s + PE[rank]), V = W_V s."""

    def __init__(self, config: ThoughtGestaltConfig) -> None:
        super().__init__()
        self.config, width = config, config.hidden_size
        self.query, self.key_value, self.out = (nn.Linear(width, n * width) for n in (1, 2, 1))
        self.gate = nn.Parameter(torch.full((1,), config.gate_init))

    def forward(self, x: Tensor, memory: list[Tensor]) -> Tensor:
        config, s = self.config, torch.stack(memory, dim=1)  # [batch, vectors, hidden]
        (key, value), (key_bias, value_bias) = self.key_value.weight.chunk(2), self.key_value.bias.chunk(2)
        k = F.linear(s + memory_positions(len(memory), config, s), key, key_bias)
        v = F.linear(s, value, value_bias)
        dropout = config.attention_dropout if self.training else 0.0
        return self.gate * self.out(attention(self.query(x), k, v, config.num_attention_heads, dropout))


class MLP(nn.Module):
    """GPT-2's MLP, or SwiGLU."""

    def __init__(self, config: ThoughtGestaltConfig) -> None:
        super().__init__()
        self.gated = config.activation == "swiglu"
        self.up = nn.Linear(config.hidden_size, config.mlp_width * (2 if self.gated else 1))
        self.out = nn.Linear(config.mlp_width, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        if not self.gated:
            return self.out(F.gelu(self.up(x)))
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.out(F.silu(gate) * up)


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int, dropout: float, later: Tensor | None = None) -> Tensor:
    """Return softmax(q k^T / sqrt(d)) v, [batch, tokens, width], head by head; positions in `later` are masked."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if later is not None:
        scores = scores.masked_fill(later, -math.inf)
    return (F.dropout(scores.softmax(-1), dropout) @ v).transpose(1, 2).flatten(2)


def memory_positions(count: int, config: ThoughtGestaltConfig, like: Tensor) -> Tensor:
    """Return PE [count, hidden] by rank, 0 the oldest: alternating sines and cosines, of length 1 (the release)."""
    width = config.hidden_size
    frequencies = 10_000 ** (-torch.arange(0, width, 2, device=like.device) / width)
    angles = torch.arange(count, device=like.device)[:, None] * frequencies
    table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).to(like.dtype)
    return table * math.sqrt(2 / width)
