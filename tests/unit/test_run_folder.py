"""A run's folder: what a killed start leaves there does not keep the next start out."""

from __future__ import annotations

from pathlib import Path

import pytest

from mentalese import InputError, get_recipe
from mentalese.files import temporary_name
from mentalese.training.run_folder import LOCK, check_folder


def test_a_start_that_was_killed_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    temporary_name(tmp_path / "config.json").write_text('{"recipe": ')
    for resume in (False, True):
        check_folder(get_recipe("gpt2/tiny"), tmp_path, resume)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match="is not empty and contains no run"):
        check_folder(get_recipe("gpt2/tiny"), tmp_path, False)
