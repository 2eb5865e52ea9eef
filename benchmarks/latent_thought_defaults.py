"""Which settings of inference make Latent Thought Models use their thoughts? All on `builtin:topics`, tuned alike.

    python benchmarks/latent_thought_defaults.py [--jobs 2] [--out runs/latent_thought_defaults]

The suite's model of `topics` with 16 fast steps, 250,000 tokens and 2 or 16 thoughts per layer. `paper` is Adam at a
constant rate with noise drawn at each fast step (Algorithm 1), `release` AdamW down to a tenth of its rate by a cosine
with one draw of noise; each starts its log variances at -5 or at 0. Initial weights follow the width, except those of
`init0.02`. Two learning rates are tried with each, then three seeds are trained. Continues where it stopped.

Prints nats per token on second halves, given thoughts of first halves (`mentalese.suite`).
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from pathlib import Path
from typing import Any

from mentalese.compare.compare import compare, run_folder
from mentalese.evaluation.statistics import summary
from mentalese.files import write_json
from mentalese.recipe import Recipe
from mentalese.suite.judge import interval, levels_of, part_nats
from mentalese.suite.recipes import SUITE

INNER: dict[str, dict[str, Any]] = {
    "paper": {"fast_optimizer": "adam", "fast_schedule": "constant", "noise": "resampled", "fast_learning_rate": 0.3},
    "release": {"fast_optimizer": "adamw", "fast_schedule": "cosine", "noise": "fixed", "fast_learning_rate": 0.34},
}
TASK = SUITE["topics"](1.0)


def conditions() -> list[Recipe]:
    """One recipe per setting; names say what is set: inner settings, log variance, thoughts in all, initial weights."""
    base = TASK.methods[0].recipe
    found = []
    for thoughts in (2, 16):
        total = thoughts * base.model["num_hidden_layers"]
        grid: list[tuple[str, float, float | None]] = [(inner, start, None) for inner in INNER for start in (-5.0, 0.0)]
        grid += [("paper", -5.0, 0.02), ("release", 0.0, 0.02)]
        for inner, start, spread in grid:
            model = base.model | INNER[inner] | {"initial_log_variance": start, "num_latents": total, "fast_steps": 16}
            name = f"defaults/{inner}{start:+.0f}-z{thoughts}"
            if spread:
                model, name = model | {"initializer_range": spread}, f"{name}-init{spread}"
            train = dataclasses.replace(base.train, tokens=250_000)
            found.append(dataclasses.replace(base, name=name, model=model, train=train))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/latent_thought_defaults"))
    options = parser.parse_args()
    recipes = conditions()
    rates = {"optimizer.learning_rate": ["0.0063", "0.016"]}
    comparison = compare(recipes, options.out, match=None, seeds=3, tuned_fields=rates, jobs=options.jobs)
    levels, rows = levels_of(TASK), []
    for recipe, row in zip(recipes, comparison["rows"], strict=True):
        nats = [part_nats(run_folder(options.out, recipe.name, run["seed"]), TASK) for run in row["runs"]]
        closed = [levels.closed(value) for value in nats]
        rate = row["runs"][0]["config"]["optimizer"]["learning_rate"]
        rows.append({"name": recipe.name, "nats": summary(nats), "closed": closed, "learning_rate": rate})
        low, high = interval(summary(closed), len(closed)) or (float("nan"), float("nan"))
        print(
            f"{recipe.name:32} {statistics.fmean(nats):.3f} nats  {statistics.fmean(closed):4.0%} "
            f"({low:.0%} to {high:.0%})  rate {rate}"
        )
    write_json(options.out / "table.json", {"levels": dataclasses.asdict(levels), "rows": rows})


if __name__ == "__main__":
    main()
