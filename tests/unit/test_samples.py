"""Samples are whole, drawn from the model alone, and judged by another model in its own tokens."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from mentalese import Recipe, Saved, TrainConfig, cli
from mentalese.data.config import DataConfig
from mentalese.data.layouts import Marked, Packed, QuestionAnswer, SentenceStreams
from mentalese.data.split import Split
from mentalese.data.store import split_of
from mentalese.data.tokenizers import add_markers, special_token_ids
from mentalese.errors import InputError
from mentalese.evaluation import samples
from mentalese.evaluation.options import SampleOptions
from mentalese.evaluation.samples import (
    as_judge,
    conditional,
    judge_texts,
    mauve,
    open_judge,
    text_features,
    token_entropy,
    unconditional,
)
from mentalese.models.base import LanguageModel, as_model
from support import metaspace_tokenizer, opened

LENGTH = 48


def gpt2(tokenizer: Any, context: int = 128, seed: int = 0) -> LanguageModel:
    """Untied and with large weights: a tied random model would repeat one token, whatever the prompt."""
    torch.manual_seed(seed)
    special = special_token_ids(tokenizer)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=context, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3,
        tie_word_embeddings=False, **{name: special[name] for name in ("pad_token_id", "bos_token_id", "eos_token_id")},
    )  # fmt: skip
    return as_model(GPT2LMHeadModel(config)).eval()


@pytest.fixture(scope="module")
def model(tokenizer: PreTrainedTokenizerFast) -> LanguageModel:
    return gpt2(tokenizer)


@pytest.fixture(scope="module")
def judge(tokenizer: PreTrainedTokenizerFast) -> Saved:
    return dataclasses.replace(as_judge(opened(gpt2(tokenizer, LENGTH, seed=1), tokenizer)), path="judge")


def nats(judge: Saved, ids: list[int]) -> Tensor:
    """Of each token after an end of document, by Hugging Face's own logits."""
    row = torch.tensor([[judge.layout.special_ids(judge.tokenizer)["bos_token_id"], *ids]])
    with torch.no_grad():
        return -judge.model(row).logits[0, :-1].log_softmax(-1).gather(-1, row[0, 1:, None])[:, 0]


def test_the_entropy_of_a_sample_is_that_of_its_tokens() -> None:
    assert token_entropy(torch.tensor([7] * 9)) == 0
    assert token_entropy(torch.arange(9)) == pytest.approx(math.log(9))
    assert token_entropy(torch.tensor([1, 1, 2, 2, 3, 3, 3, 3])) == pytest.approx(1.5 * math.log(2))


def test_the_judge_scores_each_text_after_what_is_given(judge: Saved, tokenizer: PreTrainedTokenizerFast) -> None:
    pairs = [("", "A dog ran."), ("It was ", "fast."), ("only given", "")]
    found = [nats(judge, tokenizer(pairs[0][1])["input_ids"])]
    found.append(nats(judge, tokenizer("It was fast.")["input_ids"])[7:])
    assert judge_texts(judge, pairs) == pytest.approx(float(torch.cat(found).mean().exp()), rel=1e-5)
    assert judge_texts(judge, [("", ""), ("x", "")]) is None

    long = "A dog ran. " * 10  # above the judge's context
    assert math.isfinite(judge_texts(judge, [("", long)]) or math.nan)


def test_features_are_the_last_hidden_state_of_the_last_token(judge: Saved, tokenizer: PreTrainedTokenizerFast) -> None:
    texts = ["A dog", "x", "Once upon a time", "y" * 60, *["again"] * 7]
    found = text_features(judge, texts)
    for text, features in zip(texts, found):
        ids = torch.tensor([tokenizer(text)["input_ids"][:LENGTH]])
        with torch.no_grad():
            hidden = judge.model.base_model(ids).last_hidden_state[0, -1]
        np.testing.assert_allclose(features, hidden, atol=1e-5)


