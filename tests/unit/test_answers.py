"""A model's answer is what it says last, and it is held to the record's own."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

from mentalese import Recipe, TrainConfig, get_recipe, load
from mentalese.data.layouts import Layout, Packed, QuestionAnswer, SentenceStreams
from mentalese.data.store import TokenStore, prepare
from mentalese.data.tokenizers import special_token_ids
from mentalese.errors import InputError
from mentalese.evaluation.answer_rule import final_answer, free_answer
from mentalese.evaluation.answers import (
    AnswerMetrics,
    ask,
)
from mentalese.evaluation.options import AnswerOptions
from mentalese.evaluation.questions import check_room
from mentalese.models.base import LanguageModel, as_model
from mentalese.recipe import DataConfig, EvaluationConfig
from support import opened, saved, shrink

SETTINGS = EvaluationConfig(metric="accuracy", answer_tokens=24, batch_size=4)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[TokenStore, Any, QuestionAnswer]:
    """Questions of very different lengths: `sum of 1 2 3 is?`, answered after one step."""
    path = tmp_path_factory.mktemp("sums") / "sums.jsonl"
    rows = []
    for i in range(120):
        numbers = range(i, i + 1 + i % 9)
        question = f"The sum of {' '.join(map(str, numbers))} is?"
        rows.append({"question": question, "steps": [f"count {len(numbers)}"], "answer": f"The {sum(numbers):,}."})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    layout = QuestionAnswer(sequence_length=64)
    store, tokenizer = prepare(DataConfig(source=f"file:{path}", tokenizer="bpe:320"), layout, show=False)
    return store, tokenizer, layout


def gpt2(tokenizer: Any) -> LanguageModel:
    """Untied and with large weights: a tied random model would repeat one token, whatever the prompt."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=96, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3,
        tie_word_embeddings=False,
    )  # fmt: skip
    return as_model(GPT2LMHeadModel(config)).train()


class Scripted(nn.Module):
    """Says `said[i]` to the i-th question that it is asked, whatever the question."""

    def __init__(self, said: list[str], tokenizer: Any, context: int | None = None) -> None:
        super().__init__()
        self.said, self.tokenizer = list(said), tokenizer
        self.asked: list[list[int]] = []
        self.options: list[dict[str, Any]] = []
        self.limits: list[int] = []
        self.generation_config = GenerationConfig()
        self.config, self.device = SimpleNamespace(max_position_embeddings=context), torch.device("cpu")

    def generate(self, input_ids: Tensor, attention_mask: Tensor, **options: Any) -> Tensor:
        assert not self.training
        self.asked += [ids[mask.bool()].tolist() for ids, mask in zip(input_ids, attention_mask)]
        self.options.append(options)
        input_ids = input_ids.repeat_interleave(options.get("num_return_sequences", 1), 0)
        [end], pad = options["eos_token_id"], options["pad_token_id"]
        limit = options["max_new_tokens"]
        self.limits += [limit] * len(input_ids)
        rows = [[*self.tokenizer(self.said.pop(0))["input_ids"], end][:limit] for _ in input_ids]
        longest = max(map(len, rows))
        return torch.cat([input_ids, torch.tensor([row + [pad] * (longest - len(row)) for row in rows])], dim=1)


def scripted(
    prepared: tuple[TokenStore, Any, QuestionAnswer], said: list[str], *, count: int | None = None, **fields: Any
) -> tuple[AnswerMetrics, Scripted]:
    store, tokenizer, layout = prepared
    options = fields.pop("options", AnswerOptions())
    context, settings = fields.pop("context", None), dataclasses.replace(SETTINGS, max_documents=count or len(said))
    model, layout = Scripted(said, tokenizer, context), dataclasses.replace(layout, **fields)
    train = store.splits["train"]
    saved = opened(model, tokenizer, layout, **vars(settings))
    return ask(saved, train, options, examples=train).metrics(), model


