"""Traces as the JSON that the page draws: rounded numbers, each with a title and a sentence.

The page chooses its panels by the data in a trace, so a new family is shown by filling in fields.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from mentalese.evaluation.answer_rule import AnswerRule, final_answer
from mentalese.formatting import short_names
from mentalese.models.base import LanguageModel
from mentalese.models.trace import SHOWN, Shown, ThoughtTrace
from mentalese.registry import families, load

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
    "noisy": ("with its thoughts and with noise in their place", "with noise"),
}


def payload(
    traces: Sequence[ThoughtTrace],
    *,
    names: Sequence[str] = (),
    control: str | None = None,
    parameters: Sequence[int] = (),
    text: str | None = None,
    expected: str | None = None,
    command: str = "",
) -> dict[str, Any]:
    """Return the data that `mentalese.viewer.page.page` draws.

    Args:
        traces: of one model, or of two on the same text. For the tokens that both read after the same ones, each gets
            the score `gain`: the other's surprisal minus its own. `note` says how many tokens these are.
        names: names of the models; default: their types.
        control: the control of the second trace, whose model is the first one's: `removed`, `noisy`.
        parameters: parameter counts of the models, if known.
        text: the text of the traces; `None`: the first trace's tokens.
        expected: the right answer to the question in the text; each trace's own answer is compared with it, see
            `mentalese.evaluation.answer_rule.final_answer`.
        command: the command that made the page.
    """
    names = names or [trace.model for trace in traces]
    short = short_names(names)
    thinks = bool(_model_class(traces[0].model).about_thoughts)
    title = f"What {names[0]} thought" if thinks else f"{names[0]}, token by token"
    if control is not None:
        title, without = f"{names[0]}, {_CONTROLS[control][0]}", _CONTROLS[control][1]
        short, names = ["with thoughts", without], [names[0], f"{names[0]}, thoughts {control}"]
    elif len(names) > 1:
        title = f"{' and '.join(names)} on the same text"
    drawn = [_trace(trace, name, expected) for trace, name in zip(traces, names)]
    for trace, label in zip(drawn, short):
        trace["short"] = label
    for trace, count in zip(drawn, parameters):
        trace["parameters"] = count
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


def _about(thoughts: str, control: str | None) -> str:
    """Describe a model's thoughts, and their replacement under a control."""
    if control is None:
        return thoughts
    return f"{thoughts} This model reads {_READ_INSTEAD[control]} (thought_control={control})."


def _trace(trace: ThoughtTrace, name: str, expected: str | None) -> dict[str, Any]:
    kind = _model_class(trace.model)
    words = {**SHOWN, **kind.shown}
    return {
        "name": name,
        "answer": None if trace.written is None else _answer(trace, trace.written, expected),
        "windows": [list(window) for window in trace.windows],
        "model": trace.model,
        "parameters": None,
        "about": _about(kind.about_thoughts, trace.control),
        "tokens": trace.tokens or [str(token) for token in trace.input_ids.tolist()],
        "special": trace.special or [False] * len(trace.input_ids),
        "scores": {
            key: _described(key, words, "unit") | {"values": numbers(values), "diverging": False}
            for key, values in trace.scores.items()
        },
        "thoughts": [
            {
                "start": thought.start,
                "end": thought.end,
                "label": thought.label,
                "layer": thought.layer,
                "codes": list(thought.codes),
                "nearest": [[_text(trace, token), _rounded(share)] for token, share in thought.nearest],
            }
            for thought in trace.thoughts
        ],
        "links": {key: _described(key, words) | {"edges": _edges(link)} for key, link in trace.links.items()},
        "curves": {
            key: _described(key, words, "unit") | {"x": _shown(key, words).along, "values": numbers(values)}
            for key, values in trace.curves.items()
        },
        "readings": [
            {"title": _shown(key, words).title, "tokens": [_text(trace, token) for token in reading.tolist()]}
            for key, reading in trace.readings.items()
        ],
        "streams": {key: numbers(column) for key, column in trace.streams.items()} or None,
    }


def _answer(trace: ThoughtTrace, written: int, expected: str | None) -> dict[str, Any]:
    """Return the text from the token `start` on and its correctness; `None` without a right answer."""
    pairs = zip(trace.tokens[written:], trace.special[written:])
    text = "".join(token for token, special in pairs if not special).strip()
    answer, right = final_answer(text), None if expected is None else final_answer(f"### {expected}")
    return {"start": written, "text": text, "answer": answer, "expected": right,
            "right": None if right is None else AnswerRule.of("", [right]).equal(answer, right)}  # fmt: skip


def _model_class(model_type: str) -> type[LanguageModel]:
    """Return the class with the words for a model's thoughts."""
    for family in families().values():
        if model_type in family.classes:
            kind = load(family.classes[model_type][1])
            return kind if issubclass(kind, LanguageModel) else LanguageModel
    return LanguageModel


def _shown(key: str, words: Mapping[str, Shown]) -> Shown:
    """Return the words for a name: its own, its stem's (`streams.` for `streams.3`), or the name itself."""
    stem, dot, rest = key.partition(".")
    if key in words or stem + dot not in words or not dot:
        return words.get(key, Shown(key.replace("_", " ")))
    words_of_stem = words[stem + dot]
    return Shown(
        words_of_stem.title.format(rest), words_of_stem.about.format(rest), words_of_stem.unit, words_of_stem.along
    )


def _described(key: str, words: Mapping[str, Shown], *more: str) -> dict[str, str]:
    words_of_key = _shown(key, words)
    return {name: getattr(words_of_key, name) for name in ("title", "about", *more)}


def _text(trace: ThoughtTrace, token: int) -> str:
    return trace.vocabulary.get(token, str(token))


def _edges(link: Tensor) -> list[list[float]]:
    """Return [i, j, weight] of the strongest links between different thoughts."""
    link = link.float().clone().fill_diagonal_(0)
    if not len(link):
        return []
    weights, others = link.topk(min(_LINKS, len(link)))
    return [
        [i, j, _rounded(weight) or 0.0]
        for i, pairs in enumerate(zip(others.tolist(), weights.tolist()))
        for j, weight in zip(*pairs)
        if weight >= _WEAKEST
    ]


def _add_gains(traces: Sequence[ThoughtTrace], drawn: list[dict[str, Any]], control: str | None) -> str:
    """Add the score `gain` of either model over the other, for tokens that both read after the same ones.

    Returns:
        What to know of the gain: surprisals that are no likelihoods, tokens without one; empty if it is nothing.
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
        title, about = f"gain over {name}", f"Surprisal of {name} minus that of this model on the same text: "
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
        unlike.append(f"The first {same} tokens are the same for {names}; after these no difference is shown.")
    return " ".join(unlike)


def _no_likelihood(trace: dict[str, Any]) -> bool:
    """Test if the surprisal of a trace, as it is drawn, is not the autoregressive one of other models."""
    return bool(trace["scores"]["surprisal"]["about"] != SHOWN["surprisal"].about)


def numbers(values: Tensor) -> list[Any]:
    """Return a tensor [n] for JSON: four significant digits, `None` for NaN and infinity."""
    return [_rounded(value) if isinstance(value, float) else value for value in values.tolist()]


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None
