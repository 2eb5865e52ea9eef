"""CoLaR on Coconut's passes, cache and generation; written steps are merged before the decoder reads them.

`plain.py` has the method. Steps are all tokens between the markers of latents, except latents.
Latents in a row are made by the model, one after the other.

Letters in shapes: B rows of L tokens, W columns after merging, N latents, d hidden size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LogitsProcessor, LogitsProcessorList

from mentalese.data.batch import Batch
from mentalese.errors import require
from mentalese.families.coconut.model import CoconutEncoded, CoconutForCausalLM
from mentalese.families.colar.config import ColarConfig
from mentalese.families.colar.plain import LatentHead
from mentalese.models.base import LossOutput
from mentalese.models.cache import ThoughtCache
from mentalese.models.hf import Limits
from mentalese.models.trace import Thought, ThoughtTrace
from mentalese.nn.controls import controlled
from mentalese.nn.loss import IGNORED
from mentalese.nn.noise import shared_seed
from mentalese.values import temporarily

_PART = 1024  # rows of the table of embeddings that are read at once


@dataclass
class Columns:
    """The columns that a decoder reads in place of a batch's tokens: the tokens of a group share one.

    Attributes:
        first: [B, W], the first token of each column; 0 at padding.
        count: [B, W], its number of tokens; 0 at padding.
        read: [B, L], the column of each token.
        state: [B, L], the column whose state predicts the token after each token: inside a group, the one before it.
        at: [B, N], the columns of groups, in order; others behind them.
        grouped: bool [B, N], the ones that are groups.
    """

    first: Tensor
    count: Tensor
    read: Tensor
    state: Tensor
    at: Tensor
    grouped: Tensor


def merge(steps: Tensor, real: Tensor, factor: int) -> Columns | None:
    """Return the columns of a batch whose `steps` are merged in groups of `factor`, both bool [B, L].

    A group that the steps end in is smaller. Without steps there are none. Waits for a GPU once.
    """
    rows, length = real.shape
    index = torch.arange(length, device=real.device).expand_as(real)
    place = index - index.masked_fill(steps, -1).cummax(1).values - 1  # of a step's token, from 0
    inside = steps & (place % factor > 0)
    begins = real & ~inside
    read = (begins.cumsum(1) - 1).clamp(min=0)
    ends_with = F.pad(real & ~steps, (0, 1))[:, 1:]
    is_last = ~steps | (place % factor == factor - 1) | ends_with
    begun, column = read.masked_fill(~begins, length), read.masked_fill(~real, length)
    empty = index.new_zeros(rows, length + 1)
    first = empty.scatter(1, begun, index)[:, :-1]
    count = empty.scatter_add(1, column, torch.ones_like(index))[:, :-1]
    grouped = torch.zeros_like(empty, dtype=torch.bool).scatter(1, begun, steps)[:, :-1]
    width, number = torch.stack(((count > 0).sum(1).max(), grouped.sum(1).max())).tolist()
    if not number:
        return None
    at = (~grouped).byte().argsort(dim=1, stable=True)[:, :number]
    state = (read - (~is_last).long()).clamp(min=0)
    return Columns(first[:, :width], count[:, :width], read, state, at, grouped.gather(1, at))


@dataclass
class Merged:
    """The latents of a batch's written steps.

    Attributes:
        columns: the columns of the decoder.
        before: [B, N, d], the state before each latent.
        vectors: [B, N, d], the latents.
    """

    columns: Columns
    before: Tensor
    vectors: Tensor


@dataclass(kw_only=True)
class ColarEncoded(CoconutEncoded):
    """The computation of Coconut, and the latents of written steps, if there are any."""

    merged: Merged | None = None


class Thinking(LogitsProcessor):
    """Lets a row think after `<start>`: the next token is `<end>` as often as the head predicts it, else a latent.

    Outside, neither of these markers is written: a second `<start>` would make it think again.
    """

    def __init__(self, config: ColarConfig) -> None:
        self.config = config

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores [B, vocabulary] of the next token after tokens [B, L]."""
        start, latent, end = _markers(self.config)
        thinks = (input_ids[:, -1] == start) | (input_ids[:, -1] == latent)
        words = scores.clone()
        words[:, start], words[:, latent] = -math.inf, -math.inf
        others = words.clone()
        others[:, end] = -math.inf
        goes_on = others.logsumexp(1)
        turn = (input_ids == start).cumsum(1)
        latents = ((input_ids == latent) & (turn == turn[:, -1:])).sum(1)
        goes_on = goes_on.masked_fill(latents >= self.config.max_latents, -math.inf)
        thinking = torch.full_like(scores, -math.inf)
        thinking[:, latent], thinking[:, end] = goes_on, scores[:, end]
        return torch.where(thinks[:, None], thinking, words)


