"""Options of generation that `mentalese generate` and the page of `mentalese play` share."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import Field

from mentalese.errors import InputError
from mentalese.values import NonNegative, Place, Positive, PositiveNumber, Texts, checked_dataclass


@checked_dataclass("")
class GenerateOptions:
    """Options by which a text is continued.

    Attributes:
        prompt: one or more texts to continue; a model that fills in masks fills in each `<|mask|>`.
        file: a text file with one prompt per line.
        raw: continue the prompt as it is, without the tokenizer's chat template.
        max_new_tokens: new tokens per prompt; 0: only fill in masks.
        temperature: divides the logits before a token is drawn; above 0 (--greedy takes the most likely token).
        top_k: draw from the K most likely tokens; 0: from all tokens.
        top_p: draw from the most likely tokens, as many as add up to this probability.
        num_beams: search with this many beams; 1: without beams (not set: as in the model's own generation settings).
        do_sample: draw tokens; implied by temperature, top-k and top-p.
        greedy: take the most likely token, whatever the model's own generation settings are.
        config: FIELD=VALUE ...: other values of the model's config, as far as the weights allow.
        stage: ask at this stage of the curriculum (not set: the last one of training).
        latents: number of latent tokens after the question (not set: as in training).
        fast_steps: gradient steps that infer the thoughts of the prompt, for models that infer them.
        infer_every: infer the thoughts again after this many new tokens.
        posterior_seed: seed for inferring the thoughts. Not set: --seed when sampling or for one token, else 0.
        seed: for drawing tokens.
    """

    prompt: Texts = ()
    file: Place | None = None
    raw: bool = False
    max_new_tokens: NonNegative = 100
    temperature: PositiveNumber | None = None
    top_k: NonNegative | None = None
    top_p: Annotated[PositiveNumber, Field(le=1)] | None = None
    num_beams: Positive | None = None
    do_sample: bool = False
    greedy: bool = False
    config: Texts = ()
    stage: NonNegative | None = None
    latents: NonNegative | None = None
    fast_steps: NonNegative | None = None
    infer_every: Positive | None = None
    posterior_seed: NonNegative | None = None
    seed: NonNegative = 0

    def inference(self, generate: Callable[..., object]) -> dict[str, Any]:
        """Return keywords of a model's own `generate` that infers thoughts; progress is shown, as it takes a while."""
        takes = inspect.signature(generate).parameters
        names = ("fast_steps", "infer_every", "posterior_seed")
        kwargs = {name: value for name in names if (value := getattr(self, name)) is not None}
        for name, value in kwargs.items():
            if name not in takes:
                raise InputError(f"--{name.replace('_', '-')} is {value}: this model infers no thoughts, remove it")
        return kwargs | ({"show_progress": True} if "show_progress" in takes else {})

    def generation(self) -> dict[str, Any]:
        """Return Hugging Face's own keywords that are set; raise `InputError` if they contradict each other."""
        names, beams = ("temperature", "top_k", "top_p"), self.num_beams
        sampling = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.greedy and (sampling or self.do_sample):
            other = next(iter(sampling), "do_sample").replace("_", "-")
            raise InputError(f"--greedy and --{other} contradict each other: use one of them")
        if self.greedy or self.do_sample or sampling:
            sampling["do_sample"] = not self.greedy
        return sampling | ({} if beams is None else {"num_beams": beams})


def config_fields(given: Sequence[str]) -> dict[str, object]:
    """Return the `FIELD=VALUE` pairs of `--config`; a value is JSON, or else a word."""
    fields: dict[str, object] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--config is {pair!r}: use FIELD=VALUE")
        if name in fields:
            raise InputError(f"--config has {name} twice, at last as {pair!r}: keep one")
        try:
            fields[name] = json.loads(value)
        except json.JSONDecodeError:
            fields[name] = value
    return fields