def test_a_checkpoint_s_own_settings_do_not_change_answers(prepared: tuple[TokenStore, Any, QuestionAnswer]) -> None:
    store, tokenizer, layout = prepared
    found = []
    for own in ({}, {"repetition_penalty": 5.0, "no_repeat_ngram_size": 2, "return_dict_in_generate": True}):
        model = gpt2(tokenizer).eval()
        model.generation_config = GenerationConfig(**own)
        saved = opened(model, tokenizer, layout, **vars(dataclasses.replace(SETTINGS, max_documents=4)))
        answers = ask(saved, store.splits["train"], AnswerOptions(answer_samples=2, seed=1))
        found.append([(record.text, record.attempts) for record in answers.records])
        found.append(saved.think("The sum of 1 2 is?", max_new_tokens=8).tokens)
        assert model.generation_config.repetition_penalty == own.get("repetition_penalty")
    assert found[:2] == found[2:]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("count 3\n### 1,234", "1234"),
        ("### 5\n### 6 \n", "6"),
        ("### C#", "C#"),
        ("count 3\n#### 7", "7"),
        ("count 3\n# 7", "7"),
        ("no mark, none", "no mark, none"),
        ("### ", ""),
        ("", ""),
    ],
)
def test_the_answer_is_what_follows_the_last_mark(text: str, answer: str) -> None:
    assert final_answer(text) == answer


def test_accuracy_is_to_the_letter_and_squads_figures_are_not(prepared: tuple[TokenStore, Any, QuestionAnswer]) -> None:
    store, tokenizer, _ = prepared
    split = store.splits["train"]
    starts = split.segments[split.document_segments[1:] - 1]
    right = [tokenizer.decode(split.tokens[a : b - 1]) for a, b in zip(starts, split.documents[1:])]
    [longest] = scripted(prepared, ["?"])[1].asked
    assert right[0].startswith("### The ")
    assert longest[-1:] == tokenizer("\n")["input_ids"]

    assert dataclasses.astuple(scripted(prepared, [f"steps\n{right[0]}"])[0])[:4] == (1, 1, 1, 1)
    said = right[0].replace("The ", "").rstrip(".").upper()
    assert dataclasses.astuple(scripted(prepared, [said])[0])[:4] == (0, 1, 1, 1)
    assert dataclasses.astuple(scripted(prepared, [f"{said} or 7 7"])[0])[:4] == (0, 0, pytest.approx(2 / 5), 1)
    assert dataclasses.astuple(scripted(prepared, [""])[0])[:4] == (0, 0, 0, 1)


