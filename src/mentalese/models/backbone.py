"""Another project's decoder inside a model of ours: how it is built, what is asked of it, what it costs."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    Conv1D,
    GradientCheckpointingLayer,
    PreTrainedModel,
)

from mentalese.errors import InputError, nearest
from mentalese.models.config import LatentThoughtConfig, check_numbers
from mentalese.models.transformers_seam import attention_of


def decoder_config(where: str, fields: dict[str, Any]) -> Any:
    """The Hugging Face config of a decoder from its `model_type` and fields.

    Args:
        where: the field that contains them, for messages.

    Raises:
        InputError: no causal LM of that type, one of our own, an unknown field, or a value that its config refuses.
    """
    values = dict(fields)
    kind = values.pop("model_type", None)
    if kind not in CONFIG_MAPPING or CONFIG_MAPPING[kind] not in MODEL_FOR_CAUSAL_LM_MAPPING:
        hint = nearest(str(kind), CONFIG_MAPPING.keys())
        raise InputError(f"{where}.model_type is {kind!r}: use the type of a transformers decoder (gpt2, llama){hint}")
    cls = CONFIG_MAPPING[kind]
    if issubclass(cls, LatentThoughtConfig):
        raise InputError(f"{where}.model_type is {kind!r}: use a decoder of transformers itself, such as gpt2 or llama")
    known = set(cls.__dataclass_fields__) | set(cls.attribute_map)
    for name in values:
        if name not in known:
            raise InputError(f"{where}.{name}: {kind} has no such field{nearest(name, known)}")
    check_numbers(where, cls, values)
    try:
        config = cls(**values)
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: {' '.join(str(error).split())}") from error
    if not all(hasattr(config, name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")):
        raise InputError(f"{where}.model_type is {kind!r}: it has no attention, use one that has (gpt2, llama)")
    if any(hasattr(config, name) for name in ("layers_block_type", "block_types")):
        raise InputError(f"{where}.model_type is {kind!r}: some layers are no attention, use another (gpt2, llama)")
    encoder = hasattr(config, "add_cross_attention") and getattr(config, "is_decoder", True) is False
    if config.is_encoder_decoder or encoder:
        raise InputError(f"{where}.model_type is {kind!r}: it is not only a decoder, use one that is (gpt2, llama)")
    return config


def sliding_window(config: Any) -> int | None:
    """The columns that a decoder's layers with sliding windows see; `None` if it has no such layers."""
    kinds = set(getattr(config, "layer_types", None) or ()) | set(getattr(config, "attention_layers", None) or ())
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return (window or 0) if "sliding_attention" in kinds else window if not kinds else None


def check_full_attention(where: str, config: Any, *, windows: bool = False) -> None:
    """Raises `InputError` for a decoder that counts columns of its cache: masked ones would take room in its window.

    Args:
        windows: sliding windows are allowed: no column between a row's tokens is masked, or the caller counts tokens.
    """
    kinds = set(getattr(config, "layer_types", None) or ()) | set(getattr(config, "attention_layers", None) or ())
    window, positions = sliding_window(config), getattr(config, "max_position_embeddings", 0)
    if window is not None and window < positions and not windows:
        raise InputError(
            f"{where}.sliding_window is {config.sliding_window} and max_position_embeddings {positions}: latents need "
            "attention in full, so set a window of all positions, or None if the type allows it"
        )
    if kinds - {"full_attention", "global", "sliding_attention"} or config.model_type in _BY_COLUMN:
        raise InputError(
            f"{where}.model_type is {config.model_type!r}: it does not attend in full to earlier tokens, use a "
            "decoder that does (gpt2, llama)"
        )


_BY_COLUMN = {"mpt"}  # whose bias counts columns

WINDOWED = (
    *("exaone4", "gemma3_text", "gpt_oss", "ministral", "mistral", "mixtral", "olmo3", "phi3", "qwen2", "qwen3"),
    *("smollm3", "starcoder2"),
)
"""Types with windows that take the masks of `attention_masks`."""

PAIRED = (*WINDOWED, "gpt2", "gpt_neox", "llama")
"""Types that take a mask of pairs, and embeddings for tokens."""


def takes_pairs(config: Any) -> bool:
    """Whether `attention_masks` are of pairs for a decoder without windows."""
    return attention_of(config) in ("sdpa", "eager") and config.model_type in PAIRED


