"""The model at the start of a run: built, filled with the weights of `train.init`, and prepared for training."""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from mentalese.errors import nearest, require
from mentalese.models.base import LanguageModel, count_parameters
from mentalese.models.build import build_model, check_context
from mentalese.models.checkpoints import adapter_folder, check_model
from mentalese.models.generation import ends
from mentalese.models.grow import end_at, start_from
from mentalese.models.lora import add_adapters, load_adapter
from mentalese.models.transformers_seam import attention_of
from mentalese.recipe import Recipe
from mentalese.training.parallel import Parallel

_SHORT = 512
"""Tokens per row up to which a table of attention weights per head is small."""


def start(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, parallel: Parallel
) -> tuple[LanguageModel, dict[str, int], LanguageModel | None]:
    """Return the model that this process trains, its parameters, and the model whose weights `wrap` copies into it.

    With FSDP2 only rank 0 makes the weights and reads `train.init`, in main memory; the model is on the meta device.
    """
    if parallel.world_size == 1 or recipe.train.parallel == "ddp":
        model, parameters = start_model(recipe, tokenizer)
        model.to(parallel.device)
        decoder: Any = getattr(model, "backbone", model)
        is_short = (recipe.layout.sequence_length or math.inf) <= _SHORT
        is_slow = parallel.device.type == "cpu" and recipe.train.precision == "bf16"
        if is_slow and is_short and attention_of(decoder.config) == "sdpa":
            decoder.set_attn_implementation("eager")  # the fused one's backward pass takes three times as long there
        return model, parameters, None
    whole = parallel.on_main(lambda: start_model(recipe, tokenizer)[0])
    model, parameters = outline(recipe, tokenizer)
    end_at(model, parallel.broadcast_object([] if whole is None else ends(whole)))
    return model, parameters, whole


def outline(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> tuple[LanguageModel, dict[str, int]]:
    """Return the model on the meta device, without memory, and its parameters, as `start_model` does."""
    if recipe.train.init is not None:
        check_model(recipe.train.init)
    if recipe.train.adapter is not None:
        adapter_folder(recipe.train.adapter)
    with torch.device("meta"):
        return start_model(recipe, tokenizer, weights=False)


def start_model(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, *, weights: bool = True
) -> tuple[LanguageModel, dict[str, int]]:
    """Return the model, and its parameters: `total` and `non_embedding` of the model without adapters, and `trained`.

    Without `weights`, `train.init` and `train.adapter` are not read. Raise `InputError` if model, start, adapters,
    context or phases are invalid.
    """
    train = recipe.train
    model = build_model(recipe.model, tokenizer, train.seed)
    if train.init is not None and weights:
        start_from(model, tokenizer, train.init)
    check_context(model.config, recipe)
    check_phases(model, recipe)
    parameters = count_parameters(model)
    add_adapters(model, tokenizer, train)
    if train.adapter is not None and weights:
        load_adapter(adapter_folder(train.adapter), model)
    if train.checkpointing:
        able = model.supports_gradient_checkpointing
        require(able, "train.checkpointing", True, f"{type(model).__name__} cannot compute its activations again")
        # transformers has renamed it, and calls a family's own under the old name.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable()
    return model, parameters | {"trained": sum(p.numel() for p in model.parameters() if p.requires_grad)}


def check_phases(model: LanguageModel, recipe: Recipe) -> None:
    """Raise `InputError` if a phase sets a setting that the model's training lacks, or a value out of its range."""
    settings = model.training_settings()
    for name, value in (setting for phase in recipe.phases for setting in phase.model.items()):
        remedy = f"{type(model).__name__} has no such training setting{nearest(name, settings)}"
        require(name in settings, f"phases.model.{name}", value, remedy)
        least, most = settings[name]
        ends = value if isinstance(value, list | tuple) and len(value) == 2 else (value,)  # of a ramp
        valid = all(type(end) in (int, float) and least <= end <= most for end in ends)
        numbers = f"of {least:g} or more" if most == math.inf else f"from {least:g} to {most:g}"
        require(valid, f"phases.model.{name}", value, f"set a number {numbers}, or two for a ramp")
