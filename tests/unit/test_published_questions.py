"""Published sets of questions: what their files hold becomes records, and what is no question is named by its place."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from mentalese import InputError
from mentalese.data.documents import Source
from mentalese.data.sources import is_one_text, open_source
from mentalese.evaluation.options import TextOptions


def segments(source: Source, split: str) -> list[tuple[str, ...] | None]:
    return [document.segments for document in source.documents(split)]


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


GSM8K = {
    "question": "A shelf holds 1,200 books.\nHalf are lent out, and 3 are lost. How many are left?",
    "answer": "1200 / 2 = <<1200/2=600>>600 stay.\nThen 600*2-3 = <<600*2-3=1197>>1,197 come back.\n#### 1,197",
}


def test_gsm8k_has_lines_as_steps_and_a_plain_number(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", [GSM8K | {"question": f"Question {i}?"} for i in range(50)])
    (tmp_path / "test.jsonl.gz").write_bytes(gzip.compress(json.dumps(GSM8K).encode()))
    source = open_source(f"gsm8k:{tmp_path}")
    assert source.kind == "records"
    assert segments(source, "test") == [
        (
            "A shelf holds 1,200 books. Half are lent out, and 3 are lost. How many are left?\n",
            "1200 / 2 = <<1200/2=600>>600 stay.\n",
            "Then 600*2-3 = <<600*2-3=1197>>1,197 come back.\n",
            "### 1197",
        )
    ]
    assert len(segments(source, "train")) + len(segments(source, "validation")) == 50


@pytest.mark.parametrize(
    "columns",
    [{"answer": "It is 5."}, {"answer": "#### 5"}, {"answer": "2+3\n#### "}, {"answer": 5}, {"question": "\n"}],
)
def test_a_malformed_row_of_gsm8k_is_named(tmp_path: Path, columns: dict[str, Any]) -> None:
    path = jsonl(tmp_path / "train.jsonl", [GSM8K, GSM8K | columns])
    with pytest.raises(InputError, match=r"train\.jsonl, line 2 is malformed"):
        open_source(f"gsm8k:{path}")


def test_gsm8k_aug_has_equations_as_steps(tmp_path: Path) -> None:
    (tmp_path / "icot_train.txt.gz").write_bytes(
        gzip.compress("".join(f"{i} and {i}?||<<{i}+{i}={2 * i}>> #### {2 * i}\n" for i in range(9)).encode())
    )
    (tmp_path / "icot_valid.txt").write_text("What is known?|| #### 1,000\n")
    (tmp_path / "icot_test.txt").write_text("Twice 3 and 1?||<<2*3=6>> <<6+1=7>> #### 7\n\n")
    jsonl(tmp_path / "train.jsonl", [GSM8K])  # the original may lie beside it
    source = open_source(f"gsm8k-aug:{tmp_path}")
    assert segments(source, "train")[4] == ("4 and 4?\n", "<<4+4=8>>\n", "### 8")
    assert segments(source, "validation") == [("What is known?\n", "### 1000")]
    assert segments(source, "test") == [("Twice 3 and 1?\n", "<<2*3=6>>\n", "<<6+1=7>>\n", "### 7")]


@pytest.mark.parametrize(
    "line",
    [
        "1 and 1? <<1+1=2>> #### 2",
        "1 and 1?||<<1+1=2>> 2",
        "1 and 1?||<<1+1=2>> so #### 2",
        "1 and 1?||<<1+1=2>> <<2+1=3 #### 3",
        "1 and 1?||<<1+1=2>> ####",
        "||<<1+1=2>> #### 2",
    ],
)
def test_a_malformed_line_of_gsm8k_aug_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "train.txt").write_text(f"2 and 2?||<<2+2=4>> #### 4\n{line}\n")
    with pytest.raises(InputError, match=r"train\.txt, line 2 is malformed"):
        open_source(f"gsm8k-aug:{tmp_path}")


HOTPOT = {
    "_id": "1",
    "question": "On which river does the town of the Blue Mill lie?",
    "answer": "the Ambe",
    "supporting_facts": [["Blue Mill", 1], ["Torven", 0], ["Torven", 9]],
    "context": [
        ["Torven", ["Torven is a town on the Ambe.", " It has 300 people."]],
        ["Red Mill", ["The Red Mill is a mill."]],
        ["Blue Mill", ["The Blue Mill is a mill.", " It stands in Torven."]],
    ],
}
HOTPOT_RECORD = (
    "Torven: Torven is a town on the Ambe. It has 300 people. Blue Mill: The Blue Mill is a mill. It stands in Torven. "
    "On which river does the town of the Blue Mill lie?\n",
    "It stands in Torven.\n",
    "Torven is a town on the Ambe.\n",
    "### the Ambe",
)


def as_on_the_hub(row: dict[str, Any]) -> dict[str, Any]:
    facts, context = (list(zip(*row[name], strict=True)) for name in ("supporting_facts", "context"))
    return row | {
        "supporting_facts": {"title": facts[0], "sent_id": facts[1]},
        "context": {"title": context[0], "sentences": context[1]},
    }


def test_hotpotqa_has_needed_paragraphs_and_sentences(tmp_path: Path) -> None:
    published = tmp_path / "published"
    published.mkdir()
    train = [HOTPOT | {"question": f"Question {i}?"} for i in range(9)]
    (published / "hotpot_train_v1.1.json").write_text(json.dumps(train))
    (published / "hotpot_dev_distractor_v1.json").write_text(json.dumps([HOTPOT]))
    assert segments(open_source(f"hotpotqa:{published}"), "validation") == [HOTPOT_RECORD]

    hub = tmp_path / "hub"
    hub.mkdir()
    jsonl(hub / "train.jsonl", list(map(as_on_the_hub, train)))
    table = pyarrow.Table.from_pylist([as_on_the_hub(HOTPOT)])
    pyarrow.parquet.write_table(table, hub / "validation-00000-of-00001.parquet")
    assert segments(open_source(f"hotpotqa:{hub}"), "validation") == [HOTPOT_RECORD]


@pytest.mark.parametrize(
    "columns",
    [
        {"context": []},
        {"context": "Torven"},
        {"context": [*HOTPOT["context"], ["Torven", ["A port."]]]},
        {"context": HOTPOT["context"][:1]},
        {"answer": None},
        {"supporting_facts": [["Torven", 9]]},
        {"supporting_facts": [["Torven", "x"]]},
        {"supporting_facts": {"title": ["Torven"]}},
        {"question": " "},
        {"answer": ""},
    ],
)
def test_a_malformed_row_of_hotpotqa_is_named(tmp_path: Path, columns: dict[str, Any]) -> None:
    (tmp_path / "train.json").write_text(json.dumps([HOTPOT, HOTPOT | columns]))
    with pytest.raises(InputError, match=r"train\.json, row 2 is malformed"):
        open_source(f"hotpotqa:{tmp_path}")


def test_the_published_files_are_read_whole(shared_data: Path) -> None:
    folder = shared_data / "reasoning"
    expected = {
        f"gsm8k:{folder}/gsm8k": {"train": 7_473, "test": 1_319},
        f"gsm8k-aug:{folder}/gsm8k": {"train": 6_973, "validation": 500, "test": 1_319},
        f"file:{folder}/prosqa": {"validation": 300, "test": 500},
    }
    for spec, given in expected.items():
        source = open_source(spec)
        found = {split: len(segments(source, split)) for split in source.splits}
        assert sum(found.values()) + sum(source.dropped.values()) == sum(given.values())
        assert found["test"] == given["test"]
        assert source.kind == "records"


def aug_line(number: int) -> str:
    return f"{number} and 1?||<<{number}+1={number + 1}>> #### {number + 1}\n"


def one_file(folder: Path, kind: str) -> Path:
    """A file of 20 questions, called like the test split of a set."""
    if kind == "gsm8k-aug":
        path = folder / "test.txt"
        path.write_text("".join(map(aug_line, range(20))))
        return path
    row = GSM8K if kind == "gsm8k" else HOTPOT
    return jsonl(folder / "test.jsonl", [row | {"question": f"Question {i}?"} for i in range(20)])


@pytest.mark.parametrize("kind", ["gsm8k", "gsm8k-aug", "hotpotqa"])
def test_one_file_of_a_set_is_read_whole(kind: str, tmp_path: Path) -> None:
    spec = f"{kind}:{one_file(tmp_path, kind)}"
    assert is_one_text(spec)
    assert TextOptions(source=spec).part() == "all"
    assert len(segments(open_source(spec, whole=True), "test")) == 20
    assert not is_one_text(f"{kind}:{tmp_path}")
    assert TextOptions(source=f"{kind}:{tmp_path}").part() == "test"
    assert len(segments(open_source(f"{kind}:{tmp_path}"), "test")) == 20


def test_a_set_with_splits_is_not_read_whole(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", [GSM8K | {"question": f"Question {i}?"} for i in range(9)])
    jsonl(tmp_path / "test.jsonl", [GSM8K])
    with pytest.raises(InputError, match=r"split is 'all': .* has splits of its own, set one of train, test"):
        open_source(f"gsm8k:{tmp_path}", whole=True)
