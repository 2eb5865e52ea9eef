"""Latent thought on a trained model: another checkpoint's weights inside a model of this library.

`mentalese grow BASE --family NAME` makes a checkpoint that `from_pretrained` opens; `train.init` starts a run from a
saved model, grown or not. A family that grows declares `Family.grow`, which makes sections of a recipe from a base's
config.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from mentalese.data.builtin import stdlib
from mentalese.data.layouts import Packed, layout_class
from mentalese.data.tokenizers import LATENT_MARKERS, MARKERS, add_markers, load_pretrained_tokenizer
from mentalese.errors import InputError, require
from mentalese.files import RECORD, JsonObject, check_files, check_folder_place, checksum, read_json, write_json
from mentalese.model_fields import config_class
from mentalese.models.base import LanguageModel, class_of
from mentalese.models.build import build_model, context_length
from mentalese.models.checkpoints import load_model, model_folder, model_to_save, save_model, trained_texts
from mentalese.models.config import LatentThoughtConfig
from mentalese.models.generation import ends
from mentalese.models.lora import WEIGHTS, add_adapters, load_adapter, merged_weights
from mentalese.models.places import places
from mentalese.packaged import cached_models, weights_digest
from mentalese.recipe import Recipe
from mentalese.recipe_files import HERE
from mentalese.registry import families, load

RECIPE = "recipe.json"
"""In a grown model's folder: a recipe that trains it."""
_TOKENS = 128
LIKENESS = "<<"
"""The token that begins a calculation; embeddings of latent positions start as its embedding (Coconut's release)."""


def grow(base: str, family: str, out: Path, *, seed: int = 0, **fields: object) -> None:
    """Write a model of `family` whose decoder is `base`, and a tokenizer with the markers it needs, into `out`.

    Weights are written in float32, in which training continues, and next to them a recipe that trains the model.

    Args:
        base: a folder that `save_pretrained` wrote, a run's folder, or `hub:NAME`.
        fields: values of the family's config.
        seed: seeds the weights that the base does not have.

    Raises:
        InputError: the family cannot grow or lacks a field, the base is not a plain decoder, or `out` is not empty.
    """
    declarations = families()
    growing = [name for name, declared in declarations.items() if declared.grow is not None]
    require(family in growing, "family", family, f"use one that grows on a trained model ({', '.join(growing)})")
    check_folder_place(out, "out")
    require(not (out.exists() and any(out.iterdir())), "out", str(out), "it is not empty, use another folder")
    inner, tokenizer = load_model(base)
    recipe = load(declarations[family].grow or "")(backbone_fields(inner.config), **fields)
    layout = {"kind": Packed.kind} | recipe.get("layout", {})
    config, mark = recipe["model"], layout_class(layout["kind"]).mark
    latents = "latent_token_id" in config_class(config["model_type"]).__dataclass_fields__
    marked = add_markers(tokenizer, latents=latents)
    if mark is not None and len(marked.encode(mark, add_special_tokens=False)) > 1:
        marked.add_tokens([mark])
    if (size := inner.get_input_embeddings().num_embeddings) > len(marked):  # tables are padded: Pythia's by 27 rows
        config.setdefault("vocab_size", size)
    model = build_model(config, marked, seed)
    start_from(model, marked, base, deepen=True)
    about: JsonObject = {"base": base} | ({"earlier": earlier} if (earlier := trained_texts(base)) else {})
    save_model(out, model, marked, **about)
    if (context := context_length(model.config)) is not None and context < Packed.sequence_length:
        layout["sequence_length"] = context
    training = {"init": HERE, "epochs": 1} | recipe.get("train", {})  # paths are relative to the recipe's folder
    sections = {"data": {"tokenizer": HERE}, "optimizer": {"learning_rate": 1e-4}, "train": training, "layout": layout}
    write_json(out / RECIPE, {"name": f"{family}/{out.name}", "description": "a grown model"} | recipe | sections)


