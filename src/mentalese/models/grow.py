"""Latent thought on a trained model: another checkpoint's weights inside a model of ours.

`mentalese grow BASE --family NAME` makes a checkpoint that `from_pretrained` opens; `train.init` starts a run from a
saved model, grown or not. A family that grows declares `Family.grow`, which makes its config of a base's config.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from mentalese.data.layouts import Packed, QuestionAnswer
from mentalese.data.tokenizers import LATENT_MARKERS, MARKERS, add_markers
from mentalese.errors import InputError
from mentalese.files import check_folder_place, write_json
from mentalese.models.base import LanguageModel, class_of
from mentalese.models.build import build_model, config_class, context_length
from mentalese.models.checkpoints import load_model, save_model
from mentalese.models.config import LatentThoughtConfig
from mentalese.models.generation import ends
from mentalese.models.places import places
from mentalese.registry import families, load

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

RECIPE = "recipe.json"
"""In a grown model's folder: a recipe that trains it."""
LIKENESS = "<<"
"""The token whose embedding the tokens of latent positions start as (Coconut's release): it begins a calculation."""


def grow(base: str, family: str, out: Path, *, seed: int = 0, **fields: Any) -> None:
    """Write a model of `family` whose decoder is `base`, and a tokenizer with the markers it needs, into `out`.

    Weights are written in float32, in which training continues, and next to them a recipe that trains the model.

    Args:
        base: a folder that `save_pretrained` wrote, a run's folder, or `hub:NAME`.
        fields: values of the family's config.
        seed: of the weights that the base does not have.

    Raises:
        InputError: a family that grows on nothing, a field that it does not have, a base that is no plain decoder, or
            `out` is not empty.
    """
    known = families()
    growing = [name for name, declared in known.items() if declared.grow is not None]
    if family not in growing:
        raise InputError(f"family is {family!r}: use one that grows on a trained model ({', '.join(growing)})")
    check_folder_place(out, "out")
    if out.exists() and any(out.iterdir()):
        raise InputError(f"out is {str(out)!r}, which is not empty: use another folder")
    inner, tokenizer = load_model(base)
    config = load(known[family].grow or "")(backbone_fields(inner.config), **fields)
    latents = "latent_token_id" in config_class(config["model_type"]).__dataclass_fields__
    marked = add_markers(tokenizer, latents=latents)
    if (size := inner.get_input_embeddings().num_embeddings) > len(marked):  # tables are padded: Pythia's by 27 rows
        config.setdefault("vocab_size", size)
    model = build_model(config, marked, seed)
    start_from(model, marked, base, deepen=True)
    save_model(out, model, marked, base=base)
    write_json(out / RECIPE, _recipe(f"{family}/{out.name}", config, out, latents, context_length(model.config)))


def _recipe(name: str, model: dict[str, Any], out: Path, latents: bool, context: int | None) -> dict[str, Any]:
    """A recipe that trains the grown model on any text; one with latents on questions, which lose their steps epoch by
    epoch (Coconut's curriculum on GSM8K, an epoch a stage).
    """
    recipe: dict[str, Any] = {
        "name": name,
        "description": "a grown model",
        "model": model,
        "data": {"tokenizer": str(out)},
        "optimizer": {"learning_rate": 1e-4},
        "train": {"init": str(out), "epochs": 4 if latents else 1},
    }
    if latents:
        recipe["layout"] = {"kind": "qa", "stages": 3, "latents_per_step": 2}
        stages = enumerate((1, 2, 4), 1)  # the last has no steps at all
        recipe["phases"] = [
            {"start": epoch, "clock": "epochs", "layout": {"stage": stage}, "reset_optimizer": True}
            for epoch, stage in stages
        ]
        recipe["evaluation"] = {"metric": "accuracy"}
    layout = QuestionAnswer() if latents else Packed()
    if context is not None and context < layout.sequence_length:
        recipe["layout"] = {"kind": layout.kind, **recipe.get("layout", {}), "sequence_length": context}
    return recipe


def backbone_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """Return a decoder's `model_type` and the fields of its config that define it, without those of its vocabulary."""
    common = set(PreTrainedConfig.__dataclass_fields__) | {"vocab_size"}
    values = config.to_diff_dict()
    fields = {
        name: value for name, value in values.items() if name in config.__dataclass_fields__ and name not in common
    }
    return {"model_type": config.model_type, **fields, "tie_word_embeddings": config.tie_word_embeddings}


