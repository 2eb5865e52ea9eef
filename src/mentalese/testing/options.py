"""An option that is accepted changes something, or is refused: every field of a model's config.

A field is set to other values of its type, one by one. Then the size, the initial weights, the context, the training
loss, its gradients or a score must differ from those of the recipe, or the value must be refused.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mentalese.data.batch import Batch
from mentalese.errors import InputError
from mentalese.model_fields import MISSING, ConfigField, is_filled_in, model_fields
from mentalese.models.build import build_config, build_model, context_length
from mentalese.recipe_files import members
from mentalese.registry import families
from mentalese.testing.cases import MODES, Case
from mentalese.testing.runs import DEVICE

Observed = dict[str, torch.Tensor]

IDLE: dict[str, str] = {
    "backbone": "another project's config, whose fields are options of their own",
    "reorder_and_upcast_attn": "GPT-2's: the same sums in another order",
    **{
        f"summary_{name}": "GPT-2's: of a head for classification, which a language model does not have"
        for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")
    },
}
"""Fields of any family that change nothing, and why; so do those that the tokenizer or a caller fills in
(`is_filled_in`). A family's own are `Family.idle_options`."""


def test_every_option_of_the_model_changes_something_or_is_refused(case: Case) -> None:
    if case.recipe.name in MODES:
        pytest.skip("the family's tiny recipe has the same options")
    model = case.recipe.model
    idle = IDLE | idle_options(model["model_type"])
    batch = case.batch()
    ignored: list[str] = []
    seen: dict[str, list[Observed]] = {}  # most fields are held against the same base
    for name, field in model_fields(model["model_type"]).items():
        if name != field.name or is_filled_in(name) or isinstance(idle.get(name), str):
            continue
        base = model | dict(idle.get(name, {}))
        key = repr(base)
        if key not in seen:
            seen[key] = list(_observations(case, base, batch))
        effects = [_moves(case, base | {name: value}, batch, seen[key]) for value in _others(case, base, field)]
        may_be_the_default = type(None) in members(field.hint) and any(effects)
        if not all(effects) and not may_be_the_default:
            ignored.append(name)
    assert not ignored, "accepted, and nothing changes: refuse the value, or say why in Family.idle_options"


def idle_options(kind: str) -> dict[str, Any]:
    """Return reasons why fields of a model type or a layout are idle, or the settings that they need for an effect."""
    reasons = [family.idle_options.get(kind, {}) for family in families().values()]
    return {name: why for options in reasons for name, why in options.items()}


def _others(case: Case, fields: dict[str, Any], field: ConfigField) -> list[Any]:
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


def _moves(case: Case, fields: dict[str, Any], batch: Batch, expected: list[Observed]) -> bool:
    """Test if anything differs from what is expected, or the fields are refused; the cheapest is compared first."""
    try:
        return any(not _same(*pair) for pair in zip(_observations(case, fields, batch), expected))
    except InputError:
        return True


def _same(left: Observed, right: Observed) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def _observations(case: Case, fields: dict[str, Any], batch: Batch) -> Iterator[Observed]:
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
