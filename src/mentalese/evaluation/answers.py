"""Answers to questions: the model continues each question, greedily and if asked also by sampling, and its answers are
compared with the record's own.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mentalese.data.batch import Batch
from mentalese.data.evaluation import question_batches
from mentalese.data.layouts import Packed
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
)
from mentalese.evaluation.options import AnswerOptions
from mentalese.models.build import context_length
from mentalese.models.generation import seeded
from mentalese.models.saved import Saved
from mentalese.screen import progress

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from mentalese.data.store import Split

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
        attempts: the sampled answers, or those of the beams.
    """

    document: int
    text: str
    answer: str
    expected: str
    correct: bool
    attempts: tuple[str, ...] = ()


@dataclass(frozen=True)
class AnswerMetrics:
    """How often a model answers correctly.

    Attributes:
        accuracy: the share of questions whose greedy answer equals the record's, by the rule of the protocol.
        exact_match: the share of questions with `answer_rule.exact_match`.
        f1: the mean of `answer_rule.f1` over questions.
        questions: the number of questions.
        protocol: how they were asked.
        pass_at_k: the share of questions for which any of the k attempts of `protocol` equals the record's answer;
            `None` without attempts.
    """

    accuracy: float
    exact_match: float
    f1: float
    questions: int
    protocol: dict[str, Any]
    pass_at_k: float | None = None

    def to_dict(self) -> dict[str, Any]:
        metrics = dataclasses.asdict(self)
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
    protocol: dict[str, Any]

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
        )


def run(saved: Saved, options: AnswerOptions = GREEDILY, *, show: bool = False) -> dict[str, Any]:
    """Asks the questions of a split.

    Returns:
        `AnswerMetrics.to_dict()` with `split`, `source`, `detokenizer` and `data_hash` of the questions.

    Raises:
        InputError: the source has texts and no questions; what `answer_records` and `Saved.store` raise.
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
    metrics = answer_metrics(saved, split, options, examples=examples, show=show)
    return metrics.to_dict() | options.origin(saved, store)


def answer_metrics(
    saved: Saved,
    split: Split,
    options: AnswerOptions = GREEDILY,
    *,
    examples: Split | None = None,
    show: bool = False,
) -> AnswerMetrics:
    """The shares of a split's questions that the model answers correctly. Takes and raises what `ask` does."""
    return ask(saved, split, options, examples=examples, show=show).metrics()


def answer_records(
    saved: Saved,
    split: Split,
    options: AnswerOptions = GREEDILY,
    *,
    examples: Split | None = None,
    show: bool = False,
) -> list[AnswerRecord]:
    """A model's answer to each question of a split, in the split's order. Takes and raises what `ask` does."""
    return ask(saved, split, options, examples=examples, show=show).records


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
            the shots, or questions that leave no room for an answer in the model's context; nothing has been asked
            then.
    """
    batches = _batches(saved, split, options, examples)
    special = saved.layout.special_ids(saved.tokenizer)
    generation: dict[str, Any] = {name: special[name] for name in ("pad_token_id", "eos_token_id")}
    generation |= {"max_new_tokens": saved.evaluation.answer_tokens}
    wanted = _right_answers(saved, split)
    rule = AnswerRule.of(source_name(saved.data), wanted.values(), saved.evaluation.answer_rule)
    records: list[AnswerRecord] = []
    with (
        seeded(saved.hugging_face, options.seed),
        torch.no_grad(),
        progress("Answering", len(wanted), show=show) as bar,
    ):
        for batch in batches:
            rows = {name: batch[name].to(saved.device) for name in ("input_ids", "attention_mask")}
            texts = _continued(saved, rows, generation | {"do_sample": False, "num_beams": 1})
            attempts = _attempts(saved, rows, generation, options)
            for i, document in enumerate(batch["documents"].tolist()):
                expected = wanted[document]
                answer, *others = (
                    final_answer(text) if saved.layout.questions else free_answer(text, expected)
                    for text in (texts[i], *attempts[i])
                )
                correct = rule.equal(answer, expected)
                records.append(AnswerRecord(document, texts[i], answer, expected, correct, tuple(others)))
            bar.update(len(records), f"accuracy {statistics.fmean(record.correct for record in records):.1%}")
    records.sort(key=lambda record: record.document)
    return Answers(records, rule, _protocol(saved, split, options, rule))


def _right_answers(saved: Saved, split: Split) -> dict[int, str]:
    """The right answer to each question that is asked, by its number in the split."""
    numbers = saved.evaluation.chosen(len(split.document_bytes)).tolist()
    last = {number: int(split.document_segments[number + 1]) - 1 for number in numbers}
    return {number: final_answer(_segment(split, segment, saved.tokenizer)) for number, segment in last.items()}


def _protocol(saved: Saved, split: Split, options: AnswerOptions, rule: AnswerRule) -> dict[str, Any]:
    protocol: dict[str, Any] = {
        "decoding": "greedy",
        "answer": FINAL_ANSWER if saved.layout.questions else FREE_ANSWER,
        "answer_rule": rule.name,
        **saved.layout.asked(),
        "answer_tokens": saved.evaluation.answer_tokens,
        **saved.evaluation.how_many(len(split.document_bytes)),
    }
    if options.shots:
        protocol["shots"] = {"records": options.shots, "seed": options.seed}
    if options.attempts:
        sampling = {"temperature": options.temperature, "seed": options.seed, "batch_size": saved.evaluation.batch_size}
        how = {"decoding": "sampled"} | sampling if options.answer_samples else {"decoding": "beams"}
        protocol["attempts"] = {"k": options.attempts} | how
    return protocol


def _continued(saved: Saved, rows: dict[str, torch.Tensor], generation: dict[str, Any]) -> list[str]:
    """The new text after each row."""
    new = saved.hugging_face.generate(**rows, **generation)[:, rows["input_ids"].shape[1] :]
    return [decode(ids, saved.tokenizer) for ids in new]


def _attempts(
    saved: Saved, rows: dict[str, torch.Tensor], generation: dict[str, Any], options: AnswerOptions
) -> list[list[str]]:
    """The `options.attempts` further answers to each row."""
    if options.num_beams:
        width = options.num_beams
        beams = {"do_sample": False, "num_beams": width, "num_return_sequences": width}
        texts = _continued(saved, rows, generation | beams)
        return [texts[i : i + width] for i in range(0, len(texts), width)]
    # The whole distribution, whatever the model's own generation settings cut off.
    sampling = {"do_sample": True, "num_beams": 1, "temperature": options.temperature, "top_k": 0, "top_p": 1.0}
    calls = [_continued(saved, rows, generation | sampling) for _ in range(options.attempts)]
    return [[texts[i] for texts in calls] for i in range(len(rows["input_ids"]))]


def check_room(saved: Saved, split: Split) -> None:
    """Raises `InputError` if a question of the split leaves no room for its answer in the model's context."""
    batches = question_batches(split, saved.layout, saved.evaluation, saved.tokenizer)
    _check_longest(saved, next(batches)["input_ids"].shape[1])


