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

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mentalese.errors import InputError
from mentalese.models.base import (
    IGNORED,
    Batch,
    CausalLMOutputWithThoughts,
    LatentThoughtModel,
    LossOutput,
    ResidualLinear,
    Thought,
    ThoughtCache,
    ThoughtTrace,
)
from mentalese.models.latent_thought.configuration import LTMConfig
from mentalese.models.latent_thought.inference import Posterior, fit, infer, shared_seed
from mentalese.nn.loss import linear_cross_entropy, linear_nll
from mentalese.nn.rotary import rotary_table, rotate
from mentalese.nn.window import window_attention, window_mask, window_pairs

# ------------------------------------------------------------------------------------------------------------ the rows


@dataclass
class Reading:
    """What all blocks of a pass share, and where its tokens were.

    Attributes:
        columns: [B, N], where each token lay in its row; `None`: there is no padding.
        lengths: [B], tokens a row.
        width: columns of the batch.
        rotary: cosines and sines of tokens [1 or B, 1, N, d_h / 2].
        latent_rotary: those of a layer's thoughts [n, d_h / 2].
        window: see `window_mask`.
        past: of a pass that goes on from a cache.
    """

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

    def forward(self, x: Tensor, reading: Reading) -> Tensor:
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

    def forward(self, x: Tensor, z: Tensor, reading: Reading) -> Tensor:
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
        self, x: Tensor, z: Tensor | None, reading: Reading, *, before_z: bool = True, after: bool = True
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


# ----------------------------------------------------------------------------------------------------------- the model


@dataclass
class LTMOutput(CausalLMOutputWithThoughts):
    """`z_given`: whether logits are given thoughts that the caller (or the cache) brought, or the prior mean."""

    z_given: bool | None = None


