"""Continuation from a cache, the inner loop of generation.

A call reads sentence by sentence: the new tokens of one sentence of each stream, padded; usually a single token. On a
GPU the host does not wait: the device decides if a sentence begins or ends, so a sentence vector is computed for every
token and written only where a sentence has ended. On a CPU vectors are computed only at the ends of sentences, and
attention skips slots that no stream uses.

Letters in shapes: B streams of L tokens in a call, T in a sentence; S slots for the longest sentence, m vectors to
read, d hidden size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from mentalese.families.thought_gestalt.plan import Step, readable
from mentalese.families.thought_gestalt.streams import Sentences, find_sentences
from mentalese.models.cache import ThoughtCache
from mentalese.nn.blocks import merge_heads
from mentalese.nn.controls import controlled
from mentalese.nn.ragged import Ragged, split_heads, within

if TYPE_CHECKING:
    from mentalese.families.thought_gestalt.model import ThoughtGestaltForCausalLM


class SentenceCache(ThoughtCache):
    """The open sentence of each stream, and the memory.

    `state` holds for each stream: the `position` in its open sentence, the `count` of its vectors, their `memory`, keys
    and values with positions as `ready`, the latest vector as `seed`, and for each layer, as `self.LAYER`
    [B, S + 1, 2 d], keys and values of the open sentence. The last slot receives the writes of padding. `shared` has
    the `MemoryMap`, so that its weights are not concatenated for each token.

    Attributes:
        sequences: none; slots replace sequences.
        places: the streams [B, 1] and slots [B, T] of the new tokens.
        end: number of slots to read.
        seen: bool [B, 1, T, end], the slots that a token sees; `None`: all.
        used: bool [B, 1, 1, m], the slots of the memory that may be read; `None`: all.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sequences = Ragged.of(torch.zeros(0, dtype=torch.long))
        self.places = torch.empty(0), torch.empty(0)
        self.end = 0
        self.seen: Tensor | None = None
        self.used: Tensor | None = None

    def place(self, slots: Tensor, size: int, first: Tensor | None = None) -> None:
        """Set the slots [B, T] of the next tokens, which see slots from `first` [B] on; padding goes to `size`."""
        self.places, self.end, alike = (torch.arange(len(slots), device=slots.device)[:, None], slots), size, False
        if slots.device.type == "cpu":
            used = set(slots.flatten().tolist())
            self.end = max((slot for slot in used if slot < size), default=0) + 1
            alike = slots.shape[1] == 1 and first is None and len(used) == 1
        slot = torch.arange(self.end, device=slots.device)
        self.seen = None if alike else (slot <= slots[..., None])[:, None]
        if self.seen is not None and first is not None:
            self.seen = self.seen & (slot >= first[:, None, None, None])

    @torch.compiler.disable
    def attend(self, layer: int, qkv: Tensor, heads: int, dropout: float) -> Tensor:
        """Return the attention [B * T, d] of the new tokens [B * T, 3 d] to their sentence so far."""
        name, shape = f"self.{layer}", self.places[1].shape
        q, kv = qkv.split((qkv.shape[1] // 3, qkv.shape[1] * 2 // 3), dim=-1)
        slots = self.state[name]
        put = slots.index_put if torch.is_grad_enabled() else slots.index_put_
        slots = self.state[name] = put(self.places, kv.reshape(*shape, -1).to(slots.dtype))
        keys, values = slots[:, : self.end].to(q.dtype).chunk(2, dim=-1)
        return self.read(q, keys, values, heads, dropout, self.seen)

    @torch.compiler.disable
    def read(
        self, q: Tensor, keys: Tensor, values: Tensor, heads: int, dropout: float, mask: Tensor | None = None
    ) -> Tensor:
        """Return the attention [B * T, d] of the new tokens [B * T, d] to keys and values [B, m, d]."""
        query, k, v = (split_heads(x, heads) for x in (q.view(len(keys), -1, q.shape[1]), keys, values))
        out = F.scaled_dot_product_attention(query, k, v, attn_mask=mask, dropout_p=dropout)
        return merge_heads(out).flatten(0, 1)


def read_on(
    model: ThoughtGestaltForCausalLM, input_ids: Tensor, attention_mask: Tensor | None, cache: SentenceCache
) -> tuple[Tensor, Sentences | None]:
    """Return final hidden states [B, L, d], zero at padding, and the sentences of several tokens; the cache moves on.

    Raises:
        InputError: see `find_sentences`; on a GPU, to avoid waiting, markers are checked only in the first call and for
            several tokens.
    """
    config, rows, length = model.config, *input_ids.shape
    real = input_ids != config.pad_token_id
    real = real if attention_mask is None else real & attention_mask.bool()
    if torch.is_grad_enabled():
        cache.shared.clear()  # the map's graph belongs to an earlier call
    if length == 1 and cache.state and not _is_wrong(model, input_ids[:, 0], real[:, 0], cache.state["position"]):
        cache.seen_tokens += 1
        return _read_sentence(model, input_ids, real, cache), None
    sentences = find_sentences(input_ids, real, config, cache.state.get("position"))
    if not cache.state:
        zeros = torch.zeros(rows, dtype=torch.long, device=input_ids.device)
        cache.state |= {"position": zeros, "count": zeros}
    cache.seen_tokens += length
    if not sentences.counts:  # only padding
        return torch.zeros_like(model.embed(input_ids)), sentences
    indices, states = [], []
    for k in range(len(sentences.counts)):
        step = sentences.part(range(k, k + 1))
        index = torch.full((rows, int(step.lengths.max())), -1)  # in the flattened streams
        index[step.streams.repeat_interleave(step.lengths), within(step.lengths)] = step.source
        index = index.to(input_ids.device)
        here = index >= 0
        ids = torch.where(here, input_ids.flatten()[index.clamp(min=0)], config.pad_token_id)
        indices.append(index[here])
        states.append(_read_sentence(model, ids, here, cache)[here])
    hidden = states[0].new_zeros(rows * length, config.hidden_size).index_copy(0, torch.cat(indices), torch.cat(states))
    return hidden.view(rows, length, -1), sentences


def _is_wrong(model: ThoughtGestaltForCausalLM, ids: Tensor, real: Tensor, position: Tensor) -> bool:
    """Return True if these tokens cannot continue a sentence of the streams [B]; on a GPU always False."""
    if ids.device.type != "cpu":
        return False
    begins, size = ids == model.config.sentence_start_token_id, model.config.max_sentence_tokens + 3
    return bool((real & ((begins == (position > 0)) | (position >= size))).any())


def _read_sentence(model: ThoughtGestaltForCausalLM, ids: Tensor, real: Tensor, cache: SentenceCache) -> Tensor:
    """Return final hidden states [B, T, d], zero at padding, of the next tokens of one sentence of each stream."""
    config, state, on_host = model.config, cache.state, ids.device.type == "cpu"
    rows, new = ids.shape
    position, count = state["position"], state["count"]
    starts, ends = real & (ids == config.sentence_start_token_id), real & (ids == config.sentence_end_token_id)
    begins, ends = starts[:, 0], ends[:, 0] if new == 1 else ends.any(1)
    tokens = real[:, 0] if new == 1 else real.sum(1)
    some_begin, some_end = not on_host or bool(begins.any()), not on_host or bool(ends.any())
    size, room = config.max_sentence_tokens + 3, config.memory_size if config.memory == "prefix" else 0
    places = position[:, None] if new == 1 else position[:, None] + torch.arange(new, device=ids.device)
    x = model.embed(ids) + model.position_embed(places.clamp(max=size - 1))
    if "map" not in cache.shared:
        cache.shared["map"] = model.memory_map(range(config.num_hidden_layers), x[:0])
    if "memory" not in state:
        memory = cache.shared["map"].entries(x.new_zeros(1, config.hidden_size))
        memory = memory.new_zeros(rows, config.memory_size, *memory.shape[1:])
        state |= {"memory": memory, "ready": memory} if config.cross_layers else {"memory": memory}
        state |= {"seed": x.new_zeros(rows, config.hidden_size)}
        keys = x.new_zeros(rows, room + size + 1, 2 * config.hidden_size)
        state |= {f"self.{layer}": keys.clone() for layer in range(config.num_hidden_layers)}
    if config.seeded and some_begin:
        seed = (state["seed"] + model.position_embed(torch.zeros_like(position[:1]))).to(x.dtype)
        x = torch.where((starts & (count > 0)[:, None])[..., None], seed[:, None], x)
    x = F.dropout(x, config.embedding_dropout, model.training)
    first = room - count if room else None
    if first is not None and some_begin:
        _read_prefix(model, begins, first, cache, x.dtype)
    slots = places if new == 1 and not room else torch.where(real, room + places, room + size)
    cache.place(slots, room + size, first)
    x, middle = _run_layers(model, x, cache)
    if some_end:
        last = middle[:, 0] if new == 1 else middle[cache.places[0][:, 0], (tokens - 1).clamp(min=0)]
        _write(model, last, ends, cache)
    state["position"] = torch.where(ends, 0, position + tokens)
    return torch.where(real[..., None], model.final_norm(x), 0.0)


def _read_prefix(
    model: ThoughtGestaltForCausalLM, begins: Tensor, first: Tensor, cache: SentenceCache, dtype: torch.dtype
) -> None:
    """Read the prefix vectors of sentences that begin [B] into the slots from `first` [B] to the first token."""
    room, size = model.config.memory_size, model.config.memory_size + model.config.max_sentence_tokens + 3
    slot = torch.arange(room, device=first.device)
    vectors = cache.state["memory"] + cache.shared["map"].positions
    vectors = vectors.gather(1, (slot - first[:, None]).clamp(min=0)[..., None].expand_as(vectors))
    cache.place(torch.where(begins[:, None] & (slot >= first[:, None]), slot, size), size, first)
    _run_layers(model, vectors.to(dtype), cache)


def _run_layers(model: ThoughtGestaltForCausalLM, x: Tensor, cache: SentenceCache) -> tuple[Tensor, Tensor]:
    """Return the states [B, T, d] of tokens after all layers, and after the recurrent ones."""
    config, state, shape = model.config, cache.state, x.shape
    step = Step(cache.sequences, cache=cache)
    if config.cross_layers:
        count, slots = state["count"], config.memory_size
        alike = False
        if x.device.type == "cpu":
            slots = max(1, int(count.max()))
            alike = bool((count == slots).all())
        cache.used = None
        if not alike:
            step.has_memory = (count > 0)[:, None, None].expand(*shape[:2], 1).flatten(0, 1)
            cache.used = readable(torch.arange(slots, device=x.device) < count[:, None])[:, None, None]
        keys, values = state["ready"][:, :slots].unbind(-2)
        step.memory = dict(zip(config.cross_layers, zip(keys.unbind(-2), values.unbind(-2))))
    x = middle = x.flatten(0, 1)
    for layer, block in enumerate(model.layers):
        x = block(x, replace(step, layer=layer))
        if layer == config.recurrent_layers - 1:
            middle = x
    return x.view(shape), middle.view(shape)


def _write(model: ThoughtGestaltForCausalLM, states: Tensor, ends: Tensor, cache: SentenceCache) -> None:
    """Compute vectors from states [B, d] and append them to the memory of streams whose sentence `ends` [B]."""
    config, state = model.config, cache.state
    if not config.recurrent_layers:
        return
    vectors = controlled(model.sentence_head(states, 0.0)[0], config.thought_control)
    vectors = vectors.detach() if config.memory_gradient_window == 0 else vectors
    count, entries, last = state["count"], state["memory"], config.memory_size - 1
    wide = (slice(None), slice(None), *[None] * (entries.ndim - 2))
    slot = torch.arange(config.memory_size, device=states.device)
    entries = torch.where((ends & (count > last))[:, None][wide], entries.roll(-1, 1), entries)  # the oldest falls out
    here = ends[:, None] & (slot == count.clamp(max=last)[:, None])
    entries = torch.where(here[wide], cache.shared["map"].entries(vectors)[:, None].to(entries.dtype), entries)
    state |= {
        "memory": entries,
        "count": (count + ends).clamp(max=config.memory_size),
        "seed": torch.where(ends[:, None], vectors.to(state["seed"].dtype), state["seed"]),
    }
    if config.cross_layers:
        keys, values = entries.unbind(-2)
        state["ready"] = torch.stack((keys + cache.shared["map"].positions, values), dim=-2)