def whole_model(folder: Path) -> Path:
    """Return the folder, in the cache, of the model that the adapters in `folder` and their base make together."""
    check_files(folder, "files")
    about = read_json(folder / RECORD)
    recipe = Recipe.from_dict(about["recipe"])
    base = recipe.train.init or ""
    require(bool(base), "train.init", base, f"the recipe in {folder} names no base; copy the folder again")
    of_base = () if base.startswith("hub:") else sorted(model_folder(base).glob("*.safetensors"))
    parts = [recipe.to_dict(), *map(weights_digest, (folder / WEIGHTS, *of_base))]  # a model is opened in several steps
    out = cached_models() / f"{folder.name}-{checksum({'parts': parts})[:16]}"
    if not out.exists():
        tokenizer = add_markers(load_pretrained_tokenizer(base), latents=recipe.layout.questions)
        model = adapted_model(recipe, tokenizer)
        load_adapter(folder, model)
        merged = model_to_save(model.config, merged_weights(model))
        facts = {name: about[name] for name in ("recipe", "step", "source_fingerprint", "earlier") if name in about}
        card = (folder / "README.md").read_text(encoding="utf-8") if (folder / "README.md").is_file() else None
        # Not replaced: another process may read its own.
        save_model(out, merged, tokenizer, adapted=model, card=card, replace=False, **facts)
    return out


def adapted_model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> LanguageModel:
    """Return the model with adapters that a run of the recipe begins from; it opens `train.init`."""
    model = build_model(recipe.model, tokenizer, recipe.train.seed)
    start_from(model, tokenizer, recipe.train.init or "")
    add_adapters(model, tokenizer, recipe.train)
    return model


@torch.no_grad()
def difference(base: str, grown: Path) -> float:
    """Return the largest difference of log-probabilities of the base's tokens, in nats, on an English text."""
    (first, tokenizer), (second, _) = load_model(base), load_model(grown)
    cut = {"truncation": True, "max_length": _TOKENS, "add_special_tokens": False}
    ids = torch.tensor([tokenizer(stdlib()[0].text, **cut)["input_ids"]])
    logits = [model.float()(ids).logits[..., : len(tokenizer)] for model in (first, second)]  # a base may be bfloat16
    before, after = (values.log_softmax(-1) for values in logits)
    return float((after - before).abs().max())


def backbone_fields(config: PreTrainedConfig) -> dict[str, object]:
    """Return a decoder's `model_type` and the fields that define it, without the fields of its vocabulary."""
    common = set(PreTrainedConfig.__dataclass_fields__) | {"vocab_size"}
    values = config.to_diff_dict()
    fields = {
        name: value for name, value in values.items() if name in config.__dataclass_fields__ and name not in common
    }
    return {"model_type": config.model_type, **fields, "tie_word_embeddings": config.tie_word_embeddings}


def start_from(model: LanguageModel, tokenizer: PreTrainedTokenizerBase, path: str, *, deepen: bool = False) -> None:
    """Copy the weights of a saved model into a new one of the same class, or into the decoder inside a new one.

    Embeddings are copied token by token; rows that belong to no token are copied as they are. A token that the saved
    model lacks starts as the mean of all, or of the tokens of its text, a latent marker as the token that begins a
    calculation, `<<`. Parts that the saved model lacks stay as they are, or start as the model's `start_from_backbone`
    sets them. If the saved model has several tokens that end a text, generation stops at each of them.

    Args:
        deepen: a decoder with more layers than the saved one starts as `_deepen` makes it, and is not refused.

    Raises:
        InputError: `load_model` raises it, or the tokenizer, the class or sizes of weights differ, or the decoder reads
            its weights in another way (heads, rotary positions, activation, norms, layers, ..).
    """
    whole: Any = model
    base: Any
    base, own_tokenizer = load_model(path)
    last = ends(base)
    target: Any = model if class_of(base) is class_of(model) else getattr(model, "backbone", model)
    remedy = f"it is a {type(base).__name__} and the model a {type(target).__name__}; use a checkpoint of that"
    require(class_of(base) is class_of(target), "train.init", path, remedy)
    if target is not model and hasattr(whole, "cut"):  # the model has some of its base's layers
        base = whole.cut(base)
    if deepen and target is model and base.config.num_hidden_layers < target.config.num_hidden_layers:
        _deepen(base, target.config.num_hidden_layers)
    old, new = (m.get_input_embeddings().num_embeddings for m in (base, target))
    rows = [[i] if i < old else [] for i in range(new)]
    rows[: len(tokenizer)] = _rows(tokenizer, own_tokenizer, path)
    head = base.get_output_embeddings()
    tables = {id(table) for table in (base.get_input_embeddings().weight, head.weight, getattr(head, "bias", None))}
    weights, parameters = base.state_dict(keep_vars=True), target.state_dict(keep_vars=True)
    for name, value in weights.items():
        here = tuple(parameters[name].shape) if name in parameters else "no such weights"
        if name not in parameters or (id(value) not in tables and tuple(value.shape) != here):
            raise _other_base(path, name, tuple(value.shape), here)
    inner: Any = [getattr(m, "backbone", m) for m in (target, base)]
    fields, theirs = (_read_by(m.config) for m in inner)
    if theirs.get("tie_word_embeddings"):  # an untied head may start as the embeddings
        fields.pop("tie_word_embeddings", None)
    for name in fields:
        if fields[name] != theirs.get(name):
            raise _other_base(path, name, theirs.get(name), fields[name])
    with torch.no_grad():
        for name, value in weights.items():
            if id(value) in tables:
                mean = value.mean(0)
                value = torch.stack([value[row].mean(0) if row else mean for row in rows])
            parameters[name].copy_(value)
        if target is not model and hasattr(whole, "start_from_backbone"):
            whole.start_from_backbone()
    ids, tokens = tokenizer.get_vocab(), own_tokenizer.convert_ids_to_tokens([*range(len(own_tokenizer))])
    names = {tokens[index] for index in last if index < len(tokens)}
    end_at(model, {tokenizer.eos_token_id, *(ids[name] for name in names if name in ids)})


