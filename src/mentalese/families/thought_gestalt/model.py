"""Thought Gestalt (Borazjanizadeh and McClelland, "Modeling Language as a Sequence of Thoughts").

A stream of sentences `BOS w1..wn EOS` is read one sentence at a time. Inside a sentence, tokens attend to each other;
across sentences they only read a memory of at most M vectors, one per sentence. A sentence's vector is a map of the
hidden state at its EOS in a middle layer. It is written to memory with its graph, so the loss of later sentences trains
it.

Only the layers up to the vector's are recurrent. The rest read the memory and feed nothing back, so:

    lower layers   one step per sentence, all streams of a batch together; keys and values once per vector
    upper layers   all sentences of all streams at once, each with the window of vectors that it may read
    head, loss     on the tokens that predict something, all at once

Tokens are flat, without padding (`nn/ragged.py`), and streams that have ended cost nothing. `plain.py` is the same
model in its plainest form; tests compare outputs and gradients with it.

Sections and equations are the paper's. Letters in shapes: B streams of L tokens; n sentences and N tokens in a step, or
in all steps; m vectors that are read, C cross-attention layers, d hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LogitsProcessorList
from transformers import initialization as init

from mentalese.data.batch import Batch
from mentalese.errors import InputError
from mentalese.families.thought_gestalt.blocks import Block, CrossAttention, OpenSentences, SentenceHead, Step
from mentalese.families.thought_gestalt.compiled import CompiledLayers
from mentalese.families.thought_gestalt.config import ThoughtGestaltConfig
from mentalese.families.thought_gestalt.cost import head_flops, layer_flops
from mentalese.families.thought_gestalt.decode import SentenceCache, can_read_one, read_one
from mentalese.families.thought_gestalt.memory import Memory, MemoryMap, memory_positions
from mentalese.families.thought_gestalt.plan import AllSteps, Plan, StepPlan, plan_pass, sent
from mentalese.families.thought_gestalt.repeated import Part, by_step, repeated
from mentalese.families.thought_gestalt.streams import Layout, SentenceMarkers, find_sentences
from mentalese.models.base import LossOutput
from mentalese.models.cache import ThoughtCache
from mentalese.models.hf import Encoded, LatentThoughtModel, Limits
from mentalese.models.trace import Shown, Thought, ThoughtTrace
from mentalese.nn.controls import controlled
from mentalese.nn.loss import IGNORED, linear_cross_entropy, linear_nll
from mentalese.nn.ragged import first_rows, take_rows

SCORED_AT_ONCE = 8192  # tokens: a document may be as long as a novel


@dataclass
class StreamOutput:
    """The result of a pass over streams [B, L], or a part of their steps; n sentences and N tokens, as in `layout`.

    Attributes:
        hidden: [N, d], final hidden states; without the last token of each sentence unless they were asked for.
        plan: of this pass, on the device.
        vectors, norms: [n, d] and [n], the sentence vectors s_t and their lengths before normalisation; those of a
            sentence that has not ended are computed at its last token. Empty without a memory.
        attention: one [tokens, m] per step, mean over heads and cross layers, if a trace was asked for.
    """

    layout: Layout
    plan: Plan
    hidden: Tensor
    vectors: Tensor
    norms: Tensor
    attention: list[Tensor]

    def predictions(self) -> tuple[Tensor, Tensor]:
        """The states [N', d] of tokens with a next one in their sentence, and the indices [N'] of these next ones."""
        complete = len(self.hidden) == len(self.plan.source)
        hidden = take_rows(self.hidden, self.plan.predicting) if complete else self.hidden
        return hidden, self.plan.targets


@dataclass(kw_only=True)
class ThoughtGestaltEncoded(Encoded):
    """Final hidden states in the columns of the batch, and the same sentence by sentence, but of a single token."""

    output: StreamOutput | None


class ThoughtGestaltForCausalLM(LatentThoughtModel):
    """Thought Gestalt as a causal LM over flat streams `BOS w1..wn EOS BOS ...`, a document ending in `EOD EOS`."""

    config_class = ThoughtGestaltConfig
    supports_gradient_checkpointing = True
    lora_targets = ("qkv", "query", "key_value")
    shard_blocks = False  # a step uses a block's weights many times, and those of `key_value` outside their module
    about_thoughts = "One vector per sentence, kept in a memory that the tokens of later sentences read."
    shown = {  # noqa: RUF012 (nothing writes to it)
        "memory_attention": Shown("memory use", "The most attention that the token gives to one sentence.", "share"),
        "memory": Shown("memory", "How much the tokens of a sentence attend to an earlier one."),
        "memory_gate": Shown("memory gates", "The factor of what is read from memory, per block.", along="layer"),
    }

    def __init__(self, config: ThoughtGestaltConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embed = nn.Embedding(config.max_sentence_tokens + 3, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, i) for i in range(config.layers_per_turn or config.num_hidden_layers))
        if config.memory != "none":
            self.sentence_head = SentenceHead(config)
        if config.next_vector_weight:
            self.next_vector = nn.Linear(config.hidden_size, config.hidden_size)
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.compiled_layers: Callable[..., Any] | None = None
        self.post_init()

    def initialize(self, module: nn.Module) -> None:
        super().initialize(module)
        if isinstance(module, CrossAttention):
            init.constant_(module.gate, self.config.gate_init)

    @property
    def limits(self) -> Limits:
        config = self.config
        hinged = config.memory != "none" and config.sentence_head == "normalized"
        named = {"the lengths of sentence vectors": hinged, "the next sentence's vector": config.next_vector_weight}
        loss = " and ".join(name for name, weight in named.items() if weight)
        return Limits(static_cache="the keys of a sentence are given up when it ends", loss=loss or None)

    @property
    def layers(self) -> list[Any]:
        """The block of each layer."""
        return [self.blocks[i % len(self.blocks)] for i in range(self.config.num_hidden_layers)]

    def new_cache(self) -> ThoughtCache:
        return SentenceCache()

    # -------------------------------------------------------------------------------------- read a stream

    def _read(self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any) -> StreamOutput:
        """Streams [B, L] as a whole; options are those of `_parts`."""
        (output,) = self._parts(input_ids, attention_mask, **options)
        return output

    def _parts(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cache: ThoughtCache | None = None,
        token_dropout: float = 0.0,
        sentence_dropout: float = 0.0,
        ends: bool = True,
        trace: bool = False,
        tokens: int | None = None,
    ) -> Iterator[StreamOutput]:
        """Reads streams [B, L], from where `cache` left off; the cache moves on.

        Args:
            token_dropout, sentence_dropout: rates of B.2, in training mode.
            ends: also return the final states of tokens that end a sentence, which predict nothing.
            trace: keep the attention to memory.
            tokens: read whole steps of about this number of tokens at a time, and keep the memory alone between them;
                `None`: all at once. Only without a cache.
        """
        config, device = self.config, input_ids.device
        if attention_mask is not None:
            attention_mask = self.real_tokens(input_ids, attention_mask, cache)
        known = {} if cache is None else {name: cache.state.get(name) for name in ("position", "count")}
        layout = find_sentences(input_ids, attention_mask, config, known.get("position"))
        # With a cache, a trace or a prefix each step runs through all layers, which have keys of its own.
        at_once = cache is None and not trace and config.memory != "prefix"
        depth = config.recurrent_layers if at_once else config.num_hidden_layers
        count = None if cache is None else _of_streams(known["count"], layout)
        memory: Memory | None = None
        read = torch.empty(0)  # the vectors of earlier parts that the next one reads
        for steps in layout.parts(tokens or len(layout.source)):
            part = layout.part(steps)
            fill = device.type != "cpu" and at_once
            plan = plan_pass(config, layout, steps, count=count, depth=depth, ends=ends, known=len(read), fill=fill)
            plan = sent(plan, device)
            x = self._embed(input_ids.flatten()[plan.tokens], plan, token_dropout)
            if memory is None:
                memory = Memory(config, partial(self._memory_map, range(depth), x[:0]), plan, cache, count, x)
            x, vectors, norms, attention = self._recur(plan, x, memory, cache, depth, sentence_dropout, trace)
            x = x if plan.kept is None else take_rows(x, plan.kept)
            read = torch.cat((read, vectors)) if len(read) else vectors
            if plan.upper is not None:
                if not depth:
                    x = F.dropout(x, config.embedding_dropout, self.training)
                step = self._all_steps(plan.upper, read, range(depth, config.num_hidden_layers), x)
                for layer, block in enumerate(self.layers[depth:], depth):
                    x = block(x, replace(step, layer=layer))
            if cache is not None:
                cache.seen_tokens += input_ids.shape[1]
                cache.state["position"] = plan.last_position
                memory.save(cache, plan)
            yield StreamOutput(part, plan, self.final_norm(x), vectors, norms, attention)
            first = layout.sentences[max(0, steps.stop - config.memory_size)]
            read = read[max(0, len(read) + first - layout.sentences[steps.stop]) :]

    def _recur(
        self,
        plan: Plan,
        embedded: Tensor,
        memory: Memory,
        cache: ThoughtCache | None,
        depth: int,
        sentence_dropout: float,
        trace: bool,
    ) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """The first `depth` layers, step by step: states [N, d], and what `StreamOutput` has of sentences."""
        config = self.config
        parts = list(embedded.split([of.size for of in plan.steps])) if plan.steps else []
        vectors, norms, attention = [embedded.new_zeros(0, config.hidden_size)], [embedded.new_zeros(0)], []
        maps = self._repeated(plan, depth, memory) if cache is None else []
        for k, of in enumerate(plan.steps):
            step, prefix = self._step(of, depth, memory, cache, len(plan.last_position))
            step.attention = [] if trace else None
            x = F.dropout(self._seed(parts[k], of, memory), config.embedding_dropout, self.training)
            x = x if prefix is None else torch.cat((prefix, x))
            before = len(x) - of.size
            own = [replace(step, layer=i, maps=maps[i][k] if i < len(maps) else {}) for i in range(depth + 1)]
            run = self.run_layers if cache is not None or trace else self.compiled_layers or self.run_layers
            x, vector, norm = run(x, own, of.last, sentence_dropout)
            if vector is not None and norm is not None:
                vectors.append(controlled(vector, config.thought_control))
                norms.append(norm)
            if of.write is not None:
                memory.write(vectors[-1], of.write, k)
            parts[k] = x[before:] if before else x
            if step.attention:
                attention.append(torch.stack(step.attention).mean(0)[before:])
        return torch.cat(parts) if parts else embedded, torch.cat(vectors), torch.cat(norms), attention

    def run_layers(
        self, x: Tensor, steps: list[Step], last: Tensor, sentence_dropout: float
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The sentences of a step, [N, d] to [N, d], with their vectors [n, d] and lengths [n] if layers make some.

        Args:
            steps: the step as each of the first layers sees it, and as the sentence head does.
            last: [n], the last token of each sentence.
        """
        vector = norm = None
        for layer, (block, step) in enumerate(zip(self.layers, steps[:-1])):
            x = block(x, step)
            if layer == self.config.recurrent_layers - 1:
                vector, norm = self.sentence_head(take_rows(x, last), sentence_dropout, steps[-1])
        return x, vector, norm

    def _repeated(self, plan: Plan, depth: int, memory: Memory) -> list[list[dict[str, Part]]]:
        """For training: the maps that all steps share, by layer and step; last, the sentence head's."""
        if not torch.is_grad_enabled() or not plan.steps:
            return []
        memory.repeat(plan)
        sizes = [len(of.sequences.place) for of in plan.steps]
        maps = [block.repeated(sizes) for block in self.layers[:depth]]
        if not self.config.recurrent_layers:
            return maps
        head = repeated(self.sentence_head.linear, [len(of.last) for of in plan.steps])
        return [*maps, by_step({"head": head}, len(plan.steps))]

    def _embed(self, ids: Tensor, plan: Plan, token_dropout: float) -> Tensor:
        """E[x] + P[position in the sentence], [N, d], without E of a seeded start; words are dropped whole (B.2)."""
        config = self.config
        x = self.embed(ids)
        x = (x if plan.seeded is None else x.index_fill(0, plan.seeded, 0.0)) + self.position_embed(plan.positions)
        if self.training and token_dropout > 0:
            dropped = torch.rand(ids.shape, device=ids.device) < token_dropout
            for marker in (config.sentence_start_token_id, config.sentence_end_token_id, config.eos_token_id):
                dropped &= ids != marker
            x = x.masked_fill(dropped[:, None], 0.0)
        return x

    def _seed(self, x: Tensor, of: StepPlan, memory: Memory) -> Tensor:
        """E[BOS] <- s_{t-1} at the start of those of a step's sentences [N, d] whose streams have one (E is left out).

        The paper's formula (section 2.2) replaces X_BOS, position included; here P[0] is added, as in the paper's text.
        """
        if of.begin is None:
            return x
        seeds = first_rows(memory.seed, len(of.last))
        seeds = seeds if of.seeded is None else seeds[of.seeded]
        return x.index_add(0, of.begin, seeds.to(x.dtype))

    def _memory_map(self, layers: range, like: Tensor) -> MemoryMap:
        """The map of vectors to keys and values in those of `layers` with cross-attention, for tokens `like` these."""
        config = self.config
        positions = memory_positions(config.memory_size, config.hidden_size, config.memory_position_scale, like.device)
        blocks = self.layers
        maps = [blocks[i].memory_attention.key_value for i in layers if i in config.cross_layers]
        return MemoryMap(maps, positions, like.dtype)

    def _step(
        self, of: StepPlan, depth: int, memory: Memory, cache: ThoughtCache | None, batch: int
    ) -> tuple[Step, Tensor | None]:
        """The k-th sentences of all streams with the memory they read, and the vectors before them if there are any."""
        config, streams = self.config, len(of.last)
        prefix = None
        if of.prefix is not None:
            entries = memory.entries(streams, of.young)
            vectors = entries + memory.map.positions[: entries.shape[1]]
            prefix = vectors.flatten(0, 1)[of.prefix].to(memory.seed.dtype)
        step = Step(sequences=of.sequences, used=of.used, has_memory=of.has_memory)
        if cross := [layer for layer in config.cross_layers if layer < depth]:
            step.memory = dict(zip(cross, memory.keys_and_values(streams, of.young)))
        if cache is not None:
            room = config.memory_size if config.memory == "prefix" else 0
            assert of.open is not None
            step.cache = OpenSentences(of.open, cache.state, batch, room + config.max_sentence_tokens + 3)
        return step, prefix

    def _all_steps(self, of: AllSteps, vectors: Tensor, layers: range, x: Tensor) -> Step:
        """All sentences of some steps of fresh streams at once, each with the window of `vectors` [n, d] it reads."""
        config = self.config
        step = Step(sequences=of.sequences)
        cross = [layer for layer in layers if layer in config.cross_layers]
        if not cross:
            return step
        memory_map, window = self._memory_map(layers, x), config.memory_gradient_window
        entries = memory_map.entries(vectors.detach() if window == 0 else vectors)
        if window and window < config.memory_size:
            entries = torch.cat((entries, memory_map.entries(vectors.detach())))
        gathered = F.embedding(of.read, entries.flatten(1)).unflatten(-1, entries.shape[1:])
        step.memory = dict(zip(cross, memory_map.keys_and_values(gathered)))
        step.used, step.has_memory = of.used, of.has_memory
        return step

    # ------------------------------------------------------------------------------------- training and cost

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cache: ThoughtCache | None = None,
        trace: bool = False,
    ) -> ThoughtGestaltEncoded:
        """Final hidden states [B, L, d], zero at padding, from where `cache` left off; the cache moves on.

        Raises:
            InputError: unbalanced markers, or a sentence longer than the table of positions.
        """
        if cache is not None and not trace and can_read_one(self, input_ids, cache):
            real = None if attention_mask is None else self.real_tokens(input_ids, attention_mask, cache)
            return ThoughtGestaltEncoded(hidden=read_one(self, input_ids, real, cache), output=None)
        output = self._read(input_ids, attention_mask, cache=cache, trace=trace)
        return self._encoded(output, input_ids)

    @staticmethod
    def _encoded(output: StreamOutput, input_ids: Tensor) -> ThoughtGestaltEncoded:
        hidden, places = output.hidden, output.plan.source
        if len(hidden) < len(places):  # only those that predict were asked for
            places = places[output.plan.predicting]
        flat = hidden.new_zeros(input_ids.numel(), hidden.shape[1]).index_copy(0, places, hidden)
        return ThoughtGestaltEncoded(hidden=flat.view(*input_ids.shape, -1), output=output)

    def target_weights(self, batch: Batch, *, eos_weight: float = 1.0, **settings: Any) -> Tensor:
        """`eos_weight` for ends of sentences (section 2.3), 0 for their starts, 1 for all other tokens."""
        super().target_weights(batch, **settings)
        labels = batch["labels"]
        weights = torch.where(labels == self.config.sentence_end_token_id, eos_weight, 1.0)
        return weights.masked_fill(labels == self.config.sentence_start_token_id, 0.0)

    def training_settings(self) -> dict[str, tuple[float, float]]:
        return {"eos_weight": (0, math.inf), "token_dropout": (0, 1), "sentence_dropout": (0, 1)}

    def training_loss(
        self,
        batch: Batch,
        *,
        eos_weight: float = 1.0,
        token_dropout: float = 0.0,
        sentence_dropout: float = 0.0,
        **settings: Any,
    ) -> LossOutput:
        """The weighted mean cross-entropy, plus the hinge of the lengths if sentence vectors are normalised, plus
        `next_vector_loss` if it has a weight.

        A sentence's share of both is weighted by its targets, so the whole is one mean over targets.

        Args:
            eos_weight: weight of end-of-sentence targets (section 2.3).
            token_dropout: share of content tokens with zeroed embeddings (B.2).
            sentence_dropout: dropout of the hidden state that becomes the sentence vector (B.2).
        """
        weights = self.target_weights(batch, eos_weight=eos_weight, **settings)
        output = self._read(
            batch["input_ids"],
            batch.get("attention_mask"),
            token_dropout=token_dropout,
            sentence_dropout=sentence_dropout,
            ends=False,
        )
        loss, weight = self._cross_entropy(output, batch["labels"], weights)
        layers = self.layers
        metrics = {"nll": loss.detach()} | {
            f"memory_gate.{i}": layers[i].memory_attention.gate.detach()[0] for i in self.config.cross_layers
        }
        if self.config.memory != "none":
            normalized = self.config.sentence_head == "normalized"
            hinge = self._norm_hinge(output, batch["labels"], weights) / weight.clamp(min=1e-8)
            # Without the hinge, zero times it: with FSDP2 the head must take part in every step.
            loss = loss + (self.config.norm_hinge_weight if normalized else 0.0) * hinge
            metrics |= {"norm_hinge": hinge.detach()} if normalized else {}
        if self.config.next_vector_weight:
            ahead, explained = self.next_vector_loss(output, batch["labels"], weights)
            loss = loss + self.config.next_vector_weight * ahead / weight.clamp(min=1e-8)
            metrics |= {"next_vector": ahead.detach() / weight.clamp(min=1e-8), "next_vector_r2": explained}
        ids = batch["input_ids"]
        encoded = partial(self._encoded, output, ids)  # ends of sentences predict nothing: their states are zero
        return LossOutput(loss, weight, metrics, encoded)

    def _cross_entropy(self, output: StreamOutput, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted mean over predicted tokens, and the sum of the weights."""
        hidden, places = output.predictions()
        labels, weights = labels.flatten()[places], weights.flatten()[places]
        loss = linear_cross_entropy(hidden, self.loss_head(), labels, target_weights=weights)
        return loss, (weights * (labels != IGNORED)).sum()

    def _norm_hinge(self, output: StreamOutput, labels: Tensor, weights: Tensor) -> Tensor:
        """Squared distances of the vectors' lengths from [0.9, 1.1], weighted by their sentences' targets."""
        norms = output.norms
        of_sentence = self._target_weight(output, labels, weights)
        return (of_sentence * (F.relu(norms - 1.1) + F.relu(0.9 - norms)).square()).sum()

    def next_vector_loss(self, output: StreamOutput, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distances between each sentence's vector and a linear map of the vector before it.

        The next-concept loss of ConceptLM (Liu et al., "Next Concept Prediction in Discrete Latent Space Leads to
        Stronger Language Models"), with sentences in place of chunks and no codebook. What is predicted is a constant,
        as there: otherwise vectors that are all the same would be best.

        Returns:
            The sum, weighted by the targets of the sentence that is predicted; first sentences have none. And the share
            of the vectors' variance that is predicted (R^2): 1 is right, 0 no better than their mean in the batch.
        """
        counts = output.layout.counts
        parts = output.vectors.split(counts) if counts else [output.vectors]
        # A step's streams are the first ones of the previous step.
        before = torch.cat([parts[0][:0], *(part[:count] for part, count in zip(parts, counts[1:]))])
        if self.config.memory_gradient_window == 0:
            before = before.detach()
        vectors, first = output.vectors.detach().float(), len(parts[0])
        weight = self._target_weight(output, labels, weights).float()[first:, None]
        errors = (self.next_vector(before.to(self.embed.weight.dtype)).float() - vectors[first:]).square()
        loss = (weight * errors).sum()
        total = weight.sum().clamp(min=1e-8)
        spread = weight * (vectors[first:] - (weight * vectors[first:]).sum(0) / total).square()
        return loss, 1 - loss.detach() / spread.sum().clamp(min=1e-8)

    @staticmethod
    def _target_weight(output: StreamOutput, labels: Tensor, weights: Tensor) -> Tensor:
        """[n], the weights of each sentence's targets; 0 for a sentence that has not ended."""
        plan = output.plan
        counted = (weights * (labels != IGNORED)).flatten()[plan.source].to(output.norms.dtype)
        return torch.zeros_like(output.norms).index_add(0, plan.sentence, counted) * plan.ended

    @torch.no_grad()
    def token_nll(self, batch: Batch) -> Tensor:
        """See `LanguageModel.token_nll`; zero at BOS too, which is never a target."""
        ids, labels = batch["input_ids"], batch["labels"]
        places, found = [], []
        for output in self._parts(ids, batch.get("attention_mask"), ends=False, tokens=SCORED_AT_ONCE):
            hidden, place = output.predictions()
            places.append(place)
            found.append(linear_nll(hidden, self.loss_head(), labels.flatten()[place]))
        nll = torch.cat(found)
        return nll.new_zeros(labels.numel()).index_copy(0, torch.cat(places), nll).view_as(labels)

    def compiled_parts(self) -> list[nn.Module]:
        """The recurrent layers of a step as one graph, and each later block: a graph of all steps would be compiled
        again for each batch."""
        return [CompiledLayers(self), *self.layers[self.config.recurrent_layers :]]

    def gradient_groups(self) -> dict[str, list[list[nn.Parameter]]]:
        """Parameters by component and layer (appendix D)."""
        groups: dict[str, list[list[nn.Parameter]]] = {"self_attention": [], "memory": [], "mlp": []}
        for block in self.blocks:
            for name, group in zip(("attention", "memory_attention", "mlp"), groups.values()):
                if hasattr(block, name):
                    group.append(list(getattr(block, name).parameters()))
        return groups

    def forward_flops(self, batch: Batch) -> int:
        """See `LanguageModel.forward_flops`."""
        layout = find_sentences(batch["input_ids"], batch.get("attention_mask"), self.config)
        return layer_flops(self.config, layout) + head_flops(self.config, batch["input_ids"].numel())

    def training_flops(self, batch: Batch, **settings: Any) -> int:
        """See `LanguageModel.training_flops`; upper layers and head only see tokens that predict something."""
        layout = find_sentences(batch["input_ids"], batch.get("attention_mask"), self.config)
        head = head_flops(self.config, len(layout.predicting()))
        ahead = 2 * (len(layout.lengths) - sum(layout.counts[:1])) * self.config.hidden_size**2
        return 3 * (layer_flops(self.config, layout, ends=False) + head + bool(self.config.next_vector_weight) * ahead)

    # ------------------------------------------------------------------------------------- Hugging Face's side

    def labels_loss(self, encoded: ThoughtGestaltEncoded, labels: Tensor) -> Tensor:
        """See `LatentThoughtModel.labels_loss`: starts of sentences are not predicted."""
        if encoded.output is None:  # a single token predicts no other of this call
            return encoded.hidden.new_zeros((), dtype=torch.float32)
        return self._cross_entropy(encoded.output, labels, self.target_weights({"labels": labels}))[0]

    def predicted_tokens(self, encoded: ThoughtGestaltEncoded, input_ids: Tensor, real: Tensor) -> Tensor:
        """See `LatentThoughtModel.predicted_tokens`: tokens that follow another one of their sentence."""
        assert encoded.output is not None  # traces are of whole texts
        scored = torch.zeros(input_ids.numel(), dtype=torch.bool, device=input_ids.device)
        return scored.index_fill(0, encoded.output.predictions()[1], True).view_as(input_ids)

    def fill(self, traces: list[ThoughtTrace], encoded: ThoughtGestaltEncoded, real: Tensor) -> None:
        """Sentence vectors, and which sentences read them.

        `memory_attention` is a token's largest weight on one sentence in memory, `links["memory"]` how much the tokens
        of sentence i attend to sentence j; all weights are means over heads and cross layers. `memory_gate` contains
        the gates by cross layer. A model without cross-attention has no weights to show.
        """
        output = encoded.output
        assert output is not None
        layout, length = output.layout, real.shape[1]
        attended = torch.full(real.shape, math.nan, device=real.device)
        layers = self.layers
        gates = [layers[i].memory_attention.gate.detach().float() for i in self.config.cross_layers]
        reads: list[list[Tensor]] = [[] for _ in traces]
        of_sentence = [
            part
            for weights, lengths in zip(output.attention, layout.lengths.split(layout.counts))
            for part in weights.split(lengths.tolist())
        ]
        columns = (output.plan.source % length).split(layout.lengths.tolist())
        for i, stream in enumerate(layout.streams.tolist()):
            count = min(len(reads[stream]), self.config.memory_size)
            read = of_sentence[i][:, :count] if of_sentence and count else attended.new_zeros(len(columns[i]), 1)
            attended[stream, columns[i]] = read.amax(-1).to(attended.dtype)
            reads[stream].append(read.mean(0)[:count])
            if layout.ended[i] and len(output.vectors):
                span = int(columns[i][0]), int(columns[i][-1]) + 1
                traces[stream].thoughts.append(Thought(output.vectors[i].detach(), *span))
        for stream, trace in enumerate(traces):
            if gates:
                trace.curves["memory_gate"] = torch.cat(gates)
            if not output.attention:
                continue
            trace.scores["memory_attention"] = attended[stream]
            trace.links["memory"] = links = attended.new_zeros(len(trace.thoughts), len(trace.thoughts))
            for i, read in enumerate(reads[stream][: len(links)]):
                links[i, i - len(read) : i] = read

    @torch.no_grad()
    def generate(
        self, inputs: Tensor | None = None, generation_config: Any = None, logits_processor: Any = None, **kwargs: Any
    ) -> Any:
        """Hugging Face's `generate`, with well-formed sentences (`SentenceMarkers`).

        Raises:
            InputError: beams are to be sampled. After the end of a sentence only a start can follow, and with fewer
                continuations than beams, transformers would also sample impossible ones.
        """
        config = generation_config or self.generation_config
        beams, sample = (kwargs.get(name, getattr(config, name, None)) for name in ("num_beams", "do_sample"))
        if sample and (beams or 1) > 1:
            raise InputError(f"do_sample is True with num_beams {beams}: beams cannot be sampled, set one of the two")
        if inputs is None and kwargs.get("input_ids") is None:
            kwargs.setdefault("bos_token_id", self.config.sentence_start_token_id)
        processors = LogitsProcessorList([*(logits_processor or []), SentenceMarkers(self.config)])
        return super().generate(inputs, generation_config, logits_processor=processors, **kwargs)


def _of_streams(count: Tensor | None, layout: Layout) -> Tensor:
    """[R] on the host, the vectors that a cache has of the streams with a sentence; `count` [B] is its own."""
    streams = layout.streams[: layout.counts[0] if layout.counts else 0]
    return torch.zeros_like(streams) if count is None else count.cpu()[streams]
