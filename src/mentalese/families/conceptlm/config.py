"""Configurations of ConceptLM, ContextLM and multi-token prediction, which all wrap a Hugging Face decoder."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from mentalese.errors import InputError, require
from mentalese.models.config import WrappedDecoderConfig
from mentalese.values import NonNegative, NonNegativeNumber, Positive

AtLeastTwo = Annotated[Positive, Field(ge=2)]


class ConceptLMConfig(WrappedDecoderConfig):
    """ConceptLM ("Next Concept Prediction in Discrete Latent Space Leads to Stronger Language Models").

    Attributes:
        insert_depth: the token layer before which concepts are read and added; the layers before it are the encoder
            (appendix B.2; 0 reads embeddings).
        concept_layers: layers of the concept module, of the backbone's own class.
        concept_norm: whether they end in a norm of the backbone's kind, for the release's weights (`published.py`);
            `None`: only of GPT-NeoX.
        chunk_size: k, tokens a concept stands for.
        num_segments: S, codebooks of a concept; `None`: as many as attention heads.
        num_codes: N, codes of each.
        codebook: what turns the frozen table into codes, a two-layer `mlp` (section 4.1) or a `linear` map (the
            release's GPT-2); `learned`: codes are weights themselves, without SimVQ (appendix E.3); `None`: no codes,
            the concept layers' output is the next concept (ContextLM).
        fusion: the decoder reads h + e (`sum`), or ln(h) + ln(e) by the backbone's final norm (`norm_sum`, the
            release's GPT-2, whose head is untied).
        detach_concept: the tokens' loss ends at the concept that they read, and does not train what predicts it (the
            release's Llama; its GPT-2, its Pythia and the paper train it by all losses).
        ncp_weight, vq_weight: of these losses beside the next token's; 0 leaves one out.
        silent_start: heads start at zero, so that nothing is added until training moves them (`mentalese grow`).
    """

    model_type = "conceptlm"
    reads_windows = True
    insert_depth: NonNegative = 1
    concept_layers: Positive = 2
    concept_norm: bool | None = None
    chunk_size: AtLeastTwo = 4
    num_segments: Positive | None = None
    num_codes: AtLeastTwo = 64
    codebook: Literal["mlp", "linear", "learned"] | None = "mlp"
    fusion: Literal["sum", "norm_sum"] = "sum"
    detach_concept: bool = False
    ncp_weight: NonNegativeNumber = 1.0
    vq_weight: NonNegativeNumber = 1.0
    silent_start: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.num_segments is None:
            self.num_segments = self.num_attention_heads
        if self.concept_norm is None:
            self.concept_norm = self.backbone_config.model_type == "gpt_neox"

    @property
    def segments(self) -> int:
        """S, the number of segments."""
        return self.num_segments or self.num_attention_heads

    @property
    def has_thoughts(self) -> bool:
        return True

    def validate_architecture(self) -> None:
        super().validate_architecture()
        layers, kinds = self.num_hidden_layers, getattr(self.backbone_config, "layer_types", None)
        trains = not self.detach_concept or self.ncp_weight > 0
        self.require(trains, "detach_concept", "with ncp_weight 0 nothing trains concepts, set False")
        inside = self.insert_depth < layers
        self.require(inside, "insert_depth", f"the backbone has {layers} layers, set at most {layers - 1}")
        divides = self.hidden_size % self.segments == 0
        self.require(divides, "num_segments", f"use a divisor of the backbone's width ({self.hidden_size})")
        fits = kinds is None or self.concept_layers <= len(kinds)
        remedy = f"the backbone has a kind of attention for each of its {layers} layers, set at most that number"
        self.require(fits, "concept_layers", remedy)
        self.require(self.codebook is not None or not self.vq_weight, "vq_weight", "without a codebook set 0.0")
        silent = not self.silent_start or (self.fusion == "sum" and self.codebook is not None)
        self.require(silent, "silent_start", "with fusion 'norm_sum', or without a codebook, zeros add something")


class MTPConfig(WrappedDecoderConfig):
    """Multi-token prediction (Gloeckle et al., "Better & Faster Large Language Models via Multi-token Prediction").

    Attributes:
        num_future_tokens: n, tokens predicted at each position; the heads of all but the next one are a layer each,
            beside the backbone's last.
    """

    model_type = "mtp"
    reads_windows = True
    num_future_tokens: AtLeastTwo = 4


def grown(backbone: dict[str, Any], token_layers: int | None = None, **fields: Any) -> dict[str, Any]:
    """Return a recipe whose backbone is this decoder; concepts add nothing until training moves their heads.

    Args:
        token_layers: make the decoder itself this many layers deeper instead, which start as copies of its first ones:
            the parameter-matched twin of Table 3 (section 4.3).

    Raises:
        InputError: fields of concepts for a twin that has none, or more copies than the decoder has layers.
    """
    if token_layers is None:
        return {"model": {"model_type": "conceptlm", "backbone": backbone, "silent_start": True} | fields}
    for field, value in fields.items():
        raise InputError(f"conceptlm.{field} is {value!r}: with token_layers there are no concepts; leave one out")
    name = "n_layer" if "n_layer" in backbone else "num_hidden_layers"
    remedy = f"set 1 to {backbone[name]}, the layers of the decoder"
    require(1 <= token_layers <= backbone[name], "token_layers", token_layers, remedy)
    kinds = backbone.get("layer_types")
    kinds = {} if kinds is None else {"layer_types": kinds[:1] + kinds[:token_layers] + kinds[1:]}
    return {"model": backbone | {name: backbone[name] + token_layers} | kinds}
