"""ConceptLM, fast: padded rows, a cache, and any decoder of Hugging Face. `plain.py` has the method.

A hook before one layer of the backbone reads and adds concepts. A row's chunks begin at its first token. An unfinished
chunk has no concept, and the first k - 1 tokens read zeros. Sections are the paper's. Letters in shapes: B rows of L
tokens, d hidden size, C the most concepts of any row that end in this call.
"""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

from mentalese.data.batch import Batch
from mentalese.families.conceptlm.chunks import Chunks
from mentalese.families.conceptlm.codebook import Codebook, Usage, mix, nearest_codes, quantisation_loss, usage
from mentalese.families.conceptlm.config import ConceptLMConfig
from mentalese.models.backbone import attention_width, linear_weights
from mentalese.models.base import LossOutput
from mentalese.models.cache import ThoughtCache
from mentalese.models.hf import Encoded, Limits
from mentalese.models.lora import BACKBONE_TARGETS
from mentalese.models.trace import Shown, Thought, ThoughtTrace
from mentalese.models.transformers_seam import attention_of
from mentalese.models.wrapped import LayeredDecoder
from mentalese.nn.controls import controlled

# ------------------------------------------------------------------------------------------------ what a call carries


class _ConceptKeys:
    """The cache of the concept layers: concept j of each row is in column j, whatever the padding.

    Rows complete their chunks at different steps, so one column per step would take k times the memory. New keys go
    to `columns` [B, C] among `width`; `None`: after the stored ones, if no row has padding.
    """

    def __init__(self, state: dict[str, Tensor], columns: Tensor | None, width: int) -> None:
        self.state, self.columns, self.width = state, columns, width

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self._written(f"concept_keys.{layer}", keys), self._written(f"concept_values.{layer}", values)

    def _written(self, name: str, new: Tensor) -> Tensor:
        stored = self.state.get(name, new[:, :, :0])
        if self.columns is None:
            whole = torch.cat((stored, new), dim=2)
        else:
            whole = F.pad(stored, (0, 0, 0, max(self.width - stored.shape[2], 0)))
            rows = torch.arange(len(new), device=new.device)[:, None]
            whole[rows, :, self.columns] = new.transpose(1, 2)  # a new tensor even without padding
        self.state[name] = whole
        return whole


@dataclass
class Concepts:
    """The output of the concept module in a call, for losses and traces.

    Attributes:
        pooled: [B, C, d], u.
        predicted: [B, C, d], p_j, the prediction of u_{j+1}.
        valid: bool [B, C], concepts that a row has; `None` if all rows have all.
        codes: [S, N, c], or `None` without a codebook.
        logits: [B, C, S * N], the heads' scores of the codes of u_{j+1}; `None` without a codebook.
    """

    pooled: Tensor
    predicted: Tensor
    valid: Tensor | None
    codes: Tensor | None
    logits: Tensor | None = None

    @cached_property
    def own(self) -> Tensor:
        """The concepts u of the batch without padding, row by row, [n, d]."""
        return self.pooled.flatten(0, 1) if self.valid is None else self.pooled[self.valid]

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of values [B, C - 1] over the next concepts that rows have; 0 without one."""
        if self.valid is None:
            return values.mean() if values.numel() else values.sum()
        real = self.valid[:, 1:]
        return values.masked_fill(~real, 0.0).sum() / real.sum().clamp(min=1)

    @cached_property
    def chosen(self) -> Tensor:
        """The nearest codes of these concepts, [n, S]."""
        assert self.codes is not None
        return nearest_codes(self.own.detach(), self.codes)


@dataclass(kw_only=True)
class ConceptEncoded(Encoded):
    """Final hidden states and the call's concepts, `None` if none ended in it."""

    concepts: Concepts | None = None


@dataclass
class _Call:
    """The information about a call for the layer before which concepts are read."""

    chunks: Chunks
    cache: ThoughtCache | None
    concepts: Concepts | None = None


# ------------------------------------------------------------------------------------------------------------ the model

COLLAPSED = 0.25
"""The share of codes in use below which codebooks have collapsed."""


