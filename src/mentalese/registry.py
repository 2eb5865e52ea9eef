"""Families and recipes, found by scanning `mentalese.families` and the entry-point group `mentalese.families`.

A family is a package whose `__init__` holds `FAMILY = Family(...)` and imports nothing heavy. It may live in
`mentalese/families/` or in another distribution that declares

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
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mentalese.data import layouts
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
        figures: `module:attribute` of a dict of `mentalese.analyses.drawing.Figure` by name, for `mentalese figure
            NAME/..`; the module imports neither torch nor transformers nor matplotlib by itself.
        layouts: kind -> `module:Class` of layouts of text that the family brings; the modules import neither torch nor
            transformers by themselves.
        idle_options: model type -> fields of its config that change nothing in the small recipes that are tested, each
            with the reason, or with the settings under which it does change something; kind of layout -> its fields,
            with the reason.
    """

    name: str
    description: str
    recipes: str
    classes: dict[str, tuple[str, str]]
    grow: str | None = None
    figures: str | None = None
    layouts: dict[str, str] = field(default_factory=dict)
    idle_options: dict[str, dict[str, Any]] = field(default_factory=dict)


def load(reference: str) -> Any:
    """The object that `module:attribute` names."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


@cache
def families() -> dict[str, Family]:
    """All families by name, the built-in ones first."""
    modules = [
        f"mentalese.families.{module.name}"
        for module in sorted(pkgutil.iter_modules([str(Path(__file__).parent / "families")]), key=lambda m: m.name)
        if module.ispkg
    ]
    modules += [entry_point.value for entry_point in entry_points(group=ENTRY_POINTS)]
    found = [importlib.import_module(module).FAMILY for module in modules]
    names = [family.name for family in found]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two packages declare the family {name!r}: uninstall or rename one")
    return {family.name: family for family in found}


def _layouts() -> dict[str, str]:
    """The layouts that families bring, by kind."""
    found: dict[str, str] = {}
    for family in families().values():
        for kind, reference in family.layouts.items():
            if kind in found:
                raise InputError(f"two families declare the layout {kind!r}: uninstall or rename one")
            found[kind] = reference
    return found


layouts.BROUGHT.append(_layouts)


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
    if not isinstance(name, str):
        raise InputError(f"a recipe's name is {name!r}: use text, e.g. 'gpt2/tiny'")
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


# -- transformers' Auto classes ----------------------------------------------------------------------------------------


class _OnDemand(dict[Any, Any]):
    """A dict in which our classes appear when they are first asked for; asked for all of them, it loads all."""

    def find(self, key: Any) -> str | None:
        """The reference of the class that belongs to `key`, where it is one of ours."""
        raise NotImplementedError

    def load_all(self) -> None:
        raise NotImplementedError

    def __missing__(self, key: Any) -> Any:
        reference = self.find(key)
        if reference is None:
            raise KeyError(key)
        self[key] = load(reference)
        return self[key]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or self.find(key) is not None

    def __iter__(self) -> Any:
        self.load_all()
        return super().__iter__()

    def __len__(self) -> int:
        self.load_all()
        return super().__len__()

    def keys(self) -> Any:
        self.load_all()
        return super().keys()

    def values(self) -> Any:
        self.load_all()
        return super().values()

    def items(self) -> Any:
        self.load_all()
        return super().items()


class _Configs(_OnDemand):
    """Config classes by model type."""

    def find(self, key: Any) -> str | None:
        return next((family.classes[key][0] for family in families().values() if key in family.classes), None)

    def load_all(self) -> None:
        for family in families().values():
            for model_type in family.classes:
                self[model_type]


class _Models(_OnDemand):
    """Model classes by config class."""

    def find(self, key: Any) -> str | None:
        name = f"{getattr(key, '__module__', '')}:{getattr(key, '__name__', '')}"
        pairs = (pair for family in families().values() for pair in family.classes.values())
        return next((model for config, model in pairs if config == name), None)

    def load_all(self) -> None:
        for family in families().values():
            for config, _ in family.classes.values():
                self[load(config)]


class _Tokenizers(_OnDemand):
    """Tokenizer classes by name: ours."""

    def find(self, key: Any) -> str | None:
        return "mentalese.models.text_tokenizer:MentaleseTokenizer" if key == "MentaleseTokenizer" else None

    def load_all(self) -> None:
        self["MentaleseTokenizer"]


# Module of transformers -> the mapping in it, and the kind of dict that takes the place of its registered classes.
_MAPPINGS: dict[str, tuple[str, type[dict[Any, Any]]]] = {
    "transformers.models.auto.configuration_auto": ("CONFIG_MAPPING", _Configs),
    "transformers.models.auto.modeling_auto": ("MODEL_FOR_CAUSAL_LM_MAPPING", _Models),
    "transformers.models.auto.tokenization_auto": ("REGISTERED_TOKENIZER_CLASSES", _Tokenizers),
}


def _register(name: str) -> None:
    """Makes one of transformers' mappings, in its loaded module, know our classes.

    The classes themselves are loaded when somebody asks for them: importing them now would import, half-way through
    one of transformers' own imports, modules that need it finished.
    """
    attribute, kind = _MAPPINGS[name]
    owner = sys.modules[name]
    if hasattr(getattr(owner, attribute), "_extra_content"):
        owner, attribute = getattr(owner, attribute), "_extra_content"
    setattr(owner, attribute, kind(getattr(owner, attribute)))


class _WhenImported:
    """A meta-path finder that acts the moment a module has been imported by somebody else.

    `import mentalese` must both take no time and make other packages know us; importing those costs seconds.
    """

    def __init__(self) -> None:
        self.actions: dict[str, Callable[[], None]] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.actions:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            self.actions[name]()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_finder = _WhenImported()


def when_imported(name: str, action: Callable[[], None]) -> None:
    """Acts now if the module is loaded, else as soon as it is."""
    if name in sys.modules:
        action()
        return
    _finder.actions[name] = action
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _name_for_trainer() -> None:
    """Makes `transformers.Trainer` know the names of our classes: it smooths the labels of the next token for those
    that it knows, and for others those of the token that was read."""
    names = sys.modules["transformers.models.auto.modeling_auto"].MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    for family in families().values():
        names.update((model_type, model.partition(":")[2]) for model_type, (_, model) in family.classes.items())


def register_lazily() -> None:
    """Registers with the mappings that are loaded already, and with the others when they are."""
    for name in _MAPPINGS:
        when_imported(name, partial(_register, name))
    when_imported("transformers.trainer", _name_for_trainer)
