"""Answers to questions: the model goes on greedily from each, and what it says is held to the record's own answer."""

from __future__ import annotations

import dataclasses
import re
import statistics
import string
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mentalese.data.batches import decode, question_batches
from mentalese.errors import InputError
from mentalese.evaluate.perplexity import evaluation_mode
from mentalese.models.auto import context_length, hugging_face_model
from mentalese.models.base import Batch
from mentalese.recipe import DataConfig, EvaluationConfig
from mentalese.screen import progress

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from mentalese.data.store import Split

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Answered:
    """What a model said to one question.

    Attributes:
        document: the number of the question in its split.
        text: all that the model wrote.
        answer: what of it counts, see `final_answer`.
        expected: the record's own answer, by the same rule.
        correct: whether the two are the same.
    """

    document: int
    text: str
    answer: str
    expected: str
    correct: bool


@dataclass(frozen=True)
class Answers:
    """How often a model answers right.

    Attributes:
        accuracy: the share of questions whose answer is the record's, to the letter.
        exact_match: the same without capitals, punctuation and articles (Rajpurkar et al., "SQuAD", 2016).
        f1: of the answers' words, normalised in the same way; the mean over questions.
        questions: how many were asked.
        protocol: how they were asked.
    """

    accuracy: float
    exact_match: float
    f1: float
    questions: int
    protocol: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def answers(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    split: Split,
    data: DataConfig,
    evaluation: EvaluationConfig,
    special: dict[str, int],
    *,
    device: str | torch.device = "cpu",
    show: bool = False,
) -> Answers:
    """Asks a split's questions; takes and raises what `answered` does."""
    given = answered(model, tokenizer, split, data, evaluation, special, device=device, show=show)
    return Answers(
        accuracy=statistics.fmean(each.correct for each in given),
        exact_match=statistics.fmean(_words(each.answer) == _words(each.expected) for each in given),
        f1=statistics.fmean(_f1(_words(each.answer), _words(each.expected)) for each in given),
        questions=len(given),
        protocol={
            "decoding": "greedy",
            "answer": "the text after the last #, without commas",
            "stage": data.stage,
            "latents": data.latents_at(data.stage) if data.has_latents else None,
            "answer_tokens": evaluation.answer_tokens,
            "documents": len(given),
        },
    )


def answered(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    split: Split,
    data: DataConfig,
    evaluation: EvaluationConfig,
    special: dict[str, int],
    *,
    device: str | torch.device = "cpu",
    show: bool = False,
) -> list[Answered]:
    """A model's answer to each question of a split, in the split's order; it does not depend on the batch size.

    Args:
        model: keeps the contract, or is a Hugging Face causal LM; left in the mode it came in.
        data: at which stage, and with how many latents, the questions are asked.
        evaluation: how many of them, how many at once, and how long an answer may be.
        special: the tokenizer's marker ids, from `special_token_ids`.

    Raises:
        InputError: documents that are no records, latents that the tokenizer has no tokens for, or questions that
            leave no room for an answer in the model's context; nothing has been asked then.
    """
    plain = hugging_face_model(model)
    check_room(plain.config, split, data, evaluation, special)
    options = {name: special[name] for name in ("pad_token_id", "eos_token_id")}
    options |= {"max_new_tokens": evaluation.answer_tokens, "do_sample": False, "num_beams": 1}
    given: list[Answered] = []
    count = evaluation.documents(len(split.document_bytes))
    with evaluation_mode(plain), torch.no_grad(), progress("Answering", count, show=show) as bar:
        for batch in _questions(split, data, evaluation, special):
            rows = {name: batch[name].to(device) for name in ("input_ids", "attention_mask")}
            new = plain.generate(**rows, **options)[:, rows["input_ids"].shape[1] :]
            for document, ids in zip(batch["documents"].tolist(), new):
                text, expected = decode(ids, tokenizer), final_answer(_last_segment(split, document, tokenizer))
                answer = final_answer(text)
                given.append(Answered(document, text, answer, expected, answer == expected))
            bar.update(len(given), f"accuracy {statistics.fmean(each.correct for each in given):.1%}")
    return sorted(given, key=lambda each: each.document)


def check_room(
    config: Any, split: Split, data: DataConfig, evaluation: EvaluationConfig, special: dict[str, int]
) -> None:
    """Raises `InputError` where a question of the split leaves no room for its answer in the model's context."""
    context, longest = context_length(config), next(_questions(split, data, evaluation, special))["input_ids"].shape[1]
    if context is not None and longest + evaluation.answer_tokens > context:
        remedy = f"give at most {context - longest}" if longest < context else "leave out the longest questions"
        raise InputError(
            f"evaluation.answer_tokens is {evaluation.answer_tokens}: the longest question has {longest} tokens and "
            f"the model's context is {context}, {remedy}"
        )


def final_answer(text: str) -> str:
    """What of a text is its answer: all after the last `#`, without commas (Hao et al., "Coconut", 2024)."""
    return text.rpartition("#")[2].replace(",", "").strip()


def _questions(
    split: Split, data: DataConfig, evaluation: EvaluationConfig, special: dict[str, int]
) -> Iterator[Batch]:
    """The longest first; a record that is too long to train on can be asked all the same, its steps are not read."""
    return question_batches(split, dataclasses.replace(data, sequence_length=sys.maxsize), evaluation, special)


def _last_segment(split: Split, document: int, tokenizer: PreTrainedTokenizerBase) -> str:
    last = split.document_segments[document + 1] - 1
    tokens = split.tokens[split.segments[last] : split.segments[last + 1]]
    return decode(torch.from_numpy(tokens.astype("int64")), tokenizer)


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def _f1(words: list[str], expected: list[str]) -> float:
    common = (Counter(words) & Counter(expected)).total()
    return 2 * common / (len(words) + len(expected)) if common else 0.0
