"""Configuration of Coconut and AGCLR."""

from __future__ import annotations

from typing import Any, Literal

from mentalese.errors import InputError
from mentalese.models.backbone import WINDOWED
from mentalese.models.wrapped import WrappedDecoderConfig

GATES = ("read", "forget", "write")


class LatentsConfig(WrappedDecoderConfig):
    """A decoder that reads hidden states where a row has latent tokens.

    Attributes:
        latent_token_id: the token that marks a latent position.
        latent_start_token_id, latent_end_token_id: the markers before and after latents.
        step_decoder_layers: layers of a second decoder that in training predicts each written step from its latents
            (SIM-CoT, Wei et al., "SIM-CoT: Supervised Implicit Chain-of-Thought"); `None`: there is none.
        step_weight: weight of the step decoder's loss.
    """

    model_type = "latents"
    latent_token_id: int | None = None
    latent_start_token_id: int | None = None
    latent_end_token_id: int | None = None
    step_decoder_layers: int | None = None
    step_weight: float = 1.0

    @property
    def has_thoughts(self) -> bool:
        return True

    @property
    def reads_windows(self) -> bool:
        """Whether the backbone takes masks in which windows count tokens; columns of latents may be empty."""
        return self.backbone_config.model_type in WINDOWED

    def validate_architecture(self) -> None:
        super().validate_architecture()
        self._at_least(0.0, "step_weight")
        if self.step_decoder_layers is None:
            if self.step_weight != 1.0:
                raise InputError(
                    f"{self.model_type}.step_weight is {self.step_weight}: it weighs the step decoder's loss; set "
                    f"{self.model_type}.step_decoder_layers too, or remove it"
                )
            return
        self._at_least(1, "step_decoder_layers")
        if self.step_decoder_layers > self.num_hidden_layers:
            raise InputError(
                f"{self.model_type}.step_decoder_layers is {self.step_decoder_layers}: set at most the backbone's "
                f"{self.num_hidden_layers}, whose weights they start from"
            )
        if not self.has_thoughts:
            raise InputError(
                f"{self.model_type}.step_decoder_layers is {self.step_decoder_layers}: latents of this mode are no "
                "hidden states, from which a step could be predicted; remove it"
            )


class CoconutConfig(LatentsConfig):
    """Coconut (Hao et al., "Training Large Language Models to Reason in a Continuous Latent Space") and AGCLR.

    Attributes:
        mode: what a latent position reads: `coconut`, the hidden state before it; `agclr`, that state gated by the
            concept stream; `pause`, the learned embedding of its token (Goyal et al., "Think before you speak").
        gates: those that AGCLR has; the output of a missing one is zero (appendix A.2).
        gate_biases: of the read, forget and write gate at the start; sigmoid(b) is in Table 3.
        write_passes: latents after which the concept stream stays as it is (appendix A.1); `None`: never.
    """

    model_type = "coconut"
    mode: Literal["coconut", "agclr", "pause"] = "coconut"
    gates: tuple[str, ...] = GATES
    gate_biases: tuple[float, ...] = (-0.28, -1.0, -1.5)
    write_passes: int | None = None

    @property
    def has_thoughts(self) -> bool:
        return self.mode != "pause"

    def validate_architecture(self) -> None:
        super().validate_architecture()
        for gate in self.gates:
            if gate not in GATES or self.gates.count(gate) > 1:
                raise InputError(f"coconut.gates is {self.gates}: use some of {', '.join(GATES)}, each once")
        if len(self.gate_biases) != len(GATES):
            raise InputError(f"coconut.gate_biases is {self.gate_biases}: use three, of read, forget and write")
        if self.write_passes is not None and self.write_passes < 1:
            raise InputError(
                f"coconut.write_passes is {self.write_passes}: set at least 1, or leave out the write gate"
            )


def grown(backbone: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The `model` of a recipe whose backbone is this decoder."""
    return {"model_type": "coconut", "backbone": backbone} | fields