@pytest.mark.parametrize(
    ("said", "expected", "f1"),
    [
        ("yes", "yes", 1.0),
        ("Yes.", "yes", 1.0),
        ("yes it is", "yes", 0.0),
        ("no", "the no man", 0.0),
        ("no man", "one man", 0.5),
        ("noanswer", "a noanswer b", 0.0),
    ],
)
def test_yes_and_no_are_right_as_a_whole(tmp_path: Path, said: str, expected: str, f1: float) -> None:
    path = tmp_path / "questions.jsonl"
    rows = [{"question": f"Is {i} it?", "steps": ["It is."], "answer": expected} for i in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    layout = QuestionAnswer(sequence_length=64)
    store, tokenizer = prepare(DataConfig(source=f"file:{path}", tokenizer="bpe:320"), layout, show=False)
    assert scripted((store, tokenizer, layout), [f"### {said}"])[0].f1 == f1


@pytest.mark.parametrize(
    ("said", "expected", "exact_match", "f1"),
    [
        ("A", "A", 1.0, 1.0),
        ("a.", "A", 1.0, 1.0),
        ("the", "A", 0.0, 0.0),
        ("", "A", 0.0, 0.0),
        ("B", "A", 0.0, 0.0),
        ("+", "+", 1.0, 1.0),
        ("-", "+", 0.0, 0.0),
    ],
)
def test_a_letter_or_a_sign_is_an_answer(
    tmp_path: Path, said: str, expected: str, exact_match: float, f1: float
) -> None:
    path = tmp_path / "questions.jsonl"
    rows = [{"question": f"Which is {i}?", "steps": ["This is."], "answer": expected} for i in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    layout = QuestionAnswer(sequence_length=64)
    store, tokenizer = prepare(DataConfig(source=f"file:{path}", tokenizer="bpe:320"), layout, show=False)
    metrics = scripted((store, tokenizer, layout), [f"### {said}"])[0]
    assert (metrics.exact_match, metrics.f1) == (exact_match, f1)


def test_each_question_has_its_stage(
    prepared: tuple[TokenStore, Any, QuestionAnswer],
) -> None:
    store, tokenizer, layout = prepared
    layout = dataclasses.replace(layout, stage=2, stages=2, latents_per_step=1)
    count = len(store.splits["validation"].document_bytes)
    model = Scripted([f"### {i}" for i in range(count)], tokenizer)
    special = special_token_ids(tokenizer)
    given = ask(opened(model, tokenizer, layout, **vars(SETTINGS)), store.splits["validation"]).records
    assert [each.document for each in given] == list(range(count))
    assert all(each.expected.startswith("The ") and "," not in each.expected for each in given)
    for each in given:
        row = model.asked[int(each.answer)]  # the i-th question asked was answered with i
        question = tokenizer.decode(row[: row.index(special["latent_start_token_id"])])
        first, last = store.splits["validation"].document_segments[each.document : each.document + 2]
        assert question == tokenizer.decode(store.splits["validation"].tokens[slice(*_segment(store, int(first)))])
        assert row.count(special["latent_token_id"]) == 2
        assert last - first == 3
    model = Scripted(["no"] * count, tokenizer)
    result = ask(opened(model, tokenizer, layout, **vars(SETTINGS)), store.splits["validation"]).metrics()
    assert result.protocol == {
        "decoding": "greedy", "answer": "the text after the last ###, without separators of thousands",
        "answer_rule": "text", "stage": 2, "latents": 2, "answer_tokens": 24, "documents": count,
    }  # fmt: skip


def _segment(store: TokenStore, index: int) -> tuple[int, int]:
    segments = store.splits["validation"].segments
    return int(segments[index]), int(segments[index + 1])


def test_answers_do_not_depend_on_the_batch_size(prepared: tuple[TokenStore, Any, QuestionAnswer]) -> None:
    store, tokenizer, layout = prepared
    model = gpt2(tokenizer)

    def texts(batch_size: int) -> list[str]:
        settings = dataclasses.replace(SETTINGS, batch_size=batch_size, max_documents=10)
        saved = opened(model, tokenizer, layout, **vars(settings))
        return [record.text for record in ask(saved, store.splits["train"]).records]

    alone = texts(1)
    assert len(set(alone)) == 10
    assert texts(3) == texts(64) == alone
    assert model.training


def test_answers_can_end_before_each_batch(prepared: tuple[TokenStore, Any, QuestionAnswer]) -> None:
    store, tokenizer, layout = prepared
    saved = opened(gpt2(tokenizer), tokenizer, layout, **vars(SETTINGS) | {"batch_size": 2, "max_documents": 6})
    calls: list[int] = []

    def stop() -> None:
        calls.append(len(calls))
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(saved, store.splits["train"], before_batch=stop)
    assert len(calls) == 2
    ask(saved, store.splits["train"], before_batch=lambda: calls.append(0))
    assert len(calls) == 5


def test_training_refuses_a_question_without_room(prepared: tuple[TokenStore, Any, QuestionAnswer]) -> None:
    store, tokenizer, layout = prepared
    [longest] = (max(map(len, scripted(prepared, ["no"] * 20)[1].asked)),)
    settings = dataclasses.replace(SETTINGS, max_documents=20)
    for context, remedy in ((longest + 23, "set at most 23"), (longest, "remove the longest questions")):
        saved = opened(Scripted([], tokenizer, context), tokenizer, layout, **vars(settings))
        says = f"evaluation.answer_tokens is 24: the longest question has {longest} tokens and the model's context is"
        with pytest.raises(InputError, match=f"{says} {context}, {remedy}"):
            check_room(saved, store.splits["train"])
    check_room(
        opened(Scripted([], tokenizer, longest + 24), tokenizer, layout, **vars(settings)), store.splits["train"]
    )


def test_a_long_question_does_not_stop_the_others(prepared: tuple[TokenStore, Any, QuestionAnswer]) -> None:
    options = AnswerOptions(answer_tokens=6)
    lengths = sorted(map(len, scripted(prepared, ["no"] * 40)[1].asked), reverse=True)
    longest, shortest = lengths[0], lengths[-1]
    assert scripted(prepared, ["### no"] * 40, options=options, context=longest + 6)[0].not_asked == ()
    result, model = scripted(prepared, ["### no"] * 40, options=options, context=longest)
    assert result.questions == 40
    assert len(result.not_asked) == lengths.count(longest) == 40 - len(model.asked)
    # Others that leave less room than the limit are asked each by itself, with the room that there is.
    assert [min(6, longest - len(row)) for row in model.asked] == model.limits
    assert scripted(prepared, ["### no"] * 40, options=options, context=shortest + 6)[0].questions == 40
    with pytest.raises(InputError, match="answer_tokens is 6: the shortest question has"):
        scripted(prepared, ["no"] * 40, options=options, context=shortest + 5)


def test_the_limit_of_an_answer_follows_from_the_data(prepared: tuple[TokenStore, Any, QuestionAnswer]) -> None:
    store, tokenizer, layout = prepared
    split = store.splits["train"]
    answers = [split.documents[i + 1] - split.segments[split.document_segments[i] + 1] for i in range(100)]
    settings = dataclasses.replace(SETTINGS, answer_tokens=2, max_documents=3)
    model = Scripted(["no"] * 3, tokenizer)
    result = ask(opened(model, tokenizer, layout, **vars(settings)), split).metrics()
    assert result.protocol["answer_tokens"] == model.options[0]["max_new_tokens"] >= max(answers)
    removed = dataclasses.replace(layout, stage=1)
    model = Scripted(["no"] * 3, tokenizer)
    shorter = ask(opened(model, tokenizer, removed, **vars(settings)), split).metrics()
    assert 2 < shorter.protocol["answer_tokens"] < result.protocol["answer_tokens"]
    model = Scripted(["no"] * 3, tokenizer)
    asked = AnswerOptions(answer_tokens=2)
    exact = ask(opened(model, tokenizer, layout, **vars(settings)), split, asked).metrics()
    assert exact.protocol["answer_tokens"] == 2


@pytest.mark.parametrize("stage", [0, 1])
def test_bits_per_byte_divide_by_the_bytes_of_answers(
    prepared: tuple[TokenStore, Any, QuestionAnswer], stage: int
) -> None:
    store, tokenizer, layout = prepared
    split = store.splits["validation"]
    texts = []
    for first, end in zip(split.document_segments, split.document_segments[1:]):
        parts = [tokenizer.decode(split.segment(i), skip_special_tokens=True) for i in range(first, end)]
        texts.append("".join(parts[1 + stage :]))
    saved = opened(gpt2(tokenizer), tokenizer, dataclasses.replace(layout, stage=stage), **vars(SETTINGS))
    scored = saved.perplexity(split)
    assert all(text.startswith("### The" if stage else "count") for text in texts)
    assert scored.bytes == len("".join(texts).encode()) < split.document_bytes.sum()
    assert scored.bits_per_byte == pytest.approx(scored.nll * scored.tokens / math.log(2) / scored.bytes)


def test_unfinished_answers_are_counted(prepared: tuple[TokenStore, Any, QuestionAnswer]) -> None:
    store, tokenizer, layout = prepared
    words = "count 2 and so on " * 8
    assert len(tokenizer(words)["input_ids"]) > 24
    given = scripted(prepared, [words, "### 7", words])[0]
    assert (given.unfinished, given.questions, given.to_dict()["unfinished"]) == (2, 3, 2)
    settings = dataclasses.replace(SETTINGS, max_documents=3)
    model = Scripted(["<|latent|><|latent|>### 7", words, words + "\n\n"], tokenizer)
    records = ask(opened(model, tokenizer, layout, **vars(settings)), store.splits["train"]).records
    finished = {record.text: record for record in records if record.finished}
    assert (finished["### 7"].tokens, finished["### 7"].latents) == (len(tokenizer("### 7")["input_ids"]) + 1, 2)
    assert {record.tokens for record in records if not record.finished} == {24}
    # A model of texts has answered where an empty line follows, whatever it writes then.
    model = Scripted(["It is 7.\n\n" + words, words, words], tokenizer)
    assert ask(opened(model, tokenizer, Packed(), **vars(settings)), store.splits["train"]).metrics().unfinished == 2


# -- several attempts, and examples ------------------------------------------------------------------------------------


def right(prepared: tuple[TokenStore, Any, QuestionAnswer], count: int) -> list[str]:
    """The answers of the first questions, in the order that they are asked in: the longest first."""
    tokenizer = prepared[1]
    asked = scripted(prepared, ["?"] * count)[1].asked
    questions = [tokenizer.decode(row) for row in asked]
    sums = (sum(map(int, question.split()[3:-1])) for question in questions)
    return [f"### The {total}." for total in sums]


def test_a_question_is_passed_where_any_attempt_is_right(prepared: tuple[TokenStore, Any, QuestionAnswer]) -> None:
    first, second, third = right(prepared, 3)
    said = ["no", "no", third, "no", second, "no", first, "no", "no"]  # greedily, then drawn twice
    result, model = scripted(prepared, said, count=3, options=AnswerOptions(answer_samples=2, temperature=0.7, seed=5))
    assert (result.accuracy, result.pass_at_k) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert result.majority == pytest.approx(1 / 3)  # the first attempt of each, as the two differ
    tokens = [len(prepared[1](text)["input_ids"]) + 1 for text in said[3:]]
    assert result.attempt_tokens == pytest.approx(sum(tokens) / 6)
    assert result.protocol["attempts"] == {
        "k": 2, "decoding": "sampled", "temperature": 0.7, "seed": 5, "batch_size": 4
    }  # fmt: skip
    assert [options["do_sample"] for options in model.options] == [False, True, True]
    drawn = {"temperature": 0.7, "top_k": 0, "top_p": 1.0}
    assert model.options[1].items() >= drawn.items()

    beams = ["no", "no", "no", "no", first, "no", "no", "no", "no"]
    result, model = scripted(prepared, beams, count=3, options=AnswerOptions(num_beams=2))
    assert (result.accuracy, result.pass_at_k) == (0, pytest.approx(1 / 3))
    assert result.protocol["attempts"] == {"k": 2, "decoding": "beams"}
    assert model.options[1]["num_return_sequences"] == 2

    result, _ = scripted(prepared, ["no"])
    assert (result.pass_at_k, result.majority, result.attempt_tokens) == (None, None, None)
    assert not {"pass_at_k", "majority", "attempt_tokens"} & result.to_dict().keys()


def test_the_most_frequent_attempt_is_the_answer_of_the_majority(
    prepared: tuple[TokenStore, Any, QuestionAnswer],
) -> None:
    (first,) = right(prepared, 1)
    for said, is_right in ((["no", first, first], 1.0), (["### 1", first, "### 1"], 0.0), (["no", first], 0.0)):
        options = AnswerOptions(answer_samples=len(said))
        assert scripted(prepared, ["no", *said], count=1, options=options)[0].majority == is_right


def test_thoughts_are_sampled_only_for_attempts(tmp_path: Path, corpus: Path) -> None:
    model = load(saved(tmp_path / "run", shrink(get_recipe("coconut/tiny-coconut"), corpus)))
    split, noisy = model.split("train"), AnswerOptions(answer_samples=3, temperature=0, thought_noise=3.0)
    model = model.scored_by(max_documents=6)
    plain, found = ask(model, split), ask(model, split, noisy)
    assert [record.text for record in found.records] == [record.text for record in plain.records]
    assert len({attempt for record in found.records for attempt in record.attempts}) > 3
    assert ask(model, split, noisy) == found
    assert model.model.config.thought_control is None
    assert found.protocol["attempts"]["thought_noise"] == 3.0  # type: ignore[index]
    texts = load(saved(tmp_path / "texts", shrink(get_recipe("coconut/tiny-pause"), corpus)))
    with pytest.raises(InputError, match=r"thought_noise is 3.0: the model has no thoughts of its own"):
        ask(texts, split, noisy)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"thought_noise": 0.5}, "thought_noise is 0.5: it is of sampled answers"),
        ({"temperature": 0.0, "answer_samples": 2}, "temperature is 0.0: all answers are then the same"),
        ({"thought_noise": 0.0, "answer_samples": 2}, "thought_noise is 0"),
    ],
)
def test_samples_that_could_not_differ_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        AnswerOptions(**options)


