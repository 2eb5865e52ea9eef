"""Answers to questions, compared with the answers of the records.

The model continues each question greedily, and optionally also by sampling.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from mentalese.data.layouts import Packed
from mentalese.data.split import Split
from mentalese.data.tokenizers import decode, special_token_ids
from mentalese.errors import require
from mentalese.evaluation.answer_rule import (
    AnswerRule,
    exact_match,
    f1,
    free_answer_ended,
)
from mentalese.evaluation.metric import ACCURACY, Metric
from mentalese.evaluation.options import AnswerOptions
from mentalese.evaluation.questions import QuestionPrompts, answer_in, rule_of
from mentalese.files import sealed, write_json, write_text
from mentalese.models.config import require_own_thoughts
from mentalese.models.generation import WHOLE_DISTRIBUTION, plainly, seeded, stops
from mentalese.models.saved import Saved
from mentalese.models.scoring import Perplexity
from mentalese.nn.controls import Noise
from mentalese.screen import progress
from mentalese.values import temporarily

GREEDILY = AnswerOptions()
"""One greedy answer per question, without examples."""
_MOST_LIKELY: dict[str, object] = {"do_sample": False}


@dataclass(frozen=True)
class AnswerRecord:
    """A model's answer to one question.

    Attributes:
        document: the number of the question in its split.
        text: the model's whole output, in which `answer` is.
        asked: `False` for a question that leaves no room for an answer in the model's context, which counts as wrong.
        finished: `True` if the answer ended before the limit of new tokens.
        tokens: number of new tokens, including the end, without latents.
        latents: number of latents, which follow the question or are the model's own; `None` without any.
        seconds: the time of its batch, divided by the questions of the batch.
        attempts: the sampled answers, or the answers of the beams.
        attempt_tokens: number of new tokens of all attempts, including the ends.
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
    attempt_tokens: int = 0


@dataclass(frozen=True)
class AnswerMetrics:
    """Shares of questions that a model answers correctly.

    Attributes:
        accuracy: the share of greedy answers that equal the record's, by the rule of the protocol.
        exact_match, f1: means of `answer_rule.exact_match` and `answer_rule.f1`.
        pass_at_k: the share of questions with a right one among k attempts; `None` without attempts.
        majority: the share of questions whose most frequent attempt is right, of several the first.
        attempt_tokens: mean number of new tokens of an attempt.
        unfinished: the number of greedy answers that were cut at the limit of new tokens.
        not_asked: the numbers of questions that leave no room for an answer in the model's context: these are wrong.
    """

    accuracy: float
    exact_match: float
    f1: float
    questions: int
    protocol: dict[str, object]
    pass_at_k: float | None = None
    majority: float | None = None
    attempt_tokens: float | None = None
    unfinished: int = 0
    not_asked: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, object]:
        metrics = dataclasses.asdict(self) | {"not_asked": list(self.not_asked)}
        for name in ("pass_at_k", "majority", "attempt_tokens"):
            if metrics[name] is None:
                del metrics[name]
        return metrics


@dataclass(frozen=True)
class SplitResult:
    """The scores of a split, and of questions the answers at a stage."""

    scores: Perplexity
    answers: AnswerMetrics | None = None
    stage: int | None = None

    def value(self, metric: Metric) -> float:
        if metric is ACCURACY and self.answers is not None:
            return self.answers.accuracy
        return self.scores.perplexity

    @property
    def unfinished(self) -> int:
        return 0 if self.answers is None else self.answers.unfinished

    def to_dict(self) -> dict[str, object]:
        if self.answers is None:
            return self.scores.to_dict()
        protocol = self.scores.protocol | self.answers.protocol
        return self.scores.to_dict() | self.answers.to_dict() | {"stage": self.stage, "protocol": protocol}


