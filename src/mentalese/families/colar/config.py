"""Configuration of CoLaR."""

from __future__ import annotations

from typing import Literal

from mentalese.families.coconut.config import LatentsConfig
from mentalese.recipe import EvaluationConfig, Fields
from mentalese.values import NonNegativeNumber, Positive, checked


def grown(backbone: Fields, **fields: object) -> Fields:
    """Return a recipe whose backbone is this decoder; there is room for an answer after the most latents."""
    latents = checked("max_latents", Positive, fields.get("max_latents", ColarConfig.max_latents))
    return {
        "model": {"model_type": "colar", "backbone": backbone} | fields,
        "layout": {"kind": "qa_compressed"},
        "train": {"epochs": 4},
        "evaluation": {"metric": "accuracy", "answer_tokens": latents + EvaluationConfig.answer_tokens},
    }


class ColarConfig(LatentsConfig):
    """CoLaR (Tan et al., "Think Silently, Think Fast: Dynamic Latent Compression of LLM Reasoning Chains").

    Attributes:
        factor: c, tokens of a written step that one latent stands for, where steps are read and where the model thinks.
        max_factor: c_max; in training c is drawn from 1 to c_max for each step of the optimiser.
        latent_loss: the loss of the latent head: `nll`, of a normal distribution, or `soft_mse`, the expected squared
            distance of a sample, less the entropy.
        latent_weight: weight of that loss.
        entropy_weight: alpha, of the entropy in `soft_mse`; the best standard deviation is at least sqrt(alpha / 2).
        latent_temperature: standard deviation of the latents that the model makes, in units of the head's; 0: the mean.
        max_latents: latents after which the model ends thinking.
    """

    model_type = "colar"
    factor: Positive = 1
    max_factor: Positive = 5
    latent_loss: Literal["nll", "soft_mse"] = "soft_mse"
    latent_weight: NonNegativeNumber = 1.0
    entropy_weight: NonNegativeNumber = 0.01
    latent_temperature: NonNegativeNumber = 0.0
    max_latents: Positive = 64

    def validate_architecture(self) -> None:
        super().validate_architecture()
        soft = self.latent_loss == "soft_mse"
        self.require(soft or self.entropy_weight == 0.01, "entropy_weight", "it belongs to latent_loss 'soft_mse'")
        self.require(self.parallel_passes is None, "parallel_passes", "the model decides how many latents; set None")
        remedy = "latents learn from the embeddings of their steps; set None, or use SIM-CoT on another family"
        self.require(self.step_decoder_layers is None, "step_decoder_layers", remedy)
