"""`mentalese compare`: trains recipes on the same text and compares them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from tyro.conf import Positional, arg

from mentalese.commands.options import is_setting, names_before_options, read_options, read_recipe
from mentalese.recipe import Recipe
from mentalese.recipe_files import SUFFIXES, open_recipe
from mentalese.registry import get_recipe, match_recipes
from mentalese.screen import only_result_on_stdout, print_json
from mentalese.values import Place, Positive, Texts, checked_dataclass


@checked_dataclass("")
class Options:
    """Trains recipes on the same text and compares them. Fields given as options change every recipe.

    Attributes:
        recipes: names, patterns and files of recipes, and section.field=value for other values of fields.
        match: what all runs have in common: model size (checked), or the first run's budget.
        seeds: runs per recipe; --seed is the first seed. auto: 5, then 10, 15 and 20 of all until each recipe is
            decided against its baseline: the interval excludes zero, or is narrower than 0.5% of the nats or, with
            ten seeds or more, one point of accuracy.
        tune: section.field=value,value ...: train every recipe with each value first, choose on validation, and report
            other seeds.
        tune_seeds: runs of each of these values, whose mean likelihood decides.
        jobs: trainings at once, each in a process with one thread or one GPU; not set: one after the other in this one.
        executor: sends trainings to a cluster, --jobs at once: slurm:timeout_min=60,slurm_partition=NAME, or local; all
            machines have to see the output folder.
        ablate: also score the first seed's models that think, without their thoughts.
        out: the folder of all runs, of compare.json and of report.html.
        json: print the comparison as JSON.
    """

    recipes: Annotated[Positional[Texts], Field(min_length=1), arg(metavar="RECIPE")]
    match: Literal["params", "tokens", "flops"] | None = None
    seeds: Positive | Literal["auto"] = 1
    tune: Texts = ()
    tune_seeds: Positive = 1
    jobs: Positive | None = None
    executor: str | None = None
    ablate: bool = False
    out: Place = Path("runs/compare")
    json: bool = False

    @property
    def settings(self) -> list[str]:
        """Other values of fields."""
        return [word for word in self.recipes if is_setting(word)]


def run_words(words: list[str]) -> None:
    patterns = names_before_options(words)
    patterns = patterns or [word for word in read_options(Options, words, "compare").recipes if not is_setting(word)]
    named: list[Recipe] = []
    for pattern in patterns:
        named += [open_recipe(pattern)] if Path(pattern).suffix in SUFFIXES else match_recipes(pattern)
    if any(character in pattern for pattern in patterns for character in "*?["):
        named = [*(get_recipe(recipe.baseline) for recipe in named if recipe.baseline), *named]
    once = [recipe for i, recipe in enumerate(named) if recipe not in named[:i]]
    changed = [read_recipe(recipe, Options, words, "compare") for recipe in once]
    recipes, options = [recipe for recipe, _ in changed], changed[0][1]

    from mentalese.compare.compare import compare
    from mentalese.compare.report import print_comparison
    from mentalese.compare.tuning import parse
    from mentalese.training.parallel import is_main_process

    with only_result_on_stdout():
        comparison = compare(
            recipes,
            options.out,
            match=options.match,
            seeds=options.seeds,
            tuned_fields=parse(options.tune),
            tune_seeds=options.tune_seeds,
            jobs=options.jobs,
            executor=options.executor,
            ablate=options.ablate,
        )
    if not is_main_process():
        return
    if options.json:
        print_json(comparison)
    else:
        print_comparison(comparison)
        print(f"\n{options.out / 'report.html'} shows curves, costs and samples")
