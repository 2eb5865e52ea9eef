"""Configuration of CODI."""

from __future__ import annotations

from mentalese.families.coconut.config import LatentsConfig
from mentalese.recipe import Fields
from mentalese.values import NonNegativeNumber


def grown(backbone: Fields, **fields: object) -> Fields:
    """Return a recipe whose backbone is this decoder, with six latents (section 4)."""
    return {
        "model": {"model_type": "codi", "backbone": backbone} | fields,
        "layout": {"kind": "qa_pairs", "latents": 6},
        "train": {"epochs": 4},
        "evaluation": {"metric": "accuracy"},
    }


class CodiConfig(LatentsConfig):
    """CODI (Shen et al., "CODI: Compressing Chain-of-Thought into Continuous Space via Self-Distillation").

    Attributes:
        distillation_weight: gamma, of the distance between the hidden states of teacher and student at the token before
            the answer; alpha and beta, the weights of their own losses, are 1.
        space_token_id: the token of a space, which stands before answers whose first token has none.
    """

    model_type = "codi"
    space_token_id: int | None = None
    distillation_weight: NonNegativeNumber = 1.0