@torch.no_grad()
def explained(concepts: Concepts, ncp: Tensor) -> dict[str, Tensor]:
    """Return the shares of the variance of a batch's next concepts that predictions explain (R^2).

    `concept_r2` is 1 - L_NCP / the variance of the targets: 1 if all are exact, 0 if they are not better than the mean
    concept, negative if worse. `concept_r2_rescaled` is the same for predictions with the targets' mean and the best
    scale, a squared correlation. Both are 0 without two different targets.
    """
    both = torch.stack((concepts.pooled[:, 1:].float(), concepts.predicted[:, :-1].float()))  # [2, B, C - 1, d]
    if concepts.valid is None:
        rows: Tensor | int = both.shape[1] * both.shape[2]
        centre = both.mean((1, 2), keepdim=True)
        both = both - centre
    else:
        real = concepts.valid[:, 1:, None].float()
        rows = real.sum().clamp(min=1)
        centre = (both * real).sum((1, 2), keepdim=True) / rows
        both = (both - centre) * real
    with torch.autocast(both.device.type, enabled=False):  # products in float32
        moments = both.flatten(1) @ both.flatten(1).T / (rows * both.shape[3])
    (variance, alike), (_, spread) = moments
    varied = variance > 1e-12 * centre[0].square().mean()
    rescaled = alike.square() / (variance * spread).clamp(min=torch.finfo(torch.float32).tiny)
    r2, rescaled = torch.where(varied, torch.stack((1 - ncp / variance, rescaled)), 0.0)
    return {"concept_r2": r2, "concept_r2_rescaled": rescaled}


@torch.no_grad()
def predicted_codes(concepts: Concepts) -> dict[str, Tensor]:
    """Return the accuracy and cross-entropy of the heads' codes for the next concepts, which are not part of any loss.

    `code_accuracy` is the share of segments whose largest logit is the one of the nearest code, `code_ce` the
    cross-entropy in nats of the logits' softmax; 0 without a next concept.
    """
    assert concepts.codes is not None
    assert concepts.logits is not None
    codes, valid = concepts.chosen, concepts.valid
    if valid is not None:
        valid = valid[..., None].expand(-1, -1, codes.shape[1])
        codes = torch.zeros_like(valid, dtype=codes.dtype).masked_scatter(valid, codes)
    codes = codes.view(*concepts.pooled.shape[:2], -1)[:, 1:]
    logits = concepts.logits[:, :-1].float().unflatten(-1, concepts.codes.shape[:2])
    entropy = F.cross_entropy(logits.movedim(-1, 1), codes, reduction="none")
    right = (logits.argmax(-1) == codes).float()
    return {"code_accuracy": concepts.mean(right.mean(-1)), "code_ce": concepts.mean(entropy.mean(-1))}


