"""Puts tasks of a suite that has been run into results/suite: their reports, suite.json and its page.

    python scripts/publish.py runs/suite expressions

Trained models and curves stay where they are. The repository's path is cut from commands. The figure is
redrawn by

    mentalese figure suite results/suite/suite.json --out results/suite/closed.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mentalese.families.suite.recipes import SUITE
from mentalese.files import read_json, write_json, write_text
from mentalese.suite.page import write_page
from mentalese.suite.run import VERSION

ROOT = Path(__file__).resolve().parents[1]
FILES = ("compare.json", "report.html")


def publish(folder: Path, names: list[str], results: Path) -> None:
    """Replaces tasks of `results` by those of `folder`, which keep their names; other tasks stay."""
    made = {task["name"]: task for task in read_json(folder / "suite.json")["tasks"]}
    if missing := sorted(set(names) - set(made)):
        raise SystemExit(f"{folder / 'suite.json'} has no {', '.join(missing)}: use some of {', '.join(made)}")
    found = read_json(results / "suite.json")
    if (versions := {found["version"], read_json(folder / "suite.json")["version"]}) != {VERSION}:
        raise SystemExit(f"suite.json has the versions {versions}: run `mentalese suite` again, which writes {VERSION}")
    tasks = {task["name"]: task for task in found["tasks"]} | {name: made[name] for name in names}
    found |= {
        "created": read_json(folder / "suite.json")["created"],
        "tasks": [tasks[name] for name in SUITE if name in tasks],
    }
    write_json(results / "suite.json", found)
    write_page(found, results / "suite.html")
    for name in names:
        (results / name).mkdir(exist_ok=True)
        for file in FILES:
            write_text(results / name / file, (folder / name / file).read_text(encoding="utf-8"))
    here = f"{ROOT}/"
    for path in (results / "suite.json", results / "suite.html", *(results / n / f for n in names for f in FILES)):
        write_text(path, path.read_text(encoding="utf-8").replace(here, ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the suite's runs, with suite.json")
    parser.add_argument("tasks", nargs="+")
    options = parser.parse_args()
    publish(options.folder, options.tasks, ROOT / "results" / "suite")


if __name__ == "__main__":
    main()
