"""`mentalese.load`: every family, and any Hugging Face causal LM, through one object."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma3Config,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

import mentalese
from mentalese import InputError, Saved, get_recipe, override
from mentalese.data.config import DataConfig
from mentalese.data.documents import SPLITS
from mentalese.data.sources import opened_source
from mentalese.data.store import prepare
from mentalese.evaluation.options import TextOptions
from mentalese.models.base import LanguageModel, as_model, class_of
from mentalese.models.saved import on_one_text
from mentalese.models.trace import ThoughtTrace
from support import saved, shrink, tiny_recipes

TEXTS = ["She had a son. He lived in the town.", "The old man was a baker, and he had two daughters."]


@pytest.fixture(params=tiny_recipes())
def opened(request: pytest.FixtureRequest, corpus: Path, tmp_path: Path) -> Saved:
    recipe = shrink(get_recipe(request.param), corpus)
    return mentalese.load(saved(tmp_path / "run", recipe), device="cpu")


def test_runs_of_each_family_generate_score_think_and_encode(opened: Saved) -> None:
    texts = opened.generate(TEXTS, max_new_tokens=5)
    assert len(texts) == len(TEXTS)
    for text, whole in zip(TEXTS, texts):
        assert whole.startswith(text)
    batch = opened.encode(TEXTS)
    assert batch["input_ids"].shape == batch["attention_mask"].shape
    assert len(batch["input_ids"]) == len(TEXTS)
    trace = opened.think(TEXTS[0], max_new_tokens=3) if opened.layout.questions else opened.think(TEXTS[0])
    assert isinstance(trace, ThoughtTrace)
    assert "".join(trace.tokens)
    if opened.layout.questions:
        with pytest.raises(InputError, match="trained on questions"):
            opened.score(TEXTS)
        return
    scores = opened.score(TEXTS)
    for text, score in zip(TEXTS, scores, strict=True):
        assert score.bytes == len(text.encode())
        assert score.perplexity > 1
        assert score.bits_per_byte > 0


def test_one_text_needs_no_list(opened: Saved) -> None:
    assert opened.generate(TEXTS[0], max_new_tokens=3) == opened.generate([TEXTS[0]], max_new_tokens=3)


def test_text_ends_after_a_stop_string(opened: Saved) -> None:
    model = opened.model
    if not getattr(model, "causal", True):
        with pytest.raises(InputError, match=r"stop_strings is .* remove it"):
            opened.generate("She", max_new_tokens=4, stop_strings=["a"])
        return
    inputs = opened.encode("She")
    start, options = inputs["input_ids"].shape[1], {"max_new_tokens": 12, "pad_token_id": 0}
    generated = model.generate(**inputs, **options)[0, start:]
    words = [opened.tokenizer.decode(token, skip_special_tokens=True) for token in generated]
    last = next(number for number, word in enumerate(words) if word and "\ufffd" not in word)
    options |= {"stop_strings": [words[last]], "tokenizer": opened.tokenizer}
    assert model.generate(**inputs, **options).shape[1] == start + last + 1
    whole = opened.generate("She", max_new_tokens=12, stop_strings=[words[last]])[0]
    assert whole.endswith(words[last])
    pieces = opened.stream("She", max_new_tokens=12, stop_strings=[words[last]])
    assert whole.endswith("".join(pieces))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_any_hugging_face_model_opens(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    if kind == "gpt2":
        model: Any = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes))
    else:
        model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), intermediate_size=64, **sizes))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    opened = mentalese.load(tmp_path)
    assert opened.recipe is None
    assert opened.generate(["ab"], max_new_tokens=4)[0].startswith("ab")
    (score,) = opened.score(["abc def"])
    ids = opened.encode(["abc def"])["input_ids"]
    ids = torch.cat((torch.tensor([[tokenizer.eos_token_id]]), ids), dim=1)  # a score has a first token to predict from
    with torch.no_grad():
        log_p = opened.model(ids).logits[0, :-1].log_softmax(-1)
    expected = -log_p.gather(-1, ids[0, 1:, None]).sum().item()
    assert score.nll == pytest.approx(expected, rel=1e-5)
    assert score.tokens == ids.shape[1] - 1
    assert opened.think("abc").scores["surprisal"][1:].isfinite().all()


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("thoughtbubbles", {"selection": "casual"}, "thoughtbubbles.selection is 'casual': .*'causal'"),
        ("coconut", {"thought_control": "remove"}, "coconut.thought_control is 'remove': .*'removed'"),
        ("coconut", {"tie_word_embeddings": False}, "coconut.tie_word_embeddings is False: it is the backbone's, True"),
        ("coconut", {"max_position_embeddings": 9}, "max_position_embeddings is 9: it follows from others, remove it"),
    ],
)
def test_fields_of_from_pretrained_are_checked(kind: str, fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    AutoConfig.for_model(kind, vocab_size=11).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=message):
        AutoConfig.from_pretrained(tmp_path, **fields)
    given = {"initializer_range": 1.0} if kind == "thoughtbubbles" else {"parallel_passes": 2}
    (name,) = given
    assert getattr(AutoConfig.from_pretrained(tmp_path, **given), name) == given[name]


def test_a_text_scores_as_in_its_split(corpus: Path, tmp_path: Path) -> None:
    opened = mentalese.load(saved(tmp_path / "run", shrink(get_recipe("thought_gestalt/tiny"), corpus)), device="cpu")
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()][:3]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    held = opened.on(f"file:{tmp_path / 'texts.jsonl'}")
    assert (opened.part, held.part) == ("test", "all")
    whole = sum(score.nll for score in opened.score(texts))
    splits = held.store("train").splits
    parts = [held.perplexity(split) for split in splits.values()]
    assert whole == pytest.approx(sum(part.nll * part.tokens for part in parts), rel=1e-5)


@pytest.mark.parametrize(
    "protocol", [{"max_documents": 1}, {"max_documents": 1, "documents_seed": 3}, {"joined": True}]
)
def test_every_text_is_scored_and_by_itself(protocol: dict[str, Any], tokenizer: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=4)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    opened, texts = mentalese.load(tmp_path, "cpu"), ["abc def", "she said", "he"]
    by = opened.scored_by(**protocol)
    each = [opened.score(text)[0] for text in texts]
    for score, expected in zip(by.score(texts), each, strict=True):
        assert (score.tokens, score.bytes) == (expected.tokens, expected.bytes)
        assert score.nll == pytest.approx(expected.nll, rel=1e-5)


def test_fewer_documents_are_the_first_whatever_validation_drew(corpus: Path, tmp_path: Path) -> None:
    recipe = override(
        shrink(get_recipe("gpt2/tiny"), corpus), "evaluation.max_documents=2", "evaluation.documents_seed=1"
    )
    opened = mentalese.load(saved(tmp_path / "run", recipe), device="cpu")
    assert opened.scored_by(max_documents=2).evaluation.chosen(9).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("texts", "message"), [(["fine", " "], r"texts\[1\] is ' ': use a text"), ([""], r"texts\[0\] is ''")]
)
def test_an_empty_text_is_refused(corpus: Path, tmp_path: Path, texts: list[str], message: str) -> None:
    opened = mentalese.load(saved(tmp_path / "run", shrink(get_recipe("gpt2/tiny"), corpus)), device="cpu")
    with pytest.raises(InputError, match=message):
        opened.score(texts)


def test_the_python_door(corpus: Path, tmp_path: Path) -> None:
    recipe = shrink(get_recipe("gpt2/tiny"), corpus)
    trained = mentalese.train(recipe, "train.steps=3", out=tmp_path / "run", show=False)
    assert trained.recipe is not None
    assert trained.recipe.train.steps == 3
    figures = mentalese.evaluate(trained, show=False)
    assert figures["perplexity"]["tokens"] > 0
    assert mentalese.evaluate(tmp_path / "run", show=False)["perplexity"] == figures["perplexity"]
    assert mentalese.think(tmp_path / "run", TEXTS[0]).tokens == trained.think(TEXTS[0]).tokens
    with pytest.raises(InputError, match="did you mean 'gpt2/tiny'"):
        mentalese.train("gpt2/tyni")


def test_every_exported_name_is_there() -> None:
    for name in mentalese.__all__:
        assert getattr(mentalese, name) is not None, name
        assert getattr(mentalese, name).__doc__, name


def test_a_decoder_gets_the_interface_in_place() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 11}
    plain = GPT2LMHeadModel(GPT2Config(**sizes)).eval()
    ids, names = torch.arange(5)[None], list(plain.state_dict())
    expected = plain(ids).logits
    model = as_model(plain)
    assert model is plain is as_model(model)
    assert isinstance(model, GPT2LMHeadModel)
    assert isinstance(model, LanguageModel)
    assert class_of(model) is GPT2LMHeadModel
    assert (type(model).__name__, list(model.state_dict())) == ("GPT2LMHeadModel", names)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(copied) is type(model)
        assert torch.equal(copied(ids).logits, expected)
        assert copied.token_nll({"input_ids": ids, "labels": ids}).shape == ids.shape


def test_a_model_of_text_and_images_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = sizes | {"vocab_size": len(tokenizer), "num_key_value_heads": 1, "head_dim": 8}
    config = Gemma3Config(text_config=text, vision_config=sizes | {"image_size": 28, "patch_size": 14})
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"also reads other media than text \(gemma3\)"):
        mentalese.load(tmp_path)


def trained_on(source: str, out: Path, *fields: str) -> Saved:
    small = ("layout.batch_size=2", "layout.sequence_length=32", "model.n_layer=1", "train.steps=1")
    given = source.startswith("store:") or any(field.startswith("data.tokenizer") for field in fields)
    tokenizer = () if given else ("data.tokenizer=bpe:300",)
    return mentalese.train("gpt2/tiny", f"data.source={source}", *tokenizer, *small, *fields, out=out, show=False)


def texts_of(reader: Saved, split: str) -> set[str]:
    """Return the first words of a split's documents, which no detokenizer changes."""
    return {document.text.split()[0] for document in opened_source(reader.data, split == "all").documents(split)}


