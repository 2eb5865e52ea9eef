"""Trained models on disk: saved whole, opened with their tokenizer and checked against what was saved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from mentalese.data.tokenizers import load_pretrained_tokenizer, tokenizer_fingerprint
from mentalese.errors import InputError, nearest
from mentalese.files import sha256, whole_folder, write_json
from mentalese.models.adapter import as_contract
from mentalese.models.contract import Contract
from mentalese.models.tensor_files import is_checkpoint, load_weights
from mentalese.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hides transformers' own progress bars inside the block: ours show what takes long."""
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
        folder: replaced as a whole if it exists.
        about: JSON-ready facts about the weights (the recipe, the step).

    Raises:
        InputError: the disk is full or the folder cannot be written; its previous content stays.
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
    inside = (Path(path).absolute().parents[1] if is_checkpoint(path) else Path(path)) / "model"
    return inside if (inside / "config.json").is_file() else Path(path)


def saved_about(path: str | Path) -> dict[str, Any]:
    """The content of `mentalese.json` next to a model's weights; empty for models saved by another project."""
    file = model_folder(path) / "mentalese.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def saved_recipe(path: str | Path) -> Recipe | None:
    """The recipe that a saved model was trained with; `None` if its folder contains none."""
    about = saved_about(path)
    return Recipe.from_dict(about["recipe"]) if "recipe" in about else None


def with_fields(config: Any, fields: dict[str, Any]) -> Any:
    """The config with other values, checked like a new one."""
    known = [field for field in config.__dataclass_fields__ if field not in PreTrainedConfig.__dataclass_fields__]
    for name in fields:
        if name not in known:
            raise InputError(f"config.{name}: {config.model_type} has no such field{nearest(name, known)}")
    return type(config).from_dict(config.to_dict() | fields) if fields else config


def load_model(
    path: str | Path, device: str | torch.device = "cpu", *, fields: dict[str, Any] | None = None
) -> tuple[Contract, PreTrainedTokenizerBase]:
    """A trained model that keeps the contract, in eval mode, and its tokenizer.

    Args:
        path: a folder written by `save_pretrained` or by a run (its `model/` is found), `hub:NAME`, or a checkpoint
            `RUN/checkpoints/step-*`, whose weights are used instead of those in `RUN/model`.
        fields: other values of fields of its config, as far as the weights allow.

    Raises:
        InputError: there is no model, its weights are damaged, its tokenizer is not the one it was trained with, or
            its config has no such field.
    """
    name, checkpoint = str(path), is_checkpoint(path)
    source = name.removeprefix("hub:") if name.startswith("hub:") else str(model_folder(path))
    if not name.startswith("hub:") and not (Path(source) / "config.json").is_file():
        if checkpoint:
            raise InputError(f"{name} is in a run that has no model/ yet: wait for its first validation")
        raise InputError(f"{name} contains no model (no config.json): use the folder of a run or of a saved model")
    about = saved_about(path)
    for file, expected in ({} if checkpoint else about.get("weights", {})).items():
        weights = Path(source) / file
        if not weights.is_file() or sha256(weights) != expected:
            raise InputError(f"{weights} is missing or has changed since it was saved: copy it again, or train again")
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
                    raise InputError(f"config {fields} does not fit the weights ({other[0]}): set other fields")
    except InputError:
        raise
    except RuntimeError as error:
        if not fields:
            raise
        raise InputError(f"config {fields} does not fit the weights: set fields that change no sizes") from error
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"{name} cannot be loaded ({' '.join(str(error).split())}): use an intact model") from error
    known = about.get("tokenizer_fingerprint", tokenizer_fingerprint(tokenizer))
    if len(tokenizer) > config.vocab_size or tokenizer_fingerprint(tokenizer) != known:
        raise InputError(
            f"{name}: the tokenizer ({len(tokenizer)} tokens) is not the one the model ({config.vocab_size}) was "
            "trained with: restore that one"
        )
    return as_contract(model.to(device).eval()), tokenizer
