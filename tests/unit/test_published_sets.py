"""Sets that papers report beside GSM8K: their rows, in the forms in which they are published, become records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mentalese import InputError, network
from mentalese.data.row_formats import PUBLISHED
from mentalese.data.sources import is_one_text, open_source

SVAMP = {
    "ID": "chal-1",
    "Body": "Kim has 8 pens. If she gives 3 away",
    "Question": "How many are left?",
    "Equation": "( 8.0 - 3.0 )",
    "Answer": 5.0,
}
CHOICES = {"label": ["A", "B"], "text": ["a bank", "a pond"]}
LISTED = [{"label": "A", "text": "a bank"}, {"label": "B", "text": "a pond"}]
ASKED = "Question: Where do fish live? Choices: A: a bank B: a pond\n"
PROOF = ["Rex is a wumpus.", "Wumpuses are shy.", "Rex is shy."]
CONTEXT = "Wumpuses are shy. Rex is a wumpus."

FORMS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("svamp", SVAMP, ("Kim has 8 pens. If she gives 3 away How many are left?\n", "### 5")),
    ("svamp", SVAMP | {"Answer": "1,145.0"}, ("Kim has 8 pens. If she gives 3 away How many are left?\n", "### 1145")),
    ("multiarith", {"question": " How many? ", "final_ans": "49"}, ("How many?\n", "### 49")),
    (
        "multiarith",
        {"sQuestion": "How many?", "lSolutions": [49.0], "lEquations": ["X=7*7"]},
        ("How many?\n", "### 49"),
    ),
    ("gsm-hard", {"input": "How many?", "code": "def solution(): ..", "target": 12.0}, ("How many?\n", "### 12")),
    ("gsm-hard", {"input": "How many?", "code": "", "target": -2.25}, ("How many?\n", "### -2.25")),
    (
        "prontoqa",
        {"question": CONTEXT, "query": "True or false: Rex is shy.", "chain_of_thought": PROOF, "answer": "True"},
        (f"{CONTEXT} True or false: Rex is shy.\n", *(f"{step}\n" for step in PROOF), "### True"),
    ),
    (
        "prontoqa",
        {"context": CONTEXT, "question": "Is Rex shy?", "options": ["A) True", "B) False"], "answer": "B"},
        (f"{CONTEXT} Is Rex shy?\n", "### False"),
    ),
    ("commonsenseqa", {"question": "Where do fish live?", "choices": CHOICES, "answerKey": "B"}, (ASKED, "### B")),
    (
        "commonsenseqa",
        {"question": {"stem": "Where do fish live?", "choices": LISTED}, "answerKey": "B"},
        (ASKED, "### B"),
    ),
    (
        "commonsenseqa",
        {"question": ASKED, "cot": "Fish live in water. A pond is water.", "answer": "B"},
        (ASKED, "Fish live in water.\n", "A pond is water.\n", "### B"),
    ),
    (
        "gsm8k-aug",
        {"question": "Sum?", "cot": "<<1+2=3>> <<3*2=6>>", "answer": "6"},
        ("Sum?\n", "<<1+2=3>>\n", "<<3*2=6>>\n", "### 6"),
    ),
    ("gsm8k-aug", {"question": "Sum?", "steps": ["<<1+2=3>>"], "answer": "3"}, ("Sum?\n", "<<1+2=3>>\n", "### 3")),
    (
        "gsm8k-aug-nl",
        {"question": "Sum?", "steps": ["One and two is 3."], "answer": "3"},
        ("Sum?\n", "One and two is 3.\n", "### 3"),
    ),
]


def read(spec: str, split: str = "test", *, whole: bool = True) -> list[tuple[str, ...] | None]:
    return [document.segments for document in open_source(spec, whole=whole).documents(split)]


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(("name", "row", "segments"), FORMS)
def test_rows_of_a_set_become_records(
    name: str, row: dict[str, Any], segments: tuple[str, ...], tmp_path: Path
) -> None:
    assert read(f"{name}:{jsonl(tmp_path / 'some.jsonl', [row])}") == [segments]


@pytest.mark.parametrize(("name", "row", "segments"), FORMS)
def test_a_set_is_read_from_the_hub(
    name: str, row: dict[str, Any], segments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setenv("MENTALESE_CACHE", str(tmp_path))
    monkeypatch.setattr(network, "unreachable", lambda: None)
    found = datasets.DatasetDict({"test": datasets.Dataset.from_list([row])})
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, **where: found)
    assert read(f"{name}:hub:someone/set", whole=False) == [segments]


def test_a_hub_set_with_only_train_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setenv("MENTALESE_CACHE", str(tmp_path))
    monkeypatch.setattr(network, "unreachable", lambda: None)
    splits = {"train": datasets.Dataset.from_list([{"input": f"{i}?", "target": float(i)} for i in range(5)])}
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, **where: splits)
    assert is_one_text("gsm-hard:hub:someone/hard")
    assert len(read("gsm-hard:hub:someone/hard")) == 5


@pytest.mark.parametrize("name", ["svamp", "multiarith", "gsm-hard", "prontoqa", "commonsenseqa", "gsm8k-aug-nl"])
def test_a_row_of_another_set_is_named_by_its_line(name: str, tmp_path: Path) -> None:
    rows = [next(row for own, row, _ in FORMS if own == name), {"title": "none", "answer": "1"}]
    with pytest.raises(InputError, match=r"some\.jsonl, line 2 is malformed"):
        open_source(f"{name}:{jsonl(tmp_path / 'some.jsonl', rows)}", whole=True)


@pytest.mark.parametrize("answer", ["five", None, [1.0, 2.0], True])
def test_an_answer_that_is_no_number_is_named(answer: object, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 1 is malformed"):
        open_source(f"svamp:{jsonl(tmp_path / 'some.jsonl', [SVAMP | {'Answer': answer}])}", whole=True)


def test_generated_examples_of_prontoqa_are_read(tmp_path: Path) -> None:
    def example(number: int) -> dict[str, Any]:
        return {
            "question": f"Wumpus {number} is shy.",
            "query": f"True or false: Wumpus {number} is not shy.",
            "chain_of_thought": [f"Wumpus {number} is shy."],
            "answer": "False",
        }

    content = {f"example{i}": {"in_context_example0": example(100), "test_example": example(i)} for i in range(12)}
    for hops in (1, 3):
        (tmp_path / f"{hops}hop.json").write_text(
            json.dumps(content | {"example0": {"test_example": example(50 + hops)}})
        )
    assert read(f"prontoqa:{tmp_path / '1hop.json'}")[1] == (
        "Wumpus 1 is shy. True or false: Wumpus 1 is not shy.\n",
        "Wumpus 1 is shy.\n",
        "### False",
    )
    assert len(read(f"prontoqa:{tmp_path}")) == 24
    content["example5"] = {"in_context_example0": example(5)}
    (tmp_path / "1hop.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="row example5 is malformed"):
        read(f"prontoqa:{tmp_path / '1hop.json'}")


def test_a_split_without_answers_is_left_out(tmp_path: Path) -> None:
    rows = [{"question": f"Where is {i}?", "choices": CHOICES, "answerKey": "A"} for i in range(30)]
    jsonl(tmp_path / "train.jsonl", rows[:20])
    jsonl(tmp_path / "validation.jsonl", rows[20:25])
    jsonl(tmp_path / "test.jsonl", [row | {"answerKey": ""} for row in rows[25:]])
    source = open_source(f"commonsenseqa:{tmp_path}")
    assert source.remarks == (f"commonsenseqa:{tmp_path}: test was published without answers and is left out",)
    assert len(read(f"commonsenseqa:{tmp_path}", "validation", whole=False)) == 5
    assert len(read(f"commonsenseqa:{tmp_path}", "train", whole=False)) == 19
    with pytest.raises(InputError, match="has no answers, use a split that was published with them"):
        open_source(f"commonsenseqa:{tmp_path / 'test.jsonl'}")


def test_rows_of_a_set_name_it_when_read_as_a_file(tmp_path: Path) -> None:
    for name, row in ((name, row) for name, row, _ in FORMS if not {"cot", "steps"} & row.keys()):
        with pytest.raises(InputError, match=f"for rows of a published set write (.* or )?{name}:PATH"):
            open_source(f"file:{jsonl(tmp_path / 'some.jsonl', [row])}")


def test_every_set_names_the_rule_of_its_answers() -> None:
    rules = {name: found.answer_rule for name, found in PUBLISHED.items()}
    assert rules == dict.fromkeys(rules, "number") | {
        "clutrr": "text",
        "commonsenseqa": "choice",
        "hotpotqa": "text",
        "prontoqa": "text",
    }
