"""Publish tasks of a suite that has been run in a folder of results: a compare.json each, suite.json and its page.

    python scripts/publish.py runs/suite concepts --results results/suite-2

results/suite has the first edition of tasks that the second one, in results/suite-2, does not have yet.

Trained models, curves, samples and reports stay where they are: compare.json gets a line per run. The repository's path
is cut from commands. The figures are redrawn by

    mentalese figure suite results/suite/suite.json results/suite-2/suite.json --out results/suite/closed.svg
    mentalese figure suite-matrix results/suite/suite.json results/suite-2/suite.json --out results/suite/matrix.svg
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mentalese.files import compact_json, write_text
from mentalese.suite.run import VERSION, stored_tasks, write_suite

ROOT = Path(__file__).resolve().parents[1]
UNPUBLISHED = ("curve", "samples")
"""Parts of a run that its command makes again, and that no table needs."""


def publish(folder: Path, names: list[str], results: Path) -> None:
    """Replace tasks of `results` by those of `folder`; other tasks stay, if they are of the same version."""
    found = json.loads(_portable(folder / "suite.json"))
    if found["version"] != VERSION:
        raise SystemExit(
            f"{folder} has version {found['version']}: run `mentalese suite` again, which writes {VERSION}"
        )
    tasks = {task["name"]: task for task in found["tasks"]}
    if missing := sorted(set(names) - set(tasks)):
        raise SystemExit(f"{folder / 'suite.json'} has no {', '.join(missing)}: use some of {', '.join(tasks)}")
    published_before = results / "suite.json"
    if published_before.is_file() and not stored_tasks(results):
        raise SystemExit(f"{published_before} is of another version: use another folder")
    texts = {}
    for name in names:
        for call in tasks[name]["calls"]:
            file = Path(call["report"]).with_suffix(".json").name.replace("report", "compare")
            call["report"] = f"{name}/{file}"
            compared = json.loads(_portable(folder / name / file))
            texts[results / name / file] = compact_json(without_curves(compared)) + "\n"
    results.mkdir(parents=True, exist_ok=True)
    published = write_suite([tasks[name] for name in names], results, found["created"])
    texts[results / "suite.json"] = compact_json(published) + "\n"
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


def without_curves(compared: dict[str, Any]) -> dict[str, Any]:
    """Return a comparison without the parts of its runs that are `UNPUBLISHED`."""
    rows = [
        row | {"runs": [{name: run[name] for name in run if name not in UNPUBLISHED} for run in row["runs"]]}
        for row in compared["rows"]
    ]
    return compared | {"rows": rows}


def _portable(path: Path) -> str:
    """A file's text without the repository's path."""
    return path.read_text(encoding="utf-8").replace(f"{ROOT}/", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the suite's runs, with suite.json")
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "suite-2")
    options = parser.parse_args()
    publish(options.folder, options.tasks, options.results)


if __name__ == "__main__":
    main()
