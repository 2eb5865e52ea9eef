"""Families and recipes, found by scanning `mentalese.models` and the entry-point group `mentalese.families`.

A family is a package whose `__init__` holds `FAMILY = Family(...)` and imports nothing heavy. It may live in
`mentalese/models/` or in another distribution that declares

    [project.entry-points."mentalese.families"]
    my_family = "my_package.my_family"

Nothing outside the family's own folder changes when one is added.
"""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import pkgutil
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from mentalese.errors import InputError, nearest

if TYPE_CHECKING:
    from mentalese.recipe import Recipe

ENTRY_POINTS = "mentalese.families"


@dataclass(frozen=True, kw_only=True)
class Family:
    """What a family's package declares.

    Attributes:
        name: the package's name, e.g. `thought_gestalt`.
        description: one line for `mentalese list`.
        recipes: `module:attribute` of a list of `Recipe`; the module imports neither torch nor transformers.
        classes: model type -> (`module:ConfigClass`, `module:ModelClass`), registered with transformers' Auto classes.
            Empty for families made of transformers' own classes.
        grow: `module:function` that makes a recipe's `model` of a decoder's fields and of fields of its own config, for
            `mentalese grow`.
        figures: `module:attribute` of a dict of `mentalese.figures.Figure` by name, for `mentalese figure NAME/..`; the
            module imports neither torch nor transformers nor matplotlib by itself.
    """

    name: str
    description: str
    recipes: str
    classes: dict[str, tuple[str, str]]
    grow: str | None = None
    figures: str | None = None


def load(reference: str) -> Any:
    """The object that `module:attribute` names."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


@cache
def families() -> dict[str, Family]:
    """All families by name, the built-in ones first."""
    import mentalese.models

    modules = [
        f"mentalese.models.{module.name}"
        for module in sorted(pkgutil.iter_modules(mentalese.models.__path__), key=lambda m: m.name)
        if module.ispkg
    ]
    modules += [entry_point.value for entry_point in entry_points(group=ENTRY_POINTS)]
    found = [importlib.import_module(module).FAMILY for module in modules]
    names = [family.name for family in found]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two packages declare the family {name!r}: uninstall or rename one")
    return {family.name: family for family in found}


@cache
def recipes() -> dict[str, Recipe]:
    """All recipes by `prefix/name`, in the order in which their families declare them."""
    found: dict[str, Recipe] = {}
    for family in families().values():
        for recipe in load(family.recipes):
            if recipe.name in found:
                raise InputError(f"the recipe {recipe.name!r} is declared twice: rename one")
            found[recipe.name] = recipe
    return found


def get_recipe(name: str) -> Recipe:
    """The recipe called `name`; raises `InputError` with the nearest name where there is none."""
    known = recipes()
    if name not in known:
        raise InputError(f"no recipe is called {name!r}{nearest(name, known)} (`mentalese list` shows all)")
    return known[name]


def match_recipes(*patterns: str) -> list[Recipe]:
    """Recipes by name or by shell pattern (`*/tiny`), each once, in the order asked for."""
    found: dict[str, Recipe] = {}
    for pattern in patterns:
        if any(character in pattern for character in "*?["):
            names = fnmatch.filter(recipes(), pattern)
            if not names:
                raise InputError(f"no recipe matches {pattern!r} (`mentalese list` shows all)")
        else:
            names = [pattern]
        found |= {name: get_recipe(name) for name in names}
    return list(found.values())


def register_auto_classes() -> None:
    """Registers every family's config and model with `AutoConfig` and `AutoModelForCausalLM`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    for family in families().values():
        for model_type, (config, model) in family.classes.items():
            AutoConfig.register(model_type, load(config), exist_ok=True)
            AutoModelForCausalLM.register(load(config), load(model), exist_ok=True)


_AUTO_MODULE = "transformers.models.auto.modeling_auto"


class _RegisterWhenImported:
    """A meta-path finder that registers our classes the moment transformers' Auto classes are first imported.

    `import mentalese` must both take no time and make the Auto classes know us; importing transformers costs
    seconds, so the registration waits until somebody does.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _AUTO_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            register_auto_classes()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def register_lazily() -> None:
    """Registers now where transformers' Auto classes are loaded already, else when they are."""
    if _AUTO_MODULE in sys.modules:
        register_auto_classes()
    else:
        sys.meta_path.insert(0, _RegisterWhenImported())
