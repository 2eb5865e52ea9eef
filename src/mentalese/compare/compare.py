"""Recipes trained on the same text at equal cost, in one table.

check    the same data for all, no folder with another run, equal size if requested
match    the tokens or FLOPs of the first recipe, counted before anything is trained, are the budget of the others
train    all recipes with all seeds, `jobs` at once; a finished run in the folder is reused
judge    mean and spread over seeds, each against its baseline, with a paired test for three or more seeds
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Literal

from mentalese import provenance
from mentalese.compare.comparison import FLOPS_TOLERANCE, LOOKS, SEEDS_FOR_A_TEST, Comparison, Row
from mentalese.compare.jobs import Job, Result, check_jobs, run_jobs
from mentalese.compare.report import report
from mentalese.compare.tuning import Tuned, grid, name_of, with_settings
from mentalese.data.files import read_json_lines
from mentalese.data.store import before_preparing, prepare
from mentalese.errors import require
from mentalese.evaluation import ablation
from mentalese.evaluation.options import AblationOptions
from mentalese.evaluation.statistics import confidence_of
from mentalese.files import check_page, read_json, sealed, unsealed, write_json, write_text
from mentalese.models.base import LanguageModel, count_parameters
from mentalese.models.config import has_own_thoughts
from mentalese.models.saved import load
from mentalese.recipe import LENGTHS, Recipe
from mentalese.screen import progress
from mentalese.training import loop
from mentalese.training.parallel import is_main_process
from mentalese.training.plan import Plan, step_seed
from mentalese.training.run_folder import RunResult, check_folder, is_run_of
from mentalese.training.start import outline

Match = Literal["params", "tokens", "flops"]
TunedFields = Mapping[str, Sequence[str]]
Fit = Callable[[Recipe], Recipe]
"""A recipe to the same recipe at the length that all runs share."""

PARAMETER_TOLERANCE = 0.01
MOST_SEEDS = 1000

_COUNTED_STEPS = 10_000  # whose FLOPs are counted one by one; of a longer run, as many spread evenly over it
_FITTED_STEPS, _LENGTHS_TRIED = 256, 16  # the same where a length is fitted, and how many lengths are tried

# Results are comparable only if all recipes agree on these.
_SHARED = (
    *(("data", name) for name in ("source", "text_column", "detokenizer", "tokenizer", "train_tokens", "held_out")),
    *(("evaluation", name) for name in ("tokens", "joined", "metric")),
    *(("evaluation", name) for name in ("answer_tokens", "answer_rule", "max_test_documents", "documents_seed")),
)

# What is set for all runs if tokens or FLOPs are matched.
_MATCHED = (*(f"train.{name}" for name in LENGTHS), "train.early_stopping_patience")


def compare(
    recipes: list[Recipe],
    out: Path,
    *,
    match: Match | None = None,
    seeds: int | Literal["auto"] = 1,
    tuned_fields: TunedFields | None = None,
    tune_seeds: int = 1,
    jobs: int | None = None,
    executor: str | None = None,
    ablate: bool = False,
    show: bool = True,
) -> RunResult:
    """Train and evaluate every recipe with every seed; write `compare.json` and `report.html` into `out`.

    Args:
        recipes: the first one sets the budget, and is the baseline of recipes whose baseline is not listed.
        out: the folder of run folders `<recipe>/seed-<k>/`; finished runs are kept, interrupted runs resumed.
        match: `params` refuses models whose non-embedding parameters differ from the first one's by more than 1%;
            `tokens` and `flops` set every run's length to match the first one's, and no run stops early.
        seeds: runs per recipe, counted up from the recipe's `train.seed`; `auto`: as many of `LOOKS` as decide
            between every recipe and its baseline.
        tuned_fields: `section.field` -> values; each recipe is first trained with all values, under other seeds, and
            compared with its best setting on the validation split (`mentalese.compare.tuning`).
        tune_seeds: runs of each setting, whose mean decides.
        jobs, executor: runs at once, and where, see `run_jobs`.
        ablate: also score the first seed's model of each recipe that thinks, without its thoughts.

    Returns:
        The content of `compare.json`.

    Raises:
        InputError: recipes that cannot be compared, or a folder with other runs or another `report.html`.
        FloatingPointError: the loss of a reported run, or of all trials of a recipe, was not finite.
    """
    check_jobs(jobs, executor)
    counts = LOOKS if seeds == "auto" else (seeds,)
    tuned_fields = tuned_fields or {}
    _check(recipes, counts[-1], tuned_fields, match)
    require(1 <= tune_seeds <= MOST_SEEDS, "tune_seeds", tune_seeds, f"use 1 to {MOST_SEEDS:,}")
    used = tune_seeds == 1 or bool(tuned_fields)
    require(used, "tune_seeds", tune_seeds, "nothing is tuned; add --tune, or remove it")
    check_page(out / "report.html", "compare.json")
    fit: Fit = _as_it_is
    if match == "params":
        _check_parameters(recipes, tuned_fields, show)
    elif match is not None:
        recipes = [recipe.replace(train={"early_stopping_patience": None}) for recipe in recipes]
        # Of the first seeds, so that a comparison with more seeds later has the same budget.
        fit = _fit(recipes[0], match, min(counts[0], SEEDS_FOR_A_TEST), show)
    tuned = [_tuned(recipe, out, tuned_fields, tune_seeds, fit) for recipe in recipes] if tuned_fields else []
    run = partial(run_jobs, count=jobs, executor=executor, show=show)
    for count in counts:
        final_recipes, results = _train(recipes, tuned, fit, out, count, run)
        rows, answers = _rows(final_recipes, results, out, confidence_of(len(counts)))
        if all(row.is_decided for row in rows):
            break
    matched: RunResult = {"by": match}
    if match in ("tokens", "flops"):
        matched["budget"] = statistics.median_low([result[match] for result in results[0]])
    for row, one in zip(rows, tuned):
        row.tuning = one.to_dict()
    if ablate and is_main_process():
        _add_ablations(rows, out, show)
    data = final_recipes[0].data
    comparison = Comparison(data.source, before_preparing(data).tokenizer, rows, matched, count, len(counts))
    content = comparison.to_json()
    if is_main_process():  # under torchrun every process has all results
        write_json(out / "compare.json", content)
        write_text(out / "report.html", report(content, answers))
    return content


def _train(
    recipes: Sequence[Recipe],
    tuned: Sequence[Tuned],
    fit: Fit,
    out: Path,
    seeds: int,
    run: Callable[..., list[Result]],
) -> tuple[list[Recipe], list[list[RunResult]]]:
    """Return every recipe as it is reported, and the results of its seeds.

    Once a recipe is tuned, its seeds run next to the trials of the others; no recipe waits for another.
    """
    final: dict[int, Recipe] = {}
    work: dict[int, list[Job]] = {}  # of each recipe, what it waits for: its trials, or its seeds
    owners: dict[Path, int] = {}
    results: dict[Path, Result] = {}

    def begin(i: int) -> list[Job]:
        if tuned and tuned[i].pending:
            work[i] = tuned[i].jobs()
        else:
            final[i] = tuned[i].recipe if tuned else fit(recipes[i])
            work[i] = _seed_jobs(final[i], out, seeds)
            for job in work[i]:
                if tuned:
                    tuned[i].set_aside(job.folder, job.recipe.train.seed)
                check_folder(job.recipe, job.folder, resume=True)
        owners.update((job.folder, i) for job in work[i])
        return work[i]

    def then(job: Job, result: Result) -> list[Job]:
        i = owners[job.folder]
        results[job.folder] = result
        if i in final or any(other.folder not in results for other in work[i]):
            return []
        tuned[i].add([results[other.folder] for other in work[i]])
        return begin(i)

    run([job for i in range(len(recipes)) for job in begin(i)], then=then)
    reported = [[results[job.folder] or {} for job in work[i]] for i in range(len(recipes))]  # these may not diverge
    return [final[i] for i in range(len(recipes))], reported


def _tuned(recipe: Recipe, out: Path, fields: TunedFields, seeds: int, fit: Fit) -> Tuned:
    return Tuned(recipe, _folder(out, recipe.name), fit, grid(recipe, fields), seeds)


def _seed_jobs(recipe: Recipe, out: Path, seeds: int) -> list[Job]:
    """Return the runs that are reported; trials come before them, since other runs may follow from trials."""
    return [
        Job(recipe.replace(train={"seed": seed}), run_folder(out, recipe.name, seed), priority=1)
        for seed in _seeds(recipe, seeds)
    ]


def _as_it_is(recipe: Recipe) -> Recipe:
    return recipe


@dataclass(frozen=True)
class RunCounts:
    """Runs of a recipe in a comparison, by the files of a folder.

    Attributes:
        finished, planned: trials and seeds that have ended, and all; more trials follow if the best is at an edge.
        seeds: finished runs that are reported.
        seconds: mean time of a finished run, with its validations and its test; `None` without one.
    """

    finished: int
    planned: int
    seeds: int
    seconds: float | None

    @property
    def left(self) -> int:
        return self.planned - self.finished


def count_runs(
    recipe: Recipe, out: Path, seeds: int, *, tuned_fields: TunedFields | None = None, tune_seeds: int = 1
) -> RunCounts:
    """Count the runs that `compare` makes of a recipe as it is, while they run or after; nothing is trained."""
    tuned = _tuned(recipe, out, tuned_fields, tune_seeds, _as_it_is) if tuned_fields else None
    planned, ended = 0, dict[Path, Result]()
    with suppress(FloatingPointError):  # no trial has a finite loss, and no seeds follow
        while tuned is not None and tuned.pending:
            jobs = tuned.jobs()
            planned += len(jobs)
            ended |= _ended(jobs)
            if any(job.folder not in ended for job in jobs):
                break
            tuned.add([ended[job.folder] for job in jobs])
    is_tuned = tuned is None or not tuned.pending
    reported = _ended(_seed_jobs(recipe if tuned is None else tuned.recipe, out, seeds)) if is_tuned else {}
    ended |= reported
    times = []
    for folder, result in ended.items():
        if result is not None:  # of a run that was continued, the last part or all steps, whichever is longer
            began, end = ((folder / name).stat().st_mtime for name in ("config.json", "result.json"))
            times.append(max(float(result["seconds"]), end - began))
    return RunCounts(len(ended), planned + seeds, len(reported), statistics.fmean(times) if times else None)


def _ended(jobs: Sequence[Job]) -> dict[Path, Result]:
    """Return the results of jobs that have ended, by folder."""
    ended: dict[Path, Result] = {}
    for job in jobs:
        path = job.folder / "result.json"
        result = read_json(path) if path.is_file() else {}
        if job.has_diverged:
            ended[job.folder] = None
        elif is_run_of(job.recipe, result.get("config")):
            ended[job.folder] = result
    return ended


def _fit(first: Recipe, match: str, seeds: int, show: bool) -> Fit:
    """Return a function that sets a recipe's length to the cost of the first recipe, the median over seeds.

    The first recipe keeps its length, unless a tuned field can change its cost.
    """
    costs = []
    with progress(f"counting {match} of {first.name}", seeds, show=show) as bar:
        for seed in _seeds(first, seeds):
            costs.append(_cost(first.replace(train={"seed": seed}), match, show))
            bar.update(len(costs))
    budget = statistics.median_low(costs)

    def fit(recipe: Recipe) -> Recipe:
        if dataclasses.replace(recipe, optimizer=first.optimizer) == first:
            return recipe
        return _with_flops(recipe, budget, show) if match == "flops" else _with_tokens(recipe, budget)

    return fit


def _with_tokens(recipe: Recipe, tokens: int) -> Recipe:
    return recipe.replace(train={"steps": None, "epochs": None, "tokens": tokens})


def _seeds(recipe: Recipe, seeds: int) -> range:
    return range(recipe.train.seed, recipe.train.seed + seeds)


def _folder(out: Path, name: str) -> Path:
    return out / name.replace("/", "-")


def run_folder(out: Path, name: str, seed: int) -> Path:
    """Return the folder in which a comparison in `out` keeps the run of a recipe with a seed."""
    return _folder(out, name) / f"seed-{seed}"


# -- before training ---------------------------------------------------------------------------------------------------


def _check(recipes: list[Recipe], seeds: int, tuned_fields: TunedFields, match: Match | None) -> None:
    require(len(recipes) > 1, "recipes", [recipe.name for recipe in recipes], "use at least two")
    require(1 <= seeds <= MOST_SEEDS, "seeds", seeds, f"use 1 to {MOST_SEEDS:,}")
    for pair in itertools.combinations([recipe.name for recipe in recipes], 2):
        folders = {_folder(Path(), name) for name in pair}
        require(len(folders) == 2, "recipes", pair, "use names with different folders, each once")
    shared = (*_SHARED, ("train", "seed")) if seeds >= SEEDS_FOR_A_TEST else _SHARED  # tested seed by seed
    for recipe in recipes[1:]:
        for section, field in shared:
            one, other = (getattr(getattr(r, section), field) for r in (recipes[0], recipe))
            same = f"set it to {one!r}, as in {recipes[0].name}: only runs that share it are comparable"
            require(one == other, f"{section}.{field} of {recipe.name}", other, same)
    fixed = {*map(".".join, _SHARED), *(_MATCHED if match in ("tokens", "flops") else ())}
    for name, values in tuned_fields.items():
        free = name.replace("-", "_") not in fixed
        require(free, f"tuned {name}", values, "remove it, since all recipes have to agree on it to be compared")
    for recipe in recipes:
        grid(recipe, tuned_fields)


def _check_parameters(recipes: list[Recipe], tuned_fields: TunedFields, show: bool) -> None:
    """Every recipe, with every setting that is tried, against the first one."""
    if any(name.startswith("model.") for name in tuned_fields):
        tried = [
            dataclasses.replace(with_settings(recipe, settings), name=f"{recipe.name} with {name_of(settings)}")
            for recipe in recipes
            for settings in grid(recipe, tuned_fields)
        ]
        recipes = [recipes[0], *tried]
    first, *others = [count_parameters(_outline(recipe, show)[0])["non_embedding"] for recipe in recipes]
    for recipe, count in zip(recipes[1:], others):
        off, field = count / first - 1, f"non-embedding parameters of {recipe.name}"
        remedy = f"that is {abs(off):.1%} {'more' if off > 0 else 'fewer'} than {recipes[0].name} has ({first}), and "
        remedy += f"matching allows {PARAMETER_TOLERANCE:.0%}; change its model's sizes, or match tokens or FLOPs"
        require(abs(off) <= PARAMETER_TOLERANCE, field, count, remedy)


def _outline(recipe: Recipe, show: bool) -> tuple[LanguageModel, Callable[[Recipe], Plan]]:
    """Return a recipe's model on the meta device, and a function that plans its training at some length."""
    store, tokenizer = prepare(recipe.data, recipe.layout, show=show)
    model, _ = outline(recipe, tokenizer)
    return model, lambda recipe: Plan(store.splits["train"], recipe, tokenizer)


