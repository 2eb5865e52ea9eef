"""The fields of a model's config, read from its source, so that no command imports transformers to show them.

A config class of transformers takes seconds to import; its source takes milliseconds to parse. Names, types, defaults,
documentation and other names of fields (`attribute_map`) are literals in the class body of the config and its bases.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mentalese.docstrings import attribute_docs, hugging_face_docs
from mentalese.errors import InputError, nearest
from mentalese.registry import families

MISSING = dataclasses.MISSING
_ROOT = ("transformers.configuration_utils", "PreTrainedConfig")
_UNDOCUMENTED = {
    "activation": "Activation of the feed-forward layers.",
    "activation_function": "Activation of the feed-forward layers.",
    "attn_pdrop": "Dropout of attention weights.",
    "layer_norm_epsilon": "Added to the variance in layer norms.",
    "n_inner": "Width of the feed-forward layers; none: 4 times the hidden size.",
    "rope_theta": "Base of the wavelengths of rotary positions.",
    "scale_attn_weights": "Divide attention scores by the square root of a head's width.",
    "sentence_end_token_id": "Token that ends a sentence.",
}
"""Fields whose class says nothing about them."""
_TYPES = {name: getattr(typing, name) for name in ("Any", "Literal", "Optional", "Union")}
_TYPES |= {kind.__name__: kind for kind in (bool, dict, float, int, list, str, tuple)}


@dataclass(frozen=True)
class ConfigField:
    """A field of a model's config.

    Attributes:
        name: its name in the config class.
        hint: its type; `Any` for one that is defined elsewhere than in the standard library.
        default: `MISSING` if the source has no literal.
        doc: what it means; may be empty.
    """

    name: str
    hint: Any
    default: Any
    doc: str = ""


@dataclass(frozen=True)
class ConfigSource:
    """A config class.

    Attributes:
        fields: its own and its bases', without those that every config of transformers has.
        own_names: the usual name of a field -> its name in this class, if it differs (`hidden_size` -> `n_embd`).
    """

    fields: dict[str, ConfigField]
    own_names: dict[str, str]

    def names(self) -> list[str]:
        """Every name that a field has."""
        return [*self.fields, *self.own_names]


def is_filled_in(name: str) -> bool:
    """Whether a field is set from the tokenizer, or by whoever calls the model, and not by a recipe."""
    return name in ("vocab_size", "use_cache") or name.endswith("_token_id")


@cache
def read_config(model_type: str) -> ConfigSource:
    """The config class of a model type.

    Raises:
        InputError: no family and no model of transformers has this type.
    """
    module, name = _find_class(model_type)
    fields, own_names, docs = _read_class(module, name)
    common, usual = set(_read_class(*_ROOT)[0]), {own: name for name, own in own_names.items()}
    standard = _UNDOCUMENTED | _standard_docs()
    fields = {
        name: dataclasses.replace(field, doc=docs.get(name) or standard.get(usual.get(name, name), ""))
        for name, field in fields.items()
        if name not in common
    }
    return ConfigSource(fields, own_names)


# -- where a class is ------------------------------------------------------------------------------------------------


def _find_class(model_type: str) -> tuple[str, str]:
    """Module and name of the config class of a model type."""
    own = {kind: config for family in families().values() for kind, (config, _) in family.classes.items()}
    if model_type in own:
        module, _, name = own[model_type].partition(":")
        return module, name
    models = _path("transformers").parent / "models"
    folder = model_type.replace("-", "_")
    first = models / folder / f"configuration_{folder}.py"
    for path in (first, *sorted(models.glob("*/configuration_*.py"))):
        if path.exists() and f'model_type = "{model_type}"' in path.read_text(encoding="utf-8"):
            module = f"transformers.models.{path.parent.name}.{path.stem}"
            for node in _tree(module).body:
                if isinstance(node, ast.ClassDef) and _literals(node).get("model_type") == model_type:
                    return module, node.name
    known = [*own, *(path.name for path in models.iterdir())]
    raise InputError(f"model.model_type is {model_type!r}: no such type{nearest(model_type, known)}")


def _path(module: str) -> Path:
    """The file of a module, found without importing it or its package."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        raise InputError(f"{module} is not installed: install the package {top}")
    path = Path(spec.origin)
    if not rest:
        return path
    path = path.parent.joinpath(*rest)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_path(module).read_text(encoding="utf-8"))


