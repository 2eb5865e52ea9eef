"""The page of one or two models' thoughts about a text."""

from __future__ import annotations

from typing import Any

from mentalese.errors import InputError
from mentalese.formatting import model_names
from mentalese.models.base import count_parameters
from mentalese.models.saved import Saved
from mentalese.viewer.page import page
from mentalese.viewer.payload import payload


def think_page(
    saved: Saved,
    text: str,
    *,
    against: Saved | None = None,
    answer: str | None = None,
    command: str = "",
    **options: Any,
) -> str:
    """Return the page of a model's thoughts about a text, next to another model's thoughts.

    Args:
        against: another model, which reads the text without `options`; or the same one under a `thought_control`, with
            them.
        answer: the right answer, if the text is a question: the page shows if the model's own is right.
        command: the command that made the page, shown on it.
        options: options of `Saved.think`.

    Raises:
        InputError: `Saved.think` raises it; the message names the model. Or there is an `answer` without a question.
    """
    models = [saved] if against is None else [saved, against]
    if answer is not None and not any(model.layout.questions for model in models):
        raise InputError(f"answer is {answer!r}, and {saved.path} does not answer questions: remove it")
    control = None if against is None else getattr(against.model.config, "thought_control", None)
    if against is None or against.path != saved.path:
        control = None
    traces = []
    for model in models:
        try:
            traces.append(model.think(text, **(options if model is saved or control else {})))
        except InputError as error:
            raise InputError(f"{model.path}: {error}") from error
    sizes = [count_parameters(model.model)["total"] for model in models]
    names = model_names([model.path for model in (models[:1] if control else models)])
    contents = payload(
        traces, names=names, control=control, parameters=sizes, text=text, expected=answer, command=command
    )
    return page(contents)
