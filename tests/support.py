"""What several test files need; runs and small recipes are those of `mentalese.testing`."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Metaspace
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from mentalese import DataConfig, EvaluationConfig, Recipe, Saved, get_recipe, recipes
from mentalese.data import tokenizers
from mentalese.data.layouts import Layout, Packed
from mentalese.data.split import Split
from mentalese.data.store import prepare
from mentalese.models.base import as_model
from mentalese.models.build import build_model
from mentalese.models.checkpoints import save_model
from mentalese.testing.runs import (  # noqa: F401 (tests import them from here)
    assert_same,
    checkpoint,
    checkpoint_steps,
    finish,
    launch,
    losses,
    metrics,
    power_cut,
    printed,
    rotary_flops,
    shrink,
    weights,
)
from mentalese.training.loop import Run
from mentalese.training.parallel import Parallel

Plain = TypeVar("Plain", bound=nn.Module)


def by_hand(name: str, corpus: Path, **train: Any) -> Run:
    """Return a shrunken recipe's `quiet_run`."""
    return quiet_run(shrink(get_recipe(name), corpus, **train), corpus.with_name("run"))


def quiet_run(recipe: Recipe, folder: Path) -> Run:
    """Return a run on the host, to take steps with: nothing is logged, validated or written."""
    recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, log_every=100, eval_every=100))
    return Run(recipe, folder, Parallel(0, 1, torch.device("cpu")), show=False)


def tiny_recipes() -> list[str]:
    """Every family's `tiny` recipe, found by discovery."""
    return [name for name in recipes() if name.endswith("/tiny")]


_FORKS = """
import gc, os, sys, traceback
exec(sys.argv[1])
assert not any(name.partition(".")[0] == "mentalese" for name in sys.modules)
gc.freeze()
for number, code in enumerate(sys.argv[2:]):
    if not os.fork():
        try:
            exec(code)
        except BaseException:
            print(code, traceback.format_exc(), sep="\\n", flush=True)
        os._exit(0)
    if number:  # two at a time
        os.wait()
os.wait()
"""


def run_in_forks(before: str, codes: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs each code in a fork of a process that has run `before`; what they raise is on standard output.

    Only other projects' modules are there when a fork starts: each imports ours from nothing.
    """
    command = [sys.executable, "-c", _FORKS, before, *codes]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def metaspace_tokenizer() -> PreTrainedTokenizerFast:
    """Three words, in a tokenizer that drops the space at the start of a text, as that of Llama 2 does."""
    words = {word: number for number, word in enumerate(["<unk>", "▁the", "▁son", "▁of"])}
    backend = Tokenizer(WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer, backend.decoder = Metaspace(), decoders.Metaspace()
    return tokenizers.add_markers(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>"))


def module_at(path: Path) -> Any:
    """A script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    save_model(folder / "model", model, tokenizer, recipe=recipe.to_dict())
    (folder / "config.json").write_text(json.dumps({"recipe": recipe.to_dict()}))
    return folder


def padded(rows: Sequence[torch.Tensor | list[int]], left: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of tokens [rows, longest], padded with 0, and their mask."""
    length = max(map(len, rows))
    ids, mask = torch.zeros(2, len(rows), length, dtype=torch.long)
    for i, row in enumerate(rows):
        where = slice(length - len(row), None) if left else slice(len(row))
        ids[i, where], mask[i, where] = torch.as_tensor(row), 1
    return ids, mask


def sharing(plain: Plain, model: nn.Module) -> Plain:
    """The plain model with the very weights of a fast one of the same names, so that gradients of both meet."""
    names = plain.state_dict().keys()
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if name in names})
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name not in names:
            continue
        owner, _, leaf = name.rpartition(".")
        setattr(plain.get_submodule(owner), leaf, parameter)
    return plain.train(model.training)


def training_losses(
    model: nn.Module, loss_of: Callable[[int], torch.Tensor], *, steps: int, learning_rate: float = 1e-2
) -> list[float]:
    """The loss of each step of AdamW; `loss_of` gets the number of the step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    course = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        course.append(loss.item())
    return course


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
        model=as_model(model) if isinstance(model, PreTrainedModel) else model,
        tokenizer=tokenizer,
        data=data or DataConfig(),
        layout=layout or Packed(),
        evaluation=EvaluationConfig(**protocol),
    )


def keep_changes(*files: Path) -> None:
    """Removes checksums and hashes from JSON files, by which a user accepts their changes."""
    for path in files:
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        kept = [{k: v for k, v in json.loads(line).items() if k not in ("checksum", "files")} for line in lines]
        path.write_text("".join(f"{json.dumps(one)}\n" for one in kept))


PAD, BOS, EOS, EOD = 0, 1, 2, 3


class Markers:
    """A tokenizer that knows nothing but the ids of its markers."""

    eos_token_id = bos_token_id = pad_token_id = None
    init_kwargs: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    backend_tokenizer = Tokenizer(WordLevel({}))

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
