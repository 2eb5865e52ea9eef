"""Validations and the test of a run: their protocol at each step, and checks before training."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from mentalese.data.evaluation import evaluation_batches
from mentalese.data.layouts import Layout
from mentalese.data.store import TokenStore
from mentalese.data.tokenizers import decode, question_text, user_turn
from mentalese.errors import require
from mentalese.evaluation.answers import SplitResult, ask
from mentalese.evaluation.metric import ACCURACY, METRICS
from mentalese.evaluation.questions import answer_limit, check_room
from mentalese.models.base import LanguageModel
from mentalese.models.build import check_length, context_length
from mentalese.models.saved import Saved
from mentalese.recipe import EvaluationConfig
from mentalese.training.plan import Plan

SAMPLES = 2  # without evaluation.sample_prompts
TRIED = 50  # openings, until enough of them leave room for an answer


class Validation:
    """The validations and the test of a run, whose folder is `out`.

    Attributes:
        metric: the metric by which the best model is chosen.
        asks: questions are answered.
    """

    def __init__(self, plan: Plan, store: TokenStore, out: Path) -> None:
        self.plan, self.store, self.out = plan, store, out
        self.recipe, self.tokenizer = plan.recipe, plan.tokenizer
        self.metric = METRICS[self.recipe.evaluation.metric]
        self.asks = self.metric is ACCURACY
        self._limits: dict[Layout, int] = {}

    def saved(self, model: LanguageModel, layout: Layout) -> Saved:
        """Return the model in training as one that is read with this layout."""
        return Saved(
            path=str(self.out),
            model=model,
            tokenizer=self.tokenizer,
            data=self.recipe.data,
            layout=layout,
            evaluation=self.protocol(layout),
            recipe=self.recipe,
        )

    def protocol(self, layout: Layout) -> EvaluationConfig:
        """Return the recipe's protocol, in which answers may be as long as the longest steps and answer."""
        evaluation = self.recipe.evaluation
        if not self.asks:
            return evaluation
        if layout not in self._limits:
            self._limits[layout] = answer_limit(evaluation, layout, self.store.splits.values())
        return dataclasses.replace(evaluation, answer_tokens=self._limits[layout])

    def score(
        self,
        name: str,
        saved: Saved,
        *,
        show: bool = False,
        out: Path | None = None,
        before_batch: Callable[[], None] = lambda: None,
    ) -> SplitResult:
        """Score a split; of questions also the answers, which are written to `out`."""
        split = self.store.splits[name]
        scores = saved.perplexity(split, show=show, before_batch=before_batch)
        if not self.asks:
            return SplitResult(scores)
        answers = ask(saved, split, show=show, before_batch=before_batch)
        if out is not None:
            answers.write(out)
        return SplitResult(scores, answers.metrics(), saved.layout.stage)

    def check(self, model: LanguageModel, show: bool) -> None:
        """Raise errors of evaluation now, before training."""
        for layout in self.layouts():
            saved = self.saved(model, layout)
            _ = saved.estimator  # raises
            for split, evaluation in (("validation", saved.evaluation), ("test", saved.evaluation.of_test())):
                evaluation_batches(self.store.splits[split], layout, evaluation, self.tokenizer)
                if self.asks:
                    least = dataclasses.replace(evaluation, answer_tokens=self.recipe.evaluation.answer_tokens)
                    check_room(dataclasses.replace(saved, evaluation=least), self.store.splits[split])
        limit, longest = self.recipe.evaluation.answer_tokens, max(self._limits.values(), default=0)
        if show and longest > limit:
            print(
                f"{self.recipe.name}: evaluation.answer_tokens is {limit}, and the longest steps and answer have "
                f"{longest} tokens, so answers may have {longest}",
                file=sys.stderr,
            )

    def layouts(self) -> list[Layout]:
        """Return the layouts that evaluation may come to use: one for text, one per phase for questions."""
        return self.recipe.layouts() if self.recipe.layout.questions else [self.recipe.layout]

    def sample_prompts(self, model: LanguageModel) -> tuple[list[str], int]:
        """Return the prompts of the samples of `result.json`, and their length; refused before training."""
        recipe, evaluation = self.recipe, self.recipe.evaluation
        context = context_length(model.config) or math.inf
        check_length(model.config, "evaluation.sample_tokens", evaluation.sample_tokens)
        prompts = list(evaluation.sample_prompts)
        if not prompts:
            prompts = openings(self.store, self.tokenizer, TRIED, questions=recipe.layout.questions)
        encoded = [layout.encode_prompts(prompts, self.tokenizer, recipe.data) for layout in self.layouts()]
        lengths = torch.stack([batch["attention_mask"].sum(1) for batch in encoded]).amax(0).tolist()
        remedy = f"one has {max(lengths)} tokens and the model's context is {context}, use shorter ones"
        fit = not evaluation.sample_prompts or max(lengths) < context
        require(fit, "evaluation.sample_prompts", evaluation.sample_prompts, remedy)
        fitting = [pair for pair in zip(prompts, lengths) if pair[1] < context]
        remedy = (
            f"its first {TRIED} test questions fill the model's context of {context} tokens, set layout.too_long=skip, "
            "a larger context, or evaluation.sample_prompts"
        )
        require(bool(fitting), "data.source", recipe.data.source, remedy)
        if not evaluation.sample_prompts:
            fitting = fitting[:SAMPLES]
        longest = max(length for _, length in fitting)
        return [prompt for prompt, _ in fitting], int(min(evaluation.sample_tokens, context - longest))


def openings(
    store: TokenStore, tokenizer: PreTrainedTokenizerBase, count: int = 2, length: int = 12, *, questions: bool = False
) -> list[str]:
    """Return the first words of some test documents, or of records the questions: prompts that fit any corpus."""
    split = store.splits["test"]
    if questions:
        turn, firsts = user_turn(tokenizer), split.document_segments[:-1][:count]
        return [question_text(split.segment(first).tolist(), tokenizer, turn).strip() for first in firsts]
    starts = split.documents[:-1][split.documents[1:] - split.documents[:-1] > 2 * length] + split.beginning
    texts = (decode(split.tokens[start : start + length].tolist(), tokenizer).rstrip("�") for start in starts)
    return list(islice((text for text in texts if text.strip()), count)) or ["The"]
