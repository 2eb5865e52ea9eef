"""What a pass over sentences needs to know of their lengths: computed on the host, sent to the device in one copy.

Letters in shapes: n sentences and N tokens of a step, or of all steps; R streams; m slots of memory that are read.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor

from mentalese.families.thought_gestalt.config import ThoughtGestaltConfig
from mentalese.families.thought_gestalt.streams import Layout
from mentalese.nn.ragged import Ragged, within

_T = TypeVar("_T")
_ALIGNED = 16  # bytes
_FILLERS = 256  # tokens of a step


@dataclass(frozen=True)
class Write:
    """How vectors are written to the memory, whose slots hold the vectors of a stream from the oldest to the latest.

    Attributes:
        dropped: where all streams of a step write to the same slot: the number of first slots that are lost.
        slots: else the number of slots after it.
        source: [R * slots], what each slot holds then: a row of the memory before [R * m] and, after those, of the
            vectors [n]. `None`: all write to the same slot.
        seeds: [R], the same for the latest vectors.
    """

    dropped: int = 0
    slots: int = 0
    source: Tensor | None = None
    seeds: Tensor | None = None


@dataclass(frozen=True)
class OpenPlan:
    """Where the tokens of a step are in the cache of open sentences, see `OpenSentences`."""

    streams: Tensor
    rows: Tensor
    slots: Tensor
    first: Tensor
    end: int


@dataclass(frozen=True)
class StepPlan:
    """The k-th sentences of all streams.

    Attributes:
        sequences: where their tokens are, vectors before a sentence (`memory` = `prefix`) included.
        size: N, without such vectors.
        last: [n], the last token of each sentence.
        begin: the first tokens of sentences that start from a vector; `None`: no sentence does.
        seeded: their places among the step's streams; `None`: all.
        prefix: the slots, of all [n * m], that are read as tokens.
        used: bool [n, m], the slots that may be read; `None`: all.
        has_memory: bool [N, 1], whether a token's sentence has a vector to read; `None`: all do.
        young: bool [n, m], the vectors inside the gradient window; `None`: the last slots.
        write: `None`: the memory stays as it is.
    """

    sequences: Ragged
    size: int
    last: Tensor
    begin: Tensor | None = None
    seeded: Tensor | None = None
    prefix: Tensor | None = None
    used: Tensor | None = None
    has_memory: Tensor | None = None
    young: Tensor | None = None
    write: Write | None = None
    open: OpenPlan | None = None


@dataclass(frozen=True)
class AllSteps:
    """All sentences of some steps at once, for layers that are not recurrent; in `sequences.order` but `has_memory`.

    Attributes:
        read: [n, m], the vectors that each sentence reads; those without gradients are a second time after all others.
        used, has_memory: as in `StepPlan`.
    """

    sequences: Ragged
    read: Tensor
    used: Tensor
    has_memory: Tensor


@dataclass(frozen=True)
class Plan:
    """A pass over some steps of a `Layout`.

    Attributes:
        source: as in the layout.
        tokens, positions: [P], what is embedded: all tokens, and in some steps tokens that fill sentences up, which
            nothing reads.
        seeded: the places among them of starts of sentences that a vector takes the place of.
        kept: [N or N'], the places of all tokens, or of those that predict, among them; `None`: all.
        predicting: [N'], the tokens that another one of their sentence follows.
        targets: [N'], the index of that one in the flattened streams.
        sentence: [N], the sentence of each token.
        ended: bool [n], as in the layout.
        streams: [R], those that have a sentence; `None`: all of the batch, in its order.
        last_position: [B], as in the layout.
        count: [R], vectors in the memory of each stream after these steps; with a cache.
        ranks: the rank in memory of each vector that is written; `None` if it does not stay the same.
    """

    source: Tensor
    tokens: Tensor
    positions: Tensor
    kept: Tensor | None
    predicting: Tensor
    targets: Tensor
    sentence: Tensor
    ended: Tensor
    streams: Tensor | None
    last_position: Tensor
    count: Tensor | None = None
    ranks: Tensor | None = None
    seeded: Tensor | None = None
    steps: list[StepPlan] = field(default_factory=list)
    upper: AllSteps | None = None


def plan_pass(
    config: ThoughtGestaltConfig,
    layout: Layout,
    steps: range,
    *,
    count: Tensor | None = None,
    depth: int,
    ends: bool,
    known: int = 0,
    fill: bool = False,
) -> Plan:
    """The plan of some steps of `layout`, on the host.

    Args:
        count: [R], vectors in the memory of each stream before the first step, if a cache is in use; `None`: streams
            are read from their beginnings.
        depth: layers that are read step by step; all others read all steps at once.
        ends: those others also read the last token of each sentence.
        known: sentences of earlier steps whose vectors are known.
        fill: sentences of a step may be filled up to the same length, where that is cheaper than to gather them.
    """
    part = layout.part(steps)
    predicting = part.predicting()
    first = layout.streams[: layout.counts[0] if layout.counts else 0]
    in_order = torch.equal(first, torch.arange(len(layout.last_position)))
    plan = Plan(
        source=part.source,
        tokens=part.source,
        positions=part.positions,
        kept=None if ends else predicting,
        predicting=predicting,
        targets=part.source[predicting + 1],
        sentence=torch.arange(len(part.lengths)).repeat_interleave(part.lengths),
        ended=part.ended,
        streams=None if in_order else first,
        last_position=layout.last_position,
    )
    if depth and count is None:
        filled = [fill and _is_filled(layout.lengths[layout.step(k)]) for k in steps]
        if any(filled):
            plan = _fill(plan, part, filled)
        plan.steps.extend(_fresh(config, layout, k, k + 1 == len(layout.counts), of) for k, of in zip(steps, filled))
        writers = torch.tensor([len(of.last) for of in plan.steps if of.write is not None], dtype=torch.long)
        if len(steps) == len(layout.counts) and len(writers) <= config.memory_size:
            plan = dataclasses.replace(plan, ranks=torch.arange(len(writers)).repeat_interleave(writers))
    elif depth and count is not None:
        for k in steps:
            step, count = _continued(config, layout, k, count, cross=any(i < depth for i in config.cross_layers))
            plan.steps.append(step)
        plan = dataclasses.replace(plan, count=count)
    sizes = [0, *accumulate(of.size for of in plan.steps)]
    if seeded := [start + of.begin for start, of in zip(sizes, plan.steps) if of.begin is not None]:
        plan = dataclasses.replace(plan, seeded=torch.cat(seeded))
    if depth == config.num_hidden_layers or not part.counts:
        return plan
    lengths = part.lengths if ends else part.lengths - 1
    return _with_upper(plan, config, layout, steps, lengths, known + len(part.lengths), depth)


def _is_filled(lengths: Tensor) -> bool:
    """Whether to fill up sentences of these lengths; a few tokens more cost less than five kernels more a block."""
    return int(lengths.max()) * len(lengths) - int(lengths.sum()) <= _FILLERS


def _fill(plan: Plan, part: Layout, filled: list[bool]) -> Plan:
    """`plan` with the sentences of the `filled` steps of `part` as long as the longest of their step."""
    width = torch.cat([
        torch.full_like(lengths, int(lengths.max())) if fill else lengths
        for lengths, fill in zip(part.lengths.split(part.counts), filled)
    ])  # fmt: skip
    begin, place = part.lengths.cumsum(0) - part.lengths, within(width)
    token = begin.repeat_interleave(width) + torch.minimum(place, (part.lengths - 1).repeat_interleave(width))
    real = (place < part.lengths.repeat_interleave(width)).nonzero()[:, 0]
    return dataclasses.replace(
        plan,
        tokens=part.source[token],
        positions=part.positions[token],
        kept=real if plan.kept is None else real[plan.kept],
    )


def _fresh(config: ThoughtGestaltConfig, layout: Layout, k: int, last: bool, filled: bool) -> StepPlan:
    """Step k of streams that are read from their beginnings: each has as many vectors as the others."""
    real = layout.lengths[layout.step(k)]
    lengths = torch.full_like(real, int(real.max())) if filled else real
    slots = min(k, config.memory_size)
    in_prefix = config.memory == "prefix" and slots > 0
    before = torch.full_like(lengths, slots if in_prefix else 0)
    dropped = int(slots in (0, config.memory_size))  # the unused slot, or the oldest of a full memory
    size, begin = int(lengths.sum()), lengths.cumsum(0) - lengths
    return StepPlan(
        sequences=Ragged.of(lengths, before),
        size=size,
        last=(len(before) * slots if in_prefix else 0) + begin + real - 1,
        begin=begin if config.seeded and k else None,
        prefix=torch.arange(len(lengths) * slots) if in_prefix else None,
        has_memory=torch.zeros(size, 1, dtype=torch.bool) if config.cross_layers and not k else None,
        write=None if last or not config.recurrent_layers else Write(dropped),
    )


def _continued(
    config: ThoughtGestaltConfig, layout: Layout, k: int, count: Tensor, *, cross: bool
) -> tuple[StepPlan, Tensor]:
    """Step k of streams with a cache, and `count` after it; other streams are kept as they are."""
    where = layout.step(k)
    lengths, read_before, ended = layout.lengths[where], layout.read_before[where], layout.ended[where]
    own, slots = count[: len(lengths)], max(1, int(count.max()))
    held = torch.arange(slots) < own[:, None]
    prefix = held & (read_before == 0)[:, None] & (config.memory == "prefix")  # an open sentence has read its own
    before = prefix.sum(1)
    seeded = (own > 0) & (read_before == 0) & config.seeded
    begin = lengths.cumsum(0) - lengths
    room = config.memory_size if config.memory == "prefix" else 0
    first = room - own if room else torch.zeros_like(own)
    end = room + read_before.repeat_interleave(lengths) + within(lengths)
    of_batch = layout.streams[where]
    write = None
    if config.recurrent_layers and bool(ended.any()):
        write, count = _write(config, count, ended, slots)
    window = config.memory_gradient_window or 0
    masked = cross and not bool(held.all())
    step = StepPlan(
        sequences=Ragged.of(lengths, before),
        size=int(lengths.sum()),
        last=int(before.sum()) + begin + lengths - 1,
        begin=begin[seeded] if bool(seeded.any()) else None,
        seeded=None if bool(seeded.all()) else seeded.nonzero()[:, 0],
        prefix=prefix.flatten().nonzero()[:, 0] if bool(prefix.any()) else None,
        used=readable(held) if masked else None,
        has_memory=(own > 0).repeat_interleave(lengths)[:, None] if masked else None,
        young=torch.arange(slots) >= own[:, None] - window if 0 < window < config.memory_size else None,
        write=write,
        open=OpenPlan(
            streams=of_batch,
            rows=torch.cat((of_batch.repeat_interleave(before), of_batch.repeat_interleave(lengths))),
            slots=torch.cat((first.repeat_interleave(before) + within(before), end)),
            first=first,
            end=int(end.max()) + 1,
        ),
    )
    return step, count


def _write(config: ThoughtGestaltConfig, count: Tensor, ended: Tensor, slots: int) -> tuple[Write, Tensor]:
    """Writes the vectors of the sentences that have ended, and `count` after it."""
    writes = torch.zeros(len(count), dtype=torch.bool)
    writes[: len(ended)] = ended
    full = writes & (count == config.memory_size)
    after = (count + writes).clamp(max=config.memory_size)
    place, row = torch.arange(max(1, int(after.max()))), torch.arange(len(count))[:, None]
    old = row * slots + (place + full[:, None]).clamp(max=slots - 1)
    source = torch.where(writes[:, None] & (place == after[:, None] - 1), len(count) * slots + row, old)
    seeds = torch.where(writes, len(count) + row[:, 0], row[:, 0])
    return Write(slots=len(place), source=source.flatten(), seeds=seeds), after


def _with_upper(
    plan: Plan, config: ThoughtGestaltConfig, layout: Layout, steps: range, lengths: Tensor, vectors: int, depth: int
) -> Plan:
    """`plan` with the layers from `depth` on, for `lengths` tokens of each sentence that may read `vectors` vectors."""
    sequences = Ragged.of(lengths, grouped=True)
    if not any(layer >= depth for layer in config.cross_layers):
        return dataclasses.replace(plan, upper=AllSteps(sequences, *[torch.empty(0)] * 3))
    read, age = windows(layout, config.memory_size, steps)
    read = (read - (layout.sentences[steps.stop] - vectors)).clamp(min=0)
    window = config.memory_gradient_window
    if window and window < config.memory_size:  # older vectors are read from a second half, without gradients
        read = torch.where(age > window, read + vectors, read)
    used, order = age > 0, sequences.order
    upper = AllSteps(sequences, read[order], readable(used)[order], used[:, :1].repeat_interleave(lengths, dim=0))
    return dataclasses.replace(plan, upper=upper)


def windows(layout: Layout, size: int, steps: range) -> tuple[Tensor, Tensor]:
    """Which vectors each sentence of these steps of fresh streams reads: the latest `size` of its stream.

    Returns:
        read, age: [n, m], the sentences whose vectors are read, oldest first, and how many sentences ago each was;
        0 in the unused slots, which come last.
    """
    counts, starts = torch.tensor(layout.counts)[steps.start : steps.stop], torch.tensor(layout.sentences)
    step = torch.arange(steps.start, steps.stop).repeat_interleave(counts)[:, None]
    place = within(counts)[:, None]  # the same stream has the same place in each step
    slot = torch.arange(max(1, min(steps.stop - 1, size)))
    age = (step.clamp(max=size) - slot).clamp(min=0)
    return torch.where(age > 0, starts[step - age] + place, 0), age


def readable(used: Tensor) -> Tensor:
    """The slots [n, m] that attention may read: the used ones, or all if none is used, whose result is discarded."""
    return used | ~used.any(dim=1, keepdim=True)


def sent(plan: _T, device: torch.device) -> _T:
    """`plan` with its tensors on `device`: one copy of all of them, for which the host does not wait."""
    if device.type == "cpu":
        return plan
    found: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    _map(plan, collect)
    starts, size = [], 0
    for tensor in found:
        starts.append(size)
        size += -(-tensor.nbytes // _ALIGNED) * _ALIGNED
    # Freed pinned memory is used again only after the copies from it.
    packed = torch.empty(size, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    for start, tensor in zip(starts, found):
        packed[start : start + tensor.nbytes] = tensor.contiguous().flatten().view(torch.uint8)
    there = packed.to(device, non_blocking=True)
    place = iter(starts)

    def at(tensor: Tensor) -> Tensor:
        start = next(place)
        return there[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    return _map(plan, at)


def _map(value: Any, change: Any) -> Any:
    """`value` with `change` of each tensor in it, through dataclasses and lists."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list):
        return [_map(entry, change) for entry in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _map(getattr(value, f.name), change) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value
