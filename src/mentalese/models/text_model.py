"""A model with its tokenizer, its reading of text and its scoring."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch

from mentalese.data.config import DataConfig, EvaluationConfig
from mentalese.data.layouts import Layout
from mentalese.errors import InputError
from mentalese.models.base import LanguageModel
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
    """

    path: str
    model: LanguageModel
    tokenizer: PreTrainedTokenizerBase
    data: DataConfig
    layout: Layout
    evaluation: EvaluationConfig
    recipe: Recipe | None = None

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
