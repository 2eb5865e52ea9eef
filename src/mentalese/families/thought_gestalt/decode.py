"""One more token of every stream, from a cache: what generation does again and again.

On a GPU nothing here waits for the device: whether a sentence begins or ends is decided there, so that every token pays
for a sentence vector, which is written where a sentence has ended. On a CPU, whose values are at hand, only those
tokens do, and attention leaves out the slots that no stream uses.

Letters in shapes: B streams, T slots for the longest sentence, M vectors in memory, C cross-attention layers, d.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mentalese.families.thought_gestalt.blocks import OneToken, Step
from mentalese.families.thought_gestalt.memory import MemoryMap
from mentalese.families.thought_gestalt.streams import find_sentences
from mentalese.models.cache import ThoughtCache
from mentalese.nn.controls import controlled


class SentenceCache(ThoughtCache):
    """A `ThoughtCache`, and the map of vectors to keys and values, which are not projected again for one token."""

    def __init__(self) -> None:
        super().__init__()
        self.map: MemoryMap | None = None

    def reset(self) -> None:
        super().reset()
        self.map = None


def can_read_one(model: Any, input_ids: Tensor, cache: ThoughtCache | None) -> bool:
    """Whether `read_one` takes this call; a memory of tokens (`prefix`) has sentences that begin with several."""
    if cache is None or input_ids.shape[1] > 1 or model.config.memory == "prefix":
        return False
    return "count" in cache.state and not (torch.is_grad_enabled() or model.training)


def read_one(model: Any, input_ids: Tensor, attention_mask: Tensor | None, cache: ThoughtCache) -> Tensor:
    """Final hidden states [B, 1, d] of one token a stream, zero at padding; the cache moves on.

    Args:
        model: a `ThoughtGestaltForCausalLM`.
        input_ids: [B, 1].
        attention_mask: [B, 1], 0 at padding.

    Raises:
        InputError: see `find_sentences`; on a GPU, which is not waited for, what is wrong is not found.
    """
    config, state, ids = model.config, cache.state, input_ids[:, 0]
    size = config.max_sentence_tokens + 3
    real = ids != config.pad_token_id
    if attention_mask is not None:
        real = real & attention_mask[:, 0].bool()
    begins, ends = real & (ids == config.sentence_start_token_id), real & (ids == config.sentence_end_token_id)
    before = state["position"]
    on_host = ids.device.type == "cpu"
    if on_host and bool((real & ((begins == (before > 0)) | (before >= size))).any()):
        find_sentences(input_ids, attention_mask, config, before)
        raise AssertionError("wrong markers were not found")
    position = state["position"] = before.clamp(max=size - 1)  # padding after a sentence that is as long as can be
    x = model.embed(ids) + model.position_embed(position)
    if config.seeded and not (on_host and not bool(begins.any())):
        seeds = state["seed"] + model.position_embed(torch.zeros_like(position[:1]))
        x = torch.where((begins & (state["count"] > 0))[:, None], seeds.to(x.dtype), x)
    one = OneToken(state, size, config.memory_size)
    step = Step(one=one, has_memory=one.has_memory)
    if config.cross_layers:
        keys, values = state["ready"][:, : one.slots].unbind(-2)
        step.memory = dict(zip(config.cross_layers, zip(keys.unbind(-2), values.unbind(-2))))
    for layer, block in enumerate(model.layers):
        x = block(x, replace(step, layer=layer))
        if layer == config.recurrent_layers - 1 and not (on_host and not bool(ends.any())):
            _write(model, x, ends, cache)
    state["position"] = torch.where(ends, 0, before + real)
    cache.seen_tokens += 1
    return torch.where(real[:, None], model.final_norm(x), 0.0)[:, None]


def _write(model: Any, x: Tensor, ends: Tensor, cache: ThoughtCache) -> None:
    """Makes vectors of the states [B, d] and appends them to the memory of the streams where a sentence `ends` [B]."""
    config, state = model.config, cache.state
    vectors = controlled(model.sentence_head(x, 0.0, Step())[0], config.thought_control)
    memory_map = getattr(cache, "map", None)
    if memory_map is None:
        memory_map = model._memory_map(range(config.num_hidden_layers), x[:0])
        if isinstance(cache, SentenceCache):
            cache.map = memory_map
    count, entries, last = state["count"], state["memory"], config.memory_size - 1
    wide = (slice(None), slice(None), *[None] * (entries.ndim - 2))
    slot = torch.arange(config.memory_size, device=x.device)
    entries = torch.where((ends & (count > last))[:, None][wide], entries.roll(-1, 1), entries)  # the oldest falls out
    here = ends[:, None] & (slot == count.clamp(max=last)[:, None])
    entries = torch.where(here[wide], memory_map.entries(vectors)[:, None].to(entries.dtype), entries)
    keys, values = entries.unbind(-2)
    state |= {
        "memory": entries,
        "ready": torch.stack((keys + memory_map.positions, values), dim=-2),
        "count": (count + ends).clamp(max=config.memory_size),
        "seed": torch.where(ends[:, None], vectors.to(state["seed"].dtype), state["seed"]),
    }
