"""What a record looks like at each stage of a curriculum, to train on, to score and to be asked."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mentalese.data import tokenizers
from mentalese.data.batch import Batch
from mentalese.data.evaluation import evaluation_batches, question_batches
from mentalese.data.layouts import QuestionAnswer
from mentalese.data.split import Split
from mentalese.data.tokenizers import add_markers
from mentalese.errors import InputError
from mentalese.nn.loss import IGNORED
from mentalese.recipe import DataConfig, EvaluationConfig, Phase, Recipe, TrainConfig
from mentalese.training.plan import Plan
from support import Markers, make_split

START, LATENT, END, PAD, EOD = 1, 2, 3, 0, 5
MARKED: Any = Markers(
    **dict(zip(tokenizers.MARKERS, (PAD, 6, 7, EOD))),
    **dict(zip(tokenizers.LATENT_MARKERS.values(), (START, LATENT, END))),
)


def records(*parts: list[int]) -> Split:
    """Records given as their parts' lengths: question, steps, answer; token ids count up from 10."""
    split = make_split(*parts)
    split.tokens[split.documents[1:] - 1] = EOD
    return split


def config(**fields: Any) -> QuestionAnswer:
    return QuestionAnswer(batch_size=1, **fields)


def read(split: Split, **fields: Any) -> tuple[list[int], list[int]]:
    """The first record's row, and those of its tokens that are targets."""
    [batch] = evaluation_batches(split, config(**fields), EvaluationConfig(tokens="all", max_documents=1), MARKED)
    labels = batch["labels"][0]
    return batch["input_ids"][0].tolist(), labels[labels != IGNORED].tolist()


ONE = records([2, 1, 1, 1, 2])  # question 10 11, steps 12, 13, 14, answer 15 16
QUESTION, ANSWER = [10, 11], [15, 16, EOD]


@pytest.mark.parametrize(
    ("fields", "row"),
    [
        ({}, [*QUESTION, 12, 13, 14, *ANSWER]),
        ({"stage": 1}, [*QUESTION, *ANSWER]),
        ({"latents_per_step": 2, "stages": 2}, [*QUESTION, START, END, 12, 13, 14, *ANSWER]),
        ({"latents_per_step": 2, "stages": 2, "stage": 1}, [*QUESTION, START, *2 * [LATENT], END, 13, 14, *ANSWER]),
        ({"latents_per_step": 2, "stages": 2, "stage": 2}, [*QUESTION, START, *4 * [LATENT], END, 14, *ANSWER]),
        ({"latents_per_step": 2, "stages": 2, "stage": 3}, [*QUESTION, START, *4 * [LATENT], END, *ANSWER]),
        ({"latents_per_step": 1, "stages": 6, "stage": 5}, [*QUESTION, START, *5 * [LATENT], END, *ANSWER]),
        ({"stages": 2, "stage": 2}, [*QUESTION, 14, *ANSWER]),
        ({"latents": 3, "stage": 1}, [*QUESTION, START, *3 * [LATENT], END, *ANSWER]),
        ({"latents": 0}, [*QUESTION, START, END, 12, 13, 14, *ANSWER]),
        ({"removal": "tokens", "stages": 9, "stage": 2}, [*QUESTION, 14, *ANSWER]),
        ({"removal": "tokens", "stages": 9, "stage": 7}, [*QUESTION, *ANSWER]),
    ],
)
def test_a_stage_puts_latents_in_the_place_of_the_first_steps(fields: dict[str, Any], row: list[int]) -> None:
    ids, targets = read(ONE, **fields)
    assert ids == row
    behind = row.index(END) + 1 if END in row else len(QUESTION)
    assert targets == row[behind:], "neither the question nor what stands between it and the steps is a target"


def test_a_question_is_asked_up_to_where_the_model_goes_on() -> None:
    split = records([2, 1, 1], [4, 1, 1, 2])
    layout = config(latents_per_step=1, stages=1, stage=1)
    [batch] = question_batches(split, layout, EvaluationConfig(), MARKED)
    assert batch["documents"].tolist() == [1, 0]
    assert batch["input_ids"].tolist() == [[15, 16, 17, 18, START, LATENT, END], [0, 0, 10, 11, START, LATENT, END]]
    assert batch["attention_mask"].tolist() == [[1] * 7, [0, 0, 1, 1, 1, 1, 1]]


def test_a_prompt_reads_like_the_records_of_its_stage(tokenizer: Any) -> None:
    marked = add_markers(tokenizer, latents=True)
    batch = config(latents_per_step=2, stages=3, stage=1).encode_prompts(["Who?"], marked, DataConfig())
    read = marked.decode(batch["input_ids"][0])
    assert read == "Who?\n<|start-latent|><|latent|><|latent|><|end-latent|>"
    assert marked.decode(config().encode_prompts(["Who?\n"], marked, DataConfig())["input_ids"][0]) == "Who?\n"


