"""Options of each evaluation, shared by the commands and the Python API.

This module does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Strict
from tyro.conf import arg

from mentalese.data.config import AnswerRuleName, Detokenizer
from mentalese.errors import require
from mentalese.values import (
    NonNegative,
    NonNegativeNumber,
    Place,
    Positive,
    PositiveNumber,
    checked_dataclass,
)

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

    from mentalese.data.store import TokenStore
    from mentalese.models.saved import Saved

Decoding = Literal["greedy", "multinomial"]
Kind = Literal["unconditional", "conditional"]


def _split(names: object) -> object:
    """Split names that are joined by commas, as one text or in a list."""
    parts = [names] if isinstance(names, str) else names
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        return names
    return tuple(name.strip() for part in parts for name in part.split(","))


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not name or names.count(name) > 1:
            raise ValueError(f"name {name} once" if name else "use one or more names, joined by commas")
    return names


Names = Annotated[tuple[str, ...], Strict(False), BeforeValidator(_split), AfterValidator(_each_once)]
"""Names, each once; those in one text are joined by commas."""


@checked_dataclass("")
class TextOptions:
    """The text that a model reads.

    Attributes:
        source: the text (not set: what the model was trained on).
        text_column: the column of the text, if a file has several.
        detokenizer: read a tokenised set of this format as running text.
        split: the part of the text to read; all: the whole of a text without splits (not set: all for one file that the
            model was not trained on, else test).
    """

    source: Annotated[str | None, arg(name="data")] = None
    text_column: str | None = None
    detokenizer: Detokenizer | None = None
    split: Literal["train", "validation", "test", "all"] | None = None

    def read_by(self, saved: Saved) -> Saved:
        """Return the model with this text."""
        return saved.on(self.source, text_column=self.text_column, detokenizer=self.detokenizer)

    def part(self, *readers: Saved) -> str:
        """Return the split that models with this text read.

        A model's own text has splits; another file is read as a whole.
        """
        from mentalese.data.sources import is_one_text

        if self.split is not None or self.source is None:
            return self.split or "test"
        return "all" if is_one_text(self.source) and not any(reader.reads_own_text for reader in readers) else "test"

    def origin(self, saved: Saved, store: TokenStore) -> dict[str, str | None]:
        """Which text a result refers to."""
        return {
            "split": self.split or ("all" if "all" in store.splits else "test"),
            "source": saved.data.source,
            "detokenizer": saved.data.detokenizer,
            "data_hash": store.meta["data_hash"],
        }


@checked_dataclass("")
class AblationOptions(TextOptions):
    """The text that is scored, or whose questions are asked.

    Attributes:
        documents: only the first N documents, or questions.
        each: also replace only one thought at a time. Of texts, thoughts are counted back from the part (sentence,
            chunk) of the token that is scored; of documents longer than the context only the beginning is read.
    """

    documents: Positive | None = None
    each: bool = False


@checked_dataclass("")
class EvaluationOptions(TextOptions):
    """Options of `mentalese eval`; those that are not set are as in the model's recipe.

    An option that none of the tasks uses is refused: options of the text belong to perplexity.

    Attributes:
        tasks: names joined by commas: perplexity, reversal, lambada_openai, lambada_standard, wikitext, hellaswag,
            blimp, piqa, arc_easy, arc_challenge, sciq, winogrande, or hub:NAME for any task of lm-eval, such as
            hub:race.
        estimators: the scoring rules of a model that has several, names joined by commas.
        joined: score all documents joined by their ends, in blocks, instead of each by itself.
        context_length: tokens per block, or per window.
        documents: score only the first N documents.
        stage: score questions at this stage of the curriculum (not set: the last one of training).
        latents: number of latent tokens after the question (not set: as in training).
        limit: ask only the first N questions of each file, or of each task of lm-eval.
        shots: examples before each question of hub: tasks, as lm-eval draws them (not set: the task's own number).
            Tasks that lm-eval always gives without examples have none.
        task_files: the folder of the questions of lambada_openai and the other zero-shot sets.
    """

    tasks: Names = ("perplexity",)
    estimators: Names = ()
    joined: bool = False
    context_length: Positive | None = None
    documents: Positive | None = None
    stage: NonNegative | None = None
    latents: NonNegative | None = None
    limit: Positive | None = None
    shots: NonNegative | None = None
    task_files: Place | None = None


@checked_dataclass("")
class AnswerOptions(TextOptions):
    """Options of answers; those that are not set are as in the model's recipe.

    Attributes:
        shots: number of training questions with their answers before each question, as text; drawn again for each
            question, from those short enough to leave room for all of them in the model's context.
        answer_samples: sample k answers per question and report pass@k. Each is a call of `generate` of its own, so a
            model that infers its thoughts infers them again.
        num_beams: use all beams of a search of this width as the answers instead.
        temperature: temperature of sampled answers; 0 takes the most likely tokens, which needs thought_noise.
        thought_noise: normal noise on each thought of sampled answers, as a share of the thoughts' root mean square.
        seed: for shots and sampled answers.
        answer_tokens: the most new tokens of an answer (not set: as in training, or as many as the longest steps and
            answer have).
        answer_rule: compare answers to the letter (text), by value where the right answer is a number (number), or by
            the letter of a choice (choice).
        documents: ask only the first N questions.
        batch_size: questions that are answered together (not set: as in training); seconds per question depend on it,
            and sampled answers.
        stage: ask at this stage of the curriculum (not set: the last one of training).
        latents: number of latent tokens after the question (not set: as in training).
    """

    shots: NonNegative = 0
    answer_samples: Positive | None = None
    num_beams: Annotated[Positive, Field(ge=2)] | None = None
    temperature: NonNegativeNumber = 1.0
    thought_noise: PositiveNumber | None = None
    seed: NonNegative = 0
    answer_tokens: Positive | None = None
    answer_rule: AnswerRuleName | None = None
    documents: Positive | None = None
    batch_size: Positive | None = None
    stage: NonNegative | None = None
    latents: NonNegative | None = None

    def __post_init__(self) -> None:
        sampled, beams = self.answer_samples is not None, self.num_beams is not None
        require(not (sampled and beams), "num_beams", self.num_beams, "answer_samples is set too, set one of them")
        for name, default in (("temperature", 1.0), ("thought_noise", None)):
            value = getattr(self, name)
            remedy = "it is of sampled answers; remove it, or set answer_samples"
            require(value == default or sampled, name, value, remedy)
        differ = self.temperature > 0 or self.thought_noise is not None
        require(differ, "temperature", self.temperature, "all answers are then the same, set thought_noise too")

    @property
    def attempts(self) -> int:
        """Answers per question in addition to the greedy one."""
        return self.answer_samples or self.num_beams or 0


@checked_dataclass("")
class SampleOptions(TextOptions):
    """Options of samples, and of the model that scores them.

    Attributes:
        judge: the model that scores the samples, PATH or hub:NAME; required.
        kind: sequences from nothing, continuations of the beginnings of documents, or both.
        samples: number of sequences (default 64), or of prompts (default 1,000, or all there are).
        sample_tokens: new tokens per sample (not set: as many as the model's context has room for, at most 1,024; after
            a prompt 50).
        prompt_tokens: tokens per prompt.
        draws: multinomial continuations of each prompt.
        decoding: greedy or multinomial, from the whole distribution (not set: both).
        temperature: temperature of multinomial sampling.
        seed: for sampling.
    """

    judge: str | None = None
    kind: Literal["unconditional", "conditional", "both"] = "unconditional"
    samples: Positive | None = None
    sample_tokens: Positive | None = None
    prompt_tokens: Positive = 50
    draws: Positive = 5
    decoding: Decoding | None = None
    temperature: PositiveNumber = 1.0
    seed: NonNegative = 0

    def __post_init__(self) -> None:
        no_prompts = "unconditional samples have no prompts; remove it, or set kind to 'conditional' or 'both'"
        no_draws = "greedy decoding draws nothing; remove it, or set decoding to 'multinomial'"
        unused = {"draws": no_draws, "temperature": no_draws} if self.decoding == "greedy" else {}
        if self.kind == "unconditional":
            unused |= dict.fromkeys(("source", "text_column", "detokenizer", "split", "prompt_tokens"), no_prompts)
            unused.setdefault("draws", no_prompts)
        for name, remedy in unused.items():
            value = getattr(self, name)
            require(value == self.__dataclass_fields__[name].default, name, value, remedy)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return ("unconditional", "conditional") if self.kind == "both" else (self.kind,)

    @property
    def decodings(self) -> tuple[Decoding, ...]:
        return (self.decoding,) if self.decoding else ("greedy", "multinomial")


@dataclass(frozen=True)
class Questions:
    """Questions from a set of local files, or from a task, group or tag of lm-eval.

    Attributes:
        tasks: the result of `lm_eval.tasks.TaskManager.load`; for a set one task per file, by the file's name.
        limit: the most questions of each file or task.
        shots: examples before each question; `None`: the task's default.
        data_hash: hash of the files; `None` for tasks of lm-eval.
    """

    name: str
    tasks: TaskDict
    limit: int | None
    shots: int | None = None
    data_hash: str | None = None