class ConceptLMForCausalLM(LayeredDecoder[ConceptEncoded]):
    """A Hugging Face decoder that also predicts the next concept and reads its own prediction."""

    config_class = ConceptLMConfig
    lora_targets = BACKBONE_TARGETS
    kept_in_float32 = ("codebook",)
    about_thoughts = (
        "Concepts: each is the mean state of a few tokens, and is predicted, as a sum of codes, from those before it."
    )
    shown = {  # noqa: RUF012 (nothing writes to it)
        "concept_error": Shown(
            "concept error", "How far the predicted concept was from the one that came.", "squared error", "chunk"
        )
    }
    GUARD = 100
    """Training steps between looks at the codebooks."""

    def __init__(self, config: ConceptLMConfig) -> None:
        super().__init__(config)
        self.concept_layers = self.new_layers(range(config.concept_layers))
        self.concept_norm = copy.deepcopy(self.final_norm) if config.concept_norm else None
        self.codebook: Codebook | None = None
        self.heads: nn.Linear | None = None
        if config.codebook is not None:
            segments = config.segments
            self.codebook = Codebook(segments, config.num_codes, config.hidden_size // segments, config.codebook)
            self.heads = nn.Linear(config.hidden_size, segments * config.num_codes)  # all S heads as one map
        # A method, not a lambda, so that a copy of the model calls its own method.
        self.layers[config.insert_depth].register_forward_pre_hook(self._insert, with_kwargs=True)
        self._watched: tuple[int, Tensor | None] | None = (0, None)
        self.post_init()

    def initialize(self, module: nn.Module) -> None:
        super().initialize(module)
        if isinstance(module, Codebook):
            module.start(self.backbone.config.initializer_range)
        if module is self and self.heads is not None and self.config.silent_start:  # called last
            init.zeros_(self.heads.weight)

    @property
    def limits(self) -> Limits:
        swapped = self.config.thought_control == "swapped"
        return Limits(
            cache="thought_control is 'swapped', and rows end their chunks at different tokens" if swapped else None,
            hidden_states=None,
            static_cache="keys of concepts are added as rows end their chunks, and not at every token",
            loss="the losses of concepts and their codes",
        )

    def start_from_backbone(self) -> None:
        """Copy the backbone's first layers to the concept layers (section 4.3)."""
        for number, layer in enumerate(self.concept_layers):
            layer.load_state_dict(self.layers[number % len(self.layers)].state_dict())

    # ------------------------------------------------------------------------------------------------- the concepts

    def _insert(
        self, layer: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]] | None:
        """Replace the input of layer `insert_depth` by h + e; direct calls of the backbone are unchanged."""
        call = kwargs.pop("concepts", None)
        if not isinstance(call, _Call):
            return None
        hidden = args[0] if args else kwargs.pop("hidden_states")
        assert isinstance(hidden, Tensor)
        return (self._fused(hidden, call), *args[1:]), kwargs

    def _fused(self, hidden: Tensor, call: _Call) -> Tensor:
        """Return the decoder's input [B, L, d] of the encoder's states (section 2.3).

        A cache has for each row the sum of its unfinished chunk, the concept that its tokens read, and the keys and
        values of concept layers with one column per concept; the code tables are shared.
        """
        chunks, cache = call.chunks, call.cache
        state = {} if cache is None else cache.state
        last_concept = state["concept"] if "concept" in state else hidden.new_zeros(len(hidden), hidden.shape[2])
        if cache is not None and chunks.slot is None and not chunks.count:  # inside a chunk, the most frequent step
            call_sum = hidden[:, 0] if hidden.shape[1] == 1 else hidden.sum(1)
            state["sum"], state["concept"] = state["sum"] + call_sum if "sum" in state else call_sum, last_concept
            added = last_concept[:, None]
        else:
            sums, table = chunks.sums(hidden, state.get("sum")), last_concept[:, None]
            if chunks.count:
                pooled = sums[:, : chunks.count] / chunks.size
                predicted, codes, logits = self._predict(pooled, chunks, cache)
                valid = chunks.valid(len(pooled), pooled.device)
                read = controlled(predicted, self.config.thought_control, numbers="columns", own=valid)
                read = read.detach() if self.config.detach_concept else read
                table = torch.cat((table, read.to(table.dtype)), dim=1)
                call.concepts = Concepts(pooled, predicted, valid, codes, logits)
            if cache is not None:
                state["sum"], state["concept"] = chunks.last(sums), chunks.last(table)
            added = chunks.spread(table, hidden.shape[1])
        if self.config.fusion == "norm_sum":
            return self.final_norm(hidden) + self.final_norm(added)
        return hidden + added

    def _predict(
        self, pooled: Tensor, chunks: Chunks, cache: ThoughtCache | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return predictions [B, C, d] after concepts u [B, C, d], code tables [S, N, c], the logits [B, C, S * N]."""
        count = pooled.shape[1]
        before, alike = chunks.before, isinstance(chunks.before, int)
        column = torch.arange(count, device=pooled.device) + (before[:, None] if isinstance(before, Tensor) else before)
        column = column.view(-1, count)
        width = chunks.begun + count
        state: dict[str, Tensor] = {} if cache is None else cache.state
        earlier = state["concept_keys.0"].shape[2] if "concept_keys.0" in state else 0
        keys = None if cache is None else _ConceptKeys(state, None if alike else column, width)
        # A row's concepts are contiguous from column 0 on, so that a causal mask hides the unused columns; fused
        # attention creates this mask itself.
        fused = attention_of(self.backbone.config) == "sdpa"
        mask = None
        if (earlier or not fused) and not (alike and count == 1):
            seen = torch.arange(max(earlier, width), device=pooled.device) <= column[..., None]
            mask = torch.zeros_like(seen, dtype=pooled.dtype).masked_fill(~seen, torch.finfo(pooled.dtype).min)[:, None]
        options = {"attention_mask": mask, "use_cache": cache is not None, self.places.cache: keys}
        body, hidden = self.backbone.base_model, pooled
        positions = self.places.positions(body, pooled, column * chunks.size, len(self.concept_layers))
        for layer, layer_positions in zip(self.concept_layers, positions):
            hidden = layer(hidden, **options, **layer_positions)
        if self.concept_norm is not None:
            hidden = self.concept_norm(hidden)
        if self.codebook is None or self.heads is None:
            return hidden, None, None
        shared = {} if cache is None else cache.shared
        codes = shared["codes"] = shared["codes"] if "codes" in shared else self.codebook()
        logits = self.heads(hidden)
        return mix(logits, codes), codes, logits

    # ------------------------------------------------------------------------------------------------- the whole

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cache: ThoughtCache | None = None,
        trace: bool = False,
        output_hidden_states: bool = False,
    ) -> ConceptEncoded:
        """Return final hidden states [B, L, d] that continue `cache`, and the call's concepts; update the cache.

        With a cache, possibly no concept ends in this call.
        """
        layout = self.token_layout(input_ids, attention_mask, cache)
        chunks = Chunks.of(self.config.chunk_size, input_ids.shape[1], layout.seen, layout.real, layout.on_host)
        if cache is None:  # processes that share weights must run the same layers, however short their texts
            chunks.count = max(chunks.count, 1)
        call = _Call(chunks, cache)
        options = {"output_hidden_states": True} if output_hidden_states else {}
        output = self.run_backbone(input_ids, layout, cache, concepts=call, **options)
        return ConceptEncoded(
            hidden=output.last_hidden_state, hidden_states=output.hidden_states, concepts=call.concepts
        )

    # ------------------------------------------------------------------------------------------- training and cost

    def training_loss(self, batch: Batch, **settings: Any) -> LossOutput:
        """Return the weighted sum of NTP, NCP and VQ (section 3).

        `metrics` holds the three, `explained`, and `usage` of this batch's codes and `predicted_codes`.
        """
        weights = self.target_weights(batch, **settings)
        encoded = self.encode(batch["input_ids"], batch.get("attention_mask"))
        concepts = encoded.concepts
        assert concepts is not None
        ntp, weight = self.next_token_loss(encoded.hidden, batch["labels"], weights)
        losses = {"ntp": ntp} | self.concept_losses(concepts)
        by_weight = {"ntp": 1.0, "ncp": self.config.ncp_weight, "vq": self.config.vq_weight}
        weighed = [by_weight[name] * value for name, value in losses.items() if by_weight[name]]
        metrics = {name: value.detach() for name, value in losses.items()}
        metrics |= explained(concepts, metrics["ncp"])
        if concepts.codes is not None:
            used = usage(concepts.chosen, self.config.num_codes)
            for name in ("utilisation", "perplexity"):
                values = getattr(used, name)
                metrics |= {f"codebook_{name}": values.mean(), f"codebook_{name}.least": values.min()}
            metrics |= predicted_codes(concepts)
            self._watch(used, concepts.own)
        return LossOutput(torch.stack(weighed).sum(), weight, metrics, encoded=lambda: encoded)

    def concept_losses(self, concepts: Concepts) -> dict[str, Tensor]:
        """Return `ncp` and, with a codebook, `vq` (section 3): means over all concepts, 0 without concepts.

        Processes and micro-batches of a step are weighted by their next-token targets, as for the next-token loss; for
        rows of one length this is exact.
        """
        targets = concepts.pooled[:, 1:].detach().float()
        losses = {"ncp": concepts.mean((concepts.predicted[:, :-1].float() - targets).square().mean(-1))}
        if concepts.codes is not None:
            losses["vq"] = quantisation_loss(concepts.own, concepts.codes, concepts.chosen)
        return losses

    @torch.compiler.disable
    def _watch(self, used: Usage, concepts: Tensor) -> None:
        """Warn once if codebooks have collapsed (appendix E.3), unless the `concepts` [n, d] are few different ones."""
        if self._watched is None:
            return
        steps, counts = self._watched
        counts = used.counts if counts is None or not steps else counts + used.counts
        self._watched = ((steps + 1) % self.GUARD, counts)
        if self._watched[0]:
            return
        share = float(Usage(counts).utilisation.mean())
        if share >= COLLAPSED:
            return
        codes, differing = self.config.num_codes, len(concepts.detach().unique(dim=0))
        if float(used.utilisation.mean()) * codes < COLLAPSED * min(codes, differing):
            self._watched = None  # warn only once
            warnings.warn(
                f"the codebooks have collapsed: the last {self.GUARD} steps used {share:.0%} of the codes; set "
                f"codebook 'mlp', a lower learning rate or fewer codes (num_codes is {self.config.num_codes})",
                stacklevel=2,
            )

    def _chunks(self, batch: Batch) -> Chunks:
        mask = batch.get("attention_mask")
        real = None if mask is None or bool(mask.all()) else mask.bool()
        return Chunks.of(self.config.chunk_size, batch["input_ids"].shape[1], 0, real)

    def forward_flops(self, batch: Batch) -> int:
        rows, length = batch["input_ids"].shape
        return self.backbone_flops(rows, length) + self.concept_flops(rows, max(self._chunks(batch).count, 1))

    def concept_flops(self, rows: int, count: int) -> int:
        """Return the FLOPs of concept layers, heads and codes for `count` concepts per row."""
        config, inner = self.config, self.backbone.config
        attention = 2 * count * attention_width(inner) * config.concept_layers // inner.num_hidden_layers
        each, once = linear_weights(self.concept_layers) + attention, 0
        if self.codebook is not None and self.heads is not None:
            each += self.heads.weight.numel() + config.num_codes * config.hidden_size
            once = self.codebook.multiply_adds()
        return 2 * (rows * count * each + once)

    def training_flops(self, batch: Batch, **settings: Any) -> int:
        """See `LanguageModel.training_flops`; nearest codes have no backward pass.

        The computation of code tables is left out: it costs the same for any batch, and each process repeats it.
        """
        forward, config = self.forward_flops(batch), self.config
        if self.codebook is None:
            return 3 * forward
        chunks, rows = self._chunks(batch), batch["input_ids"].shape[0]
        concepts = rows * chunks.ended if isinstance(chunks.ended, int) else int(chunks.ended.sum())
        forward -= 2 * self.codebook.multiply_adds()
        return 3 * forward + 2 * concepts * config.num_codes * config.hidden_size

    # ---------------------------------------------------------------------------------------- traces

    def fill(self, traces: list[ThoughtTrace], encoded: ConceptEncoded, real: Tensor) -> None:
        """Add each concept and its prediction, both with their nearest codes, to the tokens of its chunk.

        `concept_error` is the mean squared error of the prediction of a token's chunk; NaN without a prediction or in
        an unfinished chunk. The curve has this error by concept.
        """
        concepts = encoded.concepts
        size = self.config.chunk_size
        for row, trace in enumerate(traces):
            error = torch.full(real.shape[1:], math.nan, device=real.device)
            trace.scores["concept_error"] = error
            columns = real[row].nonzero()[:, 0].tolist()
            count = len(columns) // size
            if not count or concepts is None:
                continue
            pooled, predicted = concepts.pooled[row, :count], concepts.predicted[row, :count]
            codes: list[list[list[int]]] = [[[]] * count] * 2
            if concepts.codes is not None:
                codes = [nearest_codes(vectors, concepts.codes).tolist() for vectors in (pooled, predicted)]
            errors = (predicted[:-1].float() - pooled[1:].float()).square().mean(-1)
            trace.curves["concept_error"] = errors
            trace.places["concept_error"] = torch.arange(1, count)
            for j in range(count):
                chunk = columns[j * size : (j + 1) * size]
                span = chunk[0], chunk[-1] + 1
                trace.thoughts.append(Thought(pooled[j], *span, "concept", codes=tuple(codes[0][j])))
                if j:
                    guess = Thought(predicted[j - 1], *span, "predicted", codes=tuple(codes[1][j - 1]))
                    trace.thoughts.append(guess)
                    error[chunk] = errors[j - 1]

    def read_thoughts(self, trace: ThoughtTrace) -> list[int]:
        """See `LanguageModel.read_thoughts`: predictions, not the concepts that they predict."""
        return [number for number, thought in enumerate(trace.thoughts) if thought.label == "predicted"]
