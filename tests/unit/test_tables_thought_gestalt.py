"""The recipes of Thought Gestalt, and of the GPT-2 beside them, next to the paper's numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mentalese import Recipe, get_recipe
from mentalese.models.base import count_parameters
from mentalese.registry import match_recipes
from paper_tables import Row, check, matches, names

MARKED = 50_261
"""GPT-2's tokens with those of padding, sentence start and end, and document end."""
BY_TEXT = {"12m": "12M", "20m": "20M", "30m": "30M", "50m": "50M"}
BY_SIZE = {"340k": (48, "0.34M"), "1.3m": (96, "1.3M"), "5.4m": (192, "5.4M"), "21m": (384, "21.3M")}
"""Size -> d_model (section 3.2) and N of Table 2."""
ABLATIONS = {
    "self-cross": "114M",
    "parallel": "114M",
    "no-memory": None,  # 85.1M: the table's 85.6M counts a sentence head that has nothing to write
    "detach": "85.6M",
    "in-context": "85.6M",
    "last-layer": "85.6M",
    "static-bos": "85.6M",
    "eos-weight": "85.6M",
    "fixed-streams": "85.6M",
    "short-sentences": "85.6M",
}
"""Rows of Table 1 -> N."""


def row(recipe: str, cited: str, train_text: str) -> Row:
    """Section 3.1: rate 2.5e-4, 2% warm-up (of the 100,000 steps that are tested). 50 epochs and a last rate of a tenth
    are the release's."""
    twin = {} if recipe.startswith("thought_gestalt/") else {"tokens_per_step": 20 * 1024}
    return Row(
        recipe=recipe,
        cited=f"{cited}; 3.1",
        train_text=train_text,
        epochs=50,
        peak_rate="2.5e-4",
        last_rate="2.5e-5",
        warmup=2000,
        **twin,
    )


ROWS = [
    *(
        row(f"{family}/table2-{name}", "Table 2", tokens)
        for family in ("thought_gestalt", "gpt2")
        for name, tokens in (BY_TEXT | dict.fromkeys(BY_SIZE, "50M")).items()
    ),
    *(row(f"thought_gestalt/ablation-{name}", "Table 1", "30M") for name in ABLATIONS),
    *(
        row(f"{family}-{name}", cited, BY_TEXT[name])
        for family, cited in (
            ("gpt2-boundaries/table3", "Table 3"),
            ("thought_gestalt/table4-span25", "Table 4"),
            ("thought_gestalt/table4-span50", "Table 4"),
            ("thought_gestalt/table4-span75", "Table 4"),
            ("gpt2-gist/table5", "Table 5"),
        )
        for name in ("20m", "30m", "50m")
    ),
]


@names(ROWS)
def test_a_recipe_has_the_numbers_of_its_table(row: Row) -> None:
    check(row)
    recipe = get_recipe(row.recipe)
    config = recipe.optimizer
    assert (config.betas, config.weight_decay, config.schedule) == ((0.9, 0.999), 0.01, "cosine")  # 3.1
    assert config.max_grad_norm == 1.0  # the release
    stop = recipe.train.early_stopping_patience, recipe.train.early_stopping_min_delta, recipe.train.eval_every
    assert stop == (3, 0.1, None)  # 3 epochs without 0.1 perplexity; a validation each epoch
    assert recipe.evaluation.max_documents is None  # all of WikiText-103's validation and test
    assert recipe.data.source == "hub:Salesforce/wikitext:wikitext-103-raw-v1"


def test_every_recipe_of_a_table_has_a_row() -> None:
    families = ("thought_gestalt/*", "gpt2/*", "gpt2-boundaries/*", "gpt2-gist/*")
    assert {row.recipe for row in ROWS} == {r.name for family in families for r in match_recipes(family) if r.paper}


def non_embedding(recipe: Recipe) -> int:
    """N, the parameters without those of tokens and positions."""
    values: dict[str, Any] = {"vocab_size": MARKED} | recipe.model
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(values.pop("model_type"), **values))
    return count_parameters(model)["non_embedding"]


@pytest.mark.parametrize(("name", "size"), [item for item in ABLATIONS.items() if item[1]])
def test_sizes_of_table_1(name: str, size: str) -> None:
    assert matches(non_embedding(get_recipe(f"thought_gestalt/ablation-{name}")), size)


@pytest.mark.parametrize("name", [*BY_TEXT, *BY_SIZE])
def test_a_size_of_table_2_fits_one_of_the_twins(name: str) -> None:
    """The paper gives one N for both: GPT-2's at 0.34M, 1.3M, 21.3M and 85M, and its own model's at 5.4M."""
    width, size = BY_SIZE.get(name, (768, "85M"))
    twins = [get_recipe(f"{family}/table2-{name}") for family in ("thought_gestalt", "gpt2")]
    assert [recipe.model.get("hidden_size", recipe.model.get("n_embd")) for recipe in twins] == [width, width]
    assert any(matches(non_embedding(recipe), size) for recipe in twins)
    assert twins[0].baseline == twins[1].name


def test_the_smallest_models_drop_no_tokens() -> None:
    """B.2; rates are halved at 2,000 sentence steps and full at 7,000."""
    for row in ROWS:
        recipe = get_recipe(row.recipe)
        if not recipe.name.startswith("thought_gestalt/"):
            continue
        rate = 0.0 if recipe.name.endswith(("340k", "1.3m")) else 0.15
        dropouts = [phase for phase in recipe.phases if "token_dropout" in phase.model]
        assert [(phase.start, phase.clock) for phase in dropouts] == [(n, "sentence_steps") for n in (2000, 7000)]
        for phase, share in zip(dropouts, (0.5, 1.0)):
            assert phase.model == {"token_dropout": rate * share, "sentence_dropout": 0.15 * share}


def test_the_curriculum_is_that_of_section_2_3() -> None:
    """S is 30 and grows by 12 every 5 epochs without a limit; batches have 20,000 tokens (the release)."""
    for row in ROWS:
        recipe = get_recipe(row.recipe)
        if not recipe.name.startswith("thought_gestalt/"):
            continue
        fixed = recipe.name.endswith("fixed-streams")
        lengths = {phase.start: phase.layout["max_sentences"] for phase in recipe.phases if phase.layout}
        assert vars(recipe.layout)["max_sentences"] == (40 if fixed else 30)
        assert vars(recipe.layout)["tokens_per_batch"] == 20_000
        assert lengths == ({} if fixed else {5 * i: 30 + 12 * i for i in range(1, 10)})
        ends = [(phase.start, phase.clock) for phase in recipe.phases if phase.model == {"eos_weight": 0.05}]
        assert ends == ([] if recipe.name.endswith("eos-weight") else [(1, "epochs")])


def test_the_release_differs_where_its_configuration_does() -> None:
    """Its default configuration: `tg/configs/tg_default.py`."""
    paper, release = (get_recipe(f"thought_gestalt/{name}-50m") for name in ("table2", "release"))
    assert release.model == paper.model | {
        "sentence_head": "normalized",
        "activation": "swiglu",
        "layer_norm_eps": 1e-6,
    }
    assert vars(release.layout) == vars(paper.layout) | {"bucket_width": 1}
    assert (release.optimizer.warmup, paper.optimizer.warmup) == (0.004, 0.02)
    clocks = [{phase.clock for phase in r.phases if "token_dropout" in phase.model} for r in (paper, release)]
    assert clocks == [{"sentence_steps"}, {"steps"}]
    assert (release.data, release.evaluation) == (paper.data, paper.evaluation)
    assert vars(release.train) == vars(paper.train) | {"early_stopping_patience": None}