def start_from(model: LanguageModel, tokenizer: PreTrainedTokenizerBase, path: str, *, deepen: bool = False) -> None:
    """Copy the weights of a saved model into a new one of the same class, or into the decoder inside a new one.

    Embeddings are copied token by token, and rows of no token as they are. A token that the saved model lacks starts
    as the mean of all, a latent marker as the token that begins a calculation, `<<`. Parts that the saved model lacks
    stay as they are, or start as the model's `start_from_backbone` sets them. If the saved model's texts have several
    ends, generation stops at each of them.

    Args:
        deepen: a decoder with more layers than the saved one starts as `_deepen` has it, and is not refused.

    Raises:
        InputError: what `load_model` refuses, another tokenizer, another class, weights of other sizes, or a decoder
            that reads them in another way (heads, rotary positions, activation, norms, layers, ..).
    """
    whole: Any = model
    base: Any
    base, own_tokenizer = load_model(path)
    last = ends(base)
    target: Any = model if class_of(base) is class_of(model) else getattr(model, "backbone", model)
    if class_of(base) is not class_of(target):
        raise InputError(
            f"train.init is {path!r}, a {type(base).__name__}: the model is {_named(model)}; use a checkpoint of that"
        )
    if target is not model and hasattr(whole, "cut"):  # it has some of its base's layers
        base = whole.cut(base)
    if deepen and target is model and base.config.num_hidden_layers < target.config.num_hidden_layers:
        _deepen(base, target.config.num_hidden_layers)
    old, new = (m.get_input_embeddings().num_embeddings for m in (base, target))
    rows = [[i] if i < old else [] for i in range(new)]
    rows[: len(tokenizer)] = _rows(tokenizer, own_tokenizer, path)
    tables = {id(m.weight) for m in (base.get_input_embeddings(), base.get_output_embeddings())}
    weights, parameters = base.state_dict(keep_vars=True), target.state_dict(keep_vars=True)
    for name, value in weights.items():
        if name not in parameters or (id(value) not in tables and value.shape != parameters[name].shape):
            here = tuple(parameters[name].shape) if name in parameters else "no such weights"
            raise InputError(
                f"train.init is {path!r}, which was made from another base: {name} is {tuple(value.shape)} there and "
                f"{here} here; use a checkpoint of the recipe's own model, or grow one"
            )
    inner: Any = [getattr(m, "backbone", m) for m in (target, base)]
    fields, theirs = (_read_by(m.config) for m in inner)
    if theirs.get("tie_word_embeddings"):  # an untied head may start as the embeddings
        del fields["tie_word_embeddings"]
    for name in fields:
        if fields[name] != theirs.get(name):
            raise InputError(
                f"train.init is {path!r}, which was made from another base: {name} is {theirs.get(name)} there and "
                f"{fields[name]} here; set the same in the recipe's model"
            )
    with torch.no_grad():
        for name, value in weights.items():
            parameters[name].copy_(_embeddings(value, rows) if id(value) in tables else value)
        if target is not model and hasattr(whole, "start_from_backbone"):
            whole.start_from_backbone()
    ids, tokens = tokenizer.get_vocab(), own_tokenizer.convert_ids_to_tokens([*range(len(own_tokenizer))])
    names = {tokens[index] for index in last if index < len(tokens)}
    end_at(model, {tokenizer.eos_token_id, *(ids[name] for name in names if name in ids)})


def _deepen(base: PreTrainedModel, layers: int) -> None:
    """Give a trained decoder this many layers, in place: copies of its first ones after the first.

    So ConceptLM's parameter-matched 8B begins (section 4.3). The paper does not state where the copies are; its release
    has them in the place of the concept layers.
    """
    found = places("model", base).layers
    own = getattr(base.base_model, found)
    more = layers - len(own)
    setattr(base.base_model, found, nn.ModuleList([*own[:1], *own[:more], *own[1:]]))
    base.config.num_hidden_layers = layers
    if kinds := getattr(base.config, "layer_types", None):
        base.config.layer_types = kinds[:1] + kinds[:more] + kinds[1:]


def end_at(model: PreTrainedModel, tokens: Collection[int]) -> None:
    """Make these tokens the model's ends of a text, if there are several; one is the tokenizer's and known."""
    if len(tokens) > 1:
        model.config.eos_token_id = model.generation_config.eos_token_id = sorted(tokens)


_FREE = {"vocab_size", "n_positions", "max_position_embeddings", "head_dim", "use_cache", "initializer_range"}
_FREE |= {"reorder_and_upcast_attn", "pretraining_tp", "is_decoder", "add_cross_attention"}
"""Fields of decoders that follow from the sizes of weights, or that change nothing."""
_SAME = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new"}
"""Names of one activation."""


def _read_by(config: PreTrainedConfig) -> dict[str, Any]:
    """The config's fields that decide how weights of equal sizes are read. For our own models without a decoder inside
    these are the heads and rotary positions alone, since the others may change from run to run.
    """
    if isinstance(config, LatentThoughtConfig):
        names = ["num_attention_heads", "rope_parameters"]
    else:
        common = {*PreTrainedConfig.__dataclass_fields__, *_FREE}
        names = [
            name
            for name in config.__dataclass_fields__
            if name not in common and not re.search("drop|^summary_|_token_id$", name)
        ]
    values = {name: getattr(config, name, None) for name in names}
    return {name: _SAME.get(value, value) if isinstance(value, str) else value for name, value in values.items()}


def _named(model: nn.Module) -> str:
    inner = getattr(model, "backbone", None)
    return type(model).__name__ + (f" on {type(inner).__name__}" if inner is not None else "")


def _rows(tokenizer: PreTrainedTokenizerBase, base: PreTrainedTokenizerBase, path: str) -> list[list[int]]:
    """For each token the base's tokens whose mean its embedding starts as; no token means all of them."""
    known, vocabulary = base.get_vocab(), tokenizer.get_vocab()
    if strange := [
        token for token in vocabulary if token not in known and token not in (*MARKERS, *LATENT_MARKERS.values())
    ]:
        raise InputError(
            f"train.init is {path!r}, whose tokenizer lacks {len(strange)} tokens of data.tokenizer, as "
            f"{strange[0]!r}: set data.tokenizer to that model's own"
        )
    calculation = base(LIKENESS, add_special_tokens=False)["input_ids"]
    rows: list[list[int]] = [[] for _ in range(len(tokenizer))]
    for token, index in vocabulary.items():
        rows[index] = [known[token]] if token in known else calculation if token in LATENT_MARKERS.values() else []
    return rows


def _embeddings(table: Tensor, rows: list[list[int]]) -> Tensor:
    mean = table.mean(0)
    return torch.stack([table[row].mean(0) if row else mean for row in rows])