def _other_base(path: str, name: str, there: object, here: object) -> InputError:
    remedy = "use a checkpoint of the recipe's own model, or set the same in its model"
    reason = f"which was made from another base: {name} is {there} there and {here} here"
    return InputError(f"train.init is {path!r}, {reason}; {remedy}", "train.init")


def _deepen(base: PreTrainedModel, layers: int) -> None:
    """Give a trained decoder this many layers, in place: copies of its first layers after the first one.

    ConceptLM's parameter-matched 8B begins like this (section 4.3); the copies are where its release has them.
    """
    name = places("model", base).layers
    layers_before = getattr(base.base_model, name)
    more = layers - len(layers_before)
    setattr(base.base_model, name, nn.ModuleList([*layers_before[:1], *layers_before[:more], *layers_before[1:]]))
    base.config.num_hidden_layers = layers
    if kinds := getattr(base.config, "layer_types", None):
        base.config.layer_types = kinds[:1] + kinds[:more] + kinds[1:]


def end_at(model: PreTrainedModel, tokens: Collection[int]) -> None:
    """Set these tokens as the model's ends of a text, if there are several; a single one is the tokenizer's."""
    if len(tokens) > 1:
        model.config.eos_token_id = model.generation_config.eos_token_id = sorted(tokens)


_FREE = {"vocab_size", "n_positions", "max_position_embeddings", "head_dim", "use_cache", "initializer_range"}
_FREE |= {"reorder_and_upcast_attn", "pretraining_tp", "is_decoder", "add_cross_attention"}
"""Fields of decoders that follow from the sizes of weights, or that have no effect."""
_SAME = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new"}
"""Pairs of names of the same activation."""


def _read_by(config: PreTrainedConfig) -> dict[str, object]:
    """Return the fields that decide how weights of equal sizes are read; of own models three of them."""
    if isinstance(config, LatentThoughtConfig):
        names = ["num_attention_heads", "rope_parameters", "tie_word_embeddings"]
    else:
        common = {*PreTrainedConfig.__dataclass_fields__, *_FREE}
        names = [
            name
            for name in config.__dataclass_fields__
            if name not in common and not re.search("drop|^summary_|_token_id$", name)
        ]
    values = {name: getattr(config, name, None) for name in names}
    return {name: _SAME.get(value, value) if isinstance(value, str) else value for name, value in values.items()}


def _rows(tokenizer: PreTrainedTokenizerBase, base: PreTrainedTokenizerBase, path: str) -> list[list[int]]:
    """Return for each token the base's tokens whose mean its embedding starts as; an empty list means all of them."""
    base_tokens, vocabulary = base.get_vocab(), tokenizer.get_vocab()
    words = {token.content for token in tokenizer.added_tokens_decoder.values() if not token.special}
    strange = vocabulary.keys() - base_tokens.keys() - {*MARKERS, *LATENT_MARKERS.values(), *words}
    remedy = f"its tokenizer lacks {len(strange)} tokens of data.tokenizer; set data.tokenizer to that model's own"
    require(not strange, "train.init", path, remedy)
    calculation = base(LIKENESS, add_special_tokens=False)["input_ids"]
    rows: list[list[int]] = [[] for _ in range(len(tokenizer))]
    for token, index in vocabulary.items():
        if token in base_tokens:
            rows[index] = [base_tokens[token]]
        elif token in LATENT_MARKERS.values():
            rows[index] = calculation
        elif token in words:
            rows[index] = base(token, add_special_tokens=False)["input_ids"]
    return rows
