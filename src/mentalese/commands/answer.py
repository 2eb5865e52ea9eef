"""`mentalese answer`: asks a model questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mentalese.commands.options import read_one
from mentalese.commands.shared import ResultOptions, metric_rows, only_result_on_stdout, text_read
from mentalese.evaluation.options import AnswerOptions


@dataclass(frozen=True, kw_only=True)
class Options(ResultOptions, AnswerOptions):
    """Asks a saved model questions, and compares its answers with the right ones."""

    RARE: ClassVar[tuple[str, ...]] = ("config", "text_column", "detokenizer")


def run(words: list[str]) -> None:
    path, options = read_one(Options, words, "answer", "MODEL")
    options.check()
    from mentalese.evaluation import answers

    with only_result_on_stdout():
        metrics = answers.run(options.open(path), options, show=True)
    options.report(metrics, ("metric", "value"), list(metric_rows(metrics)), text_read(metrics))