def test_mauve_is_high_for_the_same_texts_and_low_for_others() -> None:
    generator = np.random.default_rng(0)
    human, same = generator.normal(size=(2, 60, 8)).astype(np.float32)
    assert mauve(human, human) > 0.99
    assert mauve(human, same) > mauve(human, same + 4)
    assert mauve(human, same + 4) < 0.1


# -- from nothing ------------------------------------------------------------------------------------------------------


def test_unprompted_samples_have_full_length(
    model: LanguageModel, tokenizer: PreTrainedTokenizerFast, judge: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Tensor] = []
    monkeypatch.setattr(samples, "token_entropy", lambda ids: made.append(ids) or token_entropy(ids))
    model.generation_config = own = GenerationConfig(top_k=1, do_sample=True, eos_token_id=5)
    options = SampleOptions(samples=11, sample_tokens=40, seed=3)
    found = unconditional(opened(model, tokenizer), options, judge)
    assert model.generation_config is own
    assert [len(ids) for ids in made] == [40] * 22
    greedy, drawn = made[:11], made[11:]
    assert all(torch.equal(ids, greedy[0]) for ids in greedy)
    assert len({tuple(ids.tolist()) for ids in drawn}) == 11

    end, pieces = special_token_ids(tokenizer)["eos_token_id"], []
    for ids in drawn:
        text: list[int] = []
        for token in [*ids.tolist(), end]:
            if token == end:
                pieces.append(tokenizer.decode(text, skip_special_tokens=True))
                text = []
            else:
                text.append(token)
    pieces = [piece for piece in pieces if piece]
    assert len(pieces) > 11  # some ended before their full length
    score = judge_texts(judge, [("", piece) for piece in pieces])
    assert found["multinomial"]["generative_perplexity"] == pytest.approx(score)
    assert found["multinomial"]["entropy"] == pytest.approx(np.mean([token_entropy(ids) for ids in drawn]))
    for figures in (found["greedy"], found["multinomial"]):
        assert figures["samples_per_second"] > 0
        assert len(figures["texts"]) == 3
    said = found["protocol"]
    assert (said["samples"], said["sample_tokens"], said["batch_size"], said["seed"]) == (11, 40, 8, 3)
    assert said["judge"]["name"] == "judge"
    assert said["judge"]["context"].startswith(f"sliding windows of {LENGTH} tokens")


def test_samples_follow_from_the_seed_and_fill_the_context(
    model: LanguageModel, tokenizer: PreTrainedTokenizerFast, judge: Saved
) -> None:
    def texts(**fields: Any) -> list[str]:
        options = SampleOptions(samples=3, decoding="multinomial", **fields)
        found = unconditional(opened(model, tokenizer), options, judge)
        assert "greedy" not in found
        assert found["protocol"]["sample_tokens"] == fields.get("sample_tokens", 127)
        return found["multinomial"]["texts"]

    assert texts() == texts()
    assert texts(sample_tokens=9) == texts(sample_tokens=9) != texts(sample_tokens=9, seed=1)
    with pytest.raises(InputError, match=r"sample_tokens is 128: the model's context is 128, .* set at most 127"):
        texts(sample_tokens=128)


