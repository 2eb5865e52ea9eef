"""TRL's trainers take our models: two steps of each, on models that were saved and opened again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from mentalese import InputError, get_recipe
from mentalese.data.store import prepare
from mentalese.models.build import build_model
from mentalese.models.hf import LatentThoughtModel
from mentalese.training.plan import Plan
from support import shrink, tiny_recipes

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")
pytestmark = [
    pytest.mark.ecosystem,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # trl's own, and those of what it imports
]

# A mixture of distributions has no hidden state that the head turns into it.
FIELDS = {"thoughtbubbles/tiny": {"readout": "residual"}}
CAUSAL = [name for name in tiny_recipes() if name.partition("/")[0] not in ("mdlm", "md4", "sedd")]
SETTINGS: dict[str, Any] = {
    "max_steps": 2,
    "per_device_train_batch_size": 2,
    "gradient_checkpointing": True,
    "learning_rate": 1e-3,
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "save_strategy": "no",
    "disable_tqdm": True,
    "logging_steps": 1,
}


def opened(name: str, corpus: Path, folder: Path, **fields: Any) -> tuple[Any, Any, list[list[int]], list[str]]:
    """A model and its tokenizer from disk, rows of tokens of different lengths, and prompts."""
    recipe = shrink(get_recipe(name), corpus)
    store, tokenizer = prepare(recipe.data, recipe.layout, show=False)
    build_model(dict(recipe.model) | fields, tokenizer, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    batch = Plan(store.splits["train"], recipe, tokenizer).batch(0)
    mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
    rows = [row[real.bool()].tolist() for row, real in zip(batch["input_ids"], mask)]
    prompts = recipe.layout.encode_prompts(["The first", "She had a son. He was old"], tokenizer, recipe.data)
    texts = [tokenizer.decode(row[real.bool()]) for row, real in zip(prompts["input_ids"], prompts["attention_mask"])]
    return AutoModelForCausalLM.from_pretrained(folder), tokenizer, rows, texts


def variety(completions: list[str], **_: Any) -> list[float]:
    return [float(len(set(text))) for text in completions]


def trainer(kind: str, model: Any, tokenizer: Any, rows: list[list[int]], texts: list[str], out: Path) -> Any:
    data = datasets.Dataset.from_dict
    if kind == "sft":
        # Rows begin alike and differ in length, so that batches are padded.
        rows = [row[: len(row) - 4 * number] if len(row) > 40 else row for number, row in enumerate(rows[:2])]
        return trl.SFTTrainer(
            model, trl.SFTConfig(str(out), **SETTINGS), train_dataset=data({"input_ids": rows * 2}),
            processing_class=tokenizer,
        )  # fmt: skip
    if kind == "dpo":
        answers = {"prompt": texts, "chosen": [" old man"] * 2, "rejected": [" town"] * 2}
        return trl.DPOTrainer(
            model, args=trl.DPOConfig(str(out), **SETTINGS), train_dataset=data(answers), processing_class=tokenizer
        )
    # CoLaR writes up to six latents before the tokens that are rewarded.
    settings = trl.GRPOConfig(str(out), num_generations=2, max_completion_length=12, **SETTINGS)
    return trl.GRPOTrainer(
        model, variety, args=settings, train_dataset=data({"prompt": texts}), processing_class=tokenizer
    )


@pytest.mark.parametrize("kind", ["sft", "dpo", "grpo"])
@pytest.mark.parametrize("name", CAUSAL)
def test_two_steps_of_a_trainer_move_the_weights(name: str, kind: str, corpus: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, tokenizer, rows, texts = opened(name, corpus, tmp_path / "model", **FIELDS.get(name, {}))
    before = {key: p.clone() for key, p in model.named_parameters()}
    training = trainer(kind, model, tokenizer, rows, texts, tmp_path / "out")
    training.train()
    logged = [entry for entry in training.state.log_history if "loss" in entry]
    assert len(logged) == 2
    assert all(torch.isfinite(torch.tensor(entry["grad_norm"])) for entry in logged)
    assert any(entry["grad_norm"] > 0 for entry in logged)
    moved = [key for key, p in model.named_parameters() if not torch.equal(p, before[key])]
    assert len(moved) > len(before) // 4
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", CAUSAL)
def test_the_loss_of_trl_is_that_of_a_plain_call(name: str, corpus: Path, tmp_path: Path) -> None:
    model, tokenizer, rows, texts = opened(name, corpus, tmp_path / "model", **FIELDS.get(name, {}))
    if not isinstance(model, LatentThoughtModel):
        pytest.skip("another project's model")
    trainer("sft", model, tokenizer, rows, texts, tmp_path / "out")
    ids = torch.tensor(rows[:1])
    labels = ids.clone()
    for marker in ("sentence_start_token_id", "latent_token_id"):  # no targets of the model's own loss
        labels[labels == getattr(model.config, marker, None)] = -100
    model.eval()
    with torch.no_grad():
        fused = model(input_ids=ids, labels=labels, fused_lm_head=True)
        torch.testing.assert_close(fused.loss, model(input_ids=ids, labels=labels, use_cache=False).loss)


@pytest.mark.parametrize(
    ("name", "says"),
    [("mdlm/tiny", "trainers of causal models do not fit"), ("thoughtbubbles/tiny", "readout is 'mixture'")],
)
def test_model_without_predicting_states_is_refused(name: str, says: str, corpus: Path, tmp_path: Path) -> None:
    model, tokenizer, rows, texts = opened(name, corpus, tmp_path / "model")
    with pytest.raises(InputError, match=says):
        trainer("sft", model, tokenizer, rows, texts, tmp_path / "out").train()