@dataclass(frozen=True)
class Answers:
    """The answers to a split's questions, in its order, with the rule and the protocol of the comparison."""

    records: list[AnswerRecord]
    rule: AnswerRule
    protocol: dict[str, object]

    def write(self, path: Path) -> None:
        """Write each record as a line of JSON with its checksum, see `AnswerRecord`."""
        lines = (json.dumps(sealed(dataclasses.asdict(record)), ensure_ascii=False) for record in self.records)
        write_text(path, "".join(f"{line}\n" for line in lines))

    def metrics(self) -> AnswerMetrics:
        records, tried = self.records, "attempts" in self.protocol
        passed = [any(self.rule.equal(other, r.expected) for other in r.attempts) for r in records]
        agreed = []
        for r in records:  # by the first of the attempts that most others equal
            votes = [sum(self.rule.equal(other, one) for other in r.attempts) for one in r.attempts]
            voted = r.attempts[votes.index(max(votes))] if votes else ""
            agreed.append(self.rule.equal(voted, r.expected))
        answers = sum(len(record.attempts) for record in records)
        return AnswerMetrics(
            accuracy=statistics.fmean(record.correct for record in records),
            exact_match=statistics.fmean(exact_match(record.answer, record.expected) for record in records),
            f1=statistics.fmean(f1(record.answer, record.expected) for record in records),
            questions=len(records),
            protocol=self.protocol,
            pass_at_k=statistics.fmean(passed) if tried else None,
            majority=statistics.fmean(agreed) if tried else None,
            attempt_tokens=sum(r.attempt_tokens for r in records) / answers if answers else None,
            unfinished=sum(record.asked and not record.finished for record in records),
            not_asked=tuple(record.document for record in records if not record.asked),
        )


def run(
    saved: Saved, options: AnswerOptions = GREEDILY, *, out: Path | None = None, show: bool = False
) -> dict[str, object]:
    """Ask the questions of a split; write the result to `places(out)`.

    Returns:
        `AnswerMetrics.to_dict()`; `tokens_per_question`, `latents_per_question` and `seconds_per_question`, means over
        the greedy answers; `split`, `source`, `detokenizer` and `data_hash` of the questions; and `left_out` if
        `layout.too_long` is `skip` and questions were left out.

    Raises:
        InputError: the source has texts and no questions; errors of `ask` and `Saved.store`.
    """
    saved = options.read_by(saved).at(options.stage, options.latents)
    changes = {
        "answer_rule": options.answer_rule,
        "answer_tokens": options.answer_tokens,
        "batch_size": options.batch_size,
        "max_documents": options.documents,
    }
    saved = saved.scored_by(**{name: value for name, value in changes.items() if value is not None})
    # A model of texts reads questions as text, but the store separates their parts.
    part = options.part(saved)
    store = saved.store(part, layout=None if saved.layout.questions else Packed(), show=show)
    remedy = "it contains texts, use rows of question, steps and answer, or a set such as gsm8k:PATH"
    require(store.meta["kind"] == "records", "source", saved.data.source, remedy)
    split = store.splits[part]
    # A set without splits also provides the examples; a question is never an example for itself.
    examples = split if part == "all" else store.splits.get("train")
    answers = ask(saved, split, options, examples=examples, show=show)
    left_out = store.meta.get("left_out", {}).get("test" if part == "all" else part, 0)
    counts = {"left_out": left_out} if left_out else {}
    asked = [record for record in answers.records if record.asked]
    means = {
        "tokens_per_question": statistics.fmean(record.tokens for record in asked),
        "latents_per_question": statistics.fmean(record.latents or 0 for record in asked),
        "seconds_per_question": statistics.fmean(record.seconds for record in asked),
    }
    result = answers.metrics().to_dict() | means | counts | options.origin(saved, store)
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
    before_batch: Callable[[], None] = lambda: None,
) -> Answers:
    """Return a model's answers to the questions of a split.

    The greedy answers do not depend on the batch size; sampled ones do. A model that was not trained on questions
    continues the question as text, see `free_answer`.

    Args:
        options: shots, attempts, temperature and seed; only `run` uses the other options.
        examples: the records for shots; a question is never an example for itself.
        before_batch: called before each batch; it may raise to end the evaluation.

    Raises:
        InputError: documents without questions, latents for which the tokenizer has no tokens, too few records for
            the shots, or no room for an answer in the model's context; raised before the model answers.
    """
    prompts = QuestionPrompts(saved, split, options, examples)
    if options.thought_noise is not None:
        require_own_thoughts(saved.model.config, "thought_noise", options.thought_noise)
    batches, limit, context = prompts.batches(), prompts.limit, prompts.context
    generation = stops(saved.model, saved.layout.special_ids(saved.tokenizer))
    questions, right_answers = prompts.questions, prompts.right_answers
    rule = rule_of(saved, right_answers.values())
    latents = saved.layout.asked().get("latents")
    records: list[AnswerRecord] = []

    def record(document: int, output: Output, attempts: list[Output], seconds: float) -> AnswerRecord:
        expected, ended = right_answers[document], output.ended
        answer, *others = (answer_in(one.text, expected, saved) for one in (output, *attempts))
        ended = ended or (not saved.answers and free_answer_ended(output.text))
        return AnswerRecord(
            document=document,
            question=questions[document],
            expected=expected,
            text=output.text,
            answer=answer,
            correct=rule.equal(answer, expected),
            finished=ended,
            tokens=output.tokens,
            latents=output.latents or latents,
            seconds=seconds,
            attempts=tuple(others),
            attempt_tokens=sum(attempt.tokens for attempt in attempts),
        )

    with (
        seeded(saved.model, options.seed),
        plainly(saved.model),
        torch.no_grad(),
        progress("Answering", len(right_answers), show=show) as bar,
    ):
        for batch in batches:
            before_batch()
            documents, began = batch["documents"].tolist(), time.perf_counter()
            room = limit if context is None else min(limit, context - batch["input_ids"].shape[1])
            if room < 1:
                records += [AnswerRecord(i, questions[i], right_answers[i], asked=False) for i in documents]
                continue
            rows = {name: batch[name].to(saved.device) for name in ("input_ids", "attention_mask")}
            outputs = _continued(saved, rows, generation | _MOST_LIKELY | {"max_new_tokens": room})
            seconds = (time.perf_counter() - began) / len(documents)
            attempts = _attempts(saved, rows, generation | {"max_new_tokens": room}, options)
            records += [record(*answer, seconds) for answer in zip(documents, outputs, attempts)]
            unfinished = sum(record.asked and not record.finished for record in records)
            accuracy = statistics.fmean(record.correct for record in records)
            bar.update(len(records), f"accuracy {accuracy:.1%}, {unfinished:,} unfinished")
    records.sort(key=lambda record: record.document)
    return Answers(records, rule, prompts.protocol(rule))


