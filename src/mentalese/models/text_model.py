"""A model with its tokenizer, its reading of text and its scoring."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch

from mentalese.data.batch import Batch
from mentalese.data.config import DataConfig, EvaluationConfig
from mentalese.data.layouts import Layout
from mentalese.errors import InputError
from mentalese.models.base import LanguageModel
from mentalese.models.text_tokenizer import mask_token_id
from mentalese.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class TextModel:
    """A trained model, its tokenizer, and the settings by which it reads, scores and continues text.

    Attributes:
        path: the folder or name that it was loaded from.
        model: the model, in eval mode.
        tokenizer: the tokenizer of its training, markers included.
        data: the text of its training, its tokens and sentences.
        layout: arrangement of texts in its rows and its prompts.
        evaluation: the protocol of its results; whole splits are scored.
        recipe: the recipe of its training; `None` for another project's model.
        chat: prompts are messages of a user, in the tokenizer's chat template, and the model's text is its answer.
    """

    path: str
    model: LanguageModel
    tokenizer: PreTrainedTokenizerBase
    data: DataConfig
    layout: Layout
    evaluation: EvaluationConfig
    recipe: Recipe | None = None
    chat: bool = False

    @property
    def answers(self) -> bool:
        """True if the model answers a prompt; otherwise it continues it."""
        return self.layout.questions or self.chat

    def encode_prompts(self, texts: Sequence[str]) -> Batch:
        """Return prompts for the model to continue or answer, see `Layout.encode_prompts`."""
        mask = mask_token_id(self.model)
        return self.layout.encode_prompts(texts, self.tokenizer, self.data, mask, chat=self.chat)

    def prompt_text(self, prompt: str) -> str:
        """Return a prompt as new text follows it."""
        return f"{prompt}\n" if self.chat else self.layout.prompt_text(prompt)

    @property
    def device(self) -> torch.device:
        """The device of the model's weights."""
        return self.model.device

    def scored_by(self, **protocol: Any) -> Self:
        """Return the model with other fields of its protocol, see `EvaluationConfig`.

        Raises:
            InputError: there is no such field, or the layout does not have such a protocol.
        """
        evaluation = dataclasses.replace(self.evaluation, **protocol)
        self.layout.check_evaluation(evaluation)
        return dataclasses.replace(self, evaluation=evaluation)

    @property
    def estimator(self) -> str:
        """Name of the scoring rule; raises `InputError` if the model does not have it."""
        chosen, names = self.evaluation.estimator, self.model.estimators
        if chosen not in (None, *names):
            raise InputError(f"evaluation.estimator is {chosen!r}: this model has {', '.join(names)}; use one of them")
        return chosen or names[0]

    @property
    def protocol(self) -> dict[str, object]:
        """Tokens, context and estimator of a score, to publish with it."""
        self.layout.check_evaluation(self.evaluation)
        return {
            "tokens": self.evaluation.tokens,
            **self.layout.protocol(self.evaluation, self.data),
            "estimator": self.estimator,
            **self.model.scoring_protocol(self.estimator),
            **self.layout.asked(),
        }