def test_drawn_answers_follow_from_the_seed(prepared: tuple[TokenStore, Any, QuestionAnswer]) -> None:
    store, tokenizer, layout = prepared
    model = gpt2(tokenizer)

    def drawn(seed: int) -> list[tuple[str, ...]]:
        settings = dataclasses.replace(SETTINGS, max_documents=6)
        saved = opened(model, tokenizer, layout, **vars(settings))
        given = ask(saved, store.splits["train"], AnswerOptions(answer_samples=2, seed=seed)).records
        return [each.attempts for each in given]

    assert drawn(1) == drawn(1) != drawn(2)
    assert any(one != other for one, other in drawn(1))


@pytest.mark.parametrize("options", [AnswerOptions(), AnswerOptions(shots=1)])
def test_questions_drawn_at_random_keep_their_numbers(
    prepared: tuple[TokenStore, Any, QuestionAnswer], options: AnswerOptions
) -> None:
    store, tokenizer, layout = prepared
    settings = dataclasses.replace(SETTINGS, max_documents=7, documents_seed=5)
    split = store.splits["train"]
    model = Scripted(["### no"] * 7, tokenizer)
    saved = opened(model, tokenizer, layout, **vars(settings))
    given = ask(saved, split, options, examples=split).records
    assert [record.document for record in given] == settings.chosen(len(split.document_bytes)).tolist()
    starts = split.segments[split.document_segments[1:] - 1]
    for record in given:
        text = tokenizer.decode(split.tokens[starts[record.document] : split.documents[record.document + 1] - 1])
        assert record.expected == final_answer(text)
    asked = {tokenizer.decode(row).strip().rpartition("\n\n")[2] for row in model.asked}
    questions = (split.document_segments[record.document] for record in given)
    assert asked == {tokenizer.decode(split.tokens[slice(*split.segments[i : i + 2])]).strip() for i in questions}


