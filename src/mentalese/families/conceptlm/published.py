"""Conversion of the authors' published checkpoints (LUMIA-Group/ConceptLM: Pythia-410M, Llama-3.1-8B).

    convert("their-folder", "conceptlm-pythia-410m")

Their weights are the backbone's, split into `encoder` and `decoder`, the concept layers (`hlm`, `hlm_layers`), one head
per segment (`ctx_lm_head`) and one SimVQ module per segment (`vqs`). Names are as in the release's model files and
of `vector_quantize_pytorch`. Settings of their configs that this library does not compute raise an error.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from mentalese.data.tokenizers import load_pretrained_tokenizer
from mentalese.errors import InputError, require
from mentalese.families.conceptlm.config import ConceptLMConfig
from mentalese.files import read_json, whole_folder
from mentalese.models.grow import backbone_fields

if TYPE_CHECKING:
    from mentalese.families.conceptlm.model import ConceptLMForCausalLM

_NAMES = {
    "gpt_neox": {
        r"embed_in\.(.+)": r"backbone.gpt_neox.embed_in.\1",
        r"final_layer_norm\.(.+)": r"backbone.gpt_neox.final_layer_norm.\1",
        r"hlm\.transformer\.(.+)": r"concept_layers.\1",
        r"hlm\.layer_norm\.(.+)": r"concept_norm.\1",
    },
    "llama": {
        r"embed_tokens\.(.+)": r"backbone.model.embed_tokens.\1",
        r"norm\.(.+)": r"backbone.model.norm.\1",
        r"hlm_layers\.(.+)": r"concept_layers.\1",
    },
}
"""By `model_type`: their names, without the `model.` of Llama, and ours."""
_LAYERS = {"gpt_neox": "backbone.gpt_neox.layers", "llama": "backbone.model.layers"}
_SEGMENTS = {
    "ctx_lm_head.weight": "heads.weight",
    "ctx_lm_head.bias": "heads.bias",
    "vqs.frozen_codebook": "codebook.frozen",
    "vqs.code_transform.0.weight": "codebook.up",
    "vqs.code_transform.0.bias": "codebook.up_bias",
    "vqs.code_transform.2.weight": "codebook.down",
    "vqs.code_transform.2.bias": "codebook.down_bias",
}
"""Names of weights that the release has for each segment, and ours for all segments."""
_NOT_WEIGHTS = re.compile(r"cached_\w+|.*\.(masked_bias|attention\.bias|inv_freq)")
"""Buffers that are made again: a cache, causal masks, rotary frequencies."""
_NEEDED = ("encoder_layers", "decoder_layers", "special_layers", "chunk_size", "vq_config")
_COMPUTED = {"distribution_merge": True, "shift_feature": True, "chunk_merge_method": "meanpooling"}
_COMPUTED |= {"layer_norm_option": "rawadd"}


def convert(folder: str | Path, out: str | Path) -> ConceptLMForCausalLM:
    """Write the model of a published folder with its tokenizer to `out`; weights keep their precision.

    Returns:
        The model without the buffers that are not saved; open it from `out` to use it.

    Raises:
        InputError: no such folder, another kind of model, a setting that is not computed here, weights that are
            missing or that have no place, or `out` is not empty.
    """
    folder, out = Path(folder), Path(out)
    files = sorted(folder.glob("*.safetensors"))
    whole = (folder / "config.json").is_file() and bool(files)
    remedy = "it has no config.json or no *.safetensors, use the folder of a published ConceptLM"
    require(whole, "folder", str(folder), remedy)
    free = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    require(free, "out", str(out), "it is not empty, use another folder")
    theirs = read_json(folder / "config.json")
    state: dict[str, Tensor] = {}
    for file in files:
        state |= load_file(file)
    config = _config(theirs, tied=not {"embed_out.weight", "lm_head.weight"} & state.keys())
    with torch.device("meta"):
        model: ConceptLMForCausalLM = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    names = {module: name for name, module in model.named_modules()}
    head, embeddings = (f"{names[m]}.weight" for m in (model.get_output_embeddings(), model.get_input_embeddings()))
    try:
        converted = weights(state, theirs, head)
        if config.tie_word_embeddings and embeddings in converted:
            converted[head] = converted[embeddings]
        model.load_state_dict(converted, assign=True)
    except RuntimeError as error:
        why = " ".join(str(error).split())
        raise InputError(
            f"{folder}: {why} Use all weights of a published ConceptLM, and its own config.json"
        ) from error
    model.tie_weights()
    with whole_folder(out, replace=False) as temporary:
        model.save_pretrained(temporary)
        load_pretrained_tokenizer(str(folder)).save_pretrained(temporary)
    return model


def _config(theirs: dict[str, Any], *, tied: bool) -> ConceptLMConfig:
    """Return the config for a published one; raise `InputError` for settings that are not computed here."""
    kind = str(theirs.get("model_type"))
    require(kind in _NAMES, "config.json: model_type", kind, f"use a published model of {' or '.join(_NAMES)}")
    for name in _NEEDED:
        require(name in theirs, f"config.json: {name}", None, "use the folder of a published ConceptLM")
    codes, ratio = theirs["vq_config"]["codebook_size"], theirs.get("vq_patch_ratio", 1)
    for name, value in (_COMPUTED | {"dist_topk": codes}).items():
        other = theirs.get(name, value)
        require(other == value, f"config.json: {name}", other, f"only {value!r} is computed here")
    training = theirs.get("training_type")
    remedy = "a baseline has no concepts, open the plain decoder instead"
    require("baseline" not in str(training), "config.json: training_type", training, remedy)
    inner = CONFIG_MAPPING[kind].from_dict(theirs)
    inner.num_hidden_layers = theirs["encoder_layers"] + theirs["decoder_layers"]
    inner.tie_word_embeddings = tied
    return ConceptLMConfig(
        backbone=backbone_fields(inner),
        vocab_size=inner.vocab_size,
        bos_token_id=inner.bos_token_id,
        eos_token_id=inner.eos_token_id,
        pad_token_id=inner.pad_token_id,
        insert_depth=theirs["encoder_layers"],
        concept_layers=theirs["special_layers"],
        concept_norm=kind == "gpt_neox",
        detach_concept=kind == "llama",
        chunk_size=theirs["chunk_size"],
        num_segments=int(inner.num_attention_heads / ratio),
        num_codes=codes,
    )


def weights(state: dict[str, Tensor], theirs: dict[str, Any], head: str) -> dict[str, Tensor]:
    """Return the published weights by the names of our model; weights without a place keep their names.

    `theirs` is the published config, `head` our name of the output embedding's weight.
    """
    kind, depth = theirs["model_type"], theirs["encoder_layers"]
    segments: dict[str, dict[int, Tensor]] = {}
    ours: dict[str, Tensor] = {}
    for name, value in state.items():
        short = name.removeprefix("model.") if kind == "llama" else name
        if _NOT_WEIGHTS.fullmatch(short):
            continue
        if match := re.fullmatch(r"(?:hlm\.)?(vqs|ctx_lm_head)\.(\d+)\.(.+)", short):
            segments.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = value
        elif short in ("embed_out.weight", "lm_head.weight"):
            ours[head] = value
        elif match := re.fullmatch(r"(encoder|decoder)\.(\d+)\.(.+)", short):
            number = int(match[2]) + (depth if match[1] == "decoder" else 0)
            ours[f"{_LAYERS[kind]}.{number}.{match[3]}"] = value
        else:
            for pattern, place in _NAMES[kind].items():
                short = re.sub(f"^{pattern}$", place, short)
            ours[short] = value
    for name, parts in segments.items():
        whole = torch.stack([parts[s] for s in sorted(parts)])
        if name.startswith("vqs.code_transform") and name.endswith("weight"):
            whole = whole.transpose(1, 2)  # torch's linear maps are [out, in]
        elif name != "vqs.frozen_codebook":
            whole = whole.flatten(0, 1)
        place = _SEGMENTS.get(name, name)
        ours[place] = (whole.float() if place.startswith("codebook") else whole).contiguous()
    return ours