def test_latents_without_tokens_are_refused(tokenizer: Any) -> None:
    with pytest.raises(InputError, match=r"no tokens for them: .*latents=True"):
        config(latents=1).encode_prompts(["Who?"], tokenizer, DataConfig())
    with pytest.raises(InputError, match="no tokens for them"):
        question_batches(ONE, config(latents=1), EvaluationConfig(), tokenizer)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"stage": -1}, "layout.stage is -1"),
        ({"uniform_prob": 1.5}, "layout.uniform_prob is 1.5"),
        ({"removal_smoothing": 4.0}, "it needs layout.removal 'tokens'"),
        ({"removal": "tokens", "uniform_prob": 0.5}, "draws stages of layout.removal 'steps'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        QuestionAnswer(**fields)


# -- the curriculum ----------------------------------------------------------------------------------------------------


def plan(split: Split, *phases: Phase, epochs: float = 3, seed: int = 0, **fields: Any) -> Plan:
    recipe = Recipe(
        name="x/y",
        description="",
        model={"model_type": "gpt2"},
        layout=config(**fields),
        train=TrainConfig(epochs=epochs, seed=seed),
        phases=phases,
    )
    return Plan(split, recipe, MARKED)


def latents(batch: Batch) -> list[int]:
    return (batch["input_ids"] == LATENT).sum(1).tolist()


def test_phases_raise_the_stage_and_reset_the_optimizer() -> None:
    split = records(*[[2, 1, 1, 2]] * 4)
    stages = [Phase(start=s, clock="epochs", layout={"stage": s}, reset_optimizer=True) for s in (1, 2)]
    made = plan(split, *stages, stages=2, latents_per_step=3)
    assert made.total_steps == 12
    assert [latents(made.batch(step))[0] for step in range(12)] == [0] * 4 + [3] * 4 + [6] * 4
    assert [step for step in range(12) if made.reset_optimizer(step)] == [4, 8]
    assert [made.layout_after(step).stage for step in (4, 5, 12)] == [0, 1, 2]


@given(share=st.sampled_from([0.0, 0.3, 1.0]), stage=st.integers(0, 4), seed=st.integers(0, 9))
def test_a_share_of_the_records_is_read_at_any_stage(share: float, stage: int, seed: int) -> None:
    split = records(*[[2, 1, 1, 1, 2]] * 300)
    layout = config(stages=3, stage=stage, latents_per_step=1, uniform_prob=share)
    rows = layout.rows(split, np.random.default_rng(seed))
    assert rows.gap is not None
    found = np.bincount(rows.gap - 2, minlength=4) / 300
    expected = np.full(4, share / 4)
    expected[min(stage, 3)] += 1 - share
    assert np.abs(found - expected).max() < 0.12
    again = layout.rows(split, np.random.default_rng(seed))
    assert np.array_equal(rows.gap, again.gap)


def test_implicit_cot_loses_tokens_from_the_left() -> None:
    split = records(*[[2, 20, 2]] * 2000)
    layout = config(stages=40, stage=5, removal="tokens", removal_smoothing=1.0)
    rows = layout.rows(split, np.random.default_rng(0))
    assert rows.rest is not None
    removed = rows.rest - rows.target
    assert removed.min() == 5
    share = [(removed == 5 + more).mean() for more in range(3)]
    assert share == pytest.approx([0.632, 0.233, 0.086], abs=0.03)  # proportional to exp(-more)
    assert np.ptp(layout.rows(split).lengths) == 0, "nothing is drawn where a model is evaluated"


def test_rows_too_long_at_later_stages_are_found_first() -> None:
    split = records(*[[2, 1, 1, 2]] * 4)
    late = Phase(start=2, clock="epochs", layout={"stage": 2})
    with pytest.raises(InputError, match=r"layout.sequence_length is 12: 4 of 4 questions are longer; set at least 13"):
        plan(split, late, stages=2, latents_per_step=3, sequence_length=12)
    plan(split, late, stages=2, latents_per_step=3, sequence_length=13)


def test_too_long_records_can_be_left_out() -> None:
    """With all steps and the most latents, so that every stage and every method reads the same records."""
    split = records([2, 1, 2], [2, 9, 1, 2], [3, 1, 2], [2, 8, 2])
    layout = config(sequence_length=14, too_long="skip")
    fitting = layout.fitting(split)
    assert fitting is not None
    assert fitting.tolist() == [True, False, True, True]
    with_latents = dataclasses.replace(layout, stages=1, latents_per_step=1).fitting(split)
    assert with_latents is not None
    assert with_latents.tolist() == [True, False, True, False]
    assert config(sequence_length=14).fitting(split) is None
    kept = split.select(fitting)
    assert kept.document_bytes.tolist() == split.document_bytes[fitting].tolist()
    rows = layout.rows(kept, 3)
    assert rows.lengths.tolist() == [6, 7, 13]
    assert kept.tokens[rows.start].tolist() == split.tokens[split.documents[[0, 2, 3]]].tolist()
    assert kept.tokens[rows.stop - 1].tolist() == [EOD] * 3
    assert len(list(question_batches(kept, layout, EvaluationConfig(batch_size=1), MARKED))) == 3