def test_shots_are_other_records_before_the_question(prepared: tuple[TokenStore, Any, QuestionAnswer]) -> None:
    store, tokenizer, _ = prepared
    split = store.splits["train"]
    _, plain = scripted(prepared, ["no"] * 8)
    result, model = scripted(prepared, ["no"] * 8, options=AnswerOptions(shots=2, seed=3))
    assert result.protocol["shots"] == {"records": 2, "seed": 3}
    records = [tokenizer.decode(split.tokens[a : b - 1]) for a, b in zip(split.documents, split.documents[1:])]
    texts = [tokenizer.decode(row) for row in model.asked]
    questions = {tokenizer.decode(row) for row in plain.asked}
    assert {text.rpartition("\n\n")[2] for text in texts} == questions
    for text in texts:
        *shots, question = text.split("\n\n")
        assert len(shots) == 2
        assert set(shots) <= set(records)
        assert not any(shot.startswith(question) for shot in shots)
    assert scripted(prepared, ["no"] * 8, options=AnswerOptions(shots=2, seed=3))[1].asked == model.asked
    assert scripted(prepared, ["no"] * 8, options=AnswerOptions(shots=2, seed=4))[1].asked != model.asked


def test_shots_are_never_the_question_itself(tmp_path: Path) -> None:
    rows = [{"question": f"How many  are {i % 5}?", "steps": ["so"], "answer": str(i)} for i in range(40)]
    for row in rows[20:]:
        row["question"] = str(row["question"]).lower().replace("  ", " ")
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    layout = QuestionAnswer(sequence_length=64)
    prepared = *prepare(DataConfig(source=f"file:{path}", tokenizer="bpe:300"), layout, show=False), layout
    count = len(prepared[0].splits["train"].document_bytes)
    _, model = scripted(prepared, ["no"] * count, options=AnswerOptions(shots=3))
    for row in model.asked:
        *shots, question = prepared[1].decode(row).split("\n\n")
        assert len(shots) == 3
        asked = {shot.partition("?")[0].lower().replace("  ", " ") for shot in shots}
        assert question.partition("?")[0].lower().replace("  ", " ") not in asked
    with pytest.raises(InputError, match=r"shots is \d+: only \d+ training records have another question than"):
        scripted(prepared, ["no"] * count, options=AnswerOptions(shots=count - 2))


