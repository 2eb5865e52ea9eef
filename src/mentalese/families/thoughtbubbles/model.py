"""Thoughtbubbles, fast: padded rows, a cache, and scores of several kinds. `plain.py` has the method.

The paper chooses the streams of a whole text at once (`selection` = `block`): a later token can take a stream from an
earlier one, so one pass is *not* an autoregressive likelihood. Every score is labelled with its estimator
(`estimators`). `selection` = `causal` replaces the top-k by one threshold per layer, which earlier steps of training
estimate, within the budget of the tokens so far. No later token matters then, so one pass is the likelihood, also in
training, and decoding can be cached.

Sections and equations are the paper's. Letters in shapes: B rows of L tokens, N or K streams, d hidden size.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

from mentalese.data.batch import Batch, send
from mentalese.errors import InputError
from mentalese.families.thoughtbubbles.blocks import (
    CALIBRATION,
    FOLLOWING,
    ROUNDING,
    UNKNOWN,
    Block,
    ForkDecision,
    StreamState,
)
from mentalese.families.thoughtbubbles.config import NORM_EPS, ThoughtbubblesConfig
from mentalese.families.thoughtbubbles.forking import (
    Candidates,
    Encoding,
    Streams,
    fork,
    lowest_kept,
    select_block,
    within_budget,
)
from mentalese.families.thoughtbubbles.readout import mixture_cross_entropy, mixture_log_probabilities
from mentalese.models.base import LossOutput
from mentalese.models.cache import ThoughtCache
from mentalese.models.hf import LatentThoughtModel, Limits
from mentalese.models.trace import Knob, Shown, Thought, ThoughtTrace
from mentalese.nn.loss import IGNORED
from mentalese.nn.packing import PackedRows
from mentalese.nn.rotary import rotary_table

PREFIXES = 32  # rows per batch when each prefix is scored separately
RANDOM_ROWS = 8  # rows of random tokens for the first thresholds


class ThoughtbubblesForCausalLM(LatentThoughtModel[Encoding]):
    """Thoughtbubbles as a causal LM; without `fork_layers` it is the RoPE transformer of the paper's baselines."""

    config_class = ThoughtbubblesConfig
    supports_gradient_checkpointing = True
    lora_targets = ("qkv",)
    kept_in_float32 = ("threshold",)
    about_thoughts = (
        "Residual streams: if a token needs more computation, its stream forks. Streams are selected for a whole text "
        "at once (selection 'block'), so later tokens influence the choice, or token by token ('causal')."
    )
    shown = {  # noqa: RUF012 (nothing writes to it)
        "surprisal": Shown(
            "surprisal",
            "The token's cost: minus the log of its predicted probability; not a likelihood if later tokens influence "
            "the streams (selection 'block').",
            "nats",
        ),
        "streams": Shown("streams", "Number of streams of the token at the end: its own, and forks.", "count"),
        "streams.": Shown(
            "streams at block {}", "Number of streams of the token after the fork before that block.", "count"
        ),
        "attention": Shown("attention", "How much a stream attends to another one after the last fork.", "share"),
        "stream_weight": Shown("weight of streams", "How much each stream counts at the end.", "share", "stream"),
    }
    supports_flex_attention = True

    def __init__(self, config: ThoughtbubblesConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers_per_turn or config.num_hidden_layers))
        self.fork_decisions = nn.ModuleDict({str(layer): ForkDecision(config) for layer in config.fork_layers})
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=NORM_EPS)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @property
    def limits(self) -> Limits:
        cache = None if self.config.causal else "selection is 'block', so a new token may change earlier streams"
        if self.config.thought_control == "swapped" and self.config.fork_layers:
            cache = "thought_control is 'swapped', and rows fork different tokens"
        return Limits(
            cache=cache,
            static_cache="a token has as many keys as streams, and these differ",
            token_states="readout is 'mixture', which mixes the predictions of several states" if self.mixes else None,
            loss="the thresholds of the causal selection" if self.config.fork_layers else None,
        )

    def initialize(self, module: nn.Module) -> None:
        super().initialize(module)
        if isinstance(module, ForkDecision):
            init.normal_(module.embedding, std=self.config.hidden_size**-0.5)
            init.constant_(module.threshold, UNKNOWN)

    @property
    def layers(self) -> list[nn.Module]:
        """The block of each layer."""
        return [self.blocks[i % len(self.blocks)] for i in range(self.config.num_hidden_layers)]

    @property
    def decisions(self) -> dict[int, ForkDecision]:
        """The decision before each forking layer."""
        return {layer: cast(ForkDecision, self.fork_decisions[str(layer)]) for layer in self.config.fork_layers}

    def new_cache(self) -> ThoughtCache:
        return ThoughtCache()

    def knobs(self) -> list[Knob]:
        if self.config.causal:
            return []
        budget, about = self.config.budget, "κ / L: streams kept at a fork, per token"
        return [Knob("budget", "Streams per token", about, budget, 1, max(2 * budget, 4), 0.25, field=True)]

    @property
    def mixes(self) -> bool:
        """True if predictions are mixtures of the distributions of several streams."""
        return self.config.readout == "mixture" and bool(self.config.fork_layers)

    # ------------------------------------------------------------------------------------- streams

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        selection: str | None = None,
        fixed_budget: bool = False,
        cache: ThoughtCache | None = None,
        calibrate: bool = False,
        trace: bool = False,
    ) -> Encoding:
        """Return all blocks over rows [B, L], from where `cache` left off; the cache moves on.

        Args:
            selection: replaces the config's selection.
            fixed_budget: ceil(budget * L) streams for a text of any length, with the selection `block`.
            calibrate: let the thresholds of the causal selection move towards this batch's at the next `after_step`;
                this pass does not use them.
            trace: keep the attention of the blocks after the last fork, and all candidates.

        Raises:
            InputError: a row with only padding, or a text longer than `max_position_embeddings` with a fixed budget.
            FloatingPointError: a fork score is not a number.
        """
        config = self.config
        selection = selection or config.selection
        streams, rows = self._embed(input_ids, attention_mask, cache)
        first = cache is None or not cache.seen_tokens
        if selection == "causal" and first and not calibrate and config.budget > 1 and self._lacks_thresholds():
            raise InputError(
                "selection is 'causal' and this model has no thresholds: train it first, which estimates them"
            )
        quota = None
        if selection == "block" or calibrate:
            if fixed_budget and (longest := max(rows.on_host)) > config.max_position_embeddings:
                raise InputError(
                    f"input_ids has {longest} tokens and the fixed budget is for {config.max_position_embeddings}: "
                    f"a dynamic one keeps {config.streams(longest)} streams for them"
                )
            quota = [config.streams(config.max_position_embeddings if fixed_budget else n) for n in rows.on_host]
        forks: list[Tensor] = []
        attention: list[Tensor] = []
        candidates: list[Candidates] = []
        state = self._state(streams, 0, cache)
        for layer, block in enumerate(self.layers):
            if layer in config.fork_layers:
                streams, chosen_from = self._fork(streams, layer, selection, quota, calibrate, cache)
                candidates.append(chosen_from)
                forks.append(streams.counts)
                state = self._state(streams, len(forks), cache)
                if trace and len(forks) == len(config.fork_layers):
                    state.attention = attention
            streams.x = block(streams.x, replace(state, layer=layer))
        if forks and (first or input_ids.device.type == "cpu"):  # without waiting for a GPU at each token
            broken = torch.stack([chosen_from.scores.isnan().any() for chosen_from in candidates]).tolist()
            if any(broken):
                raise FloatingPointError(
                    f"fork_decisions.{config.fork_layers[broken.index(True)]}: a score is not a number; lower "
                    "learning_rate, or check the states before it"
                )
        if cache is not None:
            cache.seen_tokens += input_ids.shape[1]
            originals = streams.own if streams.real is None else streams.own & streams.real
            cache.state["tokens"] = streams.before + originals.sum(1, keepdim=True)
        return Encoding(streams, rows, forks, attention, candidates if trace else [])

    def _embed(
        self, input_ids: Tensor, attention_mask: Tensor | None, cache: ThoughtCache | None
    ) -> tuple[Streams, PackedRows]:
        """Return one stream per token, or `copies` of it, packed to the front of rows, and the columns of tokens."""
        copies, rows = self.config.copies, self.packed_rows(input_ids, attention_mask, cache)
        real = None if attention_mask is None else rows.ragged
        input_ids = rows.gather(input_ids)
        x = self.embed(input_ids)
        x = x if copies == 1 else x.repeat_interleave(copies, dim=1)
        counts = torch.full_like(input_ids, copies) if real is None else real.long() * copies
        place = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
        streams = Streams(
            x=x,
            scores=None,
            token=place // copies,
            own=place % copies == copies - 1,
            real=None if real is None else real.repeat_interleave(copies, dim=1),
            counts=counts,
            before=({} if cache is None else cache.state).get("tokens", torch.zeros_like(input_ids[:, :1])),
            held=[copies * tokens for tokens in rows.on_host],
        )
        return streams, rows

    def _lacks_thresholds(self) -> bool:
        thresholds = [decision.threshold for decision in self.decisions.values()]
        return bool(thresholds) and bool((torch.stack(thresholds) == UNKNOWN).any())

    def _state(self, streams: Streams, segment: int, cache: ThoughtCache | None) -> StreamState:
        """Return tables and masks for the blocks up to the next fork; `segment` counts the forks before them."""
        config = self.config
        positions = streams.positions(config.rotation)
        if streams.real is None and cache is None and not segment:
            positions = positions[:1]  # equal in all rows
        rotary = rotary_table(positions[:, None], config.hidden_size // config.num_attention_heads)
        mask, slots, end = None, None, 0
        if cache is not None:
            name, new = f"used.{segment}", streams.own.shape[1]
            used = cache.state.get(name, torch.zeros_like(streams.before))
            if used.device.type == "cpu":
                least, most = (int(bound) for bound in used.aminmax())
            else:  # an upper bound, to avoid waiting for the selection
                seen = cache.seen_tokens
                least, most = 0, config.streams(seen) if segment else seen * config.copies
            cache.state[name] = used + (new if streams.real is None else streams.real.sum(1, keepdim=True))
            slots, end = used + torch.arange(new, device=used.device), most + new
            if most and (new > 1 or least < most):
                mask = (torch.arange(end, device=used.device) <= slots[..., None])[:, None]
        scores = streams.scores
        if scores is None and config.fork_layers and config.score_scale == "overwrite":
            scores = torch.zeros_like(streams.token, dtype=torch.float32)
        return StreamState(0, rotary, scores, mask, slots, end, None if cache is None else cache.state, None)

    def _fork(
        self,
        streams: Streams,
        layer: int,
        selection: str,
        quota: list[int] | None,
        calibrate: bool,
        cache: ThoughtCache | None,
    ) -> tuple[Streams, Candidates]:
        """Select among streams and forks (section 2.3); a row keeps `quota` streams in the block selection."""
        decision, size, held = self.decisions[layer], None, None
        scores, embedding = decision(streams.x, streams.scores, streams.token, streams.real)
        originals = torch.stack((torch.zeros_like(streams.own), streams.own), dim=-1).flatten(1)
        merit = scores.detach().masked_fill(originals, math.inf)  # Eq. 4, only for the selection
        if streams.real is not None:
            merit = merit.masked_fill(~streams.real.repeat_interleave(2, dim=1), -math.inf)
        quotas = None if quota is None else send(torch.tensor(quota), merit.device)
        if calibrate and quotas is not None:
            decision.observe(lowest_kept(merit, quotas))
        places = merit.shape[1]
        if selection == "block":
            assert quota is not None
            assert quotas is not None
            # Shapes do not depend on the scores.
            size, held = min(max(quota), places), [min(most, 2 * n) for most, n in zip(quota, streams.held or [])]
            keep = select_block(merit, quotas) & (merit > -math.inf)
        else:
            keep = self._select_causal(streams, merit, layer, cache)
            if merit.device.type != "cpu":
                seen = 0 if cache is None else cache.seen_tokens
                size = min(places, self.config.streams(seen + streams.counts.shape[1]) - seen)
        candidates = Candidates(layer, scores, merit, keep, streams.token)
        return fork(streams, scores, keep, embedding, size, held), candidates

    def _select_causal(self, streams: Streams, merit: Tensor, layer: int, cache: ThoughtCache | None) -> Tensor:
        """Return the candidates that reach the threshold, while the text so far is within its budget."""
        threshold = self.decisions[layer].threshold * (1 + ROUNDING)  # lower: it is negative
        keep = ((merit >= threshold) & (merit > -math.inf)) | (merit == math.inf)
        state = {} if cache is None else cache.state
        used = state.get(f"kept.{layer}", torch.zeros_like(streams.before))
        tokens = streams.before + torch.arange(1, streams.counts.shape[1] + 1, device=merit.device)
        room = self.config.streams(tokens) - used
        keep = within_budget(merit, keep, streams.token.repeat_interleave(2, dim=1), room)
        state[f"kept.{layer}"] = used + keep.sum(1, keepdim=True)
        return keep

    # ------------------------------------------------------------------------------------- read-out

    def states(self, encoded: Encoding) -> Tensor:
        """Return one state per token, [B, L, d], zero at padding, for read-outs that are not mixtures."""
        streams, readout = encoded.streams, self.config.readout
        if self.mixes:
            raise InputError("readout is 'mixture', and no single state of a token predicts the next one: use logits")
        if streams.scores is None and self.config.copies == 1:
            return encoded.rows.spread(self.final_norm(streams.x))
        if streams.scores is None or readout == "rightmost":
            own = streams.own[..., None].to(streams.x.dtype)
            return encoded.rows.spread(self.final_norm(streams.sum_by_token(streams.x * own)))
        weights = streams.scores.exp()[..., None].to(streams.x.dtype)
        if readout == "residual":
            return encoded.rows.spread(self.final_norm(streams.sum_by_token(weights * streams.x)))
        return encoded.rows.spread(streams.sum_by_token(weights * self.final_norm(streams.x)))

    # ------------------------------------------------------------------------------------- training and scores

    def training_loss(self, batch: Batch, **settings: object) -> LossOutput:
        """Return the mean cross-entropy; the selection is the config's."""
        self.refuse(settings)
        if self.training and self.config.selection == "causal" and self._lacks_thresholds():
            self._find_first_thresholds()
        encoded = self.encode(batch["input_ids"], batch.get("attention_mask"), calibrate=self.training)
        streams, metrics = encoded.streams, {}
        if streams.scores is not None:
            real = torch.ones_like(streams.own) if streams.real is None else streams.real
            metrics["streams_per_token"] = real.sum() / (streams.counts > 0).sum()
            weights = streams.scores.detach().exp() * real
            metrics["fork_share"] = (weights * ~streams.own).sum() / weights.sum()
        return LossOutput(*self._loss(encoded, batch["labels"]), metrics, encoded=lambda: encoded)

    def labels_loss(self, encoded: Encoding, labels: Tensor) -> Tensor:
        return self._loss(encoded, labels)[0]

    def _loss(self, encoded: Encoding, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy and the number of targets."""
        labels = encoded.predictable(labels)
        if not self.mixes:
            return self.next_token_loss(self.states(encoded), labels)
        return self._mixture(encoded, labels)[0], (labels[:, 1:] != IGNORED).sum().float()

    def _mixture(self, encoded: Encoding, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss, and the nats [B, n] of each token's prediction."""
        targets = encoded.rows.gather(F.pad(labels[:, 1:], (0, 1), value=IGNORED), IGNORED)
        hidden = self.final_norm(encoded.streams.x)
        return mixture_cross_entropy(hidden, self.loss_head(), targets, encoded.streams)

    @torch.no_grad()
    def _find_first_thresholds(self) -> None:
        """Estimate thresholds before the first step from random tokens, as a batch would reveal its later tokens."""
        shape, generator = (RANDOM_ROWS, self.config.max_position_embeddings), torch.Generator().manual_seed(0)
        ids = torch.randint(self.config.vocab_size, shape, generator=generator)
        self.encode(ids.to(self.embed.weight.device), selection="block", calibrate=True)
        self.after_step()

    def after_step(self) -> None:
        """See `LanguageModel.after_step`; moves the thresholds of the causal selection, unless adapters are trained.

        Those are saved without thresholds, and read with the base's.
        """
        super().after_step()
        if getattr(self, "peft_config", None):
            return
        share = FOLLOWING if self.config.selection == "causal" else CALIBRATION
        for decision in self.decisions.values():
            decision.after_step(share)

    def forward_flops(self, batch: Batch) -> int:
        """See `LanguageModel.forward_flops`; padding of heads on a GPU does not count.

        A causal selection is assumed to use its whole budget.
        """
        config = self.config
        rows, length = batch["input_ids"].shape
        mask = batch.get("attention_mask")
        tokens = [length] * rows if mask is None else mask.sum(1).tolist()
        longest, d = max(tokens), config.hidden_size
        streams, scored, total = longest * config.copies, 0, 0
        for layer in range(config.num_hidden_layers):
            if layer in config.fork_layers:
                total += streams * 2 * d
                streams = min(2 * streams, config.streams(longest))
                scored = config.score_scale != "overwrite"
            total += streams * 12 * d * d + streams**2 * (2 * d + 2 * scored * config.num_attention_heads)
        heads = streams if self.mixes else length
        return 2 * rows * (total + heads * d * config.vocab_size)

    def compiled_parts(self) -> list[nn.Module]:
        """Return the blocks; the data-dependent forks are between them."""
        return list(self.blocks)

    @property
    def estimators(self) -> tuple[str, ...]:
        """The estimators of a text's score, the default of the config first.

        `exact`: one pass is the autoregressive likelihood. `block-not-causal`: the paper's one pass, in which later
        tokens influence earlier streams: not a likelihood. `prefix-dynamic`, `prefix-fixed`: each token after a pass
        over only the tokens before it, with either budget: exact, one pass per token. `causal`: one pass under the
        causal selection, exact.
        """
        if not self.config.fork_layers or self.config.budget == 1:
            return ("exact",)
        others = ("prefix-dynamic", "prefix-fixed")
        return (
            ("causal", "block-not-causal", *others) if self.config.causal else ("block-not-causal", *others, "causal")
        )

    @torch.no_grad()
    def token_nll(self, batch: Batch, estimator: str | None = None) -> Tensor:
        """See `LanguageModel.token_nll` and `estimators`."""
        kind, _, rest = self.chosen_estimator(estimator).partition("-")
        if kind == "prefix":
            return self._nll_by_prefixes(batch, fixed_budget=rest == "fixed")
        selection = {"causal": "causal", "block": "block"}.get(kind)
        encoded = self.encode(batch["input_ids"], batch.get("attention_mask"), selection=selection)
        labels = encoded.predictable(batch["labels"])
        if not self.mixes:
            return self.next_token_nll(self.states(encoded), labels)
        return F.pad(encoded.rows.spread(self._mixture(encoded, labels)[1])[:, :-1], (1, 0))

    def _nll_by_prefixes(self, batch: Batch, *, fixed_budget: bool) -> Tensor:
        """Score each label after a pass over the tokens before it."""
        ids, labels = batch["input_ids"], batch["labels"]
        mask = batch.get("attention_mask")
        mask = torch.ones_like(ids) if mask is None else mask
        nll = torch.zeros(labels.shape, dtype=torch.float32, device=ids.device)
        if not bool((labels[:, 1:] != IGNORED).any()):
            return nll
        rows, columns = ((labels[:, 1:] != IGNORED) & mask[:, :-1].bool()).nonzero(as_tuple=True)
        for part in columns.argsort(stable=True).split(PREFIXES):
            row, last = rows[part], columns[part]
            prefix = slice(0, int(last.max()) + 1)
            place = torch.arange(prefix.stop, device=ids.device)
            seen = mask[row, prefix] * (place <= last[:, None])
            encoded = self.encode(ids[row, prefix], seen, selection="block", fixed_budget=fixed_budget)
            if self.mixes:
                logits = self._mixed(encoded, encoded.keep(last[:, None]))[:, 0]
            else:
                logits = self.lm_head(self.states(encoded)[torch.arange(len(last), device=ids.device), last])
            nll[row, last + 1] = F.cross_entropy(logits.float(), labels[row, last + 1], reduction="none")
        return nll

    # ------------------------------------------------------------------------------------- logits and traces

    def _mixed(self, encoded: Encoding, streams: Streams) -> Tensor:
        mixed = mixture_log_probabilities(self.final_norm(streams.x), self.lm_head, streams)
        if encoded.rows.columns is None:
            return mixed
        return mixed.masked_fill((streams.counts == 0)[..., None], 0.0)

    def logits(self, encoded: Encoding, at: slice | Tensor) -> Tensor:
        """See `LatentThoughtModel.logits`; log-probabilities if the read-out is a mixture."""
        if not self.mixes:
            return self.lm_head(self.states(encoded)[:, at])
        columns = torch.arange(encoded.rows.width, device=encoded.streams.token.device)[at]
        if isinstance(at, slice) and len(columns) == encoded.rows.width and encoded.rows.columns is None:
            return self._mixed(encoded, encoded.streams)
        columns, order = (columns, None) if isinstance(at, slice) else columns.unique(return_inverse=True)
        logits = self._mixed(encoded, encoded.keep(columns))
        return logits if order is None else logits[:, order]

    def fill(self, traces: list[ThoughtTrace], encoded: Encoding, real: Tensor) -> None:
        """Add every final stream, the number of streams of each token, and their attention.

        `scores["streams"]` is a token's number of streams at the end, `streams.LAYER` after the fork before that block;
        `links["attention"]` is the mean attention of stream i to stream j over heads and the blocks after the last
        fork. The table `streams` contains all candidates of each forking layer, rejected forks included, and the
        streams at the end.
        """
        streams = encoded.streams
        names = [f"streams.{layer}" for layer in self.config.fork_layers]
        counts = {
            name: encoded.rows.spread(count.float()).masked_fill(~real, math.nan)
            for name, count in zip((*names, "streams"), (*encoded.forks, streams.counts))
        }
        attention = torch.stack(encoded.attention).mean(0) if encoded.attention else None
        columns = encoded.columns(streams.token).tolist()
        for row, trace in enumerate(traces):
            used = streams.own[row] | True if streams.real is None else streams.real[row]
            trace.scores |= {name: count[row] for name, count in counts.items()}
            for i in used.nonzero()[:, 0].tolist():
                label, column = "token" if streams.own[row, i] else "fork", columns[row][i]
                trace.thoughts.append(Thought(streams.x[row, i].detach(), column, column + 1, label))
            if streams.scores is not None:
                trace.curves["stream_weight"] = streams.scores[row].exp()[used]
            if attention is not None:
                trace.links["attention"] = attention[row][used][:, used]
            if encoded.candidates:
                trace.streams = encoded.genealogy(row, self.config.num_hidden_layers)

    def read_thoughts(self, trace: ThoughtTrace) -> None:
        """See `LanguageModel.read_thoughts`: a thought is the decisions about a token, not a stream."""
