"""What PEFT adapts in our models if no `target_modules` are named: its table by model type knows them too."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mentalese.registration import when_imported

_MODULE = "peft.utils.constants"
_TABLE = "TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING"
_targets: dict[str, list[str]] = {}

BACKBONE_TARGETS = ("c_attn", "query_key_value", "qkv_proj", "q_proj", "v_proj")
"""The maps that PEFT adapts in transformers' decoders; a decoder has one or two of these names."""


def adapt_by_default(model_type: str, names: Sequence[str]) -> None:
    """Tells PEFT the names of the maps to adapt in models of this type. PEFT itself is not imported."""
    _targets[model_type] = list(names)
    when_imported(_MODULE, lambda: getattr(sys.modules[_MODULE], _TABLE).update(_targets))
