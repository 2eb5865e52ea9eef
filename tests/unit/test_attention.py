"""Attention with a score a key, and rotary positions: each held to its plain form."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from mentalese.nn.attention import (
    add_weighted,
    attend_with_scores,
    causal_blocks,
    flex_attention_with_scores,
    with_scores,
)
from mentalese.nn.rotary import rotary_table, rotate, rotate_first
from references import rotate_reference, scored_attention_reference

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def inputs(length: int = 70, keys: int = 70) -> list[Tensor]:
    q, k, v = random(2, 3, length, 8), random(2, 3, keys, 8, seed=1), random(2, 3, keys, 8, seed=2)
    return [q, k, v, random(2, keys, seed=3)]


def scored(q: Tensor, k: Tensor, v: Tensor, scores: Tensor, **options: Any) -> Tensor:
    out = attend_with_scores(*with_scores(q, k, v, scores), q.shape[-1], **options)
    return out.unflatten(-1, (3, -1)).transpose(1, 2)


@pytest.mark.parametrize(("length", "masked"), [(70, False), (20, True), (300, False), (513, False)])
def test_a_score_in_a_channel_of_its_own_is_a_bias_of_the_logits(length: int, masked: bool) -> None:
    x = inputs(length, keys=70 if masked else length)
    mask = (random(2, 1, length, 70, seed=4) > -1) if masked else None
    got, expected = scored(*x, scale=0.3, attn_mask=mask), scored_attention_reference(*x, scale=0.3, attn_mask=mask)
    torch.testing.assert_close(got, expected, **CLOSE)
    weights = torch.linspace(-1, 1, got.numel()).view_as(got)
    for one, other in zip(*(torch.autograd.grad((out * weights).sum(), x) for out in (got, expected))):
        torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize("width", [8, 20, 64])
def test_a_head_is_padded_for_cuda_and_gives_the_same(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (random(2, 3, 30, width, seed=seed) for seed in range(3))
    scores = random(2, 30, seed=3)
    shapes = [x.shape[-1] for x in with_scores(*(x.to("meta") for x in (q, k, v, scores)))]
    assert shapes == [width + (8 - width % 8)] * 3
    monkeypatch.setattr("mentalese.nn.attention._channels", lambda width, device: 8 - width % 8)
    x = [q, k, v, scores]
    assert [y.shape[-1] for y in with_scores(*x)] == shapes
    got, expected = scored(*x, scale=0.3), scored_attention_reference(*x, scale=0.3)
    torch.testing.assert_close(got, expected, **CLOSE)
    weights = torch.linspace(-1, 1, got.numel()).view_as(got)
    for one, other in zip(*(torch.autograd.grad((out * weights).sum(), x) for out in (got, expected))):
        torch.testing.assert_close(one, other, **CLOSE)


def test_an_overwritten_channel_is_gone_from_the_logits() -> None:
    q, k, v, scores = inputs()
    got = attend_with_scores(*with_scores(q, k, v, scores, overwrite=True), 8, scale=0.3)
    got = got.unflatten(-1, (3, -1)).transpose(1, 2)
    causal = torch.ones(70, 70, dtype=torch.bool).tril()
    logits = 0.3 * (q[..., :-1] @ k[..., :-1].transpose(-1, -2) + scores[:, None, None])
    expected = logits.masked_fill(~causal, -torch.inf).softmax(-1) @ (v * scores.exp()[:, None, :, None])
    torch.testing.assert_close(got, expected, **CLOSE)


def test_a_weighted_sum_gives_its_scores_their_gradients() -> None:
    x, update, scores = random(2, 5, 8), random(2, 5, 8, seed=1), random(2, 5, seed=2)
    got, expected = add_weighted(x, update, scores), x + scores.exp()[..., None] * update
    torch.testing.assert_close(got, expected, **CLOSE)
    weights = torch.linspace(-1, 1, got.numel()).view_as(got)
    for one, other in zip(*(torch.autograd.grad((y * weights).sum(), [x, update, scores]) for y in (got, expected))):
        torch.testing.assert_close(one, other, **CLOSE)


def test_flex_attention_gives_the_same() -> None:
    x = [tensor.detach() for tensor in inputs()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that the uncompiled form is slow
        with torch.inference_mode():
            got = flex_attention_with_scores(*x, scale=0.3)
        blocks = causal_blocks.cache_info()
        again = flex_attention_with_scores(*x, scale=0.3)
    torch.testing.assert_close(got, scored_attention_reference(*x, scale=0.3), **CLOSE)
    assert torch.equal(got, again)
    assert causal_blocks.cache_info().misses == blocks.misses, "layers and passes share the mask"
    mask = causal_blocks(x[0].shape[2], x[0].device)
    assert not mask.kv_indices.is_inference(), "a mask that scoring made is good to train with"


def test_rotation_is_that_of_pairs_and_turns_back() -> None:
    x, positions = random(2, 3, 5, 8), random(2, 1, 5, seed=1).detach() * 50
    cos, sin = rotary_table(positions, 8)
    got, expected = rotate(x, cos, sin), rotate_reference(x, cos, sin)
    torch.testing.assert_close(got, expected, **CLOSE)
    torch.testing.assert_close(rotate(got, cos, -sin), x, **CLOSE)
    weights = torch.linspace(-1, 1, got.numel()).view_as(got)
    one, other = (torch.autograd.grad((out * weights).sum(), x)[0] for out in (got, expected))
    torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize("laid_as_a_map_does", [True, False])
def test_queries_and_keys_turn_at_once_and_values_do_not(laid_as_a_map_does: bool) -> None:
    qkv = random(2, 5, 3, 3, 8).permute(2, 0, 3, 1, 4) if laid_as_a_map_does else random(3, 2, 3, 5, 8)
    cos, sin = rotary_table(random(2, 1, 5, seed=1).detach() * 50, 8)
    got, expected = rotate_first(qkv, cos, sin), (rotate(qkv[0], cos, sin), rotate(qkv[1], cos, sin), qkv[2])
    weights = torch.linspace(-1, 1, qkv.numel()).view(qkv.shape)
    gradients = [torch.autograd.grad((torch.stack(out) * weights).sum(), qkv)[0] for out in (got, expected)]
    assert all(torch.equal(one, other) for one, other in zip((*got, gradients[0]), (*expected, gradients[1])))
    with torch.no_grad():
        assert all(torch.equal(one, other) for one, other in zip(rotate_first(qkv, cos, sin), expected))


def test_rotated_products_depend_on_distances_alone() -> None:
    q, k = random(1, 1, 1, 8), random(1, 1, 1, 8, seed=1)
    products = [
        (rotate(q, *rotary_table(torch.tensor([a]), 8)) * rotate(k, *rotary_table(torch.tensor([b]), 8))).sum()
        for a, b in ((3.5, 1.0), (12.5, 10.0))
    ]
    torch.testing.assert_close(*products, **CLOSE)
