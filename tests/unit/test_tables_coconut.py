"""Recipes of AGCLR's tables have the paper's numbers: appendix B, section 4 and Table 3."""

from __future__ import annotations

import math

import pytest
import torch

from mentalese import Recipe, get_recipe
from mentalese.data.layouts import QuestionAnswer
from mentalese.families.coconut.config import CoconutConfig
from mentalese.families.coconut.model import CoconutForCausalLM
from paper_tables import Row, check, names

METHODS = ("cot", "no-cot", "icot", "pause", "coconut", "agclr")
"""Rows of Table 1."""
EPOCHS = {"gsm8k": 15, "hotpotqa": 15, "prosqa": 20}
"""Section 4.2."""
RATE = dict.fromkeys(("peak_rate", "middle_rate", "last_rate"), "1e-4")
ROWS = [
    Row(recipe=f"coconut/table1-{data}-{name}", cited="section 4.2", epochs=epochs, **RATE)
    for data, epochs in EPOCHS.items()
    for name in METHODS
]


@names(ROWS)
def test_rates_and_lengths_are_the_papers(row: Row) -> None:
    check(row)


def coconut(data: str, name: str) -> tuple[Recipe, QuestionAnswer]:
    recipe = get_recipe(f"coconut/table1-{data}-{name}")
    assert isinstance(recipe.layout, QuestionAnswer)
    return recipe, recipe.layout


@pytest.mark.parametrize("data", EPOCHS)
@pytest.mark.parametrize("name", METHODS)
def test_a_step_has_128_questions_and_weights_decay(data: str, name: str) -> None:
    recipe, layout = coconut(data, name)
    assert layout.batch_size == 128  # section 4.2, B.1
    assert (recipe.optimizer.weight_decay, recipe.optimizer.schedule) == (0.01, "constant")  # B.1
    assert recipe.train.init == "hub:openai-community/gpt2"  # section 4.2


@pytest.mark.parametrize("data", ["gsm8k", "hotpotqa"])
@pytest.mark.parametrize("name", ["coconut", "agclr"])
def test_three_stages_of_two_latents_end_with_epoch_nine(data: str, name: str) -> None:
    """Section 4.2: stages 0 to 2 in epochs 1 to 9, stage 3 from epoch 10 on; B.2: six latents in the last stage."""
    recipe, layout = coconut(data, name)
    starts = [(phase.start, phase.layout["stage"]) for phase in recipe.phases]
    assert starts == [(3, 1), (6, 2), (9, 4)]  # epochs that are over; a stage above `stages` has no step left
    assert all(phase.clock == "epochs" and phase.reset_optimizer for phase in recipe.phases)  # section 4.1
    assert layout.stages * layout.latents_per_step == 6


@pytest.mark.parametrize("name", ["coconut", "agclr"])
def test_prosqa_has_six_stages_and_its_published_files(name: str) -> None:
    """Table 1 evaluates stage 6, with all of up to 6 steps latent, on the whole validation set (B.2)."""
    recipe, layout = coconut("prosqa", name)
    assert recipe.data.source == "file:data/prosqa"
    assert (layout.stages, recipe.phases[-1].layout["stage"]) == (6, 7)  # no step is left
    assert (recipe.evaluation.max_documents or math.inf) >= 300


def test_hotpotqa_asks_500_questions_at_random() -> None:
    for name in METHODS:
        recipe, _ = coconut("hotpotqa", name)
        assert recipe.evaluation.max_documents == 500  # B.2
        assert recipe.evaluation.documents_seed is not None


@pytest.mark.parametrize(
    ("data", "gates"),
    [("gsm8k", (0.43, 0.27, 0.18)), ("hotpotqa", (0.43, 0.27, 0.18)), ("prosqa", (0.43, 0.18, 0.43))],
)
def test_gates_start_as_table_3_has_them(data: str, gates: tuple[float, ...]) -> None:
    """Read, forget and write gate; B.1 gives their biases to two digits."""
    recipe, _ = coconut(data, "agclr")
    fields = {name: value for name, value in recipe.model.items() if name != "model_type"}
    biases = CoconutConfig(**fields).gate_biases
    assert [round(1 / (1 + math.exp(-bias)), 2) for bias in biases] == list(gates)


def test_gates_are_the_papers_share_of_all_parameters() -> None:
    """Section 1: 1.41%; equation 2 has three maps of 768 x 768 and, with Table 3, biases."""
    recipe, _ = coconut("gsm8k", "agclr")
    fields = {name: value for name, value in recipe.model.items() if name != "model_type"}
    with torch.device("meta"):
        model = CoconutForCausalLM(CoconutConfig(vocab_size=50_257, **fields))
    counts = {name: value.numel() for name, value in model.named_parameters()}
    gates = sum(count for name, count in counts.items() if not name.startswith("backbone"))
    assert gates == 1_774_848
    assert round(100 * gates / sum(counts.values()), 2) == 1.41
