"""The interface from Python: training a recipe, and scoring, asking and looking into a trained model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from mentalese.data.config import AS_IT_IS
from mentalese.data.sources import as_source
from mentalese.errors import require
from mentalese.evaluation.options import AnswerOptions, EvaluationOptions
from mentalese.files import JsonObject, check_place, write_json
from mentalese.models.saved import Saved, load
from mentalese.models.trace import ThoughtTrace
from mentalese.recipe import Recipe
from mentalese.recipe_files import open_recipe, override
from mentalese.values import Place, checked
from mentalese.viewer.page import notebook_page

ThoughtTrace.draw = notebook_page
_TWO_TEXTS = "data is set too, set one of them"


def train(
    recipe: str | Path | Recipe,
    *settings: str,
    data: object = None,
    out: str | Path | None = None,
    resume: bool = False,
    show: bool = True,
) -> Saved:
    """Train a recipe and open the best model.

    Args:
        recipe: a recipe, its name, or a .json, .yaml or .toml file.
        settings: `section.field=value`, e.g. `"train.steps=100"`.
        data: another text than the recipe's: a source, or what `as_source` takes (a list of texts, a
            `datasets.Dataset`, a generator function, ..). The recipe that is saved names such texts by their hash.
        out: the run's folder; `None`: `runs/NAME`. It gets `config.json`, `metrics.jsonl`, `checkpoints/`, `model/`
            and `result.json`.
        resume: resume the run in this folder; a finished one is opened at once.
        show: show progress on standard error.

    Returns:
        The best model by validation, as `load(out)` opens it.

    Raises:
        InputError: the recipe, its data or the folder cannot be used; nothing is written.
        Interrupted: SIGINT or SIGTERM arrived; a checkpoint is written first.
        FloatingPointError: the loss was not finite.
    """
    from mentalese.training.loop import train as run

    final_recipe = recipe if isinstance(recipe, Recipe) else open_recipe(recipe)
    if data is not None:
        for setting in settings:
            require(not str(setting).startswith("data.source="), "a setting", setting, _TWO_TEXTS)
        text = dataclasses.replace(final_recipe.data, **AS_IT_IS | {"source": as_source(data)})
        final_recipe = dataclasses.replace(final_recipe, data=text)
    final_recipe = override(final_recipe, *settings)
    folder = Path("runs") / final_recipe.name.replace("/", "-") if out is None else checked("out", Place, out)
    run(final_recipe, folder, resume=resume, show=show)
    return load(folder)


def evaluate(
    model: str | Path | Saved,
    tasks: str | Sequence[str] = ("perplexity",),
    *,
    data: object = None,
    out: str | Path | None = None,
    show: bool = True,
    **options: Any,
) -> dict[str, JsonObject]:
    """Score a model on a text and on zero-shot questions, as `mentalese eval` does.

    Args:
        model: an opened model, or what `load` takes.
        tasks: `perplexity`, `reversal`, a zero-shot set (`blimp`, `hellaswag`, ..) or `hub:NAME` for any task of
            lm-eval, see `mentalese.evaluation.measures.TASKS`.
        data: the text: a source, or what `as_source` takes; one file or set of texts is scored as a whole. The same as
            the option `source`.
        out: a JSON file for the results.
        show: progress on standard error.
        options: fields of `EvaluationOptions`: `source`, `split`, `estimators`, `joined`, `context_length`,
            `documents`, `task_files`, `limit`, ..

    Returns:
        `{task: result}`, what `mentalese eval` writes to `--out`: for `perplexity` the fields of `Perplexity` (`nll`
        in nats per token, `perplexity`, `bits_per_byte`, `tokens`, `protocol`, ..), `documents`, and `split`, `source`,
        `detokenizer`, `data_hash` of the text; with `estimators`, that for each of them.

    Raises:
        InputError: an unknown task, an option that does not exist or that none of the tasks uses, or what the tasks
            refuse.
    """
    from mentalese.evaluation import measures

    all_options = EvaluationOptions(**_with_source(options, data), tasks=cast(Any, tasks))
    place = _place(out, all_options.source)
    questions = measures.read_tasks(all_options)
    results = measures.run(_opened(model), all_options, questions, show=show)
    if place is not None:
        write_json(place, results)
    return results


def answer(
    model: str | Path | Saved, *, data: object = None, out: str | Path | None = None, show: bool = True, **options: Any
) -> JsonObject:
    """Ask a model questions, as `mentalese answer` does.

    Args:
        model: an opened model, or what `load` takes. A model that was not trained on questions reads them as text.
        data: the questions, as `evaluate` takes a text.
        out: `NAME.json` for the result, beside which `NAME.answers.jsonl` has a line per question, see `AnswerRecord`;
            or `NAME.jsonl` for these lines only.
        show: progress on standard error.
        options: fields of `AnswerOptions`: `source`, `split`, `shots`, `answer_samples`, `num_beams`, `temperature`,
            `seed`, `answer_tokens`, `documents`, `batch_size`, `stage`, `latents`, ..

    Returns:
        The fields of `AnswerMetrics` (`accuracy`, `exact_match`, `f1`, `questions`, `protocol`, and `pass_at_k` if
        answers are sampled), `tokens_per_question`, `latents_per_question`, `seconds_per_question`, and `split`,
        `source`, `detokenizer`, `data_hash` of the questions.

    Raises:
        InputError: an option that does not exist or is out of range, a source without questions, or questions that
            leave no room for an answer in the model's context.
    """
    from mentalese.evaluation import answers

    all_options = AnswerOptions(**_with_source(options, data))
    place = _place(out, all_options.source)
    for file in answers.places(place) if place else ():
        check_place(file, "out", all_options.source)
    return answers.run(_opened(model), all_options, out=place, show=show)


def think(model: str | Path | Saved, text: str, **options: Any) -> ThoughtTrace:
    """Return a model's thoughts on a text; a notebook shows them as a page.

    Args:
        model: an opened model, or an argument of `load`.
        text: one text; for a model trained on questions, one question.
        options: the options of `Saved.think`, which raises the same errors.
    """
    return _opened(model).think(text, **options)


def _opened(model: str | Path | Saved) -> Saved:
    return model if isinstance(model, Saved) else load(model)


def _with_source(options: JsonObject, data: object) -> JsonObject:
    if data is None:
        return options
    require("source" not in options, "source", options.get("source"), _TWO_TEXTS)
    return options | {"source": as_source(data)}


def _place(out: str | Path | None, source: str | None) -> Path | None:
    place = None if out is None else checked("out", Place, out)
    check_place(place, "out", source)
    return place