def _check_longest(saved: Saved, longest: int) -> None:
    context, answer_tokens = context_length(saved.model.config), saved.evaluation.answer_tokens
    if context is not None and longest + answer_tokens > context:
        remedy = f"set at most {context - longest}" if longest < context else "remove the longest questions"
        if context - answer_tokens > 1:
            remedy += f", or set layout.too_long=skip and layout.sequence_length={context - answer_tokens}"
        raise InputError(
            f"evaluation.answer_tokens is {answer_tokens}: the longest question has {longest} tokens and "
            f"the model's context is {context}, {remedy}"
        )


# -- prompts -----------------------------------------------------------------------------------------------------------


def _batches(saved: Saved, split: Split, options: AnswerOptions, examples: Split | None) -> Iterator[Batch]:
    """What `question_batches` returns; as text for models of text and with shots."""
    if saved.layout.questions and not options.shots:
        check_room(saved, split)
        return question_batches(split, saved.layout, saved.evaluation, saved.tokenizer)
    numbers = saved.evaluation.chosen(len(split.document_bytes))
    texts = [_segment(split, split.document_segments[i], saved.tokenizer) for i in numbers]
    if options.shots:
        texts = _after_shots(dict(zip(numbers.tolist(), texts)), saved, split, options, examples)
    encoded = saved.layout.encode_prompts(texts, saved.tokenizer, saved.data)
    _check_longest(saved, encoded["input_ids"].shape[1])
    lengths = encoded["attention_mask"].sum(1)
    order = lengths.argsort(descending=True, stable=True)

    def batch(rows: torch.Tensor) -> Batch:
        longest = int(lengths[rows[0]])
        asked = {name: tensor[rows, -longest:] for name, tensor in encoded.items()}
        return asked | {"documents": torch.from_numpy(numbers)[rows]}

    return map(batch, order.split(saved.evaluation.batch_size))


def _after_shots(
    questions: dict[int, str], saved: Saved, split: Split, options: AnswerOptions, examples: Split | None
) -> list[str]:
    """Each question, by its number in the split, after examples of its own, with an empty line after each."""
    if examples is None:
        raise InputError(f"shots is {options.shots}: the source has no train split to draw them from; remove it")
    tokenizer, context = saved.tokenizer, context_length(saved.model.config)
    sizes, usable = np.diff(examples.documents), len(examples.document_bytes)
    if context is not None:
        longest = saved.layout.encode_prompts([*questions.values()], tokenizer, saved.data)["input_ids"].shape[1]
        # The end of a document, which its size includes, and one more token make an empty line.
        share = (context - saved.evaluation.answer_tokens - longest) // options.shots
        fitting = np.flatnonzero(sizes + 1 <= share)
    else:
        fitting = np.arange(usable)
    if len(fitting) <= options.shots:
        raise InputError(
            f"shots is {options.shots}: only {len(fitting)} of {usable} training records are so short that all of them "
            f"fit the model's context ({context}); set fewer"
        )
    texts = []
    for document, question in questions.items():
        others = fitting[fitting != document] if examples is split else fitting
        chosen = np.random.default_rng([options.seed, document]).choice(others, options.shots, replace=False)
        shots = (decode(_tokens(examples, *examples.documents[[i, i + 1]] - [0, 1]), tokenizer) for i in chosen)
        texts.append("\n\n".join([*shots, question]))
    return texts


def _segment(split: Split, segment: int, tokenizer: PreTrainedTokenizerBase) -> str:
    return decode(torch.from_numpy(split.segment(segment)), tokenizer)


def _tokens(split: Split, start: int, end: int) -> torch.Tensor:
    return torch.from_numpy(split.tokens[start:end].astype("int64"))
