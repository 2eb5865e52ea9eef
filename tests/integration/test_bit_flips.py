"""A bit that flips in a file of a run is found, or changes nothing: never another result in silence."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mentalese import InputError, Recipe, cli, get_recipe, override
from mentalese.analyses.drawing import read_run
from mentalese.compare.compare import read_answers
from mentalese.training.loop import train
from support import keep_changes, power_cut, shrink

pytestmark = pytest.mark.slow

STEPS, CUT = 4, 3
UNREAD = {"README.md", "mentalese_model.py", "mentalese_tokenizer.py"}
"""Files for people, and for other programs, which run the code if they are allowed to."""
VARYING = ("seconds", "tokens_per_second", "peak_memory_bytes", "command", "checksum")

Reader = Callable[[Path, Path], Any]
"""From the folder of a run and a scratch folder to what is read; ends by `RefusedError` where the command refuses."""


class RefusedError(Exception):
    """The command ended by its one sentence."""


def run_command(*words: str | Path) -> str:
    """Return the output of a command; exceptions other than its refusals are not caught, and fail the test."""
    printed, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        code = cli.main([str(word) for word in words])
    if code == 0:
        return printed.getvalue()
    [sentence] = [line for line in said.getvalue().splitlines() if line.startswith("mentalese: error: ")]
    assert code in (1, 2), sentence
    raise RefusedError(sentence)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise RefusedError(str(error)) from error


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["gpt2/tiny", "coconut/tiny"])
def recipe(request: pytest.FixtureRequest, corpus: Path) -> Recipe:
    small = shrink(get_recipe(request.param), corpus, steps=STEPS, checkpoint_every=2, eval_every=2)
    return override(small, "data.tokenizer=bpe:300", "evaluation.max_documents=2")


@pytest.fixture(scope="module")
def folder(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: `finished`, and `stopped`, whose process ended after a checkpoint; the recipe; a scratch folder."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "recipe.json").write_text(json.dumps(recipe.to_dict()))
    (folder / "scratch").mkdir()
    train(recipe, folder / "finished", show=False)
    with power_cut(pytest.MonkeyPatch(), at_step=CUT):
        train(recipe, folder / "stopped", show=False)
    return folder


# -- what reads their files --------------------------------------------------------------------------------------------


def scores(model: Path, scratch: Path) -> Any:
    """The model on its text, or on its questions."""
    recipe, out = json.loads((scratch.parent / "recipe.json").read_text()), scratch / "scores.json"
    asks = recipe["evaluation"]["metric"] == "accuracy"
    run_command("answer" if asks else "eval", model, "--documents", "2", "--out", out)
    return json.loads(out.read_text())


def text(run: Path, scratch: Path) -> Any:
    return run_command("generate", run, "--prompt", "She had a son.", "--max-new-tokens", "4")


def page(run: Path, scratch: Path) -> Any:
    """The page of `think`, which names the run's recipe, without the time at which it was made."""
    run_command("think", run, "--text", "She had a son.", "--out", scratch / "page.html")
    return re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?", "", (scratch / "page.html").read_text())


def tokens(run: Path, scratch: Path) -> Any:
    """A text in the tokens of the run's model."""
    shutil.rmtree(scratch / "store", ignore_errors=True)
    source = json.loads((scratch.parent / "recipe.json").read_text())["data"]["source"]
    run_command("data", "prepare", source, "--tokenizer", run / "model", "--out", scratch / "store")
    return json.loads((scratch / "store" / "meta.json").read_text())["data_hash"]


def result(run: Path, scratch: Path) -> Any:
    """The result of the finished run, as a resumed run and a figure show it."""
    run_command("figure", "curves", run, "--out", scratch / "curves.svg")
    curves = json.loads((scratch / "curves.json").read_text())
    return run_command("train", scratch.parent / "recipe.json", "--out", run, "--resume"), curves["runs"]


def answers(run: Path, scratch: Path) -> Any:
    """Return the answers that the page of `compare` shows."""
    with refusals():
        return read_answers(run / "answers.jsonl")


def log(run: Path, scratch: Path) -> Any:
    """Return the records of a run's log that figures draw."""
    with refusals():
        return [timeless(record) for record in read_run(str(run))]


def checkpoint(run: Path, scratch: Path) -> Any:
    return scores(run / "checkpoints" / f"step-{STEPS:08}", scratch)


