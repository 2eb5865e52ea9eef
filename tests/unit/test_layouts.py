"""A layout is one class: a family's own needs no change anywhere else."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mentalese import Family, InputError, Recipe, TrainConfig, evaluate, get_recipe, load, registry
from mentalese.data import layouts
from mentalese.data.evaluation import evaluation_batches
from mentalese.data.layouts import Marked, Packed, PerDocument, QuestionAnswer, RowLayout, SentenceStreams
from mentalese.data.rows import Rows, document_windows
from mentalese.data.split import Split
from mentalese.models.checkpoints import saved_recipe
from mentalese.training.loop import train
from mentalese.training.plan import Plan
from mentalese.values import checked_dataclass
from support import MARKERS, keep_changes, make_split, metrics, shrink

# -- runs of an earlier version ----------------------------------------------------------------------------------------


def test_a_run_of_an_earlier_version_is_resumed(corpus: Path, tmp_path: Path) -> None:
    """Its recipe lacks a field that was added later, and has a fingerprint of its own."""
    recipe = shrink(get_recipe("gpt2/tiny"), corpus, steps=2)
    result = train(recipe, tmp_path / "run", show=False)
    saved = recipe.to_dict()
    del saved["evaluation"]["max_test_documents"]
    for name, section in (("config", "recipe"), ("result", "config")):
        path = tmp_path / "run" / f"{name}.json"
        content = json.loads(path.read_text()) | {section: saved, "fingerprint": "of another format"}
        path.write_text(json.dumps(content))
        keep_changes(path)
    again = train(recipe, tmp_path / "run", resume=True, show=False)
    assert again["test"] == result["test"]
    assert len(metrics(tmp_path / "run")) > 2, "nothing was trained or written again"
    (tmp_path / "run" / "result.json").unlink()
    assert train(recipe, tmp_path / "run", resume=True, show=False)["test"] == result["test"]
    other = dataclasses.replace(recipe, layout=Packed(batch_size=2))
    with pytest.raises(InputError, match=r"layout.sequence_length was 64 and is 256, layout.batch_size was 4 and is 2"):
        train(other, tmp_path / "run", resume=True, show=False)


# -- a layout of one's own ---------------------------------------------------------------------------------------------


@checked_dataclass("layout")
class SentenceRows(RowLayout):
    """Each sentence is a row, after the token before it."""

    kind = "sentence_rows"

    def training_rows(self, split: Split, generator: np.random.Generator) -> Rows:
        return document_windows(split.segments[:-1], split.segments[1:], self.sequence_length, self.sequence_length - 1)

    def evaluation_rows(self, split: Split, evaluation: Any) -> Rows:
        return document_windows(split.segments[:-1], split.segments[1:], self.sequence_length, self.sequence_length - 1)

    def protocol(self, evaluation: Any, data: Any) -> dict[str, Any]:
        return {"context": "one sentence", "first_token": "after the token before it", "sentences": data.sentences}


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family that brings `SentenceRows`."""
    family = Family(
        name="toy", description="", recipes="", classes={}, layouts={"sentence_rows": f"{__name__}:SentenceRows"}
    )
    known = registry.families()
    monkeypatch.setattr(registry, "families", lambda: known | {"toy": family})


@pytest.mark.usefixtures("brought")
def test_a_familys_own_layout_trains_evaluates_and_generates(corpus: Path, tmp_path: Path) -> None:
    recipe = dataclasses.replace(
        shrink(get_recipe("gpt2/tiny"), corpus, steps=3), layout=SentenceRows(sequence_length=32, batch_size=4)
    )
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    result = train(recipe, tmp_path / "run", show=False)
    assert result["test"]["protocol"]["context"] == "one sentence"
    assert saved_recipe(tmp_path / "run") == recipe
    evaluated = evaluate(tmp_path / "run", show=False)["perplexity"]
    assert evaluated["nll"] == pytest.approx(result["test"]["nll"])
    saved = load(tmp_path / "run")
    assert saved.encode("She had")["input_ids"][0, 0] == saved.tokenizer.eos_token_id
    (text,) = saved.generate("She had", max_new_tokens=4)
    assert text.startswith("She had")


@pytest.mark.usefixtures("brought")
def test_a_kind_that_nobody_brings_is_refused() -> None:
    assert layouts.layout_class("sentence_rows").kind == "sentence_rows"
    with pytest.raises(InputError, match=r"layout.kind is 'sentence_row': use one of .*packed, .*'sentence_rows'"):
        layouts.layout_class("sentence_row")


# -- what every layout keeps -------------------------------------------------------------------------------------------

few = settings(max_examples=60, deadline=None)
texts = st.lists(st.lists(st.integers(1, 9), min_size=2, max_size=6), min_size=1, max_size=6)


def every_layout(length: int) -> list[layouts.Layout]:
    rows = [cls(sequence_length=length, batch_size=1) for cls in (Packed, PerDocument, Marked, SentenceRows)]
    return [*rows, SentenceStreams(), QuestionAnswer(sequence_length=80, batch_size=1)]


@few
@given(texts, st.integers(2, 12), st.integers(1, 5))
def test_evaluation_labels_every_lexical_token_once(documents: Any, length: int, batch_size: int) -> None:
    split = make_split(*documents)
    starts, ends = split.segments[split.document_segments[:-1]], split.segments[split.document_segments[:-1] + 1]
    question = {int(t) for a, b in zip(starts, ends) for t in split.tokens[a:b]}
    for layout in every_layout(length):
        protocol = dataclasses.replace(get_recipe("gpt2/tiny").evaluation, batch_size=batch_size, max_documents=None)
        batches = list(evaluation_batches(split, layout, protocol, MARKERS))
        labels = sorted(t for b in batches for t in b["labels"][:, 1:].flatten().tolist() if t != -100)
        given = question if layout.questions else set()
        assert labels == [t for t in sorted(split.tokens.tolist()) if t >= 10 and t not in given], layout.kind


@few
@given(texts, st.integers(2, 12))
def test_training_rows_are_never_longer_than_they_may_be(documents: Any, length: int) -> None:
    split = make_split(*documents)
    for layout in every_layout(length):
        recipe = dataclasses.replace(get_recipe("gpt2/tiny"), layout=layout, train=TrainConfig(steps=1))
        plan = Plan(split, recipe, MARKERS)
        step = 0
        while plan.position(step).epoch == 0:
            assert plan.batch(step)["input_ids"].shape[1] <= (layout.sequence_length or 10**9), layout.kind
            step += 1
        assert step


def test_a_stage_after_the_last_is_refused() -> None:
    layout = QuestionAnswer(stages=2, latents_per_step=1)
    assert layout.at(3, None).stage == 3
    with pytest.raises(InputError, match=r"^stage is 99: set 0 to 3, at which all steps are left out$"):
        layout.at(99, None)
