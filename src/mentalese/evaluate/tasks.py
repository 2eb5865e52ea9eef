"""What `mentalese eval` measures of a saved model, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mentalese.data.store import TokenStore, prepare
from mentalese.data.tokenizers import MARKERS, add_markers, special_token_ids, tokenizer_fingerprint
from mentalese.errors import InputError, nearest
from mentalese.evaluate.answers import answers
from mentalese.evaluate.perplexity import perplexity
from mentalese.evaluate.reversal import reversal
from mentalese.evaluate.zero_shot import SETS, Questions, read_questions, zero_shot
from mentalese.files import check_place, write_json
from mentalese.models.auto import context_length, load_model, model_folder, saved_recipe
from mentalese.recipe import WITH_MARKERS, DataConfig, EvaluationConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Evaluation:
    """What a task gets.

    Attributes:
        model: keeps the contract.
        data: the text to score, and how texts become the model's rows.
        protocol: which tokens count and how far the model may look back.
        estimators: the ways to find a perplexity's likelihood, in place of the protocol's own.
        max_length: the most tokens that a row of questions may have, where the recipe tells.
        questions: those of the zero-shot tasks.
    """

    model: Any
    tokenizer: PreTrainedTokenizerBase
    data: DataConfig
    protocol: EvaluationConfig
    split: str
    estimators: tuple[str, ...]
    max_length: int | None
    questions: dict[str, Questions]
    device: str | torch.device
    show: bool


def _perplexity(given: Evaluation) -> dict[str, Any]:
    data, split = given.data, given.split
    store = open_text(given.tokenizer, data, split, given.show)
    special = special_token_ids(given.tokenizer, sentences=data.batching in WITH_MARKERS)

    def score(evaluation: EvaluationConfig) -> dict[str, Any]:
        scored = perplexity(
            given.model, store.splits[split], data, evaluation, special, device=given.device, show=given.show
        )
        return scored.to_dict() | _origin(given, store)

    if not given.estimators:
        return score(given.protocol)
    return {name: score(dataclasses.replace(given.protocol, estimator=name)) for name in given.estimators}


def _accuracy(given: Evaluation) -> dict[str, Any]:
    data, split = given.data, given.split
    store = open_text(given.tokenizer, data, split, given.show)
    special = special_token_ids(given.tokenizer, sentences=False)
    asked = answers(
        given.model,
        given.tokenizer,
        store.splits[split],
        data,
        given.protocol,
        special,
        device=given.device,
        show=given.show,
    )
    return asked.to_dict() | _origin(given, store)


def _origin(given: Evaluation, store: TokenStore) -> dict[str, str]:
    """Which text a figure is of."""
    return {"split": given.split, "source": given.data.source, "data_hash": store.meta["data_hash"]}


def _reversal(given: Evaluation) -> dict[str, Any]:
    return reversal(given.model, given.tokenizer, given.data, device=given.device, show=given.show)


def _zero_shot(name: str, given: Evaluation) -> dict[str, Any]:
    from mentalese.evaluate.lm import MentaleseLM

    lm = MentaleseLM(
        given.model,
        given.tokenizer,
        given.data,
        max_length=given.max_length,
        batch_size=given.protocol.batch_size,
        device=given.device,
        show=given.show,
    )
    return zero_shot(lm, given.questions[name])


TASKS: dict[str, Callable[[Evaluation], dict[str, Any]]] = {
    "perplexity": _perplexity,
    "accuracy": _accuracy,
    "reversal": _reversal,
    **{name: partial(_zero_shot, name) for name in SETS},
}
"""What `mentalese eval --tasks` knows."""


def evaluate_model(
    path: str,
    *,
    tasks: list[str],
    source: str | None = None,
    split: str = "test",
    task_files: Path | None = None,
    limit: int | None = None,
    estimators: Sequence[str] = (),
    documents: int | None = None,
    stage: int | None = None,
    latents: int | None = None,
    answer_tokens: int | None = None,
    config: dict[str, Any] | None = None,
    out: Path | None = None,
    evaluation: EvaluationConfig | None = None,
    device: str | torch.device = "cpu",
    show: bool = True,
) -> dict[str, dict[str, Any]]:
    """Evaluates a saved model in its own tokens: `{task: result}`, also written to `out` as JSON.

    Args:
        path: a run's folder, a saved model's, or `hub:NAME`.
        tasks: names from `TASKS`.
        source: the text, as in `DataConfig.source`; `None` takes the one that the model was trained on.
        task_files: the folder of the zero-shot tasks' questions.
        limit: ask the first so many questions of each file.
        estimators: score the perplexity in each of these ways, `{"perplexity": {estimator: result}}`.
        documents: score, or ask, the first so many documents; `None`: all.
        answer_tokens: the most new tokens of an answer, in place of the protocol's.
        stage: read records at this stage; `None` takes the one that the model was trained to.
        latents: so many behind each question; `None` takes what belongs to the stage. With neither stage nor latents
            (0 and 0) a model of latents has to write its steps.
        config: fields of the model's config that are to have other values.
        evaluation: another protocol than the recipe's.

    Raises:
        InputError: an unknown task or split, no model, a tokenizer that is not the checkpoint's, or what
            `read_questions` refuses.
    """
    for task in tasks:
        if task not in TASKS:
            raise InputError(f"tasks: no task is called {task!r}{nearest(task, TASKS)} (known: {', '.join(TASKS)})")
    check_place(out, "out")
    for name, value in (("task_files", task_files), ("limit", limit)):
        if value is not None and not set(tasks) & set(SETS):
            raise InputError(f"{name} is {str(value)!r}, which only {', '.join(SETS)} use: leave it out")
    questions = {task: read_questions(task, task_files, limit) for task in tasks if task in SETS}
    if estimators and "perplexity" not in tasks:
        raise InputError(f"estimators is {estimators!r}, which only perplexity uses: leave it out")
    for name, number in (("documents", documents), ("stage", stage), ("latents", latents)):
        if number is not None and not {"perplexity", "accuracy"} & set(tasks):
            raise InputError(f"{name} is {number}, which only perplexity and accuracy use: leave it out")
    if answer_tokens is not None and "accuracy" not in tasks:
        raise InputError(f"answer_tokens is {answer_tokens}, which only accuracy uses: leave it out")
    model, tokenizer, data, own = open_evaluation(path, source, device, config)
    data = at_stage(data, stage, latents)
    if "accuracy" in tasks and data.batching != "records":
        raise InputError(f"tasks holds 'accuracy': {path} was not trained on questions (data.batching 'records')")
    for estimator in estimators:
        if estimator not in model.estimators:
            raise InputError(f"estimators holds {estimator!r}: this model has {', '.join(model.estimators)}")
    protocol = evaluation or own
    changes: dict[str, Any] = {"max_documents": documents, "answer_tokens": answer_tokens}
    protocol = dataclasses.replace(protocol, **{name: value for name, value in changes.items() if value is not None})
    # A model of another project is asked with all of its context.
    max_length = protocol.window(data)[0] if saved_recipe(path) else None
    given = Evaluation(model, tokenizer, data, protocol, split, tuple(estimators), max_length, questions, device, show)
    results = {task: TASKS[task](given) for task in tasks}
    if out is not None:
        write_json(out, results)
    return results


def open_evaluation(
    path: str,
    source: str | None = None,
    device: str | torch.device = "cpu",
    config: dict[str, Any] | None = None,
) -> tuple[Any, PreTrainedTokenizerBase, DataConfig, EvaluationConfig]:
    """A saved model and its tokenizer, and how its recipe reads and scores a text, here whole.

    Args:
        source: the text; `None` takes the one that the model was trained on.
        config: fields of its config that are to have other values.

    Raises:
        InputError: see `load_model`.
    """
    model, tokenizer = load_model(path, device, fields=config)
    recipe = saved_recipe(path)
    data, evaluation = (recipe.data, recipe.evaluation) if recipe else (_plain_data(model), EvaluationConfig())
    data = dataclasses.replace(data, tokenizer=str(model_folder(path)))
    if source is not None:
        data = dataclasses.replace(data, source=source, text_column=None)
    return model, tokenizer, data, dataclasses.replace(evaluation, max_documents=None)


def at_stage(data: DataConfig, stage: int | None, latents: int | None) -> DataConfig:
    """The data with records read at this stage, with so many latents, where these are given."""
    asked: dict[str, Any] = {
        name: value for name, value in (("stage", stage), ("latents", latents)) if value is not None
    }
    return dataclasses.replace(data, **asked)


def open_text(tokenizer: PreTrainedTokenizerBase, data: DataConfig, split: str, show: bool) -> TokenStore:
    """The text in a saved model's own tokens; where these are another project's, documents end in its end of text.

    Raises:
        InputError: what `prepare` refuses, a tokenizer that lacks the markers, or an unknown split.
    """
    store, prepared = prepare(data, to_train=False, show=show)
    special = special_token_ids(tokenizer, sentences=data.batching in WITH_MARKERS)
    known = MARKERS[0] in tokenizer.get_vocab()
    if tokenizer_fingerprint(prepared) != tokenizer_fingerprint(tokenizer if known else add_markers(tokenizer)):
        raise InputError(
            f"the text was tokenised with {data.tokenizer}, which is not the checkpoint's tokenizer: "
            "save the tokenizer with its sentence and document markers in the model's folder"
        )
    if split not in store.splits:
        raise InputError(f"split is {split!r}: {data.source} has {', '.join(store.splits)}")
    end, own = special_token_ids(prepared)["eos_token_id"], special["eos_token_id"]
    if end == own:
        return store
    tokens = store.splits[split].tokens
    read = dataclasses.replace(store.splits[split], tokens=np.where(tokens == end, own, tokens))
    return dataclasses.replace(store, splits=store.splits | {split: read})


def _plain_data(model: Any) -> DataConfig:
    """Blocks that fit a model which no recipe came with."""
    length = DataConfig().sequence_length
    context = context_length(model.config) or length
    return DataConfig(batching="blocks", sequence_length=min(length, context))
