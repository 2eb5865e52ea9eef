"""Tokenizers: markers that no text can produce, nothing lost, the same merges from the same text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mentalese import InputError
from mentalese.data import tokenizers
from mentalese.data.documents import Source
from mentalese.data.sources import open_source
from mentalese.data.tokenizers import (
    BOS,
    EOD,
    EOS,
    MARKERS,
    PAD,
    add_markers,
    corpus_encoder,
    load_pretrained_tokenizer,
    open_tokenizer,
    special_token_ids,
    tokenizer_fingerprint,
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    path = tmp_path_factory.mktemp("source") / "a.jsonl"
    rows = [{"text": f"The {i}th document says <|eos|> and “hello”. It's naïve, isn't it?\n"} for i in range(200)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return open_source(f"file:{path}")


@pytest.fixture(scope="module")
def tokenizer(source: Source, tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    return open_tokenizer("bpe:400", source, cache=tmp_path_factory.mktemp("cache"), show=False)


def test_every_marker_has_one_id(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = special_token_ids(tokenizer)
    assert ids["pad_token_id"] == tokenizer.pad_token_id == tokenizer.convert_tokens_to_ids(PAD)
    assert ids["bos_token_id"] == ids["eos_token_id"] == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids(EOD)
    assert ids["sentence_start_token_id"] == tokenizer.convert_tokens_to_ids(BOS)
    assert ids["sentence_end_token_id"] == tokenizer.convert_tokens_to_ids(EOS)
    assert len(set(ids.values())) == 4
    assert len(tokenizer) <= 400


@settings(max_examples=100, deadline=None)
@given(text=st.lists(st.one_of(st.sampled_from([*MARKERS, " ", "<|", "|>"]), st.text(max_size=9))).map("".join))
def test_no_text_becomes_a_marker_and_none_is_lost(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = corpus_encoder(tokenizer).encode(text, add_special_tokens=False).ids
    assert not set(ids) & set(special_token_ids(tokenizer).values())
    assert tokenizer.decode(ids) == text


def test_encoding_adds_nothing(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.decode(tokenizer("Hello there")["input_ids"]) == "Hello there"
    assert tokenizer.decode(tokenizer(f"{BOS}Hello{EOS}")["input_ids"], skip_special_tokens=True) == "Hello"


def test_training_is_deterministic_and_cached(source: Source, tmp_path: Path) -> None:
    first = open_tokenizer("bpe:350", source, cache=tmp_path / "a", show=False)
    other = open_tokenizer("bpe:350", source, cache=tmp_path / "b", show=False)
    assert tokenizer_fingerprint(first) == tokenizer_fingerprint(other)
    (written,) = (tmp_path / "a" / "tokenizers").glob("*/tokenizer.json")
    untouched = written.stat().st_mtime_ns
    again = open_tokenizer("bpe:350", source, cache=tmp_path / "a", show=False)
    assert written.stat().st_mtime_ns == untouched
    assert tokenizer_fingerprint(again) == tokenizer_fingerprint(first)
    assert tokenizer_fingerprint(open_tokenizer("bpe:351", source, cache=tmp_path, show=False)) != (
        tokenizer_fingerprint(first)
    )


def test_one_large_document_is_enough_to_learn_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "_TRAINING_BYTES", 2000)
    for split, times in (("train", 900), ("validation", 1), ("test", 2)):
        (tmp_path / f"{split}.txt").write_text("the cat sat on the mat " * times)
    learned = open_tokenizer("bpe:280", open_source(f"file:{tmp_path}"), cache=tmp_path / "cache", show=False)
    assert len(learned) > 265  # more than bytes and markers
    assert len(learned("the cat sat")["input_ids"]) < len("the cat sat") / 2


def test_a_saved_tokenizer_is_the_same_through_transformers(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    plain = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer_fingerprint(plain) == tokenizer_fingerprint(tokenizer)
    assert tokenizer_fingerprint(load_pretrained_tokenizer(str(tmp_path))) == tokenizer_fingerprint(tokenizer)
    assert special_token_ids(plain) == special_token_ids(tokenizer)
    assert tokenizer_fingerprint(add_markers(plain)) == tokenizer_fingerprint(tokenizer)
    text = f"It's , naïve .  {BOS}So?{EOS}"
    assert plain.decode(plain(text)["input_ids"]) == text


def test_padding_and_truncation_do_not_change_the_fingerprint(tokenizer: PreTrainedTokenizerFast) -> None:
    before = tokenizer_fingerprint(tokenizer)
    tokenizer(["a", "a longer text"], padding=True, truncation=True, max_length=2)
    assert tokenizer_fingerprint(tokenizer) == before


def test_markers_do_not_change_how_text_is_encoded(source: Source, tmp_path: Path) -> None:
    backend = Tokenizer(WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    backend.pre_tokenizer = Whitespace()
    plain = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?")
    plain.save_pretrained(tmp_path / "plain")
    with pytest.raises(
        InputError, match=r"lacks the markers <\|pad\|>, <\|bos\|>, <\|eos\|>, <\|endoftext\|>: add them"
    ):
        special_token_ids(plain)
    tokenizer = open_tokenizer(str(tmp_path / "plain"), source, cache=tmp_path)
    assert sorted(set(special_token_ids(tokenizer).values())) == [3, 4, 5, 6]
    assert tokenizer("a b b c")["input_ids"] == plain("a b b c")["input_ids"] == [0, 1, 1, 2]


def test_ids_with_gaps_are_refused() -> None:
    """The next free id is the number of tokens to the `tokenizers` library, even if a token has it."""
    backend = Tokenizer(WordLevel({"a": 0, "?": 1, "b": 5}, unk_token="?"))
    with pytest.raises(InputError, match=r"last id is 5: number its 3 tokens without gaps"):
        add_markers(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?"))


def test_gpt2_keeps_its_ids_and_gets_the_missing_markers(source: Source, shared_data: Path, tmp_path: Path) -> None:
    folder = str(shared_data / "tokenizers" / "gpt2")
    tokenizer = open_tokenizer(folder, source, cache=tmp_path)
    ids = special_token_ids(tokenizer)
    assert ids["eos_token_id"] == 50256
    assert sorted(set(ids.values())) == [50256, 50257, 50258, 50259]
    assert tokenizer("Hello world")["input_ids"] == [15496, 995]
    with pytest.raises(InputError, match=r"lacks the markers <\|pad\|>, <\|bos\|>, <\|eos\|>.*add_markers"):
        special_token_ids(load_pretrained_tokenizer(folder))


def test_bad_tokenizers_say_what_would_do(source: Source, tmp_path: Path) -> None:
    for spec in ("bpe:", "bpe:many", "bpe:100"):
        with pytest.raises(InputError, match="a SIZE of 260 to"):
            open_tokenizer(spec, source, cache=tmp_path)
    for spec in ("nowhere", str(tmp_path)):
        with pytest.raises(InputError, match="contains no tokenizer"):
            open_tokenizer(spec, source, cache=tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        open_tokenizer(str(tmp_path), source, cache=tmp_path)
    assert not (tmp_path / "tokenizers").exists()