def attention_masks(
    config: Any, mask: Tensor, positions: Tensor, start: int, dtype: torch.dtype, end: int | None = None
) -> Any:
    """What a decoder takes as `attention_mask`, with windows that count a row's tokens instead of columns.

    It is made of pairs where the decoder takes that: transformers waits for a GPU to know whether one of columns has
    padding.

    Args:
        config: the decoder's; of a type in `WINDOWED`, if it has windows.
        mask: bool [B, m], the columns that hold tokens.
        positions: int64 [B, m], of each token in its row.
        start: the columns from here on are read now, those before it lie in the cache.
        dtype: of the hidden states.
        end: those from here on hold nothing yet; `None`: there are none.

    Returns:
        [B, 1, end - start, m], or these by the kind of layer; of another decoder the mask as int64 [B, m].

    Raises:
        InputError: windows with an implementation of attention that takes no such masks.
    """
    window, kind = sliding_window(config), attention_of(config)
    if window is None and not takes_pairs(config):
        return mask.long()
    if kind not in ("sdpa", "eager"):
        raise InputError(
            f"attn_implementation is {kind!r}: the windows of a {config.model_type} are counted for sdpa and eager "
            "alone; use one of these"
        )
    column = torch.arange(mask.shape[1], device=mask.device)
    now = column[start:end, None]
    # A column of padding attends to itself: a row without any key has no softmax.
    full = ((column <= now) & mask[:, None]) | (column == now)
    masks = {"full_attention": full[:, None]}
    if window is not None:
        near = full & (positions[:, start:end, None] - positions[:, None] < window)
        masks["sliding_attention"] = near[:, None]
    if kind == "eager":  # which adds it to the scores
        lowest = torch.finfo(dtype).min
        masks = {name: torch.zeros_like(m, dtype=dtype).masked_fill(~m, lowest) for name, m in masks.items()}
    if window is not None and getattr(config, "layer_types", None):
        return masks
    return masks["full_attention" if window is None else "sliding_attention"]


def build_decoder(where: str, config: Any, attn_implementation: str | None = None) -> PreTrainedModel:
    """A decoder that reads `inputs_embeds` and whose logits are one matrix times its last hidden state.

    Args:
        attn_implementation: the one that was asked for; `None`: what transformers takes for this decoder.

    Raises:
        InputError: one that is or does something else, or that does not have this implementation.
    """
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation=attn_implementation, trust_remote_code=False
        )
    except ValueError as error:
        if attn_implementation is None or "attention" not in str(error):
            raise
        raise InputError(
            f"attn_implementation is {attn_implementation!r}: the backbone, a {config.model_type}, does not have it; "
            "remove it, or use eager"
        ) from error
    if "inputs_embeds" not in inspect.signature(model.base_model.forward).parameters:
        raise InputError(f"{where}.model_type is {config.model_type!r}: it does not read inputs_embeds, use another")
    check_head(model)
    return model


def check_head(model: PreTrainedModel) -> None:
    """Raises `InputError` if logits are more than the output embedding applied to the last hidden state."""
    head = model.get_output_embeddings()
    caps = ("final_logit_softcapping", "logit_scale", "logits_scaling", "output_multiplier_scale")
    capped = [name for name in caps if getattr(model.config, name, None) not in (None, 1, 1.0)]
    if head is None or getattr(head, "bias", None) is not None or capped:
        why = f"config.{capped[0]}" if capped else "no output embedding without bias"
        raise InputError(
            f"{type(model).__name__} turns hidden states into logits in its own way ({why}): "
            "use a decoder whose head is one matrix (gpt2, llama)"
        )


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The decoder's layers, wherever it keeps them: the modules that gradient checkpointing takes one by one."""
    return [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]


def linear_weights(model: nn.Module) -> int:
    """Weights of all linear maps but a model's head: what multiplies each token once; of experts those it goes to."""
    head: Any = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    heads = set() if head is None else set(head.modules())  # with what PEFT has wrapped around it
    maps = {id(m): m for m in model.modules() if isinstance(m, (nn.Linear, Conv1D)) and m not in heads}
    return sum(m.weight.numel() for m in maps.values()) + sum(_experts(m) for m in model.modules())


def _experts(block: nn.Module) -> int:
    """Weights that multiply a token in a block of experts, which are one tensor [experts, out, in], and in its router;
    0 for any other module."""
    experts, gate = getattr(block, "experts", None), getattr(block, "gate", None)
    if not isinstance(experts, nn.Module) or not isinstance(gate, nn.Module):
        return 0
    stacked = [p for p in experts.parameters() if p.ndim == 3]
    chosen: Any = getattr(block, "top_k", None) or getattr(gate, "top_k", 0)
    router = 0 if isinstance(gate, nn.Linear) else sum(p.numel() for p in gate.parameters() if p.ndim == 2)
    return router + sum(p.numel() // len(p) for p in stacked) * chosen


def attention_width(config: Any) -> int:
    """Channels of all heads of all layers: what a pair of a query and a key costs, twice."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return width * config.num_attention_heads * config.num_hidden_layers
