"""Parts of a task of the suite: methods and their roles, small decoders, controls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from mentalese.families.baselines.recipes import gpt2_rope, initial_weights, llama
from mentalese.recipe import Recipe

RATES = (1e-3, 2.5e-3, 6.3e-3, 4e-4, 1.6e-2)
"""Learning rates that most tasks try, in this order."""

Role = Literal["mechanism", "twin", "control", "other"]
Model = dict[str, Any]
"""The `model` of a recipe: `model_type` and fields of its config."""


@dataclass(frozen=True)
class Method:
    """One recipe of a task.

    Attributes:
        family: whose mechanism, twin or control it is; for `other` its own name.
        shares: another family whose twin and controls are a mechanism's too.
        extends: the mechanism adds something to the one of the family that it `shares` with, which is a control then.
    """

    recipe: Recipe
    role: Role
    family: str
    shares: str | None = None
    extends: bool = False

    @property
    def name(self) -> str:
        return self.recipe.name.partition("/")[2]


@dataclass(frozen=True)
class SuiteTask:
    """A task with the methods that are compared on it, all for the same tokens, or epochs of questions.

    Attributes:
        spec: argument of `mentalese.suite.tasks.task`; or a corpus, `file:..`, whose optimum is unknown: then the first
            method's mean is the floor, and 0 bits per byte the optimum.
        scored: the scored part of a test document: `all`, the `answers` in a text, or the `second half` of its tokens,
            from which no thoughts are inferred.
        solved: the share of the gap from which on a seed has found what the task is about.
        pays_ends: on a corpus, ends of documents and sentences count for the score.
        rates: learning rates in the order of trials; a range is extended if the best one is at its edge.
    """

    name: str
    spec: str
    methods: tuple[Method, ...]
    scored: Literal["all", "answers", "second half"] = "all"
    solved: float = 0.9
    pays_ends: bool = True
    rates: tuple[float, ...] = RATES

    @property
    def is_corpus(self) -> bool:
        return self.spec.startswith("file:")

    def rivals(self, mechanism: Method) -> list[Method]:
        """Return the methods that a mechanism is compared with: twins, controls, and the mechanism that it extends."""
        families = (mechanism.family, mechanism.shares)
        rivals = [one for one in self.methods if one.role in ("twin", "control") and one.family in families]
        if mechanism.extends:
            rivals += [one for one in self.methods if one.role == "mechanism" and one.family == mechanism.shares]
        return rivals


def width(size: float) -> int:
    """Return 64 channels at size 1, in steps of 16."""
    return max(16, round(64 * size / 16) * 16)


def decoder(size: float) -> Model:
    """Return a decoder of four layers, at size 1 of 64 channels."""
    return gpt2_rope(width(size), 4, layers=4, context=128)


def rotary(channels: int, layers: int, context: int, heads: int = 4) -> Model:
    """Return a small Llama."""
    mlp, theta = 3 * channels, 10_000.0
    return llama(
        channels, heads, layers=layers, mlp=mlp, key_value_heads=heads, tied=True, context=context, theta=theta
    )


def swapped(model: Model) -> Model:
    """Return the control of most mechanisms: thoughts of another text."""
    return model | {"thought_control": "swapped"}


def removed(model: Model) -> Model:
    """Return the model without thoughts, at their cost."""
    return model | {"thought_control": "removed"}


def scaled(model: Model) -> Model:
    """Return the model with initial weights that follow its width."""
    if "backbone" in model:
        return model | {"backbone": scaled(model["backbone"])}
    return model | {"initializer_range": initial_weights(model.get("hidden_size") or model["n_embd"])}


def variant(base: Recipe, name: str, description: str, model: Model) -> Recipe:
    """Return a recipe of the task `base.name` with another model."""
    return replace(base, name=f"{base.name}/{name}", description=description, model=scaled(model))


def compared(
    base: Recipe, name: str, variants: Mapping[str, tuple[str, Model]], family: str | None = None
) -> list[Method]:
    """Return a mechanism, its twin and its controls, which are called `NAME-VARIANT`.

    `variants` has the description and the model of the mechanism (under an empty name), of its `twin`, and of controls.
    """
    roles: dict[str, Role] = {"": "mechanism", "twin": "twin"}
    return [
        Method(
            variant(base, f"{name}-{suffix}" if suffix else name, description, model),
            roles.get(suffix, "control"),
            family or name,
        )
        for suffix, (description, model) in variants.items()
    ]


def other(base: Recipe, name: str, description: str, model: Model) -> Method:
    """Return a method that stands beside the mechanisms of a task."""
    return Method(variant(base, name, description, model), "other", name)
