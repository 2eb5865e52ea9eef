"""Nats per token by place in the document: spans that double, up to what a model reads at once."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from mentalese import InputError, Saved, load
from mentalese.analyses.curves import nll_by_position
from mentalese.analyses.figures import write_figure
from support import EOD, make_split


def test_spans_double_and_end_where_the_context_does() -> None:
    split = make_split([6], [3, 9])
    scores = np.where(split.tokens == EOD, np.nan, 1.0).astype(np.float32)
    firsts = split.documents[:-1]
    scores[firsts] = np.nan  # nothing precedes them
    scores[firsts + 3] = 3.0  # the fourth of each document
    scores[firsts[1] + 10 :] = 100.0  # behind the context
    spans = nll_by_position(scores, split, length=10)
    assert [(span["first"], span["last"], span["tokens"]) for span in spans] == [(2, 3, 4), (4, 7, 7), (8, 10, 3)]
    assert [span["nll"] for span in spans] == [1.0, pytest.approx((5 + 2 * 3) / 7), 1.0]


def test_a_beginning_of_the_text_has_no_place() -> None:
    split = dataclasses.replace(make_split([1 + 3]), beginning=1)
    scores = np.where(split.tokens == EOD, np.nan, 1.0).astype(np.float32)
    scores[0] = np.nan
    spans = nll_by_position(scores, split, length=10)
    assert [(span["first"], span["last"], span["tokens"]) for span in spans] == [(1, 1, 1), (2, 3, 2)]


def models(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, *lengths: int) -> list[str]:
    """Folders of small models that read this many tokens at once."""
    folders = []
    for length in lengths:
        torch.manual_seed(0)
        sizes = {"n_positions": length, "n_embd": 16, "n_layer": 1, "n_head": 2}
        GPT2LMHeadModel(
            GPT2Config(vocab_size=len(tokenizer), bos_token_id=None, eos_token_id=None, **sizes)
        ).save_pretrained(tmp_path / str(length))
        tokenizer.save_pretrained(tmp_path / str(length))
        folders.append(str(tmp_path / str(length)))
    return folders


def test_the_figure_reads_each_model_to_its_own_length(
    tokenizer: PreTrainedTokenizerFast, corpus: Path, tmp_path: Path
) -> None:
    folders = models(tokenizer, tmp_path, 16, 32)
    numbers = write_figure("positions", folders, tmp_path / "positions.svg", source=f"file:{corpus}")
    assert [run["spans"][-1]["last"] for run in numbers["runs"]] == [15, 31]
    assert json.loads((tmp_path / "positions.json").read_text())["source"] == f"file:{corpus}"


def test_the_figure_reads_one_text_by_all_models(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test.txt").write_text("a well @-@ known place , and so on .\n" * 5)
    first, second = models(tokenizer, tmp_path, 512, 1024)

    def opened(path: str) -> Saved:
        own = {"source": f"file:{tmp_path}", "detokenizer": "wikitext"} if path == first else {}
        saved = load(path, "cpu")
        return replace(saved, data=replace(saved.data, **own))

    monkeypatch.setattr("mentalese.models.saved.load", opened)
    numbers = write_figure("positions", [first, second], tmp_path / "positions.svg")
    one, other = ([span["tokens"] for span in run["spans"]] for run in numbers["runs"])
    assert one == other


def test_models_with_other_tokens_are_refused(tokenizer: PreTrainedTokenizerFast, corpus: Path, tmp_path: Path) -> None:
    first, second = models(tokenizer, tmp_path, 16, 32)
    file = Path(second) / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"normalizer": {"type": "Lowercase"}}))
    with pytest.raises(InputError, match=r"tokenizer of .*draw them separately"):
        write_figure("positions", [first, second], tmp_path / "positions.svg", source=f"file:{corpus}")
