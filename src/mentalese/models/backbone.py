"""Another project's decoder inside a model of this library: its construction, its masks, its head and its costs."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import Conv1D, GradientCheckpointingLayer, PreTrainedConfig, PreTrainedModel

from mentalese.errors import InputError, require
from mentalese.models.config import PAIRED, sliding_window
from mentalese.models.transformers_seam import attention_of


def takes_pairs(config: PreTrainedConfig) -> bool:
    """Test if `attention_masks` returns masks of pairs for a decoder without windows."""
    return attention_of(config) in ("sdpa", "eager") and config.model_type in PAIRED


def attention_masks(
    config: Any, mask: Tensor, positions: Tensor, start: int, dtype: torch.dtype, end: int | None = None
) -> Any:
    """Return the `attention_mask` of a decoder, with windows that count a row's tokens instead of columns.

    It is one of pairs if the decoder takes such masks: transformers waits for a GPU to search a mask of columns.

    Args:
        mask: bool [B, m], true at columns that hold tokens.
        positions: int64 [B, m], the position of each token in its row.
        start: the first column that is read now; earlier columns lie in the cache.
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

    Raises:
        InputError: the decoder is or does something else, or lacks this implementation of attention.
    """
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation=attn_implementation, trust_remote_code=False
        )
    except ValueError as error:
        if attn_implementation is None or "attention" not in str(error):
            raise
        remedy = f"the backbone, a {config.model_type}, does not have it; remove it, or use eager"
        raise InputError(f"attn_implementation is {attn_implementation!r}: {remedy}") from error
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
    """Count the weights, of experts [experts, out, in] and router, that multiply a token; 0 for any other module."""
    experts = getattr(block, "experts", None)
    stacked = [p for p in experts.parameters() if p.ndim == 3] if isinstance(experts, nn.Module) else []
    gate: Any = getattr(block, "gate", getattr(block, "router", None))
    if not stacked or gate is None:
        return 0
    named = [(block, "top_k"), (gate, "top_k"), (getattr(gate, "config", None), "top_k_experts")]
    chosen: Any = next((number for where, name in named if (number := getattr(where, name, None))), None)
    if chosen is None:
        raise InputError(f"{type(block).__name__} does not say how many experts a token has: use another base")
    router = [p for p in gate.parameters(recurse=False) if p.ndim == 2 and not isinstance(gate, nn.Linear)]
    return sum(p.numel() for p in router) + sum(p.numel() // len(p) for p in stacked) * chosen


def attention_width(config: PreTrainedConfig) -> int:
    """Return the channels of all heads of all layers; a pair of a query and a key costs twice as many multiply-adds."""
    heads = getattr(config, "num_attention_heads", 0)  # Mamba has no attention
    width = getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else 0)
    return width * heads * config.num_hidden_layers


# -- the output head ---------------------------------------------------------------------------------------------------

_PLAIN: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Decoders that have been tried; True: the logits are what the output embedding returns."""


def output_head_of(decoder: PreTrainedModel) -> nn.Module:
    """Return the map from last hidden states [.., hidden] to logits [.., vocabulary]; its weights are the decoder's.

    A loss that reads the output embedding as one matrix would be wrong for decoders that cap logits (Gemma 2), scale
    them (Cohere, Granite) or the like, and no list of them stays complete: `decoder.forward` is called, without layers.

    Raises:
        InputError: the decoder has no output embedding, or it lies inside another module.
    """
    head = decoder.get_output_embeddings()
    if decoder not in _PLAIN:
        _PLAIN[decoder] = _is_plain(decoder, head)
    return head if _PLAIN[decoder] else _OwnHead(decoder)


class _OwnHead(nn.Module):
    """A decoder's own `forward`, whose layers are replaced by given hidden states."""

    decoder: Any

    def __init__(self, decoder: PreTrainedModel, **replaced: nn.Module) -> None:
        super().__init__()
        body = _with_forward(decoder.base_model, _given)
        # Some classes call a part of the body (OPT's `model.decoder`).
        vars(body)["_modules"] = {name: _with_forward(part, _given) for name, part in body.named_children()}
        decoder = copy.copy(decoder)
        children = {decoder.base_model_prefix: body} | replaced
        vars(decoder)["_modules"] = {**decoder._modules, **children}
        vars(self)["decoder"] = decoder  # not a child, so that its weights have one name

    def forward(self, hidden: Tensor) -> Tensor:
        rows: Any = hidden.reshape(1, -1, hidden.shape[-1])
        # By the class: an instance may have a `forward` that other tools have set, which calls the decoder itself.
        output = type(self.decoder).forward(self.decoder, inputs_embeds=rows, use_cache=False, return_dict=True)
        logits: Tensor = output.logits
        return logits.view(*hidden.shape[:-1], logits.shape[-1])


class _Output(SimpleNamespace):
    """A body's output, in which every field but `last_hidden_state` is `None`."""

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, index: int) -> Tensor:
        return self.last_hidden_state


def _given(*args: object, inputs_embeds: Tensor, **options: object) -> _Output:
    return _Output(last_hidden_state=inputs_embeds)


def _with_forward(module: nn.Module, forward: Callable[..., object]) -> nn.Module:
    """Return the module with another `forward`; both have the same weights."""
    changed = copy.copy(module)
    vars(changed)["forward"] = forward
    return changed


def _is_plain(decoder: PreTrainedModel, head: nn.Module | None) -> bool:
    """Test if a decoder gives its last hidden states to its head, and returns what the head does, unchanged."""
    names = [name for name, child in decoder.named_children() if child is head]
    if head is None or not names:
        remedy = "use another decoder (gpt2, llama)"
        raise InputError(f"{type(decoder).__name__} has no output embedding next to its layers: {remedy}")
    # Values beyond any cap; of all tokens, since some decoders cut padding off.
    sizes = decoder.config.hidden_size, decoder.config.vocab_size
    hidden, logits = (torch.linspace(-1000, 1000, size, device="cpu")[None] for size in sizes)
    read: list[Tensor] = []

    def recorded(states: Tensor) -> Tensor:
        read.append(states)
        return logits[None]

    replaced = _with_forward(head, recorded)
    try:
        with torch.no_grad():
            found = _OwnHead(decoder, **dict.fromkeys(names, replaced))(hidden)
    except TypeError as error:
        raise InputError(f"{type(decoder).__name__} does not read inputs_embeds: use another decoder") from error
    except RuntimeError:  # further weights of another type or on another device
        return False
    return bool(read) and torch.equal(read[0][0], hidden) and torch.equal(found, logits)
