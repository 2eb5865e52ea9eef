"""Thoughtbubbles (Liu et al., "Thoughtbubbles: an Unsupervised Method for Parallel Thinking in Latent Space").

A token enters as one residual stream. Before some blocks every stream is asked for a keep and a fork score; the best
kappa of all candidates go on, so that hard tokens get several streams and others none but their own. What a stream
writes, and how much it is attended to, is weighted by its cumulative score, which is how the scores learn. At the end
a token's streams make one prediction.

The paper chooses the streams of a whole text at once (`selection` = `block`): a later token can take a stream from an
earlier one, so that one pass is *not* an autoregressive likelihood. Every score says how it was made (`estimators`),
and `selection` = `causal` puts a threshold for each layer in place of the top-k: it meets the budget in the mean, looks
at no other token, and makes one pass the likelihood, and decoding cached (in training it is the batch's own).

Sections and equations are the paper's. Letters in shapes: B rows of L tokens, N or K streams, d hidden size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

from mentalese.data.batch import Batch
from mentalese.errors import InputError
from mentalese.families.thoughtbubbles.config import ThoughtbubblesConfig
from mentalese.families.thoughtbubbles.forking import (
    Streams,
    fork,
    lowest_kept,
    pack,
    select_block,
)
from mentalese.families.thoughtbubbles.readout import mixture_cross_entropy, mixture_log_probabilities
from mentalese.models.contract import LossOutput
from mentalese.models.hf import LatentThoughtModel, ResidualLinear, ThoughtCache
from mentalese.models.trace import Shown, Thought, ThoughtTrace
from mentalese.nn.attention import add_weighted, attend_with_scores, flex_attention_with_scores, with_scores
from mentalese.nn.loss import IGNORED
from mentalese.nn.rotary import rotary_table, rotate

LOWEST = -20.0  # of a single decision's log probability
UNKNOWN = 1.0  # a threshold before training: no log probability
CALIBRATION = 0.02  # how far a training step moves the thresholds of the causal selection
PREFIXES = 32  # rows at once where prefixes are scored one by one

# ---------------------------------------------------------------------------------------------------------- the modules


@dataclass
class StreamState:
    """What the blocks between two forks share.

    Attributes:
        cos, sin: [1 or B, 1, N, d_h / 2].
        scores: float32 [B, N], log p; `None` while all streams count in full.
        mask: bool [B, 1, N, m], who sees whom, where a cache is in use; `None`: every place sees those before it.
        past: streams of earlier calls, of which `cache` holds keys and values, `k.LAYER` and `v.LAYER`,
            [B, heads, room, d_h (+ 1)].
        attention: [B, N, N] a block, mean over heads, where a trace was asked for.
    """

    cos: Tensor
    sin: Tensor
    scores: Tensor | None
    mask: Tensor | None
    past: int
    cache: dict[str, Tensor] | None
    attention: list[Tensor] | None


class Attention(nn.Module):
    """Eq. 8: softmax((Q K^T + log p) / scale) (V p), with rotary positions (section D)."""

    def __init__(self, config: ThoughtbubblesConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads = layer, config.num_attention_heads
        self.overwrite = config.score_scale == "overwrite"
        self.flex = config._attn_implementation == "flex_attention"
        if self.flex and self.overwrite:
            raise InputError("score_scale is 'overwrite', which flex_attention does not do: give one of the two")
        width = config.hidden_size if config.score_scale == "model" and config.fork_layers else 0
        self.scale = (width or config.hidden_size // config.num_attention_heads) ** -0.5
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = ResidualLinear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, reading: StreamState) -> Tensor:
        """[B, N, d] to [B, N, d]."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        width = q.shape[-1]
        q, k = rotate(q, reading.cos, reading.sin), rotate(k, reading.cos, reading.sin)
        plain = reading.cache is None and reading.attention is None
        if self.flex and plain and reading.scores is not None:
            out = flex_attention_with_scores(q, k, v, reading.scores, scale=self.scale)
            return self.out(out.transpose(1, 2).flatten(2))
        if reading.scores is not None:
            q, k, v = with_scores(q, k, v, reading.scores, overwrite=self.overwrite)
        if reading.cache is not None:
            k, v = (self._append(reading, name, new) for name, new in (("k", k), ("v", v)))
        if reading.attention is not None:
            reading.attention.append(self._weights(q, k))
        return self.out(attend_with_scores(q, k, v, width, scale=self.scale, attn_mask=reading.mask))

    def _append(self, reading: StreamState, name: str, new: Tensor) -> Tensor:
        """All keys or values so far, [B, heads, m, d_h (+ 1)]."""
        name, past, end = f"{name}.{self.layer}", reading.past, reading.past + new.shape[2]
        assert reading.cache is not None
        held = reading.cache.get(name)
        if held is None or held.shape[2] < end or new.requires_grad:
            # Room for as much again, so that most steps copy nothing; what needs a gradient is not written over.
            room = new.new_empty(*new.shape[:2], 0 if new.requires_grad else end, new.shape[3])
            reading.cache[name] = torch.cat((*(() if held is None else (held[:, :, :past],)), new, room), dim=2)
        else:
            held[:, :, past:end] = new
        return reading.cache[name][:, :, :end]

    def _weights(self, q: Tensor, k: Tensor) -> Tensor:
        """[B, N, N], mean over heads, for traces."""
        logits = self.scale * (q @ k.transpose(-1, -2)).float()
        causal = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).tril()
        return logits.masked_fill(~causal, -math.inf).softmax(-1).mean(1)


