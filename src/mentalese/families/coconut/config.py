"""Configuration of Coconut and AGCLR."""

from __future__ import annotations

from typing import Literal

from mentalese.models.config import WINDOWED, WrappedDecoderConfig
from mentalese.values import NonNegativeNumber, Positive

GateName = Literal["read", "forget", "write"]
GATES: tuple[GateName, ...] = ("read", "forget", "write")


class LatentsConfig(WrappedDecoderConfig):
    """A decoder that reads hidden states where a row has latent tokens.

    Attributes:
        latent_token_id: the token that marks a latent position.
        latent_start_token_id, latent_end_token_id: the markers before and after latents.
        step_decoder_layers: layers of a second decoder that in training predicts each written step from its latents
            (SIM-CoT, Wei et al., "SIM-CoT: Supervised Implicit Chain-of-Thought"); `None`: there is none.
        step_weight: weight of the step decoder's loss; its release's sum over tokens is a weight of tokens per step.
        parallel_passes: passes that compute all latents of a row at once, each from the states of the pass before; as
            many as latents give what one latent after the other gives (PCCoT, Wu et al., "Parallel Continuous
            Chain-of-Thought with Jacobi Iteration", arXiv 2506.18582). `None`: one after the other.
    """

    model_type = "latents"
    latent_token_id: int | None = None
    latent_start_token_id: int | None = None
    latent_end_token_id: int | None = None
    step_decoder_layers: Positive | None = None
    step_weight: NonNegativeNumber = 1.0
    parallel_passes: Positive | None = None

    @property
    def mode(self) -> str:
        """The input of a latent position, see `CoconutConfig`."""
        return "coconut"

    @property
    def has_thoughts(self) -> bool:
        return self.mode != "pause"

    @property
    def reads_windows(self) -> bool:
        """True if the backbone takes masks in which windows count tokens; columns of latents may be empty."""
        return self.backbone_config.model_type in WINDOWED

    def validate_architecture(self) -> None:
        super().validate_architecture()
        layers, most = self.step_decoder_layers, self.num_hidden_layers
        self.require(layers is not None or self.step_weight == 1.0, "step_weight", "set step_decoder_layers too")
        remedy = f"set 1 to {most}, as the layers start as copies of the backbone's"
        self.require(layers is None or layers <= most, "step_decoder_layers", remedy)
        remedy = "latents of mode 'pause' predict no steps; set None"
        self.require(layers is None or self.has_thoughts, "step_decoder_layers", remedy)


class CoconutConfig(LatentsConfig):
    """Coconut (Hao et al., "Training Large Language Models to Reason in a Continuous Latent Space") and AGCLR.

    Attributes:
        mode: the input of a latent position: `coconut`, the hidden state before it; `agclr`, that state gated by the
            concept stream; `pause`, the learned embedding of its token (Goyal et al., "Think before you speak").
        gates: those that AGCLR has; the output of a missing one is zero (Table 2).
        gate_biases: of the read, forget and write gate at the start; sigmoid(b) is in Table 3.
        write_passes: latents after which the concept stream stays as it is (Figure 5); `None`: never.
    """

    model_type = "coconut"
    mode: Literal["coconut", "agclr", "pause"] = "coconut"
    gates: tuple[GateName, ...] = GATES
    gate_biases: tuple[float, float, float] = (-0.28, -1.0, -1.5)
    write_passes: Positive | None = None

    def validate_architecture(self) -> None:
        super().validate_architecture()
        for name in ("gates", "gate_biases", "write_passes"):
            is_read = self.mode == "agclr" or getattr(self, name) == getattr(CoconutConfig, name)
            self.require(is_read, name, f"mode {self.mode!r} has no gates; leave it out, or set mode='agclr'")
        self.require(len({*self.gates}) == len(self.gates), "gates", "name each gate once")
        at_once = self.parallel_passes is None or self.mode == "coconut"
        self.require(at_once, "parallel_passes", f"latents of mode {self.mode!r} are not computed again; set None")
