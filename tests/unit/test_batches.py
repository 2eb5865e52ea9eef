"""Evaluation scores every token once whatever the rows look like; prompts are read as training read its text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from mentalese import Recipe, TrainConfig
from mentalese.data.documents import Document, one_line
from mentalese.data.evaluation import evaluation_batches
from mentalese.data.layouts import Layout, Marked, Packed, PerDocument, QuestionAnswer, SentenceStreams, layout_class
from mentalese.data.sentences import SentenceEncoder
from mentalese.data.split import Split
from mentalese.data.tokenizers import BOS, EOD, EOS, decode, special_token_ids
from mentalese.errors import InputError
from mentalese.recipe import DataConfig, EvaluationConfig
from support import MARKERS, make_split


def batches_of(split: Split, kind: str, length: int = 256, **evaluation: Any) -> list[dict[str, Any]]:
    layout = SentenceStreams() if kind == "sentence_streams" else layout_class(kind)(sequence_length=length)  # type: ignore[call-arg]
    return list(evaluation_batches(split, layout, EvaluationConfig(**evaluation), MARKERS))


def scored(batches: list[dict[str, Any]]) -> list[int]:
    """All labels that `token_nll` scores, sorted."""
    return sorted(t for b in batches for t in b["labels"][:, 1:].flatten().tolist() if t != -100)


# -- evaluation --------------------------------------------------------------------------------------------------------

corpora = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=6)
few = settings(max_examples=80, deadline=None)


@few
@given(corpora, st.integers(2, 12), st.data(), st.integers(1, 7))
def test_blocks_and_sentences_score_each_lexical_token_once(
    documents: Any, length: int, data: Any, batch_size: int
) -> None:
    split = make_split(*documents)
    stride = data.draw(st.one_of(st.none(), st.integers(1, length - 1)))
    lexical = sorted(t for t in split.tokens.tolist() if t >= 10)
    for kind in ("packed", "per_document", "marked"):
        windows = batches_of(split, kind, context_length=length, stride=stride, batch_size=batch_size)
        assert scored(windows) == lexical
    assert scored(batches_of(split, "sentence_streams", batch_size=batch_size)) == lexical


@few
@given(corpora, st.integers(2, 12))
def test_all_also_scores_the_ends_of_documents_and_of_sentences(documents: Any, length: int) -> None:
    split = make_split(*documents)
    everything = sorted(split.tokens.tolist())
    assert scored(batches_of(split, "packed", length, tokens="all")) == everything
    ends = [2] * sum(map(len, documents))
    for kind in ("sentence_streams", "marked"):
        assert scored(batches_of(split, kind, length, tokens="all")) == sorted(everything + ends)


@few
@given(corpora, st.integers(2, 12), st.sampled_from(["packed", "per_document", "marked", "sentence_streams"]))
def test_a_label_knows_its_place_in_the_store(documents: Any, length: int, kind: str) -> None:
    split = make_split(*documents)
    for batch in batches_of(split, kind, length, tokens="all"):
        index, labels = batch["store_index"], batch["labels"]
        stored = index >= 0
        assert labels[stored].tolist() == split.tokens[index[stored].numpy()].tolist()
        assert set(labels[~stored].tolist()) <= {-100, 2}


@few
@given(corpora, st.integers(2, 12))
def test_windows_stay_inside_a_document_and_start_after_its_eod(documents: Any, length: int) -> None:
    split = make_split(*documents)
    for batch in batches_of(split, "packed", length, batch_size=3):
        assert batch["input_ids"].shape[1] <= length
        for ids in batch["input_ids"].tolist():
            assert 3 not in ids[1:]
            row = [i for i in ids if i != 0]
            at = int(np.flatnonzero(split.tokens == row[1])[0])
            assert row[1:] == split.tokens[at : at + len(row) - 1].tolist()


@pytest.mark.parametrize("kind", ["packed", "marked"])
def test_swapped_windows_are_of_different_documents(kind: str) -> None:
    """Neighbouring windows of one document are nearly one text: their thoughts do not control each other."""
    split = make_split(*[[12] * 6] * 5)
    batches = batches_of(split, kind, 8, stride=7, batch_size=4)
    assert len(batches) > 10
    for batch in batches:
        firsts = [int(row[row >= 0][0]) for row in batch["store_index"]]
        documents = np.searchsorted(split.documents, firsts, side="right")
        assert len(firsts) == 1 or (documents != np.roll(documents, 1)).all()


@few
@given(corpora, st.integers(2, 12), st.data(), st.sampled_from(["packed", "per_document"]))
def test_joined_documents_are_scored_once_in_blocks(documents: Any, length: int, data: Any, kind: str) -> None:
    split, count = make_split(*documents), data.draw(st.integers(1, len(documents)))
    tokens = split.tokens[: split.documents[count]].tolist()
    options = {"context_length": length, "joined": True, "max_documents": count, "batch_size": 3}
    for scoring, wanted in (("lexical", [t for t in tokens if t >= 10]), ("all", tokens)):
        batches = batches_of(split, kind, tokens=scoring, **options)
        assert scored(batches) == sorted(wanted)
        rows, places = [], []
        for batch in batches:
            mask = batch.get("attention_mask", torch.ones_like(batch["labels"])).bool()
            rows += [ids[real].tolist() for ids, real in zip(batch["input_ids"], mask)]
            stored = batch["store_index"] >= 0
            assert batch["labels"][stored].tolist() == split.tokens[batch["store_index"][stored].numpy()].tolist()
            places += batch["store_index"][stored].tolist()
        assert len(places) == len(set(places)) == len(wanted)
        text = [3, *tokens[: len(tokens) - (scoring == "lexical")]]
        blocks = [text[i : i + length] for i in range(0, len(text) - 1, length - 1)]
        assert sorted(rows) == sorted(blocks)


def test_joined_windows_may_overlap_and_are_of_blocks_alone() -> None:
    batches = batches_of(make_split([2], [3]), "packed", context_length=4, stride=2, joined=True, batch_size=1)
    rows = sorted((b["input_ids"].tolist()[0], b["labels"].tolist()[0]) for b in batches)
    assert rows == [
        ([3, 10, 11, 3], [-100, 10, 11, -100]),
        ([11, 3, 13, 14], [-100, -100, 13, 14]),
        ([13, 14, 15], [-100, -100, 15]),
    ]
    for kind in ("marked", "sentence_streams", "qa"):
        with pytest.raises(InputError, match=rf"evaluation.joined is True: layout '{kind}' does not join"):
            batches_of(make_split([2], [3]), kind, joined=True)
    with pytest.raises(InputError, match=r"evaluation\.joined is True"):
        Recipe(
            name="x/y", description="", model={"model_type": "gpt2"}, train=TrainConfig(steps=1),
            layout=SentenceStreams(), evaluation=EvaluationConfig(joined=True),
        )  # fmt: skip


def test_later_windows_score_stride_new_tokens_after_the_context() -> None:
    batches = batches_of(make_split([10]), "packed", context_length=6, stride=2, batch_size=1)
    rows = sorted((b["input_ids"].tolist()[0], b["labels"].tolist()[0]) for b in batches)
    assert rows == [
        ([3, 10, 11, 12, 13, 14], [-100, 10, 11, 12, 13, 14]),
        ([11, 12, 13, 14, 15, 16], [-100] * 4 + [15, 16]),
        ([13, 14, 15, 16, 17, 18], [-100] * 4 + [17, 18]),
        ([15, 16, 17, 18, 19], [-100] * 4 + [19]),
    ]


def test_marked_windows_stay_in_a_document() -> None:
    batches = batches_of(make_split([2, 1], [3], [0]), "marked", context_length=5, stride=2, batch_size=1)
    rows = sorted((b["input_ids"].tolist()[0], b["labels"].tolist()[0]) for b in batches)
    assert rows == [
        ([1, 10, 11, 2, 1], [-100, 10, 11, -100, -100]),
        ([1, 14, 15, 16], [-100, 14, 15, 16]),
        ([11, 2, 1, 12], [-100, -100, -100, 12]),
    ]


def test_sentences_are_whole_documents_with_markers() -> None:
    (batch,) = batches_of(make_split([2, 1], [1] * 100), "sentence_streams")
    assert (batch["input_ids"] == 1).sum(1).tolist() == [100, 2]
    short = batch["input_ids"][1][batch["attention_mask"][1].bool()]
    assert short.tolist() == [1, 10, 11, 2, 1, 12, 3, 2]
    assert batch["labels"][1, :8].tolist() == [-100, 10, 11, -100, -100, 12, -100, -100]


def test_a_records_question_is_context_only() -> None:
    (batch,) = batches_of(make_split([2, 2], [3, 1, 1]), "qa")
    assert batch["question_lengths"].tolist() == [3, 2]
    assert scored([batch]) == [12, 13, 18, 19]
    with pytest.raises(InputError, match=r"layout.sequence_length is 5: 1 of 2 questions are longer; set at least 6"):
        evaluation_batches(
            make_split([2, 2], [3, 1, 1]), QuestionAnswer(sequence_length=5), EvaluationConfig(), MARKERS
        )


@pytest.mark.parametrize("kind", ["packed", "per_document", "marked", "sentence_streams", "qa"])
def test_maximum_of_documents_limits_scoring_to_the_first(kind: Any) -> None:
    split = make_split([2, 3], [1, 4], [5, 1])
    first = make_split([2, 3], [1, 4])
    assert scored(batches_of(split, kind, max_documents=2)) == scored(batches_of(first, kind))
    assert scored(batches_of(split, kind, max_documents=9)) == scored(batches_of(split, kind))


def test_evaluation_is_the_same_each_time_and_wastes_little() -> None:
    lengths = np.random.default_rng(0).integers(1, 200, size=(300, 3)).tolist()
    split = make_split(*lengths)
    for kind in ("packed", "sentence_streams"):
        once, again = (batches_of(split, kind, 64) for _ in range(2))
        assert all(torch.equal(a["input_ids"], b["input_ids"]) for a, b in zip(once, again))
    masks = [b.get("attention_mask", torch.ones_like(b["labels"])).float() for b in batches_of(split, "packed", 64)]
    assert sum(m.sum() for m in masks) / sum(m.numel() for m in masks) > 0.98


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ({"stride": 256}, "evaluation.stride is 256: set .* below the context \\(256\\)"),
        ({"context_length": 1}, "evaluation.context_length is 1: it should be"),
    ],
    ids=["stride", "context"],
)
def test_windows_that_cannot_be_are_refused_at_the_call(evaluation: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluation_batches(make_split([3]), Packed(), EvaluationConfig(**evaluation), MARKERS)


# -- prompts -----------------------------------------------------------------------------------------------------------


SENTENCES = DataConfig(sentences="sentencex", max_sentence_tokens=64)


def prompt(tokenizer: PreTrainedTokenizerFast, text: str, layout: Layout, data: DataConfig = SENTENCES) -> str:
    """What a model reads, markers spelt out."""
    batch = layout.encode_prompts([text], tokenizer, data)
    assert batch["attention_mask"].all()
    return tokenizer.decode(batch["input_ids"][0])


def test_a_document_starts_after_the_end_of_another(tokenizer: Any) -> None:
    for layout in (Packed(), PerDocument()):
        assert prompt(tokenizer, "Once upon", layout) == EOD + "Once upon"


def test_a_record_starts_with_its_question(tokenizer: Any) -> None:
    assert prompt(tokenizer, "2 + 2 =", QuestionAnswer()) == "2 + 2 =\n"


def test_the_last_sentence_is_left_open(tokenizer: Any) -> None:
    for layout in (SentenceStreams(), Marked()):
        assert prompt(tokenizer, "He left. She sta", layout) == f"{BOS}He left.{EOS}{BOS} She sta"
        assert prompt(tokenizer, "He left.", layout) == f"{BOS}He left."


def test_sentence_starts_are_not_merged_with_the_previous_one(tokenizer: Any) -> None:
    assert prompt(tokenizer, "He left. S", SentenceStreams()) == f"{BOS}He left.{EOS}{BOS} S"


def test_sentences_are_capped_and_merged_as_in_training(tokenizer: Any) -> None:
    short = DataConfig(min_sentence_tokens=12)
    assert prompt(tokenizer, "No. He left. S", SentenceStreams(), short) == f"{BOS}No. He left.{EOS}{BOS} S"
    long = DataConfig(max_sentence_tokens=10)
    assert (
        prompt(tokenizer, "One, two, three, four", SentenceStreams(), long)
        == f"{BOS}One, two,{EOS}{BOS} three,{EOS}{BOS} four"
    )


@few
@given(
    st.sampled_from(["sentencex", "none", "fixed:7"]),
    st.lists(st.sampled_from(["No.", "He left.", "She stayed, he did not.", "so " * 9 + "on."]), max_size=8),
)
def test_a_prompt_is_divided_as_the_store_divides_a_document(tokenizer: Any, splitter: str, sentences: Any) -> None:
    text = " ".join([*sentences, "This one is long enough to stand alone."])
    data = DataConfig(sentences=splitter, min_sentence_tokens=9, max_sentence_tokens=40)
    stored = SentenceEncoder(tokenizer, data)([Document(text)])
    special = special_token_ids(tokenizer)
    bos, eos = special["sentence_start_token_id"], special["sentence_end_token_id"]
    expected = [[bos, *ids.tolist(), eos] for ids in np.split(stored.tokens, np.cumsum(stored.lengths[0])[:-1])]
    row = SentenceStreams().encode_prompts([text], tokenizer, data)["input_ids"][0].tolist()
    assert [*row, eos] == [token for sentence in expected for token in sentence]


def test_fixed_spans_and_undivided_documents(tokenizer: Any) -> None:
    fixed = DataConfig(sentences="fixed:5")
    assert prompt(tokenizer, "He left. She", SentenceStreams(), fixed) == f"{BOS}He le{EOS}{BOS}ft. S{EOS}{BOS}he"
    assert prompt(tokenizer, "He le", SentenceStreams(), fixed) == f"{BOS}He le"
    whole = DataConfig(sentences="none")
    assert prompt(tokenizer, "He left. She", SentenceStreams(), whole) == f"{BOS}He left. She"


def test_prompts_are_padded_on_the_left(tokenizer: Any) -> None:
    batch = Packed().encode_prompts(["a", "abc"], tokenizer, DataConfig())
    special = special_token_ids(tokenizer)
    pad, eod = special["pad_token_id"], special["eos_token_id"]
    assert batch["input_ids"].tolist()[0][:3] == [pad, pad, eod]
    assert batch["attention_mask"].tolist() == [[0, 0, 1, 1], [1, 1, 1, 1]]
    assert batch["input_ids"].dtype == batch["attention_mask"].dtype == torch.int64


@few
@given(
    st.lists(st.sampled_from(["He left.", "She", " ", "\n", BOS, EOS, EOD, "x" * 70, "é?", "1.5"]), min_size=1).map(
        " ".join
    )
)
def test_a_prompts_text_is_kept_with_markers_names_as_plain_text(tokenizer: Any, text: str) -> None:
    for layout in (Packed(), SentenceStreams(), QuestionAnswer()):
        if not text.strip():
            with pytest.raises(InputError, match=r"prompts\[0\] is .*: use a prompt with some text"):
                layout.encode_prompts([text], tokenizer, SENTENCES)
            continue
        ids = layout.encode_prompts([text], tokenizer, SENTENCES)["input_ids"][0]
        read = f"{one_line(text)}\n" if layout.questions else text
        assert decode(ids, tokenizer) == decode(ids.tolist(), tokenizer) == read
        if layout.markers:
            special = special_token_ids(tokenizer)
            row, bos, eos = ids.tolist(), special["sentence_start_token_id"], special["sentence_end_token_id"]
            assert row.count(bos) == row.count(eos) + 1
            assert row[-1] != eos


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_an_empty_prompt_is_refused_by_its_number(tokenizer: Any, text: str) -> None:
    with pytest.raises(InputError, match=r"prompts\[1\] is .*: use a prompt with some text"):
        SentenceStreams().encode_prompts(["fine", text], tokenizer, SENTENCES)
