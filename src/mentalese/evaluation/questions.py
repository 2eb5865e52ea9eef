"""The questions of a split as prompts: with shots, in batches, with room for an answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from mentalese.data.batch import Batch
from mentalese.data.config import EvaluationConfig
from mentalese.data.evaluation import by_length, question_batches
from mentalese.data.layouts import Layout
from mentalese.data.split import Split
from mentalese.data.store import before_preparing
from mentalese.data.tokenizers import Turn, decode, decode_after, question_text, user_turn
from mentalese.errors import InputError, require
from mentalese.evaluation.answer_rule import FINAL_ANSWER, FREE_ANSWER, AnswerRule, final_answer, free_answer
from mentalese.evaluation.options import AnswerOptions
from mentalese.models.build import context_length
from mentalese.models.saved import Saved
from mentalese.values import shown


def answer_limit(evaluation: EvaluationConfig, layout: Layout, splits: Iterable[Split]) -> int:
    """Return the maximum of new tokens in an answer.

    It is `evaluation.answer_tokens`, or the length of the longest steps and answer of the splits, if that is more.
    """
    return max(evaluation.answer_tokens, *(int(layout.answer_lengths(split).max(initial=0)) for split in splits))


def rule_of(saved: Saved, answers: Iterable[str]) -> AnswerRule:
    """Return the rule by which a model's answers are compared with these right ones."""
    return AnswerRule.of(before_preparing(saved.data).source, answers, saved.evaluation.answer_rule)


def answer_in(text: str, expected: str | None, saved: Saved) -> str:
    """Return the answer in a model's text: `final_answer` if it was trained to end one, else `free_answer`.

    Where the right answer is not known, a free text is the answer as a whole.
    """
    if saved.layout.questions:
        return final_answer(text)
    return text if expected is None else free_answer(text, expected, whole=saved.chat)


def check_room(saved: Saved, split: Split) -> None:
    """Raise `InputError` if a question leaves no room for `evaluation.answer_tokens` in the model's context."""
    batches = question_batches(split, saved.layout, saved.evaluation, saved.tokenizer)
    longest = next(batches)["input_ids"].shape[1]
    context, answer_tokens = context_length(saved.model.config), saved.evaluation.answer_tokens
    if context is not None:
        remedy = f"the longest question has {longest} tokens and the model's context is {context}, "
        remedy += f"set at most {context - longest}" if longest < context else "remove the longest questions"
        if context - answer_tokens > 1:
            remedy += f", or set layout.too_long=skip and layout.sequence_length={context - answer_tokens}"
        require(longest + answer_tokens <= context, "evaluation.answer_tokens", answer_tokens, remedy)