def test_shots_leave_room_for_question_and_answer(prepared: tuple[TokenStore, Any, QuestionAnswer]) -> None:
    _, plain = scripted(prepared, ["no"] * 8, options=AnswerOptions(shots=2))
    free = max(map(len, plain.asked))
    _, model = scripted(prepared, ["no"] * 8, options=AnswerOptions(shots=2), context=free + 14)
    assert max(map(len, model.asked)) + SETTINGS.answer_tokens <= free + 14
    with pytest.raises(InputError, match=r"shots is 9: only \d+ of \d+ training records are short enough"):
        scripted(prepared, ["no"] * 8, options=AnswerOptions(shots=9), context=free + 14)
    store, tokenizer, layout = prepared
    saved = opened(Scripted([], tokenizer), tokenizer, layout, **vars(SETTINGS))
    with pytest.raises(InputError, match="shots is 1: the source has no train split"):
        ask(saved, store.splits["test"], AnswerOptions(shots=1))


def test_all_examples_may_be_shots_but_a_question_for_itself(prepared: tuple[TokenStore, Any, QuestionAnswer]) -> None:
    store, tokenizer, layout = prepared
    saved = opened(Scripted(["no"], tokenizer), tokenizer, layout, **vars(SETTINGS) | {"max_documents": 1})
    two = store.splits["train"].first(2)
    assert len(ask(saved, store.splits["test"], AnswerOptions(shots=2), examples=two).records) == 1
    with pytest.raises(InputError, match="shots is 2: only 1 training records have another question"):
        ask(saved, two, AnswerOptions(shots=2), examples=two)


