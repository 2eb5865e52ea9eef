"""Without a network a name of the hub fails at once with the remedy, and what was kept opens."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pytest
from huggingface_hub import constants

from mentalese import InputError, get_recipe, load
from mentalese.cli import main
from mentalese.data.sources import open_source
from mentalese.data.tokenizers import load_pretrained_tokenizer
from mentalese.evaluation.measures import read_questions
from mentalese.evaluation.options import EvaluationOptions
from mentalese.network import hub_or_cache, unreachable
from support import saved, shrink


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, and nobody has told the libraries so."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing listens there


@pytest.fixture(scope="module")
def model(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("hub") / "run", shrink(get_recipe("gpt2/tiny"), corpus)) / "model"


@pytest.mark.parametrize(
    ("opens", "field"),
    [
        (load, "MODEL"),
        (open_source, "data.source"),
        (load_pretrained_tokenizer, "tokenizer"),
    ],
)
@pytest.mark.usefixtures("cut_off")
def test_a_name_that_cannot_be_had_is_refused_at_once(opens: Callable[[str], Any], field: str) -> None:
    began = time.perf_counter()
    says = f"^{field} is 'hub:nobody/nothing': the hub cannot be reached .*refused.*: connect, or use a local folder"
    with pytest.raises(InputError, match=says):
        opens("hub:nobody/nothing")
    assert time.perf_counter() - began < 5  # half a minute of retries, otherwise
    assert not constants.is_offline_mode()  # who connects may try again


@pytest.mark.usefixtures("cut_off")
def test_tasks_of_lm_eval_too(monkeypatch: pytest.MonkeyPatch) -> None:
    import lm_eval.tasks

    root = Path(lm_eval.tasks.__file__).parent
    known = lm_eval.tasks.TaskManager(include_path=[root / "piqa"], include_defaults=False)
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", lambda: known)
    with pytest.raises(InputError, match=r"^tasks is 'hub:piqa': the hub cannot be reached"):
        read_questions("hub:piqa", EvaluationOptions())


@pytest.mark.usefixtures("cut_off")
def test_a_model_is_not_pushed(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    (model / "README.md").write_text("A card.")
    assert main(["push", str(model), "me/mine"]) == 2
    said = capsys.readouterr().err
    assert "REPO is 'me/mine': the upload failed (" in said
    assert "connect and try again" in said


@pytest.mark.usefixtures("cut_off")
def test_a_model_that_was_kept_opens(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0" * 40
    kept = tmp_path / "models--me--mine"
    shutil.copytree(model, kept / "snapshots" / commit)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert load("hub:me/mine").score(["It is short."]) == load(model).score(["It is short."])


def test_offline_mode_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"the hub cannot be reached \(HF_HUB_OFFLINE is set\)"):
        load("hub:nobody/nothing")


def test_an_answer_of_any_kind_is_a_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: Answers())
    assert unreachable() is None
    with hub_or_cache("MODEL", "hub:me/mine") as reached:
        assert reached


class Answers:
    def head(self, *_: Any, **__: Any) -> None:
        """Answers, say with 503."""
