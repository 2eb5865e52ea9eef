"""Traces as the JSON that the page draws: rounded numbers, each with a title and a sentence.

The page chooses its panels by the data in a trace, so a new family is shown by filling in fields.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from mentalese.evaluation.answer_rule import AnswerRule, final_answer
from mentalese.evaluation.questions import answer_in, rule_of
from mentalese.formatting import model_names, short_names
from mentalese.models.base import LanguageModel, count_parameters
from mentalese.models.saved import Saved
from mentalese.models.trace import INFLUENCE, SHOWN, Shown, ThoughtTrace
from mentalese.registry import MODELS, load

Drawn = dict[str, Any]
"""Data of a page, for JSON."""
VERSION = 1
_LINKS = 4  # the strongest of each thought
_WEAKEST = 0.01
_READ_INSTEAD = {
    "removed": "a constant in place of its thoughts",
    "swapped": "another text's thoughts in place of its own, or a constant where there is no other text",
    "noisy": "its thoughts with noise",
}
_CONTROLS = {
    "removed": ("with and without its thoughts", "without thoughts"),
    "swapped": ("with its thoughts and with another text's", "with another text's thoughts"),
    "noisy": ("with its thoughts and with noise in their place", "with noise"),
}


def payload(
    traces: Sequence[ThoughtTrace],
    *,
    models: Sequence[Saved] = (),
    control: str | None = None,
    text: str | None = None,
    expected: str | None = None,
    command: str = "",
) -> Drawn:
    """Return the data that `mentalese.viewer.page.page` draws.

    Args:
        traces: of one model, or of two on the same text. For the tokens that both read after the same ones, each gets
            the score `gain`: the other's surprisal minus its own. `note` says how many tokens these are.
        models: the models of the traces, for their names and sizes and for how their answers are read; default: their
            types are the names.
        control: the control of the second trace, whose model is the first one's: `removed`, `swapped`, `noisy`.
        text: the text of the traces; `None`: the first trace's tokens.
        expected: the right answer to the question in the text; each trace's own answer is compared with it, see
            `mentalese.evaluation.answer_rule.final_answer`, or `free_answer` for models not trained to end one.
        command: the command that made the page.
    """
    names = model_names([model.path for model in models[: 1 if control else None]])
    names = names or [trace.model for trace in traces]
    short = short_names(names)
    thinks = bool(_model_class(traces[0].model).about_thoughts)
    title = f"What {names[0]} thought" if thinks else f"{names[0]}, token by token"
    if control is not None:
        title, without = f"{names[0]}, {_CONTROLS[control][0]}", _CONTROLS[control][1]
        short, names = ["with thoughts", without], [names[0], f"{names[0]}, thoughts {control}"]
    elif len(names) > 1:
        title = f"{' and '.join(names)} on the same text"
    readers: Sequence[Saved | None] = models or [None] * len(traces)
    drawn = [
        _trace(trace, reader, expected) | {"name": name, "short": label}
        for trace, reader, name, label in zip(traces, readers, names, short)
    ]
    note = _add_gains(traces, drawn, control) if len(drawn) > 1 else ""
    return {
        "version": VERSION,
        "title": title,
        "control": control,
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "text": "".join(traces[0].tokens) if text is None else text,
        "note": note,
        "unlike": len(drawn) > 1 and any(_no_likelihood(trace) for trace in drawn),
        "traces": drawn,
    }


def _trace(trace: ThoughtTrace, model: Saved | None, expected: str | None) -> Drawn:
    kind = _model_class(trace.model)
    words = {**SHOWN, **kind.shown}
    about, written, answer = kind.about_thoughts, trace.written, None
    if trace.control is not None:
        about += f" This model reads {_READ_INSTEAD[trace.control]} (thought_control={trace.control})."
    if written is not None:
        pairs = zip(trace.tokens[written:], trace.special[written:])
        text = "".join(token for token, special in pairs if not special).strip()
        right = None if expected is None else final_answer(f"### {expected}")
        final, is_right = final_answer(text) if model is None else answer_in(text, right, model), None
        if right is not None:
            rule = AnswerRule.of("", [right]) if model is None else rule_of(model, [right])
            is_right = rule.equal(final, right)
        answer = {"start": written, "text": text, "answer": final, "expected": right, "right": is_right}

    def text_of(token: int) -> str:
        return trace.vocabulary.get(token, str(token))

    return {
        "answer": answer,
        "windows": [list(window) for window in trace.windows],
        "model": trace.model,
        "parameters": None if model is None else count_parameters(model.model)["total"],
        "about": about,
        "tokens": trace.tokens or [str(token) for token in trace.input_ids.tolist()],
        "special": trace.special or [False] * len(trace.input_ids),
        "scores": {
            key: vars(_shown(key, words)) | {"values": numbers(values), "diverging": key == INFLUENCE}
            for key, values in trace.scores.items()
        },
        "thoughts": [
            {
                "start": thought.start,
                "end": thought.end,
                "label": thought.label,
                "layer": thought.layer,
                "codes": list(thought.codes),
                "nearest": [[text_of(token), _rounded(share)] for token, share in thought.nearest],
            }
            for thought in trace.thoughts
        ],
        "links": {key: vars(_shown(key, words)) | {"edges": _edges(link)} for key, link in trace.links.items()},
        "curves": {key: vars(_shown(key, words)) | {"values": numbers(_at_places(trace, key))} for key in trace.curves},
        "readings": [
            {
                "title": _shown(key, words).title,
                "tokens": [text_of(token) for token in reading.tolist()],
                "right": (reading == trace.input_ids).tolist(),  # texts of equal ids may differ
            }
            for key, reading in trace.readings.items()
        ],
        "streams": {key: numbers(column) for key, column in trace.streams.items()} or None,
    }


def _model_class(model_type: str) -> type[LanguageModel]:
    """Return the class with the words for a model's thoughts."""
    kind = load(MODELS[model_type]) if model_type in MODELS else LanguageModel
    return kind if issubclass(kind, LanguageModel) else LanguageModel


