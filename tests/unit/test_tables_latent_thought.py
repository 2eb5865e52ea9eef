"""The recipes of Latent Thought Models beside the paper's numbers."""

from __future__ import annotations

import dataclasses

import pytest

from unit.paper_tables import Row, check, matches, names

ROWS = [
    Row(recipe="latent_thought/table1-small", cited="Table 1; A.2", parameters="38M", tokens="7B"),
]


@names(ROWS)
def test_a_recipe_has_the_numbers_of_its_table(row: Row) -> None:
    check(row)


@pytest.mark.parametrize(
    ("number", "printed", "right"),
    [
        (38_368_768, "38M", True),
        (38_500_000, "39M", True),
        (38_510_000, "38M", False),
        (2_457_600_000, "2.5B", True),
        (2_440_000_000, "2.5B", False),
        (4e-5, "4e-5", True),
        (4.1e-5, "4e-5", True),
        (4.1e-5, "4.0e-5", False),
        (75_000, "75,000", True),
        (74_999, "75,000", False),
    ],
)
def test_a_number_is_right_if_it_rounds_to_the_text(number: float, printed: str, right: bool) -> None:
    assert matches(number, printed) == right


@pytest.mark.parametrize(
    "wrong", [{"parameters": "39M"}, {"tokens": "7.1B"}, {"steps": "13.3K"}, {"warmup": 100}], ids=str
)
def test_a_wrong_number_is_found(wrong: dict[str, object]) -> None:
    with pytest.raises(AssertionError, match=next(iter(wrong))):
        check(dataclasses.replace(ROWS[0], **wrong))
