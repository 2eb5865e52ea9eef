"""The traces of a text's windows as one trace of the text."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from mentalese.models.trace import Thought, ThoughtTrace

Window = tuple[int, int, int]
_TOKEN, _PARENT = "token", "parent"


def joined(traces: Sequence[ThoughtTrace], windows: Sequence[Window], through: Collection[str] = ()) -> ThoughtTrace:
    """The trace of a text of which each part is one window.

    Of each window it has what is new in it: a token's numbers, the thoughts that stand for it, links between these,
    and streams. A curve is the mean over windows.

    Args:
        traces: one a window, in the order of the text.
        windows: see `ThoughtTrace.windows`.
        through: names of curves that follow the text; they are left out, because a window's repeats its context.
    """
    news = [0, *(first - start for start, first, _ in windows[1:])]  # the first new token of each window

    def tokens(columns: Sequence[Sequence[Any]]) -> list[Any]:
        return [value for column, new in zip(columns, news) for value in column[new:]]

    def tensors(columns: Sequence[Tensor]) -> Tensor:
        return torch.cat([column[new:] for column, new in zip(columns, news)])

    first = traces[0]
    kept = [_new_thoughts(trace, new) for trace, new in zip(traces, news)]
    return dataclasses.replace(
        first,
        input_ids=tensors([trace.input_ids for trace in traces]),
        scores={name: tensors([trace.scores[name] for trace in traces]) for name in first.scores},
        thoughts=[
            dataclasses.replace(thought, start=thought.start + start, end=thought.end + start)
            for own, (start, _, _) in zip(kept, windows)
            for _, thought in own
        ],
        links={
            name: torch.block_diag(*(_among(trace.links[name], own) for trace, own in zip(traces, kept)))
            for name in first.links
        },
        curves={
            name: torch.stack([trace.curves[name].float() for trace in traces]).mean(0)
            for name in first.curves
            if name not in through
        },
        readings={name: tensors([trace.readings[name] for trace in traces]) for name in first.readings},
        streams=_streams(traces, windows, news),
        tokens=tokens([trace.tokens for trace in traces]),
        special=tokens([trace.special for trace in traces]),
        vocabulary={token: text for trace in traces for token, text in trace.vocabulary.items()},
        windows=[*windows],
    )


def _new_thoughts(trace: ThoughtTrace, new: int) -> list[tuple[int, Thought]]:
    """The thoughts that stand for tokens from `new` on, cut to these, with their numbers."""
    return [
        (number, dataclasses.replace(thought, start=max(thought.start, new)))
        for number, thought in enumerate(trace.thoughts)
        if thought.end > new
    ]


def _among(link: Tensor, own: Sequence[tuple[int, Thought]]) -> Tensor:
    numbers = torch.tensor([number for number, _ in own], dtype=torch.long, device=link.device)
    return link[numbers][:, numbers]


def _streams(traces: Sequence[ThoughtTrace], windows: Sequence[Window], news: Sequence[int]) -> dict[str, Tensor]:
    """The tables of streams, one after the other: rows of new tokens, whose places and parents are the whole text's."""
    tables, rows = [], 0
    for trace, (start, _, _), new in zip(traces, windows, news):
        if not trace.streams:
            return {}
        keep = trace.streams[_TOKEN] >= new
        number = keep.cumsum(0) - 1 + rows  # of each row that is kept, in the whole table
        table = {name: column[keep] for name, column in trace.streams.items()}
        parent = table[_PARENT]
        tables.append(table | {_TOKEN: table[_TOKEN] + start, _PARENT: parent.where(parent < 0, number[parent])})
        rows += int(keep.sum())
    return {name: torch.cat([table[name] for table in tables]) for name in tables[0]}
