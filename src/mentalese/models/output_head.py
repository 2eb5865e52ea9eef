"""The map from a decoder's last hidden states to logits: its output embedding, or all that its own class does there.

Losses that read the output embedding as one matrix (`nn.loss`) would be silently wrong for decoders that cap their
logits (Gemma 2), scale them (Cohere, Granite) or the like. No list of such decoders would stay complete, so the
decoder's own `forward` is called, without its layers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mentalese.errors import InputError

_PLAIN: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Decoders that have been tried; True: the logits are what the output embedding returns."""


def output_head_of(decoder: PreTrainedModel) -> nn.Module:
    """Return the map from last hidden states [.., hidden] to logits [.., vocabulary]; its weights are the decoder's.

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
        raise InputError(
            f"{type(decoder).__name__} has no output embedding next to its layers: use another decoder (gpt2, llama)"
        )
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
