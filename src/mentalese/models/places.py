"""The places of the layers of another project's decoder, found in its modules and tested on a small decoder.

A family that reads or adds in front of a decoder's layers, or adds layers of its kind, needs the list of layers, the
final norm, the rotary positions, and a check that a layer called by itself computes the same as inside the decoder.
"""

from __future__ import annotations

import copy
import inspect
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel

from mentalese.errors import InputError
from mentalese.models.transformers_seam import CACHE, attention_of


@dataclass(frozen=True)
class Places:
    """Names of the parts of a decoder's body that modules next to its layers need.

    Attributes:
        layers: the list of its layers, which take hidden states first and are constructed from (config, index).
        norm: its final norm.
        rotary: the module for a layer's `position_embeddings`, if layers take them.
        by_kind: the rotary module differs by kind of attention (`config.layer_types`).
        cache: the keyword by which a layer takes a cache.
    """

    layers: str
    norm: str
    rotary: str | None
    by_kind: bool
    cache: str

    def positions(self, body: Any, hidden: Tensor, position_ids: Tensor, layers: int) -> list[dict[str, object]]:
        """Return keywords of each of the first layers for the positions [B, L] of hidden states [B, L, d]."""
        if self.rotary is None:
            return [{}] * layers
        rotary = getattr(body, self.rotary)
        if not self.by_kind:
            return [{"position_embeddings": rotary(hidden, position_ids=position_ids)}] * layers
        kinds = body.config.layer_types[:layers]
        embeddings = {kind: rotary(hidden, position_ids=position_ids, layer_type=kind) for kind in dict.fromkeys(kinds)}
        return [{"position_embeddings": embeddings[kind]} for kind in kinds]


def places(where: str, decoder: nn.Module) -> Places:
    """Return the places of a decoder's layers; raise `InputError` about the field `where` if they are not usable."""
    body: Any = decoder.base_model
    small = _small(body.config)
    key = f"{type(decoder).__name__} {attention_of(small)} " + small.to_json_string(use_diff=False)
    if key not in _tried:
        _tried[key] = _try(type(decoder), small)
    result = _tried[key]
    if isinstance(result, str):
        kind = body.config.model_type
        raise InputError(f"{where}.model_type is {kind!r}: {result}; use another decoder, such as gpt2 or llama")
    return result


_tried: dict[str, Places | str] = {}
"""Places, or the reason why they cannot be used, by class, attention and config of the small decoder."""


def _find(body: PreTrainedModel) -> Places:
    """Return the places of a body by its modules' kinds; raise `LookupError` if one is missing."""
    children: dict[str, Any] = dict(body.named_children())
    lists = [name for name, child in children.items() if isinstance(child, nn.ModuleList)]
    lists = [name for name in lists if len(children[name]) == body.config.num_hidden_layers]
    norms = [name for name, child in children.items() if "Norm" in type(child).__name__]
    rotary = [name for name, child in children.items() if "Rotary" in type(child).__name__]
    if len(lists) != 1 or not norms or len(rotary) > 1:
        raise LookupError("its layers or its final norm were not found")
    takes = inspect.signature(type(children[lists[0]][0]).forward).parameters
    cache = next((name for name in (CACHE, "layer_past") if name in takes), None)
    if cache is None:
        raise LookupError("its layers take no cache")
    embeds = rotary[0] if rotary and "position_embeddings" in takes else None
    by_kind = embeds is not None and "layer_type" in inspect.signature(children[embeds].forward).parameters
    return Places(lists[0], norms[-1], embeds, by_kind, cache)


_SIZES = {"hidden_size": 16, "intermediate_size": 32, "moe_intermediate_size": 16, "vocab_size": 16}
_SIZES |= {"num_attention_heads": 2, "head_dim": 8}
_LENGTH = 9


