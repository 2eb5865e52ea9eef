"""`mentalese sample`: scores a model's own text by a second model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mentalese.commands.options import read_one
from mentalese.commands.shared import ResultOptions, device, metric_rows, only_result_on_stdout
from mentalese.evaluation.options import SampleOptions


@dataclass(frozen=True, kw_only=True)
class Options(ResultOptions, SampleOptions):
    """Samples text from a saved model: perplexity under a second model, entropy, speed, and MAUVE after prompts."""

    RARE: ClassVar[tuple[str, ...]] = ("prompt_tokens", "draws", "config", "fast_steps", "text_column", "detokenizer")


def run(words: list[str]) -> None:
    path, options = read_one(Options, words, "sample", "MODEL")
    options.check()
    from mentalese.evaluation import samples

    with only_result_on_stdout():
        judge = samples.open_judge(options, device())
        results = samples.run(options.open(path), options, judge, show=True)
    rows = [(kind, *row) for kind, result in results.items() for row in metric_rows(result)]
    options.report(results, ("kind", "metric", "value"), rows)
