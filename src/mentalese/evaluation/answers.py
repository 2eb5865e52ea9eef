"""Answers to questions: the model continues each question, greedily and if asked also by sampling, and its answers are
compared with the record's own.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from mentalese.data.batch import Batch
from mentalese.data.evaluation import by_length, question_batches
from mentalese.data.layouts import Layout, Packed
from mentalese.data.split import Split
from mentalese.data.store import source_name
from mentalese.data.tokenizers import decode
from mentalese.errors import InputError
from mentalese.evaluation.answer_rule import (
    FINAL_ANSWER,
    FREE_ANSWER,
    AnswerRule,
    exact_match,
    f1,
    final_answer,
    free_answer,
    free_answer_ended,
)
from mentalese.evaluation.options import AnswerOptions
from mentalese.files import sealed, write_json, write_text
from mentalese.models.build import context_length
from mentalese.models.generation import WHOLE_DISTRIBUTION, seeded, stops
from mentalese.models.saved import Saved
from mentalese.screen import progress
from mentalese.values import shown

if TYPE_CHECKING:
    from mentalese.data.config import EvaluationConfig

GREEDILY = AnswerOptions()
"""One greedy answer per question, without examples."""


@dataclass(frozen=True)
class AnswerRecord:
    """A model's answer to one question.

    Attributes:
        document: the number of the question in its split.
        text: the model's whole output.
        answer: the part of it that counts.
        expected: the record's own answer, by `final_answer`.
        correct: whether the two are equal by the rule of the protocol.
        question: its text.
        asked: `False` for a question that leaves no room for an answer in the model's context, which counts as wrong.
        finished: whether the answer ended before the limit of new tokens.
        tokens: new tokens, the end included.
        latents: latents after the question; `None` without any.
        seconds: the time of its batch, divided by the questions of the batch.
        attempts: the sampled answers, or those of the beams.
    """

    document: int
    question: str
    expected: str
    text: str = ""
    answer: str = ""
    correct: bool = False
    asked: bool = True
    finished: bool = False
    tokens: int = 0
    latents: int | None = None
    seconds: float = field(default=0.0, compare=False)
    attempts: tuple[str, ...] = ()


@dataclass(frozen=True)
class AnswerMetrics:
    """Shares of questions that a model answers correctly.

    Attributes:
        accuracy: the share of questions whose greedy answer equals the record's, by the rule of the protocol.
        exact_match: the share of questions with `answer_rule.exact_match`.
        f1: the mean of `answer_rule.f1` over questions.
        questions: the number of questions.
        protocol: how they were asked.
        pass_at_k: the share of questions for which any of the k attempts of `protocol` equals the record's answer;
            `None` without attempts.
        unfinished: the number of greedy answers that were cut at the limit of new tokens.
        not_asked: the numbers of the questions that leave no room for an answer in the model's context; they count as
            wrong.
    """

    accuracy: float
    exact_match: float
    f1: float
    questions: int
    protocol: dict[str, object]
    pass_at_k: float | None = None
    unfinished: int = 0
    not_asked: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, object]:
        metrics = dataclasses.asdict(self) | {"not_asked": list(self.not_asked)}
        if self.pass_at_k is None:
            del metrics["pass_at_k"]
        return metrics


@dataclass(frozen=True)
class Answers:
    """The answers to a split's questions.

    Attributes:
        records: one per question, in the split's order.
        rule: how they are compared with the right ones.
        protocol: how the questions were asked.
    """

    records: list[AnswerRecord]
    rule: AnswerRule
    protocol: dict[str, object]

    def write(self, path: Path) -> None:
        """Writes each record as a line of JSON with its checksum, see `AnswerRecord`."""
        lines = (json.dumps(sealed(dataclasses.asdict(record)), ensure_ascii=False) for record in self.records)
        write_text(path, "".join(f"{line}\n" for line in lines))

    def metrics(self) -> AnswerMetrics:
        records = self.records
        passed = [any(self.rule.equal(other, r.expected) for other in r.attempts) for r in records]
        return AnswerMetrics(
            accuracy=statistics.fmean(record.correct for record in records),
            exact_match=statistics.fmean(exact_match(record.answer, record.expected) for record in records),
            f1=statistics.fmean(f1(record.answer, record.expected) for record in records),
            questions=len(records),
            protocol=self.protocol,
            pass_at_k=statistics.fmean(passed) if "attempts" in self.protocol else None,
            unfinished=sum(record.asked and not record.finished for record in records),
            not_asked=tuple(record.document for record in records if not record.asked),
        )


def run(
    saved: Saved, options: AnswerOptions = GREEDILY, *, out: Path | None = None, show: bool = False
) -> dict[str, object]:
    """Asks the questions of a split.

    Args:
        out: the files of the result, see `places`.

    Returns:
        `AnswerMetrics.to_dict()` with `split`, `source`, `detokenizer` and `data_hash` of the questions, and `left_out`
        where `layout.too_long` is `skip` and some were left out.

    Raises:
        InputError: the source has texts and no questions; what `ask` and `Saved.store` raise.
    """
    saved = options.read_by(saved).at(options.stage, options.latents)
    changes = {"max_documents": options.documents} | {
        name: getattr(options, name) for name in ("answer_tokens", "answer_rule")
    }
    saved = saved.scored_by(**{name: value for name, value in changes.items() if value is not None})
    # A model of texts reads questions as text; the store separates their parts all the same.
    part = options.part(saved)
    store = saved.store(part, layout=None if saved.layout.questions else Packed(), show=show)
    if store.meta["kind"] != "records":
        raise InputError(
            f"the source {saved.data.source} contains texts and no questions: use rows of question, steps and answer, "
            "or a set such as --data gsm8k:PATH"
        )
    split = store.splits[part]
    # A set without splits has no other questions than its own; a question is never an example for itself.
    examples = split if part == "all" else store.splits.get("train")
    answers = ask(saved, split, options, examples=examples, show=show)
    left_out = store.meta.get("left_out", {}).get("test" if part == "all" else part, 0)
    counts = {"left_out": left_out} if left_out else {}
    result = answers.metrics().to_dict() | counts | options.origin(saved, store)
    if out is not None:
        *place, file = places(out)
        for path in place:
            write_json(path, result)
        answers.write(file)
    return result


def places(out: Path) -> list[Path]:
    """The files that `run` writes: the result, `NAME.json`, and the answers, `NAME.answers.jsonl`; if `out` ends in
    `.jsonl`, it has the answers and is the only one."""
    return [out] if out.suffix == ".jsonl" else [out, out.with_name(f"{out.stem}.answers.jsonl")]


def ask(
    saved: Saved,
    split: Split,
    options: AnswerOptions = GREEDILY,
    *,
    examples: Split | None = None,
    show: bool = False,
) -> Answers:
    """A model's answers to the questions of a split.

    The greedy answers do not depend on the batch size; sampled ones do. A model that was not trained on questions
    continues the question as text, see `free_answer`.

    Args:
        saved: the model; its `layout` has the stage and the number of latents, its `evaluation` the number of
            questions, how many are asked at once, and how long an answer may be. Left in the mode it came in.
        split: questions with their answers.
        options: shots, attempts, temperature and seed; the other options are those of `run`.
        examples: the records that shots are drawn from; never the question itself.

    Raises:
        InputError: documents without questions, latents for which the tokenizer has no tokens, too few records for
            the shots, or no question that leaves room for an answer in the model's context; nothing has been asked
            then.
    """
    asked = _Asked(saved, split, options, examples)
    batches, limit, context = list(asked.batches()), asked.limit, asked.context
    shortest = int(batches[-1]["attention_mask"].sum(1).min())
    _check_shortest(shortest, options.answer_tokens or saved.evaluation.answer_tokens, context)
    generation = stops(saved.model, saved.layout.special_ids(saved.tokenizer))
    questions, wanted = asked.questions, asked.right_answers
    rule = AnswerRule.of(source_name(saved.data), wanted.values(), saved.evaluation.answer_rule)
    latents = saved.layout.asked().get("latents")
    records: list[AnswerRecord] = []

    def record(document: int, found: _Found, attempts: list[str], seconds: float) -> AnswerRecord:
        expected = wanted[document]
        answer, *others = (
            final_answer(text) if saved.layout.questions else free_answer(text, expected)
            for text in (found.text, *attempts)
        )
        return AnswerRecord(
            document=document,
            question=questions[document],
            expected=expected,
            text=found.text,
            answer=answer,
            correct=rule.equal(answer, expected),
            finished=found.ended or (not saved.layout.questions and free_answer_ended(found.text)),
            tokens=found.tokens,
            latents=latents,
            seconds=seconds,
            attempts=tuple(others),
        )

    with (
        seeded(saved.model, options.seed),
        torch.no_grad(),
        progress("Answering", len(wanted), show=show) as bar,
    ):
        for batch in batches:
            documents, began = batch["documents"].tolist(), time.perf_counter()
            room = limit if context is None else min(limit, context - batch["input_ids"].shape[1])
            if room < 1:
                records += [AnswerRecord(i, questions[i], wanted[i], asked=False) for i in documents]
                continue
            rows = {name: batch[name].to(saved.device) for name in ("input_ids", "attention_mask")}
            found = _continued(saved, rows, generation | {"max_new_tokens": room, "do_sample": False, "num_beams": 1})
            seconds = (time.perf_counter() - began) / len(documents)
            attempts = _attempts(saved, rows, generation | {"max_new_tokens": room}, options)
            records += map(record, documents, found, attempts, itertools.repeat(seconds))
            bar.update(len(records), _progress(records))
    records.sort(key=lambda record: record.document)
    return Answers(records, rule, asked.protocol(rule))


def _check_shortest(shortest: int, answer_tokens: int, context: int | None) -> None:
    """Raises `InputError` if not even the shortest question leaves room for its answer in the model's context."""
    if context is not None and shortest + answer_tokens > context:
        remedy = f"set at most {context - shortest}" if shortest < context else "use shorter questions"
        raise InputError(
            f"answer_tokens is {answer_tokens}: the shortest question has {shortest} tokens and the model's context is "
            f"{context}, {remedy}"
        )


