"""Coconut (Hao et al., "Training Large Language Models to Reason in a Continuous Latent Space") and AGCLR ("Why Limit
the Residual Stream to Layers and Not Tokens? Persistent Memory for Continuous Latent Reasoning").

A latent position reads no token but the last hidden state at the position before it, so that a model reasons without
words: one pass over the question, one for each latent, one over the rest, every pass on the keys and values of those
before it. AGCLR keeps a memory beside that, the concept stream: gates decide what of it a latent reads, what of the
hidden state is forgotten, and what is written back. Equations are those of AGCLR's paper.

Rows of a batch may differ in the length of the question and in the number of latents. They are laid out again,

    [ padding | question ] [ latents | masked ] [ rest | padding ]
      P columns              N columns            R columns

so that pass p is one column for all rows. Letters in shapes: B rows of L tokens, d hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache, DynamicLayer
from transformers import initialization as init

from mentalese.data.batch import Batch
from mentalese.errors import InputError
from mentalese.families.coconut.concept_stream import ConceptStream, Gate
from mentalese.families.coconut.config import CoconutConfig
from mentalese.families.coconut.layout import Layout, Rows, lay_out
from mentalese.families.coconut.steps import StepDecoder, step_loss
from mentalese.models.backbone import (
    attention_masks,
    attention_width,
    layers_of,
    linear_weights,
    sliding_window,
    takes_pairs,
)
from mentalese.models.base import LossOutput, follows
from mentalese.models.cache import ThoughtCache, fixed_columns, write_at
from mentalese.models.hf import Encoded, Limits
from mentalese.models.peft_targets import BACKBONE_TARGETS
from mentalese.models.trace import Shown, Thought, ThoughtTrace
from mentalese.models.transformers_seam import CACHE, attention_of
from mentalese.models.wrapped import WrappedDecoder
from mentalese.nn.controls import controlled
from mentalese.nn.loss import IGNORED

NEAREST = 5  # tokens of a trace that stand beside a latent

# ------------------------------------------------------------------------------------------------ keys and values


@contextmanager
def _keys_kept_once(keys: Any) -> Iterator[None]:
    """Inside, what a pass keeps of keys and values for its gradient is taken from the last pass's.

    Theirs are the beginning of those; a copy for each pass would be kept otherwise.
    """
    # What is kept must hold no graph, or it keeps itself alive: no tensor as it is, and in the end no layer either.
    layers = list(keys.layers)
    last: dict[tuple[int, str], Tensor] = {}

    def pack(tensor: Tensor) -> Any:
        if tensor.ndim == 4:
            for number, layer in enumerate(layers):
                for name in ("keys", "values"):
                    held = getattr(layer, name)
                    if held is not None and tensor.data_ptr() == held.data_ptr() and tensor.shape == held.shape:
                        return number, name, tensor.shape[2]
        return tensor.detach()

    def unpack(packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        number, name, length = packed
        return last[number, name][:, :, :length]

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield
        for number, layer in enumerate(layers):
            last[number, "keys"], last[number, "values"] = layer.keys.detach(), layer.values.detach()
    finally:
        layers.clear()


class _PassKeys(DynamicLayer):
    """A layer's keys and values in one pass: those of the passes before it, and its own.

    A checkpointed layer runs again in the backward pass, so that an update changes nothing that it reads.
    """

    def __init__(self, earlier: tuple[tuple[Tensor, Tensor], ...]) -> None:
        super().__init__()
        self.earlier = earlier
        self.own: tuple[Tensor, Tensor] | None = None

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if self.own is None:
            self.own = keys, values
        keys, values = (torch.cat(parts, dim=-2) for parts in zip(*self.earlier, (keys, values)))
        return keys, values

    def get_seq_length(self) -> int:
        return sum(keys.shape[-2] for keys, _ in self.earlier)

    @property
    def all(self) -> tuple[tuple[Tensor, Tensor], ...]:
        return self.earlier if self.own is None else (*self.earlier, self.own)


class _KeysOf:
    """What a layer needs of a cache, its own keys and values: a graph of one layer is then that of all."""

    def __init__(self, keys: DynamicLayer) -> None:
        self.keys = keys

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self.keys.update(keys, values)


class _CompiledLayer(nn.Module):
    """A layer that `torch.compile` takes without what calls it, see `_layers_run_by`."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def compile(self, **options: Any) -> None:
        self.layer.forward = torch.compile(self.layer.forward, **options)


