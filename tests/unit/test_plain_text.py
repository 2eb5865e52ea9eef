"""Files of text and tables as people have them: loose files, sub-folders, one long text, CSV."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from mentalese import InputError
from mentalese.data.documents import Document, Source
from mentalese.data.plain_text import cut_documents, length_of_few
from mentalese.data.sources import is_one_text, open_source


def texts(source: Source) -> list[str]:
    return [document.text for split in source.splits for document in source.documents(split)]


def fill(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"The text of {name}.\n\nIt ends.")


def test_files_without_splits_are_documents(tmp_path: Path) -> None:
    names = [f"doc{number}.txt" for number in range(10)]
    fill(tmp_path, *names, "deep/er/doc.txt", "deep/other.txt", ".hidden/secret.txt", "notes.md")
    (tmp_path / "empty.txt").touch()
    source = open_source(f"file:{tmp_path}")
    expected = [f"The text of {name}.\n\nIt ends." for name in [*names, "deep/er/doc.txt", "deep/other.txt"]]
    assert sorted(texts(source)) == sorted(expected)
    assert source.remarks == (f"file:{tmp_path}: no file is called train, so that all 12 in it and below are one text",)
    assert is_one_text(f"file:{tmp_path}")
    assert len(texts(open_source(f"file:{tmp_path}", whole=True))) == 12


def test_folders_called_as_splits_are_splits(tmp_path: Path) -> None:
    fill(tmp_path, "train/a.txt", "train/more/b.txt", "val/c.txt", "test/d.txt", "readme.txt")
    source = open_source(f"file:{tmp_path}")
    assert [len(list(source.documents(split))) for split in ("train", "validation", "test")] == [2, 1, 1]
    assert source.remarks == ()
    assert not is_one_text(f"file:{tmp_path}")


def test_the_only_folder_is_searched_for_splits(tmp_path: Path) -> None:
    fill(tmp_path, "data/train-00000.txt", "data/validation-00000.txt", "data/test-00000.txt")
    source = open_source(f"file:{tmp_path}")
    assert list(source.documents("test")) == [Document("The text of data/test-00000.txt.\n\nIt ends.")]
    assert not is_one_text(f"file:{tmp_path}")


def test_a_long_text_is_cut_at_blank_lines(tmp_path: Path) -> None:
    paragraphs = [f"Paragraph {number} is here.\nIt has two lines." for number in range(300)]
    (tmp_path / "book.txt").write_text("\n\n".join(paragraphs))
    source = open_source(f"file:{tmp_path / 'book.txt'}")
    found = texts(source)
    assert 60 <= len(found) <= 110
    assert all(text.startswith("Paragraph") and text.endswith("lines.") for text in found)
    assert sorted("\n\n".join(found).split("\n\n")) == sorted(paragraphs)
    assert "is cut at blank lines" in source.remarks[0]
    assert len(texts(open_source(f"file:{tmp_path / 'book.txt'}", whole=True))) == 1


@pytest.mark.parametrize("given", [[], ["valid"], ["test"]])
def test_one_long_training_text_is_cut_where_a_split_is_missing(given: list[str], tmp_path: Path) -> None:
    paragraphs = [f"The {number}th paragraph of a text.\n\n" for number in range(90)]
    (tmp_path / "train.txt").write_text("".join(paragraphs))
    for split in given:
        (tmp_path / f"{split}.txt").write_text(f"The whole {split} text.")
    source = open_source(f"file:{tmp_path}")
    assert "is cut at blank lines" in source.remarks[-1]
    assert all(source.size(split) > 0 for split in ("train", "validation", "test"))
    for split in given:
        [document] = source.documents("validation" if split == "valid" else split)
        assert document.text == f"The whole {split} text."


@pytest.mark.parametrize("separator", ["\n", " ", ""])
def test_a_text_without_blank_lines_is_cut_by_length(separator: str, tmp_path: Path) -> None:
    path = tmp_path / "line.txt"
    path.write_text(separator.join(f"word{number}" for number in range(30_000)))
    size = len(path.read_text())
    assert length_of_few([path]) == size
    found = [document.text for document in cut_documents([path], size)]
    assert 40 <= len(found) <= 110
    assert max(map(len, found)) <= 5 * size / 100
    assert separator.join(found) == path.read_text()


def test_a_text_with_three_documents_is_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_text("One.\n\nOne.\n<|endoftext|>\nTwo.\n<|endoftext|>\n= Three =\nThree.\n")
    assert length_of_few([path]) is None
    assert len(texts(open_source(f"file:{path}"))) == 3


def test_a_short_text_is_still_refused(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Only this.")
    with pytest.raises(InputError, match="no document left for validation and test"):
        open_source(f"file:{tmp_path / 'short.txt'}")


def test_tables_are_read_as_rows(tmp_path: Path) -> None:
    content = '\ufefftext,id\n"One, and\n""two"".",007\nThree.,8\nFour.,9\n'
    (tmp_path / "a.csv").write_text(content, encoding="utf-8")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(content.encode()))
    (tmp_path / "c.tsv").write_text('text\tid\r\n"One, and\n""two""."\t007\r\nThree.\t8\r\nFour.\t9\r\n', newline="")
    (tmp_path / "d.csv").write_text('text;id\n"One, and\n""two"".";007\nThree.;8\nFour.;9\n')
    for name in ("a.csv", "b.csv.gz", "c.tsv", "d.csv"):
        assert sorted(texts(open_source(f"file:{tmp_path / name}"))) == ["Four.", 'One, and\n"two".', "Three."]


def test_a_table_of_questions_has_steps_in_a_cell(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text('question,steps,answer\n1?,"[""a"", ""b""]",1\n2?,"c\nd",2\n3?,,3\n')
    source = open_source(f"file:{path}", whole=True)
    assert [document.segments for document in source.documents("test")] == [
        ("1?\n", "a\n", "b\n", "### 1"),
        ("2?\n", "c\n", "d\n", "### 2"),
        ("3?\n", "### 3"),
    ]
    path.write_text("question,answer\n1?,1\n")
    with pytest.raises(InputError, match="no column 'steps'"):
        open_source(f"file:{path}", whole=True)


def test_a_cell_may_be_long(tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text("text\n" + "word " * 100_000 + "\n")
    [document] = open_source(f"file:{tmp_path / 'long.csv'}", whole=True).documents("test")
    assert isinstance(document, Document)
    assert len(document.text) == 500_000
