"""`mentalese train`: trains one recipe."""

from __future__ import annotations

import sys
from pathlib import Path

from mentalese.commands.options import RecipeName, Settings, names_before_options, read_options, read_recipe
from mentalese.errors import require
from mentalese.evaluation.metric import ACCURACY, metric_of
from mentalese.files import JsonObject
from mentalese.formatting import scored_as, unanswered
from mentalese.recipe_files import open_recipe
from mentalese.values import Place, PositiveNumber, checked_dataclass


@checked_dataclass("")
class Options:
    """Trains a recipe, every field of which is an option (`mentalese train RECIPE --help`).

    Attributes:
        recipe: a recipe's name or file.
        settings: section.field=value ...: other values of fields.
        out: the run's folder; runs/RECIPE if it is not given.
        resume: resume the run in this folder, or begin it if the folder contains none.
        dry_run: print size, cost and time of the run, and stop.
        flops_per_second: the speed that --dry-run assumes, e.g. 1e14; no weights are read. Without it a few steps are
            timed here.
    """

    recipe: RecipeName
    settings: Settings = ()
    out: Place | None = None
    resume: bool = False
    dry_run: bool = False
    flops_per_second: PositiveNumber | None = None


def run_words(words: list[str]) -> None:
    names = names_before_options(words)
    name = names[0] if names else read_options(Options, words, "train").recipe
    recipe, options = read_recipe(open_recipe(name), Options, words, "train")
    speed = options.flops_per_second
    require(speed is None or options.dry_run, "--flops-per-second", speed, "it is for --dry-run, remove it")
    out = options.out or Path("runs") / recipe.name.replace("/", "-")
    if options.dry_run:
        from mentalese.commands.dry_run import print_dry_run
        from mentalese.training.run_folder import check_folder

        check_folder(recipe, out, options.resume)
        print_dry_run(recipe, speed)
        return

    from mentalese.training.loop import train
    from mentalese.training.parallel import is_main_process

    if options.resume and not (out / "config.json").exists() and is_main_process():
        print(f"{out} contains no run: it begins at step 0", file=sys.stderr)
    result = train(recipe, out, resume=options.resume)
    if is_main_process():
        print(
            f"{recipe.name}: {_score(result['test'])}; "
            f"{result['steps']:,} steps, {result['tokens']:,} tokens, {result['seconds']:.0f} s; see {out}"
        )


def _score(test: JsonObject) -> str:
    if metric_of(test) is ACCURACY:
        return f"test accuracy {ACCURACY.format(test['accuracy'])} of {test['questions']:,} questions{unanswered(test)}"
    bits = test["bits_per_byte"]
    text = f"test perplexity {test['perplexity']:.2f}{scored_as(test['protocol'])}"
    return text if bits is None else f"{text}, {bits:.3f} bits per byte"
