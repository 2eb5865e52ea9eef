"""What the documents tell a reader to type works as written, with short runs in place of whole ones.

`mentalese train` and `mentalese compare` are cut to two steps on a small text on the way; all else runs unchanged. A
block after `<!-- not run -->` is left out: those install or write into the repository.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mentalese import Family, recipes
from mentalese.commands import COMMANDS
from mentalese.commands.options import find_command, read_options

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^(<!-- not run -->\n)?```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NOT_RUN = ["pip install . ./models", "make demo", "make test"]

# Imports take most of a command's time: one process has them done, and each command is a fork of it.
SERVER = """
import json, os, signal, socket, sys
import torch, transformers, mentalese.api, mentalese.compare.compare, mentalese.training.loop, mentalese.viewer.page
from mentalese.cli import main

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
server = socket.socket(socket.AF_UNIX)
server.bind({path!r})
server.listen()
print("ready", flush=True)
while True:
    asker, _ = server.accept()
    if os.fork():
        asker.close()
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, files, _, _ = socket.recv_fds(asker, 1 << 16, 3)
    folder, arguments = json.loads(message)
    os.chdir(folder)
    for place, file in enumerate(files):
        os.dup2(file, place)
    sys.argv = ["mentalese", *arguments]
    if arguments[0] in ("train", "compare"):
        arguments += "--train.steps 2 --evaluation.sample-tokens 4".split()
        if "--data" not in arguments:
            text = {questions!r} if "coconut" in arguments[1] else {corpus!r}
            arguments += f"--data file:{{text}} --data.tokenizer bpe:512".split()
    try:
        code = main(arguments)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    asker.send(bytes([code]))
    os._exit(code)
"""
CLIENT = """#!{python} -IS
import json, os, socket, sys

asked = socket.socket(socket.AF_UNIX)
asked.connect({path!r})
socket.send_fds(asked, [json.dumps([os.getcwd(), sys.argv[1:]]).encode()], [0, 1, 2])
sys.exit((asked.recv(1) or bytes([1]))[0])
"""


def blocks(document: str) -> list[tuple[bool, str, str]]:
    """(runs, language, code) of every block, in order."""
    return [(not skipped, language, code) for skipped, language, code in BLOCK.findall((ROOT / document).read_text())]


@pytest.fixture(scope="module")
def folder(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty working folder whose `mentalese` makes short runs."""
    folder = tmp_path_factory.mktemp("reader")
    command = folder / "bin" / "mentalese"
    command.parent.mkdir()
    path = str(Path(tempfile.mkdtemp()) / "socket")  # a short one: paths of sockets have about 100 characters
    questions = str(corpus.with_name("questions.jsonl"))
    command.write_text(CLIENT.format(python=sys.executable, path=path))
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    server = SERVER.format(path=path, corpus=str(corpus), questions=questions)
    with subprocess.Popen([sys.executable, "-c", server], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield folder
        process.kill()


def run(arguments: list[str], folder: Path) -> None:
    environment = os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"


def test_the_readme_does_what_it_says(folder: Path) -> None:
    """Bash blocks one after the other, then all Python blocks as one program."""
    found = blocks("README.md")
    for runs, language, code in found:
        if runs and language == "bash":
            run(["bash", "-euo", "pipefail", "-c", code], folder)
    program = "\n".join(code for runs, language, code in found if runs and language == "python")
    run([sys.executable, "-W", "error", "-c", program], folder)


def test_the_page_on_hugging_face_does_what_it_says(folder: Path, tmp_path: Path) -> None:
    found = blocks("docs/hugging_face.md")
    (tmp_path / "bin").symlink_to(folder / "bin")
    for runs, language, code in found:
        if runs and language == "bash":
            run(["bash", "-euo", "pipefail", "-c", code], tmp_path)
    program = "\n".join(code for runs, language, code in found if runs and language == "python")
    run([sys.executable, "-W", "error", "-c", program], tmp_path)


def test_only_what_installs_or_needs_a_base_is_left_out() -> None:
    left_out = [code for runs, _, code in blocks("README.md") if not runs]
    lines = [shlex.split(line, comments=True) for code in left_out for line in code.splitlines()]
    assert [" ".join(line) for line in lines if line[0] != "mentalese"] == NOT_RUN
    for _, command, *words in (line for line in lines if line[0] == "mentalese"):
        if command == "train":
            assert words[0] in recipes()
        else:
            read_options(find_command(command)[1], words, command)


def test_the_commands_of_evaluation_have_options_that_exist() -> None:
    """They need a model, and some of them the hub, so that they are read and not run."""
    found = [code for _, language, code in blocks("docs/evaluation.md") if language == "bash"]
    lines = [shlex.split(line) for code in found for line in code.splitlines()]
    assert len(lines) > 10
    for program, command, model, *options in lines:
        assert (program, model) == ("mentalese", "MODEL")
        assert command in COMMANDS
        read_options(find_command(command)[1], [model, *options], command)
    assert {line[1] for line in lines} == {"eval", "answer", "ablate", "sample", "diff", "think"}


def test_the_commands_of_training_have_options_that_exist() -> None:
    """Those of models are read; recipes' own are run elsewhere."""
    found = [code for runs, language, code in blocks("docs/training.md") if runs and language == "bash"]
    lines = [shlex.split(line) for code in found for line in code.splitlines()]
    seen = [command for _, command, *_ in lines]
    for program, command, *words in lines:
        assert program == "mentalese"
        if command != "train":
            read_options(find_command(command)[1], words, command)
    assert {"grow", "train", "answer", "push"} == set(seen)


def test_the_family_that_contributing_declares_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Family, "__post_init__", lambda family: None)  # its modules do not exist
    code = BLOCK_IN_LIST.search((ROOT / "CONTRIBUTING.md").read_text())
    assert code is not None
    names: dict[str, object] = {}
    exec("\n".join(line[3:] for line in code[1].splitlines()), names)
    assert names["FAMILY"].name == "echo"  # type: ignore[attr-defined]


BLOCK_IN_LIST = re.compile(r"^   ```python\n(.*?)^   ```", re.MULTILINE | re.DOTALL)


PAGES = ["architecture", "evaluation", "hugging_face", "runs", "training"]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", *(f"docs/{name}.md" for name in PAGES)])
def test_links_and_paths_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text()
    base = (ROOT / document).parent
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (base / target).exists(), f"{document} links to {target}"


def test_each_noun_of_the_architecture_is_a_class() -> None:
    rows = re.findall(
        r"^\| `([A-Z]\w+)` \| .* \| `(.*\.py)` \|$", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE
    )
    assert 0 < len(rows) <= 35
    for noun, file in rows:
        declared = re.search(rf"^(class )?{noun}\b", (ROOT / "src/mentalese" / file).read_text(), re.MULTILINE)
        assert declared, f"{file} has no {noun}"


def example(name: str, *arguments: str | Path, folder: Path) -> str:
    """What one prints."""
    command = [sys.executable, ROOT / "examples" / name, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_the_examples_train_and_show_thoughts(folder: Path) -> None:
    done = example("train_and_look.py", folder / "example", "2", folder=folder)
    assert "test perplexity" in done
    assert "'Paul lives in Rome.': a vector of norm" in done
    done = example("look_at_thoughts.py", folder / "example", folder / "trace", folder=folder)
    assert "surprisal" in done
    assert "thought 1 represents '<|bos|> Paul lives in Rome.<|eos|>'" in done
    assert f"{folder / 'trace'} contains the trace of" in done
