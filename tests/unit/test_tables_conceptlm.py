"""The recipes of ConceptLM beside the paper's numbers."""

from __future__ import annotations

from typing import Any

import pytest

from mentalese import Recipe, get_recipe
from mentalese.registry import match_recipes
from paper_tables import GPT2_VOCABULARY, Row, check, check_costs, names, steps

GPT2 = {
    "124m": ("124M", "1e-3"),
    "355m": ("355M", "8e-4"),
    "774m": ("774M", "6e-4"),
    "1.5b": ("1,557,611,200", "4e-4"),  # the paper's 1.5B is GPT-2's name for it
}
"""Size -> parameters of Table 1's baseline, rate of Table 10."""
PYTHIA = {
    "70m": ("70,426,624", "1e-3"),
    "160m": ("162,322,944", "6e-4"),
    "410m": ("405,334,016", "4e-4"),
}
"""Size -> parameters (Biderman et al., 2023, table 1, whose names the paper uses), rate of Table 11."""
RELEASED = ("-release", "-release-l1", "-release-context", "-release-pm", "-release-base")
ROTARY = 50_304, 128_256
"""Rows of Pythia's and of Llama-3.1's embedding tables."""


def gpt2(size: str, suffix: str) -> Row:
    """Table 8: 8B tokens; Table 10: 512 rows of 1,024. The rest is the README's."""
    parameters, rate = GPT2[size]
    return Row(
        recipe=f"conceptlm/table1-gpt2-{size}{suffix}",
        cited="Tables 1, 8 and 10",
        parameters=parameters if suffix == "-base" else None,
        vocabulary=GPT2_VOCABULARY,
        tokens="8B",
        steps="15.3K",
        tokens_per_step=512 * 1024,
        peak_rate=rate,
        last_rate=f"{float(rate) / 10:g}",
        context=1024,
        evaluation="11.1M",
        test="110.7M",
    )


def pythia(name: str, size: str, tokens: str, count: str) -> Row:
    """Table 8: 300B tokens, 30B in ablations (section 5); Table 11: 1,024 rows of 2,048."""
    parameters, rate = PYTHIA[size]
    return Row(
        recipe=f"conceptlm/{name}",
        cited="Tables 1, 8 and 11, section 5",
        parameters=parameters if name.endswith("-base") else None,
        vocabulary=ROTARY[0],
        tokens=tokens,
        steps=count,
        tokens_per_step=1024 * 2048,
        peak_rate=rate,
        last_rate=f"{float(rate) / 10:g}",
        context=2048,
    )


def llama(suffix: str) -> Row:
    """Table 8: 9.6B tokens; Table 12: 96 rows of 8,192."""
    return Row(
        recipe=f"conceptlm/table3-llama-8b{suffix}",
        cited="Tables 3, 8 and 12",
        parameters="8.0B" if suffix == "-base" else None,
        vocabulary=ROTARY[1],
        tokens="9.6B",
        steps="12.2K",
        tokens_per_step=96 * 8192,
        peak_rate="1e-5",
        last_rate="1e-6",
        context=8192,
    )


ROWS = [
    *(gpt2(size, suffix) for size in GPT2 for suffix in ("", "-l1", "-context", "-pm", "-base", *RELEASED)),
    *(
        pythia(f"table1-pythia-{size}{suffix}", size, "300B", "143K")
        for size in PYTHIA
        for suffix in ("", "-context", "-base")
    ),
    *(llama(suffix) for suffix in ("", "-pm", "-base")),
    *(pythia(f"ablation{suffix}", "160m", "30B", "14.3K") for suffix in ("", "-mtp", "-pm", "-pm6", "-pm10")),
]


@names(ROWS)
def test_a_recipe_has_the_numbers_of_its_table(row: Row) -> None:
    check(row)


def test_every_recipe_of_a_table_has_a_row() -> None:
    assert {row.recipe for row in ROWS} == {recipe.name for recipe in match_recipes("conceptlm/*") if recipe.paper}


def concepts(recipe: Recipe) -> dict[str, Any]:
    from mentalese.families.conceptlm.config import ConceptLMConfig

    config = ConceptLMConfig(**{name: value for name, value in recipe.model.items() if name != "model_type"})
    names = ("insert_depth", "concept_layers", "chunk_size", "num_segments", "num_codes", "codebook", "detach_concept")
    return {name: getattr(config, name) for name in names} | {"heads": config.num_attention_heads}


def test_concepts_are_those_of_table_9() -> None:
    """Before the first layer of GPT-2, or with the others before the second; k 4, a segment per head, N 64."""
    found = 0
    for row in ROWS:
        recipe = get_recipe(row.recipe)
        if recipe.model["model_type"] != "conceptlm" or "-context" in recipe.name:
            continue
        first = "gpt2" in recipe.name and not recipe.name.endswith("-l1")
        setting = concepts(recipe)
        heads = setting.pop("heads")
        assert setting == {
            "insert_depth": 0 if first else 1,
            "concept_layers": 2,
            "chunk_size": 4,
            "num_segments": heads,
            "num_codes": 64,
            "codebook": "linear" if "-release" in recipe.name else "mlp",
            "detach_concept": False,
        }, recipe.name
        found += 1
    assert found == 4 * 4 + 3 + 1 + 1


@pytest.mark.parametrize(
    ("name", "more"), [("ablation-pm", 2), ("ablation-pm6", 6), ("ablation-pm10", 10), ("table3-llama-8b-pm", 2)]
)
def test_matched_twins_have_more_token_layers(name: str, more: int) -> None:
    """Section 4.2, Table 5; Llama-3.1-8B-PM has 34 (appendix C)."""
    concept = get_recipe(f"conceptlm/{name.split('-pm')[0]}").model["backbone"]
    assert get_recipe(f"conceptlm/{name}").model == concept | {"num_hidden_layers": concept["num_hidden_layers"] + more}


DOCUMENTS = {"openwebtext": 1107, "pile": 2000, "fineweb": 80_000}
"""Tokens of the mean document, or more: nanoGPT counts 1,107 in OpenWebText; the Pile's have 5.91 KiB (Gao et al.,
2020, table 1); the paper's text of Table 3, given by `--data`, has rows of up to 80,000 (Fu et al., 2024)."""


@names(ROWS)
def test_evaluation_costs_less_than_a_twentieth_of_training(row: Row) -> None:
    recipe = get_recipe(row.recipe)
    evaluation, count = recipe.evaluation, steps(recipe)
    assert evaluation.max_documents is not None
    assert evaluation.max_test_documents is not None
    assert recipe.train.eval_every is not None
    assert recipe.train.tokens is not None
    length = next(tokens for corpus, tokens in DOCUMENTS.items() if corpus in recipe.data.source)
    context, stride = recipe.layout.window(evaluation)
    length *= context // stride  # a token is read once as context
    validations = count // recipe.train.eval_every + 1
    scored = length * (validations * evaluation.max_documents + evaluation.max_test_documents)
    assert scored < 0.05 * 3 * recipe.train.tokens  # a training step costs three forward passes
    assert evaluation.documents_seed == 0


@pytest.mark.parametrize("name", ["gpt2/124m", "neox/410m", "llama/8b"])
def test_published_sizes_are_evaluated_on_a_part_too(name: str) -> None:
    evaluation = get_recipe(name).evaluation
    assert (evaluation.max_documents, evaluation.max_test_documents, evaluation.documents_seed) == (10_000, 100_000, 0)


def test_the_readme_states_what_runs_cost() -> None:
    check_costs("conceptlm")
