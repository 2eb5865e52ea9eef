"""Mentalese: language models that think in latent space.

Importing this package registers the families' configs with transformers' Auto classes; modules that import models load
on first use.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from mentalese.errors import InputError
from mentalese.install import warn_of_untested_transformers
from mentalese.models.text_tokenizer import register_tokenizer
from mentalese.recipe import DataConfig, EvaluationConfig, OptimizerConfig, Phase, Recipe, TrainConfig
from mentalese.recipe_files import open_recipe, override
from mentalese.registry import Family, get_recipe, import_families, match_recipes, recipes

if TYPE_CHECKING:
    from mentalese.api import answer, evaluate, think, train
    from mentalese.data.sources import as_source
    from mentalese.models.base import LossOutput
    from mentalese.models.cache import ThoughtCache
    from mentalese.models.config import LatentThoughtConfig
    from mentalese.models.hf import LatentThoughtModel
    from mentalese.models.saved import Saved, load
    from mentalese.models.trace import ThoughtTrace
    from mentalese.training.step import TrainStep
    from mentalese.training.trainer import MentaleseTrainer

__version__ = version("mentalese")

__all__ = [
    "DataConfig",
    "EvaluationConfig",
    "Family",
    "InputError",
    "LatentThoughtConfig",
    "LatentThoughtModel",
    "LossOutput",
    "MentaleseTrainer",
    "OptimizerConfig",
    "Phase",
    "Recipe",
    "Saved",
    "ThoughtCache",
    "ThoughtTrace",
    "TrainConfig",
    "TrainStep",
    "answer",
    "as_source",
    "evaluate",
    "get_recipe",
    "load",
    "match_recipes",
    "open_recipe",
    "override",
    "recipes",
    "think",
    "train",
]


_PLACES = {
    "answer": "mentalese.api",
    "as_source": "mentalese.data.sources",
    "evaluate": "mentalese.api",
    "load": "mentalese.api",
    "think": "mentalese.api",
    "train": "mentalese.api",
    "LatentThoughtConfig": "mentalese.models.config",
    "LatentThoughtModel": "mentalese.models.hf",
    "LossOutput": "mentalese.models.base",
    "MentaleseTrainer": "mentalese.training.trainer",
    "Saved": "mentalese.api",
    "ThoughtCache": "mentalese.models.cache",
    "ThoughtTrace": "mentalese.api",
    "TrainStep": "mentalese.training.step",
}
"""Names whose modules import models, and the modules that they are loaded from on first use."""


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


import_families()
register_tokenizer()
warn_of_untested_transformers()
