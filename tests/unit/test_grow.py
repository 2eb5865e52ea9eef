"""Latent thought on trained decoders: what is kept, what is new, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)

from mentalese import get_recipe, open_recipe
from mentalese.cli import main
from mentalese.data.layouts import QuestionAnswer
from mentalese.data.tokenizers import LATENT_MARKERS, add_markers, special_token_ids
from mentalese.errors import InputError
from mentalese.families.coconut.model import CoconutForCausalLM
from mentalese.models.build import build_model, check_context
from mentalese.models.checkpoints import load_model, save_model
from mentalese.models.grow import grow, start_from
from mentalese.recipe import DataConfig, EvaluationConfig, Recipe, TrainConfig
from mentalese.training.loop import train


def llama(vocabulary: int) -> LlamaForCausalLM:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, num_key_value_heads=2, **sizes))


def gpt2(vocabulary: int, width: int = 32) -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, n_embd=width, n_layer=2, n_head=4, n_positions=256))


@pytest.fixture(params=[gpt2, llama])
def base(request: pytest.FixtureRequest, tokenizer: Any, tmp_path: Path) -> Path:
    """A small decoder and its tokenizer, as another project saves them; the table has room for more tokens."""
    torch.manual_seed(0)
    request.param(len(tokenizer) + 5).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def test_a_grown_model_says_what_its_base_says_until_it_thinks(base: Path, tmp_path: Path) -> None:
    grow(str(base), "coconut", tmp_path / "grown", mode="agclr")
    grown = AutoModelForCausalLM.from_pretrained(tmp_path / "grown").eval()
    assert isinstance(grown, CoconutForCausalLM)
    assert grown.config.mode == "agclr"
    plain = AutoModelForCausalLM.from_pretrained(base).eval()
    model, tokenizer = load_model(tmp_path / "grown")
    ids = torch.tensor([tokenizer("12 + 3 is 15.", add_special_tokens=False)["input_ids"]])
    known = len(tokenizer) - len(LATENT_MARKERS)
    assert torch.equal(grown(ids).logits[..., :known], plain(ids).logits[..., :known])
    assert model.config.latent_token_id == special_token_ids(tokenizer)["latent_token_id"]


@torch.no_grad()
def test_a_bias_of_the_head_grows_with_its_rows(tokenizer: Any, tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = PhiForCausalLM(PhiConfig(vocab_size=len(tokenizer), **sizes)).eval()
    model.lm_head.bias.normal_()
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    grow(str(tmp_path / "base"), "coconut", tmp_path / "grown")
    grown, marked = load_model(tmp_path / "grown")
    assert len(marked) > len(tokenizer)
    ids = torch.tensor([tokenizer("12 + 3 is 15.", add_special_tokens=False)["input_ids"]])
    assert torch.equal(grown(ids).logits[..., : len(tokenizer)], model(ids).logits)


@pytest.mark.parametrize("family", ["coconut", "conceptlm"])
def test_a_grown_model_keeps_rows_of_its_base_that_are_no_token(base: Path, family: str, tmp_path: Path) -> None:
    """Without them the same logits would be other probabilities."""
    grow(str(base), family, tmp_path / "grown")
    grown, tokenizer = load_model(tmp_path / "grown")
    plain = AutoModelForCausalLM.from_pretrained(base)
    assert grown.config.vocab_size == plain.config.vocab_size > len(tokenizer)
    rest = slice(len(tokenizer), None)
    for read in ("get_input_embeddings", "get_output_embeddings"):
        assert torch.equal(getattr(grown, read)().weight[rest], getattr(plain, read)().weight[rest])
    fields = json.loads((tmp_path / "grown" / "recipe.json").read_text())["model"]
    again = build_model(fields, tokenizer, 1)
    start_from(again, tokenizer, str(tmp_path / "grown"))
    assert torch.equal(again.get_input_embeddings().weight, grown.get_input_embeddings().weight)


@pytest.mark.parametrize("family", ["coconut", "conceptlm", "looped"])
def test_the_recipe_of_a_grown_model_fits_its_context(tokenizer: Any, family: str, tmp_path: Path) -> None:
    for context in (128, 512):
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
        config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=context, **sizes)
        LlamaForCausalLM(config).save_pretrained(tmp_path / f"base-{context}")
        tokenizer.save_pretrained(tmp_path / f"base-{context}")
        grow(str(tmp_path / f"base-{context}"), family, tmp_path / f"grown-{context}")
        recipe = open_recipe(tmp_path / f"grown-{context}" / "recipe.json")
        assert recipe.layout.sequence_length == min(context, 256)
        check_context(load_model(tmp_path / f"grown-{context}")[0].config, recipe)


def test_latent_markers_start_as_the_start_of_a_calculation(base: Path, tmp_path: Path) -> None:
    grow(str(base), "coconut", tmp_path / "grown")
    model, tokenizer = load_model(tmp_path / "grown")
    pieces = tokenizer("<<", add_special_tokens=False)["input_ids"]
    plain = AutoModelForCausalLM.from_pretrained(base)
    for table, before in (
        (model.get_input_embeddings().weight, plain.get_input_embeddings().weight),
        (model.get_output_embeddings().weight, plain.get_output_embeddings().weight),
    ):
        for name in LATENT_MARKERS:
            row = table[special_token_ids(tokenizer)[name]]
            torch.testing.assert_close(row, before[pieces].mean(0))


def recipe(corpus: Path, start: Path, model: dict[str, Any], tokenizer: Path) -> Recipe:
    return Recipe(
        name="coconut/test",
        description="",
        model=model,
        data=DataConfig(
            source=f"file:{corpus.with_name('questions.jsonl')}",
            tokenizer=str(tokenizer),
        ),
        layout=QuestionAnswer(batch_size=4, stage=1, stages=2, latents_per_step=1),
        train=TrainConfig(steps=2, init=str(start), device="cpu"),
        evaluation=EvaluationConfig(max_documents=2, sample_tokens=2, batch_size=2),
    )


def test_a_run_starts_from_a_grown_model_or_from_its_base(corpus: Path, tokenizer: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    gpt2(len(tokenizer)).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    grow(str(tmp_path / "base"), "coconut", tmp_path / "grown")
    inner = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
    inner |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = {"model_type": "coconut", "backbone": inner}
    results = [
        train(recipe(corpus, tmp_path / start, model, tmp_path / start), tmp_path / f"run-{start}", show=False)
        for start in ("base", "grown")
    ]
    losses = [result["curve"][0]["loss"] for result in results]
    assert losses[0] == losses[1]
    plain = recipe(corpus, tmp_path / "base", inner, tmp_path / "base")
    plain = dataclasses.replace(plain, layout=QuestionAnswer(batch_size=4, stage=1, stages=2))
    assert train(plain, tmp_path / "run-plain", show=False)["curve"][0]["loss"] == pytest.approx(losses[0], abs=0.5)


def test_weights_of_another_base_are_refused_by_name(tokenizer: Any, tmp_path: Path) -> None:
    for name, model in (("base", gpt2(len(tokenizer))), ("wide", gpt2(len(tokenizer), 64)), ("llama", llama(300))):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    grow(str(tmp_path / "base"), "coconut", tmp_path / "grown")
    model, marked = load_model(tmp_path / "grown")
    with pytest.raises(
        InputError, match=r"made from another base: transformer.wpe.weight is \(256, 64\) there and \(256, 32\)"
    ):
        start_from(model, marked, str(tmp_path / "wide"))
    with pytest.raises(InputError, match=r"a LlamaForCausalLM and the model a GPT2LMHeadModel"):
        start_from(model, marked, str(tmp_path / "llama"))
    grow(str(tmp_path / "base"), "coconut", tmp_path / "gated", mode="agclr")
    with pytest.raises(InputError, match=r"concept_stream.* there and no such weights here"):
        start_from(model, marked, str(tmp_path / "gated"))


OTHERS = {
    "num_attention_heads": {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16},  # as large as before
    "num_key_value_heads": {"num_key_value_heads": 1, "head_dim": 8},
    "rope_parameters": {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
    "hidden_act": {"hidden_act": "gelu"},
    "rms_norm_eps": {"rms_norm_eps": 1e-3},
    "num_hidden_layers": {"num_hidden_layers": 1},
}


@pytest.mark.parametrize("field", OTHERS)
def test_a_base_that_reads_the_same_weights_otherwise_is_refused(field: str, tokenizer: Any, tmp_path: Path) -> None:
    base = llama(len(tokenizer))
    base.save_pretrained(tmp_path / "base")
    other = LlamaConfig(**(base.config.to_dict() | OTHERS[field]))
    LlamaForCausalLM(other).save_pretrained(tmp_path / "other")
    for name in ("base", "other"):
        tokenizer.save_pretrained(tmp_path / name)
    grow(str(tmp_path / "base"), "conceptlm", tmp_path / "grown")
    model, marked = load_model(tmp_path / "grown")
    said = "k_proj.weight" if field == "num_key_value_heads" else field
    with pytest.raises(InputError, match=f"made from another base: .*{said} is .* there and .* here; (use|set)"):
        start_from(model, marked, str(tmp_path / "other"))


def test_untied_head_cannot_start_a_tied_one_of_the_same_family(tokenizer: Any, tmp_path: Path) -> None:
    marked, recipe = add_markers(tokenizer), get_recipe("thought_gestalt/tiny")
    tied, untied = (
        build_model(recipe.model | {"tie_word_embeddings": is_tied}, marked, 0) for is_tied in (True, False)
    )
    for name, model in (("tied", tied), ("untied", untied)):
        save_model(tmp_path / name, model, marked)
    with pytest.raises(InputError, match="tie_word_embeddings is False there and True here"):
        start_from(tied, marked, str(tmp_path / "untied"))
    start_from(untied, marked, str(tmp_path / "tied"))


def test_untied_head_cannot_start_a_tied_one(tokenizer: Any, tmp_path: Path) -> None:
    for name, tied in (("tied", True), ("untied", False)):
        config = gpt2(len(tokenizer)).config
        config.tie_word_embeddings = tied
        GPT2LMHeadModel(config).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        grow(str(tmp_path / name), "conceptlm", tmp_path / f"grown-{name}")
    model, marked = load_model(tmp_path / "grown-tied")
    with pytest.raises(InputError, match="tie_word_embeddings is False there and True here"):
        start_from(model, marked, str(tmp_path / "untied"))
    model, marked = load_model(tmp_path / "grown-untied")
    start_from(model, marked, str(tmp_path / "tied"))
    assert torch.equal(model.get_output_embeddings().weight, model.get_input_embeddings().weight)


def test_what_changes_no_weights_meaning_may_differ(tokenizer: Any, tmp_path: Path) -> None:
    gpt2(len(tokenizer)).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    grow(str(tmp_path / "base"), "conceptlm", tmp_path / "grown")
    model, marked = load_model(tmp_path / "grown")
    inner = model.backbone.config
    assert inner.activation_function == "gelu_new"
    inner.resid_pdrop, inner.initializer_range, inner.activation_function = 0.3, 0.5, "gelu_pytorch_tanh"
    start_from(model, marked, str(tmp_path / "base"))


@pytest.mark.slow
def test_the_command_grows_a_checkpoint_that_opens(base: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["grow", str(base), "--family", "coconut", "--mode", "agclr", "--out", str(tmp_path / "out")]) == 0
    assert "--train.init" in capsys.readouterr().out
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.mode == "agclr"


@pytest.mark.parametrize(
    "words",
    ["coconut", "coconut --mode agclr", "coconut --config step_decoder_layers=1", "codi", "colar", "conceptlm"],
    ids=["coconut", "agclr", "sim-cot", "codi", "colar", "conceptlm"],
)
def test_grown_models_predict_as_their_base(words: str, base: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["grow", str(base), "--family", *words.split(), "--out", str(tmp_path / "out")]) == 0
    assert "at most 0.0000 nats apart" in capsys.readouterr().out
    grown, plain = (AutoModelForCausalLM.from_pretrained(path).eval() for path in (tmp_path / "out", base))
    ids = torch.arange(24)[None]
    known = len(load_model(base)[1])
    assert torch.equal(grown(ids).logits[..., :known], plain(ids).logits[..., :known])


def test_a_grown_colar_has_room_for_an_answer_after_its_latents(base: Path, tmp_path: Path) -> None:
    grow(str(base), "colar", tmp_path / "out", max_latents=100)
    assert open_recipe(tmp_path / "out" / "recipe.json").evaluation.answer_tokens == 164


def test_a_grown_folder_can_be_moved(base: Path, tmp_path: Path) -> None:
    grow(str(base), "codi", tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "moved")
    recipe = open_recipe(tmp_path / "moved" / "recipe.json")
    assert recipe.train.init == recipe.data.tokenizer == str(tmp_path / "moved")
    assert recipe.layout.kind == "qa_pairs"


@pytest.mark.parametrize("kind", [gpt2, llama])
def test_the_twin_of_table_3_repeats_the_first_layers(kind: Any, tokenizer: Any, tmp_path: Path) -> None:
    """ConceptLM, section 4.3: two more token layers, copies of the first two, where concepts would be read."""
    plain = kind(len(tokenizer)).eval()
    plain.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    words = ["--family", "conceptlm", "--config", "token_layers=2", "--out", str(tmp_path / "grown")]
    assert main(["grow", str(tmp_path / "base"), *words]) == 0
    grown = AutoModelForCausalLM.from_pretrained(tmp_path / "grown").eval()
    assert type(grown) is type(plain)
    old, new = (getattr(m.base_model, "h" if kind is gpt2 else "layers") for m in (plain, grown))
    assert (len(old), len(new)) == (2, 4)
    for layer, source in zip(new, (0, 0, 1, 1)):
        for weight, expected in zip(layer.parameters(), old[source].parameters(), strict=True):
            assert torch.equal(weight, expected)
    assert torch.equal(grown.get_output_embeddings().weight[: len(tokenizer)], plain.get_output_embeddings().weight)
    model, marked = load_model(tmp_path / "grown")  # a run of the recipe starts from it, and not from the base
    start_from(model, marked, str(tmp_path / "grown"))
    with pytest.raises(
        InputError, match="num_hidden_layers is 2 there and 4 here" if kind is llama else "n_layer is 2"
    ):
        start_from(model, marked, str(tmp_path / "base"))


@pytest.mark.parametrize(
    ("family", "fields", "says"),
    [
        ("conceptlm", {"token_layers": 3}, "token_layers is 3: set 1 to 2, the layers of the decoder"),
        ("conceptlm", {"token_layers": 2, "chunk_size": 8}, "chunk_size is 8: with token_layers there are no concepts"),
        ("gpt2", {}, "family is 'gpt2': use one that grows on a trained model"),
        ("coconut", {"mood": 1}, "model.mood: coconut has no such field"),
        ("coconut", {"mode": "cot"}, "coconut.mode is 'cot'"),
    ],
)
def test_what_cannot_grow_says_why_and_leaves_nothing_behind(
    base: Path, tmp_path: Path, family: str, fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        grow(str(base), family, tmp_path / "out", **fields)
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    with pytest.raises(InputError, match="it is not empty, use another folder"):
        grow(str(base), "coconut", tmp_path / "out")