def continued(run: Path, scratch: Path) -> Any:
    """The result, the log and the weights of the stopped run after it has gone on."""
    copy = scratch / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    try:
        run_command("train", scratch.parent / "recipe.json", "--out", copy, "--resume")
    except RefusedError as refused:
        raise RefusedError(str(refused).replace(str(copy), str(run))) from None
    found = json.loads((copy / "result.json").read_text())
    found["curve"] = [timeless(point) for point in found["curve"]]
    logged = [timeless(json.loads(line)) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    weights = hashlib.sha256((copy / "model" / "model.safetensors").read_bytes()).hexdigest()
    return timeless(found), logged, weights


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in VARYING}


def readers(file: Path) -> list[Reader]:
    """What reads a file of the folder, named from there."""
    run, *places = file.parts
    if run == "stopped":
        return [continued] if places[0] != "model" or file.name == "mentalese.json" else []
    if places[0] == "checkpoints":
        return [checkpoint] if places[1] == f"step-{STEPS:08}" else []
    if places[0] == "model":
        return [scores, text, *([tokens] if "token" in file.name or file.name == "mentalese.json" else [])]
    at_top = {"config.json": page, "result.json": result, "answers.jsonl": answers, "metrics.jsonl": log}
    return [at_top[places[0]]]


# -- flips -------------------------------------------------------------------------------------------------------------


def flips(content: bytes) -> Iterator[tuple[int, int]]:
    """Places and bits: start, middle, end and thirds; a digit that becomes another, and a letter of the other case."""
    last = len(content) - 1
    yield from ((place, 1 << place % 7) for place in (0, last // 3, last // 2, last * 2 // 3, last))
    for kind, bit in ((rb"[0-9]", 0x01), (rb"[a-z]", 0x20)):
        for start in (0, last // 2):
            if (found := re.compile(kind).search(content, start)) is not None:
                yield found.start(), bit


def check_flip(folder: Path, file: Path, place: int, bit: int, reader: Reader, intact: Any) -> None:
    """Check that `reader` refuses the file with one bit changed in a sentence that names it, or reads the same."""
    path, content = folder / file, bytearray((folder / file).read_bytes())
    content[place] ^= bit
    before = path.read_bytes()
    path.write_bytes(content)
    read, sentence = None, ""
    try:
        read = reader(folder / file.parts[0], folder / "scratch")
    except RefusedError as refused:
        sentence = str(refused)
    finally:
        path.write_bytes(before)
    where = f"{path} at {place}, bit {bit}"
    assert not sentence or str(path) in sentence, f"{where}: another file is named: {sentence}"
    assert sentence or read == intact, f"{where}: another result in silence"


def test_a_flipped_bit_is_found_or_changes_nothing(folder: Path) -> None:
    paths = sorted(path for run in ("finished", "stopped") for path in (folder / run).rglob("*") if path.is_file())
    intact: dict[tuple[str, Reader], Any] = {}
    for file in (path.relative_to(folder) for path in paths if path.stat().st_size and path.name not in UNREAD):
        for reader in readers(file):
            key = file.parts[0], reader
            if key not in intact:
                intact[key] = reader(folder / file.parts[0], folder / "scratch")
            for place, bit in flips((folder / file).read_bytes()):
                check_flip(folder, file, place, bit, reader, intact[key])


@pytest.mark.parametrize(
    ("recipe", "name", "last", "bit"),
    [
        ("gpt2/tiny", "config.json", rb'"name": "g', 0x20),
        ("gpt2/tiny", "result.json", rb'"loss": \d', 0x01),
        ("gpt2/tiny", "metrics.jsonl", rb'"loss": \d', 0x01),
        ("coconut/tiny", "answers.jsonl", rb'"question": "[A-Z][a-z]', 0x20),
        ("gpt2/tiny", "model/config.json", rb'_epsilon": 1e-0\d', 0x01),
        ("gpt2/tiny", "model/mentalese.json", rb'"sequence_length": \d\d', 0x01),
    ],
    indirect=["recipe"],
)
def test_without_checksums_a_flip_goes_unseen(folder: Path, tmp_path: Path, name: str, last: bytes, bit: int) -> None:
    """Show what is read of files of earlier versions, and of those whose change a user has accepted."""
    copy, file = tmp_path / "runs", Path("finished") / name
    shutil.copytree(folder, copy)
    reader = readers(file)[0]
    intact = reader(copy / "finished", copy / "scratch")

    def flip() -> None:
        (place, *_) = (match.end() - 1 for match in re.finditer(last, (copy / file).read_bytes()))
        check_flip(copy, file, place, bit, reader, intact)

    flip()
    keep_changes(copy / file, copy / "finished" / "model" / "mentalese.json")
    assert reader(copy / "finished", copy / "scratch") == intact
    with pytest.raises(AssertionError, match="another result in silence"):
        flip()