@pytest.mark.parametrize("layout", [Packed(), SentenceStreams()])
def test_a_model_of_texts_reads_a_question_as_it_reads_texts(
    prepared: tuple[TokenStore, Any, QuestionAnswer], layout: Layout
) -> None:
    store, tokenizer, _ = prepared
    special = special_token_ids(tokenizer)
    settings = dataclasses.replace(SETTINGS, max_documents=2)
    model = Scripted(["So #### 7\nmore\n\n### 8", "it is 3, or 4"], tokenizer)
    given = ask(opened(model, tokenizer, layout, **vars(settings)), store.splits["train"]).metrics()
    assert given.protocol["answer"].startswith("what follows the longest run of #s")
    assert "stage" not in given.protocol
    start = special["eos_token_id" if layout.plain else "sentence_start_token_id"]
    for row in model.asked:
        assert row[0] == start
        assert tokenizer.decode(row[1:]).startswith("The sum of")
        assert tokenizer.decode(row[1:]).endswith("is?\n")


@pytest.mark.parametrize(
    ("text", "expected", "answer"),
    [
        ("We add.\n#### 1,234 apples\nQ", "5", "1234"),
        ("### 18\n\nAnother question\n### 7", "5", "18"),
        (" That is 3 and 4.50 dollars.\n\nNext 7", "5", "4.50"),
        ("-3,000", "5", "-3000"),
        ("none", "5", ""),
        ("Rex is a jelpus", "a jelpus", "Rex is a jelpus"),
    ],
)
def test_free_text_answer_is_read_at_its_place(text: str, expected: str, answer: str) -> None:
    assert free_answer(text, expected, whole=False) == answer


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"shots": -1}, "shots is -1"),
        ({"answer_samples": 0}, "answer_samples is 0"),
        ({"num_beams": 1}, "num_beams is 1"),
        ({"num_beams": 2, "answer_samples": 2}, "num_beams is 2: answer_samples is set too"),
        ({"temperature": 0}, "temperature is 0"),
        ({"temperature": 0.7}, "temperature is 0.7: it is of sampled answers; remove it, or set answer_samples"),
        ({"temperature": 0.7, "num_beams": 2}, "temperature is 0.7: it is of sampled answers"),
    ],
)
def test_what_cannot_be_asked_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        AnswerOptions(**fields)


def test_only_records_are_asked() -> None:
    model, length = {"model_type": "gpt2"}, TrainConfig(steps=1)
    with pytest.raises(InputError, match=r"evaluation.metric is 'accuracy': layout 'packed' has no questions"):
        Recipe(name="x/y", description="", model=model, train=length, evaluation=EvaluationConfig(metric="accuracy"))
    with pytest.raises(InputError, match=r"evaluation.answer_tokens is 0"):
        EvaluationConfig(answer_tokens=0)
