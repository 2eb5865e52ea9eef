"""Answers to questions: the model goes on from each, greedily and where asked also by drawing, and what it says is held
to the record's own answer.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
import string
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mentalese.data.batch import Batch
from mentalese.data.evaluation import question_batches
from mentalese.data.layouts import Layout
from mentalese.data.tokenizers import decode
from mentalese.errors import InputError
from mentalese.models.adapter import hugging_face_model
from mentalese.models.build import context_length
from mentalese.models.generation import seeded
from mentalese.recipe import DataConfig, EvaluationConfig
from mentalese.screen import progress

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from mentalese.data.store import Split

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, kw_only=True)
class Asking:
    """How questions are asked, beyond once and as they are.

    Attributes:
        shots: so many records of the training split stand before each question, as text, an empty line after each;
            they are drawn anew for each question, from those that leave room for all in the model's context.
        answer_samples: answers drawn for each question, each by a call of `generate` of its own, so that a model that
            infers its thoughts infers them anew.
        num_beams: in their place all beams of a search so wide.
        temperature: of the drawn answers.
        seed: of shots and drawn answers.
    """

    shots: int = 0
    answer_samples: int | None = None
    num_beams: int | None = None
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("shots", 0), ("answer_samples", 1), ("num_beams", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is {value}: give at least {least}")
        if self.answer_samples is not None and self.num_beams is not None:
            raise InputError(
                f"answer_samples is {self.answer_samples} and num_beams is {self.num_beams}: give one of them"
            )
        if not self.temperature > 0:
            raise InputError(f"temperature is {self.temperature}: give a positive number")

    @property
    def attempts(self) -> int:
        """Answers to each question beside the greedy one."""
        return self.answer_samples or self.num_beams or 0


ONCE = Asking()


@dataclass(frozen=True)
class Answered:
    """What a model said to one question.

    Attributes:
        document: the number of the question in its split.
        text: all that the model wrote.
        answer: what of it counts.
        expected: the record's own answer, by `final_answer`.
        correct: whether the two are the same.
        attempts: the answers that were drawn, or those of the beams.
    """

    document: int
    text: str
    answer: str
    expected: str
    correct: bool
    attempts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answers:
    """How often a model answers right.

    Attributes:
        accuracy: the share of questions whose greedy answer is the record's, to the letter.
        exact_match: the same without capitals, punctuation and articles (Rajpurkar et al., "SQuAD", 2016).
        f1: of the answers' words, normalised in the same way; the mean over questions.
        questions: how many were asked.
        protocol: how they were asked.
        pass_at_k: the share of questions to which any of the k attempts of `protocol` is the record's answer, to the
            letter; `None` where there was no attempt.
    """

    accuracy: float
    exact_match: float
    f1: float
    questions: int
    protocol: dict[str, Any]
    pass_at_k: float | None = None

    def to_dict(self) -> dict[str, Any]:
        figures = dataclasses.asdict(self)
        if self.pass_at_k is None:
            del figures["pass_at_k"]
        return figures


def answers(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    split: Split,
    data: DataConfig,
    layout: Layout,
    evaluation: EvaluationConfig,
    *,
    asking: Asking = ONCE,
    examples: Split | None = None,
    device: str | torch.device = "cpu",
    show: bool = False,
) -> Answers:
    """Asks a split's questions; takes and raises what `answered` does."""
    given = answered(
        model, tokenizer, split, data, layout, evaluation, asking=asking, examples=examples, device=device, show=show
    )
    protocol: dict[str, Any] = {
        "decoding": "greedy",
        "answer": "the text after the last #, without commas" if layout.questions else _FREE_ANSWER,
        **layout.asked(),
        "answer_tokens": evaluation.answer_tokens,
        "documents": len(given),
    }
    if asking.shots:
        protocol["shots"] = {"records": asking.shots, "seed": asking.seed}
    if asking.attempts:
        drawn = {"temperature": asking.temperature, "seed": asking.seed, "batch_size": evaluation.batch_size}
        how = {"decoding": "sampled"} | drawn if asking.answer_samples else {"decoding": "beams"}
        protocol["attempts"] = {"k": asking.attempts} | how
    return Answers(
        accuracy=statistics.fmean(each.correct for each in given),
        exact_match=statistics.fmean(_words(each.answer) == _words(each.expected) for each in given),
        f1=statistics.fmean(_f1(_words(each.answer), _words(each.expected)) for each in given),
        questions=len(given),
        protocol=protocol,
        pass_at_k=statistics.fmean(each.expected in each.attempts for each in given) if asking.attempts else None,
    )


