"""`mentalese compare`: trains recipes on the same text and compares them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mentalese.commands.options import one, read
from mentalese.commands.recipe_options import read_recipe, split_settings
from mentalese.commands.shared import only_result_on_stdout, print_json
from mentalese.recipe import Recipe
from mentalese.recipe_files import SUFFIXES, from_file
from mentalese.registry import get_recipe, match_recipes


@dataclass(kw_only=True)
class Options:
    """Trains recipes on the same text and compares them. Fields given as options change every recipe.

    Attributes:
        match: what all runs have in common: model size (checked), or the first run's budget.
        seeds: runs per recipe; --seed is the first seed.
        tune: section.field=value,value ...: train every recipe with each value first, choose on validation, and report
            other seeds.
        jobs: trainings at once, each in a process with one thread or one GPU; not set: one after the other in this one.
        executor: sends trainings to a cluster, --jobs at once: slurm:timeout_min=60,slurm_partition=NAME, or local; all
            machines have to see the output folder.
        ablate: also score the first seed's models that think, without their thoughts.
        out: the folder of all runs, of compare.json and of report.html.
        json: print the comparison as JSON.
    """

    match: Literal["params", "tokens", "flops"] | None = None
    seeds: int = 1
    tune: tuple[str, ...] = ()
    jobs: int | None = None
    executor: str | None = None
    ablate: bool = False
    out: Path = Path("runs/compare")
    json: bool = False


def run(words: list[str]) -> None:
    patterns, settings, rest = split_settings(words)
    if not patterns:
        patterns, _ = read(Options, rest, "compare")
        one(patterns, "compare", "RECIPE")
    recipes, options = [], Options()
    for recipe in _recipes(patterns):
        changed, more, options = read_recipe(recipe, Options, [*settings, *rest], "compare")
        if more:
            one([*patterns, *more], "compare", "RECIPE")
        recipes.append(changed)

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


def _recipes(patterns: list[str]) -> list[Recipe]:
    """The recipes of files, names and patterns, each once; a pattern brings the baselines of its recipes along."""
    found: list[Recipe] = []
    for pattern in patterns:
        found += [from_file(Path(pattern))] if Path(pattern).suffix in SUFFIXES else match_recipes(pattern)
    if any(character in pattern for pattern in patterns for character in "*?["):
        found = [*(get_recipe(recipe.baseline) for recipe in found if recipe.baseline), *found]
    return [recipe for i, recipe in enumerate(found) if recipe not in found[:i]]
