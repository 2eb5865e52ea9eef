"""What PEFT adapts in our models if no `target_modules` are named: its table by model type knows them too."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

BACKBONE_TARGETS = ("c_attn", "query_key_value", "qkv_proj", "q_proj", "v_proj")
"""The maps that PEFT adapts in transformers' decoders; a decoder has one or two of these names."""


def adapt_by_default(model_type: str, names: Sequence[str]) -> None:
    """Give PEFT, if it is installed, the names of the maps to adapt in models of this type."""
    if find_spec("peft"):
        from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

        TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING[model_type] = list(names)
