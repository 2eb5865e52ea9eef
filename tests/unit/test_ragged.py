"""Ragged attention: every sequence alone, whatever lies beside it in the flat tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from mentalese.nn.ragged import Ragged, attend, causal_attention, reading_attention, take_rows, within
from references import causal_attention_reference

HEADS, WIDTH = 2, 8
CLOSE = {"atol": 1e-5, "rtol": 1e-5}

lengths_of_sequences = st.lists(st.integers(1, 9), min_size=1, max_size=20)
MANY = [i * 7 % 9 + 1 for i in range(150)]  # three groups


def with_gradients(compute: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    """The output of `compute`, and the gradients of a sum of it in which every number counts differently."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    output = compute(*leaves)
    weights = torch.linspace(-1, 1, output.numel()).view_as(output)
    return output.detach(), *torch.autograd.grad((output * weights).sum(), leaves)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(lengths=lengths_of_sequences, grouped=st.booleans())
@example(lengths=MANY, grouped=True)
def test_causal_attention_is_that_of_each_sequence_alone(lengths: list[int], grouped: bool) -> None:
    sizes, qkv = torch.tensor(lengths), random(sum(lengths), 3 * WIDTH)
    sequences = Ragged.of(sizes, grouped=grouped)
    torch.testing.assert_close(
        with_gradients(lambda x: causal_attention(x, sequences, HEADS), qkv),
        with_gradients(lambda x: causal_attention_reference(x, sizes, HEADS), qkv),
        **CLOSE,
    )


@given(sizes=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6)), min_size=1, max_size=20), grouped=st.booleans())
@example(sizes=[(n % 4, n) for n in MANY], grouped=True)
def test_tokens_before_a_sequence_are_its_first_ones(sizes: list[tuple[int, int]], grouped: bool) -> None:
    """The flat tensor holds all prefixes, then all sequences; the reference takes them one after the other."""
    prefix, lengths = torch.tensor(sizes).unbind(1)
    sequences = Ragged.of(lengths, prefix, grouped=grouped)
    places = torch.arange(int(prefix.sum() + lengths.sum())).split([*prefix.tolist(), *lengths.tolist()])
    by_sequence = torch.cat([part for pair in zip(places[: len(sizes)], places[len(sizes) :]) for part in pair])
    qkv = random(len(by_sequence), 3 * WIDTH)

    def reference(x: Tensor) -> Tensor:
        out = causal_attention_reference(x[by_sequence], prefix + lengths, HEADS)
        return out[by_sequence.argsort()]

    torch.testing.assert_close(
        with_gradients(lambda x: causal_attention(x, sequences, HEADS), qkv), with_gradients(reference, qkv), **CLOSE
    )