def _small(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return a config of the same kind of decoder, with each kind of its layers and small sizes."""
    small = copy.deepcopy(config)
    kinds = list(getattr(config, "layer_types", None) or [])
    layers = max([2, *(kinds.index(kind) + 1 for kind in set(kinds))])
    grouped = getattr(config, "num_key_value_heads", None) not in (None, config.num_attention_heads)
    for name, value in vars(config).items():
        if isinstance(value, (list, tuple)) and len(value) == config.num_hidden_layers:
            setattr(small, name, list(value[:layers]))
    changes: dict[str, object] = {
        name: size for name, size in _SIZES.items() if getattr(config, name, None) is not None
    }
    changes |= {"num_hidden_layers": min(layers, config.num_hidden_layers)}
    changes |= {"num_key_value_heads": 1 if grouped else 2} if hasattr(config, "num_key_value_heads") else {}
    changes |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    changes |= {"sliding_window": _LENGTH + 1} if getattr(config, "sliding_window", None) else {}
    changes |= {"rope_parameters": _plain(config.rope_parameters)} if getattr(config, "rope_parameters", None) else {}
    for name, value in changes.items():
        with suppress(AttributeError):  # Falcon computes the size of its heads
            setattr(small, name, value)
    return small


def _plain(rope: dict[str, Any]) -> dict[str, object]:
    """Return rotary positions without their stretching, whose sizes fit only the large heads."""
    if all(isinstance(value, dict) for value in rope.values()):  # by kind of attention
        return {kind: _plain(value) for kind, value in rope.items()}
    fields: dict[str, object] = {name: rope[name] for name in ("rope_theta", "partial_rotary_factor") if name in rope}
    return {"rope_type": "default", **fields}


def _try(cls: type, config: PreTrainedConfig) -> Places | str:
    """Return the places of a small decoder of this class, or the reason why they cannot be used."""
    # While a model is loaded, modules are built without memory, in another precision and without initialisation.
    precision = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
            generator = torch.Generator().manual_seed(0)  # the global seed would change the generators of GPUs too
            decoder: Any = cls(config).eval()
            for parameter in decoder.parameters():
                parameter.uniform_(-0.3, 0.3, generator=generator)
            result = _find(decoder.base_model)
            _compare(decoder.base_model, result)
            return result
    except LookupError as problem:
        return str(problem)
    except Exception as problem:  # other projects' layers raise errors of many types
        return f"its layers cannot be called by themselves ({' '.join(str(problem).split())})"
    finally:
        torch.set_default_dtype(precision)


def _compare(body: Any, found: Places) -> None:
    """Raise `LookupError` unless each layer by itself, at once and in steps, computes the same as in the body."""
    layers, ids = getattr(body, found.layers), torch.arange(_LENGTH)[None]
    read: list[Tensor] = []
    reached: list[object] = []

    def look(layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> object:
        reached.append(kwargs.pop("probe", None))
        read.append(args[0] if args else kwargs["hidden_states"])
        return args, kwargs

    hooks = [layer.register_forward_pre_hook(look, with_kwargs=True) for layer in layers]
    whole = body(ids, probe=found).last_hidden_state
    for hook in hooks:
        hook.remove()
    if reached != [found] * len(layers):
        raise LookupError("it does not hand keywords to its layers")
    positions, mask = torch.arange(_LENGTH)[None], None
    if attention_of(body.config) != "sdpa":  # the decoder makes a causal mask itself
        mask = torch.full((1, 1, _LENGTH, _LENGTH), torch.finfo(torch.float32).min).triu(1)
    for number, layer in enumerate(layers):
        options = found.positions(body, read[number], positions, len(layers))[number]
        at_once = layer(read[number], attention_mask=mask, use_cache=False, **options)
        keys, steps = DynamicCache(), []
        for t in range(_LENGTH):
            now = found.positions(body, read[number], positions[:, t : t + 1], len(layers))[number]
            now |= {found.cache: keys, "attention_mask": None, "use_cache": True}
            steps.append(layer(read[number][:, t : t + 1], **now))
        inside = read[number + 1] if number + 1 < len(layers) else None
        for states in (at_once, torch.cat(steps, dim=1)):
            output = getattr(body, found.norm)(states) if inside is None else states
            if not torch.allclose(output, whole if inside is None else inside, atol=1e-4, rtol=1e-4):
                raise LookupError("its layers by themselves do something else than inside it")
