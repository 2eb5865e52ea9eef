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

from mentalese.data.layouts import Layout, Packed
from mentalese.data.store import TokenStore, prepare
from mentalese.data.tokenizers import MARKERS, add_markers, special_token_ids, tokenizer_fingerprint
from mentalese.errors import InputError, nearest
from mentalese.evaluation.answers import ONCE, Asking, answers
from mentalese.evaluation.reversal import reversal
from mentalese.evaluation.samples import UNASKED, Judge, Sampling, conditional, open_judge, unconditional
from mentalese.evaluation.zero_shot import (
    HUB,
    SETS,
    HubTask,
    Questions,
    hub_task,
    read_hub_task,
    read_questions,
    zero_shot,
)
from mentalese.files import check_place, write_json
from mentalese.models.build import check_length
from mentalese.models.saved import Saved, load
from mentalese.models.scoring import perplexity
from mentalese.recipe import DataConfig, EvaluationConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Evaluation:
    """What a task gets.

    Attributes:
        model: keeps the contract.
        data: the text to score.
        layout: how texts become the model's rows.
        protocol: which tokens count and how far the model may look back.
        estimators: the ways to find a perplexity's likelihood, in place of the protocol's own.
        max_length: the most tokens that a row of questions may have, where the recipe tells.
        questions: those of the zero-shot tasks.
        asking: how the questions of records are asked.
        sampling: what is generated for `judge`.
    """

    model: Any
    tokenizer: PreTrainedTokenizerBase
    data: DataConfig
    layout: Layout
    protocol: EvaluationConfig
    split: str
    estimators: tuple[str, ...]
    max_length: int | None
    questions: dict[str, Questions | HubTask]
    asking: Asking
    sampling: Sampling
    judge: Judge | None
    device: str | torch.device
    show: bool


def _perplexity(given: Evaluation) -> dict[str, Any]:
    store = open_text(given.tokenizer, given.data, given.layout, given.split, given.show)

    def score(evaluation: EvaluationConfig) -> dict[str, Any]:
        scored = perplexity(
            given.model,
            given.tokenizer,
            store.splits[given.split],
            given.data,
            given.layout,
            evaluation,
            device=given.device,
            show=given.show,
        )
        return scored.to_dict() | _origin(given, store)

    if not given.estimators:
        return score(given.protocol)
    return {name: score(dataclasses.replace(given.protocol, estimator=name)) for name in given.estimators}


def _accuracy(given: Evaluation) -> dict[str, Any]:
    # A model of texts reads questions as text; in the store they have their parts all the same.
    stored = given.layout if given.layout.questions else Packed()
    store = open_text(given.tokenizer, given.data, stored, given.split, given.show)
    if store.meta["kind"] != "records":
        raise InputError(
            f"tasks contains 'accuracy': {given.data.source} contains texts; use rows of question, steps and answer, "
            "or a set such as --data gsm8k:PATH"
        )
    asked = answers(
        given.model,
        given.tokenizer,
        store.splits[given.split],
        given.data,
        given.layout,
        given.protocol,
        asking=given.asking,
        examples=store.splits.get("train"),
        device=given.device,
        show=given.show,
    )
    return asked.to_dict() | _origin(given, store)


def _origin(given: Evaluation, store: TokenStore) -> dict[str, str | None]:
    """Which text a figure is of."""
    return {
        "split": given.split,
        "source": given.data.source,
        "detokenizer": given.data.detokenizer,
        "data_hash": store.meta["data_hash"],
    }


def _unconditional(given: Evaluation) -> dict[str, Any]:
    assert given.judge is not None
    return unconditional(given.model, given.tokenizer, given.layout, given.sampling, given.judge, show=given.show)


def _conditional(given: Evaluation) -> dict[str, Any]:
    assert given.judge is not None
    store = open_text(given.tokenizer, given.data, given.layout, given.split, given.show)
    figures = conditional(
        given.model,
        given.tokenizer,
        store.splits[given.split],
        given.data,
        given.layout,
        given.sampling,
        given.judge,
        show=given.show,
    )
    return figures | _origin(given, store)


def _reversal(given: Evaluation) -> dict[str, Any]:
    return reversal(given.model, given.tokenizer, given.data, given.layout, device=given.device, show=given.show)