def _cost(recipe: Recipe, match: str, show: bool) -> int:
    """Tokens or FLOPs that training a recipe takes."""
    if match == "tokens" and recipe.train.tokens is not None:
        return recipe.train.tokens
    model, plan_of = _outline(recipe, show)
    plan = plan_of(recipe)
    tokens = plan.position(plan.total_steps).tokens
    if match == "tokens":
        return tokens
    micros = recipe.train.gradient_accumulation_steps
    return round(flops_per_token(model, plan, micros, _COUNTED_STEPS, seed=recipe.train.seed) * tokens)


def _with_flops(recipe: Recipe, budget: int, show: bool) -> Recipe:
    """Return the recipe at the length whose training costs `budget` FLOPs, up to a step or `FLOPS_TOLERANCE`."""
    model, plan_of = _outline(recipe, show)
    micros = recipe.train.gradient_accumulation_steps

    def each(recipe: Recipe, samples: int) -> float:
        return flops_per_token(model, plan_of(recipe), micros, samples)

    for _ in range(2):
        recipe = _with_tokens(recipe, max(1, round(budget / each(recipe, 16))))
    # A curriculum's cost per token depends on the length, which depends on the cost.
    shortest, longest = 0.0, math.inf
    attempts: list[tuple[float, Recipe]] = []
    while len(attempts) < _LENGTHS_TRIED and longest - shortest > 1:
        tokens = recipe.train.tokens or 1
        target = budget / each(recipe, _FITTED_STEPS)
        attempts.append((abs(tokens / target - 1), recipe))
        if attempts[-1][0] <= FLOPS_TOLERANCE:
            break
        shortest, longest = (tokens, longest) if target > tokens else (shortest, tokens)
        inside = shortest < target < longest
        recipe = _with_tokens(recipe, max(1, round(target if inside else (shortest + longest) / 2)))
    return min(attempts, key=itemgetter(0))[1]


