"""Tuning as part of a comparison: the same number of trials for every recipe, chosen on the validation split.

A trial is one setting of the tuned fields, run with seeds of its own, so that reported seeds are not selected. The best
trial has the largest likelihood of the validation split, in the mean over its seeds: of questions, the likelihood of
the steps that are written and of the answers, which depends less on chance than how many are right. If the best value
of a number is the lowest or highest one tried, the range is extended by the next value, at the same ratio, up to twice,
but not across 1; ranges of integers and from 0 are not extended. If the same comparison is run again with more values,
or more seeds of each, and another one is best, its seeds are trained again, and the runs of the earlier report are
renamed.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mentalese.compare.jobs import Job
from mentalese.errors import InputError, require
from mentalese.evaluation.statistics import summary
from mentalese.files import read_json
from mentalese.recipe import Recipe
from mentalese.recipe_files import field_type, members, override
from mentalese.training.run_folder import RunResult, same_run

EXTENSIONS = 2
SEED = 10_000
"""Added to the seed of a recipe for its trials."""

Settings = dict[str, str]
"""Field -> value, both as text."""


@dataclass
class Trial:
    """One setting and the scores of its seeds on the validation split.

    Attributes:
        extended: the setting was added because the best one was at the edge.
        values: scores in the recipe's metric; `None`: the run diverged.
        nlls: nats per token, of answers if the split has questions; infinite for a run that diverged.
    """

    settings: Settings
    recipe: Recipe
    extended: bool
    values: list[float | None] = field(default_factory=list)
    nlls: list[float] = field(default_factory=list)

    @property
    def nll(self) -> float:
        return statistics.fmean(self.nlls)

    def to_dict(self) -> RunResult:
        """Return the setting, and the mean and standard error of scores; without them if a seed diverged."""
        scores: RunResult = {"value": None}
        if (finite := [value for value in self.values if value is not None]) == self.values:
            for name, numbers in (("value", finite), ("nll", self.nlls)):
                of_seeds = summary(numbers)
                scores |= {name: of_seeds["mean"], f"{name}_stderr": of_seeds["std"] / len(numbers) ** 0.5}
        counts = {"seeds": len(self.values), "diverged": self.values.count(None)}
        return {"settings": self.settings, "extended": self.extended} | counts | scores


@dataclass
class Tuned:
    """A recipe's trials, in `folder`/trials; `recipe` has the best setting, once nothing is `pending`.

    Attributes:
        fit: function that gives a trial the length that all runs share.
        pending: settings to try next: the grid, then extensions of ranges whose best value is at an edge.
    """

    base: Recipe
    folder: Path
    fit: Callable[[Recipe], Recipe]
    pending: list[Settings]
    seeds: int = 1
    trials: list[Trial] = field(default_factory=list)
    extensions: int = 0

    def jobs(self) -> list[Job]:
        """Return the pending trials, with seeds that are not reported."""
        jobs, first = [], self.base.train.seed + SEED
        for settings in self.pending:
            recipe = self.fit(with_settings(self.base, settings)).replace(train={"seed": first})
            self.trials.append(Trial(settings, recipe, self.extensions > 0))
            for seed in range(first, first + self.seeds):
                name = _folder_name(settings) + (f",seed={seed}" if seed > first else "")
                one = recipe.replace(train={"seed": seed})
                jobs.append(Job(one, self.folder / "trials" / name, may_diverge=True))
        return jobs

    def add(self, results: Sequence[RunResult | None]) -> None:
        """Keep the results of `jobs`; `None` is one that diverged.

        Raises:
            FloatingPointError: no trial has a finite loss.
        """
        trials = self.trials[-(len(results) // self.seeds) :]
        for number, result in enumerate(results):
            trial, figure = trials[number // self.seeds], None if result is None else result["validation"]
            trial.values.append(None if figure is None else figure[self.base.evaluation.metric])
            trial.nlls.append(math.inf if figure is None else figure["nll"])
        beyond = self.beyond() if self.extensions < EXTENSIONS else ()
        best = self.best.settings
        # Above 1, a share is not valid (a dropout), or has another meaning (a warm-up in steps).
        further = [(name, value) for name, value in beyond if (float(best[name]) < 1) == (float(value) < 1)]
        self.pending = [best | {name: value} for name, value in further]
        self.extensions += 1

    @property
    def best(self) -> Trial:
        best = min(self.trials, key=lambda trial: trial.nll)
        if best.nll == math.inf:
            raise FloatingPointError(
                f"{self.base.name}: the loss was not finite in any of {len(self.trials)} trials: tune over lower values"
            )
        return best

    @property
    def recipe(self) -> Recipe:
        return self.best.recipe.replace(train={"seed": self.base.train.seed})

    def set_aside(self, folder: Path, seed: int) -> None:
        """Rename the run in `folder` if it has a setting that was the best one when others were tried, or fewer seeds.

        A run with the best setting that was renamed before gets its name back.
        """
        if same_run(self.best.recipe.replace(train={"seed": seed}), folder):
            return
        earlier = folder.with_name(f"{folder.name},{_folder_name(self.best.settings)}")
        for settings, recipe in self._reported(folder):
            if same_run(recipe.replace(train={"seed": seed}), folder):
                with contextlib.suppress(FileNotFoundError):  # another rank was first
                    folder.rename(folder.with_name(f"{folder.name},{_folder_name(settings)}"))
                break
        if not folder.exists():
            with contextlib.suppress(FileNotFoundError):
                earlier.rename(folder)

    def _reported(self, folder: Path) -> Iterator[tuple[Settings, Recipe]]:
        """Yield the settings that the run in `folder` may have: one that is tried, or one of an extended range."""
        config = folder / "config.json"
        if not config.is_file():
            return
        yield from ((trial.settings, trial.recipe) for trial in self.trials)
        stored = read_json(config).get("recipe")
        extended: Settings = {}
        for name in self.best.settings:
            value: object = stored
            for part in name.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if isinstance(value, float):
                extended[name] = repr(value)
        if extended:
            settings = [trial.settings | extended for trial in self.trials]
            for one in {name_of(one): one for one in settings}.values():  # a fit may take long
                yield one, self.fit(with_settings(self.base, one))

    def beyond(self) -> Iterator[tuple[str, str]]:
        """Yield each field whose range is extended, and the next value.

        These are numbers with fractions, above 0, whose best value is the lowest or highest one tried.
        """
        for name in self.at_edge():
            if members(field_type(self.base, name.split("."), {})) == (float,) and (tried := self._tried(name))[0] > 0:
                lowest = float(self.best.settings[name]) == tried[0]
                edge, inner = tried[:2] if lowest else (tried[-1], tried[-2])
                yield name, f"{edge**2 / inner:.3g}"

    def at_edge(self) -> list[str]:
        """Numbers whose best value is the lowest or highest one tried, also those whose range is never extended."""
        edges = {name: self._tried(name) for name in self.best.settings}
        return [
            name
            for name, tried in edges.items()
            if len(tried) > 1 and number_of(self.best.settings[name]) in (tried[0], tried[-1])
        ]

    def _tried(self, name: str) -> list[float]:
        """Return the values of a number that were tried, in order; empty for a field that is none."""
        if not {int, float} & {*members(field_type(self.base, name.split("."), {}))}:
            return []
        return sorted({value for trial in self.trials if (value := number_of(trial.settings[name])) is not None})

    def to_dict(self) -> RunResult:
        return {
            "seed": self.base.train.seed + SEED,
            "chosen": self.best.settings,
            "at_edge": self.at_edge(),
            "trials": [trial.to_dict() for trial in self.trials],
        }


def parse(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """`section.field=value,value` as field -> values; raises `InputError` for another form, or a field twice."""
    fields: dict[str, tuple[str, ...]] = {}
    for word in words:
        name, _, text = word.partition("=")
        name = name.replace("-", "_")
        values = tuple(value for value in text.split(",") if value)
        remedy = "use section.field=value,value, e.g. optimizer.learning_rate=1e-3,3e-3, each field once"
        require(bool(values) and name not in fields, "--tune", word, remedy)
        fields[name] = values
    return fields


def grid(recipe: Recipe, fields: Mapping[str, Sequence[str]]) -> list[Settings]:
    """Return all combinations of values.

    Raises:
        InputError: the recipe has no such field, a value is of another type, or two combinations are one run; the
            message names the recipe.
    """
    names = [name.replace("-", "_") for name in fields]
    combinations = [dict(zip(names, values)) for values in itertools.product(*fields.values())]
    tried: list[Recipe] = []
    for settings in combinations:
        one = with_settings(recipe, settings).replace(train={"seed": 0})  # trials have a seed of their own
        remedy = "it is the same trial as another one, remove one"
        require(one not in tried, f"tuning {recipe.name}", name_of(settings), remedy)
        tried.append(one)
    return combinations


def with_settings(recipe: Recipe, settings: Settings) -> Recipe:
    """Return the recipe with tuned fields set; raises `InputError`, which names it."""
    try:
        return override(recipe, *(f"{name}={value}" for name, value in settings.items()))
    except InputError as error:
        raise InputError(f"tuning {recipe.name}: {error}") from error


def name_of(settings: Settings) -> str:
    """Return settings in words."""
    return ",".join(f"{name}={value}" for name, value in settings.items())


def number_of(text: str) -> float | None:
    """Return the number that a value is; `None` for one that is none."""
    try:
        return float(text)
    except ValueError:
        return None


def _folder_name(settings: Settings) -> str:
    return name_of(settings).replace("/", "%2F")
