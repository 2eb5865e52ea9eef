"""Freshly initialised models from a recipe's `model` section, checked before anything is built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerBase

from mentalese.data.layouts import AsIs
from mentalese.data.sentences import fixed_length
from mentalese.data.tokenizers import space_id, special_token_ids
from mentalese.errors import InputError, require
from mentalese.model_fields import config_class
from mentalese.models.base import LanguageModel, as_model
from mentalese.models.config import MOST_TENSORS, check_fields, check_key_heads
from mentalese.recipe import Fields, Recipe


def build_config(fields: Fields, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """Return the config in a recipe's `model` section, with special tokens; raise `InputError` for a wrong field."""
    values = dict(fields)
    cls = config_class(values.pop("model_type"))
    check_fields("model", cls, values)
    for place, part in (("model", values), ("model.backbone", values.get("backbone"))):
        dtype = part.get("dtype") if isinstance(part, dict) else None
        remedy = "weights are made and trained in float32; remove it, or set train.precision=bf16"
        require(dtype in (None, "float32"), f"{place}.dtype", dtype, remedy)
    size = values.get("vocab_size", len(tokenizer))
    remedy = f"the tokenizer has {len(tokenizer)} tokens with its markers; remove it, or set at least that"
    require(not isinstance(size, int) or size >= len(tokenizer), "model.vocab_size", size, remedy)
    known = special_token_ids(tokenizer) | {"space_token_id": space_id(tokenizer)}
    special = {name: value for name, value in known.items() if name in cls.__dataclass_fields__}
    try:
        config = cls(**({"vocab_size": len(tokenizer)} | special | values))
    except InputError:
        raise
    except Exception as error:  # configs of other projects raise errors of many types
        cause = error.__cause__ if isinstance(error.__cause__, InputError) else error
        raise InputError(f"model: {' '.join(str(cause).split())}") from error
    check_key_heads("model", config)
    return config


def build_model(fields: Fields, tokenizer: PreTrainedTokenizerBase, seed: int) -> LanguageModel:
    """Return a freshly initialised model; raise `InputError` if its config or its class refuses the fields."""
    config = build_config(fields, tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            with _bounded():
                model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        except InputError:
            raise
        # From sizes, an unknown name, or a decoder that lacks what a family reads.
        except (ValueError, ArithmeticError, RuntimeError, KeyError, AttributeError) as error:
            raise InputError(f"model: {' '.join(str(error).split())}: change its sizes or names") from error
        return as_model(model)


@contextmanager
def _bounded() -> Iterator[None]:
    """Refuse a model, while it is built, that has more tensors of weights than `MOST_TENSORS`."""
    count = 0

    def counted(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal count
        count += 1
        if count > MOST_TENSORS:
            raise InputError(f"model has more than {MOST_TENSORS:,} tensors of weights: use fewer layers or parts")

    hook = register_module_parameter_registration_hook(counted)
    try:
        yield
    finally:
        hook.remove()


def context_length(config: PreTrainedConfig) -> int | None:
    """Return the most tokens that a model can read; `None` for models that read sentence by sentence."""
    return getattr(config, "max_position_embeddings", None)


_WINDOW = 2048


def as_is(config: PreTrainedConfig) -> AsIs:
    """Return how a model without a recipe reads: all of its context, but at most 2,048 tokens."""
    return AsIs(sequence_length=min(_WINDOW, context_length(config) or _WINDOW))


def check_context(config: PreTrainedConfig, recipe: Recipe) -> None:
    """Raise `InputError` if the recipe's rows, or its sentences, are longer than the model has positions for."""
    if not recipe.layout.sequential:
        for layout in recipe.layouts():
            check_length(config, "layout.sequence_length", layout.sequence_length)
        check_length(config, "evaluation.context_length", recipe.evaluation.context_length)
        return
    sentence, data = getattr(config, "max_sentence_tokens", None), recipe.data
    span, whole = fixed_length(data.sentences), data.sentences == "none"
    if sentence is not None and (whole or (span or data.max_sentence_tokens) > sentence):
        name = "sentences" if whole or span else "max_sentence_tokens"
        remedy = f"the model has positions for sentences of {sentence} tokens; split into such"
        remedy = f"{remedy}, or set a larger model.max_sentence_tokens"
        raise InputError(f"data.{name} is {getattr(data, name)!r}: {remedy}", f"data.{name}")


def check_length(config: PreTrainedConfig, name: str, length: int | None) -> None:
    """Raise `InputError` if a length of that name is above what the model can read."""
    context = context_length(config)
    fits = length is None or context is None or length <= context
    require(fits, name, length, f"the model's context is {context}; set at most that")
