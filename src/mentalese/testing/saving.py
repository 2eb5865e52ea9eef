"""What a model on disk, and a copy of one, keep."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mentalese.testing.cases import Case


def test_a_saved_model_opens_with_the_auto_class_and_predicts_the_same(case: Case, tmp_path: Path) -> None:
    case.hugging_face.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.bin")), "weights are safetensors"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(loaded) is type(case.hugging_face)
    assert loaded.config.to_dict().items() >= {"vocab_size": len(case.tokenizer)}.items()
    for (name, tensor), (other, expected) in zip(loaded.state_dict().items(), case.hugging_face.state_dict().items()):
        assert name == other
        assert torch.equal(tensor, expected), name
    batch = case.batch()
    torch.testing.assert_close(
        loaded(batch["input_ids"], attention_mask=batch.get("attention_mask")).logits, case.logits(batch)
    )


def test_a_saved_model_opens_without_naming_the_package(case: Case, tmp_path: Path) -> None:
    """In a process of its own, by `trust_remote_code=True`, where only transformers is imported."""
    case.hugging_face.save_pretrained(tmp_path / "model")
    ids = case.batch()["input_ids"][:1, :8]
    torch.save(ids, tmp_path / "ids.pt")
    code = (
        "import sys, torch\n"
        "from transformers import AutoModelForCausalLM\n"
        f"model = AutoModelForCausalLM.from_pretrained({str(tmp_path / 'model')!r}, trust_remote_code=True).eval()\n"
        f"ids = torch.load({str(tmp_path / 'ids.pt')!r}, weights_only=True)\n"
        f"torch.save(model(ids).logits.detach(), {str(tmp_path / 'logits.pt')!r})\n"
        f"model.save_pretrained({str(tmp_path / 'again')!r})\n"
    )
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        torch.testing.assert_close(torch.load(tmp_path / "logits.pt", weights_only=True), case.hugging_face(ids).logits)
    names = {path.name for path in (tmp_path / "again").iterdir()}
    assert names == {path.name for path in (tmp_path / "model").iterdir()}


def test_a_config_keeps_what_other_tools_have_written_into_it(case: Case, tmp_path: Path) -> None:
    case.hugging_face.config.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"another_tools_key": {"bits": 8}}))
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config) is type(case.hugging_face.config)
    assert config.another_tools_key == {"bits": 8}
    config.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["another_tools_key"] == {"bits": 8}


def test_a_copy_is_independent_and_equal(case: Case) -> None:
    batch = case.batch()
    copied = copy.deepcopy(case.model)
    expected = case.model.token_nll(batch)
    with torch.no_grad():
        for parameter in case.model.parameters():
            parameter.zero_()
    assert torch.equal(copied.token_nll(batch), expected)
