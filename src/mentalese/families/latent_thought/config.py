"""The configuration of Latent Thought Models."""

from __future__ import annotations

from typing import Literal

from mentalese.models.config import LatentThoughtConfig
from mentalese.nn.blocks import swiglu_channels
from mentalese.values import NonNegative, Positive, PositiveNumber

NORM_EPS = 1e-5


class LTMConfig(LatentThoughtConfig):
    """Sizes, and how thoughts are inferred (Kong et al., "Latent Thought Models", sections 2 and A).

    Defaults are the paper's (Algorithm 1, A.2), and the release's where the paper is silent. Four switches restore what
    else the release does: `fast_optimizer=adamw`, `fast_schedule=cosine`, `noise=fixed`, `slow_grad=accumulate`.

    Attributes:
        intermediate_size: channels of SwiGLU; `None`: 8/3 of `hidden_size`, rounded up to a multiple of 32.
        max_position_embeddings: training length. Thoughts of a layer are at the positions 0, s, 2 s, .. with s this
            length over `num_latents`, the same in each layer, so that they cover its first 1 / `num_hidden_layers`;
            the paper says that they are rotary, not where (the release).
        window_size: number of tokens that a token attends to, including itself.
        num_latents: N_z, thought vectors in all, split evenly over the layers; 0: the same blocks without
            cross-attention, an autoregressive baseline.
        shared_latents: one set of `num_latents` that all layers attend to (section 2.1).
        inference: how thoughts are inferred in training: `variational` (Algorithm 1), `langevin` (Eq. 4), or
            `amortised`: a VAE, whose encoder computes the posterior without steps. The settings of steps then only
            apply to inference on demand.
        encoder_layers: depth of the encoder of `amortised`.
        fast_steps: T_fast, gradient steps on a batch's thoughts.
        fast_learning_rate: learning rate of these steps; a phase may set it (`phases[].model`), and what it has reached
            in training stays.
        fast_schedule: learning rate over the fast steps: `constant`, or `linear` or `cosine` down to a tenth at the
            last step.
        fast_optimizer: `adam`, or `adamw` with weight decay 0.01 as in the release; its state is new for each batch.
        noise: noise of the reparametrisation, `resampled` at each fast step (Algorithm 1) or `fixed` (the release).
        slow_grad: gradient of the weights. `final`: under thoughts drawn after the fast steps; `accumulate`: plus those
            of all fast steps, as in the release.
        langevin_step_size: s of Eq. 4.
        initial_log_variance: where fast learning starts log variances. At -5, the release's (Algorithm 1 does not
            state it), a thought costs 2 nats per channel before the first step; at 0, the prior's, it costs nothing.
    """

    model_type = "ltm"
    intermediate_size: Positive | None = None
    max_position_embeddings: Positive = 1024
    window_size: Positive = 256
    num_latents: NonNegative = 24
    shared_latents: bool = False
    inference: Literal["variational", "langevin", "amortised"] = "variational"
    encoder_layers: Positive = 12
    fast_steps: Positive = 16
    fast_learning_rate: PositiveNumber = 0.3
    fast_schedule: Literal["constant", "linear", "cosine"] = "constant"
    fast_optimizer: Literal["adam", "adamw"] = "adam"
    noise: Literal["resampled", "fixed"] = "resampled"
    slow_grad: Literal["final", "accumulate"] = "final"
    langevin_step_size: PositiveNumber = 0.01
    initial_log_variance: float = -5.0

    @property
    def has_thoughts(self) -> bool:
        return self.num_latents > 0

    def validate_architecture(self) -> None:
        super().validate_architecture()
        self.require_even_heads()
        within = f"set at most max_position_embeddings ({self.max_position_embeddings})"
        for name in ("window_size", "num_latents"):
            self.require(getattr(self, name) <= self.max_position_embeddings, name, within)
        even = self.shared_latents or self.num_latents % self.num_hidden_layers == 0
        self.require(even, "num_latents", f"set a multiple of num_hidden_layers ({self.num_hidden_layers})")
        if self.inference == "amortised":
            self.require(self.num_latents > 0, "num_latents", "an encoder needs thoughts to infer, so set 1 or more")
            self.require(self.slow_grad == "final", "slow_grad", "an encoder infers without steps, so set 'final'")

    @property
    def latents_per_layer(self) -> int:
        """n, the number of thoughts per layer."""
        return self.num_latents if self.shared_latents else self.num_latents // self.num_hidden_layers

    @property
    def scoring(self) -> str:
        """The inference method for scores; scores need a divergence, which `langevin` does not have."""
        return "amortised" if self.inference == "amortised" else "variational"

    @property
    def width(self) -> int:
        """The number of channels of SwiGLU."""
        return self.intermediate_size or swiglu_channels(self.hidden_size)
