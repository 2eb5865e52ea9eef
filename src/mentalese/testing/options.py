"""An option that is accepted changes something, or is refused: fields of a model's config and of a layout.

A field is set to other values of its type, one by one. Then something must differ from the recipe as it is, or the
value must be refused. Of a model: the size, initial weights, context, loss, gradients or score. Of a layout: the plan,
an evaluation, or two training steps.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from mentalese.data.batch import Batch
from mentalese.errors import InputError
from mentalese.evaluation.answers import ask
from mentalese.model_fields import MISSING, ConfigField, is_filled_in, model_fields
from mentalese.models.build import build_config, build_model, context_length
from mentalese.models.saved import Saved
from mentalese.recipe import Fields, Recipe
from mentalese.recipe_files import change, members, section_fields
from mentalese.registry import families
from mentalese.testing.cases import MODES, Case
from mentalese.testing.runs import DEVICE
from mentalese.training.loop import Run
from mentalese.training.parallel import setup
from mentalese.training.plan import Plan

Observed = dict[str, torch.Tensor]

IDLE: dict[str, str] = {
    "backbone": "another project's config, whose fields are options of their own",
    "reorder_and_upcast_attn": "GPT-2's: the same sums in another order",
    **{
        f"summary_{name}": "GPT-2's: of a head for classification, which a language model does not have"
        for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")
    },
}
"""Fields that change nothing, and why; so do those that the tokenizer or a caller fills in (`is_filled_in`). A family's
own are `Family.idle_options`."""


def test_every_option_of_the_model_changes_something_or_is_refused(case: Case) -> None:
    if case.recipe.name in MODES:
        pytest.skip("the family's tiny recipe has the same options")
    model = case.recipe.model
    idle = IDLE | idle_options(model["model_type"])
    batch = case.batch()
    ignored: list[str] = []
    seen: dict[str, list[Observed]] = {}  # most fields are held against the same base
    for name, field in model_fields(model["model_type"]).items():
        changes: str | Fields = idle.get(name, {})
        if name != field.name or is_filled_in(name) or isinstance(changes, str):
            continue
        base = model | changes
        key = repr(base)
        if key not in seen:
            seen[key] = list(_observations(case, base, batch))
        effects = [_model_moves(case, base | {name: value}, batch, seen[key]) for value in _others(case, base, field)]
        may_be_the_default = type(None) in members(field.hint) and any(effects)
        if not all(effects) and not may_be_the_default:
            ignored.append(name)
    assert not ignored, "accepted, and nothing changes: refuse the value, or say why in Family.idle_options"


def idle_options(kind: str) -> Fields:
    """Return reasons why fields of a model type or a layout are idle, or the settings that they need for an effect."""
    reasons = [family.idle_options.get(kind, {}) for family in families().values()]
    return {name: why for options in reasons for name, why in options.items()}


def _others(case: Case, fields: Fields, field: ConfigField) -> list[Any]:
    """Return other values of a field's type, including the class's default."""
    now = getattr(build_config(fields, case.tokenizer), field.name)
    has_default = field.default not in (MISSING, None) and not isinstance(field.default, tuple)
    values = [field.default] if has_default and field.default != now else []
    return values + [value for value in others(field.hint, now) if value not in values]


def others(hint: Any, now: Any) -> list[Any]:
    """Return other values of a type than the present one."""
    values: list[Any] = []
    for kind in members(hint):
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if kind is bool:
            values += [True, False]
        elif kind is int:
            values += [now + 1, now * 2] if isinstance(now, int) else [1, 2]
        elif kind is float:
            values += [now * 1.5, now / 2] if isinstance(now, float) and now else [0.5]
        elif kind is str:
            values.append("no_such_choice")
        elif kind is type(None):
            values.append(None)
        elif origin is typing.Literal:
            values += args
        elif origin is tuple and isinstance(now, tuple) and now:
            first = now[0] / 2 if isinstance(now[0], float) else now[0] + 1 if isinstance(now[0], int) else now[-1]
            values += [now[:-1], (first, *now[1:])]
    return [value for i, value in enumerate(values) if value != now and value not in values[:i]]


def _model_moves(case: Case, fields: Fields, batch: Batch, expected: list[Observed]) -> bool:
    """Test if anything differs from what is expected, or the fields are refused; the cheapest is compared first."""
    try:
        for observed, other in zip(_observations(case, fields, batch), expected):
            if observed.keys() != other.keys() or not all(torch.equal(observed[name], other[name]) for name in other):
                return True
    except InputError:
        return True
    return False


def _observations(case: Case, fields: Fields, batch: Batch) -> Iterator[Observed]:
    """Yield the properties and results of a model with these fields."""
    model: Any = build_model(fields, case.tokenizer, seed=0).to(DEVICE)
    context = torch.tensor(context_length(model.config) or 0)
    yield {"context": context} | {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(3)
    torch.manual_seed(0)
    loss = model.train().training_loss(batch).loss
    named = dict(model.named_parameters())
    gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True, materialize_grads=True)
    yield {"loss": loss.detach()} | dict(zip(named, gradients))
    model.after_step()
    torch.manual_seed(0)
    yield {"score": model.eval().token_nll(batch)}


Look = Callable[[Recipe], object]

STEPS = 2

NEEDS: dict[str, Fields] = {
    "removal": {"layout": {"uniform_prob": 0.0}},
    "removal_smoothing": {"layout": {"uniform_prob": 0.0, "removal": "tokens"}},
    "too_long": {"layout": {"sequence_length": 60}},
}
"""The settings of other fields that one needs to have an effect; a layout may refuse them."""


def test_every_option_of_the_layout_changes_something_or_is_refused(case: Case, tmp_path: Path) -> None:
    if case.recipe.name in MODES:
        pytest.skip("the family's tiny recipe has the same layout")
    looks = [observed(case, tmp_path)[name] for name in ("plan", "scores", "steps")]
    idle = idle_options(case.recipe.layout.kind)
    ignored = ignored_fields(case.recipe, "layout", lambda _: looks, idle, NEEDS, {"sequence_length": [8]})
    assert not ignored, "accepted, and nothing changes: refuse the value, or say why in Family.idle_options"


def ignored_fields(
    recipe: Recipe,
    section: str,
    looks: Callable[[str], Iterable[Look]],
    idle: Collection[str],
    needs: Mapping[str, Fields],
    values: Mapping[str, list[Any]],
) -> list[str]:
    """Return the fields of a section, with values, that are accepted and change no look at a recipe.

    Args:
        looks: function that returns the looks at a field, the cheapest first.
        idle: fields that are left out.
        needs: the settings of other fields that one needs to have an effect.
        values: values of fields whose next larger or smaller value may change nothing in so short a run.
    """
    small = {"max_documents": 2, "batch_size": 64, "context_length": None, "stride": None}
    recipe, ignored = change(recipe, {"optimizer": {"warmup": 0}, "evaluation": small}), []
    for name, hint in section_fields(type(getattr(recipe, section))).items():
        if name in idle:
            continue
        try:
            base = change(recipe, needs.get(name, {}))
        except InputError:  # such as accuracy, of a layout without questions
            continue
        now = getattr(getattr(base, section), name)
        others_of_field = values.get(name) or others(hint, now)
        assert others_of_field, f"{section}.{name}: no other value is known"
        for value in others_of_field:
            if value != now and not _moves(base, {section: {name: value}}, looks(name)):
                ignored.append(f"{section}.{name}={value!r}")
    return ignored


def _moves(base: Recipe, changes: Fields, looks: Iterable[Look]) -> bool:
    """Test if any look at the changed recipe differs from the look at the base, or it is refused."""
    try:
        recipe = change(base, changes)
    except InputError:
        return True
    return any(look(recipe) != look(base) for look in looks)


def observed(case: Case, folder: Path) -> dict[str, Look]:
    """Return looks at a recipe by name; no recipe is run twice."""

    def plan(recipe: Recipe) -> object:
        """Return the length of the run, and the batches of its first steps."""
        schedule = Plan(case.plan.split, recipe, case.tokenizer)
        shares = product(range(STEPS), range(recipe.train.gradient_accumulation_steps))
        batches = [schedule.batch(step, micro=micro) for step, micro in shares]
        return schedule.total_steps, [{name: tensor.tolist() for name, tensor in batch.items()} for batch in batches]

    def steps(recipe: Recipe) -> object:
        """Return the losses of the first steps, and the weights after them."""
        run = Run(recipe, folder / "never", setup("cpu"), show=False)
        for _ in range(STEPS):
            run.one_step()
        return run.buffer.losses, [parameter.detach().numpy().tobytes() for parameter in run.model.parameters()]

    def scores(recipe: Recipe) -> object:
        """Score of texts, and the answers to questions."""
        read = {name: getattr(recipe, name) for name in ("data", "layout", "evaluation")}
        saved = Saved(path="", model=case.model, tokenizer=case.tokenizer, **read)
        scored = saved.perplexity(case.plan.split).to_dict()
        del scored["protocol"]
        return scored, ask(saved, case.plan.split).records if recipe.evaluation.metric == "accuracy" else None

    return {"plan": once(plan), "steps": once(steps), "scores": once(scores)}


def once(look: Look) -> Look:
    """Return the look with a memory of recipes; a recipe that is refused looks different from all others."""
    seen: dict[str, object] = {}

    def remembered(recipe: Recipe) -> object:
        key = recipe.fingerprint()
        if key not in seen:
            try:
                seen[key] = look(recipe)
            except InputError:
                seen[key] = "refused"
        return seen[key]

    return remembered
