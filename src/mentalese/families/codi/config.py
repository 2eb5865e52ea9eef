"""Configuration of CODI."""

from __future__ import annotations

from mentalese.errors import InputError
from mentalese.families.coconut.config import LatentsConfig


class CodiConfig(LatentsConfig):
    """CODI (Shen et al., "CODI: Compressing Chain-of-Thought into Continuous Space via Self-Distillation").

    Attributes:
        teacher_weight: alpha, of the loss on rows with written steps.
        student_weight: beta, of the loss on rows with latents.
        distillation_weight: gamma, of the distance between the hidden states of both at the token before the answer.
    """

    model_type = "codi"
    teacher_weight: float = 1.0
    student_weight: float = 1.0
    distillation_weight: float = 1.0

    @property
    def mode(self) -> str:
        """Latents read hidden states, as Coconut's do."""
        return "coconut"

    def validate_architecture(self) -> None:
        super().validate_architecture()
        self._at_least(0.0, "teacher_weight", "student_weight", "distillation_weight")
        if not self.teacher_weight + self.student_weight:
            raise InputError("codi.teacher_weight and codi.student_weight are 0: nothing would be predicted; raise one")