def answered(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    split: Split,
    data: DataConfig,
    layout: Layout,
    evaluation: EvaluationConfig,
    *,
    asking: Asking = ONCE,
    examples: Split | None = None,
    device: str | torch.device = "cpu",
    show: bool = False,
) -> list[Answered]:
    """A model's answer to each question of a split, in the split's order.

    The greedy answers do not depend on the batch size; what is drawn does. A model that was not trained on records gets
    the question as a text that it is to go on with, see `free_answer`.

    Args:
        model: keeps the contract, or is a Hugging Face causal LM; left in the mode it came in.
        split: records.
        data: how texts are split into sentences.
        layout: how the model reads text; of questions also the stage and the number of latents.
        evaluation: how many of them, how many at once, and how long an answer may be.
        examples: the records that shots are drawn from; never the question itself.

    Raises:
        InputError: documents that are no records, latents that the tokenizer has no tokens for, too few records for
            the shots, or questions that leave no room for an answer in the model's context; nothing has been asked
            then.
    """
    plain = hugging_face_model(model)
    batches = _batches(plain.config, tokenizer, split, data, layout, evaluation, asking, examples)
    special = layout.special_ids(tokenizer)
    options: dict[str, Any] = {name: special[name] for name in ("pad_token_id", "eos_token_id")}
    options |= {"max_new_tokens": evaluation.answer_tokens}
    given: list[Answered] = []
    count = evaluation.documents(len(split.document_bytes))
    with seeded(plain, asking.seed), torch.no_grad(), progress("Answering", count, show=show) as bar:
        for batch in batches:
            rows = {name: batch[name].to(device) for name in ("input_ids", "attention_mask")}
            said = _go_on(plain, tokenizer, rows, options | {"do_sample": False, "num_beams": 1})
            tries = _attempts(plain, tokenizer, rows, options, asking)
            for i, document in enumerate(batch["documents"].tolist()):
                expected = final_answer(_segment(split, split.document_segments[document + 1] - 1, tokenizer))
                answer, *attempts = (
                    final_answer(text) if layout.questions else free_answer(text, expected)
                    for text in (said[i], *tries[i])
                )
                given.append(Answered(document, said[i], answer, expected, answer == expected, tuple(attempts)))
            bar.update(len(given), f"accuracy {statistics.fmean(each.correct for each in given):.1%}")
    return sorted(given, key=lambda each: each.document)


def _go_on(
    model: Any, tokenizer: PreTrainedTokenizerBase, rows: dict[str, torch.Tensor], options: dict[str, Any]
) -> list[str]:
    new = model.generate(**rows, **options)[:, rows["input_ids"].shape[1] :]
    return [decode(ids, tokenizer) for ids in new]


def _attempts(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    rows: dict[str, torch.Tensor],
    options: dict[str, Any],
    asking: Asking,
) -> list[list[str]]:
    """What the model says to each row, so many times as `asking` says."""
    if asking.num_beams:
        width = asking.num_beams
        beams = {"do_sample": False, "num_beams": width, "num_return_sequences": width}
        said = _go_on(model, tokenizer, rows, options | beams)
        return [said[i : i + width] for i in range(0, len(said), width)]
    # All of the distribution, whatever the model's own generation settings cut off.
    drawn = {"do_sample": True, "num_beams": 1, "temperature": asking.temperature, "top_k": 0, "top_p": 1.0}
    calls = [_go_on(model, tokenizer, rows, options | drawn) for _ in range(asking.attempts)]
    return [[said[i] for said in calls] for i in range(len(rows["input_ids"]))]


