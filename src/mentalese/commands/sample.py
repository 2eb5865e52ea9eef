"""`mentalese sample`: scores a model's own text by a second model."""

from __future__ import annotations

from mentalese.commands.shared import ResultOptions, metric_rows, only_result_on_stdout
from mentalese.evaluation.options import SampleOptions
from mentalese.values import checked_dataclass


@checked_dataclass("")
class Options(ResultOptions, SampleOptions):
    """Samples text from a saved model: perplexity under a second model, entropy, speed, and MAUVE after prompts."""


def run(options: Options) -> None:
    from mentalese.evaluation import samples

    with only_result_on_stdout():
        judge = samples.open_judge(options)
        results = samples.run(options.open(), options, judge, show=True)
    rows = [(kind, *row) for kind, result in results.items() for row in metric_rows(result)]
    options.report(results, ("kind", "metric", "value"), rows)
