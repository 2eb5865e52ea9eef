"""Rows are packed and spread without losing a token, wherever padding is."""

from __future__ import annotations

import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from mentalese.nn.loss import IGNORED
from mentalese.nn.packing import PackedRows, filled, front, pack

LEFT, RIGHT, INSIDE = [[0, 0, 1, 1], [0, 1, 1, 1]], [[1, 1, 0, 0], [1, 1, 1, 0]], [[1, 0, 1, 1], [1, 1, 0, 1]]
BOTH, NONE, EMPTY = [[0, 1, 0, 1], [1, 1, 1, 1]], [[1, 1, 1, 1]], [[0, 0, 0, 0], [0, 0, 0, 0]]

masks = st.tuples(st.integers(1, 4), st.integers(1, 9)).flatmap(
    lambda size: st.lists(
        st.lists(st.integers(0, 1), min_size=size[1], max_size=size[1]), min_size=size[0], max_size=size[0]
    )
)


def real_of(mask: list[list[int]]) -> Tensor:
    return torch.tensor(mask).bool()


def numbered(real: Tensor) -> Tensor:
    """A different number in each column of each row, none of them 0."""
    return torch.arange(1, real.numel() + 1).view_as(real)


@given(masks)
@example(LEFT)
@example(RIGHT)
@example(INSIDE)
@example(BOTH)
@example(NONE)
@example(EMPTY)
def test_what_is_packed_and_spread_is_back_in_its_columns(mask: list[list[int]]) -> None:
    real = real_of(mask)
    rows, values = PackedRows.of(real), numbered(real)
    expected = torch.where(real, values, 0)
    assert torch.equal(rows.spread(rows.gather(values)), expected)
    wide = rows.gather(values)[..., None].float() * torch.tensor([1.0, -2.0])
    assert torch.equal(rows.spread(wide), expected[..., None].float() * torch.tensor([1.0, -2.0]))


@given(masks)
@example(LEFT)
@example(RIGHT)
@example(INSIDE)
@example(BOTH)
@example(NONE)
def test_a_packed_row_is_its_tokens_in_order(mask: list[list[int]]) -> None:
    real = real_of(mask)
    rows, values = PackedRows.of(real), numbered(real)
    packed = rows.gather(values, 0)
    assert rows.width == real.shape[1]
    assert packed.shape[1] == max(1, int(real.sum(1).max()))
    for row in range(len(real)):
        tokens = values[row][real[row]]
        assert rows.lengths[row] == len(tokens) == rows.real[row].sum()
        assert torch.equal(packed[row, : len(tokens)], tokens)
        assert not packed[row, len(tokens) :].any()


@given(masks)
@example(LEFT)
@example(RIGHT)
@example(INSIDE)
@example(BOTH)
@example(NONE)
def test_each_token_predicts_the_next_one_of_its_row(mask: list[list[int]]) -> None:
    real = real_of(mask)
    rows, labels = PackedRows.of(real), numbered(real)
    targets = rows.targets(labels)
    longest = max(1, max(map(sum, mask)))
    expected = torch.full((len(real), longest - 1), IGNORED)
    for row, columns in enumerate(mask):
        tokens = [column for column, token in enumerate(columns) if token]
        for place, column in enumerate(tokens[1:]):
            expected[row, place] = labels[row, column]
    assert torch.equal(targets, expected)


def test_rows_without_padding_are_left_as_they_are() -> None:
    ids = torch.arange(6).view(2, 3)
    for rows in (PackedRows.unpadded(ids), PackedRows.of(torch.ones_like(ids).bool())):
        assert rows.columns is None
        assert rows.lengths.tolist() == [3, 3]
        assert rows.gather(ids) is ids
        assert rows.spread(ids) is ids
        assert torch.equal(rows.targets(ids), ids[:, 1:])
        assert bool(rows.real.all())


def test_padding_neither_gives_nor_gets_gradients() -> None:
    rows = PackedRows.of(real_of([[0, 1, 1], [0, 0, 1]]))
    values = torch.tensor([[[1.0], [2.0]], [[3.0], [torch.nan]]], requires_grad=True)
    spread = rows.spread(values)
    assert spread[..., 0].tolist() == [[0, 1, 2], [0, 0, 3]], "what is packed after a row's end is not read"
    spread.sum().backward()
    assert values.grad is not None
    assert values.grad[..., 0].tolist() == [[1, 1], [1, 0]]


@given(masks, st.integers(0, 2))
def test_packing_keeps_the_chosen_columns_in_order(mask: list[list[int]], room: int) -> None:
    keep = real_of(mask)
    longest = int(keep.sum(1).max())
    size = min(longest + room, keep.shape[1]) if room else None
    columns, real = (front(keep, size), filled(keep, size)) if size else pack(keep)
    assert columns.shape == (len(keep), size or longest)
    assert size or (real is None) == bool((keep.sum(1) == columns.shape[1]).all())
    for row, places in enumerate(keep):
        chosen = places.nonzero()[:, 0]
        assert torch.equal(columns[row, : len(chosen)], chosen)
        assert real is None or real[row].tolist() == [place < len(chosen) for place in range(columns.shape[1])]
