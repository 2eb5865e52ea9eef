"""A model's answer is what it says last, and it is held to the record's own."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from mentalese import Recipe, TrainConfig
from mentalese.data.store import TokenStore, prepare
from mentalese.data.tokenizers import special_token_ids
from mentalese.errors import InputError
from mentalese.evaluate.answers import Answers, answered, answers, final_answer
from mentalese.models.auto import CausalLMAdapter
from mentalese.recipe import DataConfig, EvaluationConfig

SETTINGS = EvaluationConfig(metric="accuracy", answer_tokens=24, batch_size=4)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[TokenStore, Any, DataConfig]:
    """Questions of very different lengths: `sum of 1 2 3 is?`, answered after one step."""
    path = tmp_path_factory.mktemp("sums") / "sums.jsonl"
    rows = []
    for i in range(120):
        numbers = range(i, i + 1 + i % 9)
        question = f"The sum of {' '.join(map(str, numbers))} is?"
        rows.append({"question": question, "steps": [f"count {len(numbers)}"], "answer": f"The {sum(numbers):,}."})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataConfig(source=f"file:{path}", tokenizer="bpe:320", batching="records", sequence_length=64)
    store, tokenizer = prepare(data, show=False)
    return store, tokenizer, data


class Scripted(nn.Module):
    """Says `said[i]` to the i-th question that it is asked, whatever the question."""

    def __init__(self, said: list[str], tokenizer: Any, context: int | None = None) -> None:
        super().__init__()
        self.said, self.tokenizer, self.asked = list(said), tokenizer, []  # type: ignore[var-annotated]
        self.config, self.device = SimpleNamespace(max_position_embeddings=context), torch.device("cpu")

    def generate(self, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> Tensor:
        assert not self.training
        self.asked += [ids[mask.bool()].tolist() for ids, mask in zip(input_ids, attention_mask)]
        end, pad = options["eos_token_id"], options["pad_token_id"]
        rows = [[*self.tokenizer(self.said.pop(0))["input_ids"], end] for _ in input_ids]
        longest = max(map(len, rows))
        return torch.cat([input_ids, torch.tensor([row + [pad] * (longest - len(row)) for row in rows])], dim=1)


def ask(prepared: tuple[TokenStore, Any, DataConfig], said: list[str], **fields: Any) -> tuple[Answers, Scripted]:
    store, tokenizer, data = prepared
    model = Scripted(said, tokenizer)
    data, settings = dataclasses.replace(data, **fields), dataclasses.replace(SETTINGS, max_documents=len(said))
    split = store.splits["train"]
    return answers(model, tokenizer, split, data, settings, special_token_ids(tokenizer)), model


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("count 3\n### 1,234", "1234"),
        ("### 5\n### 6 \n", "6"),
        ("no mark, none", "no mark none"),
        ("### ", ""),
        ("", ""),
    ],
)
def test_the_answer_is_what_follows_the_last_mark(text: str, answer: str) -> None:
    assert final_answer(text) == answer


def test_accuracy_is_to_the_letter_and_squads_figures_are_not(prepared: tuple[TokenStore, Any, DataConfig]) -> None:
    store, tokenizer, _ = prepared
    split = store.splits["train"]
    starts = split.segments[split.document_segments[1:] - 1]
    right = [tokenizer.decode(split.tokens[a : b - 1]) for a, b in zip(starts, split.documents[1:])]
    [longest] = ask(prepared, ["?"])[1].asked
    assert right[0].startswith("### The ")
    assert longest[-1:] == tokenizer("\n")["input_ids"]

    assert dataclasses.astuple(ask(prepared, [f"steps\n{right[0]}"])[0])[:4] == (1, 1, 1, 1)
    said = right[0].replace("The ", "").rstrip(".").upper()
    assert dataclasses.astuple(ask(prepared, [said])[0])[:4] == (0, 1, 1, 1)
    assert dataclasses.astuple(ask(prepared, [f"{said} or 7 7"])[0])[:4] == (0, 0, pytest.approx(2 / 5), 1)
    assert dataclasses.astuple(ask(prepared, [""])[0])[:4] == (0, 0, 0, 1)


def test_each_question_is_asked_at_the_stage_and_told_from_the_others(
    prepared: tuple[TokenStore, Any, DataConfig],
) -> None:
    store, tokenizer, data = prepared
    data = dataclasses.replace(data, stage=2, stages=2, latents_per_step=1)
    count = len(store.splits["validation"].document_bytes)
    model = Scripted([f"### {i}" for i in range(count)], tokenizer)
    special = special_token_ids(tokenizer)
    given = answered(model, tokenizer, store.splits["validation"], data, SETTINGS, special)
    assert [each.document for each in given] == list(range(count))
    assert all(each.expected.startswith("The ") and "," not in each.expected for each in given)
    for each in given:
        row = model.asked[int(each.answer)]  # the i-th question asked was answered with i
        question = tokenizer.decode(row[: row.index(special["latent_start_token_id"])])
        first, last = store.splits["validation"].document_segments[each.document : each.document + 2]
        assert question == tokenizer.decode(store.splits["validation"].tokens[slice(*_segment(store, int(first)))])
        assert row.count(special["latent_token_id"]) == 2
        assert last - first == 3
    result = answers(
        Scripted(["no"] * count, tokenizer), tokenizer, store.splits["validation"], data, SETTINGS, special
    )
    assert result.protocol == {
        "decoding": "greedy", "answer": "the text after the last #, without commas", "stage": 2, "latents": 2,
        "answer_tokens": 24, "documents": count,
    }  # fmt: skip


def _segment(store: TokenStore, index: int) -> tuple[int, int]:
    segments = store.splits["validation"].segments
    return int(segments[index]), int(segments[index + 1])


def test_answers_do_not_depend_on_the_batch_size(prepared: tuple[TokenStore, Any, DataConfig]) -> None:
    store, tokenizer, data = prepared
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=96, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = CausalLMAdapter(GPT2LMHeadModel(config)).train()
    special = special_token_ids(tokenizer)

    def texts(batch_size: int) -> list[str]:
        settings = dataclasses.replace(SETTINGS, batch_size=batch_size, max_documents=10)
        return [a.text for a in answered(model, tokenizer, store.splits["train"], data, settings, special)]

    alone = texts(1)
    assert len(set(alone)) == 10
    assert texts(3) == texts(64) == alone
    assert model.model.training


def test_a_question_without_room_for_its_answer_is_refused_before_any_is_asked(
    prepared: tuple[TokenStore, Any, DataConfig],
) -> None:
    store, tokenizer, data = prepared
    [longest] = (max(map(len, ask(prepared, ["no"] * 20)[1].asked)),)
    settings = dataclasses.replace(SETTINGS, max_documents=20)
    for context, remedy in ((longest + 23, "give at most 23"), (longest, "leave out the longest questions")):
        model = Scripted([], tokenizer, context)
        says = f"evaluation.answer_tokens is 24: the longest question has {longest} tokens and the model's context is"
        with pytest.raises(InputError, match=f"{says} {context}, {remedy}"):
            answers(model, tokenizer, store.splits["train"], data, settings, special_token_ids(tokenizer))
        assert not model.asked
    model = Scripted(["no"] * 20, tokenizer, longest + 24)
    answers(model, tokenizer, store.splits["train"], data, settings, special_token_ids(tokenizer))


def test_only_records_are_asked() -> None:
    model, length = {"model_type": "gpt2"}, TrainConfig(steps=1)
    with pytest.raises(InputError, match=r"evaluation.metric is 'accuracy': it needs data.batching 'records'"):
        Recipe(name="x/y", description="", model=model, train=length, evaluation=EvaluationConfig(metric="accuracy"))
    with pytest.raises(InputError, match=r"evaluation.answer_tokens is 0: give at least 1"):
        EvaluationConfig(answer_tokens=0)
