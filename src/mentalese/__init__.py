"""Mentalese: language models that think in latent space.

Importing this package is cheap: heavy modules load on first use, and the families' classes join transformers'
Auto classes as soon as those are imported.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from mentalese.errors import InputError
from mentalese.recipe import DataConfig, EvaluationConfig, OptimizerConfig, Phase, Recipe, TrainConfig
from mentalese.registry import Family, families, get_recipe, match_recipes, recipes, register_lazily

if TYPE_CHECKING:
    from mentalese.models.base import (
        LatentThoughtConfig,
        LatentThoughtModel,
        LossOutput,
        ThoughtCache,
        ThoughtTrace,
        TrainStep,
    )

__version__ = version("mentalese")

__all__ = [
    "DataConfig",
    "EvaluationConfig",
    "Family",
    "InputError",
    "LatentThoughtConfig",
    "LatentThoughtModel",
    "LossOutput",
    "OptimizerConfig",
    "Phase",
    "Recipe",
    "ThoughtCache",
    "ThoughtTrace",
    "TrainConfig",
    "TrainStep",
    "families",
    "get_recipe",
    "match_recipes",
    "recipes",
]


def __getattr__(name: str) -> Any:
    """The contract's classes, which need torch, on first use."""
    if name in __all__:
        return getattr(importlib.import_module("mentalese.models.base"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register_lazily()
