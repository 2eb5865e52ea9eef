"""Sources: every document is in exactly one split, and whatever is malformed is named before work starts."""

from __future__ import annotations

import gzip
import json
import random
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mentalese import InputError, network
from mentalese.commands.options import read_text
from mentalese.data.documents import SPLITS, Document, Source, record
from mentalese.data.files import find_files
from mentalese.data.sources import is_one_text, open_source, opened_source
from mentalese.data.store import prepare
from mentalese.recipe import DataConfig


@pytest.fixture(autouse=True)
def _nothing_is_kept(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of the hub are kept by name; here one name has other texts in every test."""
    monkeypatch.setenv("MENTALESE_CACHE", str(tmp_path_factory.mktemp("cache")))


LONG = "A sentence that is long enough to be taken for a text, again and again, until it has a hundred characters. "


def jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def every_text(source: Source) -> list[str]:
    return [text for found in texts(source).values() for text in found]


def texts(source: Source) -> dict[str, list[str]]:
    return {split: [document.text for document in source.documents(split)] for split in SPLITS}


def numbered(count: int) -> list[dict]:
    return [{"text": f"Document {i}. It is short."} for i in range(count)]


def test_one_file_is_split_by_hashes_of_its_texts(tmp_path: Path) -> None:
    rows = numbered(1000)
    source = open_source(f"file:{jsonl(tmp_path / 'a.jsonl', rows)}")
    found = texts(source)
    assert sorted(every_text(source)) == sorted(row["text"] for row in rows)
    assert all(30 <= len(found[split]) <= 70 for split in ("validation", "test"))

    random.Random(0).shuffle(rows)
    again = texts(open_source(f"file:{jsonl(tmp_path / 'b.jsonl', [*rows, *numbered(1100)[1000:]])}"))
    for split in SPLITS:
        assert set(found[split]) <= set(again[split]), "order and later documents do not move a document"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=12), st.booleans(), st.booleans())
def test_no_two_splits_share_a_document(documents: list[str], with_validation: bool, with_test: bool) -> None:
    readers = {"train": lambda: iter([Document(text) for text in documents])}
    if with_validation:
        readers["validation"] = lambda: iter([Document("a"), Document("b")])
    if with_test:
        readers["test"] = lambda: iter([Document("b"), Document("ab")])
    try:
        source = Source("s", "text", readers)
    except InputError:
        distinct = set(documents) - ({"a", "b"} if with_validation else set()) - ({"b", "ab"} if with_test else set())
        assert len(distinct) <= 2 - with_validation - with_test
        return
    found = texts(source)
    assert all(found.values())
    for split in SPLITS:
        for other in SPLITS:
            assert split == other or not set(found[split]) & set(found[other])
    assert sum(map(len, found.values())) + sum(source.dropped.values()) == sum(1 for r in readers.values() for _ in r())
    assert all(source.size(split) == sum(map(len, found[split])) for split in SPLITS)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=12), st.integers(2, 8), st.booleans())
def test_the_last_documents_are_held_out(documents: list[str], held_out: int, with_test: bool) -> None:
    readers = {"train": lambda: iter([Document(text) for text in documents])}
    if with_test:
        readers["test"] = lambda: iter([Document("c")])
    half, parts = held_out // 2, 1 if with_test else 2
    last, before = documents[-half:], documents[-2 * half : -half]
    validation = [text for text in before if text not in last]
    rest = [text for text in documents[: -parts * half] if text not in documents[-parts * half :]]
    if not rest or not (with_test or validation):
        with pytest.raises(InputError, match=rf"no document left .*data\.held_out than {2 * half}"):
            Source("s", "text", readers, held_out=2 * half)
        return
    found = texts(Source("s", "text", readers, held_out=held_out))
    assert found == {
        "train": rest,
        "validation": last if with_test else validation,
        "test": ["c"] if with_test else last,
    }


def test_a_share_is_held_out_and_names_another_text(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", numbered(2000))
    usual, few, last = (open_source(f"file:{path}", held_out=held_out) for held_out in (0.1, 0.01, 20))
    assert 3 <= len(texts(few)["test"]) <= 20 < 60 <= len(texts(usual)["test"])
    assert [text for split in ("validation", "test") for text in texts(last)[split]] == [
        row["text"] for row in numbered(2000)[-20:]
    ]
    assert len({source.fingerprint for source in (usual, few, last, open_source(f"file:{path}"))}) == 3
    assert len([*open_source(f"file:{path}", held_out=20, whole=True).documents("test")]) == 2000


def test_documents_are_not_held_out_of_a_source_with_splits(tmp_path: Path) -> None:
    for split in SPLITS:
        jsonl(tmp_path / f"{split}.jsonl", [{"text": f"Of {split}."}])
    with pytest.raises(InputError, match=r"data\.held_out is 20: .* has splits of its own"):
        open_source(f"file:{tmp_path}", held_out=20)
    for held_out in (0, 1, 2.5):
        with pytest.raises(InputError, match=r"data\.held_out"):
            DataConfig(held_out=held_out)


def test_a_question_is_in_one_split_whatever_its_steps(tmp_path: Path) -> None:
    def rows(steps: range, questions: int = 60) -> list[dict]:
        return [
            {"question": f"What is {q}?", "steps": [f"step {k}"], "answer": str(q)}
            for q in range(questions)
            for k in steps
        ]

    def questions(source: Source, split: str) -> set[str]:
        return {document.segments[0] for document in source.documents(split) if document.segments}

    jsonl(tmp_path / "often.jsonl", rows(range(3)))
    often = open_source(f"file:{tmp_path / 'often'}.jsonl")
    assert not questions(often, "train") & (questions(often, "validation") | questions(often, "test"))
    assert sum(len(questions(often, split)) for split in SPLITS) == 60
    assert len(every_text(often)) == 180

    jsonl(tmp_path / "once.jsonl", rows(range(1)))
    once = open_source(f"file:{tmp_path / 'once'}.jsonl")
    jsonl(tmp_path / "later.jsonl", rows(range(1)) + [row | {"steps": ["other"]} for row in rows(range(1))[:3]])
    later = open_source(f"file:{tmp_path / 'later'}.jsonl")
    assert all(questions(later, split) == questions(once, split) for split in SPLITS), "a new record moves no other"

    (tmp_path / "given").mkdir()
    jsonl(tmp_path / "given" / "train.jsonl", rows(range(2)))
    jsonl(tmp_path / "given" / "validation.jsonl", rows(range(2, 3), 4))
    jsonl(tmp_path / "given" / "test.jsonl", rows(range(3, 4), 2))
    assert open_source(f"file:{tmp_path / 'given'}").dropped == {"train": 8, "validation": 2, "test": 0}


def test_train_drops_documents_of_later_splits(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", numbered(10))
    jsonl(tmp_path / "valid.jsonl", [{"text": "Document 3. It is short."}, {"text": "only here"}])
    jsonl(tmp_path / "test-00000-of-00001.jsonl", [{"text": "only here"}, {"text": "Document 4. It is short."}])
    source = open_source(f"file:{tmp_path}")
    assert source.dropped == {"train": 2, "validation": 1, "test": 0}
    assert texts(source)["validation"] == ["Document 3. It is short."]


def test_all_formats_give_the_same_documents_and_fingerprint(tmp_path: Path) -> None:
    rows = [{"id": str(i), "text": LONG + str(i)} for i in range(20)]
    jsonl(tmp_path / "a.jsonl", rows)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "c.parquet")
    (tmp_path / "e.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "f.json.gz").write_bytes(gzip.compress((tmp_path / "e.json").read_bytes()))
    (tmp_path / "d.txt").write_text("\n<|endoftext|>\n".join(row["text"] for row in rows))
    sources = [
        open_source(f"file:{tmp_path / name}") for name in ("a.jsonl", "b.jsonl.gz", "c.parquet", "e.json", "f.json.gz")
    ]
    assert len({source.fingerprint for source in sources}) == 1
    assert all(texts(source) == texts(sources[0]) for source in sources)
    plain = every_text(open_source(f"file:{tmp_path / 'd.txt'}"))
    assert sorted(text.strip() for text in plain) == sorted(row["text"] for row in rows)


def test_level_one_headings_begin_documents(tmp_path: Path) -> None:
    parts = [f" = Title {i} = \n Some text. \n = = Part = = \n More text , 1 = 1 . \n" for i in range(3)]
    (tmp_path / "wiki.txt").write_text(" \n" + "".join(parts))
    found = every_text(open_source(f"file:{tmp_path / 'wiki.txt'}"))
    assert sorted(found) == sorted(parts)


WIKI = "".join(f" = Title {i} = \n \n Some text , {i} = {i} . \n \n = = Part = = \n More text . \n" for i in range(40))


def test_rows_of_lines_equal_the_txt_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    (tmp_path / "wiki.txt").write_text(WIKI)
    plain = open_source(f"file:{tmp_path / 'wiki.txt'}")
    assert len(every_text(plain)) == 40
    lines = WIKI.splitlines(keepends=True)
    blank_lost = [{"text": line if line.strip() else ""} for line in lines]  # as the hub has WikiText
    forms = {"whole": [{"text": line} for line in lines], "bare": [{"text": line[:-1]} for line in lines]}
    for name, rows in (forms | {"hub": blank_lost}).items():
        jsonl(tmp_path / f"{name}.jsonl", rows)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
        shards = tmp_path / name
        shards.mkdir()
        for part in range(3):  # articles go on from one file to the next
            piece = pyarrow.Table.from_pylist(rows[part * 83 : (part + 1) * 83 if part < 2 else None])
            pyarrow.parquet.write_table(piece, shards / f"train-{part:05}-of-00003.parquet")
        for spec in (tmp_path / f"{name}.jsonl", tmp_path / f"{name}.parquet", shards):
            source = open_source(f"file:{spec}")
            assert texts(source) == texts(plain)
            assert source.fingerprint == plain.fingerprint

    found = datasets.DatasetDict({"train": datasets.Dataset.from_list(blank_lost)})
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, **where: found)
    assert open_source("hub:Salesforce/wikitext:wikitext-103-raw-v1").fingerprint == plain.fingerprint


def test_rows_with_headings_inside_stay_documents(tmp_path: Path) -> None:
    rows = [{"text": part} for part in ("One line .", " = Only a title = \n", " = A = \n Text . \n = B = \n")]
    assert sorted(every_text(open_source(f"file:{jsonl(tmp_path / 'a.jsonl', rows)}"))) == sorted(
        row["text"] for row in rows
    )


def test_wikitext_has_its_articles(shared_data: Path, tmp_path: Path) -> None:
    source = open_source(f"file:{shared_data / 'corpora' / 'wikitext-103' / 'validation.txt'}")
    assert sum(map(len, texts(source).values())) == 60


def test_the_text_column_is_found_or_named(tmp_path: Path) -> None:
    def column_of(row: dict, **options: str) -> str:
        rows = [{name: f"{value}{i}" if isinstance(value, str) else i for name, value in row.items()} for i in range(9)]
        found = next(open_source(f"file:{jsonl(tmp_path / 'x.jsonl', rows)}", **options).documents("train")).text
        return next(name for name, value in row.items() if found.startswith(str(value)))

    assert column_of({"title": "t", "text": "x", "body": LONG}) == "text"
    assert column_of({"id": 1, "content": "short"}) == "content"
    assert column_of({"title": "t", "story": LONG}) == "story"
    assert column_of({"title": "t", "story": LONG}, text_column="title") == "title"
    with pytest.raises(InputError, match=r"several columns.*it has title, summary"):
        column_of({"title": "t", "summary": "s"})
    with pytest.raises(InputError, match="no column contains"):
        column_of({"id": 1})
    with pytest.raises(InputError, match=r"text_column is 'body'.*only id, text"):
        column_of({"id": 1, "text": "t"}, text_column="body")
    for spec in ("builtin:families", f"gsm8k:{tmp_path}"):
        with pytest.raises(InputError, match=r"text_column is 'body': .* has no choice of columns, leave it out"):
            open_source(spec, text_column="body")


@pytest.mark.parametrize("other", [2024, ["A.", "B."]])
def test_a_number_in_the_text_column_is_refused(other: object, tmp_path: Path) -> None:
    rows = [{"id": f"doc-{i}", "text": LONG} for i in range(9)]
    rows[3]["text"] = other  # type: ignore[assignment]
    with pytest.raises(InputError, match=r"line 4 .*column 'text' contains \w+, not text"):
        open_source(f"file:{jsonl(tmp_path / 'x.jsonl', rows)}")


def test_records_have_question_steps_and_answer(tmp_path: Path) -> None:
    rows = [{"question": f"What is {i} + 1 + 1?", "steps": [f"{i} + 1", "+ 1"], "answer": str(i)} for i in range(9)]
    source = open_source(f"file:{jsonl(tmp_path / 'r.jsonl', rows)}")
    document = next(source.documents("train"))
    number = document.text.rsplit(" ", 1)[1]
    assert source.kind == "records"
    assert document.segments == (f"What is {number} + 1 + 1?\n", f"{number} + 1\n", "+ 1\n", f"### {number}")
    assert document.text == "".join(document.segments)

    for wrong in ({"steps": "none"}, {"steps": ["1", " "]}, {"question": ""}, {"answer": " "}, {"answer": True}):
        with pytest.raises(InputError, match="line 5 is malformed"):
            open_source(f"file:{jsonl(tmp_path / 'r.jsonl', [*rows[:4], rows[4] | wrong])}")
    lacking = {name: value for name, value in rows[4].items() if name != "steps"}
    with pytest.raises(InputError, match="line 5 is malformed"):
        open_source(f"file:{jsonl(tmp_path / 'r.jsonl', [*rows[:4], lacking])}")


def test_each_part_of_a_record_is_one_line() -> None:
    document = record("Two\r\n lines?\n", [" a\n\nb"], "c\nd")
    assert document.segments == ("Two lines?\n", "a b\n", "### c d")


def test_a_folder_without_train_has_its_other_splits(tmp_path: Path) -> None:
    jsonl(tmp_path / "some_valid.jsonl", numbered(5))
    jsonl(tmp_path / "some_test.jsonl", numbered(3))
    source = open_source(f"file:{tmp_path}")
    assert source.splits == ("validation", "test")
    assert source.dropped == {"validation": 3, "test": 0}
    assert [len(list(source.documents(split))) for split in source.splits] == [2, 3]
    with pytest.raises(InputError, match="contains no train file, only validation and test: add one"):
        next(source.documents("train"))
    with pytest.raises(InputError, match="contains no train file"):
        prepare(DataConfig(source=f"file:{tmp_path}", tokenizer="bpe:300"), show=False)


@pytest.mark.parametrize("names", [("ptb.train", "ptb.valid", "ptb.test"), ("Train", "VALID", "Test")])
def test_names_of_splits_are_known_by_points_and_in_any_case(names: tuple[str, ...], tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.txt" for name in names]
    for file in files:
        file.write_text(LONG)
    assert find_files(tmp_path, (".txt",)) == ({s: [f] for s, f in zip(("train", "validation", "test"), files)}, True)


def test_names_of_splits_may_follow_one_prefix(tmp_path: Path) -> None:
    def found() -> dict[str, list[str]]:
        return {split: [path.name for path in paths] for split, paths in find_files(tmp_path, (".jsonl",))[0].items()}

    for name in ("set_train.jsonl", "set_val.jsonl", "set-test-2024.jsonl", "notes.jsonl", "latest.jsonl"):
        jsonl(tmp_path / name, numbered(1))
    assert found() == {
        "test": ["set-test-2024.jsonl"],
        "train": ["set_train.jsonl"],
        "validation": ["set_val.jsonl"],
    }
    jsonl(tmp_path / "other_test.jsonl", numbered(1))
    with pytest.raises(InputError, match=r"files of several sets \(other, set, "):
        found()
    jsonl(tmp_path / "train_test.jsonl", numbered(1))
    with pytest.raises(InputError, match=r"files of several sets \(train_test.jsonl, other, set, latest.jsonl\)"):
        found()
    jsonl(tmp_path / "validation.jsonl", numbered(1))
    assert found() == {"train": ["train_test.jsonl"], "validation": ["validation.jsonl"]}


def test_one_file_among_others_is_not_taken_for_a_split(tmp_path: Path) -> None:
    for name in ("2021.jsonl", "2022.jsonl", "reviews_of_the_train.jsonl"):
        jsonl(tmp_path / name, numbered(1))
    with pytest.raises(InputError, match=r"files of several sets \(reviews_of_the, 2021.jsonl\)"):
        find_files(tmp_path, (".jsonl",))
    (tmp_path / "reviews_of_the_train.jsonl").rename(tmp_path / "train-journey.jsonl")
    with pytest.raises(InputError, match=r"files of several sets \(train-journey.jsonl, 2021.jsonl\)"):
        find_files(tmp_path, (".jsonl",))
    (tmp_path / "train-journey.jsonl").rename(tmp_path / "reviews_of_the_train.jsonl")
    for name in ("2021.jsonl", "2022.jsonl"):
        (tmp_path / name).rename(tmp_path / f"README-{name}")
    assert find_files(tmp_path, (".jsonl",)) == ({"train": [tmp_path / "reviews_of_the_train.jsonl"]}, True)


@pytest.mark.parametrize("other", ["train.jsonl.gz", "train.json", "train.parquet"])
def test_a_file_in_two_kinds_is_not_read_twice(other: str, tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", numbered(30))
    jsonl(tmp_path / "train-2.jsonl", numbered(3))
    (tmp_path / other).write_bytes(b"the same")
    with pytest.raises(InputError, match=r"has train.json.* and train\..*, one text in two kinds: keep one of them"):
        open_source(f"file:{tmp_path}")


def test_a_folder_named_like_a_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "train.txt").mkdir()
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": LONG}) + "\n")
    assert find_files(tmp_path, (".txt", ".jsonl"))[0] == {"train": [tmp_path / "train.jsonl"]}


def test_a_number_of_too_many_digits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(f'[{{"text": "a", "n": {"9" * 5000}}}]')
    with pytest.raises(InputError, match=r"x\.json cannot be read"):
        open_source(f"file:{tmp_path / 'x.json'}")


def test_malformed_files_are_named_in_one_line(tmp_path: Path) -> None:
    good = json.dumps({"text": "fine"}).encode() + b"\n"
    cases = {
        "empty.jsonl": (b"", "empty"),
        "blank.txt": (b"\n \n", "is empty"),
        "blank.jsonl": (b"\n\n", "is empty"),
        "binary.txt": (b"ab\0cd", "binary"),
        "latin.txt": ("né".encode("latin-1"), "utf-8"),
        "broken.jsonl": (good * 3 + b'{"text": \n' + good, "line 4 cannot be read"),
        "list.jsonl": (good + b"[1]\n", "line 2 is not a JSON object"),
        "column.jsonl": (good * 150 + b'{"txt": "x"}\n', "line 151 .*no 'text'"),
        "number.jsonl": (good * 150 + b'{"text": 5}\n', "line 151 .*contains int"),
        "surrogate.jsonl": (good + b'{"text": "\\ud800"}\n', "document 2 of train is not valid Unicode"),
        "few.jsonl": (good * 5, "no document left for validation and test"),
        "cut.jsonl.gz": (gzip.compress(good * 1000)[:-20], "cannot be read"),
        "plain.jsonl.gz": (good, "cannot be read .*gzip"),
        "not.parquet": (good, "cannot be read"),
        "broken.json": (b"[1,", "cannot be read"),
        "lines.json": (good * 2, "call it .jsonl"),
        "object.json": (good, "row text is not a JSON object"),
        "items.json": (b'[{"text": "fine"}, 1]', "row 2 is not a JSON object"),
        "what.xml": (good, "no file of a known kind"),
        "short.csv": (b"text,id\nfine,1\nfine\n", "line 3 cannot be read .*1 cells, the header 2"),
        "twice.csv": (b"text,text\na,b\n", "line 2 cannot be read .*2 cells, the header 1 different"),
        "open.csv": (b'text,id\n"fine,1\n', "line 2 cannot be read"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message) as caught:
            open_source(f"file:{tmp_path / name}")
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["mine.txt", "mine.jsonl", "mine.jsonl.gz", "mine.json"])
def test_a_byte_order_mark_is_not_text(name: str, tmp_path: Path) -> None:
    row = json.dumps({"text": "fine"})
    content = "\ufeff" + ("fine" if name == "mine.txt" else f"[{row}]" if name == "mine.json" else row)
    packed = gzip.compress(content.encode()) if name.endswith(".gz") else content.encode()
    (tmp_path / name).write_bytes(packed)
    source = open_source(f"file:{tmp_path / name}", whole=True)
    assert [document.text for document in source.documents("test")] == ["fine"]
    if name == "mine.txt":
        assert read_text(tmp_path / name) == "fine"


def test_unknown_sources_are_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'stdlib'"):
        open_source("builtin:stdlb")
    with pytest.raises(InputError, match="does not exist"):
        open_source("file:nowhere.txt")
    with pytest.raises(InputError, match=f"write file:{tmp_path}"):
        open_source(str(tmp_path))
    with pytest.raises(InputError, match="use builtin:NAME"):
        open_source("wikitext")
    with pytest.raises(InputError, match="no file of a known kind"):
        open_source(f"file:{tmp_path}")


def test_a_hub_set_is_read_by_its_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `datasets.load_dataset` returns is a mapping of splits to rows, or the rows of one split, as here."""
    import datasets

    asked = []

    def load_dataset(name: str, config: str | None, *, split: str | None, revision: str | None, **_: bool) -> object:
        asked.append((name, config, split, revision))
        rows = {"train": numbered(20), "validation": [{"text": "held out"}]}
        found = datasets.DatasetDict({split: datasets.Dataset.from_list(part) for split, part in rows.items()})
        return found[split] if split else found

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found = texts(open_source("hub:someone/stories:small"))
    assert found["validation"] == ["held out"]
    assert len(found["train"]) + len(found["test"]) == 20

    source = open_source("hub:someone/stories@refs/convert/parquet::validation")
    assert source.splits == ("validation",)
    assert [document.text for document in source.documents("validation")] == ["held out"]
    assert asked == [
        ("someone/stories", "small", None, None),
        ("someone/stories", None, "validation", "refs/convert/parquet"),
    ]


def test_splits_of_a_hub_set_that_mean_the_same_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    rows = {"train": numbered(20), "validation": [{"text": "held out"}], "dev": [{"text": "held out too"}]}
    found = datasets.DatasetDict({split: datasets.Dataset.from_list(part) for split, part in rows.items()})
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, **where: found)
    assert sorted(texts(open_source("hub:someone/twice"))["validation"]) == ["held out", "held out too"]


