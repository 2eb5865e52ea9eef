"""Parts of a task of the suite: methods and their roles, small decoders, controls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from mentalese.families.baselines.recipes import gpt2_rope, initial_weights, llama
from mentalese.families.looped.recipes import TITLES
from mentalese.families.looped.recipes import changed as changed_loop
from mentalese.recipe import Recipe

Role = Literal["mechanism", "twin", "control", "other"]


@dataclass(frozen=True)
class Method:
    """One recipe of a task.

    Attributes:
        family: whose mechanism, twin or control it is; for `other` its own name.
        shares: another family whose twin and controls are a mechanism's too.
    """

    recipe: Recipe
    role: Role
    family: str
    shares: str | None = None

    @property
    def name(self) -> str:
        return self.recipe.name.partition("/")[2]


@dataclass(frozen=True)
class Further:
    """A second score of every run, on data that no model was trained on; it does not count for the share of the gap.

    Attributes:
        name: the column's title.
        options: fields of `mentalese.evaluation.options.EvaluationOptions`, with one task.
    """

    name: str
    options: dict[str, Any]


@dataclass(frozen=True)
class SuiteTask:
    """A task with the methods that are compared on it.

    Attributes:
        spec: argument of `mentalese.suite.tasks.task`; or a corpus, `file:..`, whose optimum is unknown: then the first
            method's mean is the floor, and 0 bits per byte the optimum.
        methods: methods; the FLOPs of the first one are the budget of the others, depending on `match`.
        match: see `mentalese.compare.compare`.
        scored: the scored part of a test document: `all`, the `answers` in a text, or the `second half` of its tokens,
            from which no thoughts are inferred.
        further: other scores of the same runs.
    """

    name: str
    spec: str
    methods: tuple[Method, ...]
    match: Literal["flops"] | None
    scored: Literal["all", "answers", "second half"] = "all"
    further: tuple[Further, ...] = ()

    @property
    def is_corpus(self) -> bool:
        return self.spec.startswith("file:")


def width(size: float) -> int:
    """Return 64 channels at size 1, in steps of 16."""
    return max(16, round(64 * size / 16) * 16)


def decoder(size: float, layers: int, context: int) -> dict[str, Any]:
    """Return a plain decoder with rotary positions."""
    return gpt2_rope(width(size), 4, layers=layers, context=context)


def rotary(channels: int, layers: int, context: int) -> dict[str, Any]:
    """Return a small Llama."""
    mlp, theta = 3 * channels, 10_000.0
    return llama(channels, 4, layers=layers, mlp=mlp, key_value_heads=4, tied=True, context=context, theta=theta)


def swapped(model: dict[str, Any]) -> dict[str, Any]:
    """Return the control of most mechanisms: thoughts of another text."""
    return model | {"thought_control": "swapped"}


def removed(model: dict[str, Any]) -> dict[str, Any]:
    """Return the model without thoughts, at their cost."""
    return model | {"thought_control": "removed"}


def scaled(model: dict[str, Any]) -> dict[str, Any]:
    """Return the model with initial weights that follow its width."""
    if "backbone" in model:
        return model | {"backbone": scaled(model["backbone"])}
    return model | {"initializer_range": initial_weights(model.get("hidden_size") or model["n_embd"])}


Made = Callable[[str, str, dict[str, Any]], Recipe]
"""From the name of a method, its description and its model to its recipe."""


def compared(
    made: Made, name: str, variants: Mapping[str, tuple[str, dict[str, Any]]], family: str | None = None
) -> list[Method]:
    """Return a mechanism, its twin and its controls.

    Args:
        name: name of the mechanism; the others are called `NAME-VARIANT`.
        variants: description and model of the mechanism (under an empty name), of its `twin`, and of controls.
        family: name of the family; by default `name`.
    """
    roles: dict[str, Role] = {"": "mechanism", "twin": "twin"}
    return [
        Method(
            made(f"{name}-{variant}" if variant else name, description, model),
            roles.get(variant, "control"),
            family or name,
        )
        for variant, (description, model) in variants.items()
    ]


def other(made: Made, name: str, description: str, model: dict[str, Any]) -> Method:
    """Return a method that stands beside the mechanisms of a task."""
    return Method(made(name, description, model), "other", name)


def loops(made: Made, model: dict[str, Any]) -> list[Method]:
    """Return a looped model and its twins: without the loop, with the states of another text, and unrolled."""
    turned = {variant: (TITLES[variant], changed_loop(model, variant)) for variant in ("once", "swapped", "unrolled")}
    looped, once, swapped, unrolled = compared(made, "looped", {"": ("the middle layers four times", model), **turned})
    once, unrolled = replace(once, role="twin"), replace(unrolled, role="other", family="looped-unrolled")
    return [looped, once, swapped, unrolled]
