"""From a recipe or a folder to a model that keeps the contract; Hugging Face's own classes join by an adapter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from mentalese.errors import InputError, nearest
from mentalese.models.base import Batch, Contract, LatentThoughtModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from mentalese.recipe import Recipe


class CausalLMAdapter(nn.Module, Contract):
    """Gives any decoder-only Hugging Face causal LM the contract: training loss, scoring and cost.

    The wrapped model stays what it is (`adapter.model.save_pretrained(...)` is a plain checkpoint of its own class).

    Args:
        model: a causal LM whose logits are its output embedding applied to its base model's last hidden state.

    Raises:
        InputError: the logits are something else (soft-capped, scaled, with a bias), which a chunked head would
            silently get wrong.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        head = model.get_output_embeddings()
        caps = ("final_logit_softcapping", "logit_scale", "logits_scaling", "output_multiplier_scale")
        capped = [name for name in caps if getattr(model.config, name, None) not in (None, 1, 1.0)]
        if head is None or getattr(head, "bias", None) is not None or capped:
            why = f"config.{capped[0]}" if capped else "no output embedding without bias"
            raise InputError(
                f"{type(model).__name__} turns hidden states into logits in its own way ({why}): "
                "only heads that are one matrix are supported"
            )

    def get_output_embeddings(self) -> nn.Module:
        return self.model.get_output_embeddings()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.generate(*args, **kwargs)

    def final_hidden_states(self, batch: Batch) -> Tensor:
        mask = batch.get("attention_mask")
        positions = None if mask is None else (mask.cumsum(1) - 1).clamp(min=0)
        output = self.model.base_model(
            input_ids=batch["input_ids"], attention_mask=mask, position_ids=positions, use_cache=False
        )
        return output.last_hidden_state

    def forward_flops(self, batch: Batch) -> int:
        """Every linear map once a token, attention in full over the row, the head once a token."""
        rows, length = batch["input_ids"].shape
        config = self.model.config
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        attention = 2 * length * width * config.num_attention_heads * config.num_hidden_layers
        return 2 * rows * length * (self._linear_weights + attention)

    @cached_property
    def _linear_weights(self) -> int:
        """Weights that multiply each token: all linear maps, the head among them even where it is tied."""
        head = self.get_output_embeddings()
        maps = {id(m): m for m in self.model.modules() if isinstance(m, (nn.Linear, Conv1D))} | {id(head): head}
        return sum(m.weight.numel() for m in maps.values())


def as_contract(model: PreTrainedModel) -> Any:
    """The model itself where it keeps the contract, else the adapter around it."""
    return model if isinstance(model, LatentThoughtModel) else CausalLMAdapter(model)


def hugging_face_model(model: nn.Module) -> PreTrainedModel:
    """The inverse of `as_contract`: what `save_pretrained` and `generate` are called on."""
    return model.model if isinstance(model, CausalLMAdapter) else model


def config_class(model_type: str) -> Any:
    """The Hugging Face config class of a model type; raises `InputError` with the nearest name."""
    if model_type not in CONFIG_MAPPING:
        raise InputError(
            f"model.model_type is {model_type!r}: no such type{nearest(model_type, CONFIG_MAPPING.keys())}"
        )
    return CONFIG_MAPPING[model_type]


def build_config(fields: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> Any:
    """A model's config from a recipe's `model` section; the tokenizer fills in vocabulary and special tokens.

    Raises:
        InputError: an unknown field, a value of the wrong type or out of range.
    """
    from mentalese.data.tokenizers import special_token_ids

    values = dict(fields)
    cls = config_class(values.pop("model_type"))
    known = {f.name for f in cls.__dataclass_fields__.values()} | set(cls.attribute_map)
    for name in values:
        if name not in known:
            raise InputError(f"model.{name}: {cls.model_type} has no such field{nearest(name, known)}")
    filled = {"vocab_size": len(tokenizer)} | {k: v for k, v in special_token_ids(tokenizer).items() if k in known}
    try:
        return cls(**(filled | values))
    except InputError:
        raise
    except (ValueError, TypeError) as error:
        cause = error.__cause__ if isinstance(error.__cause__, InputError) else error
        raise InputError(f"model: {' '.join(str(cause).split())}") from error


def build_model(fields: dict[str, Any], tokenizer: PreTrainedTokenizerBase, seed: int) -> Any:
    """A freshly initialised model that keeps the contract; the same seed gives the same weights.

    Raises:
        InputError: what `build_config` refuses, or sizes that the model's class does.
    """
    config = build_config(fields, tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = AutoModelForCausalLM.from_config(config)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"model: {' '.join(str(error).split())}") from error
        return as_contract(model)


def check_context(config: Any, recipe: Recipe) -> None:
    """Raises `InputError` where the recipe's blocks are longer than the model's context.

    `max_position_embeddings` is what transformers calls the context; models that read sentence by sentence have none.
    """
    context = getattr(config, "max_position_embeddings", None)
    if context is None or recipe.data.batching == "sentences":
        return
    lengths = {
        "data.sequence_length": recipe.data.sequence_length,
        "evaluation.context_length": recipe.evaluation.context_length,
    }
    for name, length in lengths.items():
        if length is not None and length > context:
            raise InputError(f"{name} is {length}: the model's context is {context}, give at most that")


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars of transformers' own inside the block: ours say what takes long."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def load_model(path: str | Path, device: str | torch.device = "cpu") -> tuple[Any, PreTrainedTokenizerBase]:
    """A trained model that keeps the contract, in eval mode, and its tokenizer.

    Args:
        path: a folder written by `save_pretrained` or by a run (its `model/` is found), or `hub:NAME`.

    Raises:
        InputError: there is no model, or its vocabulary is not the tokenizer's.
    """
    from mentalese.data.tokenizers import load_pretrained_tokenizer

    name = str(path)
    if name.startswith("hub:"):
        source = name.removeprefix("hub:")
    else:
        folder = Path(path)
        folder = folder / "model" if (folder / "model" / "config.json").is_file() else folder
        if not (folder / "config.json").is_file():
            raise InputError(f"{name} holds no model (no config.json): give the folder of a run or of a saved model")
        source = str(folder)
    config = AutoConfig.from_pretrained(source)
    tokenizer = load_pretrained_tokenizer(source)
    if len(tokenizer) > config.vocab_size:
        raise InputError(
            f"{name}: the tokenizer has {len(tokenizer)} tokens and the model {config.vocab_size}: "
            "they do not belong together"
        )
    with quiet_transformers():
        model = AutoModelForCausalLM.from_pretrained(source, config=config)
    return as_contract(model.to(device).eval()), tokenizer
