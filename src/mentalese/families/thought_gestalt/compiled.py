"""What `torch.compile` takes of Thought Gestalt's recurrent layers: all of them, for the sentences of one step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mentalese.families.thought_gestalt.blocks import Step


class CompiledLayers(nn.Module):
    """`run_layers` of a `ThoughtGestaltForCausalLM`, as the part of it that is compiled: a graph for each `_kind`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def compile(self, **options: Any) -> None:
        # Weights are among the inputs: sizes that never change would only make compilation ten times slower.
        run = torch.compile(self.model.run_layers, **(options | {"dynamic": None}))

        kinds = set()

        def compiled(x: Tensor, steps: list[Step], last: Tensor, sentence_dropout: float) -> Any:
            kind = _kind(steps[0], last)
            if kind not in kinds:
                kinds.add(kind)
                _mark_sizes(x, steps, last)
            return run(x, steps, last, sentence_dropout)

        self.model.compiled_layers = compiled


def _kind(of: Step, last: Tensor) -> tuple[bool | int, ...]:
    """What a graph depends on: gradients, first sentences, places of tokens, and what there is one of."""
    assert of.sequences is not None
    slots = [keys.shape[1] > 1 for keys, _ in of.memory.values()]
    return torch.is_grad_enabled(), of.has_memory is None, of.sequences.even, len(last) > 1, *slots


def _mark_sizes(x: Tensor, steps: list[Step], last: Tensor) -> None:
    """Marks the sizes that differ from step to step: numbers of tokens, of sentences and of vectors in memory.

    For the compiler, which asks only when it makes a graph.
    """
    mark, of = torch._dynamo.maybe_mark_dynamic, steps[0]
    assert of.sequences is not None
    rows = [x, last, of.sequences.place, *([] if of.has_memory is None else [of.has_memory])]
    for part in (part for step in steps for part in step.maps.values()):
        rows += [part.rows, part.inputs]
    for tensor in rows:
        mark(tensor, 0)
    for tensor in (of.sequences.index, *(tensor for pair in of.memory.values() for tensor in pair)):
        mark(tensor, [0, 1])
