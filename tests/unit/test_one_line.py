"""A question is read in one way, whatever its line breaks and outer spaces: in rows, prompts, thoughts and chats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

import mentalese
from mentalese import Recipe
from mentalese.data.documents import line_places, one_line
from mentalese.data.layouts import Layout, QuestionAnswer
from mentalese.data.store import prepare
from mentalese.families.coconut.questions import QuestionSteps
from mentalese.families.codi.layout import QuestionPairs
from mentalese.html import TEMPLATES
from mentalese.recipe import DataConfig, EvaluationConfig, TrainConfig
from support import metaspace_tokenizer, saved

QUESTIONS = [
    "Pat has 12 pens.\nHow many pens?",
    "  Pat has 12 pens.  \r\n\r\n\tHow many pens? \n",
    "Pat has 12 pens.\n\nHow many pens?",
    "Pat has 12 pens. How many pens?",
]
LINE = "Pat has 12 pens. How many pens?"
TEXTS = st.text(st.sampled_from(["a", "b", " ", "\n", "\r", "\t", "\x0b", "\u2028", "\u00a0", "é"]), max_size=12)


@given(TEXTS)
def test_places_are_those_of_the_characters(text: str) -> None:
    line, places = one_line(text), line_places(text)
    assert len(places) == len(line)
    assert places == sorted(set(places))
    for character, place in zip(line, places):
        assert character == text[place] or (character == " " and text[place].isspace())


@given(TEXTS)
def test_the_chat_template_reads_a_line_alike(text: str) -> None:
    tokenizer = metaspace_tokenizer()
    tokenizer.chat_template = (TEMPLATES / "chat.j2").read_text()
    chat = [{"role": "user", "content": text}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == f"BEGINNING{one_line(text)}\n"


LAYOUTS: list[Layout] = [
    QuestionAnswer(),
    QuestionAnswer(stage=1, stages=2, latents_per_step=2),
    QuestionSteps(stage=1, stages=2, latents_per_step=1),
    QuestionPairs(latents=2),
]


@pytest.fixture(params=LAYOUTS, ids=lambda layout: layout.kind)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An untrained model on the questions, whose test split has the first three as they are written above."""
    for split, texts in (("test", QUESTIONS[:3]), ("validation", ["Nobody?"]), ("train", ["Who?", "What?"])):
        rows = [{"question": text, "steps": ["<<12*1=12>>", "<<1>>"], "answer": str(i)} for i, text in enumerate(texts)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = Recipe(
        name="coconut/test",
        description="",
        model={"model_type": "coconut", "mode": "coconut", "backbone": {
            "model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}},
        data=DataConfig(source=f"file:{tmp_path}", tokenizer="bpe:300"),
        layout=request.param,
        train=TrainConfig(steps=1, device="cpu"),
        evaluation=EvaluationConfig(batch_size=2, answer_tokens=4),
    )  # fmt: skip
    return saved(tmp_path / "run", recipe)


@pytest.mark.parametrize("text", QUESTIONS)
def test_a_question_is_read_in_one_way(run: Path, text: str) -> None:
    opened = mentalese.load(run, "cpu")
    layout, split = opened.layout, opened.split("test")
    rows = layout.question_rows(split)
    batch = layout.assemble(split, rows, opened.tokenizer, left=True)
    expected = batch["input_ids"][0].tolist()
    assert [row.tolist() for row in batch["input_ids"]] == [expected] * 3
    assert opened.encode(text)["input_ids"].tolist() == [expected]
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    assert tokenizer(text)["input_ids"] == expected
    chat = [{"role": "user", "content": text}]
    assert tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) == expected
    assert opened.think(text, max_new_tokens=1).input_ids[: len(expected)].tolist() == expected
    [written] = opened.generate(text, max_new_tokens=2)
    assert written.startswith(f"{LINE}\n")
    assert layout.prompt_text(text) == f"{LINE}\n"


def test_offsets_are_places_in_the_question_as_written(run: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(run / "model")
    for text in QUESTIONS:
        row = tokenizer(text, return_offsets_mapping=True)
        for token, (start, stop) in zip(row["input_ids"], row["offset_mapping"]):
            word = tokenizer.decode([token]).strip()
            if start < stop and word:
                assert one_line(text[start:stop]) == word


def test_training_rows_have_the_question_on_a_line(run: Path) -> None:
    opened = mentalese.load(run, "cpu")
    store, tokenizer = prepare(opened.data, opened.layout, show=False)
    split = store.splits["test"]
    texts = {tokenizer.decode(split.segment(int(number))) for number in split.document_segments[:-1]}
    assert texts == {f"{LINE}\n"}
