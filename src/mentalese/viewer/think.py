"""From a text to the page of what one or two saved models think of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mentalese.analyses.drawing import labels
from mentalese.data.layouts import Packed
from mentalese.errors import InputError
from mentalese.models.checkpoints import load_model, saved_recipe
from mentalese.models.contract import count_parameters
from mentalese.models.thinking import think
from mentalese.recipe import DataConfig, EvaluationConfig
from mentalese.viewer.payload import payload

if TYPE_CHECKING:
    pass


def think_page(
    path: str | Path,
    text: str,
    *,
    against: str | Path | None = None,
    stage: int | None = None,
    latents: int | None = None,
    max_new_tokens: int | None = None,
    config: dict[str, Any] | None = None,
    device: str | torch.device = "cpu",
    command: str = "",
    **options: Any,
) -> str:
    """The page of what a saved model thinks of a text, and another one beside it.

    Args:
        path: the folder of a run or of a saved model, or `hub:NAME`.
        against: another model, which is opened and asked as it is; what follows is of the first one.
        stage, latents: at which a model of questions is asked; `None`: as it was trained last.
        max_new_tokens: of an answer; `None`: as its recipe has it.
        config: fields of the config that are to have other values, as far as the weights allow.
        command: what made the page, to be shown on it.
        options: as `think` has them.

    Raises:
        InputError: no such model, a text that `think` refuses, or settings of questions for a model of texts.
    """
    from mentalese.viewer.page import page

    asked = {"stage": stage, "latents": latents, "max_new_tokens": max_new_tokens}
    paths = [str(path)] if against is None else [str(path), str(against)]
    opened = []
    for number, name in enumerate(paths):
        own = {setting: value for setting, value in asked.items() if value is not None and not number}
        recipe = saved_recipe(name)
        data, layout = (recipe.data, recipe.layout) if recipe else (DataConfig(), Packed())
        if own and not layout.questions:
            setting, value = next(iter(own.items()))
            raise InputError(f"{setting} is {value}, and {name} reads texts: that is for models of questions")
        model, tokenizer = load_model(name, device, fields=None if number else config)
        tokens = own.pop("max_new_tokens", (recipe.evaluation if recipe else EvaluationConfig()).answer_tokens)
        layout = layout.at(own.get("stage"), own.get("latents"))
        opened.append((model, tokenizer, data, layout, tokens, {} if number else options))
    found = []
    for name, (model, tokenizer, data, layout, tokens, of_thoughts) in zip(paths, opened):
        try:
            found.append(think(model, tokenizer, text, data, layout, max_new_tokens=tokens, **of_thoughts))
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
    sizes = [count_parameters(model)["total"] for model, *_ in opened]
    return page(payload(found, names=labels(paths), parameters=sizes, text=text, command=command))