def answer_limit(evaluation: EvaluationConfig, layout: Layout, splits: Iterable[Split]) -> int:
    """New tokens that an answer may have: those of the protocol, or as many as the longest steps and answer of the
    splits have, if these are more."""
    return max(evaluation.answer_tokens, *(int(layout.answer_lengths(split).max(initial=0)) for split in splits))


def _progress(records: list[AnswerRecord]) -> str:
    unfinished = sum(record.asked and not record.finished for record in records)
    accuracy = f"accuracy {statistics.fmean(record.correct for record in records):.1%}"
    return f"{accuracy}, {unfinished:,} unfinished" if unfinished else accuracy


@dataclass(frozen=True)
class _Found:
    """The new text after a question: its number of tokens, and whether the model ended it."""

    text: str
    tokens: int
    ended: bool


def _continued(saved: Saved, rows: dict[str, torch.Tensor], generation: dict[str, object]) -> list[_Found]:
    """The new text after each row."""
    new = saved.model.generate(**rows, **generation)[:, rows["input_ids"].shape[1] :]
    last = torch.tensor(generation["eos_token_id"], device=new.device)
    found = []
    for ids in new:
        ends = torch.isin(ids, last).nonzero()
        tokens = int(ends[0]) + 1 if len(ends) else len(ids)
        found.append(_Found(decode(ids, saved.tokenizer), tokens, len(ends) > 0))
    return found


