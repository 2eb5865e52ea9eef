"""The compiled part of Thought Gestalt: all recurrent layers, for the sentences of one step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mentalese.families.thought_gestalt.plan import Step


class CompiledLayers(nn.Module):
    """The compiled `run_layers` of a `ThoughtGestaltForCausalLM`, with one graph for each `_kind` of step."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def compile(self, **options: Any) -> None:
        # Weights are among the inputs: sizes that never change would only make compilation ten times slower.
        run = torch.compile(self.model.run_layers, **(options | {"dynamic": None}))
        kinds = set()

        def compiled(x: Tensor, steps: list[Step], sentence_dropout: float) -> Any:
            kind = _kind(steps[0])
            if kind not in kinds:
                kinds.add(kind)
                _mark_sizes(x, steps)
            return run(x, steps, sentence_dropout)

        self.model.compiled_layers = compiled


def _kind(step: Step) -> tuple[bool, ...]:
    """Return all properties that a graph depends on: gradients, first sentences, places of tokens, sizes of 1."""
    slots = [keys.shape[1] > 1 for keys, _ in step.memory.values()]
    return torch.is_grad_enabled(), step.has_memory is None, step.sequences.even, step.sentences > 1, *slots


def _mark_sizes(x: Tensor, steps: list[Step]) -> None:
    """Mark the sizes that differ from step to step: numbers of tokens, of sentences and of vectors in memory.

    The compiler uses these marks only when it builds a graph.
    """
    mark, step = torch._dynamo.maybe_mark_dynamic, steps[0]
    rows = [x, step.last, step.sequences.place, step.has_memory]
    rows += [tensor for step in steps for use in step.maps.values() for tensor in (use.rows, use.inputs)]
    for tensor in rows:
        if tensor is not None:
            mark(tensor, 0)
    for tensor in (step.sequences.index, *(tensor for pair in step.memory.values() for tensor in pair)):
        mark(tensor, [0, 1])