class MLP(nn.Module):
    def __init__(self, config: ThoughtbubblesConfig) -> None:
        super().__init__()
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"
        self.up = nn.Linear(config.hidden_size, 4 * config.hidden_size)
        self.out = ResidualLinear(4 * config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.gelu(self.up(x), approximate=self.approximate))


class Block(nn.Module):
    """Eq. 9, 10: pre-norm attention and MLP, each written to a stream as far as its score says."""

    def __init__(self, config: ThoughtbubblesConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = Attention(config, layer)
        self.mlp_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, reading: StreamState) -> Tensor:
        """[B, N, d] to [B, N, d]."""
        x = self._write(x, self.attention(self.attention_norm(x), reading), reading)
        return self._write(x, self.mlp(self.mlp_norm(x)), reading)

    @staticmethod
    def _write(x: Tensor, update: Tensor, reading: StreamState) -> Tensor:
        return x + update if reading.scores is None else add_weighted(x, update, reading.scores)


class ForkDecision(nn.Module):
    """Eq. 1 to 3 in log space: log p_cum plus the log probabilities of forking and of keeping.

    `threshold` is the running mean of the lowest log score that a top-k keeps (ours).
    """

    threshold: Tensor

    def __init__(self, config: ThoughtbubblesConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decide = nn.Linear(config.hidden_size, 2, bias=config.fork_bias_init is not None)
        self.embedding = nn.Parameter(torch.empty(config.hidden_size))
        self.register_buffer("threshold", torch.tensor(UNKNOWN))

    def forward(self, x: Tensor, scores: Tensor | None) -> Tensor:
        """[B, N, d] and float32 [B, N] to float32 [B, 2 N], each stream's fork before itself."""
        decisions = F.logsigmoid(self.decide(self.norm(x)).float()).clamp(min=LOWEST)
        return (decisions if scores is None else decisions + scores[..., None]).flatten(1)

    @torch.no_grad()
    def calibrate(self, lowest: Tensor) -> None:
        """Moves the threshold towards a batch's, `lowest` (scalar), the same on all ranks."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            lowest = lowest.clone()
            torch.distributed.all_reduce(lowest)
            lowest /= torch.distributed.get_world_size()
        moved = self.threshold.float().lerp(lowest, CALIBRATION)
        keeps = moved.isfinite() & (self.threshold != UNKNOWN)
        self.threshold.copy_(torch.where(keeps, moved, lowest))


# ------------------------------------------------------------------------------------------------------------ the model


@dataclass
class Candidates:
    """What a fork chose from: of every stream itself and, before it, its fork.

    Attributes:
        scores: float32 [B, 2 N], log cumulative scores.
        merit: float32 [B, 2 N], what the selection went by; -inf where there is no stream.
        keep: bool [B, 2 N], those that stay; the streams behind the fork are these, in their order.
        token: [B, N], the streams' tokens, counted without padding.
    """

    layer: int
    scores: Tensor
    merit: Tensor
    keep: Tensor
    token: Tensor


@dataclass
class Encoding:
    """The streams of a batch after the last block, and where its tokens lie.

    Attributes:
        streams: tokens are counted without padding.
        columns: [B, n], where each token lies in its row; `None`: tokens are rows, there is no padding.
        length: L, columns of the batch.
        forks: one [B, n] a forking layer, the streams of each token after it.
        attention: see `StreamState`, of the blocks behind the last fork.
        candidates: one a forking layer, where a trace was asked for.
    """

    streams: Streams
    columns: Tensor | None
    length: int
    forks: list[Tensor]
    attention: list[Tensor]
    candidates: list[Candidates]
    hidden_states: None = None

    def spread(self, values: Tensor) -> Tensor:
        """Values of tokens [B, n, ..] where the tokens lie, zero at padding: [B, L, ..]."""
        if self.columns is None:
            return values
        extra = [1] * (values.ndim - 2)
        values = values.masked_fill((self.streams.counts == 0).view(*self.columns.shape, *extra), 0.0)
        index = self.columns.view(*self.columns.shape, *extra).expand_as(values)
        return values.new_zeros(len(values), self.length, *values.shape[2:]).scatter(1, index, values)

    def predictable(self, labels: Tensor) -> Tensor:
        """Labels [B, L] without those right behind padding, which nothing predicts."""
        if self.columns is None:
            return labels
        predicts = F.pad(self.spread(self.streams.counts)[:, :-1] > 0, (1, 0))
        return labels.masked_fill(~predicts, IGNORED)

    def keep(self, kept: Tensor) -> Streams:
        """The streams of the tokens in columns [m] or [B, m], tokens counted by those."""
        streams = self.streams
        rows, device = len(streams.token), streams.token.device
        slots = torch.full((rows, self.length), kept.shape[-1], device=device)
        slots.scatter_(1, kept.expand(rows, -1), torch.arange(kept.shape[-1], device=device).expand(rows, -1))
        column = streams.token if self.columns is None else self.columns.gather(1, streams.token)
        return streams.renumbered(slots.gather(1, column), kept.shape[-1])


class ThoughtbubblesForCausalLM(LatentThoughtModel):
    """Thoughtbubbles as a causal LM; without `fork_layers` it is the RoPE transformer of the paper's baselines."""

    config_class = ThoughtbubblesConfig
    about_thoughts = (
        "Residual streams: where a token needs more computation its stream forks. Streams are chosen for a whole text "
        "at once (selection 'block'), so that later tokens have a say, or token by token ('causal')."
    )
    shown = {  # noqa: RUF012 (nothing writes to it)
        "surprisal": Shown(
            "surprisal",
            "What the token cost: minus the log of the probability that it was given; no likelihood where later tokens "
            "have a say (selection 'block').",
            "nats",
        ),
        "streams": Shown("streams", "How many streams the token has at the end: its own, and forks.", "count"),
        "streams.": Shown("streams at block {}", "How many streams the token has behind the fork there.", "count"),
        "attention": Shown("attention", "How much a stream attends to another one behind the last fork."),
        "stream_weight": Shown("weight of streams", "How far each stream counts at the end.", "share", "stream"),
    }
    why_no_cache = "selection is 'block', so a new token may change the streams of earlier ones"
    _supports_flex_attn = True
    _tied_weights_keys = {"lm_head.weight": "embed.weight"}  # noqa: RUF012 (transformers' own attribute)

    def __init__(self, config: ThoughtbubblesConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.fork_decisions = nn.ModuleDict({str(layer): ForkDecision(config) for layer in config.fork_layers})
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, ForkDecision):
            init.normal_(module.embedding, std=self.config.hidden_size**-0.5)
            init.constant_(module.threshold, UNKNOWN)
            if module.decide.bias is not None:
                init.constant_(module.decide.bias, self.config.fork_bias_init)

    def new_cache(self) -> ThoughtCache:
        return ThoughtCache()

    @property
    def mixes(self) -> bool:
        """Whether predictions are mixtures of the distributions of several streams."""
        return self.config.readout == "mixture" and bool(self.config.fork_layers)

    # ------------------------------------------------------------------------------------- streams

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        selection: str | None = None,
        budget_mode: str | None = None,
        cache: ThoughtCache | None = None,
        calibrate: bool = False,
        trace: bool = False,
    ) -> Encoding:
        """All blocks over rows [B, L], from where `cache` left off; the cache moves on.

        Args:
            selection, budget_mode: others than the config's.
            calibrate: find the thresholds of the causal selection; it then takes the batch's own, as batch statistics
                elsewhere, which meets the budget from the first step and looks ahead as far as one number can.
            trace: keep the attention of the blocks behind the last fork, and all candidates.

        Raises:
            InputError: a row of padding alone, or a text that is longer than a fixed budget was made for.
            FloatingPointError: a fork score is not a number.
        """
        config, state = self.config, {} if cache is None else cache.state
        selection, budget_mode = selection or config.selection, budget_mode or config.budget_mode
        streams, columns = self._embed(input_ids, attention_mask, cache)
        if config.fork_layers and selection == "block" and budget_mode == "fixed":
            self._check_length(streams)
        forks: list[Tensor] = []
        attention: list[Tensor] = []
        candidates: list[Candidates] = []
        reading = self._reading(streams, 0, cache)
        for layer, block in enumerate(self.blocks):
            if layer in config.fork_layers:
                streams, chosen_from = self._fork(streams, layer, selection, budget_mode, calibrate)
                if trace:
                    candidates.append(chosen_from)
                forks.append(streams.counts)
                reading = self._reading(streams, len(forks), cache)
                if trace and len(forks) == len(config.fork_layers):
                    reading.attention = attention
            streams.x = block(streams.x, reading)
        if cache is not None:
            cache.seen_tokens += input_ids.shape[1]
            own = streams.own if streams.real is None else streams.own & streams.real
            state["tokens"] = streams.before + own.sum(1, keepdim=True)
        return Encoding(streams, columns, input_ids.shape[1], forks, attention, candidates)

    def _embed(
        self, input_ids: Tensor, attention_mask: Tensor | None, cache: ThoughtCache | None
    ) -> tuple[Streams, Tensor | None]:
        """One stream a token, or `copies` of it, tokens at the front of their rows; and where the tokens were."""
        rows, device, copies = len(input_ids), input_ids.device, self.config.copies
        columns = real = None
        if attention_mask is not None:
            tokens = self.real_tokens(input_ids, attention_mask, cache)
            if cache is None:
                self.check_rows(tokens)
            if not bool(tokens.all()):
                columns, real = pack(tokens)
                input_ids = input_ids.gather(1, columns)
        x = self.embed(input_ids)
        x = x if copies == 1 else x.repeat_interleave(copies, dim=1)
        counts = torch.full_like(input_ids, copies) if real is None else real.long() * copies
        place = torch.arange(x.shape[1], device=device).expand(rows, -1)
        streams = Streams(
            x=x,
            scores=None,
            token=place // copies,
            own=place % copies == copies - 1,
            real=None if real is None else real.repeat_interleave(copies, dim=1),
            counts=counts,
            before=({} if cache is None else cache.state).get("tokens", torch.zeros_like(input_ids[:, :1])),
        )
        return streams, columns

    def _check_length(self, streams: Streams) -> None:
        config = self.config
        longest = streams.counts.shape[1] + int(streams.before.max())
        if longest > config.max_position_embeddings:
            raise InputError(
                f"input_ids has {longest} tokens and the fixed budget was made for {config.max_position_embeddings}: "
                f"budget_mode='dynamic' would keep {config.streams(longest)} streams for them"
            )

    def _reading(self, streams: Streams, segment: int, cache: ThoughtCache | None) -> StreamState:
        """Tables and masks for the blocks up to the next fork; `segment` counts the forks before them."""
        config = self.config
        positions = streams.positions()
        if streams.real is None and cache is None and not segment:
            positions = positions[:1]  # rows are alike
        cos, sin = rotary_table(positions[:, None], config.hidden_size // config.num_attention_heads, config.rope_theta)
        mask, past = None, 0
        if cache is not None:
            real = torch.ones_like(streams.own) if streams.real is None else streams.real
            held = cache.state.get(f"real.{segment}")
            seen = real if held is None else torch.cat((held, real), dim=1)
            cache.state[f"real.{segment}"] = seen
            past, new = seen.shape[1] - real.shape[1], real.shape[1]
            if past and (new > 1 or not bool(seen.all())):
                now = torch.ones(new, new, dtype=torch.bool, device=real.device).tril()
                mask = F.pad(now, (past, 0), value=True) & seen[:, None, None]
        scores = streams.scores
        if scores is None and config.fork_layers and config.score_scale == "overwrite":
            scores = torch.zeros_like(streams.token, dtype=torch.float32)
        return StreamState(cos, sin, scores, mask, past, None if cache is None else cache.state, None)

    def _fork(
        self, streams: Streams, layer: int, selection: str, budget_mode: str, calibrate: bool
    ) -> tuple[Streams, Candidates]:
        """Scores all candidates, selects, and lets streams fork and end (section 2.3)."""
        module: Any = self.fork_decisions[str(layer)]
        decisions = module(streams.x, streams.scores)
        if bool(decisions.isnan().any()):
            raise FloatingPointError(
                f"fork_decisions.{layer}: a score is not a number; look at the states before it, or lower learning_rate"
            )
        own = torch.stack((torch.zeros_like(streams.own), streams.own), dim=-1).flatten(1)
        merit = decisions.detach().masked_fill(own, math.inf)  # Eq. 4, for the selection alone
        if streams.real is not None:
            merit = merit.masked_fill(~streams.real.repeat_interleave(2, dim=1), -math.inf)
        threshold = module.threshold
        if calibrate:
            lowest = lowest_kept(merit, self._quota(streams, budget_mode))
            real = lowest.isfinite()  # short rows keep everything and say nothing of the rest
            threshold = lowest[real].mean() if bool(real.any()) else lowest.amin()
            module.calibrate(threshold)
        if selection == "block":
            size = self._budget(streams.counts.shape[1], budget_mode)  # shapes do not depend on the scores
            size = min(size, merit.shape[1])
            keep = select_block(merit, self._quota(streams, budget_mode)) & (merit > -math.inf)
        else:
            if bool(threshold == UNKNOWN):
                raise InputError(
                    "selection is 'causal' and this model has no thresholds: train it, they come with that"
                )
            size, keep = None, (merit >= threshold) & (merit > -math.inf)
        candidates = Candidates(layer, decisions, merit, keep, streams.token)
        return fork(streams, decisions, keep, module.embedding, size), candidates

    def _quota(self, streams: Streams, mode: str) -> Tensor:
        """[B], streams that each row may keep."""
        rows, longest = streams.counts.shape
        tokens = [longest] * rows if streams.real is None else (streams.counts > 0).sum(1).tolist()
        return torch.tensor([self._budget(n, mode) for n in tokens], device=streams.counts.device)

    def _budget(self, tokens: int, mode: str) -> int:
        """kappa of a text of so many tokens, or of the length trained on."""
        return self.config.streams(self.config.max_position_embeddings if mode == "fixed" else tokens)

    # ------------------------------------------------------------------------------------- read-out

    def _hidden(self, streams: Streams) -> Tensor:
        """[B, n, d], one state a token, for the read-outs that are not mixtures."""
        if streams.scores is None and self.config.copies == 1:
            return self.final_norm(streams.x)
        readout = "rightmost" if streams.scores is None else self.config.readout
        if readout == "rightmost":
            return self.final_norm(streams.sum_by_token(streams.x * streams.own[..., None].to(streams.x.dtype)))
        assert streams.scores is not None
        weights = streams.scores.exp()[..., None].to(streams.x.dtype)
        if readout == "residual":
            return self.final_norm(streams.sum_by_token(weights * streams.x))
        return streams.sum_by_token(weights * self.final_norm(streams.x))

    # ------------------------------------------------------------------------------------- training and scores

    def final_hidden_states(self, batch: Batch) -> Tensor:
        """[B, L, d], zero at padding.

        Raises:
            NotImplementedError: the read-out is a mixture of distributions, which no single state has.
        """
        if self.mixes:
            raise NotImplementedError(
                "readout='mixture' has no single hidden state a token: use training_loss or forward"
            )
        return self._states(self.encode(batch["input_ids"], batch.get("attention_mask")))

    def _states(self, encoding: Encoding) -> Tensor:
        return encoding.spread(self._hidden(encoding.streams))

    def training_loss(self, batch: Batch, **settings: Any) -> LossOutput:
        """The mean cross-entropy; the selection is the config's."""
        self.target_weights(batch, **settings)
        encoding = self.encode(batch["input_ids"], batch.get("attention_mask"), calibrate=self.training)
        streams = encoding.streams
        labels = encoding.predictable(batch["labels"])
        if self.mixes:
            loss, _ = self._mixture(encoding, labels)
            weight = (labels[:, 1:] != IGNORED).sum().float()
        else:
            loss, weight = self.next_token_loss(self._states(encoding), labels)
        metrics = {}
        if streams.scores is not None:
            real = torch.ones_like(streams.own) if streams.real is None else streams.real
            metrics["streams_per_token"] = real.sum() / (streams.counts > 0).sum()
            metrics["stream_weight"] = (streams.scores.detach().exp() * real).sum() / real.sum()
        return LossOutput(loss, weight, metrics)

    def _mixture(self, encoding: Encoding, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and the nats of what each token [B, n] predicts."""
        targets = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
        if encoding.columns is not None:
            targets = targets.gather(1, encoding.columns).masked_fill(encoding.streams.counts == 0, IGNORED)
        hidden = self.final_norm(encoding.streams.x)
        return mixture_cross_entropy(hidden, self.output_weight(), targets, encoding.streams)

    def forward_flops(self, batch: Batch) -> int:
        """See `Contract.forward_flops`. Under a causal rule the streams are as many as the budget allows."""
        config = self.config
        rows, length = batch["input_ids"].shape
        mask = batch.get("attention_mask")
        tokens = [length] * rows if mask is None else mask.sum(1).tolist()
        longest, d = max(tokens), config.hidden_size
        streams, scored, total = longest * config.copies, 0, 0
        for layer in range(config.num_hidden_layers):
            if layer in config.fork_layers:
                total += streams * 2 * d
                streams, scored = (
                    min(2 * streams, self._budget(longest, config.budget_mode)),
                    config.score_scale != "overwrite",
                )
            total += streams * 12 * d * d + streams**2 * (2 * d + 2 * scored * config.num_attention_heads)
        heads = streams if self.mixes else length
        return 2 * rows * (total + heads * d * config.vocab_size)

    def compiled_parts(self) -> list[nn.Module]:
        """The blocks: what stays at a fork is decided between them."""
        return list(self.blocks)

    @property
    def estimators(self) -> tuple[str, ...]:  # type: ignore[override]
        """How a text can be scored, the config's own way first.

        `exact`: one pass is the autoregressive likelihood. `block-not-causal`: the paper's one pass, in which later
        tokens decide about earlier streams: not a likelihood. `prefix-dynamic`, `prefix-fixed`: each token after a pass
        over the tokens before it alone, with either budget: exact, and as many passes as tokens. `causal`: one pass
        under the causal selection, exact.
        """
        if not self.config.fork_layers or self.config.budget == 1:
            return ("exact",)
        others = ("prefix-dynamic", "prefix-fixed")
        return (
            ("causal", "block-not-causal", *others) if self.config.causal else ("block-not-causal", *others, "causal")
        )

    @torch.no_grad()
    def token_nll(self, batch: Batch, estimator: str | None = None) -> Tensor:
        """See `Contract.token_nll` and `estimators`."""
        estimator = estimator or self.estimators[0]
        if estimator not in self.estimators:
            raise InputError(f"estimator is {estimator!r}: this model has {', '.join(self.estimators)}")
        kind, _, rest = estimator.partition("-")
        if kind == "prefix":
            return self._nll_by_prefixes(batch, rest)
        selection = {"causal": "causal", "block": "block"}.get(kind)
        encoding = self.encode(batch["input_ids"], batch.get("attention_mask"), selection=selection)
        labels = encoding.predictable(batch["labels"])
        if not self.mixes:
            return self.next_token_nll(self._states(encoding), labels)
        return F.pad(encoding.spread(self._mixture(encoding, labels)[1])[:, :-1], (1, 0))

    def _nll_by_prefixes(self, batch: Batch, budget_mode: str) -> Tensor:
        """Each label after a pass over the tokens before it."""
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
            encoding = self.encode(ids[row, prefix], seen, selection="block", budget_mode=budget_mode)
            logits = self._logits(encoding, last[:, None])[:, 0]
            nll[row, last + 1] = F.cross_entropy(logits.float(), labels[row, last + 1], reduction="none")
        return nll

    # ------------------------------------------------------------------------------------- Hugging Face's side

    def _logits(self, encoding: Encoding, kept: Tensor) -> Tensor:
        """[B, m, v] of the tokens in columns `kept` [m] or [B, m]; of a mixture log-probabilities, zero at padding."""
        if kept.ndim == 1:
            kept, order = kept.unique(return_inverse=True)
            return self._logits(encoding, kept.expand(len(encoding.streams.token), -1))[:, order]
        if not self.mixes:
            hidden = self._states(encoding)
            rows = torch.arange(len(hidden), device=hidden.device)[:, None]
            return self.lm_head(hidden[rows, kept])
        streams = encoding.keep(kept)
        mixed = mixture_log_probabilities(self.lm_head(self.final_norm(streams.x)), streams)
        return mixed.masked_fill((streams.counts == 0)[..., None], 0.0)

    @property
    def can_cache(self) -> bool:  # type: ignore[override]
        """Whether the selection is causal: else a new token may change the streams of earlier ones."""
        return self.config.causal

    def labels_loss(self, encoded: Encoding, labels: Tensor) -> Tensor:
        """See `LatentThoughtModel.labels_loss`; a mixture has its own."""
        if self.mixes:
            return self._mixture(encoded, labels)[0]
        return self.next_token_loss(self._states(encoded), encoded.predictable(labels))[0]

    def logits(self, encoded: Encoding, at: Any) -> Tensor:
        """See `LatentThoughtModel.logits`; log-probabilities if the read-out is a mixture."""
        return self._logits(encoded, torch.arange(encoded.length, device=encoded.streams.token.device)[at])

    def fill(self, traces: list[ThoughtTrace], encoded: Encoding, real: Tensor) -> None:
        """Every stream at the end, how many of them each token has, and whom they attend to.

        `scores["streams"]` is a token's number of streams at the end, `streams.LAYER` after the fork before that block;
        `links["attention"]` is the mean attention of stream i to stream j over heads and the blocks after the last
        fork. The table `streams` contains at each forking layer all that it chose from, the forks that were not made
        among them, and the streams at the end.
        """
        encoding, tokens = encoded, real
        streams = encoding.streams
        names = [f"streams.{layer}" for layer in self.config.fork_layers]
        counts = {
            name: encoding.spread(count.float()).masked_fill(~tokens, math.nan)
            for name, count in zip((*names, "streams"), (*encoding.forks, streams.counts))
        }
        attention = torch.stack(encoding.attention).mean(0) if encoding.attention else None
        for row, trace in enumerate(traces):
            own = streams.own[row] | True if streams.real is None else streams.real[row]
            trace.scores |= {name: count[row] for name, count in counts.items()}
            columns = (streams.token if encoding.columns is None else encoding.columns.gather(1, streams.token))[
                row
            ].tolist()
            for i in own.nonzero()[:, 0].tolist():
                label = "token" if streams.own[row, i] else "fork"
                trace.thoughts.append(Thought(streams.x[row, i].detach(), columns[i], columns[i] + 1, label))
            if streams.scores is not None:
                trace.curves["stream_weight"] = streams.scores[row].exp()[own]
            if attention is not None:
                trace.links["attention"] = attention[row][own][:, own]
            if encoding.candidates:
                trace.streams = self._genealogy(encoding, row)

    def _genealogy(self, encoding: Encoding, row: int) -> dict[str, Tensor]:
        """The table `ThoughtTrace.streams` of a row."""
        streams, parts, count = encoding.streams, [], 0
        parents = torch.empty(0, dtype=torch.long, device=streams.token.device)
        for at in encoding.candidates:
            real, keep = at.merit[row] > -math.inf, at.keep[row]
            own = torch.arange(len(keep), device=keep.device)
            part = {
                "layer": torch.full_like(own, at.layer),
                "token": at.token[row].repeat_interleave(2),
                "parent": F.pad(parents, (0, len(keep) // 2 - len(parents)), value=-1).repeat_interleave(2),
                "weight": at.scores[row].exp(),
                "kept": keep,
                "fork": own % 2 == 0,
            }
            parts.append({name: values[real] for name, values in part.items()})
            parents = (count + real.cumsum(0) - 1)[keep]
            count += int(real.sum())
        assert streams.scores is not None
        end = slice(len(parents))
        parts.append(
            {
                "layer": torch.full_like(parents, self.config.num_hidden_layers),
                "token": streams.token[row, end],
                "parent": parents,
                "weight": streams.scores[row, end].exp(),
                "kept": torch.ones_like(parents, dtype=torch.bool),
                "fork": torch.zeros_like(parents, dtype=torch.bool),
            }
        )
        table = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        if encoding.columns is not None:
            table["token"] = encoding.columns[row, table["token"]]
        return table