class LTMForCausalLM(LatentThoughtModel):
    """A Latent Thought Model; with `num_latents` = 0 the same decoder without thoughts."""

    config_class = LTMConfig
    inner_gradients = True
    _tied_weights_keys = {"lm_head.weight": "embed.weight"}  # noqa: RUF012 (transformers' own attribute)

    def __init__(self, config: LTMConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.final_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def new_cache(self) -> ThoughtCache:
        return ThoughtCache()

    # ------------------------------------------------------------------------------------- the decoder

    def read(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, cache: ThoughtCache | None = None
    ) -> tuple[Tensor, Reading]:
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
        reading = Reading(
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
        """`columns` and `lengths` of `Reading`."""
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

    def decode(self, x: Tensor, z: Tensor | None, reading: Reading) -> Tensor:
        """The stream of `read` [B, N, d] and thoughts [B, N_z, d] to what the head reads, [B, N, d].

        Thoughts are layer-major; `None` is the prior mean.
        """
        config = self.config
        if z is None and config.num_latents:
            z = x.new_zeros(len(x), config.num_latents, config.hidden_size)
        n = config.latents_per_layer
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

        Args:
            batch: see `Batch`.
            settings: `fast_learning_rate`, in place of the config's.

        Raises:
            FloatingPointError: an ELBO is not finite; the message names step and row.
        """
        config = self.config
        if not config.num_latents:
            return super().training_loss(batch, **settings)
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
            accumulated = sum((p * g).sum() for p, g in pairs) / len(x)
            loss = loss + (accumulated - accumulated.detach())
        weight = (targets != IGNORED).sum().float()
        return LossOutput(loss, weight, {"nll": nll} | self._metrics(posterior, nll, weight.clamp(min=1)))

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
        """`elbo-bound`: nats of each label under thoughts inferred from the row itself, and the KL of these spread
        evenly over the row's labels; the sum is the negative ELBO, a bound. `exact`: there are no thoughts.

        `token_nll` also knows `prefix`; see `scored_labels`.
        """
        return ("elbo-bound",) if self.config.num_latents else ("exact",)

    def scored_labels(self, batch: Batch, estimator: str) -> Tensor:
        """The batch's labels [B, width] that an estimator scores, -100 elsewhere.

        Those of a row's first token never count; `prefix` gives the first half of the others to inference, and scores
        the second alone.
        """
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
        """See `Contract.token_nll` and `estimators`; inference is Algorithm 1, whatever training's is.

        `prefix` infers them from the first half of a row's labels and scores the second: an ordinary prediction.

        Args:
            fast_steps: T_fast, in place of the config's.
            seed: of the noise; with the same seed a row has the same score in every batch.
        """
        estimator = estimator or self.estimators[0]
        known = (*self.estimators, "prefix") if self.config.num_latents else self.estimators
        if estimator not in known:
            raise InputError(f"estimator is {estimator!r}: this model has {', '.join(known)}")
        if not self.config.num_latents:
            return super().token_nll(batch)
        x, reading = self.read(batch["input_ids"], batch.get("attention_mask"))
        labels = self.scored_labels(batch, estimator)
        targets = reading.targets(labels)
        evidence = targets
        if estimator == "prefix":
            evidence = reading.targets(batch["labels"].masked_fill(labels != IGNORED, IGNORED))
        posterior, _ = fit(self, x, reading, evidence, method="variational", steps=fast_steps, seed=seed)
        nll = self._nll(self.decode(x, posterior.sample(), reading), targets)
        if estimator != "prefix":
            counted = targets != IGNORED
            nll = nll + posterior.kl_by_layer(1) / counted.sum(1, keepdim=True).clamp(min=1) * counted
        return reading.spread(F.pad(nll, (1, 0)))

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

    def forward_flops(self, batch: Batch) -> int:
        """See `Contract.forward_flops`; thoughts are given."""
        first, rest, _, _ = self._flops(batch)
        return 2 * (first + rest)

    def training_flops(self, batch: Batch, **settings: Any) -> int:
        """T_fast passes with gradients of activations alone, and one with those of weights too.

        Gradients of activations cost a pass, and attention once more. The paper counts (T_fast + 1) whole steps.
        """
        first, rest, _, attention = self._flops(batch)
        if not self.config.num_latents:
            return 6 * (first + rest)
        return self.config.fast_steps * 2 * (2 * rest + attention) + 6 * (first + rest)

    def compiled_parts(self) -> list[nn.Module]:
        """The blocks: what runs them a number of times is not traced."""
        return list(self.blocks)

    # ------------------------------------------------------------------------------------- Hugging Face's side

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: ThoughtCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        output_thoughts: bool = False,
        z: Tensor | None = None,
        **kwargs: Any,
    ) -> LTMOutput:
        """Logits [B, L, v] of the token after each, given thoughts; without them under the prior mean, zero.

        It never infers thoughts, which would read the text it predicts: see `infer`, `token_nll`, `generate`. Positions
        follow from `attention_mask`; `position_ids` are not read.

        Args:
            input_ids: [B, L].
            attention_mask: [B, L or, with a cache, all tokens so far], 0 at padding on either side.
            labels: [B, L], see `Batch`.
            logits_to_keep: only the logits of the last so many positions (0: all), or of these.
            output_thoughts: also return a `ThoughtTrace` a row: `z`, or thoughts inferred for it from the whole row.
            z: [B, N_z, d], layer-major; a cache keeps what its first call was given.

        Raises:
            InputError: embeddings in place of tokens, a cache of another kind, z of another shape, or a trace of a text
                that began in an earlier call.
        """
        if input_ids is None or inputs_embeds is not None:
            raise InputError("inputs_embeds is given: thoughts are inferred from tokens, so give input_ids alone")
        cache = self.check_cache(past_key_values)
        if output_thoughts and cache is not None and cache.seen_tokens:
            raise InputError("output_thoughts is True with a cache in use: give the whole text in one call")
        z = self.check_z(z, len(input_ids))
        cache = self.new_cache() if use_cache and cache is None else cache
        x, reading = self.read(input_ids, attention_mask, cache)
        given = z is not None
        if cache is not None:  # what the first call had is what its thoughts' keys and values are made of
            held = cache.state.setdefault("z_given", torch.full((len(x),), given, device=x.device))
            given = bool(held.all())
        hidden = self.decode(x, z, reading)
        spread = reading.spread(hidden)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        loss = None
        if labels is not None:
            targets = reading.targets(labels).flatten()
            loss = linear_cross_entropy(hidden[:, :-1].flatten(0, 1), self.output_weight(), targets)
        return LTMOutput(
            loss=loss,
            logits=self.lm_head(spread[:, kept]),
            past_key_values=cache,
            thoughts=self._traces(input_ids, attention_mask, z) if output_thoughts else None,
            z_given=given,
        )

    @torch.no_grad()
    def _traces(self, input_ids: Tensor, attention_mask: Tensor | None, z: Tensor | None) -> list[ThoughtTrace]:
        """A trace a row: its thoughts, each of the whole row, and what inference did.

        `surprise` is a token's negative log-likelihood under the thoughts; `elbo`, `nll` and `kl` are nats of the row
        by fast step, `kl_by_layer` those at the end.
        """
        config = self.config
        batch = prompt_batch(input_ids, attention_mask)
        mask = batch["attention_mask"]
        traces = [ThoughtTrace(ids) for ids in input_ids]
        if config.num_latents and z is None:
            posterior = infer(self, batch, inference="variational")
            z = posterior.mu
            layers = posterior.kl_by_layer(1 if config.shared_latents else config.num_hidden_layers)
            for row, trace in enumerate(traces):
                for name in ("elbo", "nll", "kl"):
                    trace.curves[name] = getattr(posterior, name)[:, row]
                trace.curves["kl_by_layer"] = layers[row]
        x, reading = self.read(input_ids, attention_mask)
        surprise = self._nll(self.decode(x, z, reading), reading.targets(batch["labels"]))
        surprise = reading.spread(F.pad(surprise, (1, 0)))
        for row, trace in enumerate(traces):
            trace.scores["surprise"] = surprise[row]
            real = mask[row].nonzero()[:, 0]
            span = int(real[0]), int(real[-1]) + 1
            for i, vector in enumerate(() if z is None else z[row]):
                layer = "all layers" if config.shared_latents else f"layer {i // config.latents_per_layer}"
                trace.thoughts.append(Thought(vector.detach(), *span, layer))
        return traces

    @torch.no_grad()
    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: Any = None,
        *,
        z: Tensor | None = None,
        fast_steps: int | None = None,
        posterior_seed: int = 0,
        show_progress: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Hugging Face's `generate`, under thoughts inferred from the prompts (section 2.3, Eq. 7).

        A prompt of one token says nothing about its thoughts: they are drawn from the prior.

        Args:
            inputs: [B, L], or `input_ids`; with padding give `attention_mask` too.
            z: [B, N_z, d], thoughts to go on under instead.
            fast_steps: T_fast, in place of the config's.
            posterior_seed: of inference and of the draw from the posterior; `num_return_sequences` share the draw.
            show_progress: of inference, on standard error.

        Raises:
            InputError: no prompt, or z of another shape.
        """
        prompts = kwargs.get("input_ids") if inputs is None else inputs
        if prompts is None:
            raise InputError("inputs is None: thoughts are inferred from a prompt, so give token ids")
        if z is None and self.config.num_latents:
            batch = prompt_batch(prompts, kwargs.get("attention_mask"))
            posterior = infer(self, batch, fast_steps=fast_steps, seed=posterior_seed, show=show_progress)
            z = posterior.sample()
        z = self.check_z(z, len(prompts))
        return super().generate(inputs, generation_config, **kwargs, **({} if z is None else {"z": z}))


def prompt_batch(input_ids: Tensor, attention_mask: Tensor | None) -> Batch:
    """A text [B, L] as a batch that is to be explained."""
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    return {"input_ids": input_ids, "attention_mask": mask, "labels": input_ids.masked_fill(mask == 0, IGNORED)}
