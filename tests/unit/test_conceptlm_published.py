"""The authors' checkpoints, made up of models of ours by the names of the release."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import mentalese
from mentalese.errors import InputError
from mentalese.families.conceptlm.config import ConceptLMConfig
from mentalese.families.conceptlm.model import ConceptLMForCausalLM
from mentalese.families.conceptlm.published import convert

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 5, "num_attention_heads": 4}
BASES = {"gpt_neox": SIZES, "llama": SIZES | {"num_key_value_heads": 2, "tie_word_embeddings": False}}


def made(kind: str, vocabulary: int, **fields: Any) -> ConceptLMForCausalLM:
    torch.manual_seed(0)
    inner = {"model_type": kind, "max_position_embeddings": 64, **BASES[kind]}
    model = ConceptLMForCausalLM(ConceptLMConfig(backbone=inner, vocab_size=vocabulary, num_codes=6, **fields)).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def published(model: ConceptLMForCausalLM, kind: str) -> dict[str, Tensor]:
    """The model's weights as the release's classes name them, with buffers that its layers had."""
    depth, segments = model.config.insert_depth, model.config.segments
    theirs: dict[str, Tensor] = {}
    neox = kind == "gpt_neox"
    body = "gpt_neox" if neox else "model"
    for name, value in model.backbone.state_dict().items():
        layer = re.fullmatch(rf"{body}\.layers\.(\d+)\.(.+)", name)
        if layer is None:
            named = name.removeprefix("gpt_neox.")
            theirs[named.replace("lm_head", "embed_out") if neox else named] = value
            continue
        number = int(layer[1])
        part = f"encoder.{number}" if number < depth else f"decoder.{number - depth}"
        theirs[f"{'' if neox else 'model.'}{part}.{layer[2]}"] = value
    for name, value in model.concept_layers.state_dict().items():
        theirs[f"hlm.transformer.{name}" if neox else f"model.hlm_layers.{name}"] = value
    if model.concept_norm is not None:
        for name, value in model.concept_norm.state_dict().items():
            theirs[f"hlm.layer_norm.{name}"] = value
    book, heads = model.codebook, model.heads
    assert book is not None
    assert heads is not None
    for s in range(segments):
        head = f"hlm.ctx_lm_head.{s}" if neox else f"model.ctx_lm_head.{s}"
        theirs[f"{head}.weight"], theirs[f"{head}.bias"] = (p.chunk(segments)[s] for p in (heads.weight, heads.bias))
        quantiser = f"vqs.{s}" if neox else f"model.vqs.{s}"
        theirs[f"{quantiser}.frozen_codebook"] = book.frozen[s]
        for number, (weight, bias) in {0: (book.up, book.up_bias), 2: (book.down, book.down_bias)}.items():
            theirs[f"{quantiser}.code_transform.{number}.weight"] = weight[s].T
            theirs[f"{quantiser}.code_transform.{number}.bias"] = bias.chunk(segments)[s]
    if neox:
        theirs["encoder.0.attention.bias"] = torch.ones(1, 1, 64, 64).tril()
        theirs["hlm.transformer.1.attention.masked_bias"] = torch.tensor(-1e9)
    else:
        theirs["model.cached_pred_high_level_hs"] = torch.zeros(1, 1, 16)
    return {name: value.detach().clone().contiguous() for name, value in theirs.items()}


def folder_of(model: ConceptLMForCausalLM, kind: str, tokenizer: Any, folder: Path, **other: Any) -> Path:
    depth = model.config.insert_depth
    config = model.backbone.config.to_dict() | {
        "encoder_layers": depth, "decoder_layers": 5 - depth, "special_layers": 2, "chunk_size": 4, "dist_topk": 6,
        "vq_config": {"codebook_size": 6}, "vq_patch_ratio": 1, "distribution_merge": True, "shift_feature": True,
        "chunk_merge_method": "meanpooling", "training_type": "Context_addvqfeature",
    }  # fmt: skip
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config | other))
    save_file(published(model, kind), folder / "model.safetensors")
    return folder


@torch.no_grad()
@pytest.mark.parametrize("kind", BASES)
def test_a_published_checkpoint_opens_as_the_model_that_it_is(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    model = made(kind, len(tokenizer), insert_depth=2)
    convert(folder_of(model, kind, tokenizer, tmp_path / "theirs"), tmp_path / "ours")
    saved = mentalese.load(tmp_path / "ours")
    ids = torch.randint(len(tokenizer), (2, 23), generator=torch.Generator().manual_seed(0))
    assert torch.equal(saved.model(ids).logits, model(ids).logits)
    assert saved.model.config.insert_depth == 2
    assert saved.model.config.detach_concept == (kind == "llama")  # as the release's own classes
    [text] = saved.generate(["He was"], max_new_tokens=9, do_sample=False)
    assert len(text) > len("He was")


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2': use a published model of gpt_neox or llama"),
        ({"dist_topk": 3}, "dist_topk is 3: only 6 is computed here"),
        ({"layer_norm_option": "prenorm"}, "layer_norm_option is 'prenorm': only 'rawadd' is computed"),
        ({"training_type": "baseline"}, "training_type is 'baseline'"),
        ({"special_layers": 3}, r"Missing key\(s\) in state_dict: .concept_layers\.2\."),
        ({"special_layers": 1}, r"Unexpected key\(s\) in state_dict: .concept_layers\.1\."),
        ({"vq_config": {"codebook_size": 7}, "dist_topk": 7}, r"size mismatch for codebook\.frozen"),
    ],
)
def test_what_is_not_a_published_conceptlm_is_refused(
    other: dict[str, Any], says: str, tokenizer: Any, tmp_path: Path
) -> None:
    theirs = folder_of(made("gpt_neox", len(tokenizer)), "gpt_neox", tokenizer, tmp_path / "theirs", **other)
    with pytest.raises(InputError, match=says):
        convert(theirs, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_folders_that_cannot_be_read_or_written_are_refused(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json or no"):
        convert(tmp_path, tmp_path / "ours")
    theirs = folder_of(made("gpt_neox", len(tokenizer)), "gpt_neox", tokenizer, tmp_path / "theirs")
    with pytest.raises(InputError, match="it is not empty"):
        convert(theirs, theirs)
    save_file({"strange.weight": torch.zeros(2)}, theirs / "model.safetensors")
    with pytest.raises(InputError, match=r"strange\.weight"):
        convert(theirs, tmp_path / "ours")