def _zero_shot(name: str, given: Evaluation) -> dict[str, Any]:
    from mentalese.evaluation.harness import MentaleseLM

    lm = MentaleseLM(
        given.model,
        given.tokenizer,
        given.data,
        given.layout,
        max_length=given.max_length,
        batch_size=given.protocol.batch_size,
        device=given.device,
        show=given.show,
    )
    asked = given.questions[name]
    return hub_task(lm, asked) if isinstance(asked, HubTask) else zero_shot(lm, asked)


TASKS: dict[str, Callable[[Evaluation], dict[str, Any]]] = {
    "perplexity": _perplexity,
    "accuracy": _accuracy,
    "reversal": _reversal,
    "unconditional": _unconditional,
    "conditional": _conditional,
    **{name: partial(_zero_shot, name) for name in SETS},
}
"""What `mentalese eval --tasks` knows beside lm-eval's own tasks, `hub:NAME`."""


_SAMPLED = ("unconditional", "conditional")
_USERS: dict[str, Sequence[str]] = {
    "task_files": tuple(SETS),
    "limit": (*SETS, f"{HUB}NAME"),
    "estimators": ("perplexity",),
    "joined": ("perplexity",),
    "context_length": ("perplexity",),
    "documents": ("perplexity", "accuracy"),
    "stage": ("perplexity", "accuracy"),
    "latents": ("perplexity", "accuracy"),
    "answer_tokens": ("accuracy",),
    "text_column": ("perplexity", "accuracy", "conditional"),
    "detokenizer": ("perplexity", "conditional"),
}
"""Which tasks use an argument of `evaluate_model`, where not all do."""


def evaluate_model(
    path: str | Saved,
    *,
    tasks: list[str],
    source: str | None = None,
    text_column: str | None = None,
    detokenizer: str | None = None,
    split: str = "test",
    task_files: Path | None = None,
    limit: int | None = None,
    estimators: Sequence[str] = (),
    joined: bool = False,
    context_length: int | None = None,
    documents: int | None = None,
    stage: int | None = None,
    latents: int | None = None,
    answer_tokens: int | None = None,
    asking: Asking = ONCE,
    sampling: Sampling = UNASKED,
    config: dict[str, Any] | None = None,
    out: Path | None = None,
    evaluation: EvaluationConfig | None = None,
    device: str | torch.device = "cpu",
    show: bool = True,
) -> dict[str, dict[str, Any]]:
    """Evaluates a saved model in its own tokens: `{task: result}`, also written to `out` as JSON.

    Args:
        path: an opened model, or a run's folder, a saved model's, or `hub:NAME`.
        tasks: names from `TASKS`, or `hub:NAME` for any task or group of lm-eval's, fetched from the network.
        source: the text, as in `DataConfig.source`; `None` takes the one that the model was trained on.
        text_column, detokenizer: how it is read, as in `DataConfig`.
        task_files: the folder of the zero-shot tasks' questions.
        limit: ask the first so many questions of each file, or task of lm-eval's.
        estimators: score the perplexity in each of these ways, `{"perplexity": {estimator: result}}`.
        joined: score documents joined by their ends, in blocks, in place of the protocol's windows.
        context_length: tokens a block or window, in place of the protocol's.
        documents: score, or ask, the first so many documents; `None`: all.
        answer_tokens: the most new tokens of an answer, in place of the protocol's.
        asking: how questions are asked beyond once and as they are.
        sampling: what is generated, and which model judges it.
        stage: read records at this stage; `None` takes the one that the model was trained to.
        latents: so many behind each question; `None` takes what belongs to the stage. With neither stage nor latents
            (0 and 0) a model of latents has to write its steps.
        config: fields of the model's config that are to have other values.
        evaluation: another protocol than the recipe's.

    Raises:
        InputError: an unknown task or split, no model, a tokenizer that is not the checkpoint's, an argument that none
            of the tasks uses, or what `read_questions`, `read_hub_task` and `open_judge` refuse.
    """
    given = {name: value for name, value in locals().items() if name in _USERS}
    for task in tasks:
        if task not in TASKS and (task == HUB or not task.startswith(HUB)):
            raise InputError(
                f"tasks: no task is called {task!r}{nearest(task, TASKS)} (known: {', '.join(TASKS)}, {HUB}NAME)"
            )
    check_place(out, "out")
    _check_used(tasks, given, asking, sampling)
    questions: dict[str, Questions | HubTask] = {}
    for task in tasks:
        if task in SETS:
            questions[task] = read_questions(task, task_files, limit)
        elif task.startswith(HUB):
            questions[task] = read_hub_task(task.removeprefix(HUB), limit)
    sampled = set(tasks) & set(_SAMPLED)
    judge = open_judge(sampling, device, mauve="conditional" in sampled) if sampled else None
    saved = path.on(source) if isinstance(path, Saved) else load(path, device, config=config).on(source)
    model, tokenizer, data, layout, own = saved.model, saved.tokenizer, saved.data, saved.layout, saved.evaluation
    path, device = saved.path, saved.device
    read = {name: given[name] for name in ("text_column", "detokenizer") if given[name] is not None}
    data, layout = dataclasses.replace(data, **read), layout.at(stage, latents)
    for estimator in estimators:
        if estimator not in model.estimators:
            raise InputError(f"estimators holds {estimator!r}: this model has {', '.join(model.estimators)}")
    protocol = evaluation or own
    # A model of another project is asked with all of its context.
    window = layout.window(protocol)
    max_length = window[0] if window and saved.recipe else None
    changes: dict[str, Any] = {"max_documents": documents, "answer_tokens": answer_tokens}
    if joined or context_length is not None:  # the recipe's stride belongs to its own windows
        if window is None:
            name, value = ("joined", joined) if joined else ("context_length", context_length)
            raise InputError(f"{name} is {value}: {path} has layout {layout.kind!r}, which reads no windows; remove it")
        check_length(model.config, "context_length", context_length)
        protocol = dataclasses.replace(protocol, stride=None, joined=joined or protocol.joined)
        changes["context_length"] = context_length
    protocol = dataclasses.replace(protocol, **{name: value for name, value in changes.items() if value is not None})
    layout.check_evaluation(protocol)
    wanted = Evaluation(
        model=model,
        tokenizer=tokenizer,
        data=data,
        layout=layout,
        protocol=protocol,
        split=split,
        estimators=tuple(estimators),
        max_length=max_length,
        questions=questions,
        asking=asking,
        sampling=sampling,
        judge=judge,
        device=device,
        show=show,
    )
    results = {task: TASKS.get(task, partial(_zero_shot, task))(wanted) for task in tasks}
    if out is not None:
        write_json(out, results)
    return results


