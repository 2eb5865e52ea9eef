"""Another project's decoder inside a model of ours: how it is built, what is asked of it, what it costs."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.pytorch_utils import Conv1D

from mentalese.errors import InputError, nearest
from mentalese.models.config import LatentThoughtConfig


def decoder_config(where: str, fields: dict[str, Any]) -> Any:
    """The Hugging Face config of a decoder from its `model_type` and fields.

    Args:
        where: the field that contains them, for messages.

    Raises:
        InputError: no causal LM of that type, one of our own, an unknown field, or a value that its config refuses.
    """
    # Imported here: it registers our classes too, whose configs may be what is being imported.
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    values = dict(fields)
    kind = values.pop("model_type", None)
    if kind not in CONFIG_MAPPING or kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        hint = nearest(str(kind), CONFIG_MAPPING.keys())
        raise InputError(f"{where}.model_type is {kind!r}: use the type of a transformers decoder (gpt2, llama){hint}")
    cls = CONFIG_MAPPING[kind]
    if issubclass(cls, LatentThoughtConfig):
        raise InputError(f"{where}.model_type is {kind!r}: use a decoder of transformers itself, such as gpt2 or llama")
    known = set(cls.__dataclass_fields__) | set(cls.attribute_map)
    for name in values:
        if name not in known:
            raise InputError(f"{where}.{name}: {kind} has no such field{nearest(name, known)}")
    try:
        config = cls(**values)
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: {' '.join(str(error).split())}") from error
    if not all(hasattr(config, name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")):
        raise InputError(f"{where}.model_type is {kind!r}: it has no attention, use one that has (gpt2, llama)")
    if any(hasattr(config, name) for name in ("layers_block_type", "block_types")):
        raise InputError(f"{where}.model_type is {kind!r}: some layers are no attention, use another (gpt2, llama)")
    encoder = hasattr(config, "add_cross_attention") and getattr(config, "is_decoder", True) is False
    if config.is_encoder_decoder or encoder:
        raise InputError(f"{where}.model_type is {kind!r}: it is not only a decoder, use one that is (gpt2, llama)")
    return config


def sliding_window(config: Any) -> int | None:
    """The columns that a decoder's layers with sliding windows see; `None` if it has no such layers."""
    kinds = set(getattr(config, "layer_types", None) or ()) | set(getattr(config, "attention_layers", None) or ())
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return (window or 0) if "sliding_attention" in kinds else window if not kinds else None


def check_full_attention(where: str, config: Any, *, windows: bool = False) -> None:
    """Raises `InputError` for a decoder that counts columns of its cache: masked ones would take room in its window.

    Args:
        windows: sliding windows are allowed, as no column between a row's tokens is masked.
    """
    kinds = set(getattr(config, "layer_types", None) or ()) | set(getattr(config, "attention_layers", None) or ())
    window, positions = sliding_window(config), getattr(config, "max_position_embeddings", 0)
    if window is not None and window < positions and not windows:
        raise InputError(
            f"{where}.sliding_window is {config.sliding_window} and max_position_embeddings {positions}: latents need "
            "attention in full, so set a window of all positions, or None if the type allows it"
        )
    if kinds - {"full_attention", "global", "sliding_attention"} or config.model_type in _BY_COLUMN:
        raise InputError(
            f"{where}.model_type is {config.model_type!r}: it does not attend in full to earlier tokens, use a "
            "decoder that does (gpt2, llama)"
        )


_BY_COLUMN = {"mpt"}  # whose bias counts columns


def build_decoder(where: str, config: Any, attn_implementation: str | None = None) -> PreTrainedModel:
    """A decoder that reads `inputs_embeds` and whose logits are one matrix times its last hidden state.

    Raises:
        InputError: one that is or does something else.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

    if attn_implementation == "sdpa" and not MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._supports_sdpa:
        attn_implementation = "eager"  # as transformers chooses itself: "sdpa" is its choice for the model around it
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attn_implementation)
    if "inputs_embeds" not in inspect.signature(model.base_model.forward).parameters:
        raise InputError(f"{where}.model_type is {config.model_type!r}: it does not read inputs_embeds, use another")
    check_head(model)
    return model


def check_head(model: PreTrainedModel) -> None:
    """Raises `InputError` if logits are more than the output embedding applied to the last hidden state."""
    head = model.get_output_embeddings()
    caps = ("final_logit_softcapping", "logit_scale", "logits_scaling", "output_multiplier_scale")
    capped = [name for name in caps if getattr(model.config, name, None) not in (None, 1, 1.0)]
    if head is None or getattr(head, "bias", None) is not None or capped:
        why = f"config.{capped[0]}" if capped else "no output embedding without bias"
        raise InputError(
            f"{type(model).__name__} turns hidden states into logits in its own way ({why}): "
            "only heads that are one matrix are supported"
        )


def linear_weights(model: nn.Module) -> int:
    """Weights of all linear maps but a model's head: what multiplies each token once; of experts those it goes to."""
    head: Any = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    heads = set() if head is None else set(head.modules())  # with what PEFT has wrapped around it
    maps = {id(m): m for m in model.modules() if isinstance(m, (nn.Linear, Conv1D)) and m not in heads}
    return sum(m.weight.numel() for m in maps.values()) + sum(_experts(m) for m in model.modules())


def _experts(block: nn.Module) -> int:
    """Weights that multiply a token in a block of experts, which are one tensor [experts, out, in], and in its router;
    0 for any other module."""
    experts, gate = getattr(block, "experts", None), getattr(block, "gate", None)
    if not isinstance(experts, nn.Module) or not isinstance(gate, nn.Module):
        return 0
    stacked = [p for p in experts.parameters() if p.ndim == 3]
    chosen: Any = getattr(block, "top_k", None) or getattr(gate, "top_k", 0)
    router = 0 if isinstance(gate, nn.Linear) else sum(p.numel() for p in gate.parameters() if p.ndim == 2)
    return router + sum(p.numel() // len(p) for p in stacked) * chosen


def attention_width(config: Any) -> int:
    """Channels of all heads of all layers: what a pair of a query and a key costs, twice."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return width * config.num_attention_heads * config.num_hidden_layers
