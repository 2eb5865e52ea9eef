"""A run's folder: what a killed start leaves there does not keep the next start out."""

from __future__ import annotations

from pathlib import Path

import pytest

from mentalese import InputError, get_recipe
from mentalese.files import temporary_name
from mentalese.models.checkpoints import adapter_folder
from mentalese.training.loop import train
from mentalese.training.run_folder import LOCK, check_folder, first_weights


def test_a_start_that_was_killed_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    temporary_name(tmp_path / "config.json").write_text('{"recipe": ')
    for resume in (False, True):
        check_folder(get_recipe("gpt2/tiny"), tmp_path, resume)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match="is not empty and contains no run"):
        check_folder(get_recipe("gpt2/tiny"), tmp_path, False)


def test_a_checkpoint_that_a_run_starts_from_is_known_by_itself(tmp_path: Path) -> None:
    length = {"steps": 2, "tokens": None, "checkpoint_every": 1, "keep_checkpoints": 2}
    recipe = get_recipe("gpt2/tiny").replace(train=length)
    train(recipe, tmp_path / "first", show=False)
    checkpoint = tmp_path / "first" / "checkpoints" / "step-00000001"
    before = first_weights(recipe.replace(train={"init": str(checkpoint)}))
    model = first_weights(recipe.replace(train={"init": str(tmp_path / "first")}))
    assert before["init_weights"] != model["init_weights"]
    later = first_weights(recipe.replace(train={"init": str(checkpoint.with_name("step-00000002"))}))
    assert before != later  # the same `model/` lies beside both
    with pytest.raises(InputError, match="adapters are saved with the best model; use the run's folder"):
        adapter_folder(checkpoint)
