"""Puts tasks of a suite that has been run into results/suite: their reports, suite.json and its page.

    python scripts/publish.py runs/suite expressions
    python scripts/publish.py runs/suite expressions --join

With `--join` the methods join those that are published, as of a night on another machine. Trained models and curves
stay where they are. The repository's path is cut from commands. The figures are redrawn by

    mentalese figure suite results/suite/suite.json --out results/suite/closed.svg
    mentalese figure suite-text results/suite/suite.json --out results/suite/text.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mentalese.files import read_json, write_text
from mentalese.suite.run import VERSION, joined, write_suite

ROOT = Path(__file__).resolve().parents[1]
FILES = ("compare.json", "report.html")


def publish(folder: Path, names: list[str], results: Path, *, join: bool = False) -> None:
    """Replaces tasks of `results` by those of `folder`; other tasks stay. `join`: tasks keep their other methods."""
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
            [call] = task["calls"]
            place = _new_place(name, call, earlier)
            call["report"] = f"{place}/{Path(call['report']).name}"
            task = joined(task, earlier)
        judged.append(task)
        texts |= {results / place / file: _portable(folder / name / file) for file in FILES}
    write_suite(judged, results, found["created"])
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


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
