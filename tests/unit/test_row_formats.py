"""Rows as people have them: records, prompts with completions and chats are read; others get a sentence that helps."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mentalese import InputError, as_source
from mentalese.data.documents import Source
from mentalese.data.sources import open_source
from mentalese.data.store import prepare
from mentalese.recipe import DataConfig

Segments = list[tuple[str, ...] | None]


def write(folder: Path, rows: Sequence[dict[str, Any]]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"file:{path}"


def whole(spec: str, **options: str) -> tuple[Source, Segments]:
    source = open_source(spec, whole=True, **options)
    return source, [document.segments for document in source.documents("test")]


def numbered(row: dict[str, Any], count: int = 4) -> list[dict[str, Any]]:
    """Rows in whose texts `N` is a number."""
    return [json.loads(json.dumps(row).replace("N", str(number))) for number in range(count)]


def test_missing_steps_are_named_with_an_example(tmp_path: Path) -> None:
    spec = write(tmp_path, numbered({"question": "Pat has N pens. How many?", "answer": "N"}))
    with pytest.raises(InputError) as caught:
        open_source(spec)
    for part in ("no column 'steps'", '{"question": "How many?", "steps": [], "answer": "4"}', "data.text_column"):
        assert part in str(caught.value)
    assert open_source(spec, text_column="question").kind == "text"


def test_a_later_row_without_steps_is_named_by_its_line(tmp_path: Path) -> None:
    rows = numbered({"question": "N?", "steps": [], "answer": "N"})
    del rows[2]["steps"]
    with pytest.raises(InputError, match=r"line 3 .*no 'steps'"):
        open_source(write(tmp_path, rows))


@pytest.mark.parametrize(
    ("row", "missing"),
    [
        ({"Question": "N?", "Answer": "N"}, "no column 'question', 'steps', 'answer'"),
        ({"question": "N?", "steps": ["a"]}, "no column 'answer'"),
        ({"question": "N?", "explanation": "N"}, "no column 'steps', 'answer'"),
    ],
)
def test_missing_columns_of_questions_are_named(row: dict[str, Any], missing: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=missing):
        open_source(write(tmp_path, numbered(row)))


def test_a_file_of_gsm8k_names_its_own_loader(tmp_path: Path) -> None:
    rows = numbered({"question": "N?", "answer": "N + 0 = N\n#### N"})
    with pytest.raises(InputError, match="write gsm8k:PATH"):
        open_source(write(tmp_path, rows))


def test_rows_from_python_are_read_by_the_same_rules() -> None:
    with pytest.raises(InputError, match="no column 'steps'"):
        open_source(as_source(numbered({"question": "Who N?", "answer": "N"})))
    _, found = whole(as_source(numbered({"prompt": "Who N?", "completion": "N"})))
    assert found[0] == ("Who 0?\n", "### 0")


def test_numbers_are_answers(tmp_path: Path) -> None:
    rows = [{"question": f"{answer}?", "steps": [], "answer": answer} for answer in (3, 2.5, 12.0, -1)]
    _, found = whole(write(tmp_path, rows))
    assert [segments[-1] for segments in found if segments] == ["### 3", "### 2.5", "### 12", "### -1"]
    for missing in (math.nan, math.inf):
        rows[1]["answer"] = missing
        with pytest.raises(InputError, match=f"the answer is {missing}, which is not a finite number"):
            whole(write(tmp_path, rows))


@pytest.mark.parametrize(
    ("cot", "steps"),
    [
        ("<<1+2=3>> <<3*4=12>>", ("<<1+2=3>>\n", "<<3*4=12>>\n")),
        ("One and two is 3.\nFour times that is 12.", ("One and two is 3.\n", "Four times that is 12.\n")),
        ("One and two is 3. Four times that is 12.", ("One and two is 3.\n", "Four times that is 12.\n")),
        ("", ()),
    ],
)
def test_a_cot_becomes_steps(cot: str, steps: tuple[str, ...], tmp_path: Path) -> None:
    source, found = whole(write(tmp_path, [{"question": "How many?", "cot": cot, "answer": "12"}]))
    assert source.kind == "records"
    assert found == [("How many?\n", *steps, "### 12")]


def test_prompts_and_completions_are_questions_and_answers(tmp_path: Path) -> None:
    rows = [{"prompt": "2 and 3?", "completion": " 5"}, {"prompt": "1 and 1?", "completion": "1 + 1 = 2\n#### 2"}]
    source, found = whole(write(tmp_path, rows))
    assert source.kind == "records"
    assert found == [("2 and 3?\n", "### 5"), ("1 and 1?\n", "1 + 1 = 2\n", "### 2")]
    assert "prompt and completion are read as questions" in source.remarks[0]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"question": "Which language?", "steps": [], "answer": "C###"}, "contains ###"),
        (
            {"messages": [{"role": "user", "content": "Call."}, {"role": "assistant", "content": None}]},
            "calls of tools",
        ),
    ],
)
def test_rows_that_cannot_be_read_are_refused(row: dict[str, object], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        whole(write(tmp_path, [row]))


def test_long_completions_make_texts(tmp_path: Path) -> None:
    rows = numbered({"prompt": "Tell me N.", "completion": "N"}, 200)
    rows[150]["completion"] = "First.\nSecond."
    source = open_source(write(tmp_path, rows), whole=True)
    assert source.kind == "text"
    assert "are read as texts" in source.remarks[0]
    assert [document.text for document in source.documents("test")][150] == "Tell me 150.\nFirst.\nSecond."


def chat(*turns: str, roles: tuple[str, str] = ("user", "assistant")) -> list[dict[str, str]]:
    return [{"role": roles[number % 2], "content": turn} for number, turn in enumerate(turns)]


def test_chats_of_one_exchange_are_records(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be short."}
    rows = [{"messages": chat("2 and 3?", "5")}, {"messages": [system, *chat("1 and 1?", "So 2.\n#### 2")]}]
    source, found = whole(write(tmp_path, rows))
    assert source.kind == "records"
    assert found == [("2 and 3?\n", "### 5"), ("Be short. 1 and 1?\n", "So 2.\n", "### 2")]


def test_chats_of_many_turns_are_texts(tmp_path: Path) -> None:
    rows = [{"messages": chat("2 and 3?", "5", "Sure?", "Yes."), "id": 1}, {"messages": chat("1 and 1?", "2")}]
    spec = write(tmp_path, rows)
    source = open_source(spec, whole=True)
    assert source.kind == "text"
    first = next(source.documents("test")).text
    assert first == "User: 2 and 3?\n\nAssistant: 5\n\nUser: Sure?\n\nAssistant: Yes."
    single = write(tmp_path, rows[1:])
    assert open_source(single, whole=True, text_column="messages").kind == "text"
    assert open_source(single, whole=True).kind == "records"


def test_chats_of_sharegpt_are_read(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "2 and 3?"}, {"from": "gpt", "value": "5"}]
    _, found = whole(write(tmp_path, [{"conversations": turns}]))
    assert found == [("2 and 3?\n", "### 5")]


def test_a_broken_chat_is_named_by_its_line(tmp_path: Path) -> None:
    good = {"messages": chat("2 and 3?", "5")}
    for wrong in ("no chat", [], [{"role": "user"}], [{"role": "user", "content": ["a picture"]}]):
        with pytest.raises(InputError, match=r"rows\.jsonl, line 2 is malformed"):
            open_source(write(tmp_path, [good, {"messages": wrong}]))


def test_remarks_are_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write(tmp_path, numbered({"prompt": "N and 1?", "completion": "N"}, 40))
    for _ in range(2):
        prepare(DataConfig(source=spec, tokenizer="bpe:300"), out=tmp_path / "store")
    assert capsys.readouterr().err.count("prompt and completion are read as questions") == 1
