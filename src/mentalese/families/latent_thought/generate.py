"""Generation under thoughts inferred from the prompts (section 2.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mentalese.errors import InputError
from mentalese.families.latent_thought.decoder import LTMDecoder
from mentalese.families.latent_thought.inference import infer, prompt_batch
from mentalese.models.hf import E
from mentalese.models.trace import Knob
from mentalese.models.transformers_seam import CACHE, one_cache
from mentalese.nn.controls import controlled
from mentalese.values import checked


@dataclass
class Reinference:
    """The schedule of repeated inference: after every `every` tokens that follow the `prompt` columns of all rows.

    Attributes:
        seeds: int64 [prompts].
    """

    every: int
    prompt: int
    fast_steps: int | None
    seeds: Tensor

    def due(self, width: int) -> int:
        """Return the number of first columns to infer thoughts from; 0: keep the current thoughts."""
        new = width - self.prompt
        return width - new % self.every if new >= self.every else 0


class LTMGeneration(LTMDecoder[E]):
    """The method `generate` of a Latent Thought Model."""

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
        inputs = kwargs.pop("input_ids", None) if inputs is None else inputs
        if inputs is None:
            raise InputError("inputs is None: thoughts are inferred from a prompt, so pass token ids")
        inputs = self.check_prompt(inputs)
        infer_every = checked("infer_every", int | None, infer_every)
        posterior_seed = checked("posterior_seed", int | None, posterior_seed)
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
            settings = {"fast_steps": fast_steps, "infer_every": infer_every, "posterior_seed": posterior_seed}
            for name, value in settings.items():
                if value is not None:
                    raise InputError(f"{name} is {value}, and {reason}: nothing is to be inferred, so remove it")
            thoughts = {} if z is None else {"z": z}
            return super().generate(inputs, generation_config, attention_mask=mask, **thoughts, **kwargs)
        if infer_every is not None and infer_every < 1:
            raise InputError(f"infer_every is {infer_every}: set 1 or more tokens, or None")

        settings = {name: self._setting(name, generation_config, kwargs) for name in ("do_sample", "num_beams")}
        sampled = bool(settings["do_sample"])
        seeds = self._seeds(inputs, mask, posterior_seed, sampled)
        copies = self._setting("num_return_sequences", generation_config, kwargs) or 1
        if sampled and copies > 1 and (settings["num_beams"] or 1) == 1:
            inputs = inputs.repeat_interleave(copies, dim=0)
            seeds = seeds.repeat_interleave(copies) + torch.arange(copies, device=seeds.device).repeat(len(seeds))
            mask = None if mask is None else mask.repeat_interleave(copies, dim=0)
            kwargs["num_return_sequences"] = 1
        batch = prompt_batch(inputs, mask)
        z = infer(self, batch, fast_steps=fast_steps, seed=seeds, show=show_progress).sample()
        z = controlled(z, self.config.thought_control)
        if infer_every is not None:
            kwargs["again"] = Reinference(infer_every, inputs.shape[1], fast_steps, seeds)
        return super().generate(inputs, generation_config, attention_mask=mask, z=z, **kwargs)

    def _setting(self, name: str, generation_config: Any, kwargs: dict[str, Any]) -> Any:
        """Return a Hugging Face setting from the call, its generation config or the model's config, else `None`."""
        sources = kwargs.get(name), getattr(generation_config, name, None), getattr(self.generation_config, name)
        return next((value for value in sources if value is not None), None)

    @staticmethod
    def _seeds(inputs: Tensor, mask: Tensor, posterior_seed: int | None, sampled: bool) -> Tensor:
        """Return seeds, int64 [B]; see `posterior_seed` of `generate`."""
        seeds = torch.full((len(inputs),), posterior_seed or 0, device=inputs.device)
        if posterior_seed is None:  # otherwise rows with equal or empty prompts would have equal thoughts
            random_rows = (mask.sum(1) == 1) | sampled
            seeds[random_rows] = torch.randint(2**62, (int(random_rows.sum()),)).to(seeds)
        return seeds

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
            batch = prompt_batch(input_ids[:, :end], None if attention_mask is None else attention_mask[:, :end])
            seeds = again.seeds.repeat_interleave(len(input_ids) // len(again.seeds))  # beams of a prompt share one
            z = infer(self, batch, fast_steps=again.fast_steps, seed=seeds).sample()
            z = controlled(z, self.config.thought_control)
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