class Output(NamedTuple):
    """The new text after a question.

    Attributes:
        tokens: number of new tokens, including the end, without latents.
        latents: number of latents among the new tokens (CoLaR).
        ended: `True` if the model ended the text.
    """

    text: str
    tokens: int
    latents: int
    ended: bool


def _continued(saved: Saved, rows: dict[str, torch.Tensor], generation: dict[str, object]) -> list[Output]:
    """Return the new text after each row."""
    new = saved.model.generate(**rows, **generation)[:, rows["input_ids"].shape[1] :]
    last = torch.tensor(generation["eos_token_id"], device=new.device)
    latent = special_token_ids(saved.tokenizer, sentences=False).get("latent_token_id")
    outputs = []
    for ids in new:
        ends = torch.isin(ids, last).nonzero()
        length = int(ends[0]) + 1 if len(ends) else len(ids)
        latents = 0 if latent is None else int((ids[:length] == latent).sum())
        outputs.append(Output(decode(ids, saved.tokenizer), length - latents, latents, len(ends) > 0))
    return outputs


def _attempts(
    saved: Saved, rows: dict[str, torch.Tensor], generation: dict[str, object], options: AnswerOptions
) -> list[list[Output]]:
    """Return the `options.attempts` further answers to each row."""
    if options.num_beams:
        width = options.num_beams
        beams = {"do_sample": False, "num_beams": width, "num_return_sequences": width}
        outputs = _continued(saved, rows, generation | beams)
        return [outputs[i : i + width] for i in range(0, len(outputs), width)]
    sampling = WHOLE_DISTRIBUTION | {"temperature": options.temperature}
    sampling = sampling if options.temperature > 0 else _MOST_LIKELY
    noise = options.thought_noise
    control = {} if noise is None else {"thought_control": Noise(noise)}
    with temporarily(saved.model.config, **control):
        calls = [_continued(saved, rows, generation | sampling) for _ in range(options.attempts)]
    return [[output[i] for output in calls] for i in range(len(rows["input_ids"]))]
