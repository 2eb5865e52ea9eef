"""Tiny versions of every `tiny` recipe, runs in processes of their own, and what a run's folder holds."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch import Tensor

from mentalese import DataConfig, EvaluationConfig, Recipe, Saved, TrainConfig, recipes
from mentalese.data import tokenizers
from mentalese.data.layouts import Layout, Packed, QuestionAnswer
from mentalese.data.store import Split, prepare
from mentalese.models.adapter import hugging_face_model
from mentalese.models.build import build_model
from mentalese.models.checkpoints import save_model

WORKER = """
import json, os, sys
from pathlib import Path
from mentalese import Recipe
from mentalese.training.loop import Interrupted, train
recipe, out, pids = Recipe.from_dict(json.loads(Path(sys.argv[1]).read_text())), Path(sys.argv[2]), Path(sys.argv[3])
with pids.open("a") as file:
    file.write(f"{os.getpid()}\\n")
try:
    train(recipe, out, resume=True, show=False)
except Interrupted as interrupted:
    sys.exit(interrupted.exit_code)
"""


def tiny_recipes() -> list[str]:
    """Every family's `tiny` recipe, found by discovery."""
    return [name for name in recipes() if name.endswith("/tiny")]


def demo() -> list[list[str]]:
    """The arguments of every `mentalese` that `make demo` runs."""
    root = Path(__file__).parents[1]
    shown = subprocess.run(["make", "-n", "demo"], cwd=root, capture_output=True, text=True, check=True).stdout
    commands = (shlex.split(line) for line in shown.splitlines())
    return [words[1:] for words in commands if words and words[0].endswith("bin/mentalese")]


def short_documents(corpus: Path, folder: Path, lengths: tuple[int, int, int]) -> Path:
    """The folder, with the corpus in three splits: to validate on are three documents of so many characters."""
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    short = [text[:length] for text, length in zip(texts, lengths)]
    for split, part in (("test", texts[:3]), ("validation", short), ("train", texts[6:])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in part))
    return folder


def saved(folder: Path, recipe: Recipe, **fields: Any) -> Path:
    """An untrained model whose thoughts differ from text to text, as a run leaves it."""
    recipe = dataclasses.replace(
        recipe, name=f"{recipe.name.partition('/')[0]}/{folder.name}", model=recipe.model | fields
    )
    _, tokenizer = prepare(recipe.data, recipe.layout, show=False)
    model = build_model(recipe.model, tokenizer, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(5)
    folder.mkdir()
    save_model(folder / "model", hugging_face_model(model), tokenizer, recipe=recipe.to_dict())
    (folder / "config.json").write_text(json.dumps({"recipe": recipe.to_dict()}))
    return folder


def opened(
    model: Any,
    tokenizer: Any,
    layout: Layout | None = None,
    data: DataConfig | None = None,
    **protocol: Any,
) -> Saved:
    """A model of this process as one that was loaded; `protocol`: fields of `EvaluationConfig`."""
    return Saved(
        path="model",
        model=model,
        tokenizer=tokenizer,
        data=data or DataConfig(),
        layout=layout or Packed(),
        evaluation=EvaluationConfig(**protocol),
    )


def shrink(recipe: Recipe, corpus: Path, *, steps: int = 6, **train: object) -> Recipe:
    """The recipe on the small corpus, a few hundred tokens a step, for a few steps; questions at all stages at once."""
    layout, asks = recipe.layout, recipe.layout.questions
    data = dataclasses.replace(
        recipe.data,
        source=f"file:{corpus.with_name('questions.jsonl') if asks else corpus}",
        tokenizer="bpe:512",
        train_tokens=None,
    )
    sizes: dict[str, Any] = {"tokens_per_batch": 400, "max_sentences": 6}
    if layout.sequence_length is not None:
        sizes = {"batch_size": 4, "sequence_length": min(layout.sequence_length, 128 if asks else 64)}
    if isinstance(layout, QuestionAnswer):
        sizes |= {"stage": layout.stages, "uniform_prob": 0.5}
    layout = dataclasses.replace(layout, **sizes)
    config = TrainConfig(steps=steps, log_every=1, device="cpu", **train)  # type: ignore[arg-type]
    evaluation = dataclasses.replace(recipe.evaluation, max_documents=4, sample_tokens=8)
    phases = () if asks else recipe.phases
    return dataclasses.replace(recipe, data=data, layout=layout, train=config, evaluation=evaluation, phases=phases)


# -- runs in processes of their own ------------------------------------------------------------------------------------


def launch(recipe: Recipe, out: Path, processes: int = 1) -> subprocess.Popen[bytes]:
    """Starts or resumes a run, under `torchrun` if in more than one process; its output and pids lie beside `out`."""
    worker, data, pids = (out.with_name(f"{out.name}.{suffix}") for suffix in ("py", "json", "pids"))
    worker.write_text(WORKER)
    data.write_text(json.dumps(recipe.to_dict()))
    pids.unlink(missing_ok=True)
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *(torchrun if processes > 1 else []), str(worker), str(data), str(out), str(pids)]
    with out.with_name(f"{out.name}.log").open("w") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def printed(out: Path) -> str:
    return out.with_name(f"{out.name}.log").read_text()


