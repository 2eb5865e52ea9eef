"""Files are written whole or not at all; devices, pipes and links are written into and never replaced."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mentalese import InputError
from mentalese.files import (
    check_place,
    compact_json,
    remove_remains,
    temporary_name,
    whole_file,
    whole_folder,
    write_text,
)

DEVICE = Path("/dev/full")
needs_device = pytest.mark.skipif(not DEVICE.is_char_device(), reason="there is no /dev/full")


def test_a_folder_that_was_being_replaced_comes_back(tmp_path: Path) -> None:
    """A process was killed after the old folder had given up its name."""
    old = tmp_path / ".model.old"
    for exists in (False, True):
        old.mkdir()
        (old / "weights").write_text("older" if exists else "old")
        (tmp_path / ".model-abc").mkdir()
        remove_remains(tmp_path / "model")
        assert [path.name for path in tmp_path.iterdir()] == ["model"]
        assert (tmp_path / "model" / "weights").read_text() == "old"


def test_what_killed_preparations_left_in_the_cache_goes_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MENTALESE_CACHE", str(tmp_path / "cache"))
    for place, remain in (
        (tmp_path / "cache", {"store", ".store-new_temp"}),
        (tmp_path, {"cache", "store", ".store-old_temp"}),
    ):
        for name in (".store-old_temp", ".store-new_temp"):
            (place / name).mkdir(parents=True)
            (place / name / "tokens.bin").touch()
        for path in (place / ".store-old_temp" / "tokens.bin", place / ".store-old_temp"):
            os.utime(path, (0, 0))
        with whole_folder(place / "store"):
            pass
        assert {path.name for path in place.iterdir()} == remain | {".store-new_temp"}, "outside the cache all stays"


@needs_device
def test_a_full_device_is_refused_and_stays_a_device(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(DEVICE)
    for path in (DEVICE, link):
        check_place(path, "--out")
        with pytest.raises(InputError, match=f"{path} cannot be written .*no space left on device"):
            write_text(path, "some text")
    assert DEVICE.is_char_device()
    assert not list(Path("/dev").glob(".full*"))


def test_a_file_that_is_read_is_known_by_each_of_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").touch()
    (tmp_path / "link.txt").symlink_to("text.txt")
    for name in ("file:~/text.txt", "file:text.txt", "link.txt", f"file:{tmp_path}"):
        with pytest.raises(InputError, match="that file is read: use another name"):
            check_place(tmp_path / "text.txt", "--out", name)
    check_place(tmp_path / "new.txt", "--out", f"file:{tmp_path}")
    check_place(tmp_path / "text.txt", "--out", "builtin:stdlib", None)


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    for number, target in enumerate(("real/there.json", "real/new.json")):
        (tmp_path / "real" / "there.json").write_text("old")
        link = tmp_path / f"link{number}"
        link.symlink_to(target)
        check_place(link, "--out")
        write_text(link, "new")
        assert link.is_symlink()
        assert (tmp_path / target).read_text() == "new"
    assert sorted(path.name for path in (tmp_path / "real").iterdir()) == ["new.json", "there.json"]


def test_a_link_into_a_missing_folder_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "missing" / "file.json")
    with pytest.raises(InputError, match="its folder does not exist"):
        check_place(link, "--out")


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    check_place(pipe, "--out")
    write_text(pipe, "some text")
    reader.join(10)
    assert read == ["some text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="there is no /dev/stdout")
@pytest.mark.parametrize("mode", ["w", "a", None])
def test_standard_output_is_written_after_what_was_printed(mode: str | None, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from mentalese.files import check_place, write_text\n"
        "out = Path('/dev/stdout'); print('before'); check_place(out, '--out')\n"
        "write_text(out, 'text\\n'); print('after')"
    )
    command = [sys.executable, "-c", code]
    if mode is not None:
        with (tmp_path / "printed").open(mode) as file:
            subprocess.run(command, stdout=file, check=True)
        printed = (tmp_path / "printed").read_text()
    else:
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == "before\ntext\nafter\n"


def test_an_error_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write_half() -> None:
        with whole_file(path) as place:
            place.write_text("half")
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        write_half()
    assert path.read_text() == "old"
    write_text(path, "new")
    assert path.read_text() == "new"
    assert not temporary_name(path).exists()


NUMBERS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(NUMBERS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=40)


@given(content=VALUES, width=st.integers(1, 60))
def test_compact_json_has_the_same_content(content: object, width: int) -> None:
    assert json.loads(compact_json(content, width)) == content


def test_compact_json_has_a_line_per_run() -> None:
    runs = [{"name": str(i), "scores": list(range(100))} for i in range(3)]
    lines = compact_json({"rows": runs}, width=900).splitlines()
    assert [json.loads(line.removesuffix(",")) for line in lines[2:-2]] == runs