def test_a_hub_set_without_train_has_its_other_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    for split in ("test", "all"):
        found = datasets.DatasetDict({split: datasets.Dataset.from_list(numbered(3))})
        monkeypatch.setattr(datasets, "load_dataset", lambda name, config, found=found, **where: found)
        if split == "test":
            assert open_source("hub:someone/tests").splits == ("test",)
        else:
            with pytest.raises(InputError, match="it has no train, validation, test split, only all"):
                open_source("hub:someone/stories")


def test_a_hub_set_with_only_a_train_split_is_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    splits = {"train": datasets.Dataset.from_list(numbered(20))}
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, **where: splits)
    assert is_one_text("hub:someone/unsplit")
    assert len(list(open_source("hub:someone/unsplit", whole=True).documents("test"))) == 20
    splits = splits | {"test": datasets.Dataset.from_list(numbered(3))}
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, **where: splits)
    assert not is_one_text("hub:someone/split")


def test_an_unavailable_hub_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def load_dataset(name: str, config: str | None, **where: object) -> None:
        raise ConnectionError("no network\nwith details")

    monkeypatch.setattr(network, "unreachable", lambda: None)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(InputError, match=r"hub:someone/stories'.*no network with details\)"):
        open_source("hub:someone/stories")


def test_a_hub_set_is_streamed_once_and_never_downloaded_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`datasets` streams local files just as it streams the hub's."""
    import datasets

    rows = [row | {"picture": [0.5] * 3, "id": i, "note": None} for i, row in enumerate(numbered(100))]
    jsonl(tmp_path / "train.jsonl", rows)
    load, streams = datasets.load_dataset, []

    def load_dataset(name: str, config: str | None, *, streaming: bool, split: str | None, revision: str | None) -> Any:
        streams.append(streaming)
        return load("json", data_files={"train": str(tmp_path / "train.jsonl")}, split=split, streaming=streaming)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(network, "unreachable", lambda: None)
    source = open_source("hub:someone/stories")
    assert sorted(every_text(source)) == sorted(row["text"] for row in rows)
    assert "hub:someone/stories: read once, the text is kept in" in capsys.readouterr().err
    (tmp_path / "train.jsonl").unlink()
    assert open_source("hub:someone/stories").fingerprint == source.fingerprint
    assert capsys.readouterr().err == ""
    assert streams == [True]


