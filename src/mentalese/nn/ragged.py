"""Attention within sequences of unequal length that lie end to end in one flat tensor, without padding elsewhere.

Norms, linear maps and MLPs work on the flat [N, d]; only attention itself works on rows padded to the longest of a
group of similar length. Padding is never read by a real token, so it needs no mask and gets no gradient.

Letters: n sequences, N tokens in all, P places in the padded groups, R sequences of T places in one group, m keys to
read, d = heads * d_h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_GROUP = 48  # least number of sequences per group; more groups pad less and need more calls
_SHORT = 96  # up to this length two products and a softmax are faster on the CPU than its fused attention


@dataclass(frozen=True)
class Ragged:
    """The places of the tokens of n sequences when padded.

    Attributes:
        order: [n], the sequences in the order of the groups, short ones first.
        shapes: number of rows and longest sequence of each group.
        index: [P], the flat token at each padded place; padding holds token 0. [rows, longest] if sequences are not
            grouped: a compiler knows a tensor's shape, and would compile again for other numbers in `shapes`.
        place: [N], the padded place of each flat token.
        even: each flat token is already at its padded place: one group of equal lengths, in its order.
    """

    order: Tensor
    shapes: tuple[tuple[int, int], ...]
    index: Tensor
    place: Tensor
    even: bool = False

    @classmethod
    def of(cls, lengths: Tensor, prefix: Tensor | None = None, *, grouped: bool = False) -> Ragged:
        """Return the places of sequences of `lengths` [n]; all is on the CPU.

        Args:
            prefix: [n], number of tokens before each sequence; the flat tensor contains all prefixes first.
            grouped: pad many sequences in groups of similar length; else all of them together, in their order.
        """
        prefix = torch.zeros_like(lengths) if prefix is None else prefix
        total = prefix + lengths
        order = total.argsort(stable=True) if grouped else torch.arange(len(total))
        starts, shapes, places = torch.zeros_like(total), [], 0
        for rows in order.tensor_split(max(1, len(total) // _GROUP) if grouped else 1):
            longest = int(total[rows].max()) if len(rows) else 0
            starts[rows] = places + longest * torch.arange(len(rows))
            shapes.append((len(rows), longest))
            places += len(rows) * longest
        place = torch.cat((starts.repeat_interleave(prefix) + within(prefix),
                           (starts + prefix).repeat_interleave(lengths) + within(lengths)))  # fmt: skip
        index = torch.zeros(places, dtype=torch.long).index_copy_(0, place, torch.arange(len(place)))
        index = index if grouped else index.view(shapes[0])
        even = places == len(place) and torch.equal(place, torch.arange(places))
        return cls(order, tuple(shapes), index, place, even)

    def pad(self, flat: Tensor, heads: int, parts: int = 1) -> list[tuple[Tensor, ...]]:
        """Pad [N, parts * d], giving as many [R, heads, T, d_h] for each group."""
        width = flat.shape[1] // (parts * heads)
        padded = flat if self.even else _Pad.apply(flat, self.index.flatten(), self.place)
        shapes = self.shapes if self.index.ndim == 1 else (self.index.shape,)
        # Splitting a single group would copy it later.
        groups = (padded,) if len(shapes) == 1 else padded.split([rows * longest for rows, longest in shapes])
        apart = (group.view(*shape, parts, heads, width).unbind(2) for group, shape in zip(groups, shapes))
        heads_first = (tuple(part.transpose(1, 2) for part in group) for group in apart)
        return [group if _in_place(flat) else tuple(map(Tensor.contiguous, group)) for group in heads_first]

    def unpad(self, groups: list[Tensor]) -> Tensor:
        """Join one [R, heads, T, d_h] for each group to [N, d]."""
        rows = [group.transpose(1, 2).reshape(-1, group.shape[1] * group.shape[3]) for group in groups]
        padded = rows[0] if len(rows) == 1 else torch.cat(rows)  # `cat` copies even a single tensor
        flat = padded if self.even else take_rows(padded, self.place)
        return flat.view_as(flat)  # a view in all cases: to a compiler each kind is another program


def _in_place(x: Tensor) -> bool:
    """Test if attention reads heads in place, as on a GPU; a compiler gathers them itself."""
    return x.device.type != "cpu" or torch.compiler.is_compiling()


def within(lengths: Tensor) -> Tensor:
    """Return 0, 1, .. in each sequence: [N] for `lengths` [n]."""
    return torch.arange(int(lengths.sum())) - (lengths.cumsum(0) - lengths).repeat_interleave(lengths)


class _Pad(torch.autograd.Function):
    """A gather in both directions: padding gets no gradient, so no gradient is summed into token 0."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, index: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        return flat.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.index_select(0, ctx.saved_tensors[0]), None, None


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.size = len(x)
        return x.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        zeros = gradient.new_zeros(ctx.size, *gradient.shape[1:])
        return zeros.index_copy_(0, ctx.saved_tensors[0], gradient), None


