"""From a text to the page of what one or two models think of it."""

from __future__ import annotations

from typing import Any

from mentalese.errors import InputError
from mentalese.formatting import model_names
from mentalese.models.contract import count_parameters
from mentalese.models.saved import Saved
from mentalese.viewer.page import page
from mentalese.viewer.payload import payload


def think_page(saved: Saved, text: str, *, against: Saved | None = None, command: str = "", **options: Any) -> str:
    """The page of what a model thinks of a text, next to what another one does.

    Args:
        against: another model, which reads the text without `options`.
        command: the command that made the page, shown on it.
        options: as `Saved.think` has them.

    Raises:
        InputError: what `Saved.think` refuses; the message names the model.
    """
    models = [saved] if against is None else [saved, against]
    traces = []
    for model in models:
        try:
            traces.append(model.think(text, **(options if model is saved else {})))
        except InputError as error:
            raise InputError(f"{model.path}: {error}") from error
    sizes = [count_parameters(model.model)["total"] for model in models]
    names = model_names([model.path for model in models])
    control = None if against is None else getattr(against.hugging_face.config, "thought_control", None)
    if against is not None and against.path == saved.path and control is not None:
        names = model_names([saved.path])
        names.append(f"{names[0]}, thoughts {control}")
    return page(payload(traces, names=names, parameters=sizes, text=text, command=command))
