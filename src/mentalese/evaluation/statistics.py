"""Mean, spread and a paired test over a few seeds; intervals over documents."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
"""The level of an interval that is looked at once."""
_TAILS = ((1 - CONFIDENCE) / 2, 1 - (1 - CONFIDENCE) / 2)


def confidence_of(looks: int) -> float:
    """Return the level of each interval if there may be so many looks, which together err as one does (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / looks


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return `mean`, `min`, `max` and `std` of a sample.

    `std` divides by n - 1; it is 0 for a single value, and infinite if one of several values is.
    """
    std = 0.0 if len(values) == 1 else math.inf if math.inf in values else statistics.stdev(values)
    return {"mean": statistics.fmean(values), "std": std, "min": min(values), "max": max(values)}


@dataclass(frozen=True)
class PairedTest:
    """A two-sided paired t-test: does the mean difference differ from zero?

    Attributes:
        difference: mean of `values - reference`.
        t: the statistic, with `n - 1` degrees of freedom; `None` if all differences are equal and have no `step`.
        interval: interval of the mean difference, of 95% or the requested confidence.
    """

    n: int
    difference: float
    t: float | None
    p: float
    interval: tuple[float, float]

    @property
    def conclusive(self) -> bool:
        """Test if the interval excludes zero."""
        low, high = self.interval
        return low > 0 or high < 0

    def decided(self, narrow: float) -> bool:
        """Test if the interval excludes zero, or is narrower than `narrow`."""
        return self.conclusive or self.interval[1] - self.interval[0] < narrow


def paired_t_test(
    values: Sequence[float], reference: Sequence[float], *, step: float = 0.0, confidence: float = CONFIDENCE
) -> PairedTest:
    """Test two or more pairs that share a seed (Student 1908); `confidence`: of the interval.

    With a `step` between values, such as one question of an accuracy, differences scatter by at least step / sqrt(6),
    as for two rounded numbers: three differences of one question each are equal by chance.
    """
    differences = [a - b for a, b in zip(values, reference, strict=True)]
    n, mean = len(differences), statistics.fmean(differences)
    std = max(statistics.stdev(differences), step / math.sqrt(6))
    if std == 0:
        return PairedTest(n, mean, None, 1.0 if mean == 0 else 0.0, (mean, mean))
    error = std / math.sqrt(n)
    t, margin = mean / error, student_t_margin(n - 1, confidence) * error
    return PairedTest(n, mean, t, student_t_p(t, n - 1), (mean - margin, mean + margin))


def wilson_interval(count: int, n: int) -> tuple[float, float]:
    """Return the 95% interval of a share of which `count` of `n` were seen (Wilson, 1927)."""
    z, share = statistics.NormalDist().inv_cdf(_TAILS[1]), count / n
    middle, margin = share + z**2 / (2 * n), z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return max(0.0, (middle - margin) / (1 + z**2 / n)), min(1.0, (middle + margin) / (1 + z**2 / n))


def exact_test(first: tuple[int, int], second: tuple[int, int]) -> float:
    """Return the two-sided p of two shares, each (count, n), being equal (Fisher, 1922)."""
    (a, n), (b, m) = first, second
    ways = [math.comb(n, i) * math.comb(m, a + b - i) for i in range(a + b + 1)]
    return sum(way for way in ways if way <= ways[a]) / math.comb(n + m, a + b)


def student_t_p(t: float, degrees: int) -> float:
    """P(|T| >= |t|), by the finite sums for whole degrees of freedom (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan2(abs(t), math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(1 + odd, degrees, 2):
        total += term
        term *= cosine * cosine * k / (k + 1)
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return max(0.0, 1.0 - inside)


def student_t_margin(degrees: int, confidence: float = CONFIDENCE) -> float:
    """Return half an interval in standard errors, the t with P(|T| < t) = `confidence`, by bisection."""
    low, high = 0.0, 1.0
    while student_t_p(high, degrees) > 1 - confidence:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_t_p(middle, degrees) > 1 - confidence else (low, middle)
    return (low + high) / 2


def bootstrap_pairs(values: np.ndarray, *, samples: int = 2_000) -> tuple[float, float] | None:
    """Return a 95% interval of the mean over ordered pairs of units, by drawing units (Snijders and Borgatti, 1999).

    `values` [units, units] are of pairs; the diagonal is not read. Pairs that share a unit are not independent, so
    units are drawn with replacement, with all pairs among them. Return `None` for fewer than three units.
    """
    units = len(values)
    if units < 3:
        return None
    times = np.random.default_rng(0).multinomial(units, np.full(units, 1 / units), size=samples).astype(np.float64)
    off = values * (1 - np.eye(units))
    pairs = times.sum(1) ** 2 - (times**2).sum(1)
    means = ((times @ off) * times).sum(1)[pairs > 0] / pairs[pairs > 0]
    low, high = np.quantile(means, _TAILS)
    return float(low), float(high)


def bootstrap_ratio(numerators: np.ndarray, denominators: np.ndarray) -> np.ndarray | None:
    """Return the 95% bootstrap interval of `sum(numerators) / sum(denominators)` (Efron, 1979), [2, columns].

    Both are sums of each unit [units, columns]. Whole units, such as documents, are drawn with replacement, since
    values within a unit are not independent. Return `None` for fewer than two units.
    """
    units = len(numerators)
    if units < 2:
        return None
    generator = np.random.default_rng(0)
    ratios, samples = [], 5_000
    for start in range(0, samples, chunk := max(1, 2_000_000 // units)):
        times = generator.multinomial(units, np.full(units, 1 / units), size=min(chunk, samples - start))
        below = times @ denominators
        ratios.append(np.divide(times @ numerators, below, out=np.full(below.shape, np.nan), where=below > 0))
    return np.nanquantile(np.concatenate(ratios), _TAILS, axis=0)


def bootstrap_questions(values: np.ndarray, questions: Sequence[str], least: float) -> np.ndarray | None:
    """Return the bootstrap interval of the mean over questions, from `least` to 1, [2, columns].

    Values [questions, columns] are whole numbers: right or wrong, or differences of these. Equal `questions` are drawn
    together, since a model answers them alike. Where all values are the same the bootstrap would be a point. Then up to
    1 - 0.025^(1/n) of other questions, of n different ones, may have another value, which is one unit away (Clopper and
    Pearson, 1934). Return `None` for fewer than two different questions.
    """
    different, group = np.unique(questions, return_inverse=True)
    sums, counts = np.zeros((2, len(different), values.shape[1]))
    np.add.at(sums, group, values)
    np.add.at(counts, group, 1.0)
    interval = bootstrap_ratio(sums, counts)
    if interval is None:
        return None
    other = np.where((values == values[0]).all(0), 1 - _TAILS[0] ** (1 / len(different)), 0.0)
    return np.clip(interval + np.stack((-other, other)), least, 1.0)
