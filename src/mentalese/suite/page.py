"""The suite as one page: which part of the gap each family closes on each task, and every method compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from mentalese.files import write_text
from mentalese.formatting import score_text, scored_as, short_count
from mentalese.html import page

_MARGIN = 0.25  # of the scale on both sides of floor and optimum
_SCORED = {"all": "", "answers": " per answer", "second half": " per token of the second halves of documents"}
_ROLES = {"mechanism": "c1", "twin": "c0", "control": "c2", "other": "c3"}


def write_page(result: Mapping[str, Any], path: Path) -> None:
    """Writes the page of `suite.json` to `path`, atomically."""
    write_text(path, suite_page(result))


def suite_page(result: Mapping[str, Any]) -> str:
    """The page as text."""
    tasks = result["tasks"]
    commands = "\n".join(dict.fromkeys(call["command"] for task in tasks for call in task["calls"]))
    body = (
        "<main>\n<header><p class=kind>Mentalese mechanism suite</p>"
        "<h1>Which part of the gap between floor and optimum does each family close?</h1>"
        f'<dl class="facts"><div><dt>created</dt><dd>{_date(result["created"])}</dd></div></dl></header>\n'
        f"<section><h2>Families by tasks</h2>{_heat_map(tasks)}</section>\n"
        + "\n".join(_task(task) for task in tasks)
        + f"\n<section><h2>Commands</h2><pre>{escape(commands)}</pre></section>\n</main>"
    )
    return page("Mentalese mechanism suite", style=Path(__file__).with_suffix(".css").read_text("utf-8"), body=body)


# -- families by tasks -------------------------------------------------------------------------------------------------


def _heat_map(tasks: Sequence[Mapping[str, Any]]) -> str:
    families = list(dict.fromkeys(m["family"] for task in tasks for m in task["methods"] if m["role"] == "mechanism"))
    others = list(dict.fromkeys(m["family"] for task in tasks for m in task["methods"] if m["role"] == "other"))
    head = "".join(f'<th scope="col"><a href="#{task["name"]}">{escape(task["name"])}</a></th>' for task in tasks)
    rows = ""
    for family in [*families, *others]:
        cells = "".join(_cell(task, family) for task in tasks)
        rows += f'<tr><th scope="row">{escape(family)}</th>{cells}</tr>\n'
    return (
        f'<div class="scroll"><table class="heat"><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>'
        "</div><p class=note>0% is the best that a model can do without the mechanism that the task is about, 100% the "
        "best possible; of text, whose optimum is unknown, 0% is the first model and 100% no bits at all. "
        "Small numbers: the same layers without thoughts, and the controls. A cell is filled only if the family has "
        "both and is better than all of them, over at least three seeds with a 95% interval that excludes zero.</p>"
        "<p class=note>In the tables below, dots are seeds, the bar is the 95% interval of their mean, and dashed "
        f"lines are 0% and 100%. What lies beyond {_share(-_MARGIN)} and {_share(1 + _MARGIN)} is drawn there. "
        "(edge): the best learning rate is the smallest or the largest that was tried.</p>"
    )


def stands(method: Mapping[str, Any], methods: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a mechanism has a twin and a control and is better than all of them.

    Args:
        method, methods: one method and all methods of a task in `suite.json`.
    """
    tests = method.get("against", {})
    if not {"twin", "control"} <= {rival["role"] for rival in methods if rival["name"] in tests}:
        return False
    return all(test and test["conclusive"] and test["difference"] > 0 for test in tests.values())


def _cell(task: Mapping[str, Any], family: str) -> str:
    own = [m for m in task["methods"] if m["family"] == family and m["role"] in ("mechanism", "other")]
    if not own:
        return "<td></td>"
    best, closed = own[0], own[0]["closed"]["mean"]
    rivals = [m for m in task["methods"] if m["name"] in best.get("against", {})]
    small = "".join(f"<small>{m['role']} {_share(m['closed']['mean'])}</small>" for m in rivals)
    fill = f' style="--share:{min(max(closed, 0), 1):.3f}" class="filled"' if stands(best, task["methods"]) else ""
    return f"<td{fill}><b>{_share(closed)}</b>{small}</td>"


# -- one task ----------------------------------------------------------------------------------------------------------


