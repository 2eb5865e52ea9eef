"""The configuration of masked diffusion language models."""

from __future__ import annotations

from typing import Literal

from mentalese.errors import InputError
from mentalese.models.config import LatentThoughtConfig

NORM_EPS = 1e-5


class MaskedDiffusionConfig(LatentThoughtConfig):
    """Sizes, and which of the three methods it is.

    Attributes:
        max_position_embeddings: training length.
        rope_theta: base of the wavelengths of rotary positions.
        rms_norm_eps: added to the mean square in norms.
        objective: `mdlm`, whose model does not see the time (as its authors train it), `md4`, whose model does (adaLN),
            or `sedd`: adaLN on sigma, and score entropy as the loss.
        noise_schedule: p(t), `linear` (t; all three papers on text) or `cosine` (sin(pi t / 2), MD4's on images).
        intermediate_size: channels of SwiGLU; `None`: 8/3 of `hidden_size`, rounded up to a multiple of 32.
        conditioning_size: width of the embedding of the time; not used by `mdlm`.
        score_times: passes to score a text, each with other masks.
    """

    model_type = "masked_diffusion"
    constants = {"rope_theta": 10_000.0, "rms_norm_eps": NORM_EPS}  # noqa: RUF012 (never written to)
    objective: Literal["mdlm", "md4", "sedd"] = "mdlm"
    noise_schedule: Literal["linear", "cosine"] = "linear"
    intermediate_size: int | None = None
    max_position_embeddings: int = 1024
    conditioning_size: int = 128
    score_times: int = 32
    use_cache: bool = False

    def validate_architecture(self) -> None:
        super().validate_architecture()
        for name in ("max_position_embeddings", "conditioning_size", "score_times"):
            if getattr(self, name) < 1:
                self._refuse(name, "set 1 or more")
        if self.intermediate_size is not None and self.intermediate_size < 1:
            self._refuse("intermediate_size", "set 1 or more, or None")
        if self.hidden_size // self.num_attention_heads % 2:
            self._refuse("num_attention_heads", "rotary positions need heads of even width")

    def _refuse(self, name: str, remedy: str) -> None:
        raise InputError(f"{self.model_type}.{name} is {getattr(self, name)!r}: {remedy}")

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
        return self.intermediate_size or -(-8 * self.hidden_size // 96) * 32
