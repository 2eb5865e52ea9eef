"""Latent Thought Models, fast: padded rows, a cache, scores, and generation. `plain.py` has the method.

Fast learning is in `inference.py`, the decoder in `decoder.py`. Without thoughts, `forward` uses the prior mean, zero,
for which cross-attention adds nothing.

Sections and equations are the paper's. Letters in shapes: B rows of N tokens, n thoughts per layer, N_z in all, d
hidden size. Rows are packed: they begin at their first token, and padding comes after the last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mentalese.data.batch import Batch
from mentalese.errors import InputError, require
from mentalese.families.latent_thought.decoder import LTMDecoder, PackedBatch
from mentalese.families.latent_thought.inference import (
    Posterior,
    check_finite,
    differentiable,
    fit,
    infer,
    inference_config,
    prompt_batch,
)
from mentalese.models.base import LossOutput
from mentalese.models.cache import ThoughtCache
from mentalese.models.hf import CausalLMOutputWithThoughts, Encoded, Limits
from mentalese.models.trace import Knob, Shown, Thought, ThoughtTrace
from mentalese.models.transformers_seam import CACHE, one_cache
from mentalese.nn.controls import controlled
from mentalese.nn.loss import IGNORED, linear_cross_entropy, linear_nll, linear_nll_sum
from mentalese.nn.noise import shared_seed
from mentalese.values import Positive, checked


@dataclass
class LTMOutput(CausalLMOutputWithThoughts):
    """The output of a call; `z_given` is True for thoughts from the caller or the cache, False for the prior mean."""

    z_given: bool | None = None


@dataclass(kw_only=True)
class LTMEncoded(Encoded):
    """Final hidden states in the columns of the batch (`hidden`) and packed.

    Attributes:
        packed: the data that all blocks shared.
        packed_hidden: [B, N, d].
        z: the thoughts of the call.
        z_given: see `LTMOutput`.
        posterior: the posterior with mean `z`, if inferred.
        explained: for a trace, the same states with thoughts inferred from the text.
    """

    packed: PackedBatch
    packed_hidden: Tensor
    z: Tensor | None
    z_given: bool
    posterior: Posterior | None = None
    explained: LTMEncoded | None = None


def _encoded(packed: PackedBatch, hidden: Tensor, z: Tensor | None, z_given: bool = True) -> LTMEncoded:
    return LTMEncoded(hidden=packed.rows.spread(hidden), packed=packed, packed_hidden=hidden, z=z, z_given=z_given)


@dataclass
class Reinference:
    """The schedule of repeated inference: after every `every` tokens that follow the `prompt` columns of all rows."""

    every: int
    prompt: int
    fast_steps: int | None
    seeds: Tensor

    def due(self, width: int) -> int:
        """Return the number of first columns to infer thoughts from; 0: keep the current thoughts."""
        new = width - self.prompt
        return width - new % self.every if new >= self.every else 0


class LTMForCausalLM(LTMDecoder[LTMEncoded]):
    """A Latent Thought Model; with `num_latents` = 0, the same decoder without thoughts."""

    inner_gradients = True
    forward_options = ("z", "fast_steps")
    about_thoughts = (
        "Vectors for each block, inferred from this text. Surprisal is the cost of the text once they are known, "
        "and the KL is the cost of the vectors."
    )
    shown = {  # noqa: RUF012 (nothing writes to it)
        "surprisal": Shown(
            "surprisal", "The token's cost given thoughts inferred from the whole text: not a likelihood.", "nats"
        ),
        "predicted": Shown(
            "most likely token", "The most likely token at each place, given the thoughts and the text before it."
        ),
        "elbo": Shown("ELBO", "The bound that inference raises, of the whole text.", "nats", "step"),
        "nll": Shown("negative log-likelihood", "Of the whole text under a draw of the thoughts.", "nats", "step"),
        "kl": Shown("KL from the prior", "The cost of the thoughts.", "nats", "step"),
        "kl_by_layer": Shown("KL by block", "The cost of each block's thoughts after inference.", "nats", "layer"),
    }

    @property
    def limits(self) -> Limits:
        return replace(super().limits, loss="thoughts of the text, inferred from it,")

    @property
    def shard_blocks(self) -> bool:
        """See `LanguageModel`; `accumulate` needs the gradients of all weights at once, in the middle of a step."""
        return self.config.slow_grad != "accumulate"

    # ------------------------------------------------------------------------------------- training

    def final_hidden_states(self, batch: Batch) -> Tensor:
        """Return [B, width, d] given the thoughts in `batch["z"]`, else the prior mean; zero at padding."""
        x, packed = self.read(batch["input_ids"], batch.get("attention_mask"))
        return packed.rows.spread(self.decode(x, self.check_z(batch.get("z"), len(x)), packed))

    def training_settings(self) -> dict[str, tuple[float, float]]:
        if not self.config.num_latents:
            return {}
        return {"fast_learning_rate" if self.encoder is None else "kl_weight": (0, math.inf)}

    def keep_settings(self, settings: Mapping[str, Any]) -> None:
        """Write the last fast learning rate of training to the config, for scores and saved models."""
        rate = settings.get("fast_learning_rate") if self.encoder is None else None
        self.config.fast_learning_rate = inference_config(self, fast_learning_rate=rate).fast_learning_rate

    def training_loss(self, batch: Batch, **settings: Any) -> LossOutput:
        """Return the loss of Algorithm 1: fast learning of thoughts, then the mean cross-entropy given a draw of them.

        With `slow_grad="accumulate"` the weights also get the gradient of the negative ELBO of each fast step: summed
        over the targets of a row, averaged over rows, summed over steps. With an encoder the loss is the negative ELBO
        per target, given a draw from its posterior (Eq. 5).

        Args:
            settings: `fast_learning_rate`, see `keep_settings`; `kl_weight`, the weight of the KL in an encoder's ELBO,
                1 by default.

        Raises:
            FloatingPointError: an ELBO is not finite; the message names step and row.
        """
        config = self.config
        if not config.num_latents:
            return super().training_loss(batch, **settings)
        (name,) = self.training_settings()
        value = settings.pop(name, None)
        self.refuse(settings)
        self.keep_settings({name: value})
        x, packed = self.read(batch["input_ids"], batch.get("attention_mask"))
        targets = packed.rows.targets(batch["labels"])
        trained = [p for p in self.parameters() if p.requires_grad]  # only the weights of an adapter, if there is one
        weights = trained if config.slow_grad == "accumulate" else None
        posterior, gradients = fit(self, x, packed, targets, config, seed=shared_seed(), weights=weights, together=True)
        z = controlled(posterior.sample(), config.thought_control)
        hidden = self.decode(x, z, packed)
        weight = (targets != IGNORED).sum().float()
        count = weight.clamp(min=1)
        predicting, head = hidden[:, :-1].flatten(0, 1), self.loss_head()
        if self.encoder is None:
            loss = linear_cross_entropy(predicting, head, targets.flatten())
            nll = loss.detach()
        else:
            total, each = linear_nll_sum(predicting, head, targets.flatten())
            kl = posterior.kl_by_layer(1)[:, 0]
            check_finite(-(each.view(targets.shape).sum(1) + kl), "optimizer.learning_rate")
            loss = (total + (1.0 if value is None else value) * kl.sum()) / count
            nll = total.detach() / count
        if gradients:
            accumulated = torch.stack([(p * g).sum() for p, g in zip((x, *trained), gradients)]).sum() / len(x)
            loss = loss + (accumulated - accumulated.detach())
        metrics = {"nll": nll} | self._metrics(posterior, nll, count)
        return LossOutput(loss, weight, metrics, partial(_encoded, packed, hidden, z))

    @torch.no_grad()
    def _metrics(self, posterior: Posterior, nll: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return nats per target, and the share of channels of thoughts whose means differ between rows."""
        metrics = {"active_units": (posterior.mu.var(0, unbiased=False) > 0.01).float().mean()}
        if posterior.log_var is None:
            return metrics
        kl = posterior.kl_by_layer(self.thought_layers).sum(0) / targets
        metrics |= {"kl": kl.sum(), "elbo": -(nll + kl.sum())}
        return metrics | {f"kl.layer_{layer}": value for layer, value in enumerate(kl)}

    # ------------------------------------------------------------------------------------- scores

    @property
    def estimators(self) -> tuple[str, ...]:
        """The estimators of scores, by the tokens from which thoughts are inferred.

        `elbo-bound`: the labels themselves; their KL is spread evenly over them, and the sum is the negative ELBO.
        `fitted-draw`: the same with one draw of noise in all fast steps, under which the labels are then scored, as the
        release does; not a bound, because thoughts have been fitted to the draw.
        `prefix`: all before the second half of the labels; only this half is scored: an ordinary prediction.
        `context`: the tokens before the first label; if there are none, thoughts are a draw from the prior.
        A model without thoughts has `exact`, and `prefix`, which scores the same half.
        """
        if not self.config.num_latents:
            return "exact", "prefix"
        fitted = ("fitted-draw",) if self.encoder is None else ()
        return "elbo-bound", "prefix", "context", *fitted

    def continuation_scoring(self) -> dict[str, str]:
        return {"estimator": "context"} if self.config.num_latents else {}

    def scoring_protocol(self, estimator: str) -> dict[str, Any]:
        if not self.config.num_latents:
            return {}
        steps = ("fast_steps", "fast_learning_rate", "fast_schedule", "fast_optimizer", "noise")
        names = ("num_latents", *(steps if self.encoder is None else ("encoder_layers",)))
        fixed = {"noise": "fixed"} if estimator == "fitted-draw" else {}
        return {"inference": {name: getattr(self.config, name) for name in names} | fixed}

    def scored_labels(self, batch: Batch, estimator: str) -> Tensor:
        """See `LanguageModel.scored_labels`, and `estimators`; a label at a row's first token never counts."""
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
        """See `LanguageModel.token_nll`; the arguments are as in `nll_parts`."""
        parts = self.nll_parts(batch, estimator, fast_steps=fast_steps, seed=seed)
        return torch.stack([*parts.values()]).sum(0)

    @torch.inference_mode(False)
    @torch.no_grad()
    def nll_parts(  # type: ignore[override]
        self, batch: Batch, estimator: str | None = None, *, fast_steps: int | None = None, seed: int = 0
    ) -> dict[str, Tensor]:
        """Return `nll` of each label and, where thoughts explain the labels, its share of the row's `kl`.

        Args:
            estimator: one of `estimators`.
            fast_steps: T_fast; `None`: the config's.
            seed: seeds the noise; with the same seed a row has the same score in every batch.
        """
        estimator, known = estimator or self.estimators[0], self.estimators
        require(estimator in known, "estimator", estimator, f"this model has {', '.join(known)}")
        if not self.config.num_latents:
            return {"nll": super().token_nll(batch | {"labels": self.scored_labels(batch, estimator)})}
        batch = differentiable(batch)
        x, packed = self.read(batch["input_ids"], batch.get("attention_mask"))
        labels = self.scored_labels(batch, estimator)
        targets = packed.rows.targets(labels)
        of_labels = estimator in ("elbo-bound", "fitted-draw")
        evidence = targets if of_labels else packed.rows.targets(self._context(batch, labels))
        noise = "fixed" if estimator == "fitted-draw" else None
        config = inference_config(self, inference=self.config.scoring, fast_steps=fast_steps, noise=noise)
        posterior, _ = fit(self, x, packed, evidence, config, seed=seed)
        z = controlled(posterior.sample(fresh=estimator == "elbo-bound"), self.config.thought_control)
        hidden = self.decode(x, z, packed)[:, :-1].flatten(0, 1)
        parts = {"nll": linear_nll(hidden, self.loss_head(), targets.flatten()).view(targets.shape)}
        if of_labels:
            counted = targets != IGNORED
            kl = posterior.kl_by_layer(1) / counted.sum(1, keepdim=True).clamp(min=1) * counted
            read = self.config.thought_control not in ("removed", "swapped")  # no cost for unread thoughts
            parts["kl"] = kl if read else torch.zeros_like(kl)
        return {name: packed.rows.spread(F.pad(nats, (1, 0))) for name, nats in parts.items()}

    @staticmethod
    def _context(batch: Batch, labels: Tensor) -> Tensor:
        """Return the tokens before the first scored one as labels [B, width] for inference; others are -100.

        Later tokens without a score (ends of documents, markers) are left out, because they follow scored tokens.
        """
        mask = batch.get("attention_mask")
        begun = (labels != IGNORED).cumsum(1) > 0
        return batch["input_ids"].masked_fill(begun if mask is None else begun | (mask == 0), IGNORED)

    def continuation_inputs(self, batch: Batch) -> dict[str, Tensor]:
        """See `LanguageModel.continuation_inputs`; adds thoughts, inferred as for the estimator `context`."""
        inputs = super().continuation_inputs(batch)
        if not self.config.num_latents:
            return inputs
        context = self._context(batch, self.scored_labels(batch, "context"))
        posterior = infer(self, batch | {"labels": context}, inference=self.config.scoring)
        return inputs | {"z": controlled(posterior.sample(), self.config.thought_control)}

    # ------------------------------------------------------------------------------------- Hugging Face's side

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cache: ThoughtCache | None = None,
        trace: bool = False,
        output_hidden_states: bool = False,
        z: Tensor | None = None,
        fast_steps: int | None = None,
    ) -> LTMEncoded:
        """Return final hidden states [B, L, d] given thoughts, by default the prior mean; zero at padding.

        Args:
            trace: also keep thoughts for `fill`: `z`, or thoughts inferred from the whole row.
            z: [B, N_z, d], layer-major; a cache keeps the thoughts of its first call.
            fast_steps: T_fast of the inference for a trace; `None`: the config's.

        Raises:
            InputError: z of another shape, or `fast_steps` when nothing is inferred.
        """
        z = self.check_z(z, len(input_ids))
        if fast_steps is not None and not (trace and z is None and self.config.num_latents):
            raise InputError(f"fast_steps is {fast_steps}, and nothing is to be inferred: remove it")
        x, packed = self.read(input_ids, attention_mask, cache)
        z_given = z is not None
        if cache is not None:  # it keeps the keys and values of the first call's thoughts
            z_given = cache.shared.setdefault("z_given", z_given)
        states = [self.embed(packed.ids)] if output_hidden_states else None
        hidden = self.decode(x, z, packed, kept=states)
        encoded = _encoded(packed, hidden, z, z_given)
        if states is not None:
            encoded.hidden_states = (*(packed.rows.spread(state) for state in states), encoded.hidden)
        if trace and self.config.num_latents and z is None:
            batch = prompt_batch(input_ids, attention_mask)
            posterior = infer(self, batch, inference=self.config.scoring, fast_steps=fast_steps)
            z = controlled(posterior.mu, self.config.thought_control)
            encoded.explained = self.encode(input_ids, attention_mask, z=z)
            encoded.explained.posterior = posterior
        return encoded

    def read_copies(self, input_ids: Tensor, **options: Any) -> LTMEncoded:
        """See `LatentThoughtModel.read_copies`; thoughts are inferred only once."""
        posterior = infer(self, prompt_batch(input_ids[:1], None), inference=self.config.scoring, **options)
        thoughts = posterior.mu.expand(len(input_ids), -1, -1)
        return self.encode(input_ids, z=controlled(thoughts, self.config.thought_control, numbers="columns"))

    def labels_loss(self, encoded: LTMEncoded, labels: Tensor) -> Tensor:
        """See `LatentThoughtModel.labels_loss`; padding between tokens is skipped."""
        targets = encoded.packed.rows.targets(labels).flatten()
        return linear_cross_entropy(encoded.packed_hidden[:, :-1].flatten(0, 1), self.loss_head(), targets)

    def output(self, encoded: LTMEncoded, **fields: Any) -> LTMOutput:
        return LTMOutput(**fields, z_given=encoded.z_given)

    def trace(self, input_ids: Tensor, attention_mask: Tensor | None, encoded: LTMEncoded) -> list[ThoughtTrace]:
        """See `LatentThoughtModel.trace`; scores use the thoughts that explain the text."""
        return super().trace(input_ids, attention_mask, encoded.explained or encoded)

    def fill(self, traces: list[ThoughtTrace], encoded: LTMEncoded, real: Tensor) -> None:
        """Add a row's thoughts, each of which covers the whole row, and the curves of their inference.

        Readings are texts decoded greedily from the row's first token and the thoughts of only the first layers
        (appendix B).
        """
        config, z, packed, posterior = self.config, encoded.z, encoded.packed, encoded.posterior
        readings: dict[str, Tensor] = {}
        if z is not None:
            thoughts, ids = self.first_thoughts(z), packed.ids
            tokens = self.continue_greedily(ids[:, :1].repeat(len(thoughts), 1), thoughts.flatten(0, 1), ids.shape[1])
            names = ["no thoughts", "the thoughts of block 0"]
            names += [f"the thoughts of blocks 0 to {last}" for last in range(1, self.thought_layers)]
            names = ["no thoughts", "the thoughts"] if config.shared_latents else names
            readings = {name: packed.rows.spread(text) for name, text in zip(names, tokens.view(-1, *ids.shape))}
        for row, trace in enumerate(traces):
            if posterior is not None:
                for name in ("elbo", "nll", "kl") if len(posterior.nll) else ():
                    trace.curves[name] = getattr(posterior, name)[:, row]
                trace.curves["kl_by_layer"] = posterior.kl_by_layer(self.thought_layers)[row]
            texts = {name: torch.where(real[row], text[row], trace.input_ids) for name, text in readings.items()}
            trace.readings = texts | trace.readings
            places = real[row].nonzero()[:, 0]
            span = int(places[0]), int(places[-1]) + 1
            for i, vector in enumerate(() if z is None else z[row]):
                layer = None if config.shared_latents else i // config.latents_per_layer
                label = "all layers" if layer is None else f"layer {layer}"
                trace.thoughts.append(Thought(vector.detach(), *span, label, layer))

    @property
    def thought_layers(self) -> int:
        """The number of sets of thoughts: one per layer, or one for all layers."""
        return 1 if self.config.shared_latents else self.config.num_hidden_layers

    def first_thoughts(self, z: Tensor) -> Tensor:
        """Return the thoughts [layers + 1, B, N_z, d] of only the first 0, 1 .. all layers of z [B, N_z, d].

        The other layers have the prior mean, zero (appendix B).
        """
        mask = z.new_ones(self.thought_layers + 1, self.thought_layers).tril(-1)
        return (z.unflatten(1, (self.thought_layers, -1)) * mask[:, None, :, None, None]).flatten(2, 3)

    @torch.no_grad()
    def continue_greedily(self, first: Tensor, z: Tensor, length: int) -> Tensor:
        """Return greedy continuations [B, length] of first tokens [B, 1], given thoughts [B, N_z, d]."""
        tokens, cache = [first], self.new_cache()
        while len(tokens) < length:
            logits = self(tokens[-1], cache=cache, z=z).logits
            tokens.append(logits[:, -1:].argmax(-1))
        return torch.cat(tokens, dim=1)

    # ------------------------------------------------------------------------------------- generation

    def knobs(self) -> list[Knob]:
        config, steps = self.config, "gradient steps on the thoughts of a text"
        if not config.num_latents:
            return []
        again = Knob("infer_every", "Think again", "after this many new tokens; 0: never", 0, 0)
        if config.inference == "amortised":
            return [again]
        return [Knob("fast_steps", "Fast steps", steps, config.fast_steps, 1, max(4 * config.fast_steps, 64)), again]

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
        """Generate with Hugging Face's `generate`, given thoughts inferred from the prompts (section 2.3, Eq. 7).

        A prompt of one token has no information about its thoughts: they are drawn from the prior (Eq. 8), with a new
        draw for each row unless `posterior_seed` is set. Each sampled sequence of a prompt (`num_return_sequences`) has
        its own draw with seed `posterior_seed`, `posterior_seed + 1` ..; the beams of a search share one draw.

        Args:
            inputs: [B, L], or `input_ids`; without `attention_mask`, all are tokens.
            z: [B, N_z, d], thoughts to use instead.
            fast_steps: T_fast; `None`: the config's.
            infer_every: after this many new tokens, infer thoughts again from the prompt and all later tokens, and read
                the text again with them; `None`: never. Without a cache the text is read again for each token.
            posterior_seed: seeds inference and the draw from the posterior for all rows; `None`: 0, or for each row
                from torch's generator if tokens are sampled or the prompt is one token.
            show_progress: show the progress of inference from the prompts on standard error.

        Raises:
            InputError: no prompt, z of another shape, or a setting of inference that has another type or no effect.
        """
        inputs = self.check_prompt(kwargs.pop("input_ids", None) if inputs is None else inputs)
        checked("infer_every", Positive | None, infer_every)
        checked("posterior_seed", int | None, posterior_seed)
        z = self.check_z(z, len(inputs))
        cache = self._cache(one_cache(kwargs.get("cache"), kwargs.get("past_key_values")), use_cache=False)
        cached = cache is not None and cache.seen_tokens > 0
        mask = kwargs.pop("attention_mask", None)
        if mask is None and not cached:  # Hugging Face would treat every padding token as padding
            mask = torch.ones_like(inputs)
        reasons = {
            "z is set": z is not None,
            "the cache has its thoughts": cached,
            "num_latents is 0": not self.config.num_latents,
        }
        reason = next((reason for reason, applies in reasons.items() if applies), None)
        if reason is not None:
            fields = {"fast_steps": fast_steps, "infer_every": infer_every, "posterior_seed": posterior_seed}
            for name, value in fields.items():
                if value is not None:
                    raise InputError(f"{name} is {value}, and {reason}: nothing is to be inferred, so remove it")
            thoughts = {} if z is None else {"z": z}
            return super().generate(inputs, generation_config, attention_mask=mask, **thoughts, **kwargs)

        def setting(name: str) -> Any:  # Hugging Face's, from the call, its generation config or the model's config
            set_in = kwargs.get(name), getattr(generation_config, name, None), getattr(self.generation_config, name)
            return next((value for value in set_in if value is not None), None)

        sampled, beams, copies = setting("do_sample"), setting("num_beams") or 1, setting("num_return_sequences") or 1
        seeds = torch.full((len(inputs),), posterior_seed or 0, device=inputs.device)
        if posterior_seed is None:  # otherwise rows with equal or empty prompts would have equal thoughts
            random_rows = (mask.sum(1) == 1) | bool(sampled)
            seeds[random_rows] = torch.randint(2**62, (int(random_rows.sum()),)).to(seeds)
        if sampled and copies > 1 and beams == 1:
            inputs, mask = inputs.repeat_interleave(copies, dim=0), mask.repeat_interleave(copies, dim=0)
            seeds = (seeds[:, None] + torch.arange(copies, device=seeds.device)).flatten()
            kwargs["num_return_sequences"] = 1
        z = self._drawn(inputs, mask, fast_steps, seeds, show_progress)
        if infer_every is not None:
            kwargs["again"] = Reinference(infer_every, inputs.shape[1], fast_steps, seeds)
        return super().generate(inputs, generation_config, attention_mask=mask, z=z, **kwargs)

    def _drawn(
        self, ids: Tensor, mask: Tensor | None, fast_steps: int | None, seeds: Tensor, show: bool = False
    ) -> Tensor:
        """Return a draw [B, N_z, d] from the posterior given these tokens, under the model's control."""
        posterior = infer(self, prompt_batch(ids, mask), fast_steps=fast_steps, seed=seeds, show=show)
        return controlled(posterior.sample(), self.config.thought_control)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        attention_mask: Tensor | None = None,
        z: Tensor | None = None,
        again: Reinference | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Prepare the next token (Hugging Face's hook); if `again` is due, infer thoughts and reset the cache."""
        cache = kwargs.get(CACHE)
        end = 0 if again is None else again.due(input_ids.shape[1])
        if again is not None and end and (cache is None or end == input_ids.shape[1]):
            seeds = again.seeds.repeat_interleave(len(input_ids) // len(again.seeds))  # beams of a prompt share one
            mask = None if attention_mask is None else attention_mask[:, :end]
            z = self._drawn(input_ids[:, :end], mask, again.fast_steps, seeds)
            if cache is not None:
                cache.reset()
                next_sequence_length = None
        kwargs |= {} if z is None else {"z": z}
        return super().prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=next_sequence_length,
            attention_mask=attention_mask,
            **kwargs,
        )
