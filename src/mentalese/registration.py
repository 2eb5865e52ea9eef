"""Our classes in the tables of transformers, which add them without importing transformers.

This is the half of `mentalese.models.transformers_seam` that must not import transformers: `import mentalese` takes a
fraction of a second, and `AutoModelForCausalLM` knows our models all the same. It replaces these private tables, seen
with transformers 5.17.0, 5.23.0 and 5.24.0; the public alternative, `AutoConfig.register` and its like, needs the
classes, and with them transformers, at once.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from mentalese.registry import families, load


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