@pytest.fixture
def tokenised(tmp_path: Path) -> Path:
    """Forty documents, each with a first word of its own, in the format of WikiText."""
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": f"d{i}x , heat @-@ mass is lost ."}) + "\n" for i in range(40)))
    return path


@pytest.mark.parametrize("fields", [("data.detokenizer=wikitext",), ("data.held_out=0.4",), ()])
@pytest.mark.parametrize("copied", [False, True])
def test_what_was_held_out_in_training_is_the_test_split(
    fields: tuple[str, ...], copied: bool, tokenised: Path, tmp_path: Path
) -> None:
    opened = trained_on(f"file:{tokenised}", tmp_path / "run", *fields)
    train, test = texts_of(opened, "train"), texts_of(opened, "test")
    source = tokenised
    if copied:
        source = Path(shutil.copy(tokenised, tmp_path / "copy.jsonl"))
    options = TextOptions(source=f"file:{source}")
    reader = options.read_by(opened)
    assert options.part(reader) == "test"
    assert texts_of(reader, "test") == test
    assert not test & train
    with pytest.raises(InputError, match=r"data.detokenizer is 'lm1b': .* was trained on this text with (None|'wiki)"):
        TextOptions(source=f"file:{source}", detokenizer="lm1b").read_by(opened)
    with pytest.raises(InputError, match=r"data.held_out is 0.2: .* with 0\.[14], which held out other documents"):
        opened.on(f"file:{source}", held_out=0.2)