def _resolve(module: str, name: str) -> tuple[str, ast.ClassDef] | None:
    """The class that `name` is in a module, and the module that defines it."""
    if module == "transformers":  # its names are imported on demand
        found = _in_transformers(name)
        return _resolve(found, name) if found else None
    for node in _tree(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _resolve(_absolute(module, node), alias.name)
    return None


def _absolute(module: str, node: ast.ImportFrom) -> str:
    """The module that a `from .. import` names."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    package = parts if _path(module).name == "__init__.py" else parts[:-1]
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, *([node.module] if node.module else [])])


def _in_transformers(name: str) -> str | None:
    if name == _ROOT[1]:
        return _ROOT[0]
    for path in sorted((_path("transformers").parent / "models").glob("*/configuration_*.py")):
        if f"class {name}(" in path.read_text(encoding="utf-8"):
            return f"transformers.models.{path.parent.name}.{path.stem}"
    return None


# -- what is in it ---------------------------------------------------------------------------------------------------


@cache
def _read_class(module: str, name: str) -> tuple[dict[str, ConfigField], dict[str, str], dict[str, str]]:
    """Fields, other names and documentation of a class and of its bases."""
    found = _resolve(module, name)
    if found is None:
        return {}, {}, {}
    module, node = found
    fields: dict[str, ConfigField] = {}
    own_names: dict[str, str] = {}
    docs: dict[str, str] = {}
    for base in reversed(node.bases):
        if isinstance(base, ast.Name):
            inherited = _read_class(module, base.id)
            fields, own_names, docs = fields | inherited[0], own_names | inherited[1], docs | inherited[2]
    constants = _literals(_tree(module))
    fields = fields | {field.name: field for field in _own_fields(node, constants)}
    docstring = ast.get_docstring(node, clean=False)
    own_names = _literals(node).get("attribute_map", own_names)
    return fields, own_names, docs | hugging_face_docs(docstring) | attribute_docs(docstring)


def _own_fields(node: ast.ClassDef, constants: dict[str, Any]) -> Iterator[ConfigField]:
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if "ClassVar" not in ast.unparse(statement.annotation):
            default = MISSING if statement.value is None else _literal(statement.value, constants)
            yield ConfigField(statement.target.id, _hint(statement.annotation), default)


def _hint(annotation: ast.expr) -> Any:
    try:
        return eval(ast.unparse(annotation), {"__builtins__": {}}, _TYPES)
    except (NameError, TypeError, AttributeError):
        return Any


def _literals(node: ast.Module | ast.ClassDef) -> dict[str, Any]:
    """The names that a body assigns literals to."""
    found = {}
    for statement in node.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        value = getattr(statement, "value", None)
        if isinstance(target, ast.Name) and value is not None and (literal := _literal(value, {})) is not MISSING:
            found[target.id] = literal
    return found


def _literal(node: ast.expr, constants: dict[str, Any]) -> Any:
    if isinstance(node, ast.Call):  # a field with a check: interval(..)(default=0.02)
        given = [keyword.value for keyword in node.keywords if keyword.arg == "default"]
        return _literal(given[0], constants) if given else MISSING
    if isinstance(node, ast.Name):
        return constants.get(node.id, MISSING)
    try:
        if isinstance(node, ast.BinOp):  # 4096 * 32
            return eval(ast.unparse(node), {"__builtins__": {}}, constants)
        return ast.literal_eval(node)
    except (ValueError, NameError, TypeError, AttributeError):
        return MISSING


@cache
def _standard_docs() -> dict[str, str]:
    """What transformers says about the fields that many models have."""
    docs = {}
    for node in _tree("transformers.utils.auto_docstring").body:
        if isinstance(node, ast.ClassDef) and node.name == "ConfigArgs":
            for name, entry in _literals(node).items():
                docs[name] = " ".join(entry["description"].split())
    return docs
