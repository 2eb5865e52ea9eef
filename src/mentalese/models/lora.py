"""LoRA (Hu et al., 2021) through PEFT: small trained maps next to a decoder's own maps, which stay as they are.

Three kinds of weights are trained:

    adapters    on linear maps of the decoder: W x + (alpha / rank) B A x
    new rows    of embeddings and head, for the markers that the library adds to a tokenizer
    new parts   everything that a family adds to its `backbone` (gates, concept layers, codebooks), in full

Without a `backbone`, the model as a whole is the decoder. On disk, a trained model is an ordinary one, with adapters
merged into its weights. The folder `adapter/` next to them contains only the trained weights, in PEFT's format.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from packaging.version import Version
from torch import Tensor, nn
from transformers import Conv1D, PreTrainedModel, PreTrainedTokenizerBase

from mentalese.data.tokenizers import LATENT_MARKERS, MARKERS
from mentalese.errors import InputError, nearest, require
from mentalese.files import read_json
from mentalese.install import install_command
from mentalese.models.base import LanguageModel
from mentalese.models.tensor_files import digest
from mentalese.nn.linear import PatchedMatrix
from mentalese.recipe import TrainConfig

FOLDER = "adapter"
"""In a saved model's folder."""
_LEAST = "0.20"  # earlier versions do not train new rows of a tied head
_NAME = "default"  # PEFT's name for a single adapter
_INSIDE = "base_model.model."  # before each name in its files
_DIGESTS: WeakKeyDictionary[LanguageModel, str] = WeakKeyDictionary()
_BASE = "base_sha256"  # in the metadata of its files: the digest of the weights that have adapters
WEIGHTS = "adapter_model.safetensors"
"""In the folder of adapters."""

BACKBONE_TARGETS = ("c_attn", "query_key_value", "qkv_proj", "q_proj", "v_proj")
"""The maps that PEFT adapts in transformers' decoders; a decoder has one or two of these names."""


def adapt_by_default(model_type: str, names: Sequence[str]) -> None:
    """Give PEFT, if it is installed, the names of the maps to adapt in models of this type."""
    if find_spec("peft"):
        from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

        TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING[model_type] = list(names)


