"""CLUTRR: its zip becomes records with three splits, and what is no question is named by file and line."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from mentalese import InputError
from mentalese.data.documents import Source
from mentalese.data.layouts import QuestionAnswer
from mentalese.data.sources import is_one_text, open_source
from mentalese.data.store import prepare
from mentalese.nn.loss import IGNORED
from mentalese.recipe import DataConfig

NAMES = ("Ann", "Bob", "Carl", "Dora", "Ed", "Fay", "Gus", "Hal")
STORIES = [(f'[{a}] took her son [{b}] to the "zoo", in June.', a, b) for a in NAMES for b in NAMES if a != b]


def archive(folder: Path, *rows: dict[str, str], test: str = "1.4_test.csv", train: str = "1.2,1.3_train.csv") -> Path:
    """A zip like the published one; `rows` are test questions."""
    questions = [{"story": story, "query": str((a, b)), "target": "son"} for story, a, b in STORIES]
    path = folder / "data.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name, content in ((train, questions), (test, rows or [row(story="[Zoe] and her son [Yan] left.")])):
            text = io.StringIO(newline="")
            writer = csv.DictWriter(
                text, ["", "story", "query", "text_query", "target", "proof_state"], extrasaction="ignore"
            )
            writer.writeheader()
            writer.writerows(content)
            file.writestr(name, text.getvalue())
    return path


def row(**columns: str) -> dict[str, str]:
    return {"story": "[Zoe] and [Yan] left.", "query": "('Zoe', 'Yan')", "target": "son"} | columns


def texts(source: Source, split: str) -> list[str]:
    return [document.text for document in source.documents(split)]


def test_a_record_has_story_question_and_relation(tmp_path: Path) -> None:
    source = open_source(f"clutrr:{archive(tmp_path)}")
    [document] = source.documents("test")
    assert source.kind == "records"
    assert document.segments == (
        "[Zoe] and her son [Yan] left. How is [Yan] related to [Zoe]?\n",
        "### son",
    )


def test_steps_are_the_rules_of_the_proof_from_its_facts_on(tmp_path: Path) -> None:
    proof = (
        "[{('Zoe', 'aunt', 'Yan'): [('Zoe', 'father', \"D'Arcy\"), (\"D'Arcy\", 'sister', 'Yan')]}, "
        "{(\"D'Arcy\", 'sister', 'Yan'): [(\"D'Arcy\", 'brother', 'Wim'), ('Wim', 'sister', 'Yan')]}]"
    )
    [document] = open_source(f"clutrr:{archive(tmp_path, row(proof_state=proof))}").documents("test")
    assert document.segments[1:] == (
        "D'Arcy brother Wim, Wim sister Yan: D'Arcy sister Yan\n",
        "Zoe father D'Arcy, D'Arcy sister Yan: Zoe aunt Yan\n",
        "### son",
    )


def test_validation_is_taken_from_train(tmp_path: Path) -> None:
    archive(tmp_path)
    source = open_source(f"clutrr:{tmp_path}")
    train, validation, test = (texts(source, split) for split in source.splits)
    assert len(train) + len(validation) == len(STORIES)
    assert validation
    assert len(test) == 1
    assert len({*train, *validation, *test}) == len(STORIES) + 1


def test_batches_have_only_the_answer_as_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENTALESE_CACHE", str(tmp_path / "cache"))
    data = DataConfig(source=f"clutrr:{archive(tmp_path)}", tokenizer="bpe:300")
    layout = QuestionAnswer()
    store, tokenizer = prepare(data, layout, show=False)
    rows = layout.rows(store.splits["test"])
    batch = layout.assemble(store.splits["test"], rows[np.array([0])], tokenizer)
    asked = batch["labels"][0][batch["labels"][0] != IGNORED]
    assert tokenizer.decode(asked).startswith("### son")
    assert "[Yan] left. How is" in tokenizer.decode(batch["input_ids"][0])


@pytest.mark.parametrize(
    "columns",
    [
        {"query": "Zoe, Yan"},
        {"query": "('Zoe', 'Xu')"},
        {"target": " "},
        {"story": ""},
        {"proof_state": "[{}]"},
        {"proof_state": "[("},
    ],
)
def test_a_malformed_row_is_named_by_file_and_line(tmp_path: Path, columns: dict[str, str]) -> None:
    path = archive(tmp_path, row(story="[Zoe] wrote to\n[Yan]."), row(**columns))
    with pytest.raises(
        InputError, match=r"data\.zip/1\.4_test\.csv, line 4 is malformed"
    ):  # a story of two lines before
        open_source(f"clutrr:{path}")


def test_what_is_not_the_published_zip_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.zip does not exist"):
        open_source(f"clutrr:{tmp_path}/none.zip")
    with pytest.raises(InputError, match="no file of a known kind"):
        open_source(f"clutrr:{tmp_path}")
    with pytest.raises(InputError, match=r"no \*_test\.csv"):
        open_source(f"clutrr:{archive(tmp_path, test='1.4_valid.csv')}")
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a_train.csv", "story,target\nx,y\n")
        file.writestr("a_test.csv", "story,target\nx,y\n")
    with pytest.raises(InputError, match=r"a_train\.csv, line 2 .*no 'query'"):
        open_source(f"clutrr:{path}")
    path.write_bytes(b"no zip")
    with pytest.raises(InputError, match="cannot be read"):
        open_source(f"clutrr:{path}")


def test_the_published_zip_is_read_whole(shared_data: Path) -> None:
    source = open_source(f"clutrr:{shared_data}/reasoning/clutrr")
    assert len(texts(source, "train")) + len(texts(source, "validation")) == 10_094
    assert len(texts(source, "test")) == 1_146
    steps = [len(document.segments) - 2 for document in source.documents("test")]
    assert (min(steps), max(steps)) == (1, 9)


def test_the_zip_has_splits_and_is_not_read_whole(tmp_path: Path) -> None:
    spec = f"clutrr:{archive(tmp_path)}"
    assert not is_one_text(spec)
    with pytest.raises(InputError, match=r"split is 'all': .* has splits of its own, set one of train, test"):
        open_source(spec, whole=True)
