"""An accepted option changes something, or is refused: the fields of a recipe's sections.

The sections are layout, optimizer, train and evaluation.
A field is set to other values, one by one. Then the plan, two training steps, an evaluation or the course of a short
run must differ from the recipe's, or the value must be refused.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from mentalese.errors import InputError
from mentalese.evaluation.answers import ask
from mentalese.models.saved import Saved
from mentalese.recipe import Recipe
from mentalese.recipe_files import change, section_fields
from mentalese.testing.cases import MODES, Case
from mentalese.testing.options import idle_options, others
from mentalese.testing.runs import metrics
from mentalese.training.loop import Run
from mentalese.training.parallel import setup
from mentalese.training.plan import Plan

Look = Callable[[Recipe], Any]

STEPS = 2

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
"""Fields that change neither training nor a score, and why; those of a family's layout are `Family.idle_options`."""

STOPPED: dict[str, dict[str, Any]] = {
    "train": {"eval_every": 1, "early_stopping_patience": 1, "early_stopping_min_delta": 1e9},
    "evaluation": {"metric": "perplexity"},
}
NEEDS: dict[str, dict[str, Any]] = {
    "layout.removal": {"layout": {"uniform_prob": 0.0}},
    "layout.removal_smoothing": {"layout": {"uniform_prob": 0.0, "removal": "tokens"}},
    "layout.too_long": {"layout": {"sequence_length": 60}},
    "train.eval_every": STOPPED | {"train": STOPPED["train"] | {"early_stopping_patience": 9}},
    "train.early_stopping_patience": STOPPED,
    "train.early_stopping_min_delta": STOPPED,
    "train.schedule_share": {"optimizer": {"schedule": "linear"}},
    "evaluation.answer_tokens": {"evaluation": {"metric": "accuracy"}},
}
"""The settings of other fields that one needs to have an effect; a layout may refuse them. The least gain that counts
stays where patience is removed, as `compare` does; `mentalese answer` uses the length of an answer too."""

VALUES: dict[str, list[Any]] = {
    "layout.sequence_length": [8],
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
"""Where the next larger or smaller value may rightly change nothing in so short a run, or others take long."""


def test_every_option_of_the_sections_changes_something_or_is_refused(case: Case, tmp_path: Path) -> None:
    if case.recipe.name in MODES:
        pytest.skip("the family's tiny recipe has the same sections")
    looks, ignored = _looks(case, tmp_path), []
    idle = IDLE | {f"layout.{name}": why for name, why in idle_options(case.recipe.layout.kind).items()}
    small = {"max_documents": 2, "batch_size": 64, "context_length": None, "stride": None}
    recipe = change(case.recipe, {"optimizer": {"warmup": 0}, "evaluation": small})
    for section in ("layout", "optimizer", "train", "evaluation"):
        for name, hint in section_fields(type(getattr(recipe, section))).items():
            field = f"{section}.{name}"
            if field in idle:
                continue
            try:
                base = change(recipe, NEEDS.get(field, {}))
            except InputError:  # such as accuracy, of a layout without questions
                continue
            now = getattr(getattr(base, section), name)
            values = VALUES.get(field) or others(hint, now)
            assert values, f"{field}: no other value is known, use one in VALUES"
            for value in values:
                if value != now and not _moves(base, {section: {name: value}}, looks.get(field, looks[section])):
                    ignored.append(f"{field}={value!r}")
    assert not ignored, "accepted, and nothing changes: refuse the value, or say what it needs in NEEDS"


class Unsaved(Run):
    """A run that ends after its last step and keeps no model."""

    def _save_model(self, figure: object) -> None:
        pass

    def _finish(self) -> dict[str, Any]:
        return {}


def _moves(base: Recipe, changes: dict[str, Any], looks: tuple[Look, ...]) -> bool:
    """Test if any look at the changed recipe differs from the look at the base, or it is refused."""
    try:
        recipe = change(base, changes)
    except InputError:
        return True
    return any(look(recipe) != look(base) for look in looks)


def _looks(case: Case, folder: Path) -> dict[str, tuple[Look, ...]]:
    """Look at a recipe for a change of a section or of a field, the cheapest first; no recipe is run twice."""

    def plan(recipe: Recipe) -> Any:
        """Return the length of the run, and the batches of its first steps."""
        schedule = Plan(case.plan.split, recipe, case.tokenizer)
        shares = product(range(STEPS), range(recipe.train.gradient_accumulation_steps))
        batches = [schedule.batch(step, micro=micro) for step, micro in shares]
        return schedule.total_steps, [{name: tensor.tolist() for name, tensor in batch.items()} for batch in batches]

    def steps(recipe: Recipe) -> Any:
        """Return the losses of the first steps, and the weights after them."""
        run = Run(recipe, folder / "never", setup("cpu"), show=False)
        for _ in range(STEPS):
            run.one_step()
        return run.buffer.losses, [parameter.detach().numpy().tobytes() for parameter in run.model.parameters()]

    def scores(recipe: Recipe) -> Any:
        """Score of texts, and the answers to questions."""
        read = {name: getattr(recipe, name) for name in ("data", "layout", "evaluation")}
        saved = Saved(path="", model=case.model, tokenizer=case.tokenizer, **read)
        scored = saved.perplexity(case.plan.split).to_dict()
        del scored["protocol"]
        return scored, ask(saved, case.plan.split).records if recipe.evaluation.metric == "accuracy" else None

    def course(recipe: Recipe) -> Any:
        """Return the steps of a short run, and its validated steps."""
        out = folder / recipe.fingerprint()
        short = change(recipe, {"train": {"steps": STEPS + 1}, "evaluation": {"max_documents": 1}})
        run = Unsaved(short, out, setup("cpu"), show=False)
        run.run(resume=False)
        return run.state.step, [record["step"] for record in metrics(out) if "validation" in record]

    def once(look: Look) -> Look:
        seen: dict[str, Any] = {}

        def remembered(recipe: Recipe) -> Any:
            key = recipe.fingerprint()
            if key not in seen:
                try:
                    seen[key] = look(recipe)
                except InputError:
                    seen[key] = "refused"
            return seen[key]

        return remembered

    plan_, steps_, scores_, course_ = map(once, (plan, steps, scores, course))
    return {
        "layout": (plan_, scores_, steps_),
        "optimizer": (steps_,),
        "train": (plan_, steps_),
        "evaluation": (scores_,),
    } | {field: (course_,) for field, needed in NEEDS.items() if "eval_every" in needed.get("train", {})}
