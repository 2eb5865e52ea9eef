"""The configuration of Latent Thought Models."""

from __future__ import annotations

import math

from mentalese.errors import InputError
from mentalese.models.hf import LatentThoughtConfig


class LTMConfig(LatentThoughtConfig):
    """Sizes, and how thoughts are inferred (Kong et al., "Latent Thought Models", sections 2 and A).

    Attributes:
        intermediate_size: of SwiGLU; `None`: 8/3 of `hidden_size`, rounded up to a multiple of 32.
        max_position_embeddings: the length trained on, over which the positions of thoughts are spread.
        window_size: a token attends to so many tokens, itself among them.
        num_latents: N_z, thought vectors in all, as many for each layer; 0: the same blocks without cross-attention,
            an autoregressive baseline.
        shared_latents: one set of `num_latents` that all layers attend to (section 2.1).
        inference: of training, `variational` (Algorithm 1), `langevin` (Eq. 4), or `amortised`: a VAE, whose encoder
            gives the posterior in no steps; what says how steps are taken is then of inference on demand alone.
        encoder_layers: of `amortised`.
        fast_steps: T_fast, gradient steps on a batch's thoughts.
        fast_learning_rate: of these; a phase may set it (`phases[].model`).
        fast_schedule: of the learning rate over the fast steps: `constant`, or down to a tenth of it at the last step,
            `linear` or `cosine`.
        fast_optimizer: `adam`, or `adamw` with its decay of 0.01 as in the release; its state is new for each batch.
        noise: of the reparametrisation, `resampled` at each fast step (Algorithm 1) or `fixed` (the release).
        slow_grad: what the weights follow. `final`: the gradient under thoughts drawn after the fast steps;
            `accumulate`: those of all fast steps too, as the release has it.
        tolerance: a row's inference ends where a step gains less of the ELBO, in nats a target; `None`: never.
        langevin_step_size: s of Eq. 4.
    """

    model_type = "ltm"
    intermediate_size: int | None = None
    max_position_embeddings: int = 1024
    window_size: int = 256
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    num_latents: int = 24
    shared_latents: bool = False
    inference: str = "variational"
    encoder_layers: int = 12
    fast_steps: int = 16
    fast_learning_rate: float = 0.3
    fast_schedule: str = "constant"
    fast_optimizer: str = "adam"
    noise: str = "resampled"
    slow_grad: str = "final"
    tolerance: float | None = None
    langevin_step_size: float = 0.01

    def validate_architecture(self) -> None:
        super().validate_architecture()
        choices = {
            "inference": ("variational", "langevin", "amortised"),
            "fast_schedule": ("constant", "linear", "cosine"),
            "fast_optimizer": ("adam", "adamw"),
            "noise": ("resampled", "fixed"),
            "slow_grad": ("final", "accumulate"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                self._refuse(name, f"give {' or '.join(known)}")
        positive = ("max_position_embeddings", "window_size", "fast_steps", "encoder_layers")
        for name, least in (*((name, 1) for name in positive), ("num_latents", 0)):
            if getattr(self, name) < least:
                self._refuse(name, f"give {least} or more")
        if self.inference == "amortised":
            if not self.num_latents:
                self._refuse(
                    "num_latents", "an encoder needs thoughts to infer, so give 1 or more, or another inference"
                )
            for name, wanted in (("slow_grad", "final"), ("tolerance", None)):
                if getattr(self, name) != wanted:
                    self._refuse(name, f"an encoder infers in no steps, so give {wanted!r}")
        for name in ("fast_learning_rate", "langevin_step_size"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                self._refuse(name, "give a positive number")
        if self.tolerance is not None and not self.tolerance >= 0:
            self._refuse("tolerance", "give nats a target, 0 or more, or None")
        if self.intermediate_size is not None and self.intermediate_size < 1:
            self._refuse("intermediate_size", "give 1 or more, or None")
        if self.hidden_size // self.num_attention_heads % 2:
            self._refuse("num_attention_heads", "rotary positions need heads of even width")
        if self.window_size > self.max_position_embeddings:
            self._refuse("window_size", f"give at most max_position_embeddings ({self.max_position_embeddings})")
        if not self.shared_latents and self.num_latents % self.num_hidden_layers:
            self._refuse(
                "num_latents",
                f"every layer has as many, so give a multiple of num_hidden_layers ({self.num_hidden_layers}), or "
                "shared_latents=True",
            )
        if self.num_latents > self.max_position_embeddings:
            self._refuse("num_latents", f"give at most max_position_embeddings ({self.max_position_embeddings})")

    def _refuse(self, name: str, remedy: str) -> None:
        raise InputError(f"{self.model_type}.{name} is {getattr(self, name)!r}: {remedy}")

    @property
    def latents_per_layer(self) -> int:
        """n, the thoughts that a layer attends to."""
        return self.num_latents if self.shared_latents else self.num_latents // self.num_hidden_layers

    @property
    def scoring(self) -> str:
        """How thoughts are inferred where a text is scored, which needs a divergence: `langevin` has none."""
        return "amortised" if self.inference == "amortised" else "variational"

    @property
    def width(self) -> int:
        """Channels of SwiGLU."""
        return self.intermediate_size or -(-8 * self.hidden_size // 96) * 32
