"""Power laws: what the paper's own figures give, what an exact law gives, and what an interval covers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mentalese.errors import InputError
from mentalese.evaluation.scaling import fit_power_law, multiplier
from mentalese.evaluation.statistics import bootstrap_pairs, student_t_margin, student_t_p

# Test perplexities of Thought Gestalt's Table 2: by training tokens at 85M parameters, by parameters at 50M tokens.
TOKENS = [12e6, 20e6, 30e6, 50e6]
GPT2_BY_TOKENS, TG_BY_TOKENS = [50.9, 38.1, 30.9, 24.0], [49.5, 37.1, 29.8, 23.2]
PARAMETERS = [0.34e6, 1.3e6, 5.4e6, 21.3e6]
GPT2_BY_PARAMETERS, TG_BY_PARAMETERS = [104.8, 68.7, 42.4, 28.8], [97.7, 59.8, 37.8, 26.8]


def logs(perplexities: list[float]) -> list[float]:
    return [math.log(perplexity) for perplexity in perplexities]


def test_published_table_gives_data_exponents() -> None:
    gpt2, tg = fit_power_law(TOKENS, logs(GPT2_BY_TOKENS)), fit_power_law(TOKENS, logs(TG_BY_TOKENS))
    assert gpt2.exponent == pytest.approx(0.149, abs=5e-4)
    assert tg.exponent == pytest.approx(0.152, abs=5e-4)
    values = [multiplier(tokens, tg, gpt2).value for tokens in TOKENS]
    assert [round(min(values), 2), round(max(values), 2)] == [1.05, 1.08]


def test_published_table_gives_parameter_exponents() -> None:
    gpt2, tg = fit_power_law(PARAMETERS, logs(GPT2_BY_PARAMETERS)), fit_power_law(PARAMETERS, logs(TG_BY_PARAMETERS))
    assert gpt2.exponent == pytest.approx(0.080, abs=1e-3)  # the table rounds the sizes
    assert tg.exponent == pytest.approx(0.081, abs=1e-3)
    values = [multiplier(parameters, tg, gpt2).value for parameters in PARAMETERS]
    assert [round(min(values), 2), round(max(values), 2)] == [1.33, 1.42]


@given(
    exponent=st.floats(0.02, 0.6),
    scale=st.floats(1e8, 1e16),
    shift=st.floats(0.5, 3),
    sizes=st.lists(st.integers(10_000, 100_000_000), min_size=2, max_size=6, unique=True),
)
def test_an_exact_law_and_an_exact_shift_are_found(
    exponent: float, scale: float, shift: float, sizes: list[int]
) -> None:
    law = fit_power_law(sizes, [(scale / x) ** exponent for x in sizes])
    assert law.exponent == pytest.approx(exponent, rel=1e-4)
    assert law.loss(sizes[0]) == pytest.approx((scale / sizes[0]) ** exponent, rel=1e-6)
    better = fit_power_law(sizes, [(scale / (shift * x)) ** exponent for x in sizes])
    found = multiplier(sizes[0], better, law)
    assert found.value == pytest.approx(shift, rel=1e-3)
    assert law.inverse(law.loss(12345)) == pytest.approx(12345, rel=1e-6)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    generator, exponent, shift = np.random.default_rng(0), 0.15, 1.2
    sizes = np.array([1e6, 2e6, 4e6, 8e6, 16e6])
    covered = np.zeros(2)
    trials = 2_000
    for _ in range(trials):
        noise = np.exp(generator.normal(scale=0.01, size=(2, 5)))
        law = fit_power_law(sizes.tolist(), ((1e13 / sizes) ** exponent * noise[0]).tolist())
        better = fit_power_law(sizes[1:].tolist(), ((1e13 / shift / sizes) ** exponent * noise[1])[1:].tolist())
        found = multiplier(4e6, better, law)
        for i, (interval, truth) in enumerate(((law.exponent_interval, exponent), (found.interval, shift))):
            assert interval is not None
            covered[i] += interval[0] <= truth <= interval[1]
    assert covered / trials == pytest.approx([0.95, 0.95], abs=0.015)


def test_two_points_give_no_interval_and_one_gives_no_law() -> None:
    law = fit_power_law([1e6, 2e6], [4.0, 3.5])
    assert law.exponent_interval is None
    assert law.spread is None
    assert multiplier(1e6, law, law).interval is None
    with pytest.raises(InputError, match="at least two"):
        fit_power_law([1e6, 1e6], [4.0, 3.9])


def test_a_law_that_may_be_flat_bounds_no_multiplier() -> None:
    flat, steep = fit_power_law([1e6, 2e6, 3e6], [4.0, 4.3, 3.9]), fit_power_law([1e6, 2e6, 3e6], [4.0, 3.5, 3.2])
    assert multiplier(1e6, steep, flat).interval is None


@pytest.mark.parametrize(
    ("x", "loss", "says"),
    [
        ([1.0, 2.0], [3.0], "losses is 1: use one for each of 2 sizes"),
        ([0.0, 2.0], [3.0, 2.0], "sizes is"),
        ([1.0, 2.0], [3.0, math.inf], "losses is"),
        ([1.0, 2.0], [3.0, 3.0], "different losses"),
    ],
)
def test_what_has_no_law_is_refused(x: list[float], loss: list[float], says: str) -> None:
    with pytest.raises(InputError, match=says):
        fit_power_law(x, loss)


@pytest.mark.parametrize(("degrees", "expected"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (10, 2.2281)])
def test_half_an_interval_is_as_in_the_tables(degrees: int, expected: float) -> None:
    found = student_t_margin(degrees)
    assert found == pytest.approx(expected, abs=5e-5)
    assert student_t_p(found, degrees) == pytest.approx(0.05)


def test_pairs_that_share_a_unit_are_not_taken_as_independent() -> None:
    generator = np.random.default_rng(0)
    covered, trials, units = 0, 300, 20
    for _ in range(trials):
        own = generator.normal(size=units)
        interval = bootstrap_pairs(own[:, None] + own + generator.normal(size=(units, units)), samples=500)
        assert interval is not None
        covered += interval[0] <= 0 <= interval[1]
    assert 0.87 < covered / trials < 0.99  # as if 380 pairs were independent it would be below 0.5
    assert bootstrap_pairs(np.zeros((2, 2))) is None


@pytest.mark.parametrize("losses", [(4.0, 3.996), (4.0, 4.001)])
def test_losses_that_hardly_differ_have_no_law(losses: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="the losses differ too little for a law"):
        fit_power_law([1e6, 2e6], losses)
