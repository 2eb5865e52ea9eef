"""Sentences: nothing is lost, order is kept, and none is over the cap."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mentalese import DataConfig, InputError
from mentalese.data.builtin import stdlib
from mentalese.data.documents import Document, record
from mentalese.data.prompts import PromptEncoder
from mentalese.data.sentences import SentenceEncoder, align, clause_ends, cut_and_merge, open_splitter
from mentalese.data.sources import open_source
from mentalese.data.tokenizers import add_markers, corpus_encoder, open_tokenizer

TEXT = "Dr. Smith  went home.\n\nHe slept!  “Did he?” she asked.\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    return open_tokenizer("bpe:600", open_source("builtin:families"), cache=tmp_path_factory.mktemp("c"), show=False)


@pytest.mark.parametrize("name", ["sentencex", "syntok"])
def test_splitters_find_sentences_and_lose_nothing(name: str) -> None:
    split, version = open_splitter(name)
    assert name in version
    sentences = split(TEXT)
    assert sentences[:3] == ["Dr. Smith  went home.", "\n\nHe slept!", "  “Did he?” she asked.\n"]
    for document in stdlib()[:40]:
        assert "".join(split(document.text)) == document.text


@pytest.mark.parametrize("name", ["sentencex", "syntok", "none"])
@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.one_of(st.sampled_from(" .?!\n\r\t\"'()“”aA1。\u2028\x85\u3000é😀"), st.characters(codec="utf-8")))
)
def test_sentences_join_to_any_text_again(name: str, text: str) -> None:
    sentences = open_splitter(name)[0](text)
    assert "".join(sentences) == text
    assert all(sentence.strip() for sentence in sentences) or len(sentences) == 1


class FakeSaT:
    """Stands in for `wtpsplit.SaT`, whose weights come over the network; keeps its name, arguments and results.

    As there, sentences keep the spaces after them and line ends are lost.
    """

    calls: ClassVar[list[tuple[str, float]]] = []

    def __init__(self, name: str) -> None:
        self.name = name

    def split(self, text: str, threshold: float | None = None) -> list[str]:
        self.calls.append((self.name, threshold or 0.0))
        return [
            piece for line in text.split("\n") for piece in re.findall(r"[^.!?]*[.!?]+[”\"]* *|[^.!?]+", line) or [""]
        ]


@pytest.fixture
def wtpsplit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("wtpsplit")
    module.SaT = FakeSaT  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wtpsplit", module)
    monkeypatch.setattr("mentalese.data.sentences.version", {"wtpsplit": "2.2.0"}.__getitem__)
    monkeypatch.setattr(FakeSaT, "calls", [])
    return module


def test_sat_uses_the_papers_threshold_and_loses_nothing(wtpsplit: ModuleType) -> None:
    split, version = open_splitter("sat")
    assert version == "sat-3l-sm at 0.15, wtpsplit 2.2.0"
    assert split("He slept!  “Did he?” she asked.\n\n Yes. \n") == [
        "He slept!",
        "  “Did he?”",
        " she asked.",
        "\n\n Yes. \n",
    ]
    assert FakeSaT.calls == [("sat-3l-sm", 0.15)]
    for document in stdlib()[:40]:
        sentences = split(document.text)
        assert "".join(sentences) == document.text
        assert len(sentences) > 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.sampled_from(' .?!\n\r\t"aA1。\u2028\u3000é😀')))
def test_sentences_of_sat_join_to_the_text(wtpsplit: ModuleType, text: str) -> None:
    assert "".join(open_splitter("sat")[0](text)) == text


def test_sat_without_its_weights_is_refused(wtpsplit: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(self: FakeSaT, name: str) -> None:
        raise OSError(f"cannot fetch {name}")

    monkeypatch.setattr(FakeSaT, "__init__", no_network)
    with pytest.raises(InputError, match=r"data.sentences is .sat.: its weights sat-3l-sm"):
        open_splitter("sat")


def test_white_space_belongs_to_the_sentence_it_precedes() -> None:
    assert align(" A b.  C d. \n", ["A b.", "C d."]) == [" A b.", "  C d. \n"]
    assert align("A b. C d.", ["A b. ", "C d."]) == ["A b.", " C d."]
    assert align("one two three", ["one", "not there", "three"]) == ["one", " two three"]


@st.composite
def documents(draw: st.DrawFn) -> tuple[list[int], np.ndarray]:
    lengths = draw(st.lists(st.integers(0, 40), max_size=25))
    total = sum(lengths)
    return lengths, np.array(draw(st.lists(st.booleans(), min_size=total, max_size=total)), dtype=bool)


@settings(max_examples=200, deadline=None)
@given(documents(), st.integers(1, 6), st.integers(1, 12))
def test_sentences_are_within_bounds_where_possible(
    document: tuple[list[int], np.ndarray], minimum: int, room: int
) -> None:
    (lengths, may_cut), cap = document, minimum + room
    result, cut, merged = cut_and_merge(lengths, may_cut, minimum=minimum, cap=cap)
    assert sum(result) == sum(lengths)
    assert all(0 < length <= cap for length in result)
    assert cut == sum(length > cap for length in lengths)
    for i, length in enumerate(result):
        if length < minimum:
            assert i + 1 == len(result) or result[i + 1] + length > cap
    old, new = set(np.cumsum(lengths).tolist()), set(np.cumsum(result).tolist())
    if not cut:
        assert new <= old, "sentences are merged, never moved"
        assert merged == sum(length > 0 for length in lengths) - len(result)
    if minimum == 1 and not merged:
        assert old - {0} <= new, "a cut adds ends and takes none away"


def test_a_long_sentence_is_cut_after_punctuation() -> None:
    may_cut = np.zeros(30, dtype=bool)
    may_cut[[6, 8, 20]] = True
    assert cut_and_merge([30], may_cut, minimum=2, cap=10) == ([9, 10, 2, 9], 1, 0)
    assert cut_and_merge([25], np.zeros(25, dtype=bool), minimum=2, cap=10) == ([10, 10, 5], 1, 0)


def test_a_short_sentence_joins_the_next_or_else_the_one_before() -> None:
    none = np.zeros(100, dtype=bool)
    assert cut_and_merge([1, 5, 1, 1, 6], none, minimum=3, cap=10)[0] == [6, 8]
    assert cut_and_merge([5, 1], none, minimum=3, cap=10) == ([6], 0, 1)
    assert cut_and_merge([5, 1, 10], none, minimum=3, cap=10) == ([6, 10], 0, 1)
    assert cut_and_merge([10, 1, 10], none, minimum=3, cap=10) == ([10, 1, 10], 0, 0)


def test_clauses_end_at_punctuation_before_white_space(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = np.array(
        corpus_encoder(tokenizer).encode("It cost 1,000 (or so), she said: yes", add_special_tokens=False).ids
    )
    ends = np.flatnonzero(clause_ends(tokenizer)(ids))
    assert [tokenizer.decode(ids[: end + 1]) for end in ends] == [
        "It cost 1,000 (or so),",
        "It cost 1,000 (or so), she said:",
    ]


def test_tokens_are_those_of_each_sentence_by_itself(tokenizer: PreTrainedTokenizerFast) -> None:
    encoder = SentenceEncoder(tokenizer, DataConfig(min_sentence_tokens=1, max_sentence_tokens=1000))
    encoded = encoder([Document(TEXT), Document("One. Two.")])
    backend = corpus_encoder(tokenizer)
    start = 0
    for text, lengths in zip((TEXT, "One. Two."), encoded.lengths):
        for sentence, length in zip(open_splitter("sentencex")[0](text), lengths, strict=True):
            assert encoded.tokens[start : start + length].tolist() == backend.encode(sentence).ids
            start += length
    assert start == len(encoded.tokens)


@pytest.mark.parametrize("kind", ["Llama 2", "Metaspace", "ByteLevel"])
@pytest.mark.parametrize("sentences", ["sentencex", "none"])
def test_a_prefix_space_is_only_before_the_first_sentence(kind: str, sentences: str) -> None:
    text = "The cat sat down. The dog ran off.\nThey met again."
    backend = Tokenizer(models.BPE())
    if kind == "Llama 2":
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        backend.normalizer = normalizers.Sequence(steps)  # type: ignore[assignment]
    else:
        backend.pre_tokenizer = getattr(pre_tokenizers, kind)()  # type: ignore[assignment]
    backend.train_from_iterator([text], trainers.BpeTrainer(vocab_size=40, show_progress=False))
    tokenizer = add_markers(PreTrainedTokenizerFast(tokenizer_object=backend))

    def read(ids: list[int]) -> str:
        return re.sub("[▁Ġ]", " ", "".join(tokenizer.convert_ids_to_tokens(ids))).replace("Ċ", "\n")

    data = DataConfig(sentences=sentences, min_sentence_tokens=1)
    encoder, prompts = SentenceEncoder(tokenizer, data), PromptEncoder(tokenizer, data)
    assert read(encoder([Document(text), Document(text)]).tokens.tolist()) == f" {text} {text}"
    row = prompts.sentences(text)
    assert read([index for index, span in zip(row.ids, row.spans) if span is not None]) == f" {text}"
    assert read(prompts.text(" They sat", continues=True).ids) == " They sat"


def test_segments_are_encoded_some_at_a_time(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [Document(f"{TEXT} Number {number}. " * 20) for number in range(5)]
    encoder = SentenceEncoder(tokenizer, DataConfig())
    at_once = encoder(documents)
    batches: list[int] = []
    original = SentenceEncoder._ids

    def counting(self: SentenceEncoder, parts: list[tuple[str, bool]]) -> list[list[int]]:
        batches.append(sum(len(part) for part, _ in parts))
        return original(self, parts)

    monkeypatch.setattr(SentenceEncoder, "_ids", counting)
    monkeypatch.setattr("mentalese.data.sentences._BATCH_CHARACTERS", 100)
    some = encoder(documents)
    assert len(batches) > 20
    assert max(batches) < 200
    assert np.array_equal(some.tokens, at_once.tokens)
    assert some.lengths == at_once.lengths


def test_what_ends_a_clause_is_looked_up_once_for_all_contexts(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def counted(*settings: Any) -> SentenceEncoder:
        made.append(settings)
        return SentenceEncoder(*settings)

    monkeypatch.setattr("mentalese.data.prompts.SentenceEncoder", counted)
    encoder = PromptEncoder(tokenizer, DataConfig(min_sentence_tokens=1))
    assert not made  # texts that are not split need no splitter
    contexts = ["", "This has.", "This has. Two"]
    rows = [encoder.after(context).sentences("This has. Two sentences.") for context in contexts]
    assert all(rows)
    assert len(made) == 1


def test_parts_of_records_are_neither_cut_nor_merged(tokenizer: PreTrainedTokenizerFast) -> None:
    settings_ = {"min_sentence_tokens": 3, "max_sentence_tokens": 8}
    known = Document.join(["This has. Two sentences.", " This has one."])
    assert len(SentenceEncoder(tokenizer, DataConfig(max_sentence_tokens=99))([known]).lengths[0]) == 2
    row = record("What is the sum of all the numbers that one can think of in a day?", ["1"], "2")
    encoded = SentenceEncoder(tokenizer, DataConfig(**settings_), "records")([row])
    assert len(encoded.lengths[0]) == 3
    assert (encoded.cut, encoded.merged) == (0, 0)


def test_fixed_spans_and_no_sentences_at_all(tokenizer: PreTrainedTokenizerFast) -> None:
    text = Document("A few words. " * 20, ("A few words. ",) * 20)
    total = len(corpus_encoder(tokenizer).encode(text.text).ids)
    fixed = SentenceEncoder(tokenizer, DataConfig(sentences="fixed:7"))([text])
    assert fixed.lengths == [[7] * (total // 7) + ([total % 7] if total % 7 else [])]
    assert SentenceEncoder(tokenizer, DataConfig(sentences="none"))([text]).lengths == [[total]]


def test_unknown_and_missing_splitters_say_what_would_do() -> None:
    with pytest.raises(InputError, match="did you mean 'sentencex'"):
        open_splitter("sentencx")
    for name in ("fixed:0", "fixed:", "fixed:x"):
        with pytest.raises(InputError, match="positive N"):
            open_splitter(name)


def test_an_extra_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wtpsplit", None)
    monkeypatch.setitem(sys.modules, "syntok.segmenter", None)
    for name in ("sat", "syntok"):
        with pytest.raises(InputError, match=rf"mentalese\[{name}\]"):
            open_splitter(name)
