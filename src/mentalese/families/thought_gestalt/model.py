"""Thought Gestalt, fast: flat streams, a cache, and one step per sentence for all rows. `plain.py` has the method.

Only the layers up to the vector's are recurrent. The rest read the memory and feed nothing back, so:

    lower layers   one step per sentence, all streams of a batch together; keys and values once per vector
    upper layers   all sentences of all streams at once, each with its window of vectors
    head, loss     on the tokens that predict something, all at once

Tokens are flat, without padding (`nn/ragged.py`), and streams that have ended cost nothing.

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
from mentalese.families.thought_gestalt.blocks import Block, CompiledLayers, CrossAttention, Layered, SentenceHead
from mentalese.families.thought_gestalt.config import HINGE_WEIGHT, ThoughtGestaltConfig
from mentalese.families.thought_gestalt.decode import SentenceCache, read_on
from mentalese.families.thought_gestalt.memory import Memory, MemoryMap, memory_positions
from mentalese.families.thought_gestalt.plan import PassPlan, Step, plan_flops, plan_pass, sent
from mentalese.families.thought_gestalt.repeated import Use
from mentalese.families.thought_gestalt.streams import SentenceMarkers, Sentences, find_sentences
from mentalese.models.base import LossOutput
from mentalese.models.hf import Encoded, LatentThoughtModel, Limits
from mentalese.models.trace import Shown, Thought, ThoughtTrace
from mentalese.nn.controls import controlled
from mentalese.nn.loss import IGNORED, linear_cross_entropy, linear_nll
from mentalese.nn.ragged import first_rows, take_rows

SCORED_AT_ONCE = 8192  # tokens: a document may be as long as a novel


@dataclass
class Reading:
    """The states of streams [B, L] after a pass, or of a part of their steps: n sentences and N tokens.

    Attributes:
        hidden: [N, d], final hidden states; without `ends`, of the tokens that predict `plan.targets`.
        vectors, norms: [n, d] and [n], the sentence vectors s_t and their lengths before normalisation; for an
            unfinished sentence they are computed at its last token. Empty without a memory.
        attention: one [tokens, m] per step, mean over heads and cross layers, for a trace.
    """

    sentences: Sentences
    plan: PassPlan
    hidden: Tensor
    vectors: Tensor
    norms: Tensor
    attention: list[Tensor]


@dataclass(kw_only=True)
class ThoughtGestaltEncoded(Encoded):
    """Final hidden states in the columns of the batch.

    Attributes:
        sentences: the sentences of this call; `None` for a single token with a cache.
        reading: the same states sentence by sentence, if they were not read with a cache.
    """

    sentences: Sentences | None = None
    reading: Reading | None = None


class ThoughtGestaltForCausalLM(LatentThoughtModel[ThoughtGestaltEncoded]):
    """Thought Gestalt as a causal LM over flat streams `BOS w1..wn EOS BOS ...`, a document ending in `EOD EOS`."""

    config_class = ThoughtGestaltConfig
    supports_gradient_checkpointing = True
    lora_targets = ("qkv", "query", "key_value")
    cache_class = SentenceCache
    shard_blocks = False  # a step uses a block's weights many times, and `key_value` weights outside their module
    about_thoughts = "One vector per sentence, kept in a memory that the tokens of later sentences read."
    shown = {  # noqa: RUF012 (nothing writes to it)
        "memory_attention": Shown("memory use", "The most attention that the token gives to one sentence.", "share"),
        "memory": Shown("memory", "How much the tokens of a sentence attend to an earlier one.", "share"),
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
        self.compiled_layers: Callable[[Tensor, list[Step], float], Layered] | None = None
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
        swapped = config.thought_control == "swapped"
        return Limits(
            cache="thought_control is 'swapped', and rows end their sentences at different tokens" if swapped else None,
            static_cache="the keys of a sentence are given up when it ends",
            loss=loss or None,
        )

    @property
    def layers(self) -> list[Block]:
        """The block of each layer."""
        blocks: list[Any] = [*self.blocks]
        return [blocks[i % len(blocks)] for i in range(self.config.num_hidden_layers)]

    def new_cache(self) -> SentenceCache:
        return SentenceCache()

    # -------------------------------------------------------------------------------------- read a stream

    def read(self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any) -> Reading:
        """Read streams [B, L] in one part, with options of `readings`."""
        return next(self.readings(input_ids, attention_mask, **options))

    def readings(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        token_dropout: float = 0.0,
        sentence_dropout: float = 0.0,
        ends: bool = True,
        trace: bool = False,
        tokens: int | None = None,
    ) -> Iterator[Reading]:
        """Read streams [B, L] from their beginnings.

        Args:
            token_dropout, sentence_dropout: rates of B.2, in training mode.
            ends: also return the final states of tokens that end a sentence, which predict nothing.
            trace: keep the attention to memory.
            tokens: read whole steps of about this number of tokens at a time; `None`: all at once.
        """
        config, device = self.config, input_ids.device
        sentences = find_sentences(input_ids, attention_mask, config)
        # For a trace, and with a prefix, which has keys in each layer, all layers are read step by step.
        at_once = not trace and config.memory != "prefix"
        depth = config.recurrent_layers if at_once else config.num_hidden_layers
        memory: Memory | None = None
        latest = torch.empty(0)  # the vectors of earlier parts that the next part reads
        for steps in sentences.parts(tokens or len(sentences.source)):
            fill = device.type != "cpu" and at_once
            plan = plan_pass(config, sentences, steps, depth=depth, ends=ends, known=len(latest), fill=fill)
            plan = sent(plan, device)
            x = self._embed(input_ids.flatten()[plan.tokens], plan, token_dropout)
            if memory is None:
                streams = sentences.counts[0] if sentences.counts else 0
                memory = Memory(config, self.memory_map(range(depth), x[:0]), streams, x)
            x, vectors, norms, attention = self._recur(plan, x, memory, sentence_dropout, trace)
            x = x if plan.kept is None else take_rows(x, plan.kept)
            latest = torch.cat((latest, vectors)) if len(latest) else vectors
            if plan.upper is not None:
                if not depth:
                    x = F.dropout(x, config.embedding_dropout, self.training)
                step = self._with_memory(plan.upper, latest, range(depth, config.num_hidden_layers), x)
                for layer, block in enumerate(self.layers[depth:], depth):
                    x = block(x, replace(step, layer=layer))
            yield Reading(sentences.part(steps), plan, self.final_norm(x), vectors, norms, attention)
            first = sentences.starts[max(0, steps.stop - config.memory_size)]
            latest = latest[max(0, len(latest) + first - sentences.starts[steps.stop]) :]

    def _recur(
        self, plan: PassPlan, embedded: Tensor, memory: Memory, sentence_dropout: float, trace: bool
    ) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """Return the states [N, d] after the layers that are read step by step, and what `Reading` has of sentences."""
        config, maps = self.config, self._uses(plan, memory)
        cross = [layer for layer in config.cross_layers if layer < plan.depth]
        run = self.run_layers if trace or self.compiled_layers is None else self.compiled_layers
        vectors, norms, attention = [embedded.new_zeros(0, config.hidden_size)], [embedded.new_zeros(0)], []
        parts = list(embedded.split(plan.sizes)) if plan.steps else [embedded]
        for k, step in enumerate(plan.steps):
            x, prefix = self._start(parts[k], step, memory)
            step.attention = [] if trace else None
            step.memory = dict(zip(cross, memory.keys_and_values(len(step.sequences.order)))) if cross else {}
            layers = [replace(step, layer=i, maps=maps[i][k] if i < len(maps) else {}) for i in range(plan.depth + 1)]
            x, vector, norm = run(x, layers, sentence_dropout)
            if vector is not None and norm is not None:
                vectors.append(controlled(vector, config.thought_control))
                norms.append(norm)
                if k < plan.writes:
                    memory.write(vectors[-1])
            parts[k] = x[prefix:] if prefix else x
            if step.attention:
                attention.append(torch.stack(step.attention).mean(0)[prefix:])
        return torch.cat(parts), torch.cat(vectors), torch.cat(norms), attention

    def run_layers(self, x: Tensor, steps: list[Step], sentence_dropout: float) -> Layered:
        """Run the first layers on the tokens [N, d] of a step, as each layer sees it and last the sentence head."""
        vector = norm = None
        *of_layers, of_head = steps
        assert of_head.last is not None
        for layer, (block, step) in enumerate(zip(self.layers, of_layers)):
            x = block(x, step)
            if layer == self.config.recurrent_layers - 1:
                ends = take_rows(x, of_head.last)
                vector, norm = self.sentence_head(ends, sentence_dropout, of_head.maps.get("head"))
        return x, vector, norm

    def _uses(self, plan: PassPlan, memory: Memory) -> list[list[dict[str, Use]]]:
        """Return the maps that all steps share, by layer and step, and last the sentence head's. For training."""
        if not torch.is_grad_enabled() or not plan.steps:
            return []
        counts = [len(step.sequences.order) for step in plan.steps]
        memory.repeat(plan.ranks, counts[: plan.writes])
        tokens = [len(step.sequences.place) for step in plan.steps]
        maps = [block.uses(tokens) for block in self.layers[: plan.depth]]
        return [*maps, self.sentence_head.uses(counts)] if self.config.recurrent_layers else maps

    def _embed(self, ids: Tensor, plan: PassPlan, token_dropout: float) -> Tensor:
        """Return E[x] + P[position in the sentence], [N, d], without E at a seeded start, with token dropout (B.2)."""
        config, x = self.config, self.embed(ids)
        x = (x if plan.seeded is None else x.index_fill(0, plan.seeded, 0.0)) + self.position_embed(plan.positions)
        if self.training and token_dropout > 0:
            dropped = torch.rand(ids.shape, device=ids.device) < token_dropout
            for marker in (config.sentence_start_token_id, config.sentence_end_token_id, config.eos_token_id):
                dropped &= ids != marker
            x = x.masked_fill(dropped[:, None], 0.0)
        return x

    def _start(self, x: Tensor, step: Step, memory: Memory) -> tuple[Tensor, int]:
        """Return a step's tokens [N, d] with E[BOS] <- s_{t-1} (E is left out), after the vectors of a prefix.

        The paper's formula (section 2.2) replaces X_BOS, position included; here P[0] is added, as in the paper's text.
        """
        streams = len(step.sequences.order)
        if step.begin is not None:
            x = x.index_add(0, step.begin, first_rows(memory.seed, streams).to(x.dtype))
        x = F.dropout(x, self.config.embedding_dropout, self.training)
        if self.config.memory != "prefix" or not memory.count:
            return x, 0
        vectors = memory.read(streams)
        vectors = (vectors + memory.map.positions[: vectors.shape[1]]).flatten(0, 1)
        return torch.cat((vectors.to(x.dtype), x)), len(vectors)

    def memory_map(self, layers: range, like: Tensor) -> MemoryMap:
        """Return the map of vectors to keys and values for the cross-attention layers in `layers`, for such tokens."""
        config, blocks = self.config, self.layers
        positions = memory_positions(config.memory_size, config.hidden_size, like.device)
        maps = [blocks[i].memory_attention.key_value for i in layers if i in config.cross_layers]
        return MemoryMap(maps, positions, like.dtype)

    def _with_memory(self, step: Step, vectors: Tensor, layers: range, x: Tensor) -> Step:
        """Return all sentences of some steps with the keys and values of the `vectors` [n, d] that each reads."""
        config = self.config
        if step.read is None:
            return step
        memory_map, window = self.memory_map(layers, x), config.memory_gradient_window
        entries = memory_map.entries(vectors.detach() if window == 0 else vectors)
        if window and window < config.memory_size:
            entries = torch.cat((entries, memory_map.entries(vectors.detach())))
        gathered = F.embedding(step.read, entries.flatten(1)).unflatten(-1, entries.shape[1:])
        cross = [layer for layer in layers if layer in config.cross_layers]
        return replace(step, memory=dict(zip(cross, memory_map.keys_and_values(gathered))))

    # ------------------------------------------------------------------------------------- training and cost

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cache: SentenceCache | None = None,
        trace: bool = False,
    ) -> ThoughtGestaltEncoded:
        """Return final hidden states [B, L, d], zero at padding, from where `cache` left off; the cache moves on.

        Raises:
            InputError: unbalanced markers, or a sentence longer than the table of positions.
        """
        if cache is not None:
            real = None if attention_mask is None else self.real_tokens(input_ids, attention_mask, cache)
            hidden, sentences = read_on(self, input_ids, real, cache)
            if not trace:
                return ThoughtGestaltEncoded(hidden=hidden, sentences=sentences)
        return self._encoded(self.read(input_ids, attention_mask, trace=trace), input_ids)

    @staticmethod
    def _encoded(reading: Reading, input_ids: Tensor) -> ThoughtGestaltEncoded:
        hidden = reading.hidden
        flat = hidden.new_zeros(input_ids.numel(), hidden.shape[1]).index_copy(0, reading.plan.source, hidden)
        flat = flat.view(*input_ids.shape, -1)
        return ThoughtGestaltEncoded(hidden=flat, sentences=reading.sentences, reading=reading)

    def target_weights(self, batch: Batch, *, eos_weight: float = 1.0, **settings: Any) -> Tensor:
        """Return `eos_weight` for ends of sentences (section 2.3), 0 for their starts, 1 for all other tokens."""
        self.refuse(settings)
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
        """Return the weighted mean cross-entropy, plus a hinge and `next_vector_loss` if they are used.

        The hinge keeps the lengths of normalised sentence vectors near 1. Both terms are weighted by the targets of
        each sentence, so the loss is one mean over targets. Settings are as in section 2.3 and B.2.
        """
        weights = self.target_weights(batch, eos_weight=eos_weight, **settings)
        ids, labels = batch["input_ids"], batch["labels"]
        dropouts = {"token_dropout": token_dropout, "sentence_dropout": sentence_dropout}
        reading = self.read(ids, batch.get("attention_mask"), **dropouts, ends=False)
        loss, counted = self._cross_entropy(reading.hidden, reading.plan.targets, labels, weights)
        weight, config = counted.sum(), self.config
        count = weight.clamp(min=1e-8)
        gates = {i: self.layers[i].memory_attention.gate.detach() for i in config.cross_layers}
        metrics = {"nll": loss.detach()} | {f"memory_gate.{i}": gate[0] for i, gate in gates.items()}
        if config.memory != "none":
            plan, norms = reading.plan, reading.norms
            shares = torch.zeros_like(norms).index_add(0, plan.sentence, counted.to(norms.dtype)) * plan.ended
            normalized = config.sentence_head == "normalized"
            hinge = (shares * (F.relu(norms - 1.1) + F.relu(0.9 - norms)).square()).sum() / count
            # Without the hinge, zero times it: with FSDP2 the head must take part in every step.
            loss = loss + (HINGE_WEIGHT if normalized else 0.0) * hinge
            metrics |= {"norm_hinge": hinge.detach()} if normalized else {}
            if config.next_vector_weight:
                ahead, explained = self.next_vector_loss(reading, shares)
                loss = loss + config.next_vector_weight * ahead / count
                metrics |= {"next_vector": ahead.detach() / count, "next_vector_r2": explained}
        encoded = partial(self._encoded, reading, ids)  # ends of sentences predict nothing: their states are zero
        return LossOutput(loss, weight, metrics, encoded)

    def _cross_entropy(self, hidden: Tensor, targets: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted mean over predicted tokens, of states [N', d] and targets [N'], and the weights [N']."""
        labels = labels.flatten()[targets]
        counted = weights.flatten()[targets] * (labels != IGNORED)
        return linear_cross_entropy(hidden, self.loss_head(), labels, target_weights=counted), counted

    def next_vector_loss(self, reading: Reading, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Return the squared distances between each sentence's vector and a linear map of the previous vector.

        The next-concept loss of ConceptLM with sentences in place of chunks and no codebook. The target is a constant,
        as there; otherwise equal vectors would be optimal.

        Args:
            shares: [n], the sum of each sentence's target weights; 0 for unfinished sentences.

        Returns:
            The sum over sentences after the first, weighted by `shares`, and the predicted share of the vectors'
            variance (R^2): 1 is exact, 0 no better than their mean in the batch.
        """
        counts = reading.sentences.counts
        parts = reading.vectors.split(counts) if counts else [reading.vectors]
        # A step's streams are the first ones of the previous step.
        before = torch.cat([parts[0][:0], *(part[:count] for part, count in zip(parts, counts[1:]))])
        if self.config.memory_gradient_window == 0:
            before = before.detach()
        first = len(parts[0])
        vectors, weight = reading.vectors[first:].detach().float(), shares[first:, None].float()
        errors = (self.next_vector(before.to(self.embed.weight.dtype)).float() - vectors).square()
        loss = (weight * errors).sum()
        mean = (weight * vectors).sum(0) / weight.sum().clamp(min=1e-8)
        spread = (weight * (vectors - mean).square()).sum()
        return loss, 1 - loss.detach() / spread.clamp(min=1e-8)

    @torch.no_grad()
    def token_nll(self, batch: Batch) -> Tensor:
        """See `LanguageModel.token_nll`; zero at BOS too, which is never a target."""
        ids, labels = batch["input_ids"], batch["labels"]
        nll, places = [], []
        for reading in self.readings(ids, batch.get("attention_mask"), ends=False, tokens=SCORED_AT_ONCE):
            places.append(reading.plan.targets)
            nll.append(linear_nll(reading.hidden, self.loss_head(), labels.flatten()[places[-1]]))
        scores = torch.cat(nll)
        return scores.new_zeros(labels.numel()).index_copy(0, torch.cat(places), scores).view_as(labels)

    def compiled_parts(self) -> list[nn.Module]:
        """Return the recurrent layers of a step as one graph, and each later block."""
        return [CompiledLayers(self), *self.layers[self.config.recurrent_layers :]]

    def gradient_groups(self) -> dict[str, list[list[nn.Parameter]]]:
        """Return parameters by component and layer (appendix D)."""
        groups: dict[str, list[list[nn.Parameter]]] = {"self_attention": [], "memory": [], "mlp": []}
        for block in self.blocks:
            for name, group in zip(("attention", "memory_attention", "mlp"), groups.values()):
                if hasattr(block, name):
                    group.append(list(getattr(block, name).parameters()))
        return groups

    def _flops(self, batch: Batch, *, ends: bool) -> tuple[Sentences, int]:
        """Return a batch's sentences and the FLOPs of a pass; without `ends` upper layers and head skip last tokens."""
        config = self.config
        sentences = find_sentences(batch["input_ids"], batch.get("attention_mask"), config)
        depth = config.num_hidden_layers if config.memory == "prefix" else config.recurrent_layers
        plan = plan_pass(config, sentences, range(len(sentences.counts)), depth=depth, ends=ends)
        head = batch["input_ids"].numel() if ends else len(sentences.predicting())
        return sentences, plan_flops(config, plan) + 2 * head * config.hidden_size * config.vocab_size

    def forward_flops(self, batch: Batch) -> int:
        return self._flops(batch, ends=True)[1]

    def scoring_flops(self, batch: Batch) -> int:
        return self._flops(batch, ends=False)[1]

    def training_flops(self, batch: Batch, **settings: Any) -> int:
        """See `LanguageModel.training_flops`; upper layers and head only see tokens that predict something."""
        sentences, flops = self._flops(batch, ends=False)
        ahead = (len(sentences.lengths) - sum(sentences.counts[:1])) * self.config.hidden_size**2
        return 3 * (flops + (2 * ahead if self.config.next_vector_weight else 0))

    # ------------------------------------------------------------------------------------- Hugging Face's side

    def labels_loss(self, encoded: ThoughtGestaltEncoded, labels: Tensor) -> Tensor:
        """See `LatentThoughtModel.labels_loss`: starts of sentences are not predicted."""
        if encoded.sentences is None:  # a single token has no target in this call
            return encoded.hidden.new_zeros((), dtype=torch.float32)
        predicting, targets = encoded.sentences.pairs(labels.device)
        hidden = encoded.hidden.flatten(0, 1)[predicting]
        return self._cross_entropy(hidden, targets, labels, self.target_weights({"labels": labels}))[0]

    def predicted_tokens(self, encoded: ThoughtGestaltEncoded, input_ids: Tensor, real: Tensor) -> Tensor:
        """See `LatentThoughtModel.predicted_tokens`: tokens directly after another one of their sentence."""
        assert encoded.sentences is not None  # traces are of whole texts
        scored = torch.zeros(input_ids.numel(), dtype=torch.bool, device=input_ids.device)
        predicting, targets = encoded.sentences.pairs(scored.device)
        return scored.index_fill(0, targets[targets == predicting + 1], True).view_as(input_ids)

    def predictable(self, labels: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
        """Return the labels [B, L]: after padding inside a sentence, its last token before that predicts."""
        return labels

    def fill(self, traces: list[ThoughtTrace], encoded: ThoughtGestaltEncoded, real: Tensor) -> None:
        """Add sentence vectors and the attention to them, if there is cross-attention.

        `memory_attention` is a token's largest weight on one sentence in memory, `links["memory"]` the attention of the
        tokens of sentence i to sentence j; all weights are means over heads and cross layers.
        """
        reading = encoded.reading
        assert reading is not None
        sentences, layers = reading.sentences, self.layers
        lengths = sentences.lengths.tolist()
        attended = torch.full(real.shape, math.nan, device=real.device)
        gates = [layers[i].memory_attention.gate.detach().float() for i in self.config.cross_layers]
        reads: list[list[Tensor]] = [[] for _ in traces]
        of_steps = zip(reading.attention, sentences.lengths.split(sentences.counts))
        of_sentence = [read for weights, sizes in of_steps for read in weights.split(sizes.tolist())]
        columns = (sentences.source % real.shape[1]).split(lengths)
        for i, stream in enumerate(sentences.streams.tolist()):
            count = min(len(reads[stream]), self.config.memory_size)
            read = of_sentence[i][:, :count] if of_sentence and count else attended.new_zeros(lengths[i], 1)
            attended[stream, columns[i].to(real.device)] = read.amax(-1).to(attended.dtype)
            reads[stream].append(read.mean(0)[:count])
            if sentences.ended[i] and len(reading.vectors):
                span = int(columns[i][0]), int(columns[i][-1]) + 1
                traces[stream].thoughts.append(Thought(reading.vectors[i].detach(), *span))
        for stream, trace in enumerate(traces):
            if gates:
                trace.curves["memory_gate"] = torch.cat(gates)
                trace.places["memory_gate"] = torch.tensor(self.config.cross_layers)
            if not reading.attention:
                continue
            trace.scores["memory_attention"] = attended[stream]
            trace.links["memory"] = links = attended.new_zeros(len(trace.thoughts), len(trace.thoughts))
            for i, read in enumerate(reads[stream][: len(links)]):
                links[i, i - len(read) : i] = read

    @torch.no_grad()
    def generate(
        self, inputs: Tensor | None = None, generation_config: Any = None, logits_processor: Any = None, **kwargs: Any
    ) -> Any:
        """Generate well-formed sentences (`SentenceMarkers`) with Hugging Face's `generate`.

        Raises:
            InputError: sampling with beams. Only a start can follow the end of a sentence, and with fewer continuations
                than beams transformers would also sample impossible ones.
        """
        config = generation_config or self.generation_config
        beams, sample = (kwargs.get(name, getattr(config, name, None)) for name in ("num_beams", "do_sample"))
        if sample and (beams or 1) > 1:
            raise InputError(f"do_sample is True with num_beams {beams}: beams cannot be sampled, set one of the two")
        if inputs is None and kwargs.get("input_ids") is None:
            kwargs.setdefault("bos_token_id", self.config.sentence_start_token_id)
        processors = LogitsProcessorList([*(logits_processor or []), SentenceMarkers(self.config)])
        return super().generate(inputs, generation_config, logits_processor=processors, **kwargs)
