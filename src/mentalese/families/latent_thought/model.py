"""Latent Thought Models (Kong et al., "Latent Thought Models with Variational Bayes Inference-Time Computation").

A decoder with a short window whose layers also attend to thoughts z: one set of vectors a layer, of one text, with the
prior N(0, I). Nothing predicts z; a posterior over the thoughts of each text is found by gradient steps on its ELBO
(`inference.py`, fast learning), and the weights then learn from the text given such thoughts (slow learning).

Without thoughts `forward` takes the prior mean, zero, to which cross-attention adds nothing. A perplexity is a bound,
exp of the negative ELBO a token: z is inferred from the very text that is scored, and the KL term is what that costs.

Sections and equations are the paper's. Letters in shapes: B rows of N tokens, n thoughts a layer, N_z in all, d hidden
size. Rows are packed: they begin at their first token, wherever padding was.
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
from mentalese.families.latent_thought.config import LTMConfig
from mentalese.families.latent_thought.inference import (
    Posterior,
    amortised,
    check_finite,
    differentiable,
    fit,
    infer,
)
from mentalese.models.contract import LossOutput
from mentalese.models.hf import CausalLMOutputWithThoughts, Encoded, LatentThoughtModel, ResidualLinear, ThoughtCache
from mentalese.models.trace import Shown, Thought, ThoughtTrace
from mentalese.nn.loss import IGNORED, linear_cross_entropy, linear_nll, linear_nll_sum
from mentalese.nn.noise import shared_seed
from mentalese.nn.rotary import rotary_table, rotate
from mentalese.nn.window import window_attention, window_mask, window_pairs

# ------------------------------------------------------------------------------------------------------------ the rows


@dataclass
class PackedBatch:
    """What all blocks of a pass share, and where its tokens were.

    Attributes:
        ids: [B, N], the tokens.
        columns: [B, N], where each token lay in its row; `None`: there is no padding.
        lengths: [B], tokens a row.
        width: columns of the batch.
        rotary: cosines and sines of tokens [1 or B, 1, N, d_h / 2].
        latent_rotary: those of a layer's thoughts [n, d_h / 2].
        window: see `window_mask`.
        past: of a pass that goes on from a cache.
    """

    ids: Tensor
    columns: Tensor | None
    lengths: Tensor
    width: int
    rotary: tuple[Tensor, Tensor]
    latent_rotary: tuple[Tensor, Tensor]
    window: Tensor | None
    past: Past | None

    def spread(self, values: Tensor) -> Tensor:
        """Values of tokens [B, N, ..] where the tokens lay, zero at padding: [B, width, ..]."""
        if self.columns is None:
            return values
        shape = (*self.columns.shape, *(1,) * (values.ndim - 2))
        real = torch.arange(values.shape[1], device=values.device) < self.lengths[:, None]
        out = values.new_zeros(len(values), self.width, *values.shape[2:])
        index = self.columns.view(shape).expand_as(values)
        return out.scatter_add(1, index, values * real.view(shape).to(values.dtype))

    def targets(self, labels: Tensor) -> Tensor:
        """What each token but the last predicts, of labels [B, width]: [B, N - 1], -100 where nothing counts."""
        if self.columns is not None:
            real = torch.arange(self.columns.shape[1], device=labels.device) < self.lengths[:, None]
            labels = labels.gather(1, self.columns).masked_fill(~real, IGNORED)
        return labels[:, 1:]


@dataclass
class Past:
    """A cache in use. Keys and values lie in `window_size` slots, position p in slot p modulo that.

    Attributes:
        state: the cache's: `k.LAYER`, `v.LAYER` [B, heads, window, d_h], `zk.LAYER`, `zv.LAYER` [B, heads, n, d_h].
        newest: [B, window], the new token that a slot takes; negative: the slot keeps what it has.
        visible: bool [B, 1, N, m], for the keys of `attend`; `None`: nothing came before.
    """

    state: dict[str, Tensor]
    newest: Tensor
    visible: Tensor | None

    def keep(self, name: str, new: Tensor) -> Tensor:
        """Puts new keys or values [B, heads, N, d_h] into their slots; what queries read, [B, heads, m, d_h]."""
        index = self.newest[:, None, :, None]
        held = self.state.get(name, new.new_zeros(()))
        slots = new.gather(2, index.clamp(min=0).expand(*new.shape[:2], -1, new.shape[3]))
        self.state[name] = torch.where(index >= 0, slots, held)
        if self.visible is None:
            return new
        # One token takes the slot of the one that has just left its window; several still need those.
        return self.state[name] if new.shape[2] == 1 else torch.cat((held, new), dim=2)


def slot_positions(count: Tensor, window: int) -> Tensor:
    """[B, window], the position that each slot holds when `count` [B, 1] tokens were read; negative: none."""
    last = count - 1
    return last - (last - torch.arange(window, device=count.device)) % window


# --------------------------------------------------------------------------------------------------------- the modules


class SelfAttention(nn.Module):
    """Rotary attention to the last `window_size` tokens."""

    def __init__(self, config: LTMConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.window = layer, config.num_attention_heads, config.window_size
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.out = ResidualLinear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, reading: PackedBatch) -> Tensor:
        """[B, N, d] to [B, N, d]."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = rotate(q, *reading.rotary), rotate(k, *reading.rotary)
        past = reading.past
        if past is not None:
            k, v = past.keep(f"k.{self.layer}", k), past.keep(f"v.{self.layer}", v)
        if past is None or past.visible is None:
            out = window_attention(q, k, v, self.window, mask=reading.window)
        else:
            out = F.scaled_dot_product_attention(q, k, v, past.visible)
        return self.out(out.transpose(1, 2).flatten(2))


