"""`mentalese ablate`: does the thought matter?"""

from __future__ import annotations

from mentalese.commands.shared import ResultOptions, only_result_on_stdout, text_read
from mentalese.evaluation.options import AblationOptions
from mentalese.formatting import unanswered
from mentalese.values import checked_dataclass


@checked_dataclass("")
class Options(ResultOptions, AblationOptions):
    """Scores a saved model with its own thoughts, without them, with another text's, and with noise on them."""


def run(options: Options) -> None:
    from mentalese.evaluation import ablation

    with only_result_on_stdout():
        result = ablation.run(options.open(), options, show=True)
    is_accuracy = result["unit"] == "accuracy"
    header = ("thoughts", result["unit"], "difference", "95% over documents")
    if is_accuracy:
        header = ("thoughts", "accuracy", "difference in points", "95% over questions")

    def change(value: float) -> str:
        return f"{100 * value:+.1f}" if is_accuracy else f"{value:+.4f}"

    rows = [
        (
            part["thoughts"],
            f"{part['score']:.1%}{unanswered(part)}" if is_accuracy else f"{part['score']:.4f}",
            "" if part["difference"] is None else change(part["difference"]),
            "" if part["interval"] is None else " to ".join(map(change, part["interval"])),
        )
        for part in result["ablations"]
    ]
    options.report(result, header, rows, text_read(result))
