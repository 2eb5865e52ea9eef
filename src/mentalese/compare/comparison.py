"""A comparison: a row per recipe with its runs, and its result. `compare.json` is its JSON form."""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from mentalese import provenance
from mentalese.evaluation.metric import ACCURACY, PERPLEXITY, Metric, metric_of
from mentalese.evaluation.statistics import CONFIDENCE, PairedTest, confidence_of, paired_t_test, summary
from mentalese.files import JsonObject
from mentalese.formatting import scored_as
from mentalese.training.run_folder import RunResult

SEEDS_FOR_A_TEST = 3
LOOKS = (5, 10, 15, 20)
"""Seeds of comparisons that end when they have decided: there are more, up to the last number, until then."""
NARROW, NARROW_POINTS = 0.005, 0.01
"""Widths of an interval that shows that two models hardly differ: a share of the baseline's nats, and an accuracy."""
SEEDS_FOR_NARROW = 10
"""The least seeds of which a narrow interval decides on questions. There a seed finds the computation or does not: of
five that fail alike up to 43% of further ones may succeed (Wilson), of ten 28%."""
FLOPS_TOLERANCE = 0.02
"""The share of a matched cost by which a run may miss it without a word."""
_COSTS = ("train_flops_per_token", "tokens_per_second", "tokens", "flops", "seconds", "steps")