@dataclass(frozen=True)
class QuestionPrompts:
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
        """Questions to ask, by their number in the split."""
        return {number: self._question(self.split, number) for number in self._numbers}

    @cached_property
    def right_answers(self) -> dict[int, str]:
        last = {number: int(self.split.document_segments[number + 1]) - 1 for number in self._numbers}
        return {
            number: final_answer(decode(self.split.segment(segment).tolist(), self.saved.tokenizer))
            for number, segment in last.items()
        }

    @cached_property
    def _numbers(self) -> list[int]:
        return self.saved.evaluation.chosen(len(self.split.document_bytes)).tolist()

    @cached_property
    def _turn(self) -> Turn | None:
        return user_turn(self.saved.tokenizer)

    def _question(self, split: Split, number: int) -> str:
        question = split.segment(int(split.document_segments[number])).tolist()
        return question_text(question, self.saved.tokenizer, self._turn)

    def _record(self, split: Split, number: int) -> str:
        """Return a record's question, steps and answer."""
        ids = split.tokens[split.documents[number] : split.documents[number + 1] - 1].tolist()
        length = len(split.segment(int(split.document_segments[number])))
        return self._question(split, number) + decode_after(ids, length, self.saved.tokenizer)

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
            if options.thought_noise is not None:
                sampling["thought_noise"] = options.thought_noise
            protocol["attempts"] = {"k": options.attempts, "decoding": "sampled"} | sampling
        elif options.attempts:
            protocol["attempts"] = {"k": options.attempts, "decoding": "beams"}
        return protocol

    def batches(self) -> list[Batch]:
        """Return the batches of `question_batches`; as text for models of text and with shots.

        A question that leaves less room than the limit has a separate batch.

        Raises:
            InputError: not even the shortest question leaves room for its answer in the model's context.
        """
        saved, room = self.saved, None if self.context is None else self.context - self.limit
        if saved.layout.questions and not self.options.shots:
            batches = [*question_batches(self.split, saved.layout, saved.evaluation, saved.tokenizer, longest=room)]
        else:
            numbers, encoded = np.array([*self.questions]), self._encoded(self._shots() if self.options.shots else None)
            lengths, batches = encoded["attention_mask"].sum(1).numpy(), []
            for rows in by_length(lengths, saved.evaluation.batch_size, room):
                tensors = {name: tensor[rows, -int(lengths[rows[0]]) :] for name, tensor in encoded.items()}
                batches.append(tensors | {"documents": torch.from_numpy(numbers[rows])})
        shortest = int(batches[-1]["attention_mask"].sum(1).min())
        answer_tokens = self.options.answer_tokens or saved.evaluation.answer_tokens
        if self.context is not None:
            free = self.context - shortest
            remedy = f"the shortest question has {shortest} tokens and the model's context is {self.context}, "
            remedy += f"set at most {free}" if free > 0 else "use shorter questions"
            require(answer_tokens <= free, "answer_tokens", answer_tokens, remedy)
        return batches

    def _encoded(self, before: list[str] | None = None) -> Batch:
        """Return the prompts of all questions, for a chat model as messages; `before`: the text before each."""
        saved, texts = self.saved, [*self.questions.values()]
        if saved.chat:
            texts = [text.removesuffix("\n") for text in texts]
        return saved.layout.encode_prompts(texts, saved.tokenizer, saved.data, before=before, chat=saved.chat)

    def _shots(self) -> list[str]:
        """Return the examples before each question, an empty line after each example."""
        examples, shots, context = self.examples, self.options.shots, self.context
        if examples is None:
            raise InputError(f"shots is {shots}: the source has no train split to draw them from; remove it")
        sizes, usable = np.diff(examples.documents), len(examples.document_bytes)
        fitting = np.arange(usable)
        if context is not None:
            lengths = self._encoded()["attention_mask"].sum(1)
            # Questions too long for any answer do not limit the shots of the others.
            room = lengths <= context - self.limit
            longest = int(lengths[room].max()) if room.any() else context
            # The end of a document, which its size includes, and one more token make an empty line.
            fitting = np.flatnonzero(sizes + 1 <= (context - self.limit - longest) // shots)
        remedy = f"only {len(fitting)} of {usable} training records are short enough that so many fit into the model's "
        remedy += "context, set fewer"
        require(len(fitting) >= shots, "shots", shots, remedy)
        texts_before = []
        for document, question in self.questions.items():
            others = fitting[fitting != document] if examples is self.split else fitting
            drawn = self._drawn(examples, others, question, document)
            texts_before.append("".join(f"{self._record(examples, i)}\n\n" for i in drawn))
        return texts_before

    def _drawn(self, examples: Split, others: np.ndarray, question: str, document: int) -> np.ndarray:
        """Return the numbers of a question's shots; records of the same question are replaced.

        Capitals and spaces do not matter.
        """
        shots, generator = self.options.shots, np.random.default_rng([self.options.seed, document])
        while True:
            remedy = f"only {len(others)} training records have another question than {shown(question.strip())}"
            require(len(others) >= shots, "shots", shots, f"{remedy}, set fewer")
            numbers = generator.choice(others, shots, replace=False)
            texts = (self._question(examples, i) for i in numbers)
            words = question.casefold().split()
            same = [number for number, text in zip(numbers, texts) if text.casefold().split() == words]
            if not same:
                return numbers
            others = np.setdiff1d(others, same)
