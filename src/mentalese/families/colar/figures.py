"""The figure of CoLaR: accuracy and the length of thinking by the compression factor that is asked for."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from mentalese.analyses.drawing import Drawing, Figure, Numbers, canvas, footnote, line_style, percent_axis
from mentalese.errors import InputError
from mentalese.formatting import model_names
from mentalese.values import temporarily

if TYPE_CHECKING:
    from mentalese.models.saved import Saved

QUESTIONS = 500  # first questions of the test split
FACTORS = (1, 2, 3, 4, 6, 8)
READ: dict[str, dict[str, object]] = {
    "own": {},
    "sampled": {"latent_temperature": 1.0},
    "swapped": {"thought_control": "swapped"},
}
"""The latents of a model that was trained with its own: the mean, a sample, and another question's."""


def compression(paths: list[str]) -> Drawing:
    """Draw accuracy, and latents per answer, by the factor; a model without factors is a horizontal line.

    Latents are what a model reads in addition to the end of thinking and its answer.
    """
    from mentalese.models.saved import load

    models = [load(path).scored_in_pairs(max_documents=QUESTIONS) for path in paths]
    if not any(saved.model.config.model_type == "colar" for saved in models):
        raise InputError(f"{paths[0]} has no compression factor: use a model of the family colar")
    picture, ((left, right),) = canvas(1, 2, 10, 3.8)
    numbers: Numbers = {"metric": "accuracy", "models": []}
    drawn = 0
    for saved, label in zip(models, model_names(paths)):
        entry: Numbers = {"label": label}
        for name, by_factor in _answers(saved).items():
            style = line_style(drawn) | {"markersize": 4}
            drawn += 1
            accuracy = {factor: share for factor, (share, _) in by_factor.items()}
            title = label if name == "own" else f"{label}, {name}"
            if len(accuracy) == 1:
                left.axhline(accuracy[0], color=style["color"], linestyle="--", linewidth=0.8, label=title)
            else:
                left.plot(list(accuracy), list(accuracy.values()), label=title, **style)
                right.plot(list(accuracy), [latents for _, latents in by_factor.values()], label=title, **style)
                entry["trained_to"] = saved.model.config.max_factor
            entry[name] = by_factor
        numbers["models"].append(entry)
    left.set(title="test accuracy", xlabel="factor c")
    percent_axis(left.yaxis)
    right.set(title="latents per answer", xlabel="factor c")
    left.legend(fontsize="x-small")
    footnote(picture, f"at most {QUESTIONS} questions, the first of the test split")
    return picture, numbers


def _answers(saved: Saved) -> dict[str, dict[int, tuple[float, float]]]:
    """Return accuracy and latents per answer by factor, by the latents that are read; without factors at factor 0."""
    from mentalese.evaluation.answers import ask

    config, split = saved.model.config, saved.split("test")
    if config.model_type != "colar":
        return {"own": {0: (ask(saved, split).metrics().accuracy, 0.0)}}
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for name, fields in READ.items() if config.thought_control is None else [("own", {})]:
        found[name] = {}
        for factor in FACTORS:
            with temporarily(config, factor=factor, **fields):
                answers = ask(saved, split)
            latents = [record.latents or 0 for record in answers.records]
            found[name][factor] = answers.metrics().accuracy, round(statistics.fmean(latents), 2)
    return found


FIGURES = {"compression": Figure("accuracy and latents per answer by the compression factor", "RUN ...", compression)}