def _task(task: Mapping[str, Any]) -> str:
    levels, unit = task["levels"], task["levels"]["unit"]

    def number(value: float) -> str:
        return score_text(value, unit)

    def spread(score: Mapping[str, float], text: Callable[[float], str]) -> str:
        return f"{text(score['mean'])} ± {text(score['std'])}" if task["seeds"] > 1 else text(score["mean"])

    rows = ""
    for method in task["methods"]:
        closed = method["closed"]
        name = escape(method["name"].partition("/")[2])
        against = "<br>".join(
            f"{test['difference']:+.0%} against {escape(rival.partition('/')[2])} (95% {test['interval'][0]:+.0%} to "
            f"{test['interval'][1]:+.0%})"
            for rival, test in method.get("against", {}).items()
            if test is not None
        )
        about = f"{method['role']}: {method['description']}{scored_as(method)}"
        edge = " (edge)" if method["at_edge"] else ""
        further = method.get("further", {})
        others = "".join(f"<td>{spread(one, '{:.3f}'.format)}</td>" for one in further.values())
        rows += (
            f'<tr class="{_ROLES[method["role"]]}"><th scope="row">{name}<small>'
            f"{escape(about)}</small></th><td>{_dots(closed)}</td><td>{_share(closed['mean'])}"
            f"<small>{against}</small></td><td>{spread(method['score'], number)}"
            f"</td>{others}<td>{method['learning_rate']:g}{edge}<small>{_best_of(method['trials'])}</small></td><td>{short_count(method['parameters'])}</td>"
            f"<td>{short_count(method['flops'])}</td></tr>\n"
        )
    columns = (
        *("method", "gap closed, each seed", "mean", unit, *task["methods"][0].get("further", {})),
        *("learning rate", "parameters", "training FLOPs"),
    )
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    commands = "\n".join(
        command for method in task["methods"] for command in method["commands"][:1] if command is not None
    )
    return (
        f'<section id="{task["name"]}"><h2>{escape(task["name"])}</h2><p class=note>'
        f"optimum {number(levels['optimum'])}, floor {number(levels['floor'])}, chance {number(levels['chance'])} "
        f"{unit}{_SCORED[task['scored']]}; size {task['size']:g}, {task['seeds']} seed{'s' * (task['seeds'] > 1)}; "
        f"{_calls(task['calls'])}</p>"
        f'<div class="scroll"><table class="methods"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        f"<details><summary>Commands of the first seeds</summary><pre>{escape(commands)}</pre></details></section>"
    )


def _calls(calls: Sequence[Mapping[str, Any]]) -> str:
    """When methods were trained, with links to their reports; which ones they are if there was more than one call."""
    links = []
    for call in calls:
        names = ", ".join(escape(name.partition("/")[2]) for name in call["methods"])
        of = f" of {names}" if len(calls) > 1 else ""
        links.append(f'{_date(call["created"])}: <a href="{call["report"]}">all trials and scores</a>{of}')
    return "; ".join(links)


def _date(text: str) -> str:
    return escape(text.replace("T", " ").replace("+00:00", " UTC"))


def _best_of(trials: int) -> str:
    return f"best of {trials}" if trials > 1 else "not tuned"


def _share(value: float) -> str:
    return f"{round(100 * value) + 0}%"


def _dots(closed: Mapping[str, Any]) -> str:
    """Each seed as a dot between floor (left line) and optimum (right line), and the interval of the mean."""

    def at(share: float) -> float:
        return 200 * (min(max(share, -_MARGIN), 1 + _MARGIN) + _MARGIN) / (1 + 2 * _MARGIN)

    lines = "".join(f'<path class="level" d="M{at(share):.1f} 2V26"/>' for share in (0.0, 1.0))
    bar = ""
    if closed["interval"] is not None:
        low, high = (at(share) for share in closed["interval"])
        bar = f'<path class="interval" d="M{low:.1f} 14H{high:.1f}"/>'
    dots = "".join(f'<circle cx="{at(share):.1f}" cy="14" r="4"/>' for share in closed["seeds"])
    label = ", ".join(map(_share, closed["seeds"]))
    return f'<svg class="dots" viewBox="0 0 200 28" role="img" aria-label="{label}">{lines}{bar}{dots}</svg>'