def take_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Return x[rows] for rows that are all different: their gradients are put back, not summed."""
    return _Take.apply(x, rows)


def first_rows(x: Tensor, rows: int) -> Tensor:
    """Return x[:rows]; the slice of a whole tensor would cost a copy in the backward pass."""
    return x if rows == len(x) else x[:rows]


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape [rows, length, d] to [rows, heads, length, d_h]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> Tensor:
    """Return softmax(q k^T / sqrt(d_h)) v: [R, heads, T, d_h] and [R, heads, m, d_h] to [R, heads, T, d_h].

    Options are torch's; masks are bool [R or 1, 1, T or 1, m].
    """
    heads, length, keys = q.shape[1], q.shape[2], k.shape[2]
    if _in_place(q) or not 1 < max(length, keys) <= _SHORT:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal)
    bias = q.new_zeros(1, 1, 1)
    if is_causal:
        attn_mask = torch.ones(1, 1, length, keys, dtype=torch.bool).tril()
    if attn_mask is not None:
        bias = q.new_zeros(attn_mask.shape).masked_fill_(~attn_mask, -torch.inf)
        bias = bias.expand(-1, heads if len(bias) > 1 else 1, -1, -1).flatten(0, 1)
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    weights = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=q.shape[-1] ** -0.5).softmax(-1)
    return (F.dropout(weights, dropout_p) @ v).unflatten(0, (-1, heads))


def causal_attention(qkv: Tensor, sequences: Ragged, heads: int, dropout: float = 0.0) -> Tensor:
    """Return attention [N, d] of each token to its own sequence up to itself, from qkv [N, 3 d]."""
    if _is_left_out(sequences):
        return _eagerly(causal_attention, qkv, sequences, heads, dropout)
    groups = sequences.pad(qkv, heads, 3)
    return sequences.unpad([attend(*group, is_causal=True, dropout_p=dropout) for group in groups])


def reading_attention(
    q: Tensor, keys: Tensor, values: Tensor, used: Tensor | None, sequences: Ragged, heads: int, dropout: float = 0.0
) -> Tensor:
    """Return attention [N, d] of each token's query [N, d] to the m keys [n, m, d] that its sequence reads.

    Sequences of keys and values are in `sequences.order`. `used` is bool [n, m], with a true in each row; `None`: all.
    """
    if _is_left_out(sequences):
        return _eagerly(reading_attention, q, keys, values, used, sequences, heads, dropout)
    out, first = [], 0
    for (group,) in sequences.pad(q, heads):
        rows = slice(first, first + len(group))
        k, v = (split_heads(x if len(group) == len(x) else x[rows], heads) for x in (keys, values))
        mask = None if used is None else used[rows, None, None]
        out.append(attend(group, k, v, attn_mask=mask, dropout_p=dropout))
        first = rows.stop
    return sequences.unpad(out)


def _is_left_out(sequences: Ragged) -> bool:
    """Test if `torch.compile` is compiling for groups, whose number and sizes change with every batch."""
    return torch.compiler.is_compiling() and sequences.index.ndim == 1


@torch.compiler.disable
def _eagerly(function: Callable[..., Tensor], *args: Any) -> Tensor:
    return function(*args)
