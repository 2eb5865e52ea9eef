"""Power laws of the loss, and the data or parameters that one model is worth to another.

    L(x) = (x_c / x)^alpha        x: training tokens D or non-embedding parameters N      (Kaplan et al., 2020)

is a straight line of log L against log x. A model is worth m(x) = x_ref(L(x)) / x times its size to a reference, which
needs x_ref for the same loss (Thought Gestalt, section 3.2: m_D and m_N). Both sides are fitted laws, as in the paper's
1.33 to 1.42 for parameters; the achieved losses of its Table 2 would give 1.28 to 1.51.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mentalese.errors import require
from mentalese.evaluation.statistics import student_t_margin

Interval = tuple[float, float]
_LARGEST = 650  # logarithm of the largest scale; numbers overflow at 709


@dataclass(frozen=True)
class PowerLaw:
    """A fitted L(x) = (scale / x)^exponent.

    Attributes:
        exponent_interval: 95% interval by Student's t; `None` for two points.
        spread: standard deviation of log L about the line; `None` for two points.
        center, variation: mean of log x, and the sum of its squared distances from it.
    """

    exponent: float
    scale: float
    points: int
    exponent_interval: Interval | None
    spread: float | None
    center: float
    variation: float

    def loss(self, x: float) -> float:
        """L(x) in nats per token."""
        return (self.scale / x) ** self.exponent

    def inverse(self, loss: float) -> float:
        """Return the x at which the law has this loss."""
        return self.scale / loss ** (1 / self.exponent)


@dataclass(frozen=True)
class Multiplier:
    """The size that the reference needs for the loss of a model of size `x`, over `x`, with its 95% interval.

    The interval is `None` if both laws have two points, or if the reference's exponent may be zero.
    """

    x: float
    value: float
    interval: Interval | None


def fit_power_law(x: Sequence[float], loss: Sequence[float]) -> PowerLaw:
    """Fit a power law of nats per token by least squares in log-log.

    Raises:
        InputError: too few sizes, a number without a logarithm, or a loss that does not change.
    """
    require(len(x) == len(loss), "losses", len(loss), f"use one for each of {len(x)} sizes")
    for name, values in (("sizes", x), ("losses", loss)):
        positive = all(math.isfinite(value) and value > 0 for value in values)
        require(positive, name, list(values), "use positive numbers")
    require(len(set(x)) > 1, "sizes", list(x), "a power law needs at least two, add runs of other sizes")
    log_x, log_loss = np.log(np.asarray(x, dtype=np.float64)), np.log(np.asarray(loss, dtype=np.float64))
    center, level = log_x.mean(), log_loss.mean()
    variation = float(((log_x - center) ** 2).sum())
    slope = float(((log_x - center) * (log_loss - level)).sum()) / variation
    require(slope != 0, "losses", list(loss), "use sizes with different losses")
    log_scale = float(center - level / slope)
    flat = "the losses differ too little for a law of these sizes, use sizes further apart"
    require(abs(log_scale) < _LARGEST, "losses", list(loss), flat)
    interval = spread = None
    if len(x) > 2:
        residual = log_loss - level - slope * (log_x - center)
        spread = math.sqrt(float((residual**2).sum()) / (len(x) - 2))
        half = student_t_margin(len(x) - 2) * spread / math.sqrt(variation)
        interval = (-slope - half, -slope + half)
    return PowerLaw(
        exponent=-slope,
        scale=math.exp(log_scale),
        points=len(x),
        exponent_interval=interval,
        spread=spread,
        center=float(center),
        variation=variation,
    )


def multiplier(x: float, law: PowerLaw, reference: PowerLaw) -> Multiplier:
    """Return the multiple of `x` that the reference needs for the loss of `law` at `x`.

    The interval is Fieller's (1954), with Student's t and a pooled spread. It has each u = log x_ref at which the
    reference's line may be as high as the other at log x: the roots of (y - slope u)^2 = t^2 s^2 (1/n' + v'^2/V' + 1/n
    + u^2/V), with y measured from the reference's mean loss, u and v' from the centres of the two fits.
    """
    value = reference.inverse(law.loss(x)) / x
    degrees = law.points + reference.points - 4
    if degrees == 0:
        return Multiplier(x, value, None)
    squares = sum((fit.spread or 0.0) ** 2 * (fit.points - 2) for fit in (law, reference))
    noise = student_t_margin(degrees) ** 2 * squares / degrees
    slope, y = -reference.exponent, math.log(law.loss(x) / reference.loss(math.exp(reference.center)))
    spread = 1 / law.points + (math.log(x) - law.center) ** 2 / law.variation + 1 / reference.points
    a, b, c = slope**2 - noise / reference.variation, -2 * slope * y, y**2 - noise * spread
    if a <= 0:
        return Multiplier(x, value, None)
    root = math.sqrt(max(0.0, b**2 - 4 * a * c))
    low, high = (math.exp((-b + sign * root) / (2 * a) + reference.center) / x for sign in (-1, 1))
    return Multiplier(x, value, (low, high))
