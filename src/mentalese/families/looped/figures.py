"""Figures of recurrent depth: scores by turns at test time, how far turns move the state, and rules that stop tokens.

Figures 1, 7 and 11 of Geiping et al. (arXiv 2502.05171), and rules of exit (Zhu et al., arXiv 2510.25741, section
5.4.1). Without an exit, the state after t of r turns equals the state after t turns in total, so that one pass over a
text gives every number of turns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mentalese.analyses.drawing import (
    Drawing,
    Figure,
    Numbers,
    batches,
    canvas,
    footnote,
    line_style,
    percent_axis,
)
from mentalese.errors import InputError
from mentalese.formatting import model_names
from mentalese.values import temporarily

if TYPE_CHECKING:
    from mentalese.data.split import Split
    from mentalese.models.saved import Saved

DOCUMENTS = 32  # first documents or questions of the test split
BEYOND = 4  # largest number of turns, in units of training's
EXIT_DOCUMENTS = 200
THRESHOLDS: dict[str, Sequence[float]] = {
    "exit_distance": (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.2),
    "exit_probability": (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99),
}
NO_EXITS: dict[str, object] = dict.fromkeys(THRESHOLDS)
RULES = {"turns": ("fixed turns", ":"), "exit_distance": ("distance", "--"), "exit_probability": ("gate", "-")}


def turns(paths: list[str]) -> Drawing:
    """Draw perplexity (for questions, accuracy) by turns at test time, and the relative movement of the state.

    The movement is a share of the state's length, averaged over tokens. A dashed line marks the mean turns of training.
    """
    models = _models(paths, DOCUMENTS)
    qa = [saved.layout.questions for saved in models]
    if len(set(qa)) > 1:
        raise InputError(f"{paths[qa.index(True)]} answers questions and others do not: draw them separately")
    picture, ((left, right),) = canvas(1, 2, 10, 3.8)
    numbers: Numbers = {"metric": "accuracy" if qa[0] else "perplexity", "models": []}
    for number, (saved, label) in enumerate(zip(models, model_names(paths))):
        style, trained = line_style(number) | {"markersize": 4}, saved.model.config.turns
        split = saved.split("test")
        perplexity, moved = _by_turn(saved, split, BEYOND * trained)
        scores = _accuracy(saved, split, BEYOND * trained) if qa[0] else perplexity
        left.plot(list(scores), list(scores.values()), label=label, **style)
        right.plot(list(moved), list(moved.values()), label=label, **style)
        for panel in (left, right):
            panel.axvline(trained, color=style["color"], linestyle="--", linewidth=0.8)
            panel.set(xscale="log", xlabel="turns at test")
            panel.xaxis.set_major_formatter("{x:.0f}")
            panel.xaxis.set_minor_formatter("")
        numbers["models"].append(
            {"path": saved.path, "label": label, "trained_turns": trained, numbers["metric"]: scores, "moved": moved}
        )
    left.set(title=f"test {numbers['metric']}")
    if qa[0]:
        percent_axis(left.yaxis)
    right.set(title="how far a turn moves the state", yscale="log")
    left.legend()
    footnote(picture, f"at most {DOCUMENTS}, the first of the test split; dashed: the mean of training")
    return picture, numbers


def exits(paths: list[str]) -> Drawing:
    """Draw perplexity by the mean number of turns, where a gate, the distance rule or nothing stops tokens.

    Runs that differ only in their seed are one line, of means over them. On the right, the mean number of turns by
    threshold.
    """
    models = _models(paths, EXIT_DOCUMENTS)
    groups: dict[str, list[Numbers]] = {}
    for saved in models:
        rules = {"turns": range(1, saved.model.config.turns + 1), **THRESHOLDS}
        if saved.model.config.exit_entropy is None:
            del rules["exit_probability"]
        split = saved.split("test")
        scores = {rule: [_stopped(saved, split, rule, value) for value in values] for rule, values in rules.items()}
        recipe = saved.recipe and saved.recipe.replace(train={"seed": 0})
        groups.setdefault(recipe.fingerprint() if recipe else saved.path, []).append({"path": saved.path, **scores})
    labels = model_names([seeds[0]["path"] for seeds in groups.values()])
    picture, ((left, right),) = canvas(1, 2, 10, 3.8)
    for number, (label, seeds) in enumerate(zip(labels, groups.values())):
        color = line_style(number)["color"]
        for rule, (title, line) in RULES.items():
            if rule not in seeds[0]:
                continue
            points = [[sum(each) / len(seeds) for each in zip(*same)] for same in zip(*(seed[rule] for seed in seeds))]
            values, taken, perplexity = zip(*points)
            style = {"color": color, "linestyle": line, "marker": ".", "label": f"{label}: {title}"}
            left.plot(taken, perplexity, **style)
            if rule != "turns":
                right.plot(values, taken, **style)
    left.set(title="test perplexity", xlabel="mean turns")
    right.set(title="mean turns", xlabel="threshold: the exit's probability, or the share of the state's length")
    left.legend(fontsize=7)
    footnote(picture, f"at most {EXIT_DOCUMENTS} documents, the first of the test split")
    named = [{"label": label} | each for label, seeds in zip(labels, groups.values()) for each in seeds]
    return picture, {"models": named}


def _models(paths: list[str], documents: int) -> list[Saved]:
    """Return the looped models, which score so many documents; raise `InputError` for other models."""
    from mentalese.models.saved import load

    models = [load(path).scored_by(max_documents=documents) for path in paths]
    for saved in models:
        if saved.model.config.model_type != "looped" or saved.model.config.turns == 1:
            raise InputError(f"{saved.path} has no block that is run several times: use a looped model with turns")
    return models


def _stopped(saved: Saved, split: Split, rule: str, value: float) -> tuple[float, float, float]:
    """Return the threshold, the mean number of turns of the tokens that predict another, and perplexity."""
    import torch

    from mentalese.families.looped.model import LoopedForCausalLM
    from mentalese.nn.loss import IGNORED

    model = saved.model
    assert isinstance(model, LoopedForCausalLM)
    taken, nats, scored = 0, 0.0, 0
    with temporarily(model.config, **NO_EXITS | {rule: value}), torch.no_grad():
        for batch in batches(saved, split, f"{rule} {value:g}"):
            encoded = model.encode(batch["input_ids"], batch.get("attention_mask"))
            assert encoded.taken is not None
            counted = batch["labels"][:, 1:] != IGNORED
            taken, scored = taken + int(encoded.taken[:, :-1][counted].sum()), scored + int(counted.sum())
            nats += float(model.next_token_nll(encoded.hidden, batch["labels"]).sum())
    return value, taken / scored, math.exp(nats / scored)


def _by_turn(saved: Saved, split: Split, most: int) -> tuple[dict[int, float], dict[int, float]]:
    """Return perplexity and the relative movement of the state for 1 to `most` turns."""
    import torch

    from mentalese.families.looped.model import LoopedForCausalLM
    from mentalese.nn.loss import IGNORED

    model = saved.model
    assert isinstance(model, LoopedForCausalLM)
    nats, moved, scored, tokens = [0.0] * most, [0.0] * most, 0, 0
    with temporarily(model.config, turns=most, **NO_EXITS), torch.no_grad():
        for batch in batches(saved, split, f"up to {most} turns"):
            ids, labels = batch["input_ids"], batch["labels"]
            real = batch.get("attention_mask", torch.ones_like(ids)).bool()
            encoded = model.encode(ids, batch.get("attention_mask"), trace=True)
            scored, tokens = scored + int((labels[:, 1:] != IGNORED).sum()), tokens + int(real.sum())
            for t, (hidden, share) in enumerate(zip(encoded.by_turn, encoded.moved)):
                nats[t] += float(model.next_token_nll(hidden, labels).sum())
                moved[t] += float(share[real].sum())
    return (
        {t + 1: math.exp(total / scored) for t, total in enumerate(nats)},
        {t + 1: total / tokens for t, total in enumerate(moved)},
    )


def _accuracy(saved: Saved, split: Split, most: int) -> dict[int, float]:
    """Return the share of correct answers for 1, 2, 4, .. turns."""
    from mentalese.evaluation.answers import ask

    accuracy = {}
    for t in (2**i for i in range(most.bit_length())):
        with temporarily(saved.model.config, turns=t, **NO_EXITS):
            accuracy[t] = ask(saved, split).metrics().accuracy
    return accuracy


FIGURES = {
    "turns": Figure("perplexity or accuracy by turns at test, and how far each turn moves the state", "RUN ...", turns),
    "exits": Figure("perplexity by mean turns, where a gate or the distance rule stops tokens", "RUN ...", exits),
}
