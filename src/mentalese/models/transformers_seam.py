"""Everything of transformers that is private, or has changed between its releases, in one place.

No other module overrides a private hook of transformers, reads its private attributes or imports its submodules
(`tests/unit/test_seam.py` checks this); `text_tokenizer.py` is the part that needs no models. Observed in 5.17.0,
5.23.0 and 5.24.0 unless an item states otherwise:

| item | use of it here | public alternative |
|---|---|---|
| name of the cache | `past_key_values` before 5.24, `cache` since: `CACHE`; both are accepted and both answer | none |
| `_init_weights` | calls `initialize` | none: transformers' guide for new models overrides it |
| `_initialize_weights` | initialises modules without weights of their own too, if `initializes_containers` | none |
| `_set_gradient_checkpointing` | calls `set_checkpointing` | `activation_checkpointing_enable`, only since 5.21 |
| `_prepare_cache_for_generation` | calls `cache_for_generation` | none: beams and a fixed size need it |
| `_prepare_model_inputs` | calls `check_prompt` | none: a prompt is found among three arguments |
| `_is_stateful`, `_supports_*`, `_tied_weights_keys` | set from `DECLARED` | none |
| `_keep_in_fp32_modules_strict`, `_input_embed_layer` | set from `DECLARED` | none |
| `config._attn_implementation` | `attention_of`, `set_attention` | none |
| `_encode_plus`, `_auto_map` and others of a tokenizer | `text_tokenizer.MentaleseTokenizer` | none |
| `PaddingStrategy`, `TruncationStrategy` | imported by `text_tokenizer` only | none |
| `MODEL_FOR_CAUSAL_LM_MAPPING_NAMES`, which `Trainer` reads | `name_for_trainer` adds this library's classes | none |
| `Trainer._wrap_model`, `Trainer._get_train_sampler` | `step_trainer` | none |
| `TrainingArguments._n_gpu` | `use_one_gpu` | none |
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import SequentialSampler
from transformers import Cache, GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import ModelOutput

from mentalese.errors import InputError

T = TypeVar("T")

# ---------------------------------------------------------------------------------------------------------- the types

if TYPE_CHECKING:
    from transformers import Trainer, TrainingArguments

    class GenerationMixin:
        """transformers' class for the type checker: as models override and call it, and not for one kind of cache."""

        _is_stateful: bool

        def generate(self, *args: Any, **kwargs: Any) -> Any: ...

        def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> Any: ...

        def _prepare_model_inputs(self, *args: Any, **kwargs: Any) -> Any: ...

    class TypedModel(PreTrainedModel, GenerationMixin):
        """A causal LM of transformers for the type checker."""

        config: Any
        config_class: Any
        generation_config: Any
        peft_config: Any

        def get_input_embeddings(self) -> Any: ...

        def get_output_embeddings(self) -> Any: ...

        def to(self, *args: Any, **kwargs: Any) -> Any: ...  # type: ignore[override]

else:
    from transformers import GenerationMixin

    TypedModel = PreTrainedModel

# ------------------------------------------------------------------------------------------------ the name of a cache

CACHE = "cache" if "cache" in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters else ""
CACHE = CACHE or "past_key_values"
"""The keyword by which this transformers passes a cache to models and layers, and its name in outputs."""
_OTHER = "past_key_values" if CACHE == "cache" else "cache"


def one_cache(cache: T | None, past_key_values: T | None) -> T | None:
    """Return the cache of a call that accepts both names; raise `InputError` if both are set."""
    if cache is not None and past_key_values is not None:
        raise InputError("cache and past_key_values are both set: they are two names of one argument, so pass one")
    return past_key_values if cache is None else cache


class _BothNames(ModelOutput):
    """An output whose cache answers to both names, as an attribute and as a key."""

    def __getitem__(self, key: object) -> Any:
        return super().__getitem__(CACHE if key == _OTHER else key)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(CACHE if key == _OTHER else key)

    def get(self, key: object, default: object = None) -> Any:
        """Return the value of a key, or the default."""
        return super().get(CACHE if key == _OTHER else key, default)


setattr(_BothNames, _OTHER, property(lambda output: getattr(output, CACHE)))


@dataclass
class StatesOutput(_BothNames, BaseModelOutputWithPast):
    """The output of a model without its head."""


@dataclass
class LogitsOutput(_BothNames, CausalLMOutputWithPast):
    """The output of a causal LM."""


# ---------------------------------------------------------------------------------------------------------- the hooks

DECLARED: Mapping[str, str] = {
    "input_layer": "_input_embed_layer",
    "tied_weights": "_tied_weights_keys",
    "kept_in_float32": "_keep_in_fp32_modules_strict",
    "supports_flash_attention": "_supports_flash_attn",
    "supports_flex_attention": "_supports_flex_attn",
}
"""Attributes of this library's model classes, and transformers' names for them."""