def _check_used(tasks: list[str], given: dict[str, Any], asking: Asking, sampling: Sampling) -> None:
    """Raises `InputError` for an argument that was given and that none of the tasks uses."""
    kinds = {f"{HUB}NAME" if task.startswith(HUB) else task for task in tasks}
    users = dict(_USERS)
    for group, of in ((asking, ("accuracy",)), (sampling, _SAMPLED)):
        for field in dataclasses.fields(group):
            if getattr(group, field.name) != field.default:
                given, users = given | {field.name: getattr(group, field.name)}, users | {field.name: of}
    for name, value in given.items():
        if value is None or value is False or value == () or kinds & set(users[name]):
            continue
        *most, last = users[name]
        use = f"{', '.join(most)} and {last} use" if most else f"{last} uses"
        shown = repr(str(value)) if isinstance(value, Path) else repr(value)
        raise InputError(f"{name} is {shown}, which only {use}: leave it out")


def open_evaluation(
    path: str,
    source: str | None = None,
    device: str | torch.device = "cpu",
    config: dict[str, Any] | None = None,
) -> tuple[Any, PreTrainedTokenizerBase, DataConfig, Layout, EvaluationConfig]:
    """A saved model and its tokenizer, and how its recipe reads and scores a text, here whole.

    Args:
        source: the text; `None` takes the one that the model was trained on.
        config: fields of its config that are to have other values.

    Raises:
        InputError: see `load_model`.
    """
    saved = load(path, device, config=config).on(source)
    return saved.model, saved.tokenizer, saved.data, saved.layout, saved.evaluation


def open_text(
    tokenizer: PreTrainedTokenizerBase, data: DataConfig, layout: Layout, split: str, show: bool
) -> TokenStore:
    """The text in a saved model's own tokens; if these are another project's, documents end in its end of text.

    Raises:
        InputError: what `prepare` refuses, a tokenizer that lacks the markers, or an unknown split.
    """
    store, prepared = prepare(data, layout, to_train=False, show=show)
    special = layout.special_ids(tokenizer)
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
