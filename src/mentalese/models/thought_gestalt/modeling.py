"""Thought Gestalt, sentence by sentence (Borazjanizadeh and McClelland, "Modeling Language as a Sequence of Thoughts").

A stream of sentences `BOS w1..wn EOS` is read one sentence at a time. Inside a sentence, tokens attend to each other;
across sentences they only read a memory of at most M vectors, one a sentence. A sentence's vector is made from the
hidden state at its EOS in a middle layer and is written to memory with its graph, so that the loss of later sentences
trains it. This file is the plain form: one loop over sentence steps, all streams of a batch side by side.

Sections and equations are the paper's. Letters in shapes: B streams, L tokens a stream, R streams active in a step,
T tokens of the step's longest sentence, m vectors held in memory, d hidden size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LogitsProcessorList
from transformers import initialization as init

from mentalese.errors import InputError
from mentalese.models.base import (
    IGNORED,
    Batch,
    CausalLMOutputWithThoughts,
    LatentThoughtModel,
    LossOutput,
    Thought,
    ThoughtCache,
    ThoughtTrace,
)
from mentalese.models.thought_gestalt.configuration import ThoughtGestaltConfig
from mentalese.models.thought_gestalt.streams import Layout, SentenceMarkers, find_sentences
from mentalese.nn.loss import linear_nll


@dataclass
class SentenceStep:
    """The k-th sentence of every stream that has one, side by side (B.1), and what is known of it.

    Attributes:
        rows: [R], the streams.
        columns, ids, positions: [R, T], place in the stream, token, and position in the sentence.
        valid: [R, T], false behind the end of a shorter sentence.
        ended: [R], whether the sentence ends here, with its EOS.
        memory: [R, m, d], the vectors that can be read, newest last; unused slots come first.
        count: [R], how many of the m slots are in use.
        cache: receives the keys and values of the sentence, where generation needs them.
        attention: one [R, T, m] for each cross layer, mean over heads, where a trace was asked for.
        vectors, norms: [R, d] and [R], the sentence vectors s_t and their lengths before these were made 1.
    """

    rows: Tensor
    columns: Tensor
    ids: Tensor
    positions: Tensor
    valid: Tensor
    ended: Tensor
    memory: Tensor
    count: Tensor
    cache: ThoughtCache | None = None
    attention: list[Tensor] | None = None
    vectors: Tensor = field(default_factory=lambda: torch.empty(0))
    norms: Tensor = field(default_factory=lambda: torch.empty(0))

    def extend(self, layer: int, keys: Tensor, values: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values [R, p, d] of the sentence so far by position, and which of them each query sees [R, 1, T, p].

        The cache holds [B, size, d] a layer. A new sentence writes from position 0 on, over the one before it.
        """
        assert self.cache is not None
        end = int(self.positions.max()) + 1
        found = []
        for name, new in ((f"keys.{layer}", keys), (f"values.{layer}", values)):
            rows = self.rows[:, None].expand_as(self.positions)[self.valid]
            held = self.cache.state.get(name)
            if held is None:
                held = new.new_zeros(self.cache.state["position"].shape[0], size, new.shape[-1])
            self.cache.state[name] = held.index_put((rows, self.positions[self.valid]), new[self.valid])
            found.append(self.cache.state[name][self.rows, :end])
        seen = torch.arange(end, device=keys.device) <= self.positions[:, None, :, None]
        return found[0], found[1], seen


