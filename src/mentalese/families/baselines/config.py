"""The config of GPT-2 with a gist mask."""

from __future__ import annotations

from typing import Any

from transformers import GPT2Config

from mentalese.models.anywhere import NotCopied
from mentalese.models.config import register_model


class GPT2GistConfig(NotCopied, GPT2Config):
    """GPT-2's settings, and the token that ends a sentence.

    Attributes:
        sentence_end_token_id: the token that ends a sentence.
    """

    model_type = "gpt2_gist"

    sentence_end_token_id: int = 2

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        register_model(type(self))
