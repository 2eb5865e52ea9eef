"""Publish tasks of a suite that has been run in results/suite: a compare.json each, suite.json and its page.

    python scripts/publish.py runs/suite expressions
    python scripts/publish.py runs/suite expressions --join

With `--join` the methods join those that are published, as of a night on another machine. Trained models, curves,
samples and reports stay where they are: compare.json gets a line per run. The repository's path is cut from commands.
The figures are redrawn by

    mentalese figure suite results/suite/suite.json --out results/suite/closed.svg
    mentalese figure suite-matrix results/suite/suite.json --out results/suite/matrix.svg
    mentalese figure suite-text results/suite/suite.json --out results/suite/text.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mentalese.errors import require
from mentalese.files import compact_json, read_json, write_text
from mentalese.suite.judge import add_tests
from mentalese.suite.recipes import SUITE
from mentalese.suite.run import VERSION, write_suite

ROOT = Path(__file__).resolve().parents[1]
_SAME = ("spec", "scored", "seeds", "size", "step", "levels")
"""Fields in which two calls of a task must agree, for their methods to be in one table."""
UNPUBLISHED = ("curve", "samples")
"""Parts of a run that its command makes again, and that no table needs."""


def publish(folder: Path, names: list[str], results: Path, *, join: bool = False) -> None:
    """Replace tasks of `results` by those of `folder`; other tasks stay. `join`: tasks keep their other methods."""
    suites = [place / "suite.json" for place in (folder, results)]
    if (versions := {read_json(suite)["version"] for suite in suites}) != {VERSION}:
        raise SystemExit(f"suite.json has the versions {versions}: run `mentalese suite` again, which writes {VERSION}")
    found = json.loads(_portable(suites[0]))
    tasks = {task["name"]: task for task in found["tasks"]}
    if missing := sorted(set(names) - set(tasks)):
        raise SystemExit(f"{suites[0]} has no {', '.join(missing)}: use some of {', '.join(tasks)}")
    published = {task["name"]: task for task in read_json(suites[1])["tasks"]} if join else {}
    texts, judged = {}, []
    for name in names:
        task, place = tasks[name], name
        if earlier := published.get(name):
            place = _new_place(name, task["calls"][0], earlier)
        for call in task["calls"]:
            file = Path(call["report"]).with_suffix(".json").name.replace("report", "compare")
            call["report"] = f"{place}/{file}"
            compared = json.loads(_portable(folder / name / file))
            texts[results / place / file] = compact_json(without_curves(compared)) + "\n"
        judged.append(joined(task, earlier) if earlier else task)
    texts[suites[1]] = compact_json(write_suite(judged, results, found["created"])) + "\n"
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


def joined(judged: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Return a task with the methods of an earlier call; for the same name, the new method is taken.

    Raises:
        InputError: the calls differ in the text, the length, the seeds or the levels, or a method no longer exists.
    """
    again = "run all methods again, and replace the earlier results"
    for name in _SAME:
        where = f"{name} of {judged['name']}"
        require(judged[name] == earlier[name], where, judged[name], f"earlier it was {earlier[name]!r}, so {again}")
    new = {method["name"] for method in judged["methods"]}
    others = [dict(method) for method in earlier["methods"] if method["name"] not in new]
    calls = []
    for call in earlier["calls"]:
        if left := [name for name in call["methods"] if name not in new]:
            calls.append(call | {"methods": left})
    task = SUITE[judged["name"]](judged["size"])
    order = [method.recipe.name for method in task.methods]
    gone = [method["name"] for method in others if method["name"] not in order]
    require(not gone, f"methods of earlier results of {judged['name']}", gone, f"it no longer has these, so {again}")
    methods = sorted([*judged["methods"], *others], key=lambda method: order.index(method["name"]))
    add_tests(methods, task, judged["step"])
    return {**judged, "methods": methods, "calls": [*calls, *judged["calls"]]}


def without_curves(compared: dict[str, Any]) -> dict[str, Any]:
    """Return a comparison without the parts of its runs that are `UNPUBLISHED`."""
    rows = [
        row | {"runs": [{name: run[name] for name in run if name not in UNPUBLISHED} for run in row["runs"]]}
        for row in compared["rows"]
    ]
    return compared | {"rows": rows}


def _new_place(name: str, call: dict[str, Any], earlier: dict[str, Any]) -> str:
    """The folder of a call's report: that of the first method that no earlier report of the task has."""
    reported = {method for other in earlier["calls"] for method in other["methods"]}
    place = next((method for method in call["methods"] if method not in reported), name)
    if place in {str(Path(other["report"]).parent) for other in earlier["calls"]}:
        raise SystemExit(f"{name} has a report in {place} already: publish it without --join")
    return place


def _portable(path: Path) -> str:
    """A file's text without the repository's path."""
    return path.read_text(encoding="utf-8").replace(f"{ROOT}/", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the suite's runs, with suite.json")
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--join", action="store_true", help="keep the methods that are published and not in the folder")
    options = parser.parse_args()
    publish(options.folder, options.tasks, ROOT / "results" / "suite", join=options.join)


if __name__ == "__main__":
    main()