def _attend(q: Tensor, k: Tensor, v: Tensor, heads: int, **options: Any) -> Tensor:
    """softmax(q k^T / sqrt(d_h)) v, heads split and joined again: [R, T, d] and [R, n, d] to [R, T, d]."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2).flatten(2)


class ResidualLinear(nn.Linear):
    """A map whose output is added to the residual stream; it starts smaller the deeper the model (GPT-2).

    A class of its own, since transformers initialises no module that holds other modules only.
    """


class SelfAttention(nn.Module):
    """Causal attention among the tokens of one sentence (section 2.2)."""

    def __init__(self, config: ThoughtGestaltConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.dropout = layer, config.num_attention_heads, config.attention_dropout
        self.size = config.max_sentence_tokens + 3
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = ResidualLinear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, step: SentenceStep) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        seen = None
        if step.cache is not None:
            k, v, seen = step.extend(self.layer, k, v, self.size)
        dropout = self.dropout if self.training else 0.0
        return self.out(_attend(q, k, v, self.heads, attn_mask=seen, is_causal=seen is None, dropout_p=dropout))


class CrossAttention(nn.Module):
    """The gated read of the memory (section 2.2): K = W_K (s + PE[rank]), V = W_V s, rank 0 the oldest vector held.

    The increment of a stream whose memory is empty is exactly zero.
    """

    def __init__(self, config: ThoughtGestaltConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.num_attention_heads, config.attention_dropout
        self.unit_positions = config.memory_position_scale == "unit"
        self.query, self.key, self.value = (nn.Linear(config.hidden_size, config.hidden_size) for _ in range(3))
        self.out = ResidualLinear(config.hidden_size, config.hidden_size)
        self.gate = nn.Parameter(torch.empty(1))

    def forward(self, x: Tensor, step: SentenceStep) -> Tensor:
        memory, count, slots = step.memory, step.count[:, None], step.memory.shape[1]
        rank = torch.arange(slots, device=x.device) - (slots - count)  # [R, m], negative in unused slots
        q = self.query(x)
        k = self.key(memory + self._positions(rank, x))
        v = self.value(memory)
        used = (rank >= 0) | (count == 0)  # nothing to read: any slot will do, the result is dropped
        mask = None if bool(used.all()) else used[:, None, None]
        if step.attention is not None:
            step.attention.append(self._weights(q, k, mask) * (count > 0)[:, None])
        dropout = self.dropout if self.training else 0.0
        read = self.out(_attend(q, k, v, self.heads, attn_mask=mask, dropout_p=dropout))
        return torch.where(count[:, None] > 0, self.gate * read, 0.0)

    def _positions(self, rank: Tensor, like: Tensor) -> Tensor:
        """PE [R, m, d]: sines and cosines in turn, base 10,000; all of length sqrt(d / 2), or 1."""
        d = like.shape[-1]
        pairs = torch.arange(0, d, 2, device=rank.device, dtype=torch.float32)
        angles = rank.clamp(min=0)[..., None] * torch.exp(pairs * (-math.log(10_000) / d))
        table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
        return (table * math.sqrt(2 / d) if self.unit_positions else table).to(like.dtype)

    def _weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """[R, T, m], the mean over heads of the attention weights, for traces."""
        q, k = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (q, k))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(-1).mean(1)


class MLP(nn.Module):
    def __init__(self, config: ThoughtGestaltConfig) -> None:
        super().__init__()
        self.gated = config.activation == "swiglu"
        self.up = nn.Linear(config.hidden_size, config.mlp_width * (2 if self.gated else 1))
        self.out = ResidualLinear(config.mlp_width, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        if not self.gated:
            return self.out(F.gelu(self.up(x)))
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.out(F.silu(gate) * up)


class Block(nn.Module):
    """Pre-norm attention and MLP. Even layers attend to the sentence, odd layers read the memory (Figure 3)."""

    def __init__(self, config: ThoughtGestaltConfig, layer: int) -> None:
        super().__init__()
        self.dropout = config.residual_dropout
        self.attention_norm = nn.LayerNorm(config.hidden_size)
        self.attention = CrossAttention(config) if layer % 2 else SelfAttention(config, layer)
        self.mlp_norm = nn.LayerNorm(config.hidden_size)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, step: SentenceStep) -> Tensor:
        x = x + F.dropout(self.attention(self.attention_norm(x), step), self.dropout, self.training)
        return x + F.dropout(self.mlp(self.mlp_norm(x)), self.dropout, self.training)


class SentenceHead(nn.Module):
    """s_t = W_sent h_EOS (section 2.2), after dropout (B.2); `normalized` norms its input and gives s_t length 1.

    The norm has no weights of its own: the linear map after it holds them.
    """

    def __init__(self, config: ThoughtGestaltConfig) -> None:
        super().__init__()
        self.normalized = config.sentence_head == "normalized"
        self.linear = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, h: Tensor, dropout: float) -> tuple[Tensor, Tensor]:
        """[R, d] to the vectors [R, d] and their lengths [R] before these were made 1."""
        if self.normalized:
            h = F.layer_norm(h, h.shape[-1:])
        s = self.linear(F.dropout(h, dropout, self.training)).float()
        norm = s.norm(dim=-1)
        return (s / norm.clamp(min=1e-6)[:, None] if self.normalized else s), norm


class ThoughtGestaltForCausalLM(LatentThoughtModel):
    """Thought Gestalt as a causal LM over flat streams `BOS w1..wn EOS BOS ...`, a document ending in `EOD EOS`."""

    config_class = ThoughtGestaltConfig
    _tied_weights_keys = {"lm_head.weight": "embed.weight"}  # noqa: RUF012 (transformers' own attribute)

    def __init__(self, config: ThoughtGestaltConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embed = nn.Embedding(config.max_sentence_tokens + 3, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.sentence_head = SentenceHead(config)
        self.final_norm = nn.LayerNorm(config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, ResidualLinear):
            std = self.config.initializer_range / math.sqrt(2 * self.config.num_hidden_layers)
            init.normal_(module.weight, std=std)
        elif isinstance(module, CrossAttention):
            init.constant_(module.gate, self.config.gate_init)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embed = value

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head = new_embeddings

    def new_cache(self) -> ThoughtCache:
        return ThoughtCache()

    # ------------------------------------------------------------------------------------- reading a stream

    def read(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cache: ThoughtCache | None = None,
        token_dropout: float = 0.0,
        sentence_dropout: float = 0.0,
        trace: bool = False,
        min_steps: int = 0,
    ) -> tuple[Tensor, list[SentenceStep]]:
        """Reads streams [B, L], from where `cache` left off; the cache moves on.

        Args:
            token_dropout, sentence_dropout: rates of B.2, in training mode.
            trace: keep the attention to memory.
            min_steps: run at least so many steps, empty ones at the end, where ranks must call modules equally often.

        Returns:
            final hidden states [B, L, d], zero at padding, and the sentence steps.
        """
        config, (batch, length) = self.config, input_ids.shape
        state = {} if cache is None else cache.state
        layout = find_sentences(input_ids, attention_mask, config, state.get("position"))
        memory = state.get("memory", self.embed.weight.new_zeros(batch, 1, config.hidden_size))  # newest last
        count = state.get("count", input_ids.new_zeros(batch))
        if cache is not None:
            cache.seen_tokens += length
            cache.state["position"] = layout.last_position
        steps, hidden, places = [], [], []
        for k in range(max(layout.lengths.shape[1], min_steps)):
            step = self._step(k, layout, input_ids, memory, count)
            step.cache, step.attention = cache, [] if trace else None
            x = self._blocks(step, token_dropout, sentence_dropout)
            memory, count = self._write(step, memory, count)
            steps.append(step)
            hidden.append(x[step.valid])
            places.append((step.rows[:, None] * length + step.columns)[step.valid])
        if cache is not None:
            cache.state |= {"memory": memory, "count": count}
        if not steps:
            return self.embed(input_ids) * 0, steps
        found = torch.cat(hidden)
        flat = found.new_zeros(batch * length, found.shape[-1]).index_copy(0, torch.cat(places), found)
        return flat.view(batch, length, -1), steps

    def _step(self, k: int, layout: Layout, input_ids: Tensor, memory: Tensor, count: Tensor) -> SentenceStep:
        """Gathers the k-th sentence of every stream that has one."""
        if k < layout.lengths.shape[1]:
            lengths, starts = layout.lengths[:, k], layout.starts[:, k]
        else:
            lengths = starts = torch.zeros_like(layout.first_position)
        rows = lengths.nonzero()[:, 0]
        lengths, starts = lengths[rows, None], starts[rows, None]
        offsets = torch.arange(int(lengths.max()) if len(rows) else 1, device=rows.device)
        columns = layout.order[rows].gather(1, (starts + offsets).clamp(max=input_ids.shape[1] - 1))
        ids = input_ids[rows[:, None], columns]
        first = layout.first_position[rows, None] if k == 0 else 0
        return SentenceStep(
            rows=rows,
            columns=columns,
            ids=ids,
            positions=(first + offsets.expand_as(columns)).clamp(max=self.config.max_sentence_tokens + 2),
            valid=offsets < lengths,
            ended=(ids.gather(1, lengths - 1) == self.config.sentence_end_token_id)[:, 0],
            memory=memory[rows],
            count=count[rows],
        )

    def _blocks(self, step: SentenceStep, token_dropout: float, sentence_dropout: float) -> Tensor:
        """All layers on one sentence step, [R, T, d]; fills in the step's sentence vectors."""
        config = self.config
        x = self.embed(step.ids)
        if config.context_seeding:  # X_BOS <- s_{t-1}, where the stream has one
            seeded = (step.ids == config.sentence_start_token_id) & (step.count > 0)[:, None]
            x = torch.where(seeded[..., None], step.memory[:, -1:].to(x.dtype), x)
        x = x + self.position_embed(step.positions)
        if self.training and token_dropout > 0:
            dropped = torch.rand(step.ids.shape, device=x.device) < token_dropout
            for marker in (config.sentence_start_token_id, config.sentence_end_token_id, config.eos_token_id):
                dropped &= step.ids != marker
            x = x.masked_fill(dropped[..., None], 0.0)
        x = F.dropout(x, config.embedding_dropout, self.training)
        last = step.valid.sum(1) - 1
        for layer, block in enumerate(self.blocks):
            x = block(x, step)
            if layer == config.vector_layer:
                at_end = x[torch.arange(len(x), device=x.device), last]
                step.vectors, step.norms = self.sentence_head(at_end, sentence_dropout)
        return self.final_norm(x)

    def _write(self, step: SentenceStep, memory: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Appends the vectors of the sentences that ended, with their graph; the oldest falls out of a full memory."""
        if not bool(step.ended.any()):
            return memory, count
        vectors = step.vectors.detach() if self.config.memory_gradient == "detach" else step.vectors
        new = memory.new_zeros(memory.shape[0], memory.shape[2]).index_copy(0, step.rows, vectors.to(memory.dtype))
        writes = torch.zeros_like(count, dtype=torch.bool).index_copy(0, step.rows, step.ended)
        count = (count + writes).clamp(max=self.config.memory_size)
        slots = int(count.max())
        appended = torch.cat((memory, new[:, None]), dim=1)[:, -slots:]
        kept = F.pad(memory, (0, 0, 1, 0))[:, -slots:]
        return torch.where(writes[:, None, None], appended, kept), count

    # ------------------------------------------------------------------------------------- training and cost

    def final_hidden_states(self, batch: Batch) -> Tensor:
        return self.read(batch["input_ids"], batch.get("attention_mask"), min_steps=batch.get("num_sentences", 0))[0]

    def target_weights(self, batch: Batch, *, eos_weight: float = 1.0, **settings: Any) -> Tensor:
        """Ends of sentences count `eos_weight` (section 2.3), their starts nothing, everything else 1."""
        super().target_weights(batch, **settings)
        labels = batch["labels"]
        weights = torch.where(labels == self.config.sentence_end_token_id, eos_weight, 1.0)
        return weights.masked_fill(labels == self.config.sentence_start_token_id, 0.0)

    def training_loss(
        self,
        batch: Batch,
        *,
        eos_weight: float = 1.0,
        token_dropout: float = 0.0,
        sentence_dropout: float = 0.0,
        **settings: Any,
    ) -> LossOutput:
        """The weighted mean cross-entropy, and for normalised sentence vectors the hinge of their lengths.

        Each sentence's hinge counts as much as its targets do, so that the whole is one mean over targets.

        Args:
            eos_weight: weight of end-of-sentence targets (section 2.3).
            token_dropout: share of content tokens whose embeddings are zeroed (B.2).
            sentence_dropout: dropout of the hidden state that becomes the sentence vector (B.2).
        """
        weights = self.target_weights(batch, eos_weight=eos_weight, **settings)
        hidden, steps = self.read(
            batch["input_ids"],
            batch.get("attention_mask"),
            token_dropout=token_dropout,
            sentence_dropout=sentence_dropout,
            min_steps=batch.get("num_sentences", 0),
        )
        loss, weight = self.next_token_loss(hidden, batch["labels"], weights)
        counted = weights * (batch["labels"] != IGNORED)
        hinge = hidden.new_zeros(())
        for step in steps:
            of_sentence = (counted[step.rows[:, None], step.columns] * step.valid).sum(1)
            outside = F.relu(step.norms - 1.1) + F.relu(0.9 - step.norms)
            hinge = hinge + (of_sentence * step.ended * outside.square()).sum()
        hinge = hinge / weight.clamp(min=1e-8)
        strength = self.config.norm_hinge_weight if self.config.sentence_head == "normalized" else 0.0
        gates = torch.cat([gate.detach() for name, gate in self.named_parameters() if name.endswith(".gate")])
        return LossOutput(loss + strength * hinge, weight, {"norm_hinge": hinge.detach(), "memory_gate": gates.mean()})

    def forward_flops(self, batch: Batch) -> int:
        """What this form computes: every sentence step padded to its longest sentence, streams that ended left out."""
        config, d = self.config, self.config.hidden_size
        lengths = find_sentences(batch["input_ids"], batch.get("attention_mask"), config).lengths
        cross = config.num_hidden_layers // 2
        mlp = d * config.mlp_width * (3 if config.activation == "swiglu" else 2) * config.num_hidden_layers
        products = batch["input_ids"].numel() * d * config.vocab_size
        for k, (rows, longest) in enumerate(zip((lengths > 0).sum(0).tolist(), lengths.amax(0).tolist())):
            tokens, slots = rows * longest, max(min(k, config.memory_size), 1)
            products += tokens * mlp + rows * d * d
            products += (config.num_hidden_layers - cross) * tokens * (4 * d * d + 2 * longest * d)
            products += cross * (tokens * (2 * d * d + 2 * slots * d) + rows * slots * 2 * d * d)
        return 2 * products

    # ------------------------------------------------------------------------------------- Hugging Face's side

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: ThoughtCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        output_thoughts: bool = False,
        **kwargs: Any,
    ) -> CausalLMOutputWithThoughts:
        """Logits [B, L, v] of the token after each; positions are found by the markers, `position_ids` are not read.

        Args:
            input_ids: [B, L], sentences with their markers.
            attention_mask: [B, L or, with a cache, all tokens so far], 0 at padding on either side.
            labels: [B, L], see `Batch`.
            logits_to_keep: only the logits of the last so many positions (0: all), or of these.
            output_thoughts: also return a `ThoughtTrace` a stream.

        Raises:
            InputError: embeddings in place of tokens, unbalanced markers, a cache of another kind, or a trace of a
                stream that began in an earlier call.
        """
        if input_ids is None or inputs_embeds is not None:
            raise InputError("inputs_embeds is given: sentences are found by their markers, so give input_ids alone")
        cache = self.check_cache(past_key_values)
        if output_thoughts and cache is not None and cache.seen_tokens:
            raise InputError("output_thoughts is True with a cache in use: give the whole text in one call")
        cache = self.new_cache() if use_cache and cache is None else cache
        hidden, steps = self.read(input_ids, attention_mask, cache=cache, trace=output_thoughts)
        kept = slice(-logits_to_keep or None, None) if isinstance(logits_to_keep, int) else logits_to_keep
        loss = None
        if labels is not None:
            loss, _ = self.next_token_loss(hidden, labels, self.target_weights({"labels": labels}))
        return CausalLMOutputWithThoughts(
            loss=loss,
            logits=self.lm_head(hidden[:, kept]),
            past_key_values=cache,
            thoughts=self._traces(input_ids, hidden, steps) if output_thoughts else None,
        )

    @torch.no_grad()
    def _traces(self, input_ids: Tensor, hidden: Tensor, steps: list[SentenceStep]) -> list[ThoughtTrace]:
        """A trace a stream.

        `surprise` is each token's negative log-likelihood, `memory_attention` the largest weight that it gives to one
        sentence in memory; `links["memory"]` is how much the tokens of sentence i attend to sentence j; all weights are
        means over heads and cross layers. `memory_gate` holds the gates by cross layer.
        """
        config = self.config
        silent = (input_ids == config.sentence_start_token_id) | (input_ids == config.pad_token_id)
        targets = input_ids.masked_fill(silent, IGNORED)[:, 1:]
        nll = linear_nll(hidden[:, :-1].flatten(0, 1), self.output_weight(), targets.flatten())
        surprise = F.pad(nll.view_as(targets), (1, 0))
        attended = torch.zeros_like(surprise)
        gates = [gate.detach().float() for name, gate in self.named_parameters() if name.endswith(".gate")]
        traces = [ThoughtTrace(ids, curves={"memory_gate": torch.cat(gates)} if gates else {}) for ids in input_ids]
        reads: list[list[Tensor]] = [[] for _ in traces]
        for step in steps:
            weights = torch.stack(step.attention or [step.memory.new_zeros(*step.ids.shape, 1)]).mean(0)
            for i, row in enumerate(step.rows.tolist()):
                columns, of_tokens = step.columns[i][step.valid[i]], weights[i][step.valid[i]]
                attended[row, columns] = of_tokens.amax(-1).to(attended.dtype)
                if step.ended[i]:
                    span = int(columns[0]), int(columns[-1]) + 1
                    traces[row].thoughts.append(Thought(step.vectors[i].detach(), *span))
                    count = int(step.count[i])
                    reads[row].append(of_tokens.mean(0)[weights.shape[-1] - count :])
        for row, trace in enumerate(traces):
            trace.scores = {"surprise": surprise[row], "memory_attention": attended[row]}
            trace.links["memory"] = links = surprise.new_zeros(len(trace.thoughts), len(trace.thoughts))
            for i, read in enumerate(reads[row]):
                links[i, i - len(read) : i] = read
        return traces

    @torch.no_grad()
    def generate(
        self, inputs: Tensor | None = None, generation_config: Any = None, logits_processor: Any = None, **kwargs: Any
    ) -> Any:
        """Hugging Face's `generate`; the markers of sentences are seen to (`SentenceMarkers`)."""
        processors = LogitsProcessorList([*(logits_processor or []), SentenceMarkers(self.config)])
        return super().generate(inputs, generation_config, logits_processor=processors, **kwargs)
