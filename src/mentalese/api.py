"""The Python door: what one does with a recipe and with a trained model, each one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mentalese.models.saved import Saved, load
from mentalese.models.trace import ThoughtTrace
from mentalese.recipe import Recipe
from mentalese.recipe_files import open_recipe


def train(
    recipe: str | Path | Recipe, *settings: str, out: str | Path | None = None, resume: bool = False, show: bool = True
) -> Saved:
    """Trains a recipe and opens the best model.

    Args:
        recipe: a recipe, its name, or a .json, .yaml or .toml file.
        settings: `section.field=value`, e.g. `"train.steps=100"`.
        out: the run's folder; `None`: `runs/NAME`. It gets `config.json`, `metrics.jsonl`, `checkpoints/`, `model/`
            and `result.json`.
        resume: resume the run in this folder; a finished one is opened at once.
        show: progress on standard error.

    Raises:
        InputError: the recipe, its data or the folder is not what it should be; nothing has been written then.
        Interrupted: SIGINT or SIGTERM came; a checkpoint has been written.
    """
    from mentalese.training.loop import train as run

    wanted = (recipe if isinstance(recipe, Recipe) else open_recipe(str(recipe))).override(*settings)
    folder = Path("runs") / wanted.name.replace("/", "-") if out is None else Path(out)
    run(wanted, folder, resume=resume, show=show)
    return load(folder)


def evaluate(
    model: str | Path | Saved, tasks: Sequence[str] = ("perplexity",), **options: Any
) -> dict[str, dict[str, Any]]:
    """Evaluates a model: `{task: figures}`.

    Args:
        model: an opened model, or what `load` takes.
        tasks: `perplexity`, `accuracy`, a zero-shot set (`blimp`, `hellaswag`, ..) or `hub:NAME` for any task of
            lm-eval's, see `mentalese.evaluation.tasks.TASKS`.
        options: see `mentalese.evaluation.tasks.evaluate_model`.

    Raises:
        InputError: an unknown task, or an option that none of the tasks uses.
    """
    from mentalese.evaluation.tasks import evaluate_model

    return evaluate_model(model if isinstance(model, Saved) else load(model), tasks=list(tasks), **options)


def think(model: str | Path | Saved, text: str, **options: Any) -> ThoughtTrace:
    """What a model thinks of a text; a notebook shows it as a page. Takes and raises what `Saved.think` does."""
    return (model if isinstance(model, Saved) else load(model)).think(text, **options)
