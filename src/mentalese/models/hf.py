"""Hugging Face's side of every family: config, cache and model base."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.dataclasses import type_validator
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

from mentalese.data.batch import Batch
from mentalese.errors import InputError, nearest
from mentalese.models.contract import Contract
from mentalese.models.trace import ThoughtTrace

# Keywords that transformers itself hands to a config (loading, attention choice, classification heads).
_HANDED_BY_TRANSFORMERS = {
    "attn_implementation",
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "per_layer_config",
    "torch_dtype",
}


class LatentThoughtConfig(PreTrainedConfig):
    """Base of every family's config: typed fields, unknown fields refused, lists from JSON back to tuples.

    Subclasses declare fields as annotations and check them in `validate_architecture(self)`, raising `InputError`.
    """

    model_type = "latent_thought_base"
    vocab_size: int = 0
    hidden_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        fields = self.__dataclass_fields__
        for name in kwargs:
            if not name.startswith("_") and name not in _HANDED_BY_TRANSFORMERS and not hasattr(type(self), name):
                raise InputError(f"{self.model_type}.{name}: no such field{nearest(name, fields)}")
        for name in fields:
            value = getattr(self, name)
            if isinstance(value, list) and "tuple" in str(fields[name].type):
                setattr(self, name, tuple(value))
        super().__post_init__(**kwargs)
        self._check_types()
        self.validate_architecture()

    def _check_types(self) -> None:
        """transformers' `@strict` neither reads annotations that are strings nor takes 1 for a float."""
        checked: set[str] = set()
        for cls in type(self).__mro__[: type(self).__mro__.index(LatentThoughtConfig) + 1]:
            for name, expected in inspect.get_annotations(cls, eval_str=True).items():
                value = getattr(self, name)
                if name in checked:
                    continue
                checked.add(name)
                if expected is float and type(value) is int:
                    setattr(self, name, value := float(value))
                try:
                    type_validator(name, value, expected)
                except TypeError as error:
                    kind = expected.__name__ if isinstance(expected, type) else str(expected).replace("typing.", "")
                    raise InputError(f"{self.model_type}.{name} is {value!r}: give {kind}") from error

    def validate_architecture(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"{self.model_type}.hidden_size is {self.hidden_size}: give a multiple of num_attention_heads "
                f"({self.num_attention_heads})"
            )


class ThoughtCache(Cache):
    """Keys and values by layer, and named states by row: what generation carries from token to token.

    `state[name]` is a tensor whose first dimension is the batch, so that beam search, repetition and selection of rows
    move keys, values and thoughts together. `seen_tokens` counts tokens of the *stream*; a model whose keys and values
    hold more (forks) or less (one sentence) than the stream keeps them in `state` and leaves the layers empty.
    """

    is_croppable = False
    is_compileable = False

    def __init__(self, num_hidden_layers: int = 0) -> None:
        super().__init__(layers=[DynamicLayer() for _ in range(num_hidden_layers)])
        self.state: dict[str, Tensor] = {}
        self.seen_tokens = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens of the stream read so far, left padding included, as `generate` counts them."""
        return self.seen_tokens

    def _move(self, select: Any) -> None:
        self.state = {name: select(value) for name, value in self.state.items()}

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        super().reorder_cache(beam_idx)
        self._move(lambda value: value.index_select(0, beam_idx.to(value.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._move(lambda value: value.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._move(lambda value: value[indices])

    def reset(self) -> None:
        super().reset()
        self.state = {}
        self.seen_tokens = 0

    def crop(self, tokens_to_remove: int) -> None:
        raise NotImplementedError(
            "a cache of thoughts cannot be cut back: assisted and prompt-lookup decoding are not supported"
        )


@dataclass
class CausalLMOutputWithThoughts(CausalLMOutputWithPast):
    """Hugging Face's output, and one `ThoughtTrace` a row where `output_thoughts=True` was asked for."""

    thoughts: list[ThoughtTrace] | None = None


class ResidualLinear(nn.Linear):
    """A map whose output is added to the residual stream; it starts smaller the deeper the model (GPT-2).

    A class of its own, since transformers initialises no module that holds other modules only.
    """


class LatentThoughtModel(PreTrainedModel, Contract, GenerationMixin):
    """Base of every family's model: a Hugging Face causal LM that keeps the contract.

    A subclass sets `config_class`, builds its modules in `__init__` (`embed` and `lm_head` among them, ending in
    `self.post_init()`), gives every parameter that is not a plain linear, embedding or norm its rule in
    `_init_weights`, and keeps whatever generation needs between tokens in a `ThoughtCache`.
    """

    config_class = LatentThoughtConfig
    base_model_prefix = "model"
    _is_stateful = True
    _supports_sdpa = True
    cache_class: type[ThoughtCache] = ThoughtCache
    embed: nn.Embedding
    lm_head: nn.Linear

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, ResidualLinear):
            std = self.config.initializer_range / math.sqrt(2 * self.config.num_hidden_layers)
            init.normal_(module.weight, std=std)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embed = value

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head = new_embeddings

    def new_cache(self) -> ThoughtCache:
        """An empty cache for `generate`; families whose keys and values live in named states override it."""
        return ThoughtCache(self.config.num_hidden_layers)

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        if generation_config.use_cache is not False and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = self.new_cache()

    def traces(self, batch: Batch, **options: Any) -> list[ThoughtTrace]:
        """See `Contract.traces`; `options` are keywords of `forward`."""
        known = inspect.signature(self.forward).parameters
        if "output_thoughts" not in known:
            return super().traces(batch, **options)
        self._check_options(options, known)
        read = {name: batch[name] for name in ("input_ids", "attention_mask") if name in batch}
        with torch.no_grad():
            return self(**read, output_thoughts=True, logits_to_keep=1, **options).thoughts

    @staticmethod
    def real_tokens(input_ids: Tensor, attention_mask: Tensor | None, cache: ThoughtCache | None) -> Tensor:
        """bool [batch, length], which tokens of this call are no padding.

        Args:
            attention_mask: [batch, length or, with a cache, all tokens so far].

        Raises:
            InputError: a mask of another width.
        """
        if attention_mask is None:
            return torch.ones_like(input_ids, dtype=torch.bool)
        seen = input_ids.shape[1] + (0 if cache is None else cache.seen_tokens)
        if attention_mask.shape[1] != seen:
            raise InputError(
                f"attention_mask has {attention_mask.shape[1]} columns: give {seen}, one for each token read so far"
            )
        return attention_mask[:, -input_ids.shape[1] :].bool()

    @staticmethod
    def check_rows(real: Tensor) -> None:
        """Raises `InputError` where a row of `real` [batch, length] is padding alone."""
        empty = ~real.any(1)
        if bool(empty.any()):
            raise InputError(
                f"attention_mask[{int(empty.nonzero()[0])}] is 0 throughout: every row needs a token, leave it out"
            )

    def check_cache(self, cache: Any) -> Any:
        """The cache given to `forward`, refused where it is not one of ours."""
        if cache is not None and not isinstance(cache, self.cache_class):
            raise InputError(
                f"past_key_values is a {type(cache).__name__}: {type(self).__name__} needs a "
                f"{self.cache_class.__name__} "
                "(leave the argument out, or call model.new_cache())"
            )
        return cache
