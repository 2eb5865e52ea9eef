"""The demo as one page: each model, what it is asked, what it answers with and without its thoughts, and the scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from mentalese.formatting import score_text, short_count
from mentalese.html import page

_FULL = 2.0  # nats of the deepest colour


def demo_page(found: Mapping[str, Any]) -> str:
    """The page of `demo.json`."""
    models = found["models"]
    here = Path(__file__)
    sheets = (here.parents[1] / "suite" / "page.css", here.with_suffix(".css"))
    style = "".join(sheet.read_text("utf-8") for sheet in sheets)
    body = (
        "<main>\n<header><p class=kind>Mentalese demo</p><h1>Small models that think, "
        "and what they lose without their thoughts</h1>"
        "<p class=lead>Each model was trained just now, on texts that are made to need its kind of thought. Its scores "
        "are compared with those that it has when its thoughts are removed, or replaced by those of another text.</p>"
        "</header>\n" + "\n".join(_model(model) for model in models) + f"\n{_table(models)}\n"
        f"<section><h2>Command</h2><pre>{escape(found['command'])}</pre></section>\n</main>"
    )
    return page("Mentalese demo", style=style, body=body)


def _model(model: Mapping[str, Any]) -> str:
    examples = model["examples"]
    shown = _answers(examples) if "right" in examples[0] else _gains(examples[:2])
    return (
        f'<section class="model" id="{model["name"]}"><h2>{escape(model["title"])}</h2>'
        f'<p class="lead">{escape(model["about"])}</p><div>{_forks(model["streams"])}{shown}'
        f'<a class="open" href="{escape(model["page"])}">Look at its thoughts</a></div>{_bars(model)}</section>'
    )


def _forks(streams: Sequence[tuple[str, int]]) -> str:
    """A text with a dot below each token for each of its streams."""
    if not streams:
        return ""
    tokens = "".join(
        f"<span>{escape(text.strip())}<small>{'&bull;' * count}</small></span>" + ("<br>" if text == "\n" else "")
        for text, count in streams
    )
    return f'<p class="forks">{tokens}</p>'


def _answers(examples: Sequence[Mapping[str, Any]]) -> str:
    """A row per question: the right answer, and the model's with and without its thoughts."""

    def cell(example: Mapping[str, Any], key: str) -> str:
        kind = "right" if example[key] == example["right"] else "wrong"
        return f'<td class="{kind}">{escape(example[key] or "no answer")}</td>'

    rows = "".join(
        f'<tr><th scope="row">{escape(one["text"])}</th>{cell(one, "with")}{cell(one, "without")}</tr>\n'
        for one in examples
    )
    return (
        '<table class="answers"><thead><tr><th scope="col">question</th><th scope="col">with its thoughts</th>'
        f'<th scope="col">without</th></tr></thead><tbody>{rows}</tbody></table>'
        "<p class=note>Chosen examples: first questions that it answers with its thoughts alone.</p>"
    )


def _gains(examples: Sequence[Mapping[str, Any]]) -> str:
    """Texts whose tokens are coloured by what thoughts are worth there."""

    def token(text: str, gain: float) -> str:
        tone = "--more" if gain >= 0 else "--less"
        share = min(abs(gain) / _FULL, 1.0)
        return f'<span style="--tone:var({tone});--v:{share:.2f}" title="{gain:+.2f} nats">{escape(text)}</span>'

    texts = "".join(
        f'<p class="gains">{"".join(map(token, one["tokens"], one["gain"])).strip()}</p>' for one in examples
    )
    return (
        f"<p class=note>Blue: a token that the thoughts make more likely; orange: less likely; the deepest colour is "
        f"{_FULL:g} nats.</p>{texts}"
    )


def _bars(model: Mapping[str, Any]) -> str:
    """Scores as bars from 0 to 100%; of nats, to a uniform guess or the worst score."""
    levels, unit = model["levels"], model["levels"]["unit"]
    accuracy = unit == "accuracy"
    most = 1.0 if accuracy else max(levels["chance"], *model["scores"].values())
    rows = ""
    for label, score in model["scores"].items():
        text = f"{score:.0%} right" if accuracy else f"{score:.2f} nats"
        kind = "" if label == "own thoughts" else ' class="less"'
        rows += f'<dt>{escape(label)}: {text}</dt><dd{kind}><i style="--share:{score / most:.3f}"></i></dd>'
    better = "longer is better" if accuracy else "shorter is better"
    optimum = f"{levels['optimum']:.0%}" if accuracy else f"{levels['optimum']:.2f}"
    chance = f"{levels['chance']:.0%}" if accuracy else f"{levels['chance']:.2f}"
    return (
        f'<div><dl class="bars">{rows}</dl><p class="note">{better}; best possible {optimum}, chance {chance}</p></div>'
    )


def _table(models: Sequence[Mapping[str, Any]]) -> str:
    labels = list(models[0]["scores"])
    head = "".join(
        f'<th scope="col">{escape(column)}</th>'
        for column in ("model", "parameters", "training tokens", "seconds", "unit", "best possible", *labels, "chance")
    )
    rows = ""
    for model in models:
        levels = model["levels"]

        def number(value: float, unit: str = levels["unit"]) -> str:
            return score_text(value, unit)

        cells = (
            short_count(model["parameters"]), short_count(model["tokens"]), f"{model['seconds']:.0f}", levels["unit"],
            number(levels["optimum"]), *(number(model["scores"][label]) for label in labels), number(levels["chance"]),
        )  # fmt: skip
        rows += (
            f'<tr><th scope="row">{escape(model["family"])}<small>{escape(model["recipe"])}</small></th>'
            + "".join(f"<td>{cell}</td>" for cell in cells)
            + "</tr>\n"
        )
    return (
        f'<section><h2>All scores</h2><div class="scroll"><table class="methods"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div><p class=note>One seed each. Whether a mechanism is better than the same "
        "layers without it is a question for <code>mentalese suite</code>, with tuned rates and several seeds.</p>"
        "</section>"
    )
