"""The token store: it holds exactly the text, is written whole or not at all, and notices every damage."""

from __future__ import annotations

import dataclasses
import json
import resource
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from mentalese import DataConfig, InputError, cli, get_recipe
from mentalese.data.documents import SPLITS
from mentalese.data.layouts import Marked, Packed, QuestionAnswer, SentenceStreams
from mentalese.data.sentences import open_splitter
from mentalese.data.sources import open_source
from mentalese.data.store import (
    before_preparing,
    open_store,
    prepare,
    report,
    source_fingerprint,
    tokenizer_in_folder,
)
from mentalese.data.tokenizers import special_token_ids, tokenizer_fingerprint
from mentalese.files import cache_dir, whole_folder
from mentalese.training.loop import Run
from mentalese.training.parallel import setup
from support import shrink


@pytest.fixture
def config(corpus: Path) -> DataConfig:
    return DataConfig(source=f"file:{corpus}", tokenizer="bpe:512", max_sentence_tokens=24, min_sentence_tokens=9)


@pytest.fixture
def prepared(config: DataConfig, tmp_path: Path) -> Path:
    return prepare(config, out=tmp_path / "prepared", show=False)[0].folder


def test_the_store_gives_every_document_back(config: DataConfig, tmp_path: Path) -> None:
    store, tokenizer = prepare(config, out=tmp_path / "store", show=False)
    source, eod = open_source(config.source), special_token_ids(tokenizer)["eos_token_id"]
    for name in SPLITS:
        split, documents = store.splits[name], list(source.documents(name))
        assert split.tokens.dtype == np.uint16
        assert len(split.documents) == len(documents) + 1
        assert split.documents[[0, -1]].tolist() == split.segments[[0, -1]].tolist() == [0, len(split.tokens)]
        assert (split.tokens[split.documents[1:] - 1] == eod).all()
        assert (split.tokens == eod).sum() == len(documents)
        assert (split.segments[split.document_segments] == split.documents).all()
        assert split.document_bytes.tolist() == [len(document.text.encode()) for document in documents]
        for document, (start, end) in zip(documents, pairwise(split.documents), strict=True):
            assert tokenizer.decode(split.tokens[start : end - 1]) == document.text
        lexical = np.diff(split.segments)
        lexical[split.document_segments[1:] - 1] -= 1
        assert lexical.max() <= config.max_sentence_tokens
        counts = store.meta["counts"][name]
        assert counts["tokens"] == len(split.tokens)
        assert counts["segments"] == len(split.segments) - 1
        assert name != "train" or counts["merged_sentences"] > 0


def test_chunks_do_not_show_in_the_result(
    config: DataConfig, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mentalese.data.sentences._BATCH_CHARACTERS", 1)
    store, _ = prepare(config, out=tmp_path / "one by one", show=False)
    assert store.meta["data_hash"] == open_store(prepared).meta["data_hash"]


def test_a_large_vocabulary_takes_wider_integers(tmp_path: Path) -> None:
    backend = Tokenizer(WordLevel({f"w{i}": i for i in range(70_000)}, unk_token="w0"))
    backend.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "words.jsonl").write_text("".join(json.dumps({"text": f"w{69_000 + i}"}) + "\n" for i in range(99)))
    config = DataConfig(source=f"file:{tmp_path / 'words.jsonl'}", tokenizer=str(tmp_path / "tokenizer"))
    store, _ = prepare(config, out=tmp_path / "store", show=False)
    tokens = np.concatenate([split.tokens for split in store.splits.values()])
    assert tokens.dtype == np.uint32
    assert set(range(69_000, 69_099)) <= set(tokens.tolist())


def test_the_same_inputs_and_settings_are_prepared_once(config: DataConfig) -> None:
    first, tokenizer = prepare(config, show=False)
    written = (first.folder / "meta.json").stat().st_mtime_ns
    again, same = prepare(config, Packed(batch_size=3, sequence_length=9), show=False)
    assert again.folder == first.folder
    assert (again.folder / "meta.json").stat().st_mtime_ns == written
    assert tokenizer_fingerprint(same) == tokenizer_fingerprint(tokenizer)
    for change in ({"max_sentence_tokens": 25}, {"sentences": "syntok"}, {"tokenizer": "bpe:400"}):
        assert prepare(dataclasses.replace(config, **change), show=False)[0].folder != first.folder


