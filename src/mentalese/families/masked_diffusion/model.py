"""Masked diffusion language models (MDLM, MD4, SEDD absorb) for padded rows, with scores and generation.

`plain.py` has the method: its three papers, the bound, its loss l_i. All predict the token at a position, not the next
token. The first token of a row is never masked, as no other model predicts it either.

Letters in shapes: B rows of N tokens, v the vocabulary, d hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    GradientCheckpointingLayer,
    MaxLengthCriteria,
    StoppingCriteriaList,
    TextStreamer,
)
from transformers import initialization as init

from mentalese.data.batch import Batch, send
from mentalese.errors import InputError, require
from mentalese.families.masked_diffusion.config import NORM_EPS, MaskedDiffusionConfig
from mentalese.models.base import LossOutput
from mentalese.models.cache import ThoughtCache
from mentalese.models.hf import Encoded, LatentThoughtModel, Limits
from mentalese.nn.blocks import ResidualLinear, gated, merge_heads, rotary_heads
from mentalese.nn.loss import IGNORED, linear_cross_entropy, linear_nll
from mentalese.nn.noise import Noise, shared_seed
from mentalese.nn.packing import PackedRows
from mentalese.nn.rotary import rotary_table

_HIGHEST = 0.999  # largest mask probability for SEDD's sigma, which is infinite at 1
_CHUNK = 512  # rows of logits at once
_ANY_ORDER = "masks fall in any order"
FREQUENCIES = 256  # sines and cosines of the time, as in diffusion transformers (Peebles and Xie, 2023)


class Modulation(nn.Linear):
    """A map from the time to shift, scale and gate of a sublayer, initially zero (adaLN-zero)."""


class TimeEmbedding(nn.Module):
    """The embedding of the time that conditions blocks."""

    def __init__(self, config: MaskedDiffusionConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(FREQUENCIES, config.conditioning_size)
        self.out = nn.Linear(config.conditioning_size, config.conditioning_size)

    def forward(self, time: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the embedding [B, conditioning_size] of times [B] in this precision."""
        waves = torch.cat(rotary_table(time, FREQUENCIES), dim=-1).to(dtype)
        return F.silu(self.out(F.silu(self.inner(waves))))


class Block(GradientCheckpointingLayer):
    """Pre-norm bidirectional attention and SwiGLU."""

    def __init__(self, config: MaskedDiffusionConfig) -> None:
        super().__init__()
        d, self.heads = config.hidden_size, config.num_attention_heads
        self.attention_norm = nn.RMSNorm(d, eps=NORM_EPS)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.attention_out = ResidualLinear(d, d, bias=False)
        self.mlp_norm = nn.RMSNorm(d, eps=NORM_EPS)
        self.gate_up = nn.Linear(d, 2 * config.width, bias=False)
        self.mlp_out = ResidualLinear(config.width, d, bias=False)
        self.modulation = Modulation(config.conditioning_size, 6 * d) if config.sees_time else None

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], visible: Tensor | None, time: Tensor | None) -> Tensor:
        """Return the states [B, N, d] after the block.

        `rotary` is for positions [B or 1, 1, N], `visible` bool [B, 1, 1, N], `time` [B, conditioning_size] for models
        that see it.
        """
        if self.modulation is None:
            x = x + self.attend(self.attention_norm(x), rotary, visible)
            return x + self.mlp(self.mlp_norm(x))
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = self.modulation(time)[:, None].chunk(6, dim=-1)
        x = x + gate * self.attend(self.attention_norm(x) * (1 + scale) + shift, rotary, visible)
        return x + gate_mlp * self.mlp(self.mlp_norm(x) * (1 + scale_mlp) + shift_mlp)

    def attend(self, x: Tensor, rotary: tuple[Tensor, Tensor], visible: Tensor | None) -> Tensor:
        out = F.scaled_dot_product_attention(*rotary_heads(self.qkv(x), self.heads, rotary), visible)
        return self.attention_out(merge_heads(out))

    def mlp(self, x: Tensor) -> Tensor:
        return self.mlp_out(gated(self.gate_up(x)))


