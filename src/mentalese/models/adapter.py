"""Hugging Face's own causal LMs keep the contract by an adapter."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mentalese.data.batch import Batch
from mentalese.models.backbone import attention_width, check_head, layers_of, linear_weights
from mentalese.models.contract import Contract
from mentalese.models.hf import LatentThoughtModel


class CausalLMAdapter(Contract, nn.Module):
    """Makes any decoder-only Hugging Face causal LM keep the contract: training loss, scoring and cost.

    The wrapped model is unchanged (`adapter.model.save_pretrained(...)` writes a plain checkpoint of its own class).

    Args:
        model: a causal LM whose logits are its output embedding applied to its base model's last hidden state.

    Raises:
        InputError: the logits are something else (soft-capped, scaled, with a bias), for which a chunked head would be
            silently wrong.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        check_head(model)

    def get_output_embeddings(self) -> nn.Module:
        return self.model.get_output_embeddings()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.generate(*args, **kwargs)

    def final_hidden_states(self, batch: Batch) -> Tensor:
        mask = batch.get("attention_mask")
        positions = None if mask is None else (mask.cumsum(1) - 1).clamp(min=0)
        ids = batch["input_ids"]
        # Without a mask, transformers would look for padding in the tokens and for several texts in the positions.
        mask = torch.ones_like(ids) if mask is None else mask
        output = self.model.base_model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
        return output.last_hidden_state

    def compiled_parts(self) -> list[nn.Module]:
        return layers_of(self.model)

    def forward_flops(self, batch: Batch) -> int:
        """Every linear map once per token, attention in full over the row, the head once per token."""
        rows, length = batch["input_ids"].shape
        attention = 2 * length * attention_width(self.model.config)
        return 2 * rows * length * (self._linear_weights + attention)

    @cached_property
    def _linear_weights(self) -> int:
        """Weights that multiply each token, including the head's, even if it is tied."""
        return linear_weights(self.model) + self.output_weight().numel()


def as_contract(model: PreTrainedModel) -> Contract:
    """The model itself if it keeps the contract, else the adapter around it."""
    return model if isinstance(model, LatentThoughtModel) else CausalLMAdapter(model)


def hugging_face_model(model: nn.Module) -> PreTrainedModel:
    """The inverse of `as_contract`: what `save_pretrained` and `generate` are called on."""
    return model.model if isinstance(model, CausalLMAdapter) else model