def _markers(config: ColarConfig) -> tuple[int, int, int]:
    """Return the tokens `<start>`, latent and `<end>`, or raise `InputError`."""
    names = ("latent_start_token_id", "latent_token_id", "latent_end_token_id")
    for name in names:
        config.require(getattr(config, name) is not None, name, "set the marker's token (`mentalese grow` adds it)")
    start, latent, end = (getattr(config, name) for name in names)
    return start, latent, end


class ColarForCausalLM(CoconutForCausalLM):
    """A Hugging Face decoder that thinks in vectors, each of which stands for several tokens of written steps."""

    config_class = ColarConfig
    about_thoughts = (
        "Vectors between a question and its answer: the embeddings of written steps, merged, or the model's own "
        "predictions of such vectors. Only steps and answers are trained, so scores of the question mean little."
    )
    shown = {"retention": CoconutForCausalLM.shown["retention"]}  # noqa: RUF012 (nothing writes to it)

    def __init__(self, config: ColarConfig) -> None:
        super().__init__(config)
        self.latent_head = LatentHead(config.hidden_size)
        self.speed = nn.Embedding(1, config.hidden_size)
        self._unit: Tensor | None = None  # the result of `_scale` in a call of `generate`
        self.post_init()

    @property
    def limits(self) -> Limits:
        return replace(super().limits, loss="the weights of a group's tokens, and the prediction of latents")

    # -- reading -----------------------------------------------------------------------------------------------------

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cache: ThoughtCache | None = None,
        trace: bool = False,
        output_hidden_states: bool = False,
        factor: int | None = None,
        latents: Tensor | None = None,
    ) -> ColarEncoded:
        """Return final hidden states [B, L, d] as Coconut does, with written steps merged.

        Steps are merged within a call: a call that goes on with the steps of the one before reads each token by itself.

        Args:
            factor: tokens of a group; `None`: the config's.
            latents: [B, N, d], read at a row's latents in one pass, instead of latents that the model makes.
        """
        factor = factor or self.config.factor
        real = self.real_tokens(input_ids, attention_mask, cache)
        embedded = self._embedded(input_ids, factor)
        columns = self._columns(input_ids, real, factor, given=latents is not None)
        if columns is None:
            encoded = self._encode(input_ids, attention_mask, cache, output_hidden_states, embedded)
            return ColarEncoded(**vars(encoded))
        _, latent, end = _markers(self.config)
        ids, inputs = input_ids.gather(1, columns.first), _columns_of(embedded, columns.first)
        if latents is None:
            vectors = self._merge(input_ids, columns, factor)
        else:
            most = columns.at.shape[1]
            require(latents.shape[1] >= most, "latents", [*latents.shape], f"a row of input_ids has {most} latents")
            vectors, ids = latents[:, :most], ids.masked_fill(ids == latent, end)  # the model makes none
        removed = self.get_input_embeddings()(torch.full((), latent, device=ids.device))
        read = controlled(vectors, self.config.thought_control, removed, "columns", columns.grouped).to(inputs.dtype)
        read = torch.where(columns.grouped[..., None], read, _columns_of(inputs, columns.at))
        inputs = inputs.scatter(1, columns.at[..., None].expand_as(read), read)
        seen = 0 if cache is None else cache.seen_tokens
        mask = F.pad((columns.count > 0).long(), (seen, 0), value=1)
        encoded = self._encode(ids, mask, cache, output_hidden_states, inputs)
        if cache is not None:
            cache.seen_tokens = seen + input_ids.shape[1]
        before = _columns_of(encoded.hidden, (columns.at - 1).clamp(min=0))
        levels = (encoded.hidden, *(encoded.hidden_states or ()))
        levels = tuple(_columns_of(level, columns.state).masked_fill(~real[..., None], 0.0) for level in levels)
        encoded.hidden, encoded.hidden_states = levels[0], levels[1:] or None
        encoded.is_latent = (input_ids == latent) & real
        return ColarEncoded(**vars(encoded), merged=Merged(columns, before, vectors))

    def _columns(self, ids: Tensor, real: Tensor, factor: int, *, given: bool = False) -> Columns | None:
        """Return the columns of tokens [B, L] with written steps, or with `given` latents; `None` without any."""
        start, latent, end = _markers(self.config)
        if given:
            return merge((ids == latent) & real, real, 1)
        if ids.shape[1] == 1:
            return None
        is_start = ids == start
        thinks = is_start.cumsum(1) > (ids == end).cumsum(1)
        return merge(thinks & ~is_start & (ids != latent) & real, real, factor)

    def _embedded(self, ids: Tensor, factor: int) -> Tensor:
        """Return the embeddings [.., d] of tokens; the start of thinking also has the factor."""
        is_start = (ids == self.config.latent_start_token_id)[..., None]
        vectors = self.get_input_embeddings()(ids)
        share = (is_start * math.log2(factor)).to(vectors.dtype)
        return vectors + share * self.speed(torch.zeros_like(ids))

    def _merge(self, ids: Tensor, columns: Columns, factor: int) -> Tensor:
        """Return the latents [B, N, d] of groups of tokens [B, L]: the sum of embeddings over sqrt(c)."""
        first, count = columns.first.gather(1, columns.at), columns.count.gather(1, columns.at)
        embed, merged = self.get_input_embeddings(), torch.zeros((), device=ids.device)
        for place in range(factor):
            vectors = embed(ids.gather(1, (first + place).clamp(max=ids.shape[1] - 1)))
            merged = merged + vectors * (place < count)[..., None]
        return merged / count.clamp(min=1).sqrt()[..., None]

    # -- latents that the model makes --------------------------------------------------------------------------------

    def _scale(self) -> Tensor:
        """Return the root mean square of the embeddings, the unit of the latent head."""
        if self._unit is not None:
            return self._unit
        table, size = self.get_input_embeddings(), self.config.hidden_size
        with torch.no_grad():  # in parts, which stay in the processor's cache: a tenth of the time
            parts = torch.arange(self.config.vocab_size, device=self.device).split(_PART)
            norms = [torch.linalg.vector_norm(table(part).float(), dim=1) for part in parts]
        return (torch.cat(norms).square().mean() / size).sqrt()

    def _thought(self, hidden: Tensor) -> Tensor:
        mean, log_std = self.latent_head(hidden)
        if self.config.latent_temperature:
            mean = mean + self.config.latent_temperature * log_std.exp() * torch.randn_like(mean)
        return self._scale() * mean

    def _latent_weights(self) -> int:
        return 4 * self.config.hidden_size**2

    def latent_log_density(self, merged: Merged) -> Tensor:
        """Return the log density [B, N] in nats of latents that were sampled, 0 where a row has no more.

        Raises:
            InputError: `latent_temperature` is 0.
        """
        temperature, scale = self.config.latent_temperature, self._scale()
        self.config.require(temperature > 0, "latent_temperature", "latents are not sampled; set a larger one")
        mean, log_std = self.latent_head(merged.before)
        normal = torch.distributions.Normal(scale * mean, scale * temperature * log_std.exp())
        return normal.log_prob(merged.vectors).sum(-1).masked_fill(~merged.columns.grouped, 0.0)

    @torch.no_grad()
    def generate(self, *inputs: Any, logits_processor: Any = None, **options: Any) -> Any:
        """Return tokens as transformers does; after `<start>` these are latents and `<end>`, see `Thinking`.

        Raises:
            InputError: latents are sampled without a cache, which keeps them.
        """
        cached = options.get("use_cache", True) is not False
        remedy = "without a cache each token would follow from other latents; set use_cache=True, or a temperature of 0"
        self.config.require(cached or not self.config.latent_temperature, "latent_temperature", remedy)
        processors = LogitsProcessorList([*(logits_processor or ()), Thinking(self.config)])
        with temporarily(self, _unit=self._scale()):
            return super().generate(*inputs, logits_processor=processors, **options)

    # -- training and cost -------------------------------------------------------------------------------------------

    def _drawn_factor(self) -> int:
        """Return c: in training drawn, for a step or, outside `mentalese train`, for a batch on all ranks."""
        if not self.training:
            return self.config.factor
        seed = shared_seed() if self.step_seed is None else self.step_seed
        return 1 + seed % self.config.max_factor

    def target_weights(self, batch: Batch, **settings: object) -> Tensor:
        """Return weights [B, L] that sum to 1 over the tokens of a group; in evaluation mode of the config's factor."""
        self.refuse(settings)
        ids, factor = batch["input_ids"], self._drawn_factor()
        return self._weights(ids, self._columns(ids, self.real_tokens(ids, batch.get("attention_mask")), factor))

    @staticmethod
    def _weights(ids: Tensor, columns: Columns | None) -> Tensor:
        if columns is None:
            return torch.ones(ids.shape, device=ids.device)
        return 1 / columns.count.gather(1, columns.read).clamp(min=1)

    def training_loss(self, batch: Batch, **settings: object) -> LossOutput:
        """Return L_language + weight L_latent, sums over latents, ends of thinking and answers, by their number.

        `metrics` holds `ntp`, `latent` and the step's `factor`.
        """
        self.refuse(settings)
        ids, labels, factor = batch["input_ids"], batch["labels"], self._drawn_factor()
        encoded = self.encode(ids, batch.get("attention_mask"), factor=factor)
        columns = None if encoded.merged is None else encoded.merged.columns
        ntp, weight = self.next_token_loss(encoded.hidden, labels, self._weights(ids, columns))
        latent = weight.new_zeros(()) if encoded.merged is None else self._latent_loss(encoded.merged, labels)
        latent = latent / weight.clamp(min=1)
        metrics = {"ntp": ntp.detach(), "latent": latent.detach(), "factor": torch.full_like(weight, factor)}
        output = LossOutput(ntp + self.config.latent_weight * latent, weight, metrics, encoded=lambda: encoded)
        return self._all_trained(output)

    def _latent_loss(self, merged: Merged, labels: Tensor) -> Tensor:
        """Return the sum over latents, except of groups without labels, of their losses, means over channels."""
        mean, log_std = (values.float() for values in self.latent_head(merged.before))
        error = merged.vectors.detach().float() / self._scale() - mean
        if self.config.latent_loss == "nll":
            loss = log_std + 0.5 * (error / log_std.exp()) ** 2
        else:
            loss = error**2 + log_std.exp() ** 2 - self.config.entropy_weight * log_std
        columns = merged.columns
        counted = labels.gather(1, columns.first.gather(1, columns.at)) != IGNORED
        return loss.mean(-1).masked_fill(~(columns.grouped & counted), 0.0).sum()

    def _flops(self, batch: Batch, factor: int) -> tuple[int, int]:
        """Return the FLOPs of a forward pass, and of the latent head in training."""
        ids = batch["input_ids"]
        columns = self._columns(ids, self.real_tokens(ids, batch.get("attention_mask")), factor)
        if columns is None:
            return super().forward_flops(batch), 0
        (rows, length), width = ids.shape, columns.first.shape[1]
        merged = {"input_ids": ids.gather(1, columns.first), "attention_mask": (columns.count > 0).long()}
        head = 2 * rows * (length - width) * self.output_weight().numel()  # it also reads each token of a group
        return super().forward_flops(merged) + head, 2 * columns.at.numel() * self._latent_weights()

    def forward_flops(self, batch: Batch) -> int:
        """See `LanguageModel.forward_flops`; at `config.factor`."""
        return self._flops(batch, self.config.factor)[0]

    def training_flops(self, batch: Batch, **settings: object) -> int:
        """See `LanguageModel.training_flops`; at the factor of the step, outside a step at the mean of all."""
        every = range(1, self.config.max_factor + 1)
        factors = every if self.step_seed is None else [1 + self.step_seed % self.config.max_factor]
        return 3 * sum(sum(self._flops(batch, factor)) for factor in factors) // len(factors)

    # -- traces ------------------------------------------------------------------------------------------------------

    def fill(self, traces: list[ThoughtTrace], encoded: CoconutEncoded, real: Tensor) -> None:
        """Add latents: the model's own as Coconut does, and merged ones, each with the tokens that it stands for."""
        super().fill(traces, encoded, real)
        if not isinstance(encoded, ColarEncoded) or encoded.merged is None:
            return
        columns, vectors, before = encoded.merged.columns, encoded.merged.vectors.detach(), encoded.merged.before
        first, count = (values.gather(1, columns.at).tolist() for values in (columns.first, columns.count))
        for row, trace in enumerate(traces):
            for number in range(int(columns.grouped[row].sum())):
                start, nearest = first[row][number], self._nearest(before[row, number])
                end = start + count[row][number]
                trace.thoughts.append(Thought(vectors[row, number], start, end, "latent", nearest=nearest))

    def _decoded(self, encoded: CoconutEncoded) -> list[Tensor]:
        """See `CoconutForCausalLM`: the states before latents, from which the head predicts the tokens of a group."""
        return encoded.states


def _columns_of(values: Tensor, columns: Tensor) -> Tensor:
    """Return [B, m, d], the columns [B, m] of values [B, n, d]."""
    return values.gather(1, columns[..., None].expand(-1, -1, values.shape[2]))