class OwnCacheGenerationMixin(GenerationMixin):  # transformers tests for this ending of the name
    """A causal LM whose `generate` uses a cache of its own class, which cannot be cut back."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls._is_stateful = True  # set on each class: `PreTrainedModel`, which may come first, has False
        for name, private in DECLARED.items():
            if name in vars(cls):
                setattr(cls, private, getattr(cls, name))

    def cache_for_generation(self, settings: GenerationConfig, cache: Any, max_tokens: int) -> Cache | None:
        """Return the cache of `generate` with these settings, for at most `max_tokens` tokens; `None`: no cache."""
        raise NotImplementedError(f"{type(self).__name__} needs cache_for_generation")

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], mode: object, batch_size: int, max_cache_length: int
    ) -> Any:
        passed = one_cache(model_kwargs.pop("cache", None), model_kwargs.pop("past_key_values", None))
        cache = self.cache_for_generation(generation_config, passed, max_cache_length)
        model_kwargs["use_cache"] = generation_config.use_cache
        if cache is not None:
            model_kwargs[CACHE] = cache


class TransformersModel(TypedModel, OwnCacheGenerationMixin):
    """`PreTrainedModel` with public names for the private hooks that transformers calls.

    Attributes:
        input_layer: the attribute that is the input embedding; the output embedding is `lm_head`.
        tied_weights: target -> source, by parameter name.
        kept_in_float32: names of modules that stay in float32 in a model of lower precision.
        initializes_containers: `initialize` is also called for modules whose weights all belong to modules inside.
    """

    _supports_sdpa = True
    input_layer: ClassVar[str]
    tied_weights: ClassVar[dict[str, str]]
    kept_in_float32: ClassVar[tuple[str, ...]]
    supports_flash_attention: ClassVar[bool]
    supports_flex_attention: ClassVar[bool]
    initializes_containers: ClassVar[bool] = False

    def initialize(self, module: nn.Module) -> None:
        """Initialise the module's own parameters; transformers calls this once for each module that has some."""
        super()._init_weights(module)

    def _init_weights(self, module: nn.Module) -> None:
        self.initialize(module)

    def _initialize_weights(self, module: nn.Module, *options: bool) -> None:
        # Models that are not transformers' own skip modules without weights of their own, unless no option is passed.
        super()._initialize_weights(module, *(() if self.initializes_containers else options))

    def set_checkpointing(self, enable: bool, run: Callable[..., object], every_n_layers: int) -> None:
        """Turn gradient checkpointing on or off; `run` calls a layer, and again in the backward pass."""
        super()._set_gradient_checkpointing(enable, run, every_n_layers)

    def _set_gradient_checkpointing(
        self,
        enable: bool = True,
        gradient_checkpointing_func: Callable[..., object] = checkpoint,
        every_n_layers: int = 1,
    ) -> None:
        self.set_checkpointing(enable, gradient_checkpointing_func, every_n_layers)

    def check_prompt(self, input_ids: Tensor | None) -> Tensor:
        """Return the prompt of a call of `generate`, or raise `InputError`."""
        raise NotImplementedError(f"{type(self).__name__} needs check_prompt")

    def _prepare_model_inputs(self, *args: Any, **kwargs: Any) -> Any:
        prompt, *rest = super()._prepare_model_inputs(*args, **kwargs)
        return self.check_prompt(prompt), *rest


def initialize_as(model: PreTrainedModel, module: nn.Module) -> None:
    """Initialise a module's own parameters by the rule of a model of transformers."""
    model._init_weights(module)


def attention_of(config: PreTrainedConfig) -> str | None:
    """Return the name of a config's implementation of attention; `None` before a model has chosen one."""
    return config._attn_implementation


def set_attention(config: PreTrainedConfig, name: str | None) -> None:
    """Set the name of a config's implementation of attention."""
    config._attn_implementation = name


# ----------------------------------------------------------------------------------------------------------- Trainer


def name_for_trainer(model_type: str, model: type) -> None:
    """Make `transformers.Trainer` smooth the labels of the next token for this model, as for its own models."""
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type] = model.__name__


def step_trainer() -> type[Trainer]:
    """Return `Trainer` with a hook for the module that is wrapped in place of the model; its import takes long."""
    from transformers import Trainer

    class StepTrainer(Trainer):
        def trained_module(self) -> nn.Module:
            """Return the module whose forward pass is the training loss: DDP and autocast go around it."""
            raise NotImplementedError(f"{type(self).__name__} needs trained_module")

        def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: object = None) -> nn.Module:
            return self.accelerator.prepare(self.trained_module()) if training and model is self.model else model

        def _get_train_sampler(self, train_dataset: object = None) -> SequentialSampler:
            dataset: Any = self.train_dataset
            return SequentialSampler(dataset)

    return StepTrainer


def use_one_gpu(arguments: TrainingArguments) -> None:
    """Make `TrainingArguments` of a machine with several GPUs use the first one in this process."""
    arguments._n_gpu = min(arguments.n_gpu, 1)
