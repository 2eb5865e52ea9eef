"""`mentalese diff`: compares two models token by token."""

from __future__ import annotations

from typing import Annotated

from tyro.conf import Positional, arg

from mentalese.commands.shared import ResultOptions, only_result_on_stdout, text_read
from mentalese.evaluation.options import TextOptions
from mentalese.values import checked_dataclass


@checked_dataclass("")
class Options(ResultOptions, TextOptions):
    """Scores the same tokens by two saved models: the mean difference, and that by position in the sentence.

    Attributes:
        other: the second model.
        config: FIELD=VALUE ...: other values of the first model's config, as far as the weights allow.
        fast_steps: gradient steps that infer the first model's thoughts, if it infers them.
    """

    other: Annotated[Positional[str], arg(metavar="OTHER")]


def run(options: Options) -> None:
    from mentalese.evaluation import paired
    from mentalese.models.saved import load

    with only_result_on_stdout():
        result = paired.run(options.open(), load(options.other), options, show=True)
    labels = {None: "all", paired.POSITIONS: f"{paired.POSITIONS} and later"}
    rows = [
        (
            labels.get(part["position"], str(part["position"])),
            f"{part['tokens']:,}",
            f"{part['difference']:+.4f}",
            "" if part["interval"] is None else "{:+.4f} to {:+.4f}".format(*part["interval"]),
        )
        for part in (result["overall"], *result["by_position"])
    ]
    header = ("position in sentence", "tokens", "nats per token more than OTHER", "95% over documents")
    options.report(result, header, rows, text_read(result | {"tokens": result["overall"]["tokens"]}))
