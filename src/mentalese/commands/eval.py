"""`mentalese eval`: scores a model on a text, and on zero-shot questions."""

from __future__ import annotations

from mentalese.commands.shared import ResultOptions, metric_rows, only_result_on_stdout, text_read
from mentalese.evaluation.options import EvaluationOptions
from mentalese.values import checked_dataclass


@checked_dataclass("")
class Options(ResultOptions, EvaluationOptions):
    """Scores a saved model: perplexity in its own tokens, and tasks of lm-eval."""


def run(options: Options) -> None:
    from mentalese.evaluation import measures

    with only_result_on_stdout():
        questions = measures.read_tasks(options)
        results = measures.run(options.open(), options, questions, show=True)
    rows = [(task, *row) for task, result in results.items() for row in metric_rows(result)]
    scored = results.get("perplexity", {})
    scored = scored if "source" in scored or not scored else next(iter(scored.values()))  # by estimator
    options.report(results, ("task", "metric", "value"), rows, text_read(scored) if scored else "")