def test_only_the_named_part_of_a_hub_set_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    read = []

    def endless() -> Any:
        for i in count():
            read.append(i)
            yield {"text": f"Document {i}."}

    stream = datasets.IterableDataset.from_generator(endless)
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, **where: stream)
    source = open_source("hub:someone/stories::train[:50]")
    assert sorted(every_text(source)) == sorted(f"Document {i}." for i in range(50))
    assert len(read) <= 51
    with pytest.raises(InputError, match=r"SPLIT as train or train\[:N\]"):
        open_source("hub:someone/stories::train[5:]")


def test_a_stream_that_breaks_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def broken() -> Any:
        yield {"text": "One."}
        raise ConnectionError("the line is cut\nwith details")

    monkeypatch.setenv("MENTALESE_CACHE", str(tmp_path))
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, **where: {"train": broken()})
    with pytest.raises(InputError, match=r"cannot be read \(the line is cut with details\)"):
        open_source("hub:someone/stories")
    assert not list((tmp_path / "hub").iterdir())


def test_a_source_is_opened_once_until_its_files_change(tmp_path: Path) -> None:
    config = DataConfig(source=f"file:{jsonl(tmp_path / 'a.jsonl', numbered(200))}")
    first = opened_source(config)
    assert opened_source(config) is first
    jsonl(tmp_path / "a.jsonl", numbered(201))
    assert opened_source(config).count == first.count + 1
