"""Odd command lines end in one sentence that names the field, before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from mentalese.cli import main

FILE = "{file}"
DRY_RUN = ("train", "gpt2/tiny", "--dry-run")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["suite", "--out", FILE], "--out is '{file}': {file} is a file, use a folder"),
        (["suite", "topics", "--out", f"{FILE}/runs"], "--out is '{file}/runs': {file} is a file, use a folder"),
        (["demo", "--out", FILE], "--out is '{file}': {file} is a file, use a folder"),
        (["demo", "--out", f"{FILE}/runs"], "--out is '{file}/runs': {file} is a file, use a folder"),
        (["suite", "topics", "--jobs", "0", "--out", f"{FILE}-runs"], "jobs is 0: it should be"),
        (["demo", "--jobs", "0", "--out", f"{FILE}-runs"], "jobs is 0: it should be"),
        (["compare", "gpt2/tiny", "gpt2-gist/tiny", "--out", f"{FILE}/runs"], "{file} is a file, use a folder"),
        (
            ["suite", "topics", "--seeds", "9" * 20, "--out", f"{FILE}-runs"],
            "seeds is 99999999999999999999: it should be less",
        ),
        (["new", "family", "fresh", "--out", f"{FILE}/x"], "--out is '{file}/x': {file} is a file, use a folder"),
        (["train", "gpt2/tiny", "--out", f"{FILE}/run"], "--out is '{file}/run': {file} is a file, use a folder"),
        (["new", "family", "fresh", "--out", "a\0b"], "out is 'a\\x00b': use a path, which has no character 0"),
        (["train", "gpt2/tiny", "--out", "a\0b"], "out is 'a\\x00b': use a path, which has no character 0"),
        ([*DRY_RUN, "--flops-per-second", "nan"], "flops_per_second is nan: it should be a finite number"),
        ([*DRY_RUN, "--flops-per-second", "inf"], "flops_per_second is inf: it should be a finite number"),
        ([*DRY_RUN, "data.tokenizer=bpe:9" + 20 * "9"], "use bpe:SIZE with a SIZE of 260 to 4294967296"),
        ([*DRY_RUN, "data.tokenizer=bpe:" + 5000 * "9"], "use bpe:SIZE with a SIZE of 260 to 4294967296"),
        ([*DRY_RUN, "--data", "builtin:topics:window=0"], "builtin:topics.window is '0'"),
        ([*DRY_RUN, "--data", "builtin:recall:"], "builtin:recall is ''"),
        ([*DRY_RUN, "--data", "builtin:topics:count=9999999999999999999"], "builtin:topics.count is"),
        ([*DRY_RUN, "--data", "builtin:topics:length=9999999999"], "builtin:topics.length is"),
        ([*DRY_RUN, "--data", "file:/dev/null"], "/dev/null"),
        (["play", "none", "--host", "a\0b"], "--host is 'a\\x00b'"),
        ([*DRY_RUN, "--data", "builtin:stdlib:"], "builtin:stdlib has no options, remove ':'"),
        ([*DRY_RUN, "--data", "builtin:recall:keys=4,"], "builtin:recall is 'keys=4,'"),
    ],
)
def test_odd_words_are_refused_in_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    assert main([word.replace(FILE, str(file)) for word in words]) == 2
    errors = capsys.readouterr().err
    assert sentence.format(file=file) in errors
    assert errors.count("\n") == 1
    assert [*tmp_path.iterdir()] == [file]