def finish(process: subprocess.Popen[bytes], out: Path) -> dict[str, Any]:
    """Waits for a launched run; its `result.json`."""
    assert process.wait(timeout=240) == 0, printed(out)
    return json.loads((out / "result.json").read_text())


# -- what a run's folder holds -----------------------------------------------------------------------------------------


def metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def losses(out: Path) -> list[float]:
    return [record["loss"] for record in metrics(out) if "loss" in record]


def weights(out: Path) -> dict[str, Tensor]:
    """Those of the best model."""
    return load_file(out / "model" / "model.safetensors")


def checkpoint_steps(out: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (out / "checkpoints").glob("step-*"))


def checkpoint(out: Path) -> dict[str, Tensor]:
    """Weights and optimiser state of the newest checkpoint, read by PyTorch's own reader."""
    reader = dcp.FileSystemReader(out / "checkpoints" / f"step-{checkpoint_steps(out)[-1]:08}")
    stored = reader.read_metadata().state_dict_metadata
    tensors = {name: torch.empty(held.size, dtype=held.properties.dtype) for name, held in stored.items()}
    with warnings.catch_warnings(action="ignore"):  # it says that there is but one process
        dcp.load(tensors, storage_reader=reader, no_dist=True)
    return tensors


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    """Bit for bit."""
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


PAD, BOS, EOS, EOD = 0, 1, 2, 3


class Markers:
    """A tokenizer that knows nothing but the ids of its markers."""

    eos_token_id = bos_token_id = None

    def __init__(self, **ids: int) -> None:
        self._ids = ids

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._ids.get(token)

    def convert_ids_to_tokens(self, index: int) -> str:
        return next(token for token, own in self._ids.items() if own == index)


MARKERS: Any = Markers(**{tokenizers.PAD: PAD, tokenizers.BOS: BOS, tokenizers.EOS: EOS, tokenizers.EOD: EOD})
"""The tokenizer of splits made by `make_split`."""


def make_split(*documents: list[int]) -> Split:
    """Documents given as their sentences' lengths; every lexical token has an id of its own, from 10 on."""
    lengths = [n + (i == len(d) - 1) for d in documents for i, n in enumerate(d)]
    ends = np.cumsum([sum(d) + 1 for d in documents])
    tokens = 10 + np.arange(ends[-1], dtype=np.uint32)
    tokens[ends - 1] = EOD
    return Split(
        tokens=tokens,
        documents=np.concatenate([[0], ends]),
        segments=np.concatenate([[0], np.cumsum(lengths)]),
        document_segments=np.concatenate([[0], np.cumsum([len(d) for d in documents])]),
        document_bytes=np.array([4 * sum(d) for d in documents]),
    )
