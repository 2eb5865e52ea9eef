"""Coconut and AGCLR, fast: batches of ragged rows, a cache, and any decoder of Hugging Face. `plain.py` has the method.

There is one pass over the question, one for each latent, one over the rest; every pass uses the keys and values of
earlier ones. Equations are from AGCLR's paper. Rows of a batch may differ in the length of the question and in the
number of latents. They are rearranged as

    [ padding | question ] [ latents | masked ] [ rest | padding ]
      P columns              N columns            R columns

so that a latent pass is one column for all rows. Letters in shapes: B rows of L tokens, d hidden size, P, N and R
columns of questions, latents and the rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache, DynamicCache
from transformers import initialization as init

from mentalese.data.batch import Batch
from mentalese.errors import InputError
from mentalese.families.coconut.config import GATES, CoconutConfig
from mentalese.families.coconut.steps import StepDecoder, step_loss
from mentalese.models.backbone import attention_masks, attention_width, linear_weights, takes_pairs
from mentalese.models.base import LossOutput, follows
from mentalese.models.cache import ThoughtCache, fixed_columns, write_at
from mentalese.models.hf import Encoded, Limits
from mentalese.models.lora import BACKBONE_TARGETS
from mentalese.models.trace import INFLUENCE, SHOWN, Shown, Thought, ThoughtTrace
from mentalese.models.transformers_seam import CACHE, attention_of
from mentalese.models.wrapped import WrappedDecoder
from mentalese.nn.controls import controlled
from mentalese.nn.loss import IGNORED

NEAREST = 5  # tokens per latent in a trace


@dataclass
class TokenPlaces:
    """The places of a batch's tokens in the columns of the passes.

    Attributes:
        source: [B, P + N + R], the column of the batch that each place holds; 0 at padding.
        real: bool [B, P + N + R], places that hold a token.
        place: [B, L], the place of each token; 0 at padding.
        thinks: bool [B, N], columns in which a row has a latent.
        first: bool [B], rows whose latents follow no token of this call.
        prompt: P.
    """

    source: Tensor
    real: Tensor
    place: Tensor
    thinks: Tensor
    first: Tensor
    prompt: int


def lay_out(is_latent: Tensor, real: Tensor, *, continued: bool = False, together: bool = False) -> TokenPlaces:
    """Return the places of a batch from its latents and tokens, both bool [B, L]; waits for a GPU once.

    A row without latents is split where the longest question ends; in a batch without latents all tokens are rest.

    Args:
        continued: the tokens follow the tokens of an earlier call.
        together: N is the maximum over ranks, because under FSDP all ranks run equally many passes.

    Raises:
        InputError: latents before any token, or latents of a row that are not contiguous.
    """
    length = real.shape[1]
    rank, tokens, latents = real.cumsum(1) - 1, real.sum(1), is_latent.sum(1)
    has_latents = latents > 0
    start = torch.where(is_latent, rank, length).amin(1)
    end = torch.where(is_latent, rank + 1, 0).amax(1)
    passes, prompt = latents.max(), (start * has_latents).max()
    if together and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(passes, torch.distributed.ReduceOp.MAX)
    start = torch.where(has_latents, start, tokens.clamp(max=prompt))
    rest = (tokens - start - latents).max()
    first = has_latents & (start == 0)
    apart = has_latents & (end - start != latents)
    on_host = torch.stack((passes, prompt, rest, first.any(), apart.any())).tolist()
    if on_host[4]:
        raise InputError(
            "input_ids has latent tokens apart from each other in a row: put them side by side, or read one group a "
            "call, with the cache of the call before"
        )
    if on_host[3] and not continued:
        raise InputError("input_ids begins with a latent token: it reads the state of the token before it")

    columns = sum(on_host[:3])
    after = rank - (start + latents)[:, None]
    place = torch.where(after < 0, rank, passes + start[:, None] + after) + (prompt - start)[:, None]
    place_or_end = place.masked_fill(~real, columns)
    column = torch.arange(length, device=real.device).expand_as(real)
    source = column.new_zeros(len(real), columns + 1).scatter_(1, place_or_end, column)[:, :-1]
    filled = real.new_zeros(len(real), columns + 1).scatter_(1, place_or_end, value=True)[:, :-1]
    thinks = torch.arange(on_host[0], device=real.device) < latents[:, None]
    return TokenPlaces(source, filled, place.masked_fill(~real, 0), thinks, first, on_host[1])


def in_order(real: Tensor, thinks: Tensor) -> TokenPlaces:
    """Return places that keep columns, with `thinks` bool [B, L] or [B, 0]; does not wait for a GPU."""
    column = torch.arange(real.shape[1], device=real.device).expand_as(real)
    return TokenPlaces(column, real, column, thinks, first=real[:, 0], prompt=0)


class Gate(nn.Linear):
    """The linear map W h + b of a gate, without the sigmoid; W starts at zero (appendix A.3).

    It is a module of its own so that tools that adapt or quantise linear maps can replace it.
    """

    def __init__(self, width: int, bias_init: float) -> None:
        super().__init__(width, width)
        self.bias_init = bias_init


class ConceptStream(nn.Module):
    """AGCLR's memory across the passes (Eq. 1 to 4)."""

    def __init__(self, config: CoconutConfig) -> None:
        super().__init__()
        width, biases = config.hidden_size, zip(GATES, config.gate_biases)
        self.norm, self.memory_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.gates = nn.ModuleDict({name: Gate(width, bias) for name, bias in biases if name in config.gates})
        self.write_passes = config.write_passes

    def forward(self, hidden: Tensor, memory: Tensor, latents: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return h'_t and c_t [B, d] of one latent from h_t and c_{t-1} [B, d], and the gate values [B, d] by name.

        `latents` [B] is the number of latents before this one.
        """
        normed = self.norm(hidden)
        gates = {name: gate(normed).sigmoid() for name, gate in self.gates.items()}
        if "forget" in gates:
            hidden = (1 - gates["forget"]) * hidden
        if "read" in gates:
            hidden = hidden + gates["read"] * memory
        written = self.memory_norm(memory + gates["write"] * hidden if "write" in gates else memory)
        if self.write_passes is not None:
            written = torch.where((latents < self.write_passes)[:, None], written, memory)
        return hidden, written, gates


@dataclass(kw_only=True)
class CoconutEncoded(Encoded):
    """Final hidden states and the latents, which are in lists with one entry per pass.

    Attributes:
        is_latent: bool [B, L], their positions.
        states: h_t, [B, d].
        latents: h'_t, [B, d], as they are read: under a control not the model's own.
        own: the model's own latents [B, d], which a step decoder explains.
        concepts: c_t, [B, d]; empty without a concept stream.
        gates: the gate values [B, d] by name.
    """

    is_latent: Tensor
    states: list[Tensor] = field(default_factory=list)
    latents: list[Tensor] = field(default_factory=list)
    own: list[Tensor] = field(default_factory=list)
    concepts: list[Tensor] = field(default_factory=list)
    gates: list[dict[str, Tensor]] = field(default_factory=list)


Pieces = list[tuple[Tensor, Tensor]]
"""Keys and values [B, heads, columns, d / heads] of a pass by layer."""


class Passes:
    """The passes of the backbone over the columns of a call; each uses the keys and values of earlier passes.

    Args:
        body: the backbone without its head.
        mask: bool [B, columns], the columns with tokens; columns of earlier calls come first.
        keys: keys and values of earlier calls, to which passes add; `None` for a single pass.
        keep_levels: also keep the hidden states of all layers, as `levels`.
        checkpoint: calls a function with arguments and again in the backward pass; `None` keeps all activations.
    """

    def __init__(
        self,
        body: nn.Module,
        mask: Tensor,
        keys: Any,
        *,
        keep_levels: bool,
        checkpoint: Callable[..., Any] | None,
    ) -> None:
        room = None if keys is None else fixed_columns(keys.layers, mask.shape[1])
        self.fixed = room is not None
        self.mask = mask if room is None else F.pad(mask, (0, room - mask.shape[1]))
        self.positions = (self.mask.cumsum(1) - 1).clamp(min=0)
        self.body, self.keys, self.keep_levels, self.checkpoint = body, keys, keep_levels, checkpoint
        self.pieces: list[Pieces] = []
        self.levels: list[tuple[Tensor, ...]] = []

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the final hidden states [B, n, d] of the next n columns, whose inputs are [B, n, d]."""
        if self.checkpoint is None:
            output = self._read(inputs, self.keys)
        else:
            output, pieces = self.checkpoint(self._read_again, inputs, tuple(self.pieces))
            self.pieces.append(pieces)
        if self.keep_levels:
            self.levels.append(output.hidden_states)
        return output.last_hidden_state

    def ahead(self, inputs: Tensor) -> Tensor:
        """Return the states [B, n, d] of the next n columns as a call does, but neither keep them nor move on."""
        if self.checkpoint is not None:
            return self.checkpoint(self._read_again, inputs, tuple(self.pieces))[0].last_hidden_state
        states = self._read(inputs, self.keys).last_hidden_state
        self.keys.crop(-inputs.shape[1])
        return states

    def _read(self, inputs: Tensor, keys: Any) -> Any:
        start = 0 if keys is None else keys.get_seq_length()
        end = start + inputs.shape[1]
        width = self.mask.shape[1] if self.fixed else end
        if self.fixed and keys is not None:
            write_at(keys.layers, start, end)
        mask, positions = self.mask[:, :width], self.positions[:, :width]
        return self.body(
            inputs_embeds=inputs,
            attention_mask=attention_masks(self.body.config, mask, positions, start, inputs.dtype, end),
            position_ids=positions[:, start:end],
            use_cache=keys is not None,
            output_hidden_states=self.keep_levels,
            **{CACHE: keys},
        )

    def _read_again(self, inputs: Tensor, earlier: tuple[Pieces, ...]) -> tuple[Any, Pieces]:
        """Return the output of a pass with its keys and values; it has no side effects, so that it can run twice."""
        keys: Any = DynamicCache()
        for layer, pieces in enumerate(zip(*earlier)):
            keys.update(*(torch.cat(piece, dim=2) for piece in zip(*pieces)), layer)
        start = keys.get_seq_length()
        output = self._read(inputs, keys)
        new_keys = ((layer.keys[:, :, start:], layer.values[:, :, start:]) for layer in keys.layers)
        return output, [(layer_keys.contiguous(), layer_values.contiguous()) for layer_keys, layer_values in new_keys]


class CoconutForCausalLM(WrappedDecoder[CoconutEncoded]):
    """A Hugging Face decoder whose latent positions read hidden states."""

    config_class: Any = CoconutConfig
    lora_targets = BACKBONE_TARGETS
    shard_blocks = False  # a step runs the backbone many times
    steps_layout = "qa_steps"  # whose batches a step decoder needs
    about_thoughts = (
        "Hidden states that are fed back instead of tokens between a question and its answer; AGCLR adds a concept "
        "stream that runs alongside. Only answers are trained, so scores of the question mean little."
    )
    shown = {  # noqa: RUF012 (nothing writes to it)
        INFLUENCE: dataclasses.replace(SHOWN[INFLUENCE], along="pass"),
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

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.concept_stream = ConceptStream(config) if config.mode == "agclr" else None
        self.step_decoder = None if config.step_decoder_layers is None else StepDecoder(config)
        self.gradient_checkpointing = False
        self._checkpoint: Callable[..., Any] | None = None
        self.post_init()
        if config.latent_token_id is not None:  # generation writes words
            self.generation_config.suppress_tokens = [config.latent_token_id]

    def initialize(self, module: nn.Module) -> None:
        super().initialize(module)
        if isinstance(module, Gate):
            init.zeros_(module.weight)
            init.constant_(module.bias, module.bias_init)

    def set_checkpointing(self, enable: bool, run: Callable[..., Any], every_n_layers: int) -> None:
        """See `LatentThoughtModel`: whole passes run again, as layers would drop the keys of earlier passes."""
        super().set_checkpointing(enable, run, every_n_layers)
        self._checkpoint = run if enable else None
        modules: list[Any] = [*self.backbone.modules()]
        for module in modules:
            if hasattr(module, "gradient_checkpointing"):
                module.gradient_checkpointing = False

    @property
    def limits(self) -> Limits:
        """See `LatentThoughtModel`; only masks of pairs can exclude the unused columns of a static cache."""
        config = self.backbone.config
        no_pairs = f"the backbone, a {config.model_type} with {attention_of(config)}, takes no masks of pairs"
        unfixed = None if takes_pairs(config) else no_pairs
        return Limits(
            hidden_states=None,
            static_cache=unfixed if self.config.parallel_passes is None else "parallel latents are read several times",
            continued_traces=None,
            loss=None if self.step_decoder is None else "the steps that latents stand for",
        )

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
        """Return final hidden states [B, L, d], zero at padding, from where `cache` left off; the cache moves on.

        Args:
            trace: no effect, since latents are always returned.
            output_hidden_states: also return the states of every layer; the first are the inputs, tokens and latents.

        Raises:
            InputError: a latent before any token, or latents of a row that are not contiguous.
        """
        return self._encode(input_ids, attention_mask, cache, output_hidden_states)

    def _encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        cache: ThoughtCache | None,
        output_hidden_states: bool,
        embedded: Tensor | None = None,
    ) -> CoconutEncoded:
        """Return what `encode` does; `embedded` [B, L, d] is read instead of the embeddings of tokens."""
        remedy = "nothing is a latent; use the token that marks one (`mentalese grow` adds it to a tokenizer)"
        self.config.require(self.config.latent_token_id is not None, "latent_token_id", remedy)
        state = {} if cache is None else cache.state
        continued = "hidden" in state
        real = self.real_tokens(input_ids, attention_mask, cache)
        is_latent = (input_ids == self.config.latent_token_id) & real
        if self.config.parallel_passes is not None and continued and bool((state["thinks"] & is_latent[:, 0]).any()):
            raise InputError("input_ids goes on with latents of the call before: parallel latents are read in one call")
        places = self._places(is_latent, real, continued, together=self.training)
        mask = torch.cat((state["mask"], places.real), dim=1) if continued else places.real
        self.check_length(mask, mask.shape[1])
        keys = None
        if cache is not None:
            keys = Cache(layers=cache.layers)
        elif places.thinks.shape[1]:
            keys = DynamicCache()
        read = Passes(
            self.backbone.base_model,
            mask,
            keys,
            keep_levels=output_hidden_states,
            checkpoint=self._checkpoint if self.training and cache is None else None,
        )
        if embedded is None:
            embedded = self.get_input_embeddings()(input_ids.gather(1, places.source))
        else:
            embedded = embedded.gather(1, places.source[..., None].expand(-1, -1, embedded.shape[2]))
        encoded = CoconutEncoded(hidden=embedded, is_latent=is_latent)
        levels = [self._think(encoded, places, read, state)]
        levels += [torch.cat(level, dim=1) for level in zip(*read.levels)]
        columns = places.place[..., None].expand(-1, -1, levels[0].shape[2])
        hidden, *levels = (level.gather(1, columns) for level in levels)
        if attention_mask is not None:
            hidden, *levels = (level.masked_fill(~real[..., None], 0.0) for level in (hidden, *levels))
        if cache is not None:
            column = torch.arange(1, real.shape[1] + 1, device=real.device)
            last = (real * column).argmax(1)[:, None, None].expand(-1, 1, hidden.shape[2])
            latest = hidden.gather(1, last)[:, 0]
            state["hidden"] = torch.where(real.any(1, keepdim=True), latest, state["hidden"]) if continued else latest
            state["mask"], state["thinks"] = mask, is_latent[:, -1]
            cache.advance(input_ids.shape[1])
        encoded.hidden, encoded.hidden_states = hidden, tuple(levels) or None
        return encoded

    def _places(self, is_latent: Tensor, real: Tensor, continued: bool, *, together: bool) -> TokenPlaces:
        """Return the columns of tokens, bool [B, L] each; further tokens, one per row, are latents or not."""
        if self.config.mode == "pause":
            return in_order(real, is_latent[:, :0])
        if continued and real.shape[1] == 1:
            return in_order(real, is_latent)
        return lay_out(is_latent, real, continued=continued, together=together)

    def _think(self, encoded: CoconutEncoded, places: TokenPlaces, read: Passes, state: dict[str, Tensor]) -> Tensor:
        """Return final hidden states [B, P + N + R, d]: of questions, latents and the rest; keep the latents."""
        embedded = encoded.hidden
        passes = places.thinks.shape[1]
        if not passes:
            return read(embedded)
        before = state["hidden"] if "hidden" in state else torch.zeros_like(embedded[:, 0])
        parts = []
        if places.prompt:
            parts.append(read(embedded[:, : places.prompt]))
            before = torch.where(places.first[:, None], before, parts[0][:, -1])
        if self.config.parallel_passes is not None:
            rest = embedded[:, places.prompt + passes :]
            latents = self._iterate(encoded, places, read, before)
            return torch.cat((*parts, read(torch.cat((latents, rest), dim=1))), dim=1)
        for number in range(passes):
            column, thinking = places.prompt + number, places.thinks[:, number]
            latent = self._latent(encoded, before, thinking, state).to(embedded.dtype)
            inputs = torch.where(thinking[:, None], latent, embedded[:, column])[:, None]
            if number == passes - 1:  # the rest needs no pass of its own
                inputs = torch.cat((inputs, embedded[:, column + 1 :]), dim=1)
            parts.append(read(inputs))
            before = parts[-1][:, 0]
        return torch.cat(parts, dim=1)

    def _iterate(self, encoded: CoconutEncoded, places: TokenPlaces, read: Passes, before: Tensor) -> Tensor:
        """Return the inputs [B, N, d] of all columns of latents by Jacobi iteration from the latent token's embedding.

        Latent t follows from the states of the pass before, at latent t - 1; the first one from `before` [B, d].
        """
        thinks = places.thinks[..., None]
        tokens = encoded.hidden[:, places.prompt : places.prompt + thinks.shape[1]]
        marker = self.get_input_embeddings()(torch.tensor(self.config.latent_token_id, device=before.device))
        inputs, states = tokens, before[:, None]
        for _ in range(self.config.parallel_passes or 0):
            if thinks.shape[1] > 1:
                states = torch.cat((before[:, None], read.ahead(inputs[:, :-1])), dim=1)
            own = self._thought(states)
            latents = controlled(own, self.config.thought_control, marker, "columns", places.thinks)
            inputs = torch.where(thinks, latents.to(tokens.dtype), tokens)
        encoded.states += states.unbind(1)
        encoded.latents += latents.unbind(1)
        encoded.own += own.unbind(1)
        encoded.gates += [{} for _ in encoded.latents]
        return inputs

    def _latent(self, encoded: CoconutEncoded, before: Tensor, thinking: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Return the input [B, d] of a latent after hidden states [B, d], and update the memory of `thinking` rows."""
        latent, gates = self._thought(before), {}
        if self.concept_stream is not None:
            memory = state.get("memory", torch.zeros_like(before))
            count = state.get("latents", torch.zeros_like(thinking, dtype=torch.long))
            latent, written, gates = self.concept_stream(before, memory, count)
            state["memory"] = torch.where(thinking[:, None], written, memory)
            state["latents"] = count + thinking
            encoded.concepts.append(state["memory"])
        encoded.own.append(latent)
        if self.config.thought_control is not None:
            marker = torch.full((), self.config.latent_token_id, device=before.device)
            removed, number = self.get_input_embeddings()(marker), len(encoded.latents)
            latent = controlled(latent, self.config.thought_control, removed, number, thinking)
        encoded.states.append(before)
        encoded.latents.append(latent)
        encoded.gates.append(gates)
        return latent

    def _thought(self, hidden: Tensor) -> Tensor:
        """Return the latent [B, d] after a hidden state [B, d]; families that change it override this."""
        return hidden

    # ------------------------------------------------------------------------------------- training and cost

    def training_loss(self, batch: Batch, **settings: object) -> LossOutput:
        """See `LanguageModel.training_loss`; weights that the latents of a batch do not use get zero gradients.

        With a step decoder, `metrics` holds `ntp` and `step_nll` separately. `step_nll` is a mean over the tokens of
        all steps; micro-batches and ranks are weighted by their targets.
        """
        weights = self.target_weights(batch, **settings)
        encoded = self.encode(batch["input_ids"], batch.get("attention_mask"))
        loss, weight = self.next_token_loss(encoded.hidden, batch["labels"], weights)
        output = LossOutput(loss, weight, encoded=lambda: encoded)
        self._add_step_loss(output, batch, encoded)
        return self._all_trained(output)

    def _add_step_loss(self, output: LossOutput, batch: Batch, encoded: CoconutEncoded) -> None:
        """Add the loss of the step decoder, if there is one, on the steps that the latents of a batch replace."""
        if self.step_decoder is None:
            return
        remedy = f"the batch has no written steps; use layout {self.steps_layout!r}, or set None"
        self.config.require("steps" in batch, "step_decoder_layers", remedy)
        loss = step_loss(self.step_decoder, batch, encoded.own, self.get_input_embeddings(), self.loss_head())
        output.metrics = {"ntp": output.loss.detach()} | output.metrics | {"step_nll": loss.detach()}
        output.loss = output.loss + self.config.step_weight * loss

    def _all_trained(self, output: LossOutput) -> LossOutput:
        """Return the output connected to all weights beside the backbone, so that unused ones get zero gradients."""
        added = [module for name, module in self.named_children() if name != "backbone"]
        if added:
            output.loss = output.loss + 0.0 * sum(p.sum() for module in added for p in module.parameters())
        return output

    def start_from_backbone(self) -> None:
        """Copy layers of a trained backbone to the step decoder."""
        if self.step_decoder is not None:
            self.step_decoder.start_from(self.backbone)

    def _targets(self, labels: Tensor) -> Tensor:
        """Return labels with latents masked, because nothing predicts a latent."""
        return labels.masked_fill(labels == self.config.latent_token_id, IGNORED)

    def next_token_loss(self, hidden: Tensor, labels: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """See `LanguageModel.next_token_loss`; a latent is never a target."""
        return super().next_token_loss(hidden, self._targets(labels), weights)

    def next_token_nll(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """See `LanguageModel.next_token_nll`; zero at latents."""
        return super().next_token_nll(hidden, self._targets(labels))

    def scored_labels(self, batch: Batch, estimator: str) -> Tensor:
        """See `LanguageModel.scored_labels`; latents are not scored."""
        return self._targets(super().scored_labels(batch, estimator))

    def forward_flops(self, batch: Batch) -> int:
        ids = batch["input_ids"]
        real = self.real_tokens(ids, batch.get("attention_mask"))
        is_latent = (ids == self.config.latent_token_id) & real
        places = self._places(is_latent, real, continued=False, together=False)
        prompt, passes, columns = places.prompt, places.thinks.shape[1], places.source.shape[1]
        again = 0 if self.config.parallel_passes is None or not passes else self.config.parallel_passes
        single = 0 if again else max(passes - 1, 0)
        pairs = again * (passes - 1) * (prompt + passes - 1)
        pairs += prompt**2 + sum(prompt + number for number in range(1, single + 1))
        pairs += (columns - prompt - single) * columns  # the last pass reads the rest
        read = columns + again * max(passes - 1, 0)
        body = read * linear_weights(self.backbone) + 2 * pairs * attention_width(self.backbone.config)
        latents = (again or 1) * passes * self._latent_weights()
        return 2 * len(ids) * (body + latents + ids.shape[1] * self.output_weight().numel())

    def training_flops(self, batch: Batch, **settings: object) -> int:
        """See `LanguageModel.training_flops`; includes the step decoder, which runs only in training."""
        flops = super().training_flops(batch, **settings)
        if self.step_decoder is not None:
            flops += 3 * self.step_decoder.flops(batch, self.output_weight().numel())
        return flops

    def _latent_weights(self) -> int:
        """Return the number of weights outside the backbone that multiply a latent."""
        return 0 if self.concept_stream is None else len(self.concept_stream.gates) * self.config.hidden_size**2

    # ------------------------------------------------------------------------------------- traces

    def predicted_tokens(self, encoded: CoconutEncoded, input_ids: Tensor, real: Tensor) -> Tensor:
        """See `LatentThoughtModel.predicted_tokens`: nothing predicts a latent."""
        return follows(real) & (input_ids != self.config.latent_token_id)

    def fill(self, traces: list[ThoughtTrace], encoded: CoconutEncoded, real: Tensor) -> None:
        """Add each latent and, for AGCLR, the concept stream after it, with the tokens that the head predicts.

        `curves` contains, per pass, each gate's mean, and `retention`: the cosine of the state before each latent with
        the state before the first latent (Figure 3 of AGCLR). `retention_gated` uses h'_t instead of h_t.
        """
        vectors, states = {"latent": (encoded.latents, self._decoded(encoded))}, {"retention": encoded.states}
        if self.concept_stream is not None:
            vectors["concept"] = encoded.concepts, encoded.concepts
            states["retention_gated"] = encoded.latents
        for row, trace in enumerate(traces):
            columns = encoded.is_latent[row].nonzero()[:, 0].tolist()
            if self.config.mode == "pause":
                embedded = self.get_input_embeddings()(trace.input_ids)
                trace.thoughts = [Thought(embedded[at], at, at + 1, "latent") for at in columns]
                continue
            for number, at in enumerate(columns):
                for label, (passes, decoded) in vectors.items():
                    nearest = self._nearest(decoded[number][row])
                    trace.thoughts.append(Thought(passes[number][row].detach(), at, at + 1, label, nearest=nearest))
            if columns:
                gates = encoded.gates[: len(columns)]
                trace.curves |= {name: torch.stack([gate[name][row].mean() for gate in gates]) for name in gates[0]}
            for name, passes in states.items() if columns else ():
                by_pass = torch.stack([state[row].float() for state in passes[: len(columns)]])
                trace.curves[name] = torch.cosine_similarity(by_pass[:1], by_pass, dim=-1)

    def read_thoughts(self, trace: ThoughtTrace) -> list[int]:
        """See `LanguageModel.read_thoughts`: latents, not the concept stream after them."""
        return [number for number, thought in enumerate(trace.thoughts) if thought.label == "latent"]

    def _decoded(self, encoded: CoconutEncoded) -> list[Tensor]:
        """Return the vectors [B, d] by pass that the head reads to show latents in words."""
        return encoded.latents

    def _nearest(self, vector: Tensor) -> tuple[tuple[int, float], ...]:
        """Return the most likely tokens if the vector [d] were a final hidden state."""
        logits = self.output_head()(vector.to(self.backbone.dtype))
        best = logits.float().softmax(-1).topk(min(NEAREST, len(logits)))
        return tuple(zip(best.indices.tolist(), best.values.tolist()))
