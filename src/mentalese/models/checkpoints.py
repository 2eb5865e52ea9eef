"""Trained models on disk: saved as a whole, opened with their tokenizer and checked against recorded hashes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    logging,
)

from mentalese.data.config import DataConfig
from mentalese.data.layouts import Layout
from mentalese.data.tokenizers import load_pretrained_tokenizer, tokenizer_fingerprint
from mentalese.errors import InputError, require
from mentalese.files import (
    RECORD,
    JsonObject,
    check_files,
    file_hashes,
    read_json,
    sealed,
    sha256,
    whole_folder,
    write_json,
)
from mentalese.model_fields import model_fields
from mentalese.models.base import LanguageModel, as_model
from mentalese.models.build import as_is, context_length
from mentalese.models.config import check_fields
from mentalese.models.lora import FOLDER, WEIGHTS, merged_weights, save_adapter
from mentalese.models.tensor_files import checkpoint_info, is_checkpoint, load_weights
from mentalese.models.text_tokenizer import ABOUT, mask_token_id, text_tokenizer
from mentalese.network import hub_or_cache
from mentalese.packaged import packaged
from mentalese.recipe import Recipe
from mentalese.values import Place, checked

C = TypeVar("C", bound=PreTrainedConfig)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide transformers' progress bars inside the block: the library's own bars show the progress."""
    is_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if is_enabled:
            logging.enable_progress_bar()


def save_model(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    adapted: LanguageModel | None = None,
    card: str | None = None,
    replace: bool = True,
    **about: Any,
) -> None:
    """Write a checkpoint that `from_pretrained` opens, a tokenizer that reads as the model, and `mentalese.json`.

    Args:
        folder: replaced as a whole if it exists; if it cannot be written, its previous content stays.
        replace: `False`: a folder that exists by the end stays, and the new one goes.
        adapted: the model with the adapters that are merged into `model`; the adapters are also saved separately.
        card: the content of `README.md`.
        about: JSON-ready facts about the weights (the recipe, the step).
    """
    with whole_folder(folder, replace=replace) as temporary, quiet_transformers():
        model.save_pretrained(temporary)
        reading_tokenizer(tokenizer, model, about).save_pretrained(temporary)
        if adapted is not None:
            save_adapter(temporary / FOLDER, adapted, str(about["recipe"]["train"]["init"]))
        if card is not None:
            (temporary / "README.md").write_text(card, encoding="utf-8")
        write_about(temporary, tokenizer, about)


def model_to_save(config: PreTrainedConfig, weights: dict[str, Tensor]) -> PreTrainedModel:
    """Return a model for `save_model` that shares the tensors given; what a checkpoint does not store is left out."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    return model


def write_about(folder: Path, tokenizer: PreTrainedTokenizerBase, about: dict[str, object]) -> None:
    """Write `mentalese.json` next to a model and its tokenizer."""
    weights = {path.name: sha256(path) for path in sorted(folder.glob("*.safetensors"))}
    facts = {"tokenizer_fingerprint": tokenizer_fingerprint(tokenizer), "weights": weights}
    if files := sorted((folder / FOLDER).glob("adapter_*")):
        facts["adapter"] = {f"{FOLDER}/{path.name}": sha256(path) for path in files}
    write_json(folder / RECORD, sealed(about | facts | {"files": file_hashes(folder)}))


def reading_tokenizer(
    tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, about: JsonObject
) -> PreTrainedTokenizerBase:
    """Return the tokenizer by which `load` would read texts for this model; it carries `about` if it is saved again."""
    layout: Layout = as_is(model.config)
    data = DataConfig()
    if "recipe" in about:
        recipe = Recipe.from_dict(about["recipe"])
        layout, data = recipe.layout, recipe.data
    context = context_length(model.config) or (layout.sequence_length if "recipe" in about else None)
    mask = mask_token_id(model)
    return text_tokenizer(tokenizer, layout, data, mask_token_id=mask, model_max_length=context, about=about)


def model_folder(path: str | Path) -> Path:
    """Return the `model/` of a run's folder or checkpoint, the folder of `models:NAME`, or the folder itself."""
    if (folder := packaged(path)) is not None:
        if (folder / "config.json").is_file():
            return folder
        from mentalese.models.grow import whole_model

        return whole_model(folder)
    inside = (Path(path).absolute().parents[1] if is_checkpoint(path) else Path(path)) / "model"
    return inside if (inside / "config.json").is_file() else Path(path)


