"""Another project's decoder inside a model of this library: its construction, its requirements and its costs."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Conv1D, GradientCheckpointingLayer, PreTrainedConfig, PreTrainedModel

from mentalese.errors import InputError, require
from mentalese.models.decoder_config import PAIRED, sliding_window
from mentalese.models.output_head import output_head_of
from mentalese.models.transformers_seam import attention_of


def takes_pairs(config: PreTrainedConfig) -> bool:
    """Test if `attention_masks` returns masks of pairs for a decoder without windows."""
    return attention_of(config) in ("sdpa", "eager") and config.model_type in PAIRED


def attention_masks(
    config: Any, mask: Tensor, positions: Tensor, start: int, dtype: torch.dtype, end: int | None = None
) -> Any:
    """Return the `attention_mask` of a decoder, with windows that count a row's tokens instead of columns.

    The mask is one of pairs if the decoder takes such masks: transformers waits for a GPU to know whether a mask of
    columns has padding.

    Args:
        config: the decoder's config; of a type in `WINDOWED` if it has windows.
        mask: bool [B, m], true at columns that hold tokens.
        positions: int64 [B, m], the position of each token in its row.
        start: the first column that is read now; earlier columns lie in the cache.
        dtype: type of the hidden states.
        end: the first of the columns that are still empty; `None`: there are none.

    Returns:
        [B, 1, end - start, m], or a dict of such masks by kind of layer; for other decoders the mask as int64 [B, m].

    Raises:
        InputError: the decoder has windows, and its implementation of attention takes no such masks.
    """
    window, kind = sliding_window(config), attention_of(config)
    if window is None and not takes_pairs(config):
        return mask.long()
    remedy = f"the windows of a {config.model_type} are counted only for sdpa and eager; use one of these"
    require(kind in ("sdpa", "eager"), "attn_implementation", kind, remedy)
    column = torch.arange(mask.shape[1], device=mask.device)
    now = column[start:end, None]
    # A column of padding attends to itself: a row without any key has no softmax.
    full = ((column <= now) & mask[:, None]) | (column == now)
    masks = {"full_attention": full[:, None]}
    if window is not None:
        near = full & (positions[:, start:end, None] - positions[:, None] < window)
        masks["sliding_attention"] = near[:, None]
    if kind == "eager":  # eager attention adds the mask to the scores
        lowest = torch.finfo(dtype).min
        masks = {name: torch.zeros_like(m, dtype=dtype).masked_fill(~m, lowest) for name, m in masks.items()}
    if window is not None and getattr(config, "layer_types", None):
        return masks
    return masks["full_attention" if window is None else "sliding_attention"]


def build_decoder(where: str, config: PreTrainedConfig, attn_implementation: str | None = None) -> PreTrainedModel:
    """Return a decoder that reads `inputs_embeds`.

    Args:
        attn_implementation: implementation of attention; `None`: transformers' choice for this decoder.

    Raises:
        InputError: the decoder is or does something else, or does not have this implementation.
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
    reads = "inputs_embeds" in inspect.signature(model.base_model.forward).parameters
    require(reads, f"{where}.model_type", config.model_type, "it does not read inputs_embeds, use another")
    output_head_of(model)
    return model


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the decoder's layers, which gradient checkpointing handles one by one."""
    return [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]


def linear_weights(model: nn.Module) -> int:
    """Count the weights of linear maps, without the head, that multiply a token; of experts only the active ones."""
    head: Any = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    heads = set() if head is None else set(head.modules())  # including PEFT's wrappers
    maps = {id(m): m for m in model.modules() if isinstance(m, (nn.Linear, Conv1D)) and m not in heads}
    return sum(m.weight.numel() for m in maps.values()) + sum(_experts(m) for m in model.modules())


def _experts(block: nn.Module) -> int:
    """Count the weights that multiply a token in a block of experts and in its router; return 0 for any other module.

    The weights of the experts are one tensor [experts, out, in].
    """
    experts, gate = getattr(block, "experts", None), getattr(block, "gate", None)
    if not isinstance(experts, nn.Module) or not isinstance(gate, nn.Module):
        return 0
    stacked = [p for p in experts.parameters() if p.ndim == 3]
    chosen: Any = getattr(block, "top_k", None) or getattr(gate, "top_k", 0)
    router = 0 if isinstance(gate, nn.Linear) else sum(p.numel() for p in gate.parameters() if p.ndim == 2)
    return router + sum(p.numel() // len(p) for p in stacked) * chosen


def attention_width(config: PreTrainedConfig) -> int:
    """Return the channels of all heads of all layers; a pair of a query and a key costs twice as many multiply-adds."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return width * config.num_attention_heads * config.num_hidden_layers