def check_room(
    config: Any, split: Split, layout: Layout, evaluation: EvaluationConfig, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Raises `InputError` if a question of the split leaves no room for its answer in the model's context."""
    longest = next(question_batches(split, layout, evaluation, tokenizer))["input_ids"].shape[1]
    _check_longest(config, longest, evaluation)


def _check_longest(config: Any, longest: int, evaluation: EvaluationConfig) -> None:
    context = context_length(config)
    if context is not None and longest + evaluation.answer_tokens > context:
        remedy = f"give at most {context - longest}" if longest < context else "leave out the longest questions"
        raise InputError(
            f"evaluation.answer_tokens is {evaluation.answer_tokens}: the longest question has {longest} tokens and "
            f"the model's context is {context}, {remedy}"
        )


def final_answer(text: str) -> str:
    """What of a text is its answer: all after the last `#`, without commas (Hao et al., "Coconut", 2024)."""
    return text.rpartition("#")[2].replace(",", "").strip()


_FREE_ANSWER = "what follows the first #s of the text up to an empty line, or else the last number there"


def free_answer(text: str, expected: str) -> str:
    """The same for a model that never learnt how an answer ends.

    Of the text up to an empty line, which ends a shot: what follows the first `#`s, to the end of their line, or where
    there is none and a number is expected, the last number; without commas.
    """
    own = text.strip().partition("\n\n")[0].replace(",", "")
    if "#" in own:
        return own.partition("#")[2].lstrip("#").strip().partition("\n")[0].strip()
    numbers = _NUMBER.findall(own) if _NUMBER.fullmatch(expected) else [own]
    return numbers[-1] if numbers else ""


# -- prompts -----------------------------------------------------------------------------------------------------------


def _batches(
    config: Any,
    tokenizer: PreTrainedTokenizerBase,
    split: Split,
    data: DataConfig,
    layout: Layout,
    evaluation: EvaluationConfig,
    asking: Asking,
    examples: Split | None,
) -> Iterator[Batch]:
    """What `question_batches` returns, as text if a model has to read questions so."""
    if layout.questions and not asking.shots:
        check_room(config, split, layout, evaluation, tokenizer)
        return question_batches(split, layout, evaluation, tokenizer)
    count = evaluation.documents(len(split.document_bytes))
    texts = [_segment(split, split.document_segments[i], tokenizer) for i in range(count)]
    if asking.shots:
        texts = _after_shots(texts, config, tokenizer, split, data, layout, evaluation, asking, examples)
    encoded = layout.encode_prompts(texts, tokenizer, data)
    _check_longest(config, encoded["input_ids"].shape[1], evaluation)
    lengths = encoded["attention_mask"].sum(1)
    order = lengths.argsort(descending=True, stable=True)

    def batch(documents: torch.Tensor) -> Batch:
        longest = int(lengths[documents[0]])
        return {name: tensor[documents, -longest:] for name, tensor in encoded.items()} | {"documents": documents}

    return map(batch, order.split(evaluation.batch_size))


def _after_shots(
    questions: list[str],
    config: Any,
    tokenizer: PreTrainedTokenizerBase,
    split: Split,
    data: DataConfig,
    layout: Layout,
    evaluation: EvaluationConfig,
    asking: Asking,
    examples: Split | None,
) -> list[str]:
    """Each question behind examples of its own, an empty line after each."""
    if examples is None:
        raise InputError(f"shots is {asking.shots}: the source has no train split to take them from")
    sizes, context, usable = np.diff(examples.documents), context_length(config), len(examples.document_bytes)
    if context is not None:
        longest = layout.encode_prompts(questions, tokenizer, data)["input_ids"].shape[1]
        # The end of a document, which is in its size, and one more token make an empty line.
        share = (context - evaluation.answer_tokens - longest) // asking.shots
        fitting = np.flatnonzero(sizes + 1 <= share)
    else:
        fitting = np.arange(usable)
    if len(fitting) <= asking.shots:
        raise InputError(
            f"shots is {asking.shots}: only {len(fitting)} of {usable} training records are so short that all fit the "
            f"model's context ({context}), ask with fewer"
        )
    texts = []
    for document, question in enumerate(questions):
        others = fitting[fitting != document] if examples is split else fitting
        drawn = np.random.default_rng([asking.seed, document]).choice(others, asking.shots, replace=False)
        shots = (decode(_tokens(examples, *examples.documents[[i, i + 1]] - [0, 1]), tokenizer) for i in drawn)
        texts.append("\n\n".join([*shots, question]))
    return texts


def _segment(split: Split, segment: int, tokenizer: PreTrainedTokenizerBase) -> str:
    return decode(_tokens(split, split.segments[segment], split.segments[segment + 1]), tokenizer)


def _tokens(split: Split, start: int, stop: int) -> torch.Tensor:
    return torch.from_numpy(split.tokens[start:stop].astype("int64"))


# -- how right an answer is --------------------------------------------------------------------------------------------


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def _f1(words: list[str], expected: list[str]) -> float:
    common = (Counter(words) & Counter(expected)).total()
    return 2 * common / (len(words) + len(expected)) if common else 0.0
