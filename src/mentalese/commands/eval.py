"""`mentalese eval`: scores a model on a text, and on zero-shot questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mentalese.commands.options import read_one
from mentalese.commands.shared import ResultOptions, metric_rows, only_result_on_stdout, text_read
from mentalese.errors import InputError
from mentalese.evaluation.options import EvaluationOptions


@dataclass(frozen=True, kw_only=True)
class Options(ResultOptions, EvaluationOptions):
    """Scores a saved model: perplexity in its own tokens, and tasks of lm-eval."""

    RARE: ClassVar[tuple[str, ...]] = (
        "estimators",
        "stage",
        "latents",
        "config",
        "fast_steps",
        "text_column",
        "detokenizer",
    )


def run(words: list[str]) -> None:
    if any(word.partition("=")[0] == "--against" for word in words):
        raise InputError("--against: use the command `mentalese diff MODEL OTHER` instead")
    path, options = read_one(Options, words, "eval", "MODEL")
    options.check()
    from mentalese.evaluation import measures

    with only_result_on_stdout():
        questions = measures.read_tasks(options)
        results = measures.run(options.open(path), options, questions, show=True)
    rows = [(task, *row) for task, result in results.items() for row in metric_rows(result)]
    scored = results.get("perplexity", {})
    scored = scored if "source" in scored or not scored else next(iter(scored.values()))  # by estimator
    options.report(results, ("task", "metric", "value"), rows, text_read(scored) if scored else "")
