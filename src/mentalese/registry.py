"""Families and recipes, found by scanning `mentalese.families` and the entry-point group `mentalese.families`.

A family is a package whose `__init__` holds `FAMILY = Family(...)`. It may live in
`mentalese/families/` or in another distribution that declares

    [project.entry-points."mentalese.families"]
    my_family = "my_package.my_family"

Nothing outside the family's own folder changes when one is added.
"""

from __future__ import annotations

import fnmatch
import importlib
import pkgutil
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

from mentalese.errors import InputError, nearest
from mentalese.values import checked

if TYPE_CHECKING:
    from mentalese.recipe import Recipe

T = TypeVar("T", "Family", "Recipe")
ENTRY_POINTS = "mentalese.families"
MODELS: dict[str, str] = {}
"""`module:ModelClass` by model type, of all families that were declared."""


class Tested(TypedDict, total=False):
    """Ways of the contract tests with a small recipe.

    Attributes:
        causal: fields of the config under which no prediction depends on later tokens, if the recipe's own do not.
        steady: fields under which training draws nothing at random.
        learning_rate: the rate at which a batch is learnt by heart.
    """

    causal: dict[str, str]
    steady: dict[str, int]
    learning_rate: float


@dataclass(frozen=True, kw_only=True)
class Family:
    """The declaration of a family.

    Attributes:
        name: the package's name, e.g. `thought_gestalt`.
        description: one line for `mentalese list`.
        recipes: `module:attribute` of a list of `Recipe`; the module imports no models.
        classes: model type -> (`module:ConfigClass`, `module:ModelClass`), registered with transformers' Auto classes.
            The config's module imports no models: `import mentalese` imports it. Empty for families made of
            transformers' own classes.
        grow: `module:function` that makes sections of a recipe, `model` among them, of a decoder's fields and of fields
            of its own config, for `mentalese grow`.
        figures: `module:attribute` of a dict of `mentalese.analyses.drawing.Figure` by name, for `mentalese figure
            NAME/..`; the module imports neither models nor matplotlib by itself.
        layouts: kind -> `module:Class` of the family's layouts; the modules import no models.
        idle_options: model type -> fields of its config that change nothing in the small recipes that are tested, each
            with the reason, or with the settings under which it does change something; kind of layout -> its fields,
            with the reason.
        signs: model type -> metrics of its training that show if its mechanism works, each with the value below which
            it is idle or has collapsed, or `None`.
        tested: recipe -> `Tested`; recipes other than `tiny` are tested too, as other ways through the family's code.
    """

    name: str
    description: str
    recipes: str
    classes: dict[str, tuple[str, str]]
    grow: str | None = None
    figures: str | None = None
    layouts: dict[str, str] = field(default_factory=dict)
    idle_options: dict[str, dict[str, str | dict[str, object]]] = field(default_factory=dict)
    signs: dict[str, dict[str, float | None]] = field(default_factory=dict)
    tested: dict[str, Tested] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Register the config classes with transformers, and import the layouts, which adds them to `KINDS`."""
        from transformers import AutoConfig

        for model_type, (config, model) in self.classes.items():
            AutoConfig.register(model_type, load(config), exist_ok=True)
            MODELS[model_type] = model
        for reference in self.layouts.values():
            load(reference)


def load(reference: str) -> Any:
    """Return the object that `module:attribute` names."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


class Collection(NamedTuple):
    """Recipes of several families."""

    description: str
    recipes: str


COLLECTIONS = {
    "suite": Collection(
        "families on tasks with a known optimum, with twins and controls", "mentalese.suite.recipes:RECIPES"
    ),
    "demo": Collection("models that learn within two minutes", "mentalese.suite.demo_models:RECIPES"),
    "smollm2": Collection("latent reasoning on SmolLM2-135M-Instruct", "mentalese.suite.smollm2:RECIPES"),
    "latent_reasoning": Collection(
        "latent reasoning on GSM8K-Aug in one setting", "mentalese.suite.latent_reasoning:RECIPES"
    ),
}


def import_families() -> list[ModuleType]:
    """Import the packages of all families, which registers their models with transformers.

    A package that is being imported itself, and imports `mentalese` first, is in the list before it is complete.
    """
    folder = str(Path(__file__).parent / "families")
    names = [f"mentalese.families.{name}" for _, name, is_package in pkgutil.iter_modules([folder]) if is_package]
    modules = [importlib.import_module(name) for name in names]
    for entry_point in entry_points(group=ENTRY_POINTS):
        try:
            modules.append(importlib.import_module(entry_point.value))
        except ModuleNotFoundError as error:
            if not f"{entry_point.value}.".startswith(f"{error.name}."):
                raise
            project = entry_point.dist.name if entry_point.dist else entry_point.value
            warnings.warn(
                f"{project} declares the family {entry_point.name!r} in {entry_point.value}, which does not exist: "
                f"it is left out; pip uninstall {project}",
                stacklevel=2,
            )
    return modules


@cache
def families() -> dict[str, Family]:
    """Return all families by name, the built-in ones first."""
    return _by_name((module.FAMILY for module in import_families()), "family")


@cache
def recipes() -> dict[str, Recipe]:
    """Return all recipes by `prefix/name`, in the order in which their families declare them."""
    return _by_name((recipe for name in (*families(), *COLLECTIONS) for recipe in recipes_of(name)), "recipe")


def _by_name(declared: Iterable[T], kind: str) -> dict[str, T]:
    by_name: dict[str, T] = {}
    for each in declared:
        if each.name in by_name:
            raise InputError(f"the {kind} {each.name!r} is declared twice: rename one, or uninstall its package")
        by_name[each.name] = each
    return by_name


def recipes_of(name: str) -> list[Recipe]:
    """Return the recipes of a family or a collection."""
    return load((families() | COLLECTIONS)[name].recipes)


def get_recipe(name: str) -> Recipe:
    """Return the recipe called `name`; raise `InputError` with the nearest name if there is none."""
    by_name = recipes()
    if checked("a recipe's name", str, name) not in by_name:
        raise InputError(f"no recipe is called {name!r}{nearest(name, by_name)} (`mentalese list` shows all)")
    return by_name[name]


def match_recipes(*patterns: str) -> list[Recipe]:
    """Return recipes by name or by shell pattern (`*/tiny`), each once, in the order of the patterns."""
    matches: dict[str, Recipe] = {}
    for pattern in patterns:
        if any(character in pattern for character in "*?["):
            names = fnmatch.filter(recipes(), pattern)
            if not names:
                raise InputError(f"no recipe matches {pattern!r} (`mentalese list` shows all)")
        else:
            names = [pattern]
        matches |= {name: get_recipe(name) for name in names}
    return list(matches.values())
