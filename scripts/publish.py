"""Puts tasks of a suite that has been run into results/suite: their reports, suite.json and its page.

    python scripts/publish.py runs/suite expressions

Trained models and curves stay where they are. The repository's path is cut from commands. The figures are
redrawn by

    mentalese figure suite results/suite/suite.json --out results/suite/closed.svg
    mentalese figure suite-text results/suite/suite.json --out results/suite/text.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from mentalese.files import read_json, write_text
from mentalese.suite.run import VERSION, write_suite

ROOT = Path(__file__).resolve().parents[1]
FILES = ("compare.json", "report.html")


def publish(folder: Path, names: list[str], results: Path) -> None:
    """Replaces tasks of `results` by those of `folder`, which keep their names; other tasks stay."""
    suites = [place / "suite.json" for place in (folder, results)]
    if (versions := {read_json(suite)["version"] for suite in suites}) != {VERSION}:
        raise SystemExit(f"suite.json has the versions {versions}: run `mentalese suite` again, which writes {VERSION}")
    found = json.loads(_portable(suites[0]))
    tasks = {task["name"]: task for task in found["tasks"]}
    if missing := sorted(set(names) - set(tasks)):
        raise SystemExit(f"{suites[0]} has no {', '.join(missing)}: use some of {', '.join(tasks)}")
    texts = {results / name / file: _portable(folder / name / file) for name in names for file in FILES}
    write_suite([tasks[name] for name in names], results, found["created"])
    for path, text in texts.items():
        path.parent.mkdir(exist_ok=True)
        write_text(path, text)


def _portable(path: Path) -> str:
    """A file's text without the repository's path."""
    return path.read_text(encoding="utf-8").replace(f"{ROOT}/", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the suite's runs, with suite.json")
    parser.add_argument("tasks", nargs="+")
    options = parser.parse_args()
    publish(options.folder, options.tasks, ROOT / "results" / "suite")


if __name__ == "__main__":
    main()
