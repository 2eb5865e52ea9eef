"""Every recipe of every family is a run that could start, and the baselines have exactly the published sizes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mentalese import Recipe, get_recipe, recipes
from mentalese.models.base import count_parameters

GPT2_VOCABULARY = 50_257


def sizes(name: str, vocabulary: int) -> dict[str, int]:
    """Parameter counts of a recipe's model, built without memory for its weights."""
    fields = dict(get_recipe(name).model)
    config = AutoConfig.for_model(fields.pop("model_type"), vocab_size=vocabulary, **fields)
    with torch.device("meta"):
        return count_parameters(AutoModelForCausalLM.from_config(config))


@pytest.mark.slow
@pytest.mark.parametrize("name", recipes())
def test_every_recipe_builds_a_model(name: str) -> None:
    recipe = get_recipe(name)
    fields = dict(recipe.model)
    config = AutoConfig.for_model(fields.pop("model_type"), **({"vocab_size": 4096} | fields))
    for field, value in fields.items():
        kept = getattr(config, field)
        assert kept == value or list(kept) == list(value), f"{field} did not reach the config"
    with torch.device("meta"):
        assert count_parameters(AutoModelForCausalLM.from_config(config))["non_embedding"] > 0


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_survives_json(name: str) -> None:
    recipe = get_recipe(name)
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
    assert again.to_dict() == recipe.to_dict()
    assert again.fingerprint() == recipe.fingerprint()


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_says_what_it_is(name: str) -> None:
    recipe = get_recipe(name)
    prefix, _, rest = name.partition("/")
    assert prefix
    assert rest
    assert recipe.description
    assert "\n" not in recipe.description


@pytest.mark.parametrize("name", [name for name, recipe in recipes().items() if recipe.baseline])
def test_a_baseline_exists_and_reads_the_same_tokens(name: str) -> None:
    recipe = get_recipe(name)
    assert recipe.baseline is not None
    twin = get_recipe(recipe.baseline)
    assert twin.name != name
    for field in ("source", "tokenizer", "train_tokens"):
        assert getattr(twin.data, field) == getattr(recipe.data, field)
    assert twin.evaluation.tokens == recipe.evaluation.tokens
    lengths = ("steps", "epochs", "tokens")
    assert [getattr(twin.train, n) for n in lengths] == [getattr(recipe.train, n) for n in lengths]


@pytest.mark.parametrize("prefix", ["gpt2", "gpt2-rope"])
@pytest.mark.parametrize(
    ("size", "non_embedding"), [("340k", 339_360), ("1.3m", 1_342_272), ("5.4m", 5_338_752), ("21m", 21_294_336)]
)
def test_small_models_have_the_papers_sizes(prefix: str, size: str, non_embedding: int) -> None:
    assert sizes(f"{prefix}/{size}", GPT2_VOCABULARY)["non_embedding"] == non_embedding


@pytest.mark.parametrize(
    ("name", "vocabulary", "total"),
    [
        ("gpt2/124m", GPT2_VOCABULARY, 124_439_808),
        ("gpt2/355m", GPT2_VOCABULARY, 354_823_168),
        ("gpt2/774m", GPT2_VOCABULARY, 774_030_080),
        ("gpt2/1.5b", GPT2_VOCABULARY, 1_557_611_200),
        ("neox/70m", 50_304, 70_426_624),
        ("neox/160m", 50_304, 162_322_944),
        ("neox/410m", 50_304, 405_334_016),
        ("llama/1b", 128_256, 1_235_814_400),
        ("llama/8b", 128_256, 8_030_261_248),
    ],
)
def test_published_models_have_the_published_sizes(name: str, vocabulary: int, total: int) -> None:
    assert sizes(name, vocabulary)["total"] == total


@pytest.mark.parametrize("name", [name for name in recipes() if name.startswith(("gpt2-boundaries/", "gpt2-gist/"))])
def test_marked_and_gist_runs_differ_only_in_markers_and_mask(name: str) -> None:
    recipe = get_recipe(name).to_dict()
    twin = get_recipe(recipe["baseline"]).to_dict()
    gist = name.startswith("gpt2-gist/")
    assert recipe["layout"].pop("kind") == "marked"
    assert twin["layout"].pop("kind") == "packed"
    assert (recipe["model"].pop("model_type"), twin["model"].pop("model_type")) == (
        "gpt2_gist" if gist else "gpt2",
        "gpt2",
    )
    for field in ("model", "data", "layout", "optimizer", "train", "evaluation", "phases"):
        assert recipe[field] == twin[field]
    if not name.endswith("/tiny"):
        assert sizes(name, GPT2_VOCABULARY)["non_embedding"] == 85_056_000


def test_rotary_gpt2_has_no_position_table() -> None:
    fields: dict[str, Any] = dict(get_recipe("gpt2-rope/1.3m").model)
    config = AutoConfig.for_model(fields.pop("model_type"), vocab_size=512, **fields)
    model = AutoModelForCausalLM.from_config(config)
    head = config.hidden_size // config.num_attention_heads
    assert model.base_model.rotary_emb.inv_freq.shape == (head // 2,)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    total, table = count_parameters(model), 512 * config.hidden_size
    assert total["total"] == total["non_embedding"] + table
