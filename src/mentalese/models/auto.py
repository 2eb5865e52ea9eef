"""From a recipe or a folder to a model that keeps the contract; Hugging Face's own classes join by an adapter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

from mentalese.data.sentences import fixed_length
from mentalese.data.tokenizers import load_pretrained_tokenizer, special_token_ids, tokenizer_fingerprint
from mentalese.errors import InputError, nearest
from mentalese.files import sha256, whole_folder, write_json
from mentalese.models.base import Batch, Contract, LatentThoughtModel
from mentalese.models.decoder import attention_width, check_head, linear_weights
from mentalese.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
        output = self.model.base_model(
            input_ids=batch["input_ids"], attention_mask=mask, position_ids=positions, use_cache=False
        )
        return output.last_hidden_state

    def forward_flops(self, batch: Batch) -> int:
        """Every linear map once a token, attention in full over the row, the head once a token."""
        rows, length = batch["input_ids"].shape
        attention = 2 * length * attention_width(self.model.config)
        return 2 * rows * length * (self._linear_weights + attention)

    @cached_property
    def _linear_weights(self) -> int:
        """Weights that multiply each token, the head's among them even where it is tied."""
        return linear_weights(self.model) + self.output_weight().numel()


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
        except (ValueError, ArithmeticError, RuntimeError) as error:  # what a class says of sizes it cannot have
            raise InputError(f"model: {' '.join(str(error).split())}: change its sizes") from error
        return as_contract(model)


def context_length(config: Any) -> int | None:
    """The most tokens that a model can look at; `None` for models that read sentence by sentence.

    transformers calls it `max_position_embeddings`, whatever a config's own name for it is.
    """
    return getattr(config, "max_position_embeddings", None)


def check_context(config: Any, recipe: Recipe) -> None:
    """Raises `InputError` where the recipe's blocks, or its sentences, are longer than the model has positions for."""
    sentence = getattr(config, "max_sentence_tokens", None)
    if sentence is not None and recipe.data.batching == "sentences":
        data, span = recipe.data, fixed_length(recipe.data.sentences)
        whole = data.sentences == "none"
        if whole or (span or data.max_sentence_tokens) > sentence:
            name = "sentences" if whole or span else "max_sentence_tokens"
            raise InputError(
                f"data.{name} is {getattr(data, name)!r}: the model has positions for sentences of {sentence} tokens, "
                "so split into such, or give a larger model.max_sentence_tokens"
            )
    if recipe.data.batching == "sentences":
        return
    check_length(config, "data.sequence_length", recipe.data.sequence_length)
    check_length(config, "evaluation.context_length", recipe.evaluation.context_length)


def check_length(config: Any, name: str, length: int | None) -> None:
    """Raises `InputError` where a length of that name is above what the model can look at."""
    context = context_length(config)
    if length is not None and context is not None and length > context:
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


def save_model(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **about: Any) -> None:
    """Writes a checkpoint that `from_pretrained` opens, and `mentalese.json`: what it is and what it must hash to.

    Args:
        folder: replaced whole where it exists.
        about: JSON-ready facts beside the weights (the recipe, the step).

    Raises:
        InputError: the disk is full or the folder cannot be written; what was there before stays.
    """
    with whole_folder(folder, replace=True) as temporary, quiet_transformers():
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        weights = {path.name: sha256(path) for path in sorted(temporary.glob("*.safetensors"))}
        write_json(
            temporary / "mentalese.json",
            about | {"tokenizer_fingerprint": tokenizer_fingerprint(tokenizer), "weights": weights},
        )


def model_folder(path: str | Path) -> Path:
    """The `model/` of a run's folder or of a checkpoint's run, or the folder itself."""
    from mentalese.train.checkpoint import is_checkpoint

    inside = (Path(path).absolute().parents[1] if is_checkpoint(path) else Path(path)) / "model"
    return inside if (inside / "config.json").is_file() else Path(path)


def saved_about(path: str | Path) -> dict[str, Any]:
    """The content of `mentalese.json` beside a model's weights; empty for models that we have not saved."""
    file = model_folder(path) / "mentalese.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def saved_recipe(path: str | Path) -> Recipe | None:
    """The recipe that a saved model was trained by, where its folder tells."""
    about = saved_about(path)
    return Recipe.from_dict(about["recipe"]) if "recipe" in about else None


def with_fields(config: Any, fields: dict[str, Any]) -> Any:
    """The config with other values, checked as if it were made anew."""
    known = [field for field in config.__dataclass_fields__ if field not in PreTrainedConfig.__dataclass_fields__]
    for name in fields:
        if name not in known:
            raise InputError(f"config.{name}: {config.model_type} has no such field{nearest(name, known)}")
    return type(config).from_dict(config.to_dict() | fields) if fields else config


def load_model(
    path: str | Path, device: str | torch.device = "cpu", *, fields: dict[str, Any] | None = None
) -> tuple[Any, PreTrainedTokenizerBase]:
    """A trained model that keeps the contract, in eval mode, and its tokenizer.

    Args:
        path: a folder written by `save_pretrained` or by a run (its `model/` is found), `hub:NAME`, or a checkpoint
            `RUN/checkpoints/step-*`, whose weights take the place of those in `RUN/model`.
        fields: fields of its config that are to have other values, as far as the weights allow.

    Raises:
        InputError: there is no model, its weights are damaged, its tokenizer is another one, or its config has no such
            field.
    """
    from mentalese.train.checkpoint import is_checkpoint, load_weights

    name, checkpoint = str(path), is_checkpoint(path)
    source = name.removeprefix("hub:") if name.startswith("hub:") else str(model_folder(path))
    if not name.startswith("hub:") and not (Path(source) / "config.json").is_file():
        if checkpoint:
            raise InputError(f"{name} lies in a run that has no model/ yet: wait for its first validation")
        raise InputError(f"{name} holds no model (no config.json): give the folder of a run or of a saved model")
    about = saved_about(path)
    for file, expected in ({} if checkpoint else about.get("weights", {})).items():
        weights = Path(source) / file
        if not weights.is_file() or sha256(weights) != expected:
            raise InputError(f"{weights} is missing or has changed since it was saved: copy it again, or train anew")
    try:
        with quiet_transformers():
            config = with_fields(AutoConfig.from_pretrained(source), fields or {})
            tokenizer = load_pretrained_tokenizer(source)
            if checkpoint:
                with torch.random.fork_rng(devices=[]):
                    model = AutoModelForCausalLM.from_config(config)
                load_weights(Path(name), model)
            else:
                model, loaded = AutoModelForCausalLM.from_pretrained(source, config=config, output_loading_info=True)
                if other := sorted([*loaded["missing_keys"], *loaded["unexpected_keys"]]) if fields else []:
                    raise InputError(f"config {fields} does not fit the weights ({other[0]}): give other fields")
    except InputError:
        raise
    except RuntimeError as error:
        if not fields:
            raise
        raise InputError(f"config {fields} does not fit the weights: give fields that change no sizes") from error
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"{name} cannot be loaded ({' '.join(str(error).split())}): give an intact model") from error
    known = about.get("tokenizer_fingerprint", tokenizer_fingerprint(tokenizer))
    if len(tokenizer) > config.vocab_size or tokenizer_fingerprint(tokenizer) != known:
        raise InputError(
            f"{name}: the tokenizer ({len(tokenizer)} tokens) is not the one the model ({config.vocab_size}) was "
            "trained with: put that one back"
        )
    return as_contract(model.to(device).eval()), tokenizer