@given(lengths=lengths_of_sequences, slots=st.integers(1, 5), grouped=st.booleans(), masked=st.booleans())
@example(lengths=MANY, slots=3, grouped=True, masked=True)
@example(lengths=MANY, slots=3, grouped=True, masked=False)
def test_reading_attention_equals_each_sequence_separately(
    lengths: list[int], slots: int, grouped: bool, masked: bool
) -> None:
    """Keys are given in the order of the groups; a slot that is not used is as if it were not there."""
    sequences = Ragged.of(torch.tensor(lengths), grouped=grouped)
    q, keys = random(sum(lengths), WIDTH), random(len(lengths), slots, WIDTH, seed=1)
    values = random(len(lengths), slots, WIDTH, seed=2)
    used = random(len(lengths), slots, seed=3) > 0
    used[:, 0] |= ~used.any(1)
    used = used if masked else torch.ones_like(used)

    def reference(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        row_of = sequences.order.argsort().tolist()
        out = []
        for i, own in enumerate(q.split(lengths)):
            there = used[row_of[i]]
            k, v = keys[row_of[i]][there], values[row_of[i]][there]
            scores = torch.einsum("thd,mhd->htm", own.unflatten(-1, (HEADS, -1)), k.unflatten(-1, (HEADS, -1)))
            weights = (scores / (WIDTH // HEADS) ** 0.5).softmax(-1)
            out.append(torch.einsum("htm,mhd->thd", weights, v.unflatten(-1, (HEADS, -1))).flatten(1))
        return torch.cat(out)

    def ragged(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return reading_attention(q, keys, values, used if masked else None, sequences, HEADS)

    torch.testing.assert_close(
        with_gradients(ragged, q, keys, values), with_gradients(reference, q, keys, values), **CLOSE
    )


@given(lengths=lengths_of_sequences, grouped=st.booleans())
@example(lengths=MANY, grouped=True)
def test_what_is_padded_comes_back_and_padding_gets_no_gradient(lengths: list[int], grouped: bool) -> None:
    sequences, flat = Ragged.of(torch.tensor(lengths), grouped=grouped), random(sum(lengths), WIDTH)
    groups = sequences.pad(flat, HEADS)
    assert torch.equal(sequences.unpad([group for (group,) in groups]), flat)
    parts, rows = flat.split(lengths), iter(sequences.order.tolist())
    for (group,) in groups:
        for row in group.transpose(1, 2).flatten(2):
            own = parts[next(rows)]
            assert torch.equal(row[: len(own)], own)
    leaf = flat.clone().requires_grad_()
    torch.cat([group.flatten() for (group,) in sequences.pad(leaf, HEADS)]).sum().backward()
    assert torch.equal(leaf.grad, torch.ones_like(flat))


def test_groups_pad_less_than_one_table() -> None:
    lengths = torch.arange(1, 101)
    grouped, whole = Ragged.of(lengths, grouped=True), Ragged.of(lengths.flip(0))
    assert grouped.shapes == ((50, 50), (50, 100))
    assert whole.shapes == ((100, 100),)
    assert grouped.index.numel() < whole.index.numel()
    assert whole.order.tolist() == list(range(100))
    assert Ragged.of(lengths.flip(0), grouped=True).order.tolist() == list(range(99, -1, -1))


def test_places_start_anew_in_each_sequence() -> None:
    assert within(torch.tensor([3, 0, 1, 2])).tolist() == [0, 1, 2, 0, 0, 1]
    assert within(torch.tensor([], dtype=torch.long)).tolist() == []


def test_rows_that_are_taken_get_their_gradients_back() -> None:
    x, rows = random(6, 3), torch.tensor([4, 0, 5])
    torch.testing.assert_close(with_gradients(lambda x: take_rows(x, rows), x), with_gradients(lambda x: x[rows], x))


@pytest.mark.parametrize("causal", [True, False])
def test_dropout_falls_on_attention_weights(causal: bool) -> None:
    """With values of one each row sums to the weights that are left: 0 or 1 / (1 - p) for a single key."""
    torch.manual_seed(0)
    sequences = Ragged.of(torch.ones(400, dtype=torch.long))
    ones = torch.ones(400, WIDTH)
    if causal:
        out = causal_attention(torch.cat((ones, ones, ones), dim=1), sequences, HEADS, 0.5)
    else:
        out = reading_attention(ones, ones[:, None], ones[:, None], None, sequences, HEADS, 0.5)
    assert set(out.unique().tolist()) == {0.0, 2.0}
    assert 0.7 < out.mean() < 1.3


@pytest.mark.parametrize("masked", ["none", "causal", "one row", "rows"])
@pytest.mark.parametrize("length", [5, 100])
def test_attend_equals_fused_attention(length: int, masked: str) -> None:
    q, k, v = (random(3, HEADS, length, 4, seed=i) for i in range(3))
    rows = {"one row": 1, "rows": 3}.get(masked, 0)
    mask = (random(rows, 1, length, length, seed=3) > 0) | torch.eye(length).bool() if rows else None
    options = {"attn_mask": mask, "is_causal": masked == "causal"}
    torch.testing.assert_close(
        with_gradients(lambda *x: attend(*x, **options), q, k, v),
        with_gradients(lambda *x: F.scaled_dot_product_attention(*x, **options), q, k, v),
        **CLOSE,
    )


def test_sequences_may_be_empty() -> None:
    sequences = Ragged.of(torch.tensor([0, 2, 0]), grouped=True)
    qkv = random(2, 3 * WIDTH)
    expected = causal_attention_reference(qkv, torch.tensor([2]), HEADS)
    torch.testing.assert_close(causal_attention(qkv, sequences, HEADS), expected, **CLOSE)
    nothing = Ragged.of(torch.tensor([0, 0]), grouped=True)
    assert causal_attention(qkv[:0], nothing, HEADS).shape == (0, WIDTH)
    keys = random(2, 3, WIDTH)
    assert reading_attention(qkv[:0, :WIDTH], keys, keys, None, nothing, HEADS).shape == (0, WIDTH)