class CrossAttention(nn.Module):
    """Attention to all of a layer's thoughts, whose keys and values are made of z as it is."""

    def __init__(self, config: LTMConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads = layer, config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.key_value = nn.Linear(config.hidden_size, 2 * config.hidden_size, bias=False)
        self.out = ResidualLinear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, z: Tensor, reading: PackedBatch) -> Tensor:
        """[B, N, d] and thoughts [B, n, d] to [B, N, d]; with a cache the thoughts of its first call stay."""
        q = rotate(self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2), *reading.rotary)
        state = {} if reading.past is None else reading.past.state
        names = f"zk.{self.layer}", f"zv.{self.layer}"
        if names[0] not in state:
            k, v = self.key_value(z).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
            state |= dict(zip(names, (rotate(k, *reading.latent_rotary), v)))
        out = F.scaled_dot_product_attention(q, state[names[0]], state[names[1]])
        return self.out(out.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    def __init__(self, config: LTMConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.width, bias=False)
        self.out = ResidualLinear(config.width, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.out(F.silu(gate) * up)


class Block(nn.Module):
    """Self-attention, cross-attention to thoughts, SwiGLU, each behind its norm and added to the stream."""

    def __init__(self, config: LTMConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.attention = SelfAttention(config, layer)
        self.thinks = config.num_latents > 0
        if self.thinks:
            self.cross_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
            self.cross_attention = CrossAttention(config, layer)
        self.mlp_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = SwiGLU(config)

    def forward(
        self, x: Tensor, z: Tensor | None, reading: PackedBatch, *, before_z: bool = True, after: bool = True
    ) -> Tensor:
        """[B, N, d] to [B, N, d].

        Args:
            z: [B, n, d]; `None`: a model without thoughts, or a pass that ends before them.
            before_z: run the self-attention; else x has been through it.
            after: run what comes after it.
        """
        if before_z:
            x = x + self.attention(self.attention_norm(x), reading)
        if not after:
            return x
        if self.thinks:
            x = x + self.cross_attention(self.cross_norm(x), z, reading)
        return x + self.mlp(self.mlp_norm(x))


class EncoderBlock(nn.Module):
    """Self-attention in both directions and SwiGLU, each behind its norm and added to the stream."""

    def __init__(self, config: LTMConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.attention_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.out = ResidualLinear(config.hidden_size, config.hidden_size, bias=False)
        self.mlp_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = SwiGLU(config)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], seen: Tensor | None) -> Tensor:
        """[B, m, d] to [B, m, d]; seen: bool [B, 1, 1, m], `None`: all."""
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        out = F.scaled_dot_product_attention(rotate(q, *rotary), rotate(k, *rotary), v, seen)
        x = x + self.out(out.transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_norm(x))


class Encoder(nn.Module):
    """The inference model of a VAE (section 2.2, table 4): a learned query a thought reads the text along with it.

    Queries stand at the positions of their thoughts. Tokens are embedded as for the decoder.
    """

    def __init__(self, config: LTMConfig) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.empty(config.num_latents, config.hidden_size))
        self.blocks = nn.ModuleList(EncoderBlock(config) for _ in range(config.encoder_layers))
        self.final_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.posterior = nn.Linear(config.hidden_size, 2 * config.hidden_size, bias=False)

    def forward(self, tokens: Tensor, read: Tensor, reading: PackedBatch) -> tuple[Tensor, Tensor]:
        """Means and log variances [B, N_z, d], of embedded tokens [B, N, d].

        Args:
            read: bool [B, N], the tokens that have a say.
        """
        count = len(self.queries)
        x = torch.cat((self.queries.to(tokens.dtype).expand(len(tokens), -1, -1), tokens), dim=1)
        seen = None if bool(read.all()) else F.pad(read, (count, 0), value=True)[:, None, None]
        layers = count // len(reading.latent_rotary[0])
        rotary = [torch.cat((z.repeat(layers, 1), x[0, 0])) for z, x in zip(reading.latent_rotary, reading.rotary)]
        for block in self.blocks:
            x = block(x, (rotary[0], rotary[1]), seen)
        mu, log_var = self.posterior(self.final_norm(x[:, :count])).chunk(2, dim=-1)
        return mu, log_var


# ----------------------------------------------------------------------------------------------------------- the model


@dataclass
class LTMOutput(CausalLMOutputWithThoughts):
    """`z_given`: whether logits are given thoughts that the caller (or the cache) brought, or the prior mean."""

    z_given: bool | None = None


@dataclass(kw_only=True)
class LTMEncoded(Encoded):
    """Final hidden states where the tokens are (`hidden`) and packed.

    Attributes:
        packed: [B, N, d].
        z: the thoughts that they are given.
        z_given: see `LTMOutput`.
        posterior: that `z` is the mean of, if it was inferred.
        explained: for a trace, the same given thoughts inferred from the text.
    """

    packed: Tensor
    reading: PackedBatch
    z: Tensor | None
    z_given: bool
    posterior: Posterior | None = None
    explained: LTMEncoded | None = None


@dataclass
class Reinference:
    """How `generate` goes on to infer thoughts: after `every` tokens behind the `prompt` columns of all rows.

    Attributes:
        seeds: int64 [prompts].
    """

    every: int
    prompt: int
    fast_steps: int | None
    seeds: Tensor

    def due(self, width: int) -> int:
        """The columns, of so many, that thoughts are to be inferred from; 0: those from the prompt stay."""
        new = width - self.prompt
        return width - new % self.every if new >= self.every else 0


class LTMForCausalLM(LatentThoughtModel):
    """A Latent Thought Model; with `num_latents` = 0 the same decoder without thoughts."""

    config_class = LTMConfig
    inner_gradients = True
    forward_options = ("z", "fast_steps")
    about_thoughts = (
        "Vectors for each block, inferred from this very text: surprisal is what the text costs once they are known, "
        "and the KL what they cost themselves."
    )
    shown = {  # noqa: RUF012 (nothing writes to it)
        "surprisal": Shown(
            "surprisal", "What the token cost given thoughts inferred from the whole text: no likelihood.", "nats"
        ),
        "predicted": Shown(
            "the likeliest next token", "What was expected most, given the thoughts and the text before it."
        ),
        "elbo": Shown("ELBO", "The bound that inference raises, of the whole text.", "nats", "step"),
        "nll": Shown("negative log-likelihood", "Of the whole text under a draw of the thoughts.", "nats", "step"),
        "kl": Shown("KL from the prior", "What the thoughts cost.", "nats", "step"),
        "kl_by_layer": Shown("KL by block", "What the thoughts of each block cost after inference.", "nats", "layer"),
    }
    _tied_weights_keys = {"lm_head.weight": "embed.weight"}  # noqa: RUF012 (transformers' own attribute)

    def __init__(self, config: LTMConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.final_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.encoder = Encoder(config) if config.inference == "amortised" else None
        self.post_init()

    @property
    def shard_blocks(self) -> bool:  # type: ignore[override]
        """See `Contract`; gradients of all weights are taken in the middle of a step, when all must be there."""
        return self.config.slow_grad != "accumulate"

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, Encoder):
            init.normal_(module.queries, std=self.config.initializer_range)

    def new_cache(self) -> ThoughtCache:
        return ThoughtCache()

    # ------------------------------------------------------------------------------------- the decoder

    def read(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, cache: ThoughtCache | None = None
    ) -> tuple[Tensor, PackedBatch]:
        """All that does not depend on thoughts: the stream [B, N, d] behind the first self-attention, and its reading.

        Raises:
            InputError: a mask of another width, or a row of padding alone.
        """
        config, device = self.config, input_ids.device
        width = input_ids.shape[1]
        columns, lengths = self._pack(input_ids, attention_mask, cache)
        if columns is not None:
            input_ids = input_ids.gather(1, columns)
        length = input_ids.shape[1]
        places = torch.arange(length, device=device)[None]
        past = None
        if cache is not None:
            window = config.window_size
            before = cache.state.get("tokens", torch.zeros_like(lengths[:, None]))
            after = before + lengths[:, None]
            visible = None
            places = before + places
            if cache.seen_tokens:
                held = slot_positions(after if length == 1 else before, window)
                keys = held if length == 1 else torch.cat((held, places), dim=1)
                ago = places[:, :, None] - keys[:, None]
                itself = torch.arange(keys.shape[1], device=device) == 0  # padding sees something: no row is empty
                visible = ((keys[:, None] >= 0) & (ago >= 0) & (ago < window)) | (
                    itself & (lengths == 0)[:, None, None]
                )
                visible = visible[:, None]
            past = Past(cache.state, slot_positions(after, window) - before, visible)
            cache.state["tokens"] = after
            cache.seen_tokens += width
        head = config.hidden_size // config.num_attention_heads
        apart = config.max_position_embeddings // max(config.num_latents, 1)
        latents = apart * torch.arange(config.latents_per_layer, device=device)
        reading = PackedBatch(
            ids=input_ids,
            columns=columns,
            lengths=lengths,
            width=width,
            rotary=rotary_table(places[:, None], head, config.rope_theta),
            latent_rotary=rotary_table(latents, head, config.rope_theta),
            window=window_mask(length, config.window_size, device=device),
            past=past,
        )
        return self.blocks[0](self.embed(input_ids), None, reading, after=False), reading

    def _pack(
        self, input_ids: Tensor, attention_mask: Tensor | None, cache: ThoughtCache | None
    ) -> tuple[Tensor | None, Tensor]:
        """`columns` and `lengths` of `PackedBatch`."""
        rows, width = input_ids.shape
        if attention_mask is not None:
            real = self.real_tokens(input_ids, attention_mask, cache)
            if cache is None or not cache.seen_tokens:
                self.check_rows(real)
            lengths = real.sum(1)
            if not bool(real.all()):
                order = (~real).to(torch.uint8).sort(dim=1, stable=True).indices
                return order[:, : max(int(lengths.max()), 1)], lengths
        return None, torch.full((rows,), width, device=input_ids.device)

    def decode(self, x: Tensor, z: Tensor | None, reading: PackedBatch) -> Tensor:
        """The stream of `read` [B, N, d] and thoughts [B, N_z, d] to what the head reads, [B, N, d].

        Thoughts are layer-major; `None` is the prior mean.
        """
        config = self.config
        if z is None and config.num_latents:
            z = x.new_zeros(len(x), config.num_latents, config.hidden_size)
        n = config.latents_per_layer
        z = z if z is None else z.to(x.dtype)
        for layer, block in enumerate(self.blocks):
            own = z if z is None or config.shared_latents else z[:, layer * n : (layer + 1) * n]
            x = block(x, own, reading, before_z=layer > 0)
        return self.final_norm(x)

    def check_z(self, z: Tensor | None, rows: int) -> Tensor | None:
        """Thoughts given from outside; raises `InputError` where they have another shape than [rows, N_z, d]."""
        config = self.config
        shape = (rows, config.num_latents, config.hidden_size)
        if z is not None and (z.shape != shape or not config.num_latents):
            wanted = f"give {list(shape)}" if config.num_latents else "this model has no thoughts (num_latents is 0)"
            raise InputError(f"z has the shape {list(z.shape)}: {wanted}")
        return z

    # ------------------------------------------------------------------------------------- training

    def final_hidden_states(self, batch: Batch) -> Tensor:
        """[B, width, d] under the thoughts in `batch["z"]`, else under the prior mean; zero at padding."""
        x, reading = self.read(batch["input_ids"], batch.get("attention_mask"))
        return reading.spread(self.decode(x, self.check_z(batch.get("z"), len(x)), reading))

    def training_loss(self, batch: Batch, **settings: Any) -> LossOutput:
        """Algorithm 1: fast learning of the batch's thoughts, then the mean cross-entropy under a draw of them.

        With `slow_grad="accumulate"` the loss has the same value, and its gradient is that plus what each fast step's
        negative ELBO gives the weights: sums over a row's targets, mean over rows, summed over steps.

        With `inference="amortised"` one pass: the negative ELBO a target, under a draw from the encoder's posterior.

        Args:
            batch: see `Batch`.
            settings: `fast_learning_rate`, in place of the config's; `kl_weight` of an encoder's ELBO, 1 by default.

        Raises:
            FloatingPointError: an ELBO is not finite; the message names step and row.
        """
        config = self.config
        if not config.num_latents:
            return super().training_loss(batch, **settings)
        if self.encoder is not None:
            return self._amortised_loss(batch, **settings)
        rate = settings.pop("fast_learning_rate", None)
        self.target_weights(batch, **settings)
        x, reading = self.read(batch["input_ids"], batch.get("attention_mask"))
        targets = reading.targets(batch["labels"])
        weights = list(self.parameters()) if config.slow_grad == "accumulate" else None
        posterior, gradients = fit(
            self,
            x,
            reading,
            targets,
            learning_rate=rate,
            seed=shared_seed(),
            weights=weights,
            together=True,
        )
        hidden = self.decode(x, posterior.sample(), reading)
        loss = linear_cross_entropy(hidden[:, :-1].flatten(0, 1), self.output_weight(), targets.flatten())
        nll = loss.detach()
        if weights is not None:
            pairs = [(p, g) for p, g in zip((x, *weights), gradients) if g is not None]
            accumulated = sum(((p * g).sum() for p, g in pairs), x.new_zeros(())) / len(x)
            loss = loss + (accumulated - accumulated.detach())
        weight = (targets != IGNORED).sum().float()
        return LossOutput(loss, weight, {"nll": nll} | self._metrics(posterior, nll, weight.clamp(min=1)))

    def _amortised_loss(self, batch: Batch, kl_weight: float = 1.0, **settings: Any) -> LossOutput:
        """Eq. 5 under the encoder's posterior, reparametrised, with a weight of the KL that a phase may anneal."""
        self.target_weights(batch, **settings)
        if not (math.isfinite(kl_weight) and kl_weight >= 0):
            raise InputError(f"phases.model.kl_weight is {kl_weight}: give a number of 0 or more")
        x, reading = self.read(batch["input_ids"], batch.get("attention_mask"))
        targets = reading.targets(batch["labels"])
        posterior = amortised(self, reading, targets, seed=shared_seed())
        hidden = self.decode(x, posterior.sample(), reading)
        total, nll = linear_nll_sum(hidden[:, :-1].flatten(0, 1), self.output_weight(), targets.flatten())
        kl = posterior.kl_by_layer(1)[:, 0]
        check_finite(-(nll.view(targets.shape).sum(1) + kl.detach()), "optimizer.learning_rate")
        weight = (targets != IGNORED).sum().float()
        count = weight.clamp(min=1)
        loss = (total + kl_weight * kl.sum()) / count
        nll = total.detach() / count
        return LossOutput(loss, weight, {"nll": nll} | self._metrics(posterior, nll, count))

    @torch.no_grad()
    def _metrics(self, posterior: Posterior, nll: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Nats a target, and the share of channels of thoughts whose means differ between rows."""
        active = (posterior.mu.var(0, unbiased=False) > 0.01).float().mean()
        metrics = {"active_units": active}
        if posterior.log_var is None:
            return metrics
        layers = posterior.kl_by_layer(1 if self.config.shared_latents else self.config.num_hidden_layers)
        kl = layers.sum(0) / targets
        metrics |= {"kl": kl.sum(), "elbo": -(nll + kl.sum())}
        return metrics | {f"kl.layer_{layer}": value for layer, value in enumerate(kl)}

    # ------------------------------------------------------------------------------------- scores

    @property
    def estimators(self) -> tuple[str, ...]:  # type: ignore[override]
        """How thoughts are found for a row whose labels are scored; `exact`: there are none, and with `prefix` they
        are not looked for, but the same tokens are scored.

        `elbo-bound`: from the labels themselves. The KL of the thoughts, spread evenly over the row's labels, is what
        that costs; the sum is the negative ELBO, a bound.
        `prefix`: from all before the second half of the labels, which alone is scored: an ordinary prediction.
        `context`: from the tokens before the first label; where there are none, thoughts are a draw from the prior.
        """
        return ("elbo-bound", "prefix", "context") if self.config.num_latents else ("exact", "prefix")

    @property
    def continuation_estimator(self) -> str | None:  # type: ignore[override]
        return "context" if self.config.num_latents else None

    def scoring_protocol(self, estimator: str) -> dict[str, Any]:
        """See `Contract.scoring_protocol`."""
        config = self.config
        if not config.num_latents:
            return {}
        steps = ("fast_steps", "fast_learning_rate", "fast_schedule", "fast_optimizer", "noise")
        names = ("num_latents", *(steps if self.encoder is None else ("encoder_layers",)))
        return {"inference": {name: getattr(config, name) for name in names}}

    def scored_labels(self, batch: Batch, estimator: str) -> Tensor:
        """See `Contract.scored_labels`, and `estimators`; labels of a row's first token never count."""
        labels, mask = batch["labels"], batch.get("attention_mask")
        real = torch.ones_like(labels) if mask is None else mask
        labels = labels.masked_fill((real == 0) | (real.cumsum(1) == 1), IGNORED)
        if estimator != "prefix":
            return labels
        counted = labels != IGNORED
        return labels.masked_fill(counted.cumsum(1) <= counted.sum(1, keepdim=True) // 2, IGNORED)

    @torch.no_grad()
    def token_nll(
        self, batch: Batch, estimator: str | None = None, *, fast_steps: int | None = None, seed: int = 0
    ) -> Tensor:
        """See `Contract.token_nll`; the arguments are those of `nll_parts`."""
        parts = self.nll_parts(batch, estimator, fast_steps=fast_steps, seed=seed)
        return torch.stack([*parts.values()]).sum(0)

    @torch.inference_mode(False)
    @torch.no_grad()
    def nll_parts(  # type: ignore[override]
        self, batch: Batch, estimator: str | None = None, *, fast_steps: int | None = None, seed: int = 0
    ) -> dict[str, Tensor]:
        """`nll` of each label, and of a bound its share of the row's `kl`; inference is Algorithm 1, or the encoder's.

        Args:
            estimator: one of `estimators`.
            fast_steps: T_fast, in place of the config's.
            seed: of the noise; with the same seed a row has the same score in every batch.
        """
        estimator = estimator or self.estimators[0]
        if estimator not in self.estimators:
            raise InputError(f"estimator is {estimator!r}: this model has {', '.join(self.estimators)}")
        if not self.config.num_latents:
            return {"nll": super().token_nll(batch | {"labels": self.scored_labels(batch, estimator)})}
        batch = differentiable(batch)
        x, reading = self.read(batch["input_ids"], batch.get("attention_mask"))
        labels = self.scored_labels(batch, estimator)
        targets = evidence = reading.targets(labels)
        if estimator != "elbo-bound":
            evidence = reading.targets(self._given(batch, labels))
        posterior, _ = fit(self, x, reading, evidence, method=self.config.scoring, steps=fast_steps, seed=seed)
        z = posterior.sample(fresh=estimator == "elbo-bound")
        parts = {"nll": self._nll(self.decode(x, z, reading), targets)}
        if estimator == "elbo-bound":
            counted = targets != IGNORED
            parts["kl"] = posterior.kl_by_layer(1) / counted.sum(1, keepdim=True).clamp(min=1) * counted
        return {name: reading.spread(F.pad(nats, (1, 0))) for name, nats in parts.items()}

    @staticmethod
    def _given(batch: Batch, labels: Tensor) -> Tensor:
        """The tokens [B, width] before the first that is scored, as labels to infer thoughts from; padding is -100 too.

        What stands behind it and is not scored (ends of documents, markers) was predicted from tokens that are.
        """
        mask = batch.get("attention_mask")
        begun = (labels != IGNORED).cumsum(1) > 0
        return batch["input_ids"].masked_fill(begun if mask is None else begun | (mask == 0), IGNORED)

    def continuation_inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Thoughts too, inferred as by the estimator `context`."""
        inputs = super().continuation_inputs(batch)
        if not self.config.num_latents:
            return inputs
        given = self._given(batch, self.scored_labels(batch, "context"))
        posterior = infer(self, batch | {"labels": given}, inference=self.config.scoring)
        return inputs | {"z": posterior.sample()}

    def _nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """[B, N - 1] nats."""
        nll = linear_nll(hidden[:, :-1].flatten(0, 1), self.output_weight(), targets.flatten())
        return nll.view(targets.shape)

    # ------------------------------------------------------------------------------------- cost

    def _flops(self, batch: Batch) -> tuple[int, int, int, int]:
        """Multiply-adds of the first self-attention, of all else, of attention in each, for one pass over a batch."""
        config = self.config
        rows, width = batch["input_ids"].shape
        mask = batch.get("attention_mask")
        length = width if mask is None else int(mask.sum(1).max())
        d, n, layers = config.hidden_size, config.latents_per_layer, config.num_hidden_layers
        pairs = 2 * d * window_pairs(length, config.window_size)
        first = 4 * d * d * length + pairs
        attention = (layers - 1) * pairs + layers * 2 * d * n * length
        cross = (2 * length + 2 * n) * d * d if config.num_latents else 0
        rest = (layers - 1) * 4 * d * d * length + layers * (cross + 3 * d * config.width * length)
        rest += attention + width * d * config.vocab_size
        return rows * first, rows * rest, rows * pairs, rows * attention

    def _encoder_flops(self, batch: Batch) -> int:
        """Multiply-adds of the encoder for one pass over a batch."""
        config = self.config
        if self.encoder is None:
            return 0
        rows, width = batch["input_ids"].shape
        mask = batch.get("attention_mask")
        d, n = config.hidden_size, config.num_latents
        length = n + (width if mask is None else int(mask.sum(1).max()))
        block = 4 * d * d * length + 2 * d * length**2 + 3 * d * config.width * length
        return rows * (config.encoder_layers * block + 2 * d * d * n)

    def forward_flops(self, batch: Batch) -> int:
        """See `Contract.forward_flops`; thoughts are given."""
        first, rest, _, _ = self._flops(batch)
        return 2 * (first + rest)

    def training_flops(self, batch: Batch, **settings: Any) -> int:
        """T_fast passes with gradients of activations alone, and one with those of weights too; with an encoder the
        latter alone, through the encoder as well. With `slow_grad="accumulate"` all are of the second kind.

        Gradients of activations cost a pass, and attention once more. The paper counts (T_fast + 1) whole steps.
        """
        first, rest, _, attention = self._flops(batch)
        if not self.config.num_latents or self.encoder is not None:
            return 6 * (first + rest + self._encoder_flops(batch))
        fast = 3 * rest if self.config.slow_grad == "accumulate" else 2 * rest + attention
        return self.config.fast_steps * 2 * fast + 6 * (first + rest)

    def compiled_parts(self) -> list[nn.Module]:
        """The blocks: what runs them a number of times is not traced."""
        return [*self.blocks, *([] if self.encoder is None else self.encoder.blocks)]

    # ------------------------------------------------------------------------------------- Hugging Face's side

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cache: ThoughtCache | None = None,
        trace: bool = False,
        z: Tensor | None = None,
        fast_steps: int | None = None,
    ) -> LTMEncoded:
        """Final hidden states [B, L, d] given thoughts, zero at padding; without them under the prior mean, zero.

        It never infers thoughts, which would read the text it predicts: see `infer`, `token_nll`, `generate`.

        Args:
            trace: also keep thoughts for `fill`: `z`, or those inferred from the whole row.
            z: [B, N_z, d], layer-major; a cache keeps what its first call was given.
            fast_steps: T_fast of a trace's inference, in place of the config's.

        Raises:
            InputError: z of another shape, or steps when nothing is to be inferred.
        """
        z = self.check_z(z, len(input_ids))
        if fast_steps is not None and not (trace and z is None and self.config.num_latents):
            raise InputError(f"fast_steps is {fast_steps}, and nothing is to be inferred: remove it")
        x, reading = self.read(input_ids, attention_mask, cache)
        given = z is not None
        if cache is not None:  # what the first call had is what its thoughts' keys and values are made of
            held = cache.state.setdefault("z_given", torch.full((len(x),), given, device=x.device))
            given = bool(held.all())
        packed = self.decode(x, z, reading)
        encoded = LTMEncoded(hidden=reading.spread(packed), packed=packed, reading=reading, z=z, z_given=given)
        if trace and self.config.num_latents and z is None:
            batch = prompt_batch(input_ids, attention_mask)
            posterior = infer(self, batch, inference=self.config.scoring, fast_steps=fast_steps)
            encoded.explained = self.encode(input_ids, attention_mask, z=posterior.mu)
            encoded.explained.posterior = posterior
        return encoded

    def labels_loss(self, encoded: LTMEncoded, labels: Tensor) -> Tensor:
        """See `LatentThoughtModel.labels_loss`; padding between tokens is no gap."""
        targets = encoded.reading.targets(labels).flatten()
        return linear_cross_entropy(encoded.packed[:, :-1].flatten(0, 1), self.output_weight(), targets)

    def output(self, encoded: LTMEncoded, **fields: Any) -> LTMOutput:
        return LTMOutput(**fields, z_given=encoded.z_given)

    def trace(self, input_ids: Tensor, attention_mask: Tensor | None, encoded: LTMEncoded) -> list[ThoughtTrace]:
        """See `LatentThoughtModel.trace`; scores are under the thoughts that explain the text."""
        return super().trace(input_ids, attention_mask, encoded.explained or encoded)

    def fill(self, traces: list[ThoughtTrace], encoded: LTMEncoded, real: Tensor) -> None:
        """A row's thoughts, each of the whole row, and what inference did.

        `elbo`, `nll` and `kl` are nats of the row by fast step, if there are such steps, `kl_by_layer` those at the
        end. Readings are what comes back from the thoughts of the first layers alone (appendix B): a row's first token
        is given, each layer costs a cached decoding of the whole batch.
        """
        config, z, reading, posterior = self.config, encoded.z, encoded.reading, encoded.posterior
        readings: dict[str, Tensor] = {}
        if z is not None:
            kept, ids = self.first_thoughts(z), reading.ids
            said = self.say(ids[:, :1].repeat(len(kept), 1), kept.flatten(0, 1), ids.shape[1]).view(-1, *ids.shape)
            names = ["no thoughts", "the thoughts of block 0"]
            names += [f"the thoughts of blocks 0 to {last}" for last in range(1, self.thought_layers)]
            for name, own in zip(["no thoughts", "the thoughts"] if config.shared_latents else names, said):
                readings[name] = reading.spread(own)
        for row, trace in enumerate(traces):
            if posterior is not None:
                for name in ("elbo", "nll", "kl") if len(posterior.nll) else ():
                    trace.curves[name] = getattr(posterior, name)[:, row]
                trace.curves["kl_by_layer"] = posterior.kl_by_layer(self.thought_layers)[row]
            own = {name: torch.where(real[row], said[row], trace.input_ids) for name, said in readings.items()}
            trace.readings = own | trace.readings
            places = real[row].nonzero()[:, 0]
            span = int(places[0]), int(places[-1]) + 1
            for i, vector in enumerate(() if z is None else z[row]):
                layer = None if config.shared_latents else i // config.latents_per_layer
                label = "all layers" if layer is None else f"layer {layer}"
                trace.thoughts.append(Thought(vector.detach(), *span, label, layer))

    @property
    def thought_layers(self) -> int:
        """Sets of thoughts: one a layer, or one for all."""
        return 1 if self.config.shared_latents else self.config.num_hidden_layers

    def first_thoughts(self, z: Tensor) -> Tensor:
        """[layers + 1, B, N_z, d]: thoughts z [B, N_z, d] of the first 0, 1 .. all layers, and the prior mean, zero,
        for the others (appendix B)."""
        kept = z.new_ones(self.thought_layers + 1, self.thought_layers).tril(-1)
        return (z.unflatten(1, (self.thought_layers, -1)) * kept[:, None, :, None, None]).flatten(2, 3)

    @torch.no_grad()
    def say(self, first: Tensor, z: Tensor, length: int) -> Tensor:
        """The tokens [B, length] said greedily from first ones [B, 1], under thoughts z [B, N_z, d]."""
        said, cache = [first], self.new_cache()
        while len(said) < length:
            logits = self(said[-1], past_key_values=cache, z=z).logits
            said.append(logits[:, -1:].argmax(-1))
        return torch.cat(said, dim=1)

    @torch.no_grad()
    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: Any = None,
        *,
        z: Tensor | None = None,
        fast_steps: int | None = None,
        infer_every: int | None = None,
        posterior_seed: int | None = None,
        show_progress: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Hugging Face's `generate`, under thoughts inferred from the prompts (section 2.3, Eq. 7).

        A prompt of one token says nothing about its thoughts: they are drawn from the prior (Eq. 8), for each row anew
        unless there is a `posterior_seed`. Sampled sequences of one prompt (`num_return_sequences`) have each a draw
        of their own, under the seeds `posterior_seed`, `posterior_seed + 1` ..; the beams of a search share one.

        Args:
            inputs: [B, L], or `input_ids`; without `attention_mask` there is no padding.
            z: [B, N_z, d], thoughts to go on under instead.
            fast_steps: T_fast, in place of the config's.
            infer_every: after so many new tokens thoughts are inferred anew, from the prompt and all that follows it,
                and the text is read again under them; `None`: never. Without a cache that is done for each token.
            posterior_seed: of inference and of the draw from the posterior, of all rows; `None`: 0, or for each row
                from torch's generator where tokens are sampled or the prompt is one token.
            show_progress: of inference from the prompts, on standard error.

        Raises:
            InputError: no prompt, z of another shape, or a setting of inference where nothing is inferred.
        """
        inputs = kwargs.pop("input_ids", None) if inputs is None else inputs
        if inputs is None:
            raise InputError("inputs is None: thoughts are inferred from a prompt, so give token ids")
        z = self.check_z(z, len(inputs))
        cache = self._cache(kwargs.get("past_key_values"), use_cache=False)
        used = cache is not None and cache.seen_tokens > 0
        mask = kwargs.pop("attention_mask", None)
        if mask is None and not used:  # Hugging Face would take the padding token for padding wherever it is
            mask = torch.ones_like(inputs)
        reasons = {
            "z is given": z is not None,
            "the cache has its thoughts": used,
            "num_latents is 0": not self.config.num_latents,
        }
        known = next((reason for reason, holds in reasons.items() if holds), None)
        if known is not None:
            asked = {"fast_steps": fast_steps, "infer_every": infer_every, "posterior_seed": posterior_seed}
            for name, value in asked.items():
                if value is not None:
                    raise InputError(f"{name} is {value}, and {known}: nothing is to be inferred, so leave it out")
            given = {} if z is None else {"z": z}
            return super().generate(inputs, generation_config, attention_mask=mask, **given, **kwargs)
        if infer_every is not None and infer_every < 1:
            raise InputError(f"infer_every is {infer_every}: give 1 or more tokens, or None")

        def setting(name: str, default: int) -> int:
            places = kwargs.get(name), getattr(generation_config, name, None), getattr(self.generation_config, name)
            return next((value for value in places if value is not None), default)

        sampled = bool(setting("do_sample", 0))
        seeds = torch.full((len(inputs),), posterior_seed or 0, device=inputs.device)
        if posterior_seed is None:  # rows of one prompt, or of none, would all have the same thoughts
            drawn = (mask.sum(1) == 1) | sampled
            seeds[drawn] = torch.randint(2**62, (int(drawn.sum()),)).to(seeds)
        copies = setting("num_return_sequences", 1)
        if sampled and copies > 1 and setting("num_beams", 1) == 1:
            inputs = inputs.repeat_interleave(copies, dim=0)
            seeds = seeds.repeat_interleave(copies) + torch.arange(copies, device=seeds.device).repeat(len(seeds))
            mask = None if mask is None else mask.repeat_interleave(copies, dim=0)
            kwargs["num_return_sequences"] = 1
        batch = prompt_batch(inputs, mask)
        z = infer(self, batch, fast_steps=fast_steps, seed=seeds, show=show_progress).sample()
        if infer_every is not None:
            kwargs["again"] = Reinference(infer_every, inputs.shape[1], fast_steps, seeds)
        return super().generate(inputs, generation_config, attention_mask=mask, z=z, **kwargs)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: ThoughtCache | None = None,
        attention_mask: Tensor | None = None,
        z: Tensor | None = None,
        again: Reinference | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Hugging Face's hook for each token. Thoughts that are due `again` are inferred, and the cache emptied."""
        end = 0 if again is None else again.due(input_ids.shape[1])
        if again is not None and end and (past_key_values is None or end == input_ids.shape[1]):
            batch = prompt_batch(input_ids[:, :end], None if attention_mask is None else attention_mask[:, :end])
            seeds = again.seeds.repeat_interleave(len(input_ids) // len(again.seeds))  # beams of a prompt share one
            z = infer(self, batch, fast_steps=again.fast_steps, seed=seeds).sample()
            if past_key_values is not None:
                past_key_values.reset()
                next_sequence_length = None
        return super().prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=next_sequence_length,
            past_key_values=past_key_values,
            attention_mask=attention_mask,
            **({} if z is None else {"z": z}),
            **kwargs,
        )


def prompt_batch(input_ids: Tensor, attention_mask: Tensor | None) -> Batch:
    """A text [B, L] as a batch that is to be explained."""
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    return {"input_ids": input_ids, "attention_mask": mask, "labels": input_ids.masked_fill(mask == 0, IGNORED)}
