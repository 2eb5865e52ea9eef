"""`mentalese demo`: small models that think, trained in minutes, on one page."""

from __future__ import annotations

from pathlib import Path

from mentalese.formatting import score_text
from mentalese.screen import only_result_on_stdout, print_json, print_table
from mentalese.values import Place, Positive, checked_dataclass


@checked_dataclass("")
class Options:
    """Trains five small models in a few minutes and writes a page with their thoughts and scores without thoughts.

    Attributes:
        jobs: trainings at once, each in a process with one thread or one GPU.
        out: the folder of all runs and pages; the same command continues there.
        json: print the result as JSON.
    """

    jobs: Positive = 2
    out: Place = Path("runs/demo")
    json: bool = False


def run(options: Options) -> None:
    from mentalese.suite.demo import run_demo

    with only_result_on_stdout():
        result = run_demo(options.out, jobs=options.jobs)
    if options.json:
        return print_json(result)
    labels = list(result["models"][0]["scores"])
    rows = []
    for model in result["models"]:
        levels = model["levels"]
        scores = (levels["optimum"], *(model["scores"][label] for label in labels), levels["chance"])
        rows.append((model["family"], levels["unit"], *(score_text(score, levels["unit"]) for score in scores)))
    print_table(("model", "unit", "best possible", *labels, "chance"), rows)
    return print(f"\n{options.out / 'index.html'} shows what each of them thinks.")
