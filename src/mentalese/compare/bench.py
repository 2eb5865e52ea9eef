"""Speed, memory and cost of a recipe against its baseline: interleaved in one run, on the same text.

Both contenders take turns (A B A B ...), so other work on the machine affects both, and the ratio is taken turn by
turn. A turn of training is the training loop's step; a turn of generation is one batch of prompts. Peak memory is
measured in a separate process for each contender.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np

from mentalese import provenance
from mentalese.errors import nearest, require
from mentalese.files import check_place, write_json
from mentalese.formatting import short_count
from mentalese.recipe import Recipe
from mentalese.registry import families, get_recipe, recipes_of
from mentalese.screen import print_table
from mentalese.training import loop, memory
from mentalese.training.parallel import Parallel, setup
from mentalese.training.validation import openings

PROMPTS, NEW_TOKENS = 8, 32
Measured = dict[str, Any]
"""The figures of a benchmark, as they stand in its JSON file."""

PEAK_BF16_FLOPS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}
"""Dense bfloat16 FLOP/s from the makers' data sheets, by part of the device's name; longer names first."""


def peak_flops(device_name: str) -> float | None:
    """Return the denominator of MFU; `None` for a device that is not in the table (every CPU)."""
    return next((peak for name, peak in PEAK_BF16_FLOPS.items() if name in device_name), None)


class Contender:
    """One recipe, built as the training loop builds it, that trains and generates turn by turn.

    A recipe of questions is at the end of its curriculum, since earlier stages may have no latents.
    """

    def __init__(self, recipe: Recipe, parallel: Parallel) -> None:
        questions = recipe.layout.questions
        if questions:
            recipe = dataclasses.replace(recipe, layout=recipe.layouts()[-1], phases=())
        self.recipe = recipe
        self.run = loop.Run(recipe, Path("bench"), parallel, show=False)  # which writes nothing there
        self.prompts = openings(self.run.store, self.run.tokenizer, count=PROMPTS, questions=questions)

    def train(self, steps: int) -> float:
        """Return lexical tokens per second over the next `steps` optimiser steps."""
        run, start = self.run, self.run.state.step
        run.parallel.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            run.one_step()
        run.parallel.synchronize()
        seconds = time.perf_counter() - began
        return (run.plan.position(start + steps).tokens - run.plan.position(start).tokens) / seconds

    def generate(self) -> float:
        """Return new tokens per second, greedy, all prompts in one batch."""
        began = time.perf_counter()
        saved = self.run.validation.saved(self.run.model, self.recipe.layout)
        saved.generate(self.prompts, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False)
        self.run.parallel.synchronize()
        return len(self.prompts) * NEW_TOKENS / (time.perf_counter() - began)

    def flops_per_token(self) -> float:
        """Return training FLOPs per lexical token, over all steps so far."""
        return self.run.flops / self.run.plan.position(self.run.state.step).tokens


def measure(recipe: Recipe, baseline: Recipe, *, rounds: int = 5, steps: int = 2) -> Measured:
    """Measure both recipes in turns; the first turn of each warms up and is not counted.

    Returns:
        `ours` and `baseline` (tokens per second as median, min and max; FLOPs per token; MFU; peak memory), and `ratio`
        (ours over the baseline's, turn by turn) for `training` and `generation`.
    """
    parallel = setup(recipe.train.device)
    contenders = {"ours": Contender(recipe, parallel), "baseline": Contender(baseline, parallel)}
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, contender in contenders.items():
            speeds[name].append((contender.train(steps), contender.generate()))
    turns = {name: np.array(speeds[name][1:]).T for name in contenders}  # [training and generation, rounds]
    hardware = provenance.hardware(parallel.device)
    peak = peak_flops(hardware["name"])
    ratios = map(_spread, turns["ours"] / turns["baseline"])
    result: Measured = {
        "hardware": hardware,
        "peak_flops": peak,
        "rounds": rounds,
        "steps_per_round": steps,
        "ratio": dict(zip(("training", "generation"), ratios)),
    }
    for name, contender in contenders.items():
        training, generation = map(_spread, turns[name])
        flops = contender.flops_per_token()
        result[name] = {
            "recipe": contender.recipe.name,
            "parameters": contender.run.parameters,
            "precision": contender.recipe.train.precision,
            "training_tokens_per_second": training,
            "generation_tokens_per_second": generation,
            "train_flops_per_token": flops,
            "mfu": training["median"] * flops / peak if peak else None,
            "peak_memory_bytes": memory_of_own_process(contender.recipe, steps),
        }
    return result


def bench(names: list[str], out: Path | None) -> Measured:
    """Measure the `tiny` recipe of some families, or of all, against its baseline; write a JSON file to `out`."""
    check_place(out, "--out")
    pairs: dict[str, tuple[Recipe, Recipe]] = {}
    for name in families():
        for recipe in recipes_of(name):
            if recipe.name.endswith("/tiny") and recipe.baseline:
                pairs.setdefault(name, (recipe, get_recipe(recipe.baseline)))
    for name in names:
        require(name in pairs, "families", name, f"use some of {', '.join(pairs)}{nearest(name, pairs)}")
    measured = {name: measure(*pairs[name]) for name in names or pairs}
    result = {"commit": provenance.commit(), "versions": provenance.versions(), "families": measured}
    if out is not None:
        write_json(out, result)
    return result


def print_bench(result: Measured) -> None:
    """Print one row per contender: medians, and the range from the slowest to the fastest turn."""
    rows = table(result)
    print_table(tuple(rows[0]), [tuple(row.values()) for row in rows])
    measured = next(iter(result["families"].values()))
    name, peak = measured["hardware"]["name"], measured["peak_flops"]
    relative = f"relative to {peak / 1e12:,.0f} TFLOP/s in bfloat16" if peak else "none, because its peak is unknown"
    print(f"\nMFU of {name}: {relative}")


def table(result: Measured) -> list[dict[str, str]]:
    """Return a row per contender, by the titles of columns."""
    rows = []
    for measured in result["families"].values():
        for name in ("baseline", "ours"):
            one, ratio = measured[name], measured["ratio"] if name == "ours" else {}
            memory = one["peak_memory_bytes"]
            row = {"model": one["recipe"]}
            for title, kind in (("train", "training"), ("generate", "generation")):
                row[f"{title} tokens/s"] = _range(one[f"{kind}_tokens_per_second"], ",.0f")
                row[f"{title} ratio"] = _range(ratio[kind], ".2f") if ratio else ""
            row["FLOPs/token"] = short_count(one["train_flops_per_token"])
            row["MFU"] = "none" if one["mfu"] is None else f"{one['mfu']:.1%}"
            row["peak memory"] = "none" if memory is None else f"{memory / 2**20:,.0f} MiB"
            rows.append(row)
    return rows


def _range(values: dict[str, float], form: str) -> str:
    return f"{values['median']:{form}} ({values['min']:{form}}-{values['max']:{form}})"


def _spread(values: np.ndarray) -> dict[str, float]:
    return {"median": float(np.median(values)), "min": float(values.min()), "max": float(values.max())}


def memory_of_own_process(recipe: Recipe, steps: int) -> int | None:
    """Return peak bytes of a separate process, allocated on the GPU or resident on a CPU."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(peak_memory, (recipe, steps))


def peak_memory(recipe: Recipe, steps: int) -> int | None:
    """Return peak bytes of this process after a few steps of training."""
    parallel = setup(recipe.train.device)
    Contender(recipe, parallel).train(steps)
    return memory.peak_memory(parallel.device)
