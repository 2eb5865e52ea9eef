"""`train.compile` takes the parts that a model names, once each: other rows and lengths compile nothing again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from mentalese import InputError, Recipe, load
from mentalese.data.batch import Batch
from mentalese.registry import get_recipe
from mentalese.testing.runs import shrink
from mentalese.training.loop import Run
from support import quiet_run, saved, tiny_recipes

pytestmark = pytest.mark.slow

# Other modes of a family's tiny recipe: their graphs are counted, but not lowered, which takes longest.
MODES = ["coconut/tiny-pause", "latent_thought/tiny-vae", "conceptlm/tiny-mtp", "conceptlm/tiny-llama"]
SIZES = [(4, 64), (3, 50), (2, 64), (4, 33), (3, 41)]
"""Rows and columns of the batches of running text; other layouts have other ones in each step as they are."""
# CODI reads all layers' states, which transformers collects by a context variable. Attention in groups of sentences is
# not for the compiler.
BROKEN, EAGER = "codi", "_eagerly"
FEWER_LAYERS = {
    "thought_gestalt/tiny": {"num_hidden_layers": 5},
    "latent_thought/tiny": {"num_hidden_layers": 2, "num_latents": 4},
}
"""Of 12 and of 3, which are one graph; each kind of layer is among them."""
FIXED = ["coconut/tiny", "codi/tiny", "looped/tiny"]  # whose caches may have a fixed size
WARM_UP = {"looped/tiny": 4, "sentence_rows/tiny": 3}
"""Steps; the first of a loop without gradients comes when one is drawn; the third batch of these sentences is
the first without padding, whose mask is none."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("name", [*tiny_recipes(), *MODES])
def test_compiled_step_is_compiled_once_and_equals_eager(name: str, corpus: Path) -> None:
    torch._dynamo.reset()
    counters.clear()
    compiled, eager = (_run(name, corpus) for _ in range(2))
    compiled.step.compile(backend="eager" if name in MODES else "aot_eager")
    graphs, losses, expected = [], compiled.buffer, eager.buffer
    for step in range(5):
        for run in (compiled, eager):
            run.one_step()
        graphs.append(counters["stats"]["unique_graphs"])
        assert losses.losses[step].item() == pytest.approx(expected.losses[step].item(), rel=1e-4)
        assert losses.norms[step].item() == pytest.approx(expected.norms[step].item(), rel=1e-3)
    warm = WARM_UP.get(name, 1)
    assert graphs[warm - 1] > 0
    assert graphs[warm:] == [graphs[warm - 1]] * (5 - warm)
    assert name.startswith(BROKEN) or all(EAGER in reason for reason in counters["graph_break"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("name", [name for name in tiny_recipes() if not name.startswith((BROKEN, "gpt2"))])
def test_compiled_model_generates_the_same_without_recompiling(name: str, corpus: Path, tmp_path: Path) -> None:
    torch._dynamo.reset()
    counters.clear()
    model, options = load(saved(tmp_path / "run", _recipe(name, corpus))), {"do_sample": False, "max_new_tokens": 12}
    prompts = [["She had a son. He was", "A"], ["Who", "His"], ["A father. His name is what", "Who"]]
    prompts += [["She had", "A"], ["He went to see", "A"]]
    expected = [model.generate(pair, **options) for pair in prompts]
    model.compile(backend="eager")
    graphs = []
    for pair, texts in zip(prompts, expected):
        assert model.generate(pair, **options) == texts
        graphs.append(counters["stats"]["unique_graphs"])
    assert 0 < graphs[-1] == graphs[-2]
    assert not name.startswith("looped") or graphs[-1] <= 6  # and not one per layer and turn


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("name", FIXED)
def test_fixed_size_cache_has_the_same_shapes_at_each_token(name: str, corpus: Path, tmp_path: Path) -> None:
    torch._dynamo.reset()
    counters.clear()
    recipe = shrink(get_recipe(name), corpus)
    backbone = recipe.model["backbone"] | {"num_hidden_layers": 3}
    recipe = dataclasses.replace(recipe, model=recipe.model | {"backbone": backbone})
    model, options = load(saved(tmp_path / "run", recipe)), {"do_sample": False, "max_new_tokens": 14}
    pair, options["min_new_tokens"] = ["She had a son. He was", "A"], 14
    expected, graphs = model.generate(pair, **options), []
    model.compile(backend="eager", dynamic=False)
    model.model.register_forward_hook(lambda *_: graphs.append(counters["stats"]["unique_graphs"]))
    for _ in range(2):
        assert model.generate(pair, cache_implementation="static", **options) == expected
    assert len(graphs) == 2 * 14
    assert 0 < graphs[0] < graphs[2]
    assert graphs[2:] == [graphs[2]] * 26


def test_a_model_without_parts_is_not_compiled(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(saved(tmp_path / "run", shrink(get_recipe("looped/tiny"), corpus)))
    monkeypatch.setattr(type(model.model), "compiled_parts", lambda _: None)
    with pytest.raises(InputError, match=r"^LoopedForCausalLM has no compiled_parts: write that method"):
        model.compile()


def _recipe(name: str, corpus: Path) -> Recipe:
    recipe = shrink(get_recipe(name), corpus)
    if name in FEWER_LAYERS:
        recipe = dataclasses.replace(recipe, model=recipe.model | FEWER_LAYERS[name])
    backbone = {} if name.startswith("looped") else recipe.model.get("backbone", {})  # loops turn layers 2 and 3
    fewer = {layers: 2 for layers in ("n_layer", "num_hidden_layers") if backbone.get(layers, 0) > 2}
    return dataclasses.replace(recipe, model=recipe.model | {"backbone": backbone | fewer}) if fewer else recipe


def _run(name: str, corpus: Path) -> Run:
    run = quiet_run(_recipe(name, corpus), corpus.with_name("run"))
    whole = run.plan.batch

    def batch(step: int, *args: int) -> Batch:
        found = whole(step, *args)
        if found["input_ids"].shape != SIZES[0]:
            return found
        rows, columns = SIZES[step]
        return {name: value[:rows, :columns].contiguous() for name, value in found.items()}

    run.plan.batch = batch  # type: ignore[method-assign]
    return run
