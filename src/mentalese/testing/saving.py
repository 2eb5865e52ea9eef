"""A model on disk, and a copy of one."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mentalese.models.base import class_of
from mentalese.testing.cases import Case
from mentalese.testing.runs import DEVICE

# Each child starts without any import of this library.
_OPENER = """
import os, sys, traceback
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, GPT2LMHeadModel
assert not any(name.partition(".")[0] == "mentalese" for name in sys.modules)
for line in sys.stdin:
    folder = Path(line.rstrip())
    if not os.fork():
        try:
            model = AutoModelForCausalLM.from_pretrained(folder / "model", trust_remote_code=True).eval()
            ids = torch.load(folder / "ids.pt", weights_only=True)
            torch.save(model(ids).logits.detach(), folder / "logits.pt")
            model.save_pretrained(folder / "again")
        except BaseException:
            (folder / "error.txt").write_text(traceback.format_exc())
        os._exit(0)
    os.wait()
    print(flush=True)
"""

Opener = Callable[[Path], None]


@pytest.fixture(scope="module")
def opener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    """Open the model in a folder in a new process; its import of transformers is shared by all tests."""
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path_factory.mktemp("modules"))}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, "-c", _OPENER], env=environment, text=True, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        out = process.stdout

        def open_model(folder: Path) -> None:
            print(folder, file=process.stdin, flush=True)
            assert out.readline(), "the process that opens models ended"
            error = folder / "error.txt"
            assert not error.is_file(), error.read_text()

        yield open_model
        process.stdin.close()


def test_a_saved_model_opens_with_the_auto_class_and_predicts_the_same(case: Case, tmp_path: Path) -> None:
    case.model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.bin")), "weights are safetensors"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).to(DEVICE).eval()
    assert type(loaded) is class_of(case.model)
    assert loaded.config.to_dict().items() >= {"vocab_size": len(case.tokenizer)}.items()
    weights, expected = loaded.state_dict(), case.model.state_dict()
    assert list(weights) == list(expected)
    torch.testing.assert_close(weights, expected, atol=0, rtol=0)
    batch = case.batch()
    torch.testing.assert_close(
        loaded(batch["input_ids"], attention_mask=batch.get("attention_mask")).logits, case.logits(batch)
    )


def test_a_saved_model_opens_without_naming_the_package(case: Case, tmp_path: Path, opener: Opener) -> None:
    """Check in a separate process, by `trust_remote_code=True`, where only transformers is imported."""
    case.model.save_pretrained(tmp_path / "model")
    ids = case.batch()["input_ids"][:1, :8]
    torch.save(ids.cpu(), tmp_path / "ids.pt")
    opener(tmp_path)
    with torch.no_grad():
        expected = case.model(ids).logits.cpu()
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt", weights_only=True), expected)
    names = {path.name for path in (tmp_path / "again").iterdir()}
    assert names == {path.name for path in (tmp_path / "model").iterdir()}


def test_a_config_keeps_what_other_tools_have_written_into_it(case: Case, tmp_path: Path) -> None:
    case.model.config.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"another_tools_key": {"bits": 8}}))
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config) is type(case.model.config)
    assert config.another_tools_key == {"bits": 8}
    config.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["another_tools_key"] == {"bits": 8}


def test_a_config_can_be_made_without_arguments(case: Case) -> None:
    """Versions of transformers compare a config with its class's defaults."""
    kind = type(case.model.config)
    assert kind.from_dict(kind().to_dict()).to_dict() == kind().to_dict()


def test_a_copy_is_independent_and_equal(case: Case) -> None:
    batch = case.batch()
    copied = copy.deepcopy(case.model)
    expected = case.model.token_nll(batch)
    with torch.no_grad():
        for parameter in case.model.parameters():
            parameter.zero_()
    assert torch.equal(copied.token_nll(batch), expected)
