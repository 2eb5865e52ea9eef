"""Checkpoints that open without `import mentalese`: `trust_remote_code=True` is enough.

A small module next to the weights names this library's classes, and the `auto_map` of the model's or the tokenizer's
config names the module. It contains no code of the classes: the package must be installed, or the module raises an
error.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mentalese.install import install_command

if TYPE_CHECKING:
    from mentalese.models.transformers_seam import TypedModel
else:
    TypedModel = object

MODULE = "mentalese_model"
_SOURCE = '''"""Opens this checkpoint by `trust_remote_code=True`. Its code is in the package `mentalese`."""

try:
    {imports}
except ImportError as error:
    raise ImportError(
        "this checkpoint needs the package mentalese: "
        "{install}"
    ) from error

__all__ = {names}
'''


def write_module(folder: Path, name: str, *classes: type) -> Path:
    """Write the module `name` that names these classes, and return its path."""
    imports = (f"from {cls.__module__} import {cls.__name__}" for cls in classes)
    names = ", ".join(f'"{cls.__name__}"' for cls in classes)
    path = folder / f"{name}.py"
    text = _SOURCE.format(imports="\n    ".join(imports), names=f"[{names}]", install=install_command())
    path.write_text(text, encoding="utf-8")
    return path


class NotCopied:
    """A class whose source transformers does not write next to weights that were opened as remote code."""

    @classmethod
    def register_for_auto_class(cls, auto_class: str | None = None) -> None:
        """Do nothing: the class is in a package."""


class OpensAnywhere(NotCopied, TypedModel):
    """A model whose `save_pretrained` also writes that module."""

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """See `PreTrainedModel.save_pretrained`."""
        model, config = type(self), type(self.config)
        self.config.auto_map = {
            "AutoConfig": f"{MODULE}.{config.__name__}",
            "AutoModelForCausalLM": f"{MODULE}.{model.__name__}",
        }
        super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", True):
            write_module(Path(save_directory), MODULE, config, model)