class WithoutCache(torch.nn.Module):
    """A model of another kind: all it has is `generate`, and it begins where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.device, self.generation_config, self.config = torch.device("cpu"), GenerationConfig(), GPT2Config()
        self.begun: set[int] = set()

    def generate(self, input_ids: Tensor, attention_mask: Tensor, max_new_tokens: int, do_sample: bool) -> Tensor:
        assert not self.training
        self.begun |= set(input_ids[:, 0].tolist())
        return torch.cat([input_ids, torch.randint(20, 40, (len(input_ids), max_new_tokens))], dim=1)


def test_any_generating_model_is_sampled_from_document_starts(tokenizer: PreTrainedTokenizerFast, judge: Saved) -> None:
    special = special_token_ids(tokenizer)
    for layout, begins in ((Packed(), "bos_token_id"), (SentenceStreams(), "sentence_start_token_id")):
        model = WithoutCache()
        options = SampleOptions(samples=2, sample_tokens=5)
        unconditional(opened(model, tokenizer, layout), options, judge)
        assert model.begun == {special[begins]}
    with pytest.raises(InputError, match="it answers questions"):
        unconditional(opened(model, tokenizer, QuestionAnswer()), options, judge)


# -- after prompts -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def split(tokenizer: PreTrainedTokenizerFast) -> Split:
    """Documents of 10 to 139 bytes, each a token; 120 of them have 20 and more."""
    end = special_token_ids(tokenizer)["eos_token_id"]
    texts = [f"{i} {'abcdefgh '[i % 8 :] * 140}"[: 10 + i] for i in range(130)]
    documents = [[*tokenizer(text)["input_ids"], end] for text in texts]
    offsets = np.cumsum([0, *map(len, documents)])
    return Split(
        tokens=np.concatenate(documents).astype(np.uint16),
        documents=offsets,
        segments=offsets,
        document_segments=np.arange(131),
        document_bytes=np.array([len(text) for text in texts]),
    )


SHORT: dict[str, Any] = {"prompt_tokens": 12, "sample_tokens": 8}


def test_continuations_need_documents_that_are_long_enough(
    model: LanguageModel, tokenizer: PreTrainedTokenizerFast, split: Split, judge: Saved
) -> None:
    options = SampleOptions(kind="conditional", samples=100, draws=2, **SHORT)
    found = conditional(opened(model, tokenizer), split, options, judge)
    first = split.documents[10]  # the first of 20 tokens
    prompt = tokenizer.decode(split.tokens[first : first + 12])
    for figures in (found["greedy"], found["multinomial"]):
        assert figures["texts"][0].startswith(prompt)
        assert 0 < figures["mauve"] < 1
        assert figures["generative_perplexity"] > 1
    assert found["greedy"]["mauve_stderr"] is None
    assert found["multinomial"]["mauve_stderr"] > 0
    assert (found["protocol"]["samples"], found["protocol"]["draws"], found["protocol"]["prompt_tokens"]) == (
        100,
        2,
        12,
    )

    options = SampleOptions(kind="conditional", draws=1, **SHORT)
    everything = conditional(opened(WithoutCache(), tokenizer), split, options, judge)
    assert everything["protocol"]["samples"] == 120


def test_a_prompt_ends_with_a_whole_character() -> None:
    vocabulary = {byte: i for i, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = add_markers(PreTrainedTokenizerFast(tokenizer_object=backend))
    texts = [f"{'a' * (i % 3)}日本語の文章" for i in range(120)]
    split = split_of(texts, tokenizer, DataConfig(source="file:x"))
    prompts, whole = samples._beginnings(split, tokenizer, SampleOptions(kind="conditional", prompt_tokens=7), 6)
    assert not any("�" in text for text in (*prompts, *whole))
    assert prompts[:3] == ["日本", "a日本", "aa日"]
    with pytest.raises(InputError, match="prompt_tokens is 2: a prompt has not one whole character"):
        samples._beginnings(split, tokenizer, SampleOptions(kind="conditional", prompt_tokens=2), 6)
    assert all(text.startswith(prompt) for prompt, text in zip(prompts, whole, strict=True))


def test_a_continuation_keeps_the_space_before_it() -> None:
    tokenizer = metaspace_tokenizer()
    the, son, of = tokenizer.convert_tokens_to_ids(["▁the", "▁son", "▁of"])
    end = special_token_ids(tokenizer)["eos_token_id"]
    for new, text in (([of, the], " of the"), ([of, end, the], " of\n\nthe"), ([end, the], "the")):
        assert samples._continuation([end, the, son], new, end, tokenizer) == text


def test_too_few_or_too_long_prompts_are_refused(
    model: LanguageModel, tokenizer: PreTrainedTokenizerFast, split: Split, judge: Saved
) -> None:
    for count in (121, 99):
        options = SampleOptions(kind="conditional", samples=count, **SHORT)
        with pytest.raises(InputError, match=rf"samples is {count}: 120 documents have the 20 tokens"):
            conditional(opened(model, tokenizer), split, options, judge)
    with pytest.raises(
        InputError, match=r"sample_tokens is 8: the model's context is 20, of which the prompt takes 13"
    ):
        conditional(opened(gpt2(tokenizer, 20), tokenizer), split, SampleOptions(kind="conditional", **SHORT), judge)


# -- what is needed ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(model: LanguageModel, tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    model.generation_config = GenerationConfig()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_sample_keeps_samples_with_their_figures(saved: Path, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "samples.json"
    options = f"--judge {saved} --samples 100 --sample-tokens 4 --prompt-tokens 8 --draws 1 --seed 2 --split train"
    command = ["sample", str(saved), "--kind", "both", "--data", f"file:{corpus}", *options.split()]
    assert cli.main([*command, "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["unconditional"]["protocol"]["judge"]["name"] == str(saved)
    assert found["conditional"]["source"] == f"file:{corpus}"
    assert found["conditional"]["greedy"]["texts"]
    assert found["conditional"]["protocol"]["seed"] == found["unconditional"]["protocol"]["seed"] == 2


def test_a_judge_reads_plain_text(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"judge is None: .* set --judge"):
        open_judge(SampleOptions())
    with pytest.raises(InputError, match="contains no model"):
        open_judge(SampleOptions(judge=str(tmp_path)))
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    recipe = Recipe(
        name="x/y", description="", model={"model_type": "gpt2"}, train=TrainConfig(steps=1),
        layout=Marked(),
    )  # fmt: skip
    (tmp_path / "mentalese.json").write_text(json.dumps({"recipe": recipe.to_dict()}))
    with pytest.raises(InputError, match="'marked', use a model of plain text"):
        open_judge(SampleOptions(judge=str(tmp_path)))


def test_without_mauve_its_extra_is_named(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mauve", None)
    with pytest.raises(InputError, match=r"pip install 'mentalese\[mauve\]"):
        open_judge(SampleOptions(judge=str(saved), kind="conditional"))
    open_judge(SampleOptions(judge=str(saved)))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("sample", "set --judge"),
        ("sample --judge no-such-judge", "no-such-judge contains no model"),
        ("sample --judge gpt2 --kind conditional --samples 0", "samples is 0: it should be"),
        ("sample --judge gpt2 --temperature 0", "temperature is 0.0: it should be"),
        ("sample --judge gpt2 --detokenizer ptb", "detokenizer is 'ptb': unconditional samples have no prompts"),
        (
            "sample --judge gpt2 --decoding greedy --temperature 0.5",
            "temperature is 0.5: greedy decoding draws nothing",
        ),
        ("sample --judge gpt2 --kind both --decoding greedy --draws 2", "draws is 2: greedy decoding draws nothing"),
        ("sample --judge gpt2 --joined", "--joined"),
        ("eval --tasks perplexity --judge gpt2", "--judge"),
        ("eval --tasks perplexity --shots 5", "shots is 5: perplexity cannot use it, remove it"),
        ("eval --tasks perplexity --temperature 0.5", "--temperature"),
        ("eval --tasks reversal --detokenizer ptb", "detokenizer is 'ptb': reversal cannot use it, remove it"),
        ("answer --joined", "--joined"),
        ("diff other --judge gpt2", "--judge"),
    ],
)
def test_unusable_task_options_are_refused_before_loading(
    options: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *words = options.split()
    assert cli.main([command, "no-such-run", *words]) == 2
    assert says in capsys.readouterr().err
