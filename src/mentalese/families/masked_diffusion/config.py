"""The configuration of masked diffusion language models."""

from __future__ import annotations

from typing import Literal

from mentalese.models.config import LatentThoughtConfig
from mentalese.nn.blocks import swiglu_channels
from mentalese.values import Positive

NORM_EPS = 1e-5


class MaskedDiffusionConfig(LatentThoughtConfig):
    """Sizes, and which of the three methods it is.

    Attributes:
        max_position_embeddings: training length.
        objective: `mdlm`, whose model does not see the time (as its authors train it), `md4`, whose model does (adaLN),
            or `sedd`: adaLN on sigma, and score entropy as the loss.
        noise_schedule: p(t), `linear` (t; all three papers on text) or `cosine` (sin(pi t / 2), MD4's on images).
        intermediate_size: channels of SwiGLU; `None`: 8/3 of `hidden_size`, rounded up to a multiple of 32.
        conditioning_size: width of the embedding of the time; not used by `mdlm`.
        score_times: passes to score a text, each with other masks.
    """

    model_type = "masked_diffusion"
    objective: Literal["mdlm", "md4", "sedd"] = "mdlm"
    noise_schedule: Literal["linear", "cosine"] = "linear"
    intermediate_size: Positive | None = None
    max_position_embeddings: Positive = 1024
    conditioning_size: Positive = 128
    score_times: Positive = 32
    use_cache: bool = False

    def validate_architecture(self) -> None:
        super().validate_architecture()
        self.require_even_heads()

    @property
    def mask_token_id(self) -> int:
        """The mask id in `input_ids`, one after the tokenizer's last id; it is never predicted."""
        return self.vocab_size

    @property
    def sees_time(self) -> bool:
        return self.objective != "mdlm"

    @property
    def width(self) -> int:
        """The number of channels of SwiGLU."""
        return self.intermediate_size or swiglu_channels(self.hidden_size)