@dataclass
class Row:
    """A recipe of a comparison.

    Attributes:
        figures: `summary` over seeds of figures of the test split, and of costs, by name.
        runs: results of runs, one per seed.
        baseline: name of the row that this one is compared with; `None` for the baseline itself.
        change: ratio or difference to the baseline (`Metric.change`); `None` if the two were scored on other tokens or
            questions.
        paired_test: test of the seeds against the seeds of the baseline; `None` for too few.
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
    tuning: RunResult | None = None
    ablation: RunResult | None = None

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

    def add_answers(self, runs: Sequence[Sequence[JsonObject]]) -> None:
        """Add the figures `new_tokens`, without latents, and `answer_seconds`, of answers in batches of the test."""
        for name, key in (("new_tokens", "tokens"), ("answer_seconds", "seconds")):
            asked = [[answer[key] for answer in answers if answer["asked"]] for answers in runs]
            if all(asked):
                self.figures[name] = summary([statistics.fmean(values) for values in asked])

    def compare_with(self, other: Row, confidence: float) -> None:
        """Set baseline, change and test; `confidence`: of the interval."""
        self.baseline, self.change = other.name, None
        values, reference = ([run["test"][self.metric.tested] for run in row.runs] for row in (self, other))
        difference = statistics.fmean(values) - statistics.fmean(reference)
        if scored_alike([*self.runs, *other.runs]):
            self.change = difference
            if self.metric is PERPLEXITY:  # of the geometric means: the ratio that the test on log-perplexities tests
                self.change = math.exp(difference) if difference < 700 else math.inf
        self.paired_test = paired_test(self.runs, other.runs, confidence)

    @property
    def is_decided(self) -> bool:
        """Test if more seeds are not needed: the model differs from its baseline, hardly can, or is not tested."""
        if (test := self.paired_test) is None:
            return self.baseline is None or len(self.runs) >= SEEDS_FOR_A_TEST
        reference = statistics.fmean(run["test"][self.metric.tested] for run in self.runs) - test.difference
        if self.metric is ACCURACY:
            return test.decided(NARROW_POINTS if len(self.runs) >= SEEDS_FOR_NARROW else 0.0)
        return test.decided(NARROW * reference)

    @property
    def metric(self) -> Metric:
        return metric_of(self.figures)

    @property
    def value(self) -> float:
        return self.mean(self.metric.name)

    def mean(self, name: str) -> float:
        return self.figures[name]["mean"]

    @property
    def protocol(self) -> RunResult:
        return self.runs[0]["test"]["protocol"]

    @property
    def estimator_label(self) -> str:
        """The label after a perplexity that is not an exact likelihood."""
        return "" if self.metric is ACCURACY else scored_as(self.protocol)

    @property
    def figure(self) -> str:
        """The mean of the metric, with its unit and the label of its estimator."""
        return self.metric.format(self.value) + self.estimator_label

    def to_json(self) -> RunResult:
        optional = {name: getattr(self, name) for name in ("answers", "tuning", "ablation") if getattr(self, name)}
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            **self.figures,
            "baseline": self.baseline,
            self.metric.change: self.change,
            "paired_test": None if self.paired_test is None else asdict(self.paired_test),
            "runs": self.runs,
            "commands": self.commands,
            **optional,
        }

    @classmethod
    def from_json(cls, row: RunResult) -> Row:
        test = row["paired_test"]
        return cls(
            figures={name: value for name, value in row.items() if isinstance(value, dict) and "mean" in value},
            change=row[metric_of(row).change],
            paired_test=None if test is None else PairedTest(**test | {"interval": tuple(test["interval"])}),
            **{name: row[name] for name in ("name", "description", "parameters", "runs", "baseline")},
            **{name: row[name] for name in ("commands", "answers", "tuning", "ablation") if name in row},
        )


@dataclass
class Comparison:
    """Recipes that were trained on the same text.

    Attributes:
        match: the cost that runs have in common: `by` parameters, tokens or FLOPs, and the `budget` of the latter two.
        seeds: runs per recipe.
        looks: comparisons that there may be, with more seeds each time until they decide.
    """

    source: str
    tokenizer: str
    rows: list[Row]
    match: RunResult
    seeds: int
    looks: int = 1
    created: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
    command: str = field(default_factory=provenance.command)

    @property
    def metric(self) -> Metric:
        return self.rows[0].metric

    @property
    def confidence(self) -> float:
        return confidence_of(self.looks)

    @property
    def runs(self) -> list[RunResult]:
        return [run for row in self.rows for run in row.runs]

    def winner(self) -> Row | None:
        """Return the row that is better than every other one; `None` if the seeds, three or more, do not show it."""
        best, *others = self.metric.ranked(self.rows, lambda row: row.value)
        tests = [paired_test(best.runs, other.runs, self.confidence) for other in others]
        # Means of perplexities may be in another order than means of their logarithms, which are tested.
        ahead = [test is not None and test.conclusive and best.metric.better(test.difference, 0.0) for test in tests]
        return best if all(ahead) else None

    def headline(self) -> str:
        """Return the result in a sentence, which names a winner only if there is one."""
        best, second, *_ = order = self.metric.ranked(self.rows, lambda row: row.value)
        last, models, names = order[-1], len(order), f"test {best.metric.name}"
        if not scored_alike(self.runs):
            return (
                f"{models} models that were scored on different {best.metric.counted}, and so are not "
                f"ranked: {names} from {best.figure} to {last.figure}."
            )
        test, sure = paired_test(best.runs, second.runs, self.confidence), f"{100 * self.confidence:g}%"
        if test is None:
            number = {1: "One seed", 2: "Two seeds"}[len(best.runs)]
            return (
                f"{number} of each of {models} models: {names} from {best.figure} to {last.figure}. "
                "Too few seeds to rank them."
            )
        if self.winner() is None:
            return f"No model is ahead in {names}: {best.name} has {best.figure}, {second.name} {second.figure}."
        if best.metric is ACCURACY:
            low, high = (f"{100 * value:z.1f}" for value in test.interval)
            gain = f"{100 * test.difference:.1f} points above {second.name} ({sure} {low} to {high}, "
        else:
            high, low = (f"{-math.expm1(value):z.1%}" for value in test.interval)
            gain = f"{-math.expm1(test.difference):.1%} below {second.name} ({sure} {low} to {high}, "
        return f"{best.name} has the best {names}, {best.figure}, {gain}{significance(test.p, test.n)})."

    def to_json(self) -> RunResult:
        return {"version": 1, **vars(self), "rows": [row.to_json() for row in self.rows]}

    @classmethod
    def from_json(cls, content: RunResult) -> Comparison:
        facts = {name: content[name] for name in ("source", "tokenizer", "match", "seeds", "created", "command")}
        return cls(rows=[Row.from_json(row) for row in content["rows"]], looks=content.get("looks", 1), **facts)


def paired_test(
    runs: Sequence[RunResult], reference: Sequence[RunResult], confidence: float = CONFIDENCE
) -> PairedTest | None:
    """Test runs against runs of another recipe, seed by seed.

    The test compares accuracies, or nats per token (the logarithms of perplexities). Return `None` for fewer than three
    seeds, or if the runs were scored on different tokens or questions.
    """
    if min(len(runs), len(reference)) < SEEDS_FOR_A_TEST or not scored_alike([*runs, *reference]):
        return None
    metric = metric_of(runs[0]["test"])
    values, others = ([run["test"][metric.tested] for run in some] for some in (runs, reference))
    return paired_t_test(values, others, step=metric.step(runs[0]["test"]), confidence=confidence)


def scored_alike(runs: Sequence[RunResult]) -> bool:
    """Test if all runs were scored on as many tokens, or questions, of the same documents."""
    counted = metric_of(runs[0]["test"]).counted
    drawn = ("documents_seed", "documents_available")
    return len({(test[counted], *map(test["protocol"].get, drawn)) for test in (run["test"] for run in runs)}) == 1


def significance(p: float, n: int) -> str:
    """Return a p-value and the number of pairs, as they are printed."""
    return f"p {'< 0.001' if p < 0.001 else f'= {p:.3f}'}, n = {n}"