@dataclass(kw_only=True)
class MaskedEncoded(Encoded):
    """Final hidden states and the positions of masks, bool [B, N]."""

    masked: Tensor


class MaskedDiffusionLM(LatentThoughtModel[MaskedEncoded]):
    """MDLM, MD4 or SEDD absorb; see `MaskedDiffusionConfig.objective`."""

    config_class = MaskedDiffusionConfig
    supports_gradient_checkpointing = True
    lora_targets = ("qkv",)
    causal = False
    forward_options = ("mask_probability",)
    estimators = ("elbo-bound",)

    def __init__(self, config: MaskedDiffusionConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.mask_embed = nn.Embedding(1, config.hidden_size)
        self.time = TimeEmbedding(config) if config.sees_time else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.final_norm = nn.RMSNorm(config.hidden_size, eps=NORM_EPS)
        self.final_modulation = (
            Modulation(config.conditioning_size, 2 * config.hidden_size) if config.sees_time else None
        )
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @property
    def limits(self) -> Limits:
        return Limits(
            cache="a bidirectional model has no cache, since a new token changes the states of all positions",
            static_cache="a bidirectional model has none",
            token_states="it predicts the token at a position, not the next one; trainers of causal models do not fit",
            hidden_states=None,
        )

    def initialize(self, module: nn.Module) -> None:
        super().initialize(module)
        if isinstance(module, Modulation):
            init.zeros_(module.weight)
            init.zeros_(module.bias)

    def tokens(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        """Return the places of rows that are tokens, bool [B, N], or `None` if all are; waits once for a GPU."""
        if attention_mask is None:
            return None
        real = self.real_tokens(input_ids, attention_mask)
        counts = real.sum(1).tolist()
        self.check_rows(counts)
        return real if min(counts) < input_ids.shape[1] else None

    def hidden(
        self,
        input_ids: Tensor,
        real: Tensor | None,
        probability: Tensor | None = None,
        *,
        kept: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the states [B, N, d] from which the head predicts the token at each position of ids with masks.

        `probability` is p(t), [B], by default the share of masks in each row; `kept` receives the input of each block.
        """
        config, masked = self.config, input_ids == self.config.mask_token_id
        positions = torch.arange(masked.shape[1], device=masked.device)[None] if real is None else real.cumsum(1) - 1
        rotary = rotary_table(positions[:, None], config.hidden_size // config.num_attention_heads)
        visible = None if real is None else real[:, None, None]
        mask = self.mask_embed(input_ids.new_zeros(()))
        x = torch.where(masked[..., None], mask, self.embed(input_ids.masked_fill(masked, 0)))
        time = None
        if self.time is not None:
            if probability is None:
                probability = masked.float().mean(1) if real is None else (masked & real).sum(1) / real.sum(1)
            sedd = config.objective == "sedd"
            time = self.time(-torch.log1p(-_HIGHEST * probability) if sedd else 1000 * probability, x.dtype)
        for block in self.blocks:
            if kept is not None:
                kept.append(x)
            x = block(x, rotary, visible, time)
        x = self.final_norm(x)
        if self.final_modulation is not None:
            shift, scale = self.final_modulation(time)[:, None].chunk(2, dim=-1)
            x = x * (1 + scale) + shift
        return x

    # ------------------------------------------------------------------------------------- training and scores

    def _targets(self, batch: Batch) -> tuple[PackedRows, Tensor, Tensor]:
        """Return the places of tokens, and ids and targets [B, N] of rows that begin at their first token.

        Tokens without a label and the first token of a row are not targets and are never masked.
        """
        ids, mask = batch["input_ids"], batch.get("attention_mask")
        rows = PackedRows.unpadded(ids) if mask is None else PackedRows.of(self.real_tokens(ids, mask))
        self.check_rows(rows.on_host)
        return rows, rows.gather(ids), F.pad(rows.targets(batch["labels"]), (1, 0), value=IGNORED)

    def _at_masks(
        self, ids: Tensor, targets: Tensor, real: Tensor | None, masked: Tensor, p: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return hidden states of rows whose targets are partly masked at p [B], and the targets [B, N] at masks."""
        masked = masked & (targets != IGNORED)
        hidden = self.hidden(ids.masked_fill(masked, self.config.mask_token_id), real, p)
        return hidden, targets.masked_fill(~masked, IGNORED)

    def _score_entropy(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the `score_entropy` of hidden states [n, d] and targets [n]; its gradient needs the logits."""
        pieces = zip(hidden.split(_CHUNK), targets.split(_CHUNK))
        return torch.cat([score_entropy(self.lm_head(h), y) for h, y in pieces])

    def training_loss(self, batch: Batch, **settings: object) -> LossOutput:
        """Return the bound at one time per row in nats per target, comparable with the loss of a causal model.

        Times are spread evenly over the rows of the batch, see `training_times`.
        """
        self.refuse(settings)
        rows, ids, targets = self._targets(batch)
        seed = shared_seed()
        times = training_times(len(ids), seed, ids.device)
        count = (targets != IGNORED).sum().float()
        p, weight = schedule(self.config.noise_schedule, times)
        masked = uniform(Noise.of(targets, seed), 0, ids.shape[1]) < p[:, None]
        hidden, masked_targets = self._at_masks(ids, targets, rows.ragged, masked, p)
        masked = masked_targets != IGNORED
        flat, masked_targets = hidden.flatten(0, 1), masked_targets.flatten()
        weights = weight.repeat_interleave(ids.shape[1]) * (masked_targets != IGNORED)
        if self.config.objective == "sedd":
            total = (weights * self._score_entropy(flat, masked_targets)).sum()
        else:
            total = weights.sum() * linear_cross_entropy(flat, self.loss_head(), masked_targets, target_weights=weights)

        def encoded() -> MaskedEncoded:
            return MaskedEncoded(hidden=rows.spread(hidden), masked=rows.spread(masked))

        return LossOutput(total / count.clamp(min=1), count, encoded=encoded)

    @torch.no_grad()
    def token_nll(self, batch: Batch, estimator: str | None = None, *, seed: int = 0) -> Tensor:
        """Return each label's share of the bound in nats, float32 [B, N]; 0 at -100 and at a row's first token.

        Tokens without a label are never masked. The masks of a row depend only on the seed and its labels, so a row has
        the same score in every batch. Instead of times, the numbers m of masks are spread evenly over a row's n labels.
        The integral is the mean over m of n / m times the sum of l, with p the m-th smallest of n uniform numbers. This
        avoids huge weights and needs far fewer passes.
        """
        self.chosen_estimator(estimator)
        times = self.config.score_times
        rows, ids, targets = self._targets(batch)
        noise, counts = Noise.of(targets, seed), (targets != IGNORED).sum(1)
        shift = uniform(noise, times, 1)[:, 0]
        nats, real = torch.zeros(ids.shape, device=ids.device), rows.ragged
        for number in range(times):
            # One number of masks in [1, n] per time; p is the time of the last of these masks.
            masks = 1 + (counts * (number + shift) / times).long().clamp(max=counts - 1).clamp(min=0)
            falls = uniform(noise, number, ids.shape[1]).masked_fill(targets == IGNORED, math.inf)
            p = falls.sort(1).values.gather(1, masks[:, None] - 1)
            hidden, masked_targets = self._at_masks(ids, targets, real, falls <= p, p[:, 0].clamp(max=1))
            at_masks = (masked_targets != IGNORED).flatten().nonzero()[:, 0]
            some, target = hidden.flatten(0, 1)[at_masks], masked_targets.flatten()[at_masks]
            sedd = self.config.objective == "sedd"
            nll = self._score_entropy(some, target) if sedd else linear_nll(some, self.loss_head(), target)
            shares = (counts / masks)[at_masks // ids.shape[1]] * nll / times
            nats.view(-1).index_add_(0, at_masks, shares.to(nats.dtype))
        return rows.spread(nats)

    def scoring_protocol(self, estimator: str) -> dict[str, object]:
        return {"score_times": self.config.score_times}

    def continuation_inputs(self, batch: Batch) -> dict[str, Tensor]:
        """See `LanguageModel.continuation_inputs`: labels are replaced by masks."""
        masked = batch["input_ids"].masked_fill(batch["labels"] != IGNORED, self.config.mask_token_id)
        return {"input_ids": masked, "attention_mask": batch["attention_mask"]}

    # ------------------------------------------------------------------------------------- cost

    def forward_flops(self, batch: Batch) -> int:
        config = self.config
        rows, length = batch["input_ids"].shape
        d, layers, c = config.hidden_size, config.num_hidden_layers, config.conditioning_size
        token = layers * (4 * d * d + 3 * d * config.width + 2 * length * d) + d * config.vocab_size
        time = FREQUENCIES * c + c * c + (6 * layers + 2) * c * d if config.sees_time else 0
        return 2 * rows * (length * token + time)

    def training_flops(self, batch: Batch, **settings: object) -> int:
        """Return the FLOPs of three forward passes; the sines and cosines of the time need no gradient."""
        waves = FREQUENCIES * self.config.conditioning_size if self.config.sees_time else 0
        return 3 * self.forward_flops(batch) - 2 * len(batch["input_ids"]) * waves

    def scoring_flops(self, batch: Batch) -> int:
        """See `LanguageModel.scoring_flops`; each time is one pass."""
        return self.config.score_times * self.forward_flops(batch)

    def compiled_parts(self) -> list[nn.Module]:
        return list(self.blocks)

    # ------------------------------------------------------------------------------------- Hugging Face's side

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cache: ThoughtCache | None = None,
        trace: bool = False,
        output_hidden_states: bool = False,
        mask_probability: Tensor | None = None,
    ) -> MaskedEncoded:
        """Return final hidden states [B, N, d]; a state at a mask (`config.mask_token_id`) predicts the token there.

        `mask_probability` is p(t), [B], for models that see the time, by default the share of masks in each row.
        """
        block_inputs: list[Tensor] | None = [] if output_hidden_states else None
        hidden = self.hidden(input_ids, self.tokens(input_ids, attention_mask), mask_probability, kept=block_inputs)
        states = None if block_inputs is None else (*block_inputs, hidden)
        return MaskedEncoded(hidden=hidden, hidden_states=states, masked=input_ids == self.config.mask_token_id)

    def predictable(self, labels: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
        """Return the labels [B, N]: a state predicts its own token, also the first one."""
        return labels

    def labels_loss(self, encoded: MaskedEncoded, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy of the labels [B, N] at masks; NaN, not a perfect 0, without masks."""
        targets = labels.masked_fill(~encoded.masked, IGNORED).flatten()
        loss = linear_cross_entropy(encoded.hidden.flatten(0, 1), self.loss_head(), targets)
        return loss.masked_fill(~encoded.masked.any(), math.nan)

    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *,
        num_steps: int | None = None,
        streamer: TextStreamer | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Generate by ancestral sampling: replace masks in and after prompts by text (Hugging Face's `generate`).

        `max_new_tokens` masks are appended to each prompt; tokens of the prompt never change. Each mask falls at its
        own time, and its token is drawn given all tokens that are known then, as in MD4, MDLM and, with normalised
        scores, SEDD. Everything after the first end-of-text token after a prompt is padding. Order and tokens follow
        from the prompt and a seed (torch's generator; fixed with `do_sample=False`, which takes the likeliest tokens),
        so padding does not change the text of a row; equal prompts in a batch get different texts.

        Args:
            inputs: [B, L], or `input_ids`, padded on the left, `config.mask_token_id` at tokens to fill in; `None`: the
                beginning of a text.
            num_steps: number of evenly spaced times at which masks may fall (MD4: by the cosine schedule, denser while
                few tokens are known); `None`: one for each of a row's masks. Steps without a falling mask cost nothing.
            streamer: receives the text when it is complete, because it does not grow from left to right.
            kwargs: arguments of Hugging Face's `generate`; `max_new_tokens=0` only fills in the masks of prompts.
                Processors of logits see the text before a position, with padding for its masks. Stopping criteria other
                than length and end of text are checked after each step.

        Returns:
            [B, L + max_new_tokens].

        Raises:
            InputError: beams, stop strings, requested scores, no padding token, no steps, nothing to fill in, or a
                streamer for prompts with masks.
        """
        for source in (kwargs, vars(generation_config or self.generation_config)):
            stops = source.get("stop_strings")
            require(not stops, "stop_strings", stops, f"{_ANY_ORDER}, so remove it")
        inside = kwargs.get("max_new_tokens") == 0  # which transformers rejects
        kwargs |= {"max_new_tokens": 1} if inside else {}
        decode = partial(type(self)._unmask, num_steps=num_steps, streamer=streamer, inside=inside)
        return super().generate(inputs, generation_config, streamer=streamer, custom_generate=decode, **kwargs)

    def _unmask(
        self,
        input_ids: Tensor,
        logits_processor: Callable[[Tensor, Tensor], Tensor],
        stopping_criteria: StoppingCriteriaList,
        generation_config: Any,
        num_steps: int | None,
        streamer: TextStreamer | None,
        inside: bool,
        **kwargs: Any,
    ) -> Tensor:
        attention_mask = kwargs.get("attention_mask")
        mask_id, prompt = self.config.mask_token_id, input_ids.shape[1]
        length, pad = 0 if inside else generation_config.max_length - prompt, generation_config._pad_token_tensor
        require(generation_config.num_beams == 1, "num_beams", generation_config.num_beams, f"{_ANY_ORDER}, so set 1")
        returns_dict = generation_config.return_dict_in_generate
        require(not returns_dict, "return_dict_in_generate", returns_dict, "this model only returns tokens, remove it")
        require(pad is not None, "pad_token_id", None, "what follows the end of a text is padding, so set one")
        require(num_steps is None or num_steps >= 1, "num_steps", num_steps, "set 1 or more")
        text = F.pad(input_ids, (0, length), value=mask_id)
        unknown = (text == mask_id).cpu()  # on the host, so that no step waits for the GPU
        require(bool(unknown.any()), "max_new_tokens", 0, "no prompt contains a mask, so set 1 or more")
        if streamer is not None and unknown[:, :prompt].any():
            raise InputError("streamer is set and a prompt contains masks: it only shows new text, so remove it")
        sample = generation_config.do_sample
        seed = int(torch.randint(2**62, ())) if sample else 0  # local, because a single rank may generate
        noise = _prompt_noise(input_ids, attention_mask, seed)
        # Masks inside a prompt are numbered from its end, so that padding before it has no effect.
        falls, chance = (
            torch.cat((uniform(noise, 2 + number, prompt).flip(1), uniform(noise, number, length)), dim=1)
            for number in (0, 1)
        )
        falls = falls.cpu()
        real = self.tokens(text, None if attention_mask is None else F.pad(attention_mask, (0, length), value=1))
        halts = [c for c in stopping_criteria if not isinstance(c, MaxLengthCriteria | EosTokenCriteria)]
        kind = "cosine" if self.config.objective == "md4" else self.config.noise_schedule
        steps = unknown.sum(1).tolist() if num_steps is None else [num_steps] * len(text)
        # [most steps + 1, B], from 1 to 0 in the steps of each row; later times are 0.
        times = nn.utils.rnn.pad_sequence([torch.linspace(1, 0, number + 1) for number in steps])
        times = schedule(kind, times)[0]
        for now, later in pairwise(times):
            falling = unknown & (falls >= later[:, None])
            if not falling.any():
                continue
            unknown &= ~falling
            hidden = self.hidden(text, real, send(now, text.device))
            for column in falling.any(0).nonzero()[:, 0].tolist():
                rows = send(falling[:, column].nonzero()[:, 0], text.device)
                before = text[:, :column]
                scores = hidden.new_zeros(len(text), self.config.vocab_size, dtype=torch.float32)
                scores[rows] = self.lm_head(hidden[rows, column]).float()
                # Scores of all rows, because some processors keep a state per row.
                scores = logits_processor(before.masked_fill(before == mask_id, pad), scores)[rows]
                text[rows, column] = _drawn(scores, chance[rows, column]) if sample else scores.argmax(-1)
            if any(bool(torch.all(halt(text.masked_fill(text == mask_id, pad), None))) for halt in halts):
                break
        text[text == mask_id] = pad
        new, ends = text[:, prompt:], generation_config._eos_token_tensor
        if ends is not None:
            end = torch.isin(new, ends)
            new[end.cumsum(1) > end] = pad
        if streamer is not None:
            streamer.put(new.cpu())
            streamer.end()
        return text


def _prompt_noise(prompts: Tensor, attention_mask: Tensor | None, seed: int) -> Noise:
    """Return the noise of prompts [B, L], independent of padding on the left; equal prompts differ by their order."""
    if attention_mask is not None:
        prompts = prompts.masked_fill(attention_mask == 0, IGNORED)
    prompts = prompts.flip(1)
    again = (prompts[:, None] == prompts).all(-1).tril(-1).sum(1)
    return Noise.of(torch.cat((again[:, None], prompts), dim=1), seed)


def _drawn(scores: Tensor, chance: Tensor) -> Tensor:
    """Draw a token [n] from each row of logits [n, v]: the inverse cumulative sum at uniform numbers [n]."""
    sums = scores.softmax(-1).cumsum(-1)
    return torch.searchsorted(sums, chance[:, None] * sums[:, -1:])[:, 0]  # in float32 they end near 1


def schedule(kind: str, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return p(t) and p'(t) / p(t) of times in (0, 1]; see `MaskedDiffusionConfig.noise_schedule`.

    p(1) is 1. The releases of MDLM and SEDD use 0.999 t, the release of MD4 goes from 0.0001 to 0.9999.
    """
    if kind == "cosine":
        angle = 0.5 * math.pi * t
        return angle.sin(), 0.5 * math.pi / angle.tan()
    return t, 1 / t


def score_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return SEDD's l [n] for logits f [n, v] and targets [n]; 0 where a target is -100.

    With c = log sum_y q_y, l is the cross-entropy plus exp(c) - 1 - c, which is 0 for scores that sum to one.
    """
    logits = logits.float()
    total = logits.logsumexp(-1)
    c = total - math.log(logits.shape[-1])
    nll = total - logits.gather(-1, targets.clamp(min=0)[:, None])[:, 0]
    return torch.where(targets == IGNORED, 0.0, nll + c.expm1() - c)


def uniform(noise: Noise, number: int, size: int) -> Tensor:
    """Return uniform numbers in (0, 1], float32 [B, size]."""
    return torch.special.ndtr(noise.draw(number, (size,)))


def training_times(rows: int, seed: int, device: torch.device) -> Tensor:
    """Return times [rows], spread evenly over [0, 1] across the rows of all ranks (Kingma et al., 2021).

    One random shift moves all of them around the circle, so the time of each row is uniform.
    """
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)
    shift = (seed % 2**24 + 0.5) / 2**24  # never 0, where weights are infinite
    times = [(shift + (rank + ranks * row) / (rows * ranks)) % 1 for row in range(rows)]
    return send(torch.tensor(times), device)
