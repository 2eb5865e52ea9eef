"""Every way of the table on GSM8K-Aug starts from a trained decoder and takes a step, in one setting."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from mentalese import recipes
from mentalese.data.store import prepare
from mentalese.families.coconut.recipes import WORD_PROBLEMS
from mentalese.families.codi.recipes import gsm8k
from mentalese.families.looped.recipes import grown
from mentalese.suite.latent_reasoning import looped, ways
from support import quiet_run, shrink

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")  # PEFT asks for it

DECODER = {
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 16,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip
SHARED = {"rank": 128, "epochs": 15, "batch": 128}


def test_all_ways_share_a_setting() -> None:
    for decoder, count in (("gpt2", 12), ("llama", 14)):
        table = {name: recipe for name, recipe in recipes().items() if name.startswith(f"latent_reasoning/{decoder}-")}
        assert len(table) == count
        for name, recipe in table.items():
            shared = {
                "rank": recipe.train.lora_rank,
                "epochs": recipe.train.epochs,
                "batch": vars(recipe.layout)["batch_size"],
            }
            assert shared == SHARED, name
            assert recipe.baseline == (None if name.endswith(f"{decoder}-cot") else f"latent_reasoning/{decoder}-cot")


def test_a_loop_is_what_growing_the_decoder_makes() -> None:
    base = gsm8k("codi/small", "a small decoder", DECODER, "somewhere", learning_rate=1e-3, epochs=1)
    assert looped(base, "looped", 4, "", WORD_PROBLEMS).model == grown(DECODER, turns=4)["model"]


@pytest.mark.slow
def test_every_way_takes_a_step_from_a_trained_decoder(corpus: Path, tmp_path: Path) -> None:
    base = gsm8k("codi/small", "a small decoder", DECODER, str(tmp_path), learning_rate=1e-3, epochs=1)
    asked = shrink(base, corpus)
    _, tokenizer = prepare(asked.data, asked.layout, show=False)
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(tokenizer), **{k: v for k, v in DECODER.items() if k != "model_type"})
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for made in [*ways(base), looped(base, "looped", 4, "", WORD_PROBLEMS)]:
        small = shrink(made, corpus)
        small = dataclasses.replace(
            small,
            layout=dataclasses.replace(small.layout, sequence_length=256),
            data=dataclasses.replace(small.data, tokenizer=str(tmp_path)),
            train=dataclasses.replace(small.train, init=str(tmp_path), lora_rank=4, lora_alpha=8),
        )
        run = quiet_run(small, tmp_path / "run")
        before = {n: p.detach().clone() for n, p in run.model.named_parameters() if p.requires_grad}
        run.one_step()
        moved = [n for n, p in run.model.named_parameters() if n in before and not torch.equal(p, before[n])]
        assert moved, made.name
        assert all(p.isfinite().all() for p in run.model.parameters()), made.name