def _attempts(
    saved: Saved, rows: dict[str, torch.Tensor], generation: dict[str, object], options: AnswerOptions
) -> list[list[str]]:
    """The `options.attempts` further answers to each row."""
    if options.num_beams:
        width = options.num_beams
        beams = {"do_sample": False, "num_beams": width, "num_return_sequences": width}
        texts = [found.text for found in _continued(saved, rows, generation | beams)]
        return [texts[i : i + width] for i in range(0, len(texts), width)]
    sampling = WHOLE_DISTRIBUTION | {"num_beams": 1, "temperature": options.temperature}
    calls = [_continued(saved, rows, generation | sampling) for _ in range(options.attempts)]
    return [[found[i].text for found in calls] for i in range(len(rows["input_ids"]))]


def check_room(saved: Saved, split: Split) -> None:
    """Raises `InputError` if a question of the split leaves no room for `evaluation.answer_tokens` in the model's
    context."""
    batches = question_batches(split, saved.layout, saved.evaluation, saved.tokenizer)
    longest = next(batches)["input_ids"].shape[1]
    context, answer_tokens = context_length(saved.model.config), saved.evaluation.answer_tokens
    if context is not None and longest + answer_tokens > context:
        remedy = f"set at most {context - longest}" if longest < context else "remove the longest questions"
        if context - answer_tokens > 1:
            remedy += f", or set layout.too_long=skip and layout.sequence_length={context - answer_tokens}"
        raise InputError(
            f"evaluation.answer_tokens is {answer_tokens}: the longest question has {longest} tokens and "
            f"the model's context is {context}, {remedy}"
        )