@contextmanager
def _layers_run_by(layers: list[nn.Module], run: Callable[..., Any], some: list[nn.Module]) -> Iterator[None]:
    """Inside, each layer has its own part of the cache, and calls of `some` go through `run(function, *args)`.

    transformers' own checkpointing takes a layer's cache away from it, and with it the passes before.
    """

    def called(number: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if kwargs.get(CACHE) is not None:
            kwargs[CACHE] = _KeysOf(kwargs[CACHE].layers[number])
        if any(layers[number] is layer for layer in some):
            return run(partial(forward, **kwargs), *args)
        return forward(*args, **kwargs)

    before = [vars(layer).get("forward") for layer in layers]
    for number, layer in enumerate(layers):
        layer.forward = partial(called, number, layer.forward)
    try:
        yield
    finally:
        for layer, forward in zip(layers, before):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward


class _Reader:
    """The backbone over a call's columns, pass by pass, each on the keys and values of those before it.

    Args:
        mask: bool [B, m], all columns, those of earlier calls first; `None`: all are tokens.
        past: how many columns earlier calls have.
        full: how many of the first columns hold a token in every row.
        keys: what passes share; `None`: there is only one.
        columns: of keys of a fixed size; `None`: they grow.
        keep: also keep the hidden states of every layer, a tuple per pass.
    """

    def __init__(
        self,
        body: nn.Module,
        mask: Tensor | None,
        past: int,
        full: int,
        keys: Any,
        columns: int | None,
        keep: bool,
    ) -> None:
        if columns is not None and mask is not None:
            mask = F.pad(mask, (0, columns - mask.shape[1]))
        self.body, self.mask, self.past, self.full, self.keys, self.keep = body, mask, past, full, keys, keep
        self.columns = columns
        self.positions = None if mask is None else (mask.cumsum(1) - 1).clamp(min=0)
        self.hidden_states: list[tuple[Tensor, ...]] = []

    def __call__(self, inputs: Tensor, start: int) -> Tensor:
        """Final hidden states [B, n, d] of `inputs` [B, n, d], which lie in the columns from `start` on."""
        start, end = self.past + start, self.past + start + inputs.shape[1]
        masks, positions = None, None
        if self.mask is not None and self.positions is not None and end > self.full:
            width = self.columns or end
            mask, counted = self.mask[:, :width], self.positions[:, :width]
            masks = attention_masks(self.body.config, mask, counted, start, inputs.dtype, end)
            positions = self.positions[:, start:end]
        elif self.keys is None:  # without a mask, transformers would look for several texts in the positions
            masks = torch.ones(inputs.shape[:2], dtype=torch.long, device=inputs.device)
        if self.columns is not None:
            write_at(self.keys.layers, start, end)
        output = self.body(
            inputs_embeds=inputs,
            attention_mask=masks,
            position_ids=positions,
            use_cache=self.keys is not None,
            **{CACHE: self.keys},
            **({"output_hidden_states": True} if self.keep else {}),
        )
        if self.keep:
            self.hidden_states.append(output.hidden_states)
        if self.keys is not None and isinstance(self.keys.layers[0], _PassKeys):
            self.keys = Cache(layers=[_PassKeys(layer.all) for layer in self.keys.layers])
        return output.last_hidden_state


@dataclass
class Thoughts:
    """What the latents of a batch were: one entry per pass, [B, d] each, and the gates' values by name.

    `states` are h_t, `latents` h'_t, `concepts` c_t. `is_latent`, bool [B, L], marks their positions, `embedded`
    [B, L, d] is what the tokens are without passes.
    """

    is_latent: Tensor
    embedded: Tensor
    states: list[Tensor] = field(default_factory=list)
    latents: list[Tensor] = field(default_factory=list)
    concepts: list[Tensor] = field(default_factory=list)
    gates: list[dict[str, Tensor]] = field(default_factory=list)


@dataclass(kw_only=True)
class CoconutEncoded(Encoded):
    """Final hidden states, and what the latents were if a trace was asked for."""

    thoughts: Thoughts | None = None


# ------------------------------------------------------------------------------------------------------------ the model


class CoconutForCausalLM(WrappedDecoder):
    """A Hugging Face decoder whose latent positions read hidden states."""

    config_class = CoconutConfig
    lora_targets = BACKBONE_TARGETS
    shard_blocks = False  # a step runs the backbone many times
    steps_layout = "qa_steps"  # whose batches a step decoder needs
    about_thoughts = (
        "Hidden states that are fed back instead of tokens between a question and its answer; AGCLR adds a concept "
        "stream that runs alongside. Only answers are trained, so scores of the question mean little."
    )
    shown = {  # noqa: RUF012 (nothing writes to it)
        "read": Shown("read gate", "How much of the concept stream a latent reads.", "share", along="pass"),
        "forget": Shown("forget gate", "How much of its hidden state a latent drops.", "share", along="pass"),
        "write": Shown("write gate", "How much of itself a latent writes to the concept stream.", "share", "pass"),
        "retention": Shown(
            "retention", "How close the hidden state before each latent is to the first one.", "cosine", "pass"
        ),
        "retention_gated": Shown(
            "retention, gated", "The same of what the latents read, after the gates.", "cosine", "pass"
        ),
    }

    def __init__(self, config: CoconutConfig) -> None:
        super().__init__(config)
        self.concept_stream = ConceptStream(config) if config.mode == "agclr" else None
        self.step_decoder = None if config.step_decoder_layers is None else StepDecoder(config)
        self.gradient_checkpointing = False
        self._checkpointed: list[nn.Module] = []
        self._run_again: Callable[..., Any] = partial  # runs a checkpointed layer
        self._compiled = False
        self.post_init()
        if config.latent_token_id is not None:  # a latent is asked for, never said
            self.generation_config.suppress_tokens = [config.latent_token_id]

    def initialize(self, module: nn.Module) -> None:
        super().initialize(module)
        if isinstance(module, Gate):
            init.zeros_(module.weight)
            init.constant_(module.bias, module.bias_init)

    def set_checkpointing(self, enable: bool, run: Callable[..., Any], every_n_layers: int) -> None:
        """See `LatentThoughtModel`; the backbone's layers do not know that they are checkpointed."""
        super().set_checkpointing(enable, run, every_n_layers)
        self._run_again = run
        self._checkpointed = [layer for layer in layers_of(self.backbone) if layer.gradient_checkpointing]
        for module in self.backbone.modules():
            if hasattr(module, "gradient_checkpointing"):
                module.gradient_checkpointing = False

    @property
    def limits(self) -> Limits:
        """See `LatentThoughtModel`; columns of a static cache without keys are told from others by masks of pairs."""
        config = self.backbone.config
        no_pairs = f"the backbone, a {config.model_type} with {attention_of(config)}, takes no masks of pairs"
        return Limits(
            hidden_states=None,
            static_cache=None if takes_pairs(config) else no_pairs,
            continued_traces=None,
            loss=None if self.step_decoder is None else "the steps that latents stand for",
        )

    def compiled_parts(self) -> list[nn.Module]:
        """The layers; they are told of padding from then on whether there is some or not, which is one graph less."""
        self._compiled = True
        return [_CompiledLayer(layer) for layer in layers_of(self.backbone)]

    # ------------------------------------------------------------------------------------- the passes

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cache: ThoughtCache | None = None,
        trace: bool = False,
        output_hidden_states: bool = False,
    ) -> CoconutEncoded:
        """Final hidden states [B, L, d], zero at padding, from where `cache` left off; the cache moves on.

        Args:
            trace: also keep what the latents were.
            output_hidden_states: also keep those of every layer; the first are what it read, tokens and latents.

        Raises:
            InputError: a latent before any token, or latents apart from each other.
        """
        if self.config.latent_token_id is None:
            raise InputError(
                f"{self.config.model_type}.latent_token_id is None, so that nothing is a latent: use the token that "
                "marks one (`mentalese grow` adds it to a tokenizer)"
            )
        batch, length = input_ids.shape
        state = {} if cache is None else cache.state
        real = self.real_tokens(input_ids, attention_mask, cache)
        is_latent = (input_ids == self.config.latent_token_id) & real
        thoughts = Thoughts(is_latent, self.get_input_embeddings()(input_ids)) if trace else None
        thinks = self.config.mode != "pause"
        one = thinks and length == 1 and "hidden" in state  # which may be a latent, of some rows or all
        layout, padded = None, attention_mask is not None
        if not one and (thinks or padded):
            rows = Rows.of(is_latent, real, together=self.training)
            padded = min(rows.on_host[3]) < length
            layout = lay_out(is_latent, real, rows) if thinks and rows.passes else None
        elif one and real.device.type == "cpu":  # a GPU is not waited for at each token
            one, padded = bool(is_latent.any()), padded and not bool(real.all())
        ids, own, full = input_ids, real, 0 if padded else length
        if layout is not None:
            ids, own, full = input_ids.gather(1, layout.source), layout.real, layout.full
        past = 0 if cache is None else cache.layers[0].get_seq_length()
        columns = None if cache is None else fixed_columns(cache.layers, past + own.shape[1])
        if sliding_window(self.backbone.config) is not None or self._compiled or columns is not None:
            full = 0  # whose masks are ours, see `attention_masks`
        mask = self._mask(own, state.get("mask"), past, full)
        self.check_length(mask, past + own.shape[1])
        keys = None
        checkpointed = self._checkpointed if self.training and torch.is_grad_enabled() and cache is None else []
        if layout is not None or cache is not None:
            kept = (self.new_cache() if cache is None else cache).layers
            keys = Cache(layers=[_PassKeys(()) for _ in kept] if checkpointed else kept)
        full = past + full if full and "mask" not in state else 0
        read = _Reader(self.backbone.base_model, mask, past, full, keys, columns, output_hidden_states)
        embedded = self.get_input_embeddings()(ids)
        if one:
            embedded = self._one(embedded, is_latent, state, thoughts)
        once = keys is not None and cache is None and torch.is_grad_enabled() and not checkpointed
        layers = layers_of(self.backbone) if checkpointed or self._compiled else []
        run = self._run_again if checkpointed else partial
        with _layers_run_by(layers, run, checkpointed) if layers else nullcontext():
            if layout is None:
                hidden = read(embedded, 0)
            else:
                with _keys_kept_once(keys) if once else nullcontext():
                    hidden = self._think(embedded, layout, read, state, thoughts)
                hidden = layout.in_place(hidden)
        levels = [torch.cat(level, dim=1) for level in zip(*read.hidden_states)]
        levels = [level if layout is None else layout.in_place(level) for level in levels]
        if padded:
            hidden, *levels = (x.masked_fill(~real[..., None], 0.0) for x in (hidden, *levels))
        if cache is not None:
            last = real.long().mul(torch.arange(1, length + 1, device=real.device)).argmax(1)
            latest = hidden[torch.arange(batch, device=real.device), last]
            if "hidden" in state:
                latest = torch.where(real.any(1, keepdim=True), latest, state["hidden"])
            state["hidden"] = latest
            if mask is not None:
                state["mask"] = mask
            cache.advance(length)
        return CoconutEncoded(hidden=hidden, hidden_states=tuple(levels) or None, thoughts=thoughts)

    def _think(
        self, embedded: Tensor, layout: Layout, read: Any, state: dict[str, Tensor], thoughts: Thoughts | None
    ) -> Tensor:
        """Final hidden states [B, P + N + R, d]: the question, latent by latent, the last one with the rest."""
        prompt, passes = layout.prompt, layout.passes
        rows, width = embedded.shape[0], embedded.shape[2]
        parts = [read(embedded[:, :prompt], 0)] if prompt else []
        before = parts[-1][:, -1] if prompt else embedded.new_zeros(rows, width)
        if layout.begins:
            if "hidden" not in state:
                raise InputError("input_ids begins with a latent token: it reads the state of the token before it")
            before = torch.where(layout.first[:, None], state["hidden"].to(before.dtype), before)
        for number in range(passes):
            latent = self._latent(before, number < layout.latents, state, thoughts)
            column = prompt + number
            inputs = latent[:, None]
            if number == passes - 1:  # the rest needs no pass of its own
                inputs = torch.cat((inputs.to(embedded.dtype), embedded[:, column + 1 :]), dim=1)
            parts.append(read(inputs, column))
            before = parts[-1][:, 0]
        return torch.cat(parts, dim=1)

    def _one(self, embedded: Tensor, is_latent: Tensor, state: dict[str, Tensor], thoughts: Thoughts | None) -> Tensor:
        """What one further token of each row reads, [B, 1, d]: a latent its row's last hidden state."""
        latent = self._latent(state["hidden"].to(embedded.dtype), is_latent[:, 0], state, thoughts)
        return torch.where(is_latent[..., None], latent[:, None].to(embedded.dtype), embedded)

    def _latent(self, before: Tensor, thinking: Tensor, state: dict[str, Tensor], thoughts: Thoughts | None) -> Tensor:
        """What a latent after hidden states [B, d] reads, [B, d]; the concept stream moves on in `thinking` rows."""
        latent, values = self._thought(before), {}
        memory = state.get("memory", torch.zeros_like(before))
        if self.concept_stream is not None:
            count = state.get("latents", torch.zeros_like(thinking, dtype=torch.long))
            latent, written, values = self.concept_stream(before, memory, count)
            memory = torch.where(thinking[:, None], written, memory)
            state["memory"], state["latents"] = memory, count + thinking
        if self.config.thought_control is not None:
            marker = torch.full((), self.config.latent_token_id, device=before.device)
            latent = controlled(latent, self.config.thought_control, self.get_input_embeddings()(marker))
        if thoughts is not None:
            thoughts.states.append(before)
            thoughts.latents.append(latent)
            thoughts.concepts.append(memory)
            thoughts.gates.append(values)
        return latent

    def _thought(self, hidden: Tensor) -> Tensor:
        """A hidden state [B, d] as a latent reads it; families that change it override this."""
        return hidden

    @staticmethod
    def _mask(own: Tensor, held: Tensor | None, past: int, full: int) -> Tensor | None:
        """bool [B, m], the tokens among all columns, of which `past` are those of earlier calls; `None`: all are."""
        if held is None and full == own.shape[1]:
            return None
        return torch.cat((own.new_ones(len(own), past) if held is None else held, own), dim=1)

    # ------------------------------------------------------------------------------------- training and cost

    def training_loss(self, batch: Batch, **settings: Any) -> LossOutput:
        """See `LanguageModel.training_loss`; what the latents of a batch do not need gets zero gradients.

        With a step decoder, `metrics` holds `ntp` and `step_nll` apart; the latter is a mean over the tokens of all
        steps, which micro-batches and ranks weigh by their targets.
        """
        weights = self.target_weights(batch, **settings)
        encoded = self.encode(batch["input_ids"], batch.get("attention_mask"), trace=self.step_decoder is not None)
        loss, weight = self.next_token_loss(encoded.hidden, batch["labels"], weights)
        output = LossOutput(loss, weight, encoded=lambda: encoded)
        self._add_step_loss(output, batch, encoded)
        return self._all_trained(output, self.concept_stream)

    def _add_step_loss(self, output: LossOutput, batch: Batch, encoded: CoconutEncoded) -> None:
        """Adds the step decoder's loss on what the latents of a batch stand for, if there is such a decoder."""
        if self.step_decoder is None:
            return
        if "steps" not in batch:
            raise InputError(
                f"{self.config.model_type}.step_decoder_layers is {self.config.step_decoder_layers}: the batch has no "
                f"written steps; use layout {self.steps_layout!r}, or set step_decoder_layers to None"
            )
        assert encoded.thoughts is not None
        latents, embed = encoded.thoughts.latents, self.get_input_embeddings()
        loss = step_loss(self.step_decoder, batch, latents, embed, self.loss_head())
        output.metrics = {"ntp": output.loss.detach()} | output.metrics | {"step_nll": loss.detach()}
        output.loss = output.loss + self.config.step_weight * loss
        self._all_trained(output, self.step_decoder)

    @staticmethod
    def _all_trained(output: LossOutput, module: nn.Module | None) -> LossOutput:
        """The output, with a gradient for all of a module's weights, be it zero."""
        if module is not None:
            output.loss = output.loss + 0.0 * sum(p.sum() for p in module.parameters())
        return output

    def start_from_backbone(self) -> None:
        """What a trained decoder inside gives to the rest."""
        if self.step_decoder is not None:
            self.step_decoder.start_from(self.backbone)

    def _said(self, labels: Tensor) -> Tensor:
        """Labels without those of latents, which nothing predicts."""
        return labels.masked_fill(labels == self.config.latent_token_id, IGNORED)

    def next_token_loss(self, hidden: Tensor, labels: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """See `LanguageModel.next_token_loss`; a latent is never a target."""
        return super().next_token_loss(hidden, self._said(labels), weights)

    def next_token_nll(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """See `LanguageModel.next_token_nll`; zero at latents."""
        return super().next_token_nll(hidden, self._said(labels))

    def scored_labels(self, batch: Batch, estimator: str) -> Tensor:
        """See `LanguageModel.scored_labels`: those of latents are not scored."""
        return self._said(super().scored_labels(batch, estimator))

    def forward_flops(self, batch: Batch) -> int:
        ids = batch["input_ids"]
        rows, length = ids.shape
        mask = batch.get("attention_mask")
        real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        is_latent = (ids == self.config.latent_token_id) & real
        columns, pairs, latent = length, length**2, 0
        if self.config.mode != "pause" and bool(is_latent.any()):
            layout = lay_out(is_latent, real)
            prompt, passes, columns = layout.prompt, layout.passes, layout.source.shape[1]
            pairs = (
                prompt**2
                + sum(prompt + number for number in range(1, passes))
                + (columns - prompt - passes + 1) * columns
            )
            latent = passes * self._latent_weights()
        inner = self.backbone.config
        body = columns * linear_weights(self.backbone) + 2 * pairs * attention_width(inner)
        return 2 * rows * (body + latent + length * self.output_weight().numel())

    def training_flops(self, batch: Batch, **settings: Any) -> int:
        """See `LanguageModel.training_flops`; those of the step decoder count here alone."""
        flops = super().training_flops(batch, **settings)
        if self.step_decoder is not None:
            flops += 3 * self.step_decoder.flops(batch, self.output_weight().numel())
        return flops

    def _latent_weights(self) -> int:
        """Weights of the maps that every latent goes through beside the backbone's."""
        return 0 if self.concept_stream is None else len(self.concept_stream.gates) * self.config.hidden_size**2

    # ------------------------------------------------------------------------------------- traces

    def predicted_tokens(self, encoded: CoconutEncoded, input_ids: Tensor, real: Tensor) -> Tensor:
        """See `LatentThoughtModel.predicted_tokens`: nothing predicts a latent."""
        return follows(real) & (input_ids != self.config.latent_token_id)

    def fill(self, traces: list[ThoughtTrace], encoded: CoconutEncoded, real: Tensor) -> None:
        """Each latent as it was read and, of AGCLR, the concept stream after it, with what the output embedding makes
        of them.

        `curves` contains, per pass, each gate's mean, and `retention`: the cosine of the state before each latent with
        that before the first one (Figure 3 of AGCLR), of h'_t instead of h_t as `retention_gated`.
        """
        thoughts = encoded.thoughts
        assert thoughts is not None
        for row, trace in enumerate(traces):
            columns = thoughts.is_latent[row].nonzero()[:, 0].tolist()
            if not thoughts.latents:
                trace.thoughts = [Thought(thoughts.embedded[row, at].detach(), at, at + 1, "latent") for at in columns]
                continue
            for number, at in enumerate(columns):
                vectors = {"latent": thoughts.latents[number][row]}
                if self.concept_stream is not None:
                    vectors["concept"] = thoughts.concepts[number][row]
                for label, vector in vectors.items():
                    trace.thoughts.append(Thought(vector.detach(), at, at + 1, label, nearest=self._nearest(vector)))
            if not columns:
                continue
            for name in thoughts.gates[0]:
                trace.curves[name] = torch.stack([thoughts.gates[n][name][row].mean() for n in range(len(columns))])
            kept = {"retention": thoughts.states}
            if self.concept_stream is not None:
                kept["retention_gated"] = thoughts.latents
            for name, states in kept.items():
                own = torch.stack([state[row].float() for state in states[: len(columns)]])
                trace.curves[name] = torch.cosine_similarity(own[:1], own, dim=-1)

    def _nearest(self, vector: Tensor) -> tuple[tuple[int, float], ...]:
        """The likeliest tokens, were the vector [d] a final hidden state."""
        logits = self.get_output_embeddings()(vector.to(self.backbone.dtype))
        best = logits.float().softmax(-1).topk(min(NEAREST, len(logits)))
        return tuple(zip(best.indices.tolist(), best.values.tolist()))
