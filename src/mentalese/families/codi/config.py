"""Configuration of CODI."""

from __future__ import annotations

from mentalese.families.coconut.config import LatentsConfig


class CodiConfig(LatentsConfig):
    """CODI (Shen et al., "CODI: Compressing Chain-of-Thought into Continuous Space via Self-Distillation").

    Attributes:
        distillation_weight: gamma, of the distance between the hidden states of teacher and student at the token before
            the answer; alpha and beta, the weights of their own losses, are 1.
    """

    model_type = "codi"
    distillation_weight: float = 1.0

    @property
    def mode(self) -> str:
        """The mode of Coconut: latents read hidden states."""
        return "coconut"

    def validate_architecture(self) -> None:
        super().validate_architecture()
        self._at_least(0.0, "distillation_weight")
