"""`train.compile` takes the parts that a model names, once each: other rows and lengths compile nothing again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from mentalese.data.batch import Batch
from mentalese.registry import get_recipe
from mentalese.testing.runs import quiet_run, shrink
from mentalese.training.loop import LogBuffer, Run
from support import tiny_recipes

# Other modes of a family's tiny recipe: their graphs are counted, but not lowered, which takes longest.
MODES = ["coconut/tiny-pause", "latent_thought/tiny-vae", "conceptlm/tiny-mtp", "conceptlm/tiny-llama"]
SIZES = [(4, 64), (3, 50), (2, 64), (4, 33), (3, 41)]
"""Rows and columns of the batches of running text; other layouts have other ones in each step as they are."""
# CODI reads all layers' states, which transformers collects by a context variable. Attention in groups of sentences is
# not for the compiler.
BROKEN, EAGER = "codi", "_eagerly"
FEWER_LAYERS = {"thought_gestalt/tiny": 5}  # of 12, all recurrent ones in one graph; each kind is among them
WARM_UP = {"looped/tiny": 4, "sentence_rows/tiny": 3}
"""Steps; the first of a loop without gradients comes when one is drawn; the third batch of these sentences is
the first without padding, whose mask is none."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("name", [*tiny_recipes(), *MODES])
def test_a_step_is_compiled_once_whatever_the_batches_and_equals_the_eager_one(name: str, corpus: Path) -> None:
    torch._dynamo.reset()
    counters.clear()
    compiled, eager = (_run(name, corpus) for _ in range(2))
    compiled.step.compile(backend="eager" if name in MODES else "aot_eager")
    graphs, losses, expected = [], LogBuffer(), LogBuffer()
    for step in range(5):
        for run, buffer in ((compiled, losses), (eager, expected)):
            run.one_step(buffer)
            run.state.step += 1
        graphs.append(counters["stats"]["unique_graphs"])
        assert losses.losses[step].item() == pytest.approx(expected.losses[step].item(), rel=1e-4)
        assert losses.norms[step].item() == pytest.approx(expected.norms[step].item(), rel=1e-3)
    warm = WARM_UP.get(name, 1)
    assert graphs[warm - 1] > 0
    assert graphs[warm:] == [graphs[warm - 1]] * (5 - warm)
    assert name.startswith(BROKEN) or all(EAGER in reason for reason in counters["graph_break"])


def _run(name: str, corpus: Path) -> Run:
    recipe = shrink(get_recipe(name), corpus)
    if name in FEWER_LAYERS:
        recipe = dataclasses.replace(recipe, model=recipe.model | {"num_hidden_layers": FEWER_LAYERS[name]})
    run = quiet_run(recipe, corpus.with_name("run"))
    whole = run.plan.batch

    def batch(step: int, *args: int) -> Batch:
        found = whole(step, *args)
        if found["input_ids"].shape != SIZES[0]:
            return found
        rows, columns = SIZES[step]
        return {name: value[:rows, :columns].contiguous() for name, value in found.items()}

    run.plan.batch = batch  # type: ignore[method-assign]
    return run