def _shown(key: str, words: Mapping[str, Shown]) -> Shown:
    """Return the words for a name: its own, its stem's (`streams.` for `streams.3`), or the name itself."""
    stem, dot, rest = key.partition(".")
    if key in words or not dot or stem + dot not in words:
        return words.get(key, Shown(key.replace("_", " ")))
    shown = words[stem + dot]
    return dataclasses.replace(shown, title=shown.title.format(rest), about=shown.about.format(rest))


def _at_places(trace: ThoughtTrace, name: str) -> Tensor:
    """Return a curve with a number for each place from the first on: NaN where it has none."""
    values, places = trace.curves[name], trace.places.get(name)
    if places is None:
        return values
    numbers = values.new_full((max(places.tolist(), default=-1) + 1,), math.nan)
    numbers[places] = values
    return numbers


def _edges(link: Tensor) -> list[list[float]]:
    """Return [i, j, weight] of the strongest links between different thoughts, whatever their sign."""
    link = link.float().clone().fill_diagonal_(0)
    if not len(link):
        return []
    others = link.abs().topk(min(_LINKS, len(link))).indices
    weights = link.gather(1, others)
    return [
        [i, j, _rounded(weight) or 0.0]
        for i, pairs in enumerate(zip(others.tolist(), weights.tolist()))
        for j, weight in zip(*pairs)
        if abs(weight) >= _WEAKEST
    ]


def _add_gains(traces: Sequence[ThoughtTrace], drawn: list[Drawn], control: str | None) -> str:
    """Add the score `gain` of either model over the other, for tokens that both read after the same ones.

    Returns:
        What to know of the gain: surprisals that are not likelihoods, tokens without one; empty if it is nothing.
    """
    text = [[i for i, special in enumerate(trace["special"]) if not special] for trace in drawn]
    same = 0
    for i, j in zip(*text):
        if drawn[0]["tokens"][i] != drawn[1]["tokens"][j]:
            break
        same += 1
    names = " and ".join(trace["short"] for trace in drawn)
    if not same:
        return f"{names} tokenise the text differently from the first token on: no difference can be shown."
    places = [torch.tensor(part[:same], device=trace.input_ids.device) for part, trace in zip(text, traces)]
    surprisals = [trace.scores["surprisal"][at].float().cpu() for trace, at in zip(traces, places)]
    unlike = [
        f"Surprisal {'' if control else 'of '}{trace['short']}: {trace['scores']['surprisal']['about']}"
        for trace in drawn
        if _no_likelihood(trace)
    ]
    for index, other in ((0, 1), (1, 0)):
        values = torch.full(traces[index].input_ids.shape, math.nan)
        values[places[index].cpu()] = surprisals[other] - surprisals[index]
        name = drawn[other]["short"]
        title, about = f"gain over {name}", f"Surprisal of {name} minus the surprisal of this model on the same text: "
        if control:
            title, about = f"gain {drawn[index]['short']}", f"Surprisal {name} minus that {drawn[index]['short']}: "
        about += f"below zero, it is lower {name}." if control else f"below zero, {name} is better."
        drawn[index]["scores"]["gain"] = {
            "title": title,
            "unit": "nats",
            "about": " ".join([about, *unlike]),
            "values": numbers(values),
            "diverging": True,
        }
    if same < max(map(len, text)):
        first = "The first token is" if same == 1 else f"The first {same} tokens are"
        unlike.append(f"{first} the same for {names}; after these no difference is shown.")
    return " ".join(unlike)


def _no_likelihood(trace: Drawn) -> bool:
    """Test if the surprisal of a trace, as it is drawn, is not the autoregressive one of other models."""
    return bool(trace["scores"]["surprisal"]["about"] != SHOWN["surprisal"].about)


def numbers(values: Tensor) -> list[float | None]:
    """Return a tensor [n] for JSON: four significant digits, `None` for NaN and infinity."""
    return [_rounded(value) if isinstance(value, float) else value for value in values.tolist()]


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None