def adapter_folder(path: str | Path) -> Path:
    """Return the folder of a saved model's adapters; raise `InputError` if there are none, or they are damaged."""
    model = model_folder(path)
    whole = "adapters are saved with the best model; use the run's folder"
    require(not is_checkpoint(path), "train.adapter", str(path), whole)
    remedy = "it has no adapters; use a model trained with them"
    require((model / FOLDER / WEIGHTS).is_file(), "train.adapter", str(path), remedy)
    check_files(model, "adapter")
    return model / FOLDER


def check_model(path: str | Path) -> None:
    """Raise `InputError` if a folder contains no model; models at the hub are not checked."""
    folder = model_folder(path)
    config = folder / "config.json"
    is_run = folder == Path(path) and config.is_file() and b'"recipe"' in config.read_bytes()
    if str(path).startswith("hub:") or (config.is_file() and not is_run):
        return
    problem = f"{path} contains no model (no config.json): use the folder of a run or a model, models:NAME or hub:NAME"
    if is_checkpoint(path) or is_run:
        problem = f"{path} is of a run that has no model/ yet: wait for its first validation"
    raise InputError(problem)


def saved_about(path: str | Path) -> JsonObject:
    """Return the facts in a saved model's `mentalese.json`, or else in its tokenizer; empty for other projects'."""
    if (file := _saved_file(path, RECORD)) is not None:
        return read_json(file)
    if (file := _saved_file(path, "tokenizer_config.json")) is None:
        return {}
    return checked(f"{file}: {ABOUT}", JsonObject, read_json(file).get(ABOUT, {}))


def _saved_file(path: str | Path, name: str) -> Path | None:
    """Return a file in a saved model's folder or in its repository at the hub; `None` if there is none."""
    if not str(path).startswith("hub:"):
        file = model_folder(path) / name
        return file if file.is_file() else None
    with hub_or_cache("MODEL", str(path)) as reachable:
        try:
            return Path(hf_hub_download(str(path).removeprefix("hub:"), name))
        except EntryNotFoundError as error:
            if reachable and isinstance(error, LocalEntryNotFoundError):  # the connection broke
                raise
            return None


def saved_recipe(path: str | Path) -> Recipe | None:
    """Return the recipe that a saved model was trained with, a checkpoint's as of its step; `None` without one."""
    about = saved_about(path) | _checkpoint_info(path)
    return Recipe.from_dict(about["recipe"]) if "recipe" in about else None


def trained_texts(*paths: str | Path | None) -> list[JsonObject]:
    """Return the texts on which saved models, and the models that they started from, were trained.

    Each has `data`, the fields of a `DataConfig`, and `source_fingerprint`. A path may be `None`.
    """
    texts = list[JsonObject]()
    for path in (path for path in paths if path is not None):
        about, recipe = saved_about(path), saved_recipe(path)
        if recipe is not None:
            data = dataclasses.asdict(recipe.data)
            texts.append({"data": data, "source_fingerprint": about.get("source_fingerprint")})
        texts += about.get("earlier", [])
    return texts


def text_facts(recipe: Recipe, source_fingerprint: str) -> JsonObject:
    """Return what `save_model` notes of the texts of a training, and of the models that it started from."""
    earlier = trained_texts(recipe.train.adapter, recipe.train.init)
    return {"source_fingerprint": source_fingerprint} | ({"earlier": earlier} if earlier else {})


def _checkpoint_info(path: str | Path) -> JsonObject:
    """Return what a checkpoint says of its step; empty for a saved model."""
    return checkpoint_info(Path(path)) if is_checkpoint(path) else {}


def with_fields(config: C, fields: Mapping[str, object]) -> C:
    """Return the config with other values, checked like a new one."""
    check_fields("config", type(config), checked("config", dict, fields))
    known = model_fields(config.model_type) if fields else {}
    read = {name: known[name].read("config", value) if name in known else value for name, value in fields.items()}
    return type(config).from_dict(config.to_dict() | read) if fields else config


