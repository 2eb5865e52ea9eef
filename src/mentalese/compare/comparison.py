"""A comparison: a row per recipe with its runs. `compare.json` is its JSON form."""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mentalese import provenance
from mentalese.evaluation.metric import PERPLEXITY, Metric, metric_of
from mentalese.evaluation.statistics import PairedTest, paired_t_test, summary
from mentalese.training.run_folder import RunResult

SEEDS_FOR_A_TEST = 3
FLOPS_TOLERANCE = 0.02
"""The share of a matched cost by which a run may miss it without a word."""
_COSTS = ("train_flops_per_token", "tokens_per_second", "tokens", "flops", "seconds", "steps")


@dataclass
class Row:
    """A recipe of a comparison.

    Attributes:
        figures: figures of the test split and costs, by name: `mean`, `std`, `min` and `max` over seeds.
        runs: results of runs, one per seed.
        baseline: name of the row that this one is compared with; `None` for the baseline itself.
        change: ratio or difference to the baseline (`Metric.change`); `None` if the two were scored on other tokens or
            questions.
        paired_test: test of the seeds against the seeds of the baseline; `None` for too few.
        commands: command of each run.
        answers: files with the answers of runs, in the folder of the comparison.
        tuning: trials, see `Tuned.to_dict`.
        ablation: scores of the first seed without its thoughts, see `mentalese.evaluation.ablation`.
    """

    name: str
    description: str
    parameters: dict[str, int]
    figures: dict[str, dict[str, float]]
    runs: list[RunResult]
    baseline: str | None = None
    change: float | None = None
    paired_test: PairedTest | None = None
    commands: list[str | None] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    tuning: Mapping[str, Any] | None = None
    ablation: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, name: str, description: str, runs: list[RunResult]) -> Row:
        """Return the row of a recipe that is a baseline."""
        metric = metric_of(runs[0]["test"])
        tests = {
            name: summary([run["test"][name] for run in runs])
            for name in metric.figures
            if all(run["test"].get(name) is not None for run in runs)  # bits per byte, which not all estimators have
        }
        validation = {f"validation_{metric.name}": summary([run["validation"][metric.name] for run in runs])}
        costs = {name: summary([run[name] for run in runs]) for name in _COSTS}
        figures = tests | validation | costs
        return cls(name, description, runs[0]["parameters"], figures, runs, change=1.0 if metric is PERPLEXITY else 0.0)

    def compare_with(self, other: Row) -> None:
        """Set baseline, change and test."""
        self.baseline, self.change = other.name, None
        values, reference = ([run["test"][self.metric.tested] for run in row.runs] for row in (self, other))
        difference = statistics.fmean(values) - statistics.fmean(reference)
        if scored_alike([*self.runs, *other.runs]):
            self.change = difference
            if self.metric is PERPLEXITY:  # of the geometric means: the ratio that the test on log-perplexities tests
                self.change = math.exp(difference) if difference < 700 else math.inf
        self.paired_test = paired_test(self.runs, other.runs)

    @property
    def metric(self) -> Metric:
        return metric_of(self.figures)

    @property
    def value(self) -> float:
        """The mean of the metric."""
        return self.mean(self.metric.name)

    def mean(self, name: str) -> float:
        return self.figures[name]["mean"]

    @property
    def protocol(self) -> Mapping[str, Any]:
        return self.runs[0]["test"]["protocol"]

    def to_json(self) -> dict[str, Any]:
        optional = {name: getattr(self, name) for name in ("answers", "tuning", "ablation") if getattr(self, name)}
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            **self.figures,
            "baseline": self.baseline,
            self.metric.change: self.change,
            "paired_test": None if self.paired_test is None else self.paired_test.to_dict(),
            "runs": self.runs,
            "commands": self.commands,
            **optional,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Row:
        test = row["paired_test"]
        return cls(
            figures={name: value for name, value in row.items() if isinstance(value, dict) and "mean" in value},
            change=row[metric_of(row).change],
            paired_test=None if test is None else PairedTest(**test | {"interval": tuple(test["interval"])}),
            **{name: row[name] for name in ("name", "description", "parameters", "runs", "baseline")},
            **{name: row[name] for name in ("commands", "answers", "tuning", "ablation") if name in row},
        )


@dataclass(frozen=True)
class Matched:
    """The cost that runs have in common: `by` parameters, tokens or FLOPs; `budget`: of tokens or FLOPs."""

    by: str | None
    budget: float | None = None

    def to_json(self) -> dict[str, str | float | None]:
        return {"by": self.by} if self.budget is None else {"by": self.by, "budget": self.budget}


@dataclass
class Comparison:
    """Recipes that were trained on the same text.

    Attributes:
        seeds: runs per recipe.
    """

    source: str
    tokenizer: str
    rows: list[Row]
    match: Matched
    seeds: int
    created: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
    command: str = field(default_factory=provenance.command)

    @property
    def metric(self) -> Metric:
        return self.rows[0].metric

    @property
    def runs(self) -> list[RunResult]:
        """The runs of all rows."""
        return [run for row in self.rows for run in row.runs]

    def to_json(self) -> dict[str, Any]:
        return {
            **{"version": 1, **vars(self)},
            "match": self.match.to_json(),
            "rows": [row.to_json() for row in self.rows],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Comparison:
        facts = {name: content[name] for name in ("source", "tokenizer", "seeds", "created", "command")}
        rows = [Row.from_json(row) for row in content["rows"]]
        return cls(rows=rows, match=Matched(**content["match"]), **facts)


def paired_test(runs: Sequence[RunResult], reference: Sequence[RunResult]) -> PairedTest | None:
    """Test runs against runs of another recipe, seed by seed.

    The test compares accuracies, or nats per token (the logarithms of perplexities). Return `None` for fewer than three
    seeds, or if the runs were scored on different numbers of tokens or questions.
    """
    if min(len(runs), len(reference)) < SEEDS_FOR_A_TEST or not scored_alike([*runs, *reference]):
        return None
    metric = metric_of(runs[0]["test"])
    values, others = ([run["test"][metric.tested] for run in some] for some in (runs, reference))
    return paired_t_test(values, others, step=metric.step(runs[0]["test"]))


def scored_alike(runs: Sequence[RunResult]) -> bool:
    """Test if all runs were scored on as many tokens, or questions."""
    counted = metric_of(runs[0]["test"]).counted
    return len({run["test"][counted] for run in runs}) == 1
