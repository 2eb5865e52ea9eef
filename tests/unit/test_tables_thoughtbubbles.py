"""The recipes of Thoughtbubbles beside the paper's numbers."""

from __future__ import annotations

import pytest

from mentalese import get_recipe
from paper_tables import Row, check, check_costs, names

SIZES = {"150m": "152M", "319m": "354M", "772m": "773M"}
"""By the labels of Table 1. The middle one is not the paper's: the shapes of Table 3 make 353.8M (README)."""


def rows(table: str, steps: str, tokens: str, name: str, size: str) -> Row:
    """Table 2: batch 64, block 512, warm-up 0.01, rate 2.5e-4; cosine to a tenth and the bounds are ours (README)."""
    return Row(
        recipe=f"thoughtbubbles/{name}",
        cited=f"{table}, Tables 2 and 3",
        parameters=SIZES[size],
        steps=steps,
        tokens=tokens,
        tokens_per_step=64 * 512,
        peak_rate="2.5e-4",
        last_rate="2.5e-5",
        warmup=int(steps.replace(",", "")) // 100,
        context=512,
        joined=True,
        # nanoGPT's 200 batches of 8 rows of 512, and its 4,007 documents; those of peS2o are as many.
        **({} if "pes2o" in name else {"evaluation": "819K", "test": "4.4M"}),
    )


VARIANTS = ("2l", "4l", "regular", "copy3", "copy5")
ROWS = [
    *(
        rows("Table 1", "75,000", "2.5B", f"table1-{corpus}-{size}-{variant}", size)
        for corpus in ("openwebtext", "pes2o")
        for size in SIZES
        for variant in VARIANTS
    ),
    *(rows("Table 4", "25,000", "0.8B", f"table4-{name}", "772m") for name in ("ours", "extended")),
]


@names(ROWS)
def test_a_recipe_has_the_numbers_of_its_table(row: Row) -> None:
    check(row)


def test_the_readme_states_what_runs_cost() -> None:
    check_costs("thoughtbubbles")


@pytest.mark.parametrize(("variant", "streams"), [("2l", 1024), ("4l", 2048), ("copy3", 1536), ("copy5", 2560)])
def test_streams_are_the_expanded_sizes_of_table_3(variant: str, streams: int) -> None:
    for size in SIZES:
        fields = get_recipe(f"thoughtbubbles/table1-openwebtext-{size}-{variant}").model
        each = fields["copies"] if "copies" in fields else fields.get("budget", 2.0)
        assert 512 * each == streams


@pytest.mark.parametrize(("size", "batch"), [("150m", 8), ("319m", 4), ("772m", 2)])
def test_micro_batches_are_those_of_table_3(size: str, batch: int) -> None:
    for variant in VARIANTS:
        recipe = get_recipe(f"thoughtbubbles/table1-openwebtext-{size}-{variant}")
        assert recipe.train.gradient_accumulation_steps * batch == 64