def load_model(
    path: str | Path, device: str | torch.device = "cpu", *, fields: Mapping[str, object] | None = None
) -> tuple[LanguageModel, PreTrainedTokenizerBase]:
    """Return a trained model, in eval mode, and its tokenizer.

    Args:
        path: see `mentalese.load`; of a checkpoint the weights are used instead of those in `RUN/model`.
        fields: other values of fields of its config, as far as the weights allow.

    Raises:
        InputError: there is no model, its weights are damaged, its tokenizer is not the one it was trained with, or
            its config has no such field.
    """
    path = path if isinstance(path, str) and path.startswith("hub:") else checked("path", Place, path)
    name, checkpoint = str(path), is_checkpoint(path)
    at_hub = name.startswith("hub:")
    source = name.removeprefix("hub:") if at_hub else str(model_folder(path))
    check_model(path)
    if not at_hub:
        check_files(model_folder(path), "files", *([] if checkpoint else ["weights"]))
    try:
        with quiet_transformers(), hub_or_cache("MODEL", name) if at_hub else nullcontext():
            config = with_fields(AutoConfig.from_pretrained(source, trust_remote_code=False), fields or {})
            if not hasattr(config, "vocab_size"):
                raise InputError(
                    f"{name} also reads other media than text ({config.model_type}): use a model of text only"
                )
            if not at_hub:
                _check_no_pickle(Path(source), config)
            tokenizer = load_pretrained_tokenizer(name if at_hub else source, check=False)
            about = saved_about(path)
            if checkpoint:
                model = _from_checkpoint(Path(name), config, tokenizer)
            else:
                opened: Any = AutoModelForCausalLM.from_pretrained(
                    source, config=config, output_loading_info=True, trust_remote_code=False, use_safetensors=True
                )
                model, loaded = opened
                if fields and (other := sorted([*loaded["missing_keys"], *loaded["unexpected_keys"]])):
                    raise InputError(f"config {fields} does not fit the weights ({other[0]}): set other fields")
                if missing := sorted(loaded["missing_keys"]):  # transformers draws them at random
                    raise InputError(f"{name} lacks {len(missing)} weights (first {missing[0]}): use a whole model")
    except InputError:
        raise
    except Exception as error:  # other projects' readers raise errors of many types for damaged files
        reason = " ".join(str(error).split())
        problem = f"{name} cannot be loaded ({reason}): use an intact model"
        if fields and isinstance(error, RuntimeError):
            problem = f"config {fields} does not fit the weights: set fields that change no sizes"
        elif "trust_remote_code" in reason:
            problem = f"{name} is defined by code of its own, which is not run: use one that is installed"
        raise InputError(problem) from error
    fingerprint = about.get("tokenizer_fingerprint", tokenizer_fingerprint(tokenizer))
    if len(tokenizer) > config.vocab_size or tokenizer_fingerprint(tokenizer) != fingerprint:
        there, here = len(tokenizer), config.vocab_size
        problem = f"the tokenizer ({there} tokens) is not the one the model ({here}) was trained with"
        raise InputError(f"{name}: {problem}: restore that one")
    try:
        device = torch.device(device)
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:  # no such device, driver or index
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"device is {str(device)!r}: use one that is there, e.g. 'cpu' ({reason})") from error
    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    for weight, value in model.named_parameters():
        # A sum in float64 of finite floats is finite, and needs no second tensor of the same size.
        if value.dtype in kinds and not bool(value.detach().sum(dtype=torch.float64).isfinite()):
            raise InputError(f"{name}: the weight {weight} is not finite (NaN or infinite): use another checkpoint")
    return as_model(model).to(device).eval(), tokenizer


def _check_no_pickle(folder: Path, config: PreTrainedConfig) -> None:
    """Raise `InputError` where transformers would read weights from a pickle, which may contain code."""
    named = [getattr(config, "transformers_weights", None)]
    if (index := folder / "model.safetensors.index.json").is_file():
        named += dict(read_json(index).get("weight_map", {})).values()
    if (folder / "adapter_config.json").is_file() and not (folder / "adapter_model.safetensors").is_file():
        named.append("adapter_model.bin")
    if not any(folder.glob("*.safetensors")):
        named += sorted(file.name for file in folder.glob("pytorch_model*.bin"))
    for name in named:
        if name is not None and not name.endswith((".safetensors", ".safetensors.index.json")):
            raise InputError(f"{folder / name} is a pickle, which may contain code: save the weights as safetensors")


def _from_checkpoint(path: Path, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Return the model with a checkpoint's weights; adapters are merged into them."""
    from mentalese.models.grow import adapted_model

    with torch.random.fork_rng(devices=[]):
        model, recipe = AutoModelForCausalLM.from_config(config, trust_remote_code=False), saved_recipe(path)
    if (settings := _checkpoint_info(path).get("settings")) is not None:
        as_model(model).keep_settings(settings)
    if recipe is None or recipe.train.lora_rank is None:
        load_weights(path, model)
        return model
    adapted = adapted_model(recipe, tokenizer)
    load_weights(path, adapted)
    model.load_state_dict(merged_weights(adapted))
    return model
