"""What a run writes says nothing of its user: no environment, no home folder, no tokens of the repository around it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mentalese import get_recipe
from support import shrink

SECRETS = {
    "HF_TOKEN": "hf_qzxSecretOfTheHub",
    "WANDB_API_KEY": "qzxSecretOfTheTracker",
    "MY_PASSWORD": "qzxSecretOfTheShell",
    "USER": "qzxuser",
    "LOGNAME": "qzxuser",
}
REMOTE = "https://qzxuser:ghp_qzxSecretOfTheRemote@example.org/private.git"


@pytest.mark.slow
def test_no_file_of_a_run_contains_private_words(corpus: Path, tmp_path: Path) -> None:
    home = tmp_path / "qzxhome"
    work = home / "work"
    work.mkdir(parents=True)
    shutil.copy(corpus, work / "text.jsonl")
    recipe = shrink(get_recipe("gpt2/tiny"), corpus, steps=2, checkpoint_every=2).to_dict()
    recipe["data"]["source"] = "file:text.jsonl"
    (work / "recipe.json").write_text(json.dumps(recipe))
    for words in (["init", "-q"], ["remote", "add", "origin", REMOTE]):
        subprocess.run(["git", *words], cwd=work, check=True)
    environment = os.environ | SECRETS | {"HOME": str(home)}
    command = [sys.executable, "-m", "mentalese", "train", "recipe.json", "--out", "run"]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files = [path for path in (work / "run").rglob("*") if path.is_file()]
    assert {"config.json", "result.json", "README.md", "mentalese.json"} <= {path.name for path in files}
    assert [str(path.relative_to(work)) for path in files if b"qzx" in path.read_bytes()] == []
    assert "qzx" not in done.stdout + done.stderr
