"""Every way of the table on SmolLM2 starts from a trained decoder, or from the adapters of written steps."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from mentalese import recipes
from mentalese.data.store import prepare
from mentalese.suite.smollm2 import STAGES, WORDS, methods
from support import quiet_run, shrink

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")  # PEFT asks for it

DECODER = {
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 8,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip


def test_a_stage_is_an_epoch() -> None:
    table = recipes()
    for name, stages, epochs in (
        ("words-coconut", [1, 2, 3, 5], 5),
        ("words-icot", [8, 16, 24, 32], 5),
        ("arithmetic-icot", [13, 26, 39, 51], 5),
        ("gsm8k-coconut", [1, 2, 4], 4),
        ("gsm8k-icot", [53, 106, 159], 4),
        ("clutrr-coconut", [1, 3], 3),
        ("clutrr-icot", [77, 155], 3),
    ):
        recipe = table[f"smollm2/{name}"]
        assert [layout.stage for layout in recipe.layouts()] == stages
        assert [phase.start for phase in recipe.phases] == [*range(1, len(stages))]
        assert recipe.train.epochs == epochs
        no_cot, cot = (table[f"smollm2/{name.partition('-')[0]}-{other}"].train.epochs for other in ("no-cot", "cot"))
        assert no_cot == cot + epochs


def test_all_but_three_go_on_with_the_adapters_of_written_steps() -> None:
    begins = {recipe.name.removeprefix("smollm2/words-"): recipe.train.adapter for recipe in methods(WORDS, STAGES)}
    assert {name for name, adapter in begins.items() if adapter is None} == {"cot", "no-cot", "looped"}
    assert {*begins.values()} - {None} == {"models:smollm2-words-cot"}


@pytest.mark.slow
def test_every_way_takes_a_step_from_a_trained_decoder(corpus: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    recipe = dataclasses.replace(WORDS, model=DECODER)
    recipe = recipe.replace(data={"tokenizer": str(base), "train_tokens": None}, train={"init": str(base)})
    _, tokenizer = prepare(shrink(recipe, corpus).data, recipe.layout, show=False)
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(tokenizer), **{k: v for k, v in DECODER.items() if k != "model_type"})
    AutoModelForCausalLM.from_config(config).save_pretrained(base)
    tokenizer.save_pretrained(base)
    for made in methods(recipe, STAGES):
        small = shrink(made, corpus)
        small = small.replace(data={"tokenizer": str(base)}, train={"adapter": None})
        quiet_run(small, tmp_path / made.name.rpartition("/")[2]).one_step()
