"""The plan of a pass over sentences: computed on the host, sent to the device in one copy.

Letters in shapes: n sentences and N tokens of a step, or of all steps; m vectors to read, d hidden size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mentalese.families.thought_gestalt.config import ThoughtGestaltConfig
from mentalese.families.thought_gestalt.repeated import Use
from mentalese.families.thought_gestalt.streams import Sentences
from mentalese.nn.ragged import Ragged, within

if TYPE_CHECKING:
    from mentalese.families.thought_gestalt.decode import SentenceCache

FILLERS = 256  # tokens per step; a few more tokens cost less than five more kernels per block
_T = TypeVar("_T")


@dataclass
class Step:
    """Sentences that are computed together: the k-th of every stream that has one, or all sentences of all steps.

    Attributes:
        sequences: the places of tokens; vectors before a sentence (`memory` = `prefix`) are part of it.
        last: [n], the last token of each sentence.
        begin: [n], the first tokens of sentences that start from a vector; `None`: none.
        read: [n, m], of all steps at once: the vectors that each sentence reads, in `sequences.order`. Copies without
            gradients come after all others.
        used: bool [n, m] in that order, the vectors that may be read; `None`: all.
        has_memory: bool [N, 1], tokens whose sentence has a vector to read; `None`: all.
        layer: the next layer.
        memory: a pair of keys and values [n, m, d] for each cross layer, sentences in `sequences.order`.
        maps: for training, this step's uses of the maps of the next block, by name.
        attention: one [N, m] for each cross layer, mean over heads, for a trace.
        cache: replaces `sequences` in generation.
    """

    sequences: Ragged
    last: Tensor | None = None
    begin: Tensor | None = None
    read: Tensor | None = None
    used: Tensor | None = None
    has_memory: Tensor | None = None
    layer: int = 0
    memory: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    maps: dict[str, Use] = field(default_factory=dict)
    attention: list[Tensor] | None = None
    cache: SentenceCache | None = None

    def linear(self, name: str, module: nn.Module, x: Tensor) -> Tensor:
        """Return `module(x)`, by the use in `maps` if there is one."""
        use = self.maps.get(name)
        return module(x) if use is None else use(x)

    def norm(self, name: str, norm: nn.LayerNorm, x: Tensor) -> Tensor:
        """Return `norm(x)`, without weights if the use of the next map contains them."""
        return norm(x) if self.maps.get(name) is None else F.layer_norm(x, x.shape[-1:], eps=norm.eps)


@dataclass(frozen=True)
class PassPlan:
    """The plan of a pass over some steps of streams that are read from their beginnings.

    Attributes:
        depth: layers that are read step by step; all others read all steps at once.
        tokens, positions: [P], the index in the flattened streams and the position in its sentence of each token that
            is embedded: all tokens, and in some steps filler tokens, which are never read.
        seeded: indices of these tokens that start a sentence and are replaced by a vector; `None`: none.
        kept: [N or N'], indices of these tokens with a final state: all tokens, or those that predict; `None`: all.
        source: [N or N'], the index in the flattened streams of each final state.
        targets: [N'], the index there of each predicted token.
        sentence: [N'], the sentence of each predicted token.
        ended: bool [n], as in `Sentences`.
        ranks: the constant rank in memory of each written vector; `None` if ranks change.
        writes: the number of first steps with sentences after them.
        sizes: number of embedded tokens of each step.
        steps: the steps for layers that are read step by step.
        upper: the single step for all later layers.
    """

    depth: int
    tokens: Tensor
    positions: Tensor
    seeded: Tensor | None
    kept: Tensor | None
    source: Tensor
    targets: Tensor
    sentence: Tensor
    ended: Tensor
    ranks: Tensor | None
    writes: int
    sizes: list[int]
    steps: list[Step]
    upper: Step | None


def plan_pass(
    config: ThoughtGestaltConfig,
    sentences: Sentences,
    steps: range,
    *,
    depth: int,
    ends: bool,
    known: int = 0,
    fill: bool = False,
) -> PassPlan:
    """Return the plan of a pass over some steps of `sentences`, on the host.

    Args:
        depth: as in `PassPlan`.
        ends: the last token of each sentence has a final state too.
        known: sentences of earlier steps whose vectors are known.
        fill: sentences of a step may be filled up to the same length, where that is cheaper than to gather them.
    """
    part = sentences.part(steps)
    lengths, predicting, writes = part.lengths, part.predicting(), len(sentences.counts) - 1 - steps.start
    width = lengths
    if fill and depth and part.counts:
        width = torch.cat([_filled(of) for of in lengths.split(part.counts)])
    begin, place = width.cumsum(0) - width, within(width)
    tokens, positions, indices = part.source, place, None if ends else predicting
    if len(place) > len(part.source):
        real = (place < lengths.repeat_interleave(width)).nonzero()[:, 0]
        positions = torch.minimum(place, (lengths - 1).repeat_interleave(width))
        tokens = part.source[(lengths.cumsum(0) - lengths).repeat_interleave(width) + positions]
        indices = real if indices is None else real[indices]
    ranks = None
    if len(steps) == len(sentences.counts) and 0 < writes <= config.memory_size:
        ranks = torch.arange(writes).repeat_interleave(torch.tensor(part.counts[:-1], dtype=torch.long))
    unseeded = part.counts[0] if part.counts and not steps.start else 0
    widths = width.split(part.counts) if part.counts and depth else ()
    upper = None
    if depth < config.num_hidden_layers and part.counts:
        upper = _all_steps(config, sentences, steps, lengths if ends else lengths - 1, known + len(lengths), depth)
    return PassPlan(
        depth=depth,
        tokens=tokens,
        positions=positions,
        seeded=begin[unseeded:] if config.seeded and unseeded < len(begin) else None,
        kept=indices,
        source=part.source if ends else part.source[predicting],
        targets=part.source[predicting + 1],
        sentence=torch.arange(len(lengths)).repeat_interleave(lengths - 1),
        ended=part.ended,
        ranks=ranks,
        writes=writes,
        sizes=[int(of.sum()) for of in widths],
        steps=[_one_step(config, k, *of) for k, *of in zip(steps, lengths.split(part.counts), widths)],
        upper=upper,
    )


def _filled(lengths: Tensor) -> Tensor:
    """Return the lengths of a step's sentences, filled up to the longest if that is cheap."""
    full = torch.full_like(lengths, int(lengths.max()))
    return full if int((full - lengths).sum()) <= FILLERS else lengths


def _one_step(config: ThoughtGestaltConfig, k: int, lengths: Tensor, width: Tensor) -> Step:
    """Return step k, whose sentences all have as many vectors to read and are filled up to `width` tokens."""
    before = torch.full_like(lengths, min(k, config.memory_size) if config.memory == "prefix" else 0)
    begin = width.cumsum(0) - width
    first = not k and len(config.cross_layers) > 0
    return Step(
        sequences=Ragged.of(width, before),
        last=int(before.sum()) + begin + lengths - 1,
        begin=begin if config.seeded and k else None,
        has_memory=torch.zeros(int(width.sum()), 1, dtype=torch.bool) if first else None,
    )


def _all_steps(
    config: ThoughtGestaltConfig, sentences: Sentences, steps: range, lengths: Tensor, vectors: int, depth: int
) -> Step:
    """Return all sentences of some steps as one step, for `lengths` tokens of each and `vectors` readable vectors."""
    sequences = Ragged.of(lengths, grouped=True)
    if not any(layer >= depth for layer in config.cross_layers):
        return Step(sequences=sequences)
    read, age = windows(sentences, config.memory_size, steps)
    read = (read - (sentences.starts[steps.stop] - vectors)).clamp(min=0)
    window = config.memory_gradient_window
    if window and window < config.memory_size:  # older vectors are read from a second half, without gradients
        read = torch.where(age > window, read + vectors, read)
    used, order = age > 0, sequences.order
    return Step(
        sequences=sequences,
        read=read[order],
        used=readable(used)[order],
        has_memory=used[:, :1].repeat_interleave(lengths, dim=0),
    )


def windows(sentences: Sentences, size: int, steps: range) -> tuple[Tensor, Tensor]:
    """Return the vectors that each sentence of these steps of fresh streams reads: the latest `size` of its stream.

    The first [n, m] are the sentences whose vectors are read, oldest first, the second how many sentences ago each was;
    0 in the unused slots, which come last.
    """
    counts, starts = torch.tensor(sentences.counts)[steps.start : steps.stop], torch.tensor(sentences.starts)
    step = torch.arange(steps.start, steps.stop).repeat_interleave(counts)[:, None]
    place = within(counts)[:, None]  # a stream has the same place in each step
    slot = torch.arange(max(1, min(steps.stop - 1, size)))
    age = (step.clamp(max=size) - slot).clamp(min=0)
    return torch.where(age > 0, starts[step - age] + place, 0), age


def readable(used: Tensor) -> Tensor:
    """Return the slots [n, m] that attention may read: the used ones, or all if none is (its result is discarded)."""
    return used | ~used.any(dim=1, keepdim=True)


def sent(plan: PassPlan, device: torch.device) -> PassPlan:
    """Return the plan with its tensors on `device`: one copy of all of them, for which the host does not wait."""
    if device.type == "cpu":
        return plan
    tensors: list[Tensor] = []
    _map(plan, tensors.append)
    # Freed pinned memory is reused only after the copies from it.
    packed = torch.empty(sum(map(torch.numel, tensors)), dtype=torch.long, pin_memory=torch.cuda.is_available())
    packed = torch.cat([tensor.flatten().long() for tensor in tensors], out=packed).to(device, non_blocking=True)
    there = iter(packed.split([tensor.numel() for tensor in tensors]))
    return _map(plan, lambda tensor: next(there).view(tensor.shape).type(tensor.dtype))


def _map(value: _T, change: Callable[[Tensor], Any]) -> _T:
    """Return `value` with `change` of each tensor in it, through dataclasses and lists."""
    new: Any = value
    if isinstance(value, Tensor):
        new = change(value)
    elif isinstance(value, list):
        new = [_map(entry, change) for entry in value]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        new = dataclasses.replace(value, **{name: _map(entry, change) for name, entry in vars(value).items()})
    return new


def plan_flops(config: ThoughtGestaltConfig, plan: PassPlan) -> int:
    """Return the FLOPs of all layers in a pass from the first step on, as PyTorch's counter counts them."""
    d, size, depth, written = config.hidden_size, config.memory_size, plan.depth, max(plan.writes, 0)
    window = config.memory_gradient_window
    entry = 2 * d * d * (2 if window is not None and 0 < window < size else 1)  # keys and values of a vector
    lower = sum(layer < depth for layer in config.cross_layers)
    products = len(config.cross_layers) * size * d * d  # W_K PE
    for k, step in enumerate(plan.steps):
        sentences = len(step.sequences.order)
        products += _layer_products(config, step.sequences, range(depth), max(1, min(k, size)))
        products += sentences * d * d  # the sentence head
        products += lower * sentences * ((k < written) * entry + (k == 0) * 2 * d * d)  # first: and the unused slot
    if plan.upper is not None:
        sequences, layers = plan.upper.sequences, range(depth, config.num_hidden_layers)
        products += _layer_products(config, sequences, layers, max(1, min(written, size)))
        products += (len(config.cross_layers) - lower) * len(sequences.order) * entry
    return 2 * products


def _layer_products(config: ThoughtGestaltConfig, sequences: Ragged, layers: range, slots: int) -> int:
    """Return the products of layers for sentences that read `slots` slots."""
    d, tokens = config.hidden_size, len(sequences.place)
    cross = sum(layer in config.cross_layers for layer in layers)
    attending = len(layers) - cross if config.attention_layout == "alternate" else len(layers)
    mlp = tokens * d * config.mlp_width * (3 if config.activation == "swiglu" else 2)
    attend = tokens * 4 * d * d + sum(2 * d * rows * longest**2 for rows, longest in sequences.shapes)
    read = tokens * 2 * d * d + sum(2 * d * rows * longest * slots for rows, longest in sequences.shapes)
    return len(layers) * mlp + attending * attend + cross * read
