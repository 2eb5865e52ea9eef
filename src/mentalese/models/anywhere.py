"""Checkpoints that open where nobody has written `import mentalese`: `trust_remote_code=True` is enough.

A small module next to the weights names our classes, and the config's `auto_map` names the module. It contains no code
of the model: the package must be installed, and the module says so if it is not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

MODULE = "mentalese_model"
_SOURCE = '''"""Opens this checkpoint by `trust_remote_code=True`. The model's code is in the package `mentalese`."""

try:
    from {config_module} import {config}
    from {model_module} import {model}
except ImportError as error:
    raise ImportError("this model needs the package mentalese: pip install mentalese") from error

__all__ = ["{config}", "{model}"]
'''


class NotCopied:
    """A class whose source transformers does not write next to weights that were opened as remote code."""

    @classmethod
    def register_for_auto_class(cls, auto_class: str | None = None) -> None:
        """Nothing: the class is in a package."""


class OpensAnywhere(NotCopied):
    """A model whose `save_pretrained` also writes that module."""

    config: Any
    config_class: Any

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """See `PreTrainedModel.save_pretrained`."""
        model, config = type(self), type(self.config)
        self.config.auto_map = {
            "AutoConfig": f"{MODULE}.{config.__name__}",
            "AutoModelForCausalLM": f"{MODULE}.{model.__name__}",
        }
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        if kwargs.get("is_main_process", True):
            source = _SOURCE.format(
                config_module=config.__module__,
                config=config.__name__,
                model_module=model.__module__,
                model=model.__name__,
            )
            (Path(save_directory) / f"{MODULE}.py").write_text(source, encoding="utf-8")