def flops_per_token(
    model: LanguageModel, plan: Plan, micro_batches: int, samples: int = 16, *, seed: int | None = None
) -> float:
    """Return the training FLOPs per lexical token, over steps spread evenly over the plan.

    With the `seed` of a run whose steps are all counted, random choices of its model count as drawn, not at their mean.
    """
    count = min(samples, plan.total_steps)
    flops = 0
    steps = sorted({(2 * i + 1) * plan.total_steps // (2 * count) for i in range(count)})
    for step in steps:
        if seed is not None and count == plan.total_steps:
            model.before_step(step_seed(seed, step, 0, 0))
        flops += sum(
            model.training_flops(plan.batch(step, 0, 1, micro), **plan.settings(step)) for micro in range(micro_batches)
        )
    return flops / sum(plan.position(step + 1).tokens - plan.position(step).tokens for step in steps)


# -- after training ----------------------------------------------------------------------------------------------------


def _rows(
    recipes: Sequence[Recipe], results: Sequence[list[RunResult]], out: Path, confidence: float
) -> tuple[list[Row], dict[str, list[RunResult]]]:
    """Return a row for each recipe, and the answers in each of their files."""
    rows, answers = dict[str, Row](), dict[str, list[RunResult]]()
    for recipe, runs in zip(recipes, results):
        row = rows[recipe.name] = Row.of(recipe.name, recipe.description, runs)
        for run in runs:
            folder = run_folder(out, recipe.name, run["seed"])
            row.commands.append(provenance.train_command(recipe.replace(train={"seed": run["seed"]}), folder))
            if (path := folder / loop.ANSWERS).is_file():
                row.answers.append(path.relative_to(out).as_posix())
                answers[row.answers[-1]] = read_answers(path)
        if row.answers:
            row.add_answers([answers[file] for file in row.answers])
    for recipe in recipes:
        baseline = recipe.baseline if recipe.baseline in rows and recipe.baseline != recipe.name else recipes[0].name
        if baseline != recipe.name:
            rows[recipe.name].compare_with(rows[baseline], confidence)
    return [*rows.values()], answers


def read_answers(path: Path) -> list[RunResult]:
    """Return the lines of an `answers.jsonl`; raises `InputError` for one that has changed since it was written."""
    return [unsealed(line, f"{where},") for where, line in read_json_lines(path)]


def _add_ablations(rows: Sequence[Row], out: Path, show: bool) -> None:
    """Score the first seed's model of each row that thinks with and without its thoughts; kept in its folder."""
    for row in rows:
        run = row.runs[0]
        folder = run_folder(out, row.name, run["seed"])
        path = folder / "ablation.json"
        result = read_json(path) if path.is_file() else {}
        # `mentalese ablate` may have written one of another text or other fields of the config: it names no run.
        if result.get("run") != run["fingerprint"]:
            saved = load(folder)
            if not has_own_thoughts(saved.model.config):
                continue
            protocol = Recipe.from_dict(run["config"]).evaluation.of_test()
            saved = saved.scored_by(documents_seed=protocol.documents_seed)
            found = ablation.run(saved, AblationOptions(documents=protocol.max_documents), show=show)
            result = {"run": run["fingerprint"]} | found
            if not path.exists():
                write_json(path, sealed(result))
        row.ablation = result