def test_a_prepared_folder_is_a_source(config: DataConfig, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, tokenizer = prepare(DataConfig(source=f"store:{prepared}"), show=False)
    _, original = prepare(config, show=False)
    assert store.folder == prepared
    assert tokenizer_fingerprint(tokenizer) == tokenizer_fingerprint(original) == store.meta["tokenizer_fingerprint"]
    monkeypatch.setenv("HOME", str(prepared.parent))
    at_home = DataConfig(source=f"store:~/{prepared.name}")
    assert prepare(at_home, show=False)[0].folder == prepared
    assert source_fingerprint(at_home) == source_fingerprint(config)
    assert tokenizer_in_folder(at_home, Packed()) == tokenizer_fingerprint(original)
    assert before_preparing(at_home).source == config.source
    with pytest.raises(InputError, match=r"min_sentence_tokens is 3.*was prepared with 9"):
        prepare(DataConfig(source=f"store:{prepared}"), SentenceStreams(), show=False)
    prepare(dataclasses.replace(config, source=f"store:{prepared}"), SentenceStreams(), show=False)
    with pytest.raises(InputError, match=r"text_column is 'body': store:.* contains tokens; use --text-column with"):
        prepare(DataConfig(source=f"store:{prepared}", text_column="body"), show=False)


def test_a_prepared_folder_names_its_own_tokenizer(config: DataConfig, prepared: Path) -> None:
    assert (
        before_preparing(dataclasses.replace(config, source=f"store:{prepared}", tokenizer="bpe:999")).tokenizer
        == "bpe:512"
    )
    assert before_preparing(dataclasses.replace(config, tokenizer="bpe:999")).tokenizer == "bpe:999"


def test_every_cut_or_flipped_byte_is_noticed(prepared: Path) -> None:
    open_store(prepared)
    files = [path for path in prepared.rglob("*") if path.is_file()]
    assert len(files) >= 3 * 5 + 2
    for path in files:
        content = path.read_bytes()
        damaged = bytearray(content)
        damaged[len(content) // 2] ^= 1
        for broken in (bytes(damaged), content[:-1], content[: len(content) // 2]):
            path.write_bytes(broken)
            with pytest.raises(InputError, match=rf"{path.name}.*prepare the data again"):
                open_store(prepared)
        path.unlink()
        with pytest.raises(InputError, match=f"{path.name}"):
            open_store(prepared)
        path.write_bytes(content)
    open_store(prepared)


def test_another_format_version_is_refused(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mentalese.data.store.FORMAT_VERSION", 99)
    with pytest.raises(InputError, match=r"format version 1.*reads 99"):
        open_store(prepared)


def test_a_folder_that_holds_something_else_is_left_alone(config: DataConfig, prepared: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="contains something else"):
        prepare(config, out=other, show=False)
    with pytest.raises(InputError, match="contains something else"):
        prepare(config, out=other / "thesis.txt", show=False)
    with pytest.raises(InputError, match="is a file, use a folder"):
        prepare(dataclasses.replace(config, tokenizer="bpe:301"), out=other / "thesis.txt" / "store", show=False)
    assert not list((cache_dir() / "tokenizers").glob("bpe-301-*"))  # it is found before a tokenizer is trained
    with pytest.raises(InputError, match="other data or settings"):
        prepare(dataclasses.replace(config, max_sentence_tokens=25), out=prepared, show=False)
    assert (other / "thesis.txt").read_text() == "mine"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert prepare(config, out=empty, show=False)[0].folder == empty


def test_bad_input_leaves_nothing_behind(config: DataConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "fine"}\n{"text": \n')
    with pytest.raises(InputError, match="line 2"):
        prepare(dataclasses.replace(config, source=f"file:{bad}"), out=out, show=False)
    with pytest.raises(InputError, match=r"at most data.max_sentence_tokens"):
        prepare(dataclasses.replace(config, sentences="fixed:25"), out=out, show=False)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]


def test_disk_error_gives_one_sentence_and_no_partial_file(config: DataConfig, tmp_path: Path) -> None:
    prepare(config, show=False)  # the tokenizer is trained and cached
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
    try:
        with pytest.raises(InputError, match=r"cannot be written.*make room or choose another place"):
            prepare(config, out=tmp_path / "out", show=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_two_processes_may_prepare_the_same_store_at_once(config: DataConfig, tmp_path: Path) -> None:
    code = (
        "import json, sys; from pathlib import Path; from mentalese import DataConfig\n"
        "from mentalese.data.store import prepare\n"
        "print(prepare(DataConfig(**json.loads(sys.argv[1])), out=Path(sys.argv[2]), show=False)[0].meta['data_hash'])"
    )
    arguments = [sys.executable, "-c", code, json.dumps(dataclasses.asdict(config)), str(tmp_path / "store")]
    running = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    hashes = [process.communicate()[0].strip() for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert hashes == [open_store(tmp_path / "store").meta["data_hash"]] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_the_loser_of_a_race_takes_the_winner_s_store(
    config: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, written = tmp_path / "store", []

    def slow_splitter(text: str) -> list[str]:
        if not written:
            written.append(True)
            written.append(prepare(config, out=out, show=False)[0].meta)
        return open_splitter("sentencex")[0](text)

    monkeypatch.setattr("mentalese.data.sentences.open_splitter", lambda name: (slow_splitter, "x"))
    store, _ = prepare(config, out=out, show=False)
    assert store.meta == written[1]
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def write_rows(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"file:{path}"


def test_text_without_sentence_ends_is_cut_and_reported(tmp_path: Path) -> None:
    text = " ".join(f"word{i}" for i in range(200))
    source = write_rows(tmp_path / "a.jsonl", [{"text": f"{i} {text}"} for i in range(40)])
    config = DataConfig(source=source, tokenizer="bpe:300", max_sentence_tokens=24)
    store, tokenizer = prepare(config, SentenceStreams(), out=tmp_path / "store", show=False)
    split = store.splits["train"]
    lengths = np.diff(split.segments)
    assert lengths.max() <= 24 + 1  # the end of the document
    assert len(lengths) > 10 * len(split.document_bytes)
    assert tokenizer.decode(split.tokens[: split.documents[1] - 1]).endswith(text)
    assert report(store, sentences=True) == ["40 sentences were longer than 24 tokens and cut"]
    assert report(store, sentences=False) == []


def test_training_says_what_was_cut_where_sentences_matter(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, told in (("gpt2/tiny", False), ("gpt2-boundaries/tiny", True)):
        recipe = shrink(get_recipe(name), corpus)
        recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, max_sentence_tokens=10))
        Run(recipe, tmp_path / "run", setup("cpu"), show=True)
        assert ("sentences were longer than 10 tokens and cut" in capsys.readouterr().err) == told


def test_empty_documents_are_left_out_and_counted(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"text": f"Document {i} is short. It ends."} for i in range(40)]
    whole, _ = prepare(DataConfig(source=write_rows(tmp_path / "a.jsonl", rows), tokenizer="bpe:300"), show=False)
    rows[3:3] = [{"text": ""}, {"text": " \n"}, {"text": None}]
    store, _ = prepare(DataConfig(source=write_rows(tmp_path / "b.jsonl", rows), tokenizer="bpe:300"), show=False)
    assert store.meta["data_hash"] == whole.meta["data_hash"]
    assert report(whole, sentences=True) == []
    assert report(store, sentences=False) == ["3 documents were empty and left out"]
    with pytest.raises(InputError, match="has no document left for train"):
        prepare(DataConfig(source=write_rows(tmp_path / "c.jsonl", [{"text": " "}] * 9)), show=False)


def test_texts_are_not_records_and_parts_not_sentences(config: DataConfig, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"layout is 'qa': .* contains texts; use rows with question"):
        prepare(config, QuestionAnswer(), out=tmp_path / "no", show=False)
    assert not list(tmp_path.iterdir())
    rows: list[dict[str, object]] = [{"question": f"{i}? " * 30, "steps": [], "answer": str(i)} for i in range(40)]
    records = DataConfig(source=write_rows(tmp_path / "r.jsonl", rows), tokenizer="bpe:300", max_sentence_tokens=9)
    for layout in (QuestionAnswer(), Packed(), Marked()):
        prepare(records, layout, out=tmp_path / "store", show=False)
    for source in (records.source, f"store:{tmp_path / 'store'}"):
        with pytest.raises(InputError, match=r"data.max_sentence_tokens is 9: .* parts are never cut, and one has"):
            prepare(dataclasses.replace(records, source=source), SentenceStreams(), show=False)


def test_folder_without_training_questions_is_only_evaluated(config: DataConfig, tmp_path: Path) -> None:
    folder = tmp_path / "questions"
    folder.mkdir()
    for split in ("valid", "test"):
        rows: list[dict[str, object]] = [{"question": f"{split} {i}?", "steps": [], "answer": "yes"} for i in range(5)]
        write_rows(folder / f"set_{split}.jsonl", rows)
    tokenizer = prepare(config, show=False)[1]
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    asked = DataConfig(source=f"file:{folder}", tokenizer=str(tmp_path / "tokenizer"))
    store, _ = prepare(asked, QuestionAnswer(), out=tmp_path / "store", to_train=False, show=False)
    assert {name: len(split.document_bytes) for name, split in store.splits.items()} == {"validation": 5, "test": 5}
    again = dataclasses.replace(asked, source=f"store:{tmp_path / 'store'}")
    assert list(prepare(again, QuestionAnswer(), to_train=False, show=False)[0].splits) == ["validation", "test"]
    with pytest.raises(InputError, match=r"questions contains no train file, only validation and test: add one"):
        prepare(asked, QuestionAnswer(), show=False)
    with pytest.raises(InputError, match=r"store contains only validation and test: use a store with a training split"):
        prepare(again, QuestionAnswer(), show=False)
    with pytest.raises(InputError, match="no train file"):  # nor a tokenizer to learn
        prepare(dataclasses.replace(asked, tokenizer="bpe:300"), QuestionAnswer(), to_train=False, show=False)


def test_records_keep_their_parts(tmp_path: Path) -> None:
    rows = [{"question": f"What is {i}+{i}?", "steps": [f"{i}+{i}={2 * i}"], "answer": str(2 * i)} for i in range(40)]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = DataConfig(source=f"file:{tmp_path / 'r.jsonl'}", tokenizer="bpe:300")
    store, tokenizer = prepare(config, QuestionAnswer(), out=tmp_path / "store", show=False)
    split = store.splits["train"]
    assert store.meta["kind"] == "records"
    assert (np.diff(split.document_segments) == 3).all()
    parts = [tokenizer.decode(split.tokens[a:b]) for a, b in zip(split.segments[:3], split.segments[1:4])]
    assert parts[0].startswith("What is")
    assert parts[1].endswith("\n")
    assert parts[2].startswith("### ")


@pytest.mark.parametrize("place", [".", "..", "/"])
def test_a_folder_without_a_name_is_not_written(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for old in (False, True):
        with (
            pytest.raises(InputError, match="use a name"),
            whole_folder(Path(place), replace=old),
        ):
            raise AssertionError("something is written")


def test_a_store_has_the_documents_that_were_held_out_for_it(tmp_path: Path) -> None:
    texts = [f"Document {i}. It is short." for i in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    source, folder = f"file:{tmp_path / 'a.jsonl'}", tmp_path / "store"
    arguments = ["--tokenizer", "bpe:300", "--held-out", "6", "--out", str(folder)]
    assert cli.main(["data", "prepare", source, *arguments]) == 0
    store = open_store(folder)
    sizes = {name: len(split.document_bytes) for name, split in store.splits.items()}
    assert sizes == {"train": 34, "validation": 3, "test": 3}
    usual, _ = prepare(DataConfig(source=source, tokenizer="bpe:300"), show=False)
    assert usual.meta["key"] != store.meta["key"]
    with pytest.raises(InputError, match=r"data.held_out is 6.*use --held-out with `mentalese data prepare`"):
        prepare(DataConfig(source=f"store:{folder}", held_out=6), show=False)
