"""This library's classes in transformers' Auto classes, by their public `register`.

Config and tokenizer classes are registered when `mentalese` is imported. A model class takes longer to import; it is
registered when a config of its type is made, since the class is never looked up before there is a config.
"""

from __future__ import annotations

from transformers import AutoModelForCausalLM, PreTrainedConfig

from mentalese.registry import MODELS, load


def register_model(config_class: type[PreTrainedConfig]) -> None:
    """Register the model class that a family declares for a config class; a repeated call changes nothing."""
    if reference := MODELS.get(config_class.model_type):
        from mentalese.models.transformers_seam import name_for_trainer

        model = load(reference)
        AutoModelForCausalLM.register(config_class, model, exist_ok=True)
        name_for_trainer(config_class.model_type, model)
