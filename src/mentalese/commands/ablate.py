"""`mentalese ablate`: does the thought matter?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mentalese.commands.options import read_one
from mentalese.commands.shared import ResultOptions, only_result_on_stdout, text_read
from mentalese.evaluation.options import AblationOptions


@dataclass(frozen=True, kw_only=True)
class Options(ResultOptions, AblationOptions):
    """Scores a saved model with its own thoughts, without them, with another text's, and with noise on them."""

    RARE: ClassVar[tuple[str, ...]] = ("config", "text_column", "detokenizer")


def run(words: list[str]) -> None:
    path, options = read_one(Options, words, "ablate", "MODEL")
    options.check()
    from mentalese.evaluation import ablation

    with only_result_on_stdout():
        result = ablation.run(options.open(path), options, show=True)
    digits = ".1%" if result["unit"] == "accuracy" else ".4f"
    rows = [
        (
            part["thoughts"],
            f"{part['score']:{digits}}",
            "" if part["difference"] is None else f"{part['difference']:+{digits}}",
            "" if part["interval"] is None else " to ".join(f"{value:+{digits}}" for value in part["interval"]),
        )
        for part in result["ablations"]
    ]
    over = "questions" if result["unit"] == "accuracy" else "documents"
    options.report(result, ("thoughts", result["unit"], "difference", f"95% over {over}"), rows, text_read(result))
