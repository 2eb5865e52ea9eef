"""Configuration of Coconut and AGCLR."""

from __future__ import annotations

from typing import Any, Literal

from mentalese.errors import InputError
from mentalese.models.backbone import check_full_attention, decoder_config
from mentalese.models.hf import LatentThoughtConfig

GATES = ("read", "forget", "write")


class CoconutConfig(LatentThoughtConfig):
    """Coconut (Hao et al., "Training Large Language Models to Reason in a Continuous Latent Space") and AGCLR.

    Attributes:
        backbone: any Hugging Face decoder: its `model_type` and the fields of its config. Sizes are taken from it, its
            vocabulary and special tokens from this config.
        mode: what a latent position reads: `coconut`, the hidden state before it; `agclr`, that state gated by the
            concept stream; `pause`, the learned embedding of its token (Goyal et al., "Think before you speak").
        gates: those that AGCLR has; the output of a missing one is zero (appendix A.2).
        gate_biases: of the read, forget and write gate at the start; sigmoid(b) is in Table 3.
        write_passes: latents after which the concept stream stays as it is (appendix A.1); `None`: never.
        latent_token_id: the token that marks a latent position.
        latent_start_token_id, latent_end_token_id: what stands around latents.
    """

    model_type = "coconut"
    backbone: dict[str, Any] | None = None
    mode: Literal["coconut", "agclr", "pause"] = "coconut"
    gates: tuple[str, ...] = GATES
    gate_biases: tuple[float, ...] = (-0.28, -1.0, -1.5)
    write_passes: int | None = None
    latent_token_id: int | None = None
    latent_start_token_id: int | None = None
    latent_end_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self.backbone = self.backbone or {"model_type": "gpt2"}
        inner = decoder_config("coconut.backbone", self.backbone)
        self.hidden_size, self.num_hidden_layers = inner.hidden_size, inner.num_hidden_layers
        self.num_attention_heads, self.tie_word_embeddings = inner.num_attention_heads, inner.tie_word_embeddings
        super().__post_init__(**kwargs)

    @property
    def max_position_embeddings(self) -> int | None:
        """Positions of the backbone; latents take one each."""
        return getattr(self.backbone_config, "max_position_embeddings", None)

    @property
    def backbone_config(self) -> Any:
        """The backbone's own config, with the vocabulary and special tokens of this one."""
        config = decoder_config("coconut.backbone", self.backbone or {})
        for name in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id"):
            setattr(config, name, getattr(self, name))
        return config

    def validate_architecture(self) -> None:
        super().validate_architecture()
        check_full_attention("coconut.backbone", self.backbone_config)
        for gate in self.gates:
            if gate not in GATES or self.gates.count(gate) > 1:
                raise InputError(f"coconut.gates is {self.gates}: give some of {', '.join(GATES)}, each once")
        if len(self.gate_biases) != len(GATES):
            raise InputError(f"coconut.gate_biases is {self.gate_biases}: give three, of read, forget and write")
        if self.write_passes is not None and self.write_passes < 1:
            raise InputError(
                f"coconut.write_passes is {self.write_passes}: give at least 1, or leave out the write gate"
            )


def grown(backbone: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The `model` of a recipe whose backbone is this decoder."""
    return {"model_type": "coconut", "backbone": backbone} | fields