def test_a_text_that_was_read_through_a_store_is_the_models_own(tokenised: Path, tmp_path: Path) -> None:
    data = DataConfig(source=f"file:{tokenised}", tokenizer="bpe:300", detokenizer="wikitext", held_out=0.4)
    for name, config in (("a", data), ("b", dataclasses.replace(data, held_out=0.1))):
        prepare(config, out=tmp_path / name, show=False)
    opened = trained_on(f"store:{tmp_path / 'a'}", tmp_path / "run")
    options = TextOptions(source=f"file:{tokenised}")
    reader = options.read_by(opened)
    assert options.part(reader) == "test"
    assert texts_of(reader, "test") == {document.text.split()[0] for document in opened_source(data).documents("test")}
    assert opened.on(f"store:{tmp_path / 'a'}").data.held_out == 0.1  # it contains tokens
    with pytest.raises(InputError, match=r"data.held_out is 0.1: .* was trained on this text with 0.4"):
        opened.on(f"store:{tmp_path / 'b'}")


@pytest.mark.parametrize("noted", [True, False])
def test_a_store_of_another_division_is_refused_without_its_text(
    noted: bool, tokenised: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a store of an earlier version, which does not note how it was read; the run's own one is read."""
    if not noted:
        monkeypatch.setattr("mentalese.data.store._READ", ("source", "detokenizer", "tokenizer"))
    data = DataConfig(source=f"file:{tokenised}", tokenizer="bpe:300")
    for name, share in (("few", 0.1), ("many", 0.4)):
        prepare(dataclasses.replace(data, held_out=share), out=tmp_path / name, show=False)
    few = trained_on(f"store:{tmp_path / 'few'}", tmp_path / "run")
    many = trained_on(f"file:{tokenised}", tmp_path / "other", "data.held_out=0.4")
    tokenised.rename(tmp_path / "away.jsonl")
    assert few.on(f"store:{tmp_path / 'few'}").part == "test"
    assert many.on(f"store:{tmp_path / 'many'}").part == "test"
    with pytest.raises(InputError, match=r"data.held_out is 0.1: .* was trained on this text with 0.4"):
        many.on(f"store:{tmp_path / 'few'}")
    if noted:
        with pytest.raises(InputError, match=r"data.held_out is 0.4: .* was trained on this text with 0.1"):
            few.on(f"store:{tmp_path / 'many'}")


def test_models_of_one_text_are_read_together_in_any_order(tokenised: Path, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    lines = tokenised.read_text().splitlines(keepends=True)
    for number, split in enumerate(SPLITS):
        (tmp_path / "parts" / f"{split}.jsonl").write_text("".join(lines[number::3]))
    for source, field in (
        (f"file:{tokenised}", "text_column=text"),
        (f"file:{tmp_path}/parts", "detokenizer=wikitext"),
    ):
        kind = field.partition("=")[0]
        models = [
            trained_on(source, tmp_path / f"{kind}-0"),
            trained_on(source, tmp_path / f"{kind}-1", f"data.{field}"),
        ]
        for order in (models, models[::-1]):
            found = on_one_text(order)
            assert texts_of(found[0], "test") == texts_of(found[1], "test")
            assert found[0].data.detokenizer == found[1].data.detokenizer == order[0].data.detokenizer


def test_two_models_read_one_text_as_the_one_that_was_trained_on_it(tokenised: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps({"text": f"e{i}x is another text."}) + "\n" for i in range(40)))
    stranger = trained_on(f"file:{other}", tmp_path / "stranger")
    text = f"file:{tokenised}"
    few, many = (trained_on(text, tmp_path / f"{share}", f"data.held_out={share}") for share in (0.1, 0.4))
    for models in ((stranger, many), (many, stranger)):
        read = on_one_text(models, text)
        assert [texts_of(reader, "test") for reader in read] == [texts_of(many, "test")] * 2
    with pytest.raises(InputError, match=r"data.held_out is 0.1: another model was trained on file:.* with 0.4"):
        on_one_text((few, many), text)


def test_the_text_of_the_model_that_training_started_from_is_its_own_too(tokenised: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps({"text": f"e{i}x heat is lost in another text."}) + "\n" for i in range(40)))
    text = f"file:{tokenised}"
    first = trained_on(text, tmp_path / "first", "data.held_out=0.4")
    start = (f"data.tokenizer={tmp_path / 'first' / 'model'}", f"train.init={tmp_path / 'first'}")
    second = trained_on(f"file:{other}", tmp_path / "second", *start)
    third = trained_on(f"file:{other}", tmp_path / "third", start[0], f"train.init={tmp_path / 'second'}")
    for model in (second, third):
        reader = model.on(text)
        assert reader.part == "test"
        assert texts_of(reader, "test") == texts_of(first, "test")
    with pytest.raises(InputError, match=r"data.held_out is 0.1: the weights at the start were trained on it with 0.4"):
        trained_on(text, tmp_path / "fourth", *start)
    assert not (tmp_path / "fourth").exists()
    assert trained_on(text, tmp_path / "fifth", *start, "data.held_out=0.4").part == "test"