def add_adapters(model: LanguageModel, tokenizer: PreTrainedTokenizerBase, train: TrainConfig) -> None:
    """Add adapters to a model in place, without effect before training, and freeze all other weights.

    It does nothing if `train.lora_rank` is `None`, and raises `InputError` without PEFT or for an unknown target.
    """
    if train.lora_rank is None:
        return
    version = next((found.version for found in distributions(name="peft")), None)
    remedy = f"LoRA needs PEFT {_LEAST} or newer and finds {version or 'none'}: {install_command('lora')}"
    require(version is not None and Version(version) >= Version(_LEAST), "train.lora_rank", train.lora_rank, remedy)
    import peft

    embeddings, head, prefix = model.get_input_embeddings(), model.get_output_embeddings(), _prefix(model)
    maps: dict[str, nn.Module] = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, Conv1D)) and module is not head and name.startswith(prefix)
    }
    targets = _targets(maps, train.lora_targets)
    # The library's markers get new rows of the embeddings and, if it is another table, of the head.
    vocabulary = tokenizer.get_vocab()
    markers = sorted(vocabulary[name] for name in (*MARKERS, *LATENT_MARKERS.values()) if name in vocabulary)
    tables = [embeddings] if head.weight is embeddings.weight else [embeddings, head]
    names = {module: name for name, module in model.named_modules()}
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=train.lora_rank,
        lora_alpha=2 * train.lora_rank if train.lora_alpha is None else train.lora_alpha,
        target_modules=rf"{re.escape(prefix)}(.*\.)?({'|'.join(map(re.escape, targets))})",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in maps.values()),
        trainable_token_indices={names[table]: markers for table in tables} if markers else None,
    )
    new = _new_modules(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(train.seed)
        peft.inject_adapter_in_model(config, model)
    for name in new:  # PEFT itself would train copies of them
        model.get_submodule(name).requires_grad_(True)
    model.peft_config[_NAME].modules_to_save = new or None
    _compute_rows_only(model)


def _compute_rows_only(model: LanguageModel) -> None:
    """Let layers of new rows compute with these rows: PEFT's copy the whole table in each call, and its gradient."""
    from peft.tuners.trainable_tokens.layer import TrainableTokensLayer

    class Rows(TrainableTokensLayer):
        def patched_matrix(self) -> PatchedMatrix | None:
            has_bias = getattr(self.get_base_layer(), "bias", None) is not None
            return None if has_bias else self.with_rows()

        def with_rows(self) -> PatchedMatrix | None:
            if self.disable_adapters or self.merged:
                return None
            matrix: Any = self.get_base_layer().weight
            rows = torch.tensor(self.token_indices[_NAME], device=matrix.device)
            return PatchedMatrix(matrix, rows, self.trainable_tokens_delta[_NAME].to(matrix))

        def forward_adapters(self, x: Tensor, active_adapters: list[str], *args: Any, **kwargs: Any) -> Tensor:
            patched, layer = self.with_rows(), self.get_base_layer()
            if patched is None:
                return super().forward_adapters(x, active_adapters, *args, **kwargs)
            computed, (_, rows, values) = layer(x, *args, **kwargs), patched
            assert rows is not None
            assert values is not None
            if isinstance(layer, nn.Linear):
                bias = None if layer.bias is None else layer.bias[rows]
                return computed.index_copy(-1, rows, nn.functional.linear(x, values, bias).to(computed.dtype))
            own = x[..., None].eq(rows)
            new = nn.functional.embedding(own.int().argmax(-1), values)
            return torch.where(own.any(-1, keepdim=True), new, computed)

    for module in model.modules():
        if type(module) is TrainableTokensLayer and not hasattr(module.get_base_layer(), "embed_scale"):
            module.__class__ = Rows


def merged_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights of the model without adapters, on the CPU, by name; the model itself stays as it is."""
    from peft.tuners.lora import LoraLayer
    from peft.utils.other import TrainableTokensWrapper

    merged: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, LoraLayer):
                layer: Any = module
                merged[f"{name}.weight"] = (layer.get_base_layer().weight + layer.get_delta_weight(_NAME)).cpu()
            elif isinstance(module, TrainableTokensWrapper):
                merged[f"{name}.weight"] = module.weight.cpu()
    weights = {}
    for name, value in model.state_dict().items():
        plain = re.sub(r"(\.token_adapter)?\.base_layer\.", ".", name)
        if not re.search(r"\.lora_[AB]\.|\.trainable_tokens_\w+\.", name):
            weights[plain] = merged.get(plain, value).detach().cpu()
    return weights


def save_adapter(folder: Path, model: LanguageModel, base: str) -> None:
    """Write the trained weights as `PeftModel.from_pretrained(base, folder)` opens them."""
    from safetensors.torch import save_file

    config = model.peft_config[_NAME]
    config.base_model_name_or_path, config.inference_mode = base, True
    config.save_pretrained(folder)
    saved = {f"{_INSIDE}{name}": value.detach().cpu().contiguous() for name, value in _trained(model).items()}
    save_file(saved, folder / WEIGHTS, metadata={"format": "pt", _BASE: _base_digest(model)})


def load_adapter(folder: Path, model: LanguageModel) -> None:
    """Set a model's adapters to those that `save_adapter` wrote, and the family's own parts if both have them.

    Raises:
        InputError: rank, scale, targets or markers differ, or the adapters belong to another decoder.
    """
    from safetensors import SafetensorError, safe_open

    config, saved = model.peft_config[_NAME], read_json(folder / "adapter_config.json")
    rows = list((config.trainable_token_indices or {}).values())
    for name, theirs, own in (
        ("lora_rank", saved["r"], config.r),
        ("lora_alpha", saved["lora_alpha"], config.lora_alpha),
        ("markers", [*(saved["trainable_token_indices"] or {}).values()], rows),
    ):
        remedy = f"its adapters have {name} {theirs} and the run's {own}; use adapters of the same kind"
        require(theirs == own, "train.adapter", str(folder), remedy)
    try:
        with safe_open(folder / WEIGHTS, "pt") as file:
            tensors = {_of_decoder(name): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            base = (file.metadata() or {}).get(_BASE)
    except SafetensorError as error:
        raise InputError(f"{folder / WEIGHTS} cannot be read ({error}): use an intact copy") from error
    parameters = {_of_decoder(name): value for name, value in _trained(model).items()}
    unknown = sorted(tensors.keys() - parameters.keys())
    unknown += sorted(name for name in parameters.keys() - tensors.keys() if ".lora_" in name)
    unknown += sorted(
        name for name, value in tensors.items() if name in parameters and value.shape != parameters[name].shape
    )
    remedy = "its adapters are of another decoder, other targets or a family that trains more beside them "
    remedy += f"({', '.join(unknown[:1])}); use the same"
    require(not unknown, "train.adapter", str(folder), remedy)
    remedy = "its adapters were trained on other weights than train.init has; use adapters of the same base"
    require(base in (None, _base_digest(model)), "train.adapter", str(folder), remedy)
    with torch.no_grad():
        for name, value in tensors.items():
            parameters[name].copy_(value)


def _base_digest(model: LanguageModel) -> str:
    """Return the SHA-256 of the weights that have adapters, which is the same for all families on one base."""
    from peft.tuners.lora import LoraLayer

    if model not in _DIGESTS:  # they are fixed, and read at each validation that saves the model
        layers: list[Any] = [module for module in model.modules() if isinstance(module, LoraLayer)]
        _DIGESTS[model] = digest({str(i): layer.get_base_layer().weight.detach() for i, layer in enumerate(layers)})
    return _DIGESTS[model]


def _of_decoder(name: str) -> str:
    """Return a weight's name without what is around the decoder."""
    return name.removeprefix(_INSIDE).removeprefix("backbone.")


def _trained(model: LanguageModel) -> dict[str, Tensor]:
    """Return adapters, new rows and new parts of the model, by the names that PEFT saves them by."""
    adapters = {name: p for name, p in model.named_parameters() if p.requires_grad and f".{_NAME}" in name}
    tensors: dict[str, Tensor] = {name.replace(f".{_NAME}", ""): parameter for name, parameter in adapters.items()}
    for name in model.peft_config[_NAME].modules_to_save or ():
        tensors |= model.get_submodule(name).state_dict(prefix=f"{name}.")
    return tensors


def _prefix(model: PreTrainedModel) -> str:
    """Return the prefix of the names of the decoder's modules."""
    return "backbone." if hasattr(model, "backbone") else ""


def _targets(maps: dict[str, nn.Module], asked: tuple[str, ...]) -> list[str]:
    """Return the last parts of the names of the maps that get adapters."""
    names = sorted({name.rpartition(".")[2] for name in maps})
    for name in asked:
        remedy = f"use linear maps of the decoder ({', '.join(names)}), without the head{nearest(name, names)}"
        require(name in names, "train.lora_targets", name, remedy)
    return list(asked) or names


def _new_modules(model: PreTrainedModel) -> list[str]:
    """Return the modules that a family adds to its decoder; lists are resolved into members, as PEFT saves modules."""

    def parts(name: str, module: nn.Module) -> list[str]:
        if isinstance(module, nn.ModuleList | nn.ModuleDict):
            return [part for key, child in module.named_children() for part in parts(f"{name}.{key}", child)]
        return [name]

    if not _prefix(model):
        return []
    for name, _ in model.named_parameters(recurse=False):
        raise InputError(f"train.lora_rank is set and {type(model).__name__}.{name} is in no module: put it into one")
    added: dict[str, nn.Module] = {name: module for name, module in model.named_children() if name != "backbone"}
    return [part for name, module in added.items() for part in parts(name, module)]
