"""The tools that people have train and adapt what the library's own loop trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from mentalese import Recipe, get_recipe
from mentalese.data.store import prepare
from mentalese.models.build import build_model
from mentalese.training.plan import Plan
from support import shrink, tiny_recipes

pytestmark = pytest.mark.slow

CAUSAL = [name for name in tiny_recipes() if name.partition("/")[0] not in ("mdlm", "md4", "sedd")]


class Gradients(TrainerCallback):
    """The gradient norm of each optimiser step."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        parts = [p.grad.square().sum() for p in model.parameters() if p.grad is not None]
        self.norms.append(float(torch.stack(parts).sum().sqrt()))


def rows_of(recipe: Recipe) -> tuple[Any, list[dict[str, Any]]]:
    """The model, and a batch's rows of one length as a data set for `Trainer`."""
    store, tokenizer = prepare(recipe.data, recipe.layout, show=False)
    model = build_model(recipe.model, tokenizer, seed=0)
    batch = Plan(store.splits["train"], recipe, tokenizer).batch(0)
    batch.setdefault("attention_mask", torch.ones_like(batch["input_ids"]))
    names = ("input_ids", "attention_mask", "labels")
    return model, [{name: batch[name][row] for name in names} for row in range(len(batch["input_ids"]))]


def first_gradient(recipe: Recipe, out: Path, accumulation: int) -> float:
    torch.manual_seed(0)
    model, rows = rows_of(recipe)
    row = rows[0]  # every micro-batch is the same: its gradient is the batch's, however many there are
    arguments = TrainingArguments(
        str(out), per_device_train_batch_size=1, gradient_accumulation_steps=accumulation, max_steps=1,
        report_to=[], use_cpu=True, save_strategy="no", max_grad_norm=0.0, disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    gradients = Gradients()
    Trainer(model, arguments, train_dataset=[row] * accumulation, callbacks=[gradients]).train()
    return gradients.norms[0]


@pytest.mark.parametrize("name", CAUSAL)
def test_accumulated_gradients_are_means(name: str, corpus: Path, tmp_path: Path) -> None:
    recipe = shrink(get_recipe(name), corpus)
    one, four = (first_gradient(recipe, tmp_path / str(n), n) for n in (1, 4))
    drawn = name.startswith(("latent_thought", "looped", "colar"))  # thoughts, turns or factors, for each micro-batch
    noise = 0.5 if drawn else 1e-4
    assert four == pytest.approx(one, rel=noise)


@pytest.mark.parametrize("name", CAUSAL)
def test_smoothed_labels_are_those_of_the_next_token(name: str, corpus: Path, tmp_path: Path) -> None:
    model, rows = rows_of(shrink(get_recipe(name), corpus))
    arguments = TrainingArguments(str(tmp_path), label_smoothing_factor=1e-6, report_to=[], use_cpu=True)
    trainer = Trainer(model.eval(), arguments)
    inputs = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    with torch.no_grad():
        logits, labels = model(**inputs, use_cache=False).logits[:, :-1], inputs["labels"][:, 1:]
        loss = trainer.compute_loss(model, inputs | {"use_cache": False})
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(loss, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["gpt2/tiny", "thought_gestalt/tiny", "coconut/tiny"])
def test_trainer_predicts_logits(name: str, corpus: Path, tmp_path: Path) -> None:
    model, rows = rows_of(shrink(get_recipe(name), corpus))
    arguments = TrainingArguments(str(tmp_path), report_to=[], use_cpu=True, per_device_eval_batch_size=len(rows))
    predicted = Trainer(model, arguments).predict(rows)
    assert isinstance(predicted.predictions, np.ndarray), "the logits alone, without caches and thoughts"
    with torch.no_grad():
        output = model.eval()(**{name: torch.stack([row[name] for row in rows]) for name in rows[0]})
    torch.testing.assert_close(torch.from_numpy(predicted.predictions), output.logits)
