"""A cache of fixed size beside one that grows, on texts of several calls; what has no room is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from mentalese.errors import InputError
from mentalese.families.coconut.config import CoconutConfig
from mentalese.families.coconut.model import CoconutForCausalLM
from mentalese.families.looped.config import LoopedConfig
from mentalese.families.looped.model import LoopedForCausalLM
from mentalese.models.cache import ThoughtCache
from mentalese.models.wrapped import WrappedDecoder

LATENT = 2
SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 64}
LLAMA = SIZES | {"model_type": "llama", "intermediate_size": 64, "num_key_value_heads": 2}
BACKBONES: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4},
    "gpt_neox": SIZES | {"model_type": "gpt_neox", "intermediate_size": 64},
    "llama": LLAMA,
    "mistral": LLAMA | {"model_type": "mistral", "sliding_window": 6},
    "opt": SIZES | {"model_type": "opt", "ffn_dim": 64, "word_embed_proj_dim": 32},
}
TURNS: list[dict[str, Any]] = [{}, {"cache_turns": 2}, {"exit_distance": 0.5}, {"exit_distance": 0.5, "cache_turns": 2}]
PIECES = [
    [[0, 0, 10, 11, LATENT, LATENT, 12], [13, 14, 15, 16, LATENT, LATENT, LATENT]],
    [[LATENT], [17]],
    [[18, 19, LATENT, 20], [0, 0, 0, 21]],
    [[22], [23]],
]
"""Tokens of two rows, call by call; 0 is padding."""


def coconut(backbone: str) -> CoconutForCausalLM:
    torch.manual_seed(0)
    fields = {"vocab_size": 60, "latent_token_id": LATENT, "pad_token_id": 0, "mode": "agclr"}
    return CoconutForCausalLM(CoconutConfig(backbone=BACKBONES[backbone], **fields)).eval()


def looped(fields: dict[str, Any]) -> LoopedForCausalLM:
    torch.manual_seed(0)
    return LoopedForCausalLM(LoopedConfig(backbone=LLAMA, vocab_size=60, pad_token_id=0, **fields)).eval()


@torch.no_grad()
def read(model: WrappedDecoder, cache: ThoughtCache) -> list[Tensor]:
    """Logits of the tokens of each piece."""
    logits, mask = [], torch.zeros(2, 0, dtype=torch.long)
    for piece in PIECES:
        ids = torch.tensor(piece)
        mask = torch.cat((mask, (ids > 0).long()), dim=1)
        logits.append(model(ids, attention_mask=mask, past_key_values=cache).logits[ids > 0])
    return logits


MODELS = [
    *(partial(coconut, name) for name in BACKBONES if name != "opt"),
    *(partial(looped, turns) for turns in TURNS),
]


@pytest.mark.parametrize("made", MODELS, ids=lambda made: str(made.args[0]))
def test_a_fixed_cache_matches_a_growing_one_over_calls(made: Callable[[], WrappedDecoder]) -> None:
    model = made()
    expected, cache = read(model, model.new_cache()), model.new_cache()
    cache.max_tokens = 20
    torch.testing.assert_close(read(model, cache), expected)
    held = cache.layers[0].keys
    assert held.shape[2] >= 20
    cache.reset()
    torch.testing.assert_close(read(model, cache), expected)
    assert cache.layers[0].keys is held


def test_rows_are_moved_within_the_same_tensors() -> None:
    model = coconut("gpt2")
    cache = model.new_cache()
    cache.max_tokens = 20
    read(model, cache)
    held, before = cache.layers[0].keys, cache.layers[0].keys.clone()
    cache.reorder_cache(torch.tensor([1, 1]))
    assert cache.layers[0].keys is held
    assert torch.equal(held, before[[1, 1]])


def test_what_has_no_room_is_refused_before_it_is_written() -> None:
    model = coconut("gpt2")
    cache = model.new_cache()
    cache.max_tokens = 10
    model(torch.full((2, 5), 9), past_key_values=cache)
    says = r"the length with (cache|past_key_values) is 11: it has room for 10"
    with pytest.raises(InputError, match=says):
        model(torch.full((2, 6), 9), past_key_values=cache)
    # One row's latents lie beside the other's rest: 5 tokens take 7 columns.
    apart = torch.tensor([[9, 9, 9, LATENT, 9], [LATENT, LATENT, 9, 9, 9]])
    says = r"the length with (cache|past_key_values) is 13: it has room for 10"
    with pytest.raises(InputError, match=says):
        model(apart, past_key_values=cache)
    assert cache.seen_tokens == cache.layers[0].written == 5


def test_what_cannot_be_is_refused() -> None:
    ids, static = torch.full((2, 5), 9), {"cache_implementation": "static", "max_new_tokens": 2}
    with pytest.raises(InputError, match=r"\(the backbone, a opt with sdpa, takes no masks of pairs\), so remove it$"):
        coconut("opt").generate(ids, **static)
    model = looped({})
    with pytest.raises(
        InputError, match=r"^(cache|past_key_values) is set with cache_implementation 'static': it is used"
    ):
        model.generate(ids, past_key_values=model.new_cache(), **static)
    with pytest.raises(InputError, match=r"^cache_implementation is 'offloaded': LoopedForCausalLM has no such cache"):
        model.generate(ids, cache_implementation="offloaded", max_new_tokens=2)


@pytest.mark.parametrize("model", ["coconut", "looped"])
def test_a_cache_has_the_largest_size_and_serves_again(model: str) -> None:
    made = coconut("gpt2") if model == "coconut" else looped({})
    ids, found = torch.tensor([[9, 8, LATENT, 7, 6], [0, 5, 4, 3, 1]]), []
    options: dict[str, Any] = {"attention_mask": ids.sign(), "do_sample": False, "return_dict_in_generate": True}
    for new in (8, 6):
        options |= {"min_new_tokens": new, "max_new_tokens": new}
        found.append(made.generate(ids, cache_implementation="static", **options))
    caches = [output.past_key_values for output in found]
    assert caches[0].layers[0].keys.shape == caches[1].layers[0].keys.shape
    caches[0].reset()
    again = made.generate(ids, past_key_values=caches[0], **options)
    assert torch.equal(again.sequences, found[1].sequences)
    assert again.past_key_values is caches[0]
