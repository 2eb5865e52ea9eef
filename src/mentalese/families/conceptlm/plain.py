"""ConceptLM in one file: read this file first. It is a complete model with its loss, to train or to change.

Liu et al., "Next Concept Prediction in Discrete Latent Space Leads to Stronger Language Models", arXiv 2602.08984.
Sections are the paper's; its equations have no numbers.

    h   = encoder(x)              the first layers of a decoder (section 2.1)
    u_j = mean of chunk j of h    a concept stands for k tokens (section 2.2)
    p_j = sum_i a_ji C_i          layers read u_0 .. u_j, heads weigh learned codes C: the next concept
    x'  = decoder(h + p)          token t reads the last prediction before its own target (section 2.3)
    L   = L_NTP + L_NCP + L_VQ    next token, |p_j - u_{j+1}|^2, |u_j - nearest code|^2 (section 3)

Rows have no padding and nothing is cached. The layers of a decoder from transformers are called one by one: GPT-2,
GPT-NeoX, Llama and decoders built like Llama. Without a codebook the model is ContextLM (arXiv 2510.20280). `model.py`
computes the same, fast; tests compare outputs, losses and gradients. Both have the same `state_dict`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from mentalese.families.conceptlm.config import ConceptLMConfig
from mentalese.models.backbone import output_head_of


class Reading(NamedTuple):
    """The states and concepts of a batch of rows.

    Attributes:
        hidden: [batch, length, hidden], the input of the head.
        pooled: [batch, chunks, hidden], the concepts u_j; an unfinished chunk has no concept.
        predicted: [batch, chunks, hidden], the predictions p_j of u_{j+1}.
    """

    hidden: Tensor
    pooled: Tensor
    predicted: Tensor


class ConceptLM(nn.Module):
    """A decoder that also predicts the next concept and reads its own prediction.

    Args:
        config: the decoder (`backbone`), the depth at which concepts enter it, and the codebook.
    """

    def __init__(self, config: ConceptLMConfig) -> None:
        super().__init__()
        width, self.config = config.hidden_size, config
        self.backbone = AutoModelForCausalLM.from_config(config.backbone_config, trust_remote_code=False)
        layers, norm = parts(self.backbone)
        self.concept_layers = nn.ModuleList(
            type(layers[0])(self.backbone.config, layer_idx=number) for number in range(config.concept_layers)
        )
        self.concept_norm = copy.deepcopy(norm) if config.concept_norm else None
        self.codebook = None if config.codebook is None else Codebook(config)
        self.heads = None if config.codebook is None else nn.Linear(width, config.segments * config.num_codes)
        for name, weights in self.named_parameters():
            if name.startswith(("concept_layers", "heads")) and weights.ndim > 1:
                nn.init.normal_(weights, std=config.initializer_range)
        if self.heads is not None:
            nn.init.zeros_(self.heads.bias)
            if config.silent_start:
                nn.init.zeros_(self.heads.weight)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return logits [batch, length, vocabulary] of tokens [batch, length]."""
        return output_head_of(self.backbone)(self.read(input_ids).hidden)

    def read(self, input_ids: Tensor) -> Reading:
        """Read rows [batch, length] with the encoder, predict concepts, and run the decoder."""
        config, (layers, norm) = self.config, parts(self.backbone)
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        h = run(self.backbone, layers[: config.insert_depth], embedded(self.backbone, input_ids), positions)
        pooled = self.pool(h)
        predicted = self.predict(pooled)
        # Token t reads p of floor((t + 1) / k) - 1: a chunk's last token, whose target is the first of the next chunk,
        # is the first to read that chunk's concept, and k - 1 tokens read zeros ("Prevent Information Leakage").
        e = torch.cat((torch.zeros_like(h[:, :1]), predicted), dim=1)[:, (positions + 1) // config.chunk_size]
        e = e.detach() if config.detach_concept else e
        fused = norm(h) + norm(e) if config.fusion == "norm_sum" else h + e
        return Reading(norm(run(self.backbone, layers[config.insert_depth :], fused, positions)), pooled, predicted)

    def pool(self, h: Tensor) -> Tensor:
        """Return the concepts [batch, chunks, hidden]: means of the encoder's states [batch, length, hidden]."""
        k = self.config.chunk_size
        chunks = h.shape[1] // k
        return h[:, : chunks * k].unflatten(1, (chunks, k)).mean(2)

    def predict(self, pooled: Tensor) -> Tensor:
        """Return the predictions of the next concepts, of the same shape as `pooled`.

        The heads' logits weigh the codes directly, segment by segment, without softmax or sampling (section 2.2).
        """
        if not pooled.shape[1]:
            return pooled
        positions = torch.arange(pooled.shape[1], device=pooled.device) * self.config.chunk_size
        z = run(self.backbone, self.concept_layers, pooled, positions)
        z = z if self.concept_norm is None else self.concept_norm(z)
        if self.heads is None or self.codebook is None:
            return z
        a = self.heads(z).unflatten(-1, (self.config.segments, self.config.num_codes))
        return torch.einsum("bjsn, snc -> bjsc", a, self.codebook()).flatten(2)

    def loss(self, input_ids: Tensor) -> Tensor:
        """Return L_NTP + L_NCP + L_VQ of rows [batch, length] as a weighted sum (section 3)."""
        losses, config = self.losses(input_ids), self.config
        weights = {"ntp": 1.0, "ncp": config.ncp_weight, "vq": config.vq_weight}
        return torch.stack([weights[name] * value for name, value in losses.items()]).sum()

    def losses(self, input_ids: Tensor) -> dict[str, Tensor]:
        """Return the losses `ntp`, `ncp` and, with a codebook, `vq` of rows [batch, length]; 0 without a target.

        The targets of `ncp` are the concepts themselves, not their codes, without a gradient. `vq` trains only codes.
        """
        hidden, pooled, predicted = self.read(input_ids)
        logits = output_head_of(self.backbone)(hidden)
        losses = {
            "ntp": F.cross_entropy(logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten()),
            "ncp": mean((predicted[:, :-1] - pooled[:, 1:].detach()).square()),
        }
        if self.codebook is not None:
            u = pooled.detach()
            losses["vq"] = mean((self.codebook.nearest(u)[1] - u).square())
        return losses


class Codebook(nn.Module):
    """S tables of N codes, one table for each segment of a concept's channels (product quantisation, section 2.2).

    Codes are an `mlp` or `linear` map of a frozen table (SimVQ), or are themselves the weights (`learned`).
    """

    def __init__(self, config: ConceptLMConfig) -> None:
        super().__init__()
        segments, width, self.kind = config.segments, config.hidden_size // config.segments, config.codebook
        table = torch.randn(segments, config.num_codes, width) / width**0.5
        if self.kind == "learned":
            self.table = nn.Parameter(table)
            return
        self.frozen: Tensor
        self.register_buffer("frozen", table)
        if self.kind == "linear":
            self.weight = nn.Parameter(config.initializer_range * torch.randn(segments, width, width))
        else:
            self.up = nn.Parameter((2 / width) ** 0.5 * torch.randn(segments, width, 2 * width))
            self.up_bias = nn.Parameter(torch.zeros(segments * 2 * width))
            self.down = nn.Parameter(config.initializer_range * torch.randn(segments, 2 * width, width))
            self.down_bias = nn.Parameter(torch.zeros(segments * width))

    def forward(self) -> Tensor:
        """Return the codes [segments, codes, channels]."""
        if self.kind == "learned":
            return self.table
        if self.kind == "linear":
            return self.frozen @ self.weight
        up_bias, down_bias = (bias.view(len(self.frozen), 1, -1) for bias in (self.up_bias, self.down_bias))
        return (self.frozen @ self.up + up_bias).relu() @ self.down + down_bias

    def nearest(self, concepts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the index of each segment's nearest code [.., segments], and these codes joined [.., hidden]."""
        codes = self()
        distances = (concepts.unflatten(-1, (len(codes), 1, -1)) - codes).square().sum(-1)
        numbers = distances.argmin(-1)
        return numbers, codes[torch.arange(len(codes), device=codes.device), numbers].flatten(-2)


def mean(values: Tensor) -> Tensor:
    """Return the mean, or 0 if there are no values."""
    return values.sum() / max(values.numel(), 1)


def parts(decoder: PreTrainedModel) -> tuple[Any, Any]:
    """Return the layers and the final norm of a decoder."""
    body: Any = decoder.base_model
    names = {"gpt2": ("h", "ln_f"), "gpt_neox": ("layers", "final_layer_norm")}
    layers, norm = names.get(decoder.config.model_type, ("layers", "norm"))
    return getattr(body, layers), getattr(body, norm)


def embedded(decoder: PreTrainedModel, input_ids: Tensor) -> Tensor:
    """Return the first layer's input [batch, length, hidden]."""
    body: Any = decoder.base_model
    h = body.get_input_embeddings()(input_ids)
    if hasattr(body, "wpe"):  # GPT-2, which has learned positions
        h = body.drop(h + body.wpe(torch.arange(input_ids.shape[1], device=h.device)))
    return h


def run(decoder: PreTrainedModel, layers: Iterable[nn.Module], h: Tensor, positions: Tensor) -> Tensor:
    """Run a decoder's layers on h [batch, n, hidden] at positions [n] with causal attention."""
    body: Any = decoder.base_model
    later = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool, device=h.device).triu(1)
    options = {"attention_mask": torch.zeros_like(later, dtype=h.dtype).masked_fill(later, -torch.inf)[None, None]}
    if hasattr(body, "rotary_emb"):
        options["position_embeddings"] = body.rotary_emb(h, positions[None])
    for layer in layers:
        h = layer(h, **options)
    return h
