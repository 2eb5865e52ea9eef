"""A field of the sections optimizer, train and evaluation changes something, or is refused, whatever the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mentalese.recipe import Fields, Recipe
from mentalese.recipe_files import change
from mentalese.testing import case, contract_cache, pytest_generate_tests  # noqa: F401 (pytest's)
from mentalese.testing.cases import Case
from mentalese.testing.options import STEPS, ignored_fields, observed, once
from mentalese.training.loop import Run
from mentalese.training.parallel import setup
from support import metrics, tiny_recipes

RECIPES = tiny_recipes()

IDLE: dict[str, str] = {
    "train.checkpointing": "memory: the same numbers, computed twice",
    "train.compile": "speed",
    "train.parallel": "hardware: of several processes",
    "train.device": "hardware",
    "train.log_every": "logging",
    "train.trackers": "logging",
    "train.checkpoint_every": "files: what a run that was stopped continues from",
    "train.keep_checkpoints": "files",
    "evaluation.batch_size": "speed: results do not depend on it",
    "evaluation.max_test_documents": "the test after training: tests/integration/test_questions.py",
    "evaluation.answer_rule": "a rule: equal words are equal by each of them",
    "evaluation.sample_prompts": "output: the samples in `result.json`",
    "evaluation.sample_tokens": "output: the samples in `result.json`",
}
"""Fields that change neither training nor a score, and why."""

STOPPED: dict[str, Fields] = {
    "train": {"eval_every": 1, "early_stopping_patience": 1, "early_stopping_min_delta": 1e9},
    "evaluation": {"metric": "perplexity"},
}
NEEDS: dict[str, Fields] = {
    "train.eval_every": STOPPED | {"train": STOPPED["train"] | {"early_stopping_patience": 9}},
    "train.early_stopping_patience": STOPPED,
    "train.early_stopping_min_delta": STOPPED,
    "train.schedule_share": {"optimizer": {"schedule": "linear"}},
    "evaluation.answer_tokens": {"evaluation": {"metric": "accuracy"}},
}
"""The settings of other fields that one needs to have an effect. The least gain that counts stays where patience is
removed, as `compare` does; `mentalese answer` uses the length of an answer too."""

VALUES: dict[str, list[Any]] = {
    "optimizer.learning_rate": [1e-2],
    "optimizer.betas": [(0.5, 0.5)],
    "optimizer.eps": [1e-3],
    "optimizer.weight_decay": [0.5],
    "optimizer.warmup": [3],
    "optimizer.min_learning_rate_ratio": [0.5],
    "optimizer.max_grad_norm": [1e-3],
    "train.lora_targets": [("q_proj",)],
    "train.eval_every": [2],
    "train.early_stopping_patience": [9],
    "train.early_stopping_min_delta": [0.0],
    "evaluation.context_length": [48],
    "evaluation.stride": [40],
    "evaluation.max_documents": [1],
    "evaluation.documents_seed": [1],
}
"""Values of fields whose next larger or smaller value may change nothing in so short a run, or takes long."""


class Unsaved(Run):
    """A run that ends after its last step and keeps no model."""

    def _save_model(self, figure: object) -> None:
        pass

    def _finish(self) -> Fields:
        return {}


@pytest.mark.slow
def test_every_option_of_the_sections_changes_something(case: Case, tmp_path: Path) -> None:  # noqa: F811
    looks = observed(case, tmp_path)

    def course(recipe: Recipe) -> object:
        """Return the steps of a short run, and its validated steps."""
        out = tmp_path / recipe.fingerprint()
        short = change(recipe, {"train": {"steps": STEPS + 1}, "evaluation": {"max_documents": 1}})
        run = Unsaved(short, out, setup("cpu"), show=False)
        run.run(resume=False)
        return run.state.step, [record["step"] for record in metrics(out) if "validation" in record]

    looks["course"] = once(course)
    stopping = [name for name, needed in NEEDS.items() if "eval_every" in needed.get("train", {})]
    ignored = []
    for section, names in {"optimizer": ["steps"], "train": ["plan", "steps"], "evaluation": ["scores"]}.items():

        def of_field(name: str, section: str = section, names: list[str] = names) -> list[Any]:
            return [looks[look] for look in (["course"] if f"{section}.{name}" in stopping else names)]

        tables: list[Any] = [
            {name.partition(".")[2]: value for name, value in table.items() if name.startswith(f"{section}.")}
            for table in (IDLE, NEEDS, VALUES)
        ]
        ignored += ignored_fields(case.recipe, section, of_field, *tables)
    assert not ignored, "accepted, and nothing changes: refuse the value, or say what it needs in NEEDS"
