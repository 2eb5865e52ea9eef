"""The cost of a run: computed from its recipe, and counted by a dry run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from mentalese import Recipe, cli, get_recipe, recipes
from mentalese.commands import cost
from mentalese.commands.dry_run import estimate
from mentalese.data.store import prepare
from mentalese.models.backbone import linear_weights
from mentalese.models.build import build_model
from mentalese.recipe import EvaluationConfig
from support import shrink


@pytest.mark.parametrize("name", ["gpt2/tiny", "latent_thought/tiny", "thoughtbubbles/tiny", "mdlm/tiny"])
def test_a_table_costs_what_a_dry_run_counts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": f"{i} is a number. " * 20}) + "\n" for i in range(100, 300)))
    recipe = shrink(get_recipe(name), corpus, steps=40, eval_every=7)
    recipe = dataclasses.replace(
        recipe,
        data=dataclasses.replace(recipe.data, tokenizer="bpe:300", held_out=20),
        evaluation=EvaluationConfig(joined=True, max_documents=6, batch_size=1),
    )
    store, tokenizer = prepare(recipe.data, recipe.layout, show=False)
    mean = sum(len(store.splits[split].tokens) for split in ("validation", "test")) / 20
    monkeypatch.setitem(cost.CORPORA, recipe.data.source, (200, mean))
    recipe = dataclasses.replace(recipe, model=recipe.model | {"vocab_size": len(tokenizer)})
    found, counted = cost.table_cost(recipe), estimate(recipe)
    assert found is not None
    assert found.training == pytest.approx(counted.flops, rel=0.02)
    assert found.evaluation == pytest.approx(counted.evaluation_flops, rel=0.05)


def test_runs_of_sentences_and_questions_depend_on_their_text() -> None:
    for name in ("thought_gestalt/table2-50m", "coconut/table1-gsm8k-agclr", "gpt2-boundaries/table3-50m"):
        assert cost.table_cost(get_recipe(name)) is None
    other = get_recipe("gpt2/table2-50m")
    twin = cost.table_cost(other)
    assert twin is not None
    assert twin.evaluation is None
    assert str(twin).endswith("+ evaluation")
    unknown = dataclasses.replace(other, data=dataclasses.replace(other.data, tokenizer="hub:someone/else"))
    assert cost.table_cost(unknown) is None


@pytest.mark.parametrize("family", ["latent_thought", "thoughtbubbles"])
def test_evaluation_of_a_papers_recipe_costs_little(family: str) -> None:
    papers = [recipe for recipe in recipes().values() if recipe.paper and recipe.name.startswith(f"{family}/")]
    found = {recipe.name: cost.table_cost(recipe) for recipe in papers}
    known = {name: each for name, each in found.items() if each is not None and each.evaluation is not None}
    assert len(known) >= len(papers) / 2
    for name, each in known.items():
        assert each.evaluation is not None
        assert each.evaluation < 0.05 * each.training, name


def test_a_table_is_listed_with_its_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--family", "latent_thought", "--table", "Table 1"]) == 0
    shown = capsys.readouterr().out
    (small,) = (line for line in shown.splitlines() if "latent_thought/table1-small " in line)
    assert "e+19 FLOPs, 12." in small
    assert "hours at 4e14" in shown
    assert cli.main(["list", "--family", "latent_thought", "--table", "Table 1", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["costs"].keys() == listed["recipes"].keys()
    assert 1.7e19 < listed["costs"]["latent_thought/table1-small"]["training"] < 1.9e19
    assert cli.main(["list", "--family", "latent_thought"]) == 0
    assert "FLOPs," not in capsys.readouterr().out


def scored(name: str, corpus: Path, **fields: Any) -> tuple[Any, dict[str, Any]]:
    recipe: Recipe = shrink(get_recipe(name), corpus)
    _, tokenizer = prepare(recipe.data, recipe.layout, show=False)
    model = build_model(recipe.model | fields, tokenizer, seed=0)
    ids = torch.randint(10, 400, (2, 64), generator=torch.Generator().manual_seed(0))
    return model, {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("latent_thought/tiny", {}),
        ("latent_thought/tiny", {"fast_steps": 3}),
        ("latent_thought/tiny-vae", {}),
        ("latent_thought/tiny-langevin", {}),
        ("latent_thought/tiny-ar", {}),
        ("mdlm/tiny", {}),
        ("gpt2/tiny", {}),
    ],
    ids=str,
)
def test_the_cost_of_a_score_is_what_pytorch_counts(name: str, fields: dict[str, Any], corpus: Path) -> None:
    model, batch = scored(name, corpus, **fields)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model.token_nll(batch)
    # The head reads one position fewer, or only masked ones.
    assert model.scoring_flops(batch) == pytest.approx(counter.get_total_flops(), rel=0.2 if "mdlm" in name else 0.04)


@pytest.mark.parametrize("model_type", ["mixtral", "gpt_oss", "granitemoe"])
def test_a_token_costs_its_experts_whatever_their_router_is_called(model_type: str) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 300}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    config = CONFIG_MAPPING[model_type](**sizes, **heads, num_local_experts=32, num_experts_per_tok=4)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    attention, experts, router = 2 * 64 * (64 + 32), 4 * 3 * 64 * 128, 32 * 64
    assert linear_weights(model) == 2 * (attention + experts + router)


def test_experts_that_a_decoder_layer_holds_itself_are_counted() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 300}
    counts = []
    for chosen in (1, 2):
        experts = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": chosen, "moe_intermediate_size": 32}
        with torch.device("meta"):
            config = CONFIG_MAPPING["gemma4_text"](**sizes, **experts, vocab_size_per_layer_input=300)
            counts.append(linear_weights(AutoModelForCausalLM.from_config(config)))
    assert counts[1] - counts[0] == 2 * 3 * 64 * 32