# -- questions and their prompts ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    """The questions of a split as they are put to a model; `examples`: the records that shots are drawn from."""

    saved: Saved
    split: Split
    options: AnswerOptions
    examples: Split | None

    @cached_property
    def limit(self) -> int:
        """The most new tokens of an answer."""
        return self.options.answer_tokens or answer_limit(self.saved.evaluation, self.saved.layout, [self.split])

    @cached_property
    def context(self) -> int | None:
        return context_length(self.saved.model.config)

    @cached_property
    def questions(self) -> dict[int, str]:
        """The questions that are asked, by their number in the split."""
        return {number: self._text(self.split, int(self.split.document_segments[number])) for number in self._numbers}

    @cached_property
    def right_answers(self) -> dict[int, str]:
        """The right answer to each question."""
        last = {number: int(self.split.document_segments[number + 1]) - 1 for number in self._numbers}
        return {number: final_answer(self._text(self.split, segment)) for number, segment in last.items()}

    @cached_property
    def _numbers(self) -> list[int]:
        return self.saved.evaluation.chosen(len(self.split.document_bytes)).tolist()

    def _text(self, split: Split, segment: int) -> str:
        return decode(split.segment(segment).tolist(), self.saved.tokenizer)

    def protocol(self, rule: AnswerRule) -> dict[str, object]:
        saved, options = self.saved, self.options
        protocol: dict[str, object] = {
            "decoding": "greedy",
            "answer": FINAL_ANSWER if saved.layout.questions else FREE_ANSWER,
            "answer_rule": rule.name,
            **saved.layout.asked(),
            "answer_tokens": self.limit,
            **saved.evaluation.how_many(len(self.split.document_bytes)),
        }
        if options.shots:
            protocol["shots"] = {"records": options.shots, "seed": options.seed}
        if options.answer_samples:
            sampling = {"temperature": options.temperature, "seed": options.seed}
            sampling["batch_size"] = saved.evaluation.batch_size
            protocol["attempts"] = {"k": options.attempts, "decoding": "sampled"} | sampling
        elif options.attempts:
            protocol["attempts"] = {"k": options.attempts, "decoding": "beams"}
        return protocol

    def batches(self) -> Iterator[Batch]:
        """The batches of `question_batches`; as text for models of text and with shots. A question that leaves less
        room than the limit is in a batch of its own."""
        saved = self.saved
        longest = None if self.context is None else self.context - self.limit
        if saved.layout.questions and not self.options.shots:
            return question_batches(self.split, saved.layout, saved.evaluation, saved.tokenizer, longest=longest)
        numbers, texts = np.array([*self.questions]), [*self.questions.values()]
        shots = self._shots() if self.options.shots else None
        encoded = saved.layout.encode_prompts(texts, saved.tokenizer, saved.data, before=shots)
        lengths = encoded["attention_mask"].sum(1).numpy()

        def batch(rows: np.ndarray) -> Batch:
            asked = {name: tensor[rows, -int(lengths[rows[0]]) :] for name, tensor in encoded.items()}
            return asked | {"documents": torch.from_numpy(numbers[rows])}

        return map(batch, by_length(lengths, saved.evaluation.batch_size, longest))

    def _shots(self) -> list[str]:
        """The examples before each question, an empty line after each example."""
        examples, shots, context = self.examples, self.options.shots, self.context
        if examples is None:
            raise InputError(f"shots is {shots}: the source has no train split to draw them from; remove it")
        sizes, usable = np.diff(examples.documents), len(examples.document_bytes)
        fitting = np.arange(usable)
        if context is not None:
            texts = [*self.questions.values()]
            encoded = self.saved.layout.encode_prompts(texts, self.saved.tokenizer, self.saved.data)
            lengths = encoded["attention_mask"].sum(1)
            # A question that leaves no room by itself takes none from the others.
            room = lengths <= context - self.limit
            longest = int(lengths[room].max()) if room.any() else context
            # The end of a document, which its size includes, and one more token make an empty line.
            fitting = np.flatnonzero(sizes + 1 <= (context - self.limit - longest) // shots)
        if len(fitting) <= shots:
            raise InputError(
                f"shots is {shots}: only {len(fitting)} of {usable} training records are so short that all of them "
                f"fit the model's context ({context}); set fewer"
            )
        drawn = []
        for document, question in self.questions.items():
            others = fitting[fitting != document] if examples is self.split else fitting
            spans = [examples.documents[[i, i + 1]] for i in self._drawn(examples, others, question, document)]
            tokens = (examples.tokens[start : end - 1].tolist() for start, end in spans)
            drawn.append("".join(f"{decode(ids, self.saved.tokenizer)}\n\n" for ids in tokens))
        return drawn

    def _drawn(self, examples: Split, others: np.ndarray, question: str, document: int) -> np.ndarray:
        """The shots of a question; records of the same question, in whatever capitals and spaces, are drawn again."""
        shots, generator = self.options.shots, np.random.default_rng([self.options.seed, document])
        while True:
            if len(others) < shots:
                raise InputError(
                    f"shots is {shots}: only {len(others)} training records have another question than "
                    f"{shown(question.strip())}; set fewer"
                )
            chosen = generator.choice(others, shots, replace=False)
            asked = (self._text(examples, int(examples.document_segments[i])) for i in chosen)
            same = [number for number, text in zip(chosen, asked) if _alike(text) == _alike(question)]
            if not same:
                return chosen
            others = np.setdiff1d(others, same)


def _alike(question: str) -> str:
    """A question without capitals, and with single spaces."""
    return " ".join(question.casefold().split())
