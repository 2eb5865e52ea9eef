"""`mentalese answer`: gives a model questions."""

from __future__ import annotations

import dataclasses

from mentalese.commands.shared import ResultOptions, metric_rows, only_result_on_stdout, text_read
from mentalese.evaluation.options import AnswerOptions
from mentalese.files import check_place
from mentalese.values import checked_dataclass


@checked_dataclass("")
class Options(ResultOptions, AnswerOptions):
    """Asks a saved model questions, and compares its answers with the right ones.

    Attributes:
        out: NAME.json for the results, beside which NAME.answers.jsonl has a line per question: the right answer, the
            text, the answer read from it, ..; or NAME.jsonl for these lines only.
    """


def run(options: Options) -> None:
    from mentalese.evaluation import answers

    for place in answers.places(options.out) if options.out else ():
        check_place(place, "--out")
    with only_result_on_stdout():
        metrics = answers.run(options.open(), options, out=options.out, show=True)
    options = dataclasses.replace(options, out=None)  # written
    options.report(metrics, ("metric", "value"), list(metric_rows(metrics)), text_read(metrics))
