"""Answers to questions, compared with those of the records.

The model continues each question greedily, and optionally also by sampling.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from mentalese.data.layouts import Packed
from mentalese.data.split import Split
from mentalese.data.store import before_preparing
from mentalese.data.tokenizers import decode
from mentalese.errors import InputError
from mentalese.evaluation.answer_rule import (
    AnswerRule,
    exact_match,
    f1,
    final_answer,
    free_answer,
    free_answer_ended,
)
from mentalese.evaluation.options import AnswerOptions
from mentalese.evaluation.questions import QuestionPrompts
from mentalese.files import sealed, write_json, write_text
from mentalese.models.generation import WHOLE_DISTRIBUTION, seeded, stops
from mentalese.models.saved import Saved
from mentalese.screen import progress

GREEDILY = AnswerOptions()
"""One greedy answer per question, without examples."""


@dataclass(frozen=True)
class AnswerRecord:
    """A model's answer to one question.

    Attributes:
        document: the number of the question in its split.
        text: the model's whole output.
        answer: the answer in `text`.
        expected: the answer of the record, by `final_answer`.
        correct: `True` if the two are equal by the rule of the protocol.
        question: the text of the question.
        asked: `False` for a question that leaves no room for an answer in the model's context, which counts as wrong.
        finished: `True` if the answer ended before the limit of new tokens.
        tokens: number of new tokens, including the end.
        latents: number of latents after the question; `None` without any.
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
        protocol: the settings of the evaluation.
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
        rule: the rule for the comparison with right answers.
        protocol: the settings of the evaluation.
    """

    records: list[AnswerRecord]
    rule: AnswerRule
    protocol: dict[str, object]

    def write(self, path: Path) -> None:
        """Write each record as a line of JSON with its checksum, see `AnswerRecord`."""
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
    """Ask the questions of a split.

    Args:
        out: the files of the result, see `places`.

    Returns:
        `AnswerMetrics.to_dict()` with `split`, `source`, `detokenizer` and `data_hash` of the questions, and `left_out`
        if `layout.too_long` is `skip` and questions were left out.

    Raises:
        InputError: the source has texts and no questions; errors of `ask` and `Saved.store`.
    """
    saved = options.read_by(saved).at(options.stage, options.latents)
    changes = {"max_documents": options.documents} | {
        name: getattr(options, name) for name in ("answer_tokens", "answer_rule")
    }
    saved = saved.scored_by(**{name: value for name, value in changes.items() if value is not None})
    # A model of texts reads questions as text, but the store separates their parts.
    part = options.part(saved)
    store = saved.store(part, layout=None if saved.layout.questions else Packed(), show=show)
    if store.meta["kind"] != "records":
        raise InputError(
            f"the source {saved.data.source} contains texts and no questions: use rows of question, steps and answer, "
            "or a set such as --data gsm8k:PATH"
        )
    split = store.splits[part]
    # A set without splits also provides the examples; a question is never an example for itself.
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
    """Return the files that `run` writes: the result, `NAME.json`, and the answers, `NAME.answers.jsonl`.

    If `out` ends in `.jsonl`, it is the only file and has the answers.
    """
    return [out] if out.suffix == ".jsonl" else [out, out.with_name(f"{out.stem}.answers.jsonl")]


def ask(
    saved: Saved,
    split: Split,
    options: AnswerOptions = GREEDILY,
    *,
    examples: Split | None = None,
    show: bool = False,
) -> Answers:
    """Return a model's answers to the questions of a split.

    The greedy answers do not depend on the batch size; sampled ones do. A model that was not trained on questions
    continues the question as text, see `free_answer`.

    Args:
        saved: the model; its `layout` has the stage and the number of latents, its `evaluation` the number of
            questions, the batch size and the limit of new tokens. Its mode is restored.
        split: questions with their answers.
        options: shots, attempts, temperature and seed; only `run` uses the other options.
        examples: the records for shots; a question is never an example for itself.

    Raises:
        InputError: documents without questions, latents for which the tokenizer has no tokens, too few records for
            the shots, or no question that leaves room for an answer in the model's context; raised before the model
            answers.
    """
    prompts = QuestionPrompts(saved, split, options, examples)
    batches, limit, context = prompts.batches(), prompts.limit, prompts.context
    generation = stops(saved.model, saved.layout.special_ids(saved.tokenizer))
    questions, right_answers = prompts.questions, prompts.right_answers
    rule = AnswerRule.of(before_preparing(saved.data).source, right_answers.values(), saved.evaluation.answer_rule)
    latents = saved.layout.asked().get("latents")
    records: list[AnswerRecord] = []

    def record(document: int, output: _Found, attempts: list[str], seconds: float) -> AnswerRecord:
        expected = right_answers[document]
        answer, *others = (
            final_answer(text) if saved.layout.questions else free_answer(text, expected)
            for text in (output.text, *attempts)
        )
        return AnswerRecord(
            document=document,
            question=questions[document],
            expected=expected,
            text=output.text,
            answer=answer,
            correct=rule.equal(answer, expected),
            finished=output.ended or (not saved.layout.questions and free_answer_ended(output.text)),
            tokens=output.tokens,
            latents=latents,
            seconds=seconds,
            attempts=tuple(others),
        )

    with (
        seeded(saved.model, options.seed),
        torch.no_grad(),
        progress("Answering", len(right_answers), show=show) as bar,
    ):
        for batch in batches:
            documents, began = batch["documents"].tolist(), time.perf_counter()
            room = limit if context is None else min(limit, context - batch["input_ids"].shape[1])
            if room < 1:
                records += [AnswerRecord(i, questions[i], right_answers[i], asked=False) for i in documents]
                continue
            rows = {name: batch[name].to(saved.device) for name in ("input_ids", "attention_mask")}
            outputs = _continued(saved, rows, generation | {"max_new_tokens": room, "do_sample": False, "num_beams": 1})
            seconds = (time.perf_counter() - began) / len(documents)
            attempts = _attempts(saved, rows, generation | {"max_new_tokens": room}, options)
            records += map(record, documents, outputs, attempts, itertools.repeat(seconds))
            bar.update(len(records), _progress(records))
    records.sort(key=lambda record: record.document)
    return Answers(records, rule, prompts.protocol(rule))


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
    """Return the new text after each row."""
    new = saved.model.generate(**rows, **generation)[:, rows["input_ids"].shape[1] :]
    last = torch.tensor(generation["eos_token_id"], device=new.device)
    outputs = []
    for ids in new:
        ends = torch.isin(ids, last).nonzero()
        tokens = int(ends[0]) + 1 if len(ends) else len(ids)
        outputs.append(_Found(decode(ids, saved.tokenizer), tokens, len(ends) > 0))
    return outputs


def _attempts(
    saved: Saved, rows: dict[str, torch.Tensor], generation: dict[str, object], options: AnswerOptions
) -> list[list[str]]:
    """Return the `options.attempts` further answers to each row."""
    if options.num_beams:
        width = options.num_beams
        beams = {"do_sample": False, "num_beams": width, "num_return_sequences": width}
        texts = [output.text for output in _continued(saved, rows, generation | beams)]
        return [texts[i : i + width] for i in range(0, len(texts), width)]
    sampling = WHOLE_DISTRIBUTION | {"num_beams": 1, "temperature": options.temperature}
    calls = [_continued(saved, rows, generation | sampling) for _ in range(options.attempts)]
    return [[output[i].text for output in calls] for i in range(len(rows["input_ids"]))]
