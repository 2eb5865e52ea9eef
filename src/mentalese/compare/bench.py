"""Speed, memory and cost of a recipe against its baseline: interleaved in one run, on the same text.

Both contenders take turns (A B A B ...), so other work on the machine affects both, and the ratio is taken turn by
turn. A turn of training is the training loop's step; a turn of generation is one batch of prompts. Peak memory is
measured in a separate process for each contender.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mentalese import provenance
from mentalese.errors import InputError, nearest
from mentalese.files import check_place, write_json
from mentalese.recipe import Recipe
from mentalese.registry import families as known_families
from mentalese.registry import get_recipe, load
from mentalese.training import loop, memory
from mentalese.training.parallel import Parallel, setup
from mentalese.training.run_folder import openings

PROMPTS, NEW_TOKENS = 8, 32

PEAK_BF16_FLOPS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}
"""Dense bfloat16 FLOP/s from the makers' data sheets, by part of the device's name; longer names first."""


def peak_flops(device_name: str) -> float | None:
    """The denominator of MFU; `None` for a device that is not in the table (every CPU)."""
    return next((peak for name, peak in PEAK_BF16_FLOPS.items() if name in device_name), None)


def _at_its_last_stage(recipe: Recipe) -> Recipe:
    """A recipe of questions at the end of its curriculum: earlier stages may have no latents."""
    if not recipe.layout.questions:
        return recipe
    return dataclasses.replace(recipe, layout=recipe.layouts()[-1], phases=())


class Contender:
    """One recipe, built as the training loop builds it, that trains and generates turn by turn.

    Args:
        recipe: what is measured.
        folder: of a run; nothing is written to it.
    """

    def __init__(self, recipe: Recipe, parallel: Parallel, folder: Path = Path("bench")) -> None:
        self.recipe = recipe = _at_its_last_stage(recipe)
        self.run = loop.Run(recipe, folder, parallel, show=False)
        questions = recipe.layout.questions
        self.prompts = openings(self.run.store, self.run.tokenizer, count=PROMPTS, questions=questions)

    def train(self, steps: int) -> float:
        """Lexical tokens per second over the next `steps` optimiser steps."""
        run, start = self.run, self.run.state.step
        _synchronise()
        began = time.perf_counter()
        for _ in range(steps):
            run.one_step(loop.LogBuffer())
            run.state.step += 1
        _synchronise()
        seconds = time.perf_counter() - began
        return (run.plan.position(start + steps).tokens - run.plan.position(start).tokens) / seconds

    def generate(self) -> float:
        """New tokens per second, greedy, all prompts in one batch."""
        began = time.perf_counter()
        saved = self.run.as_saved(self.recipe.layout)
        saved.generate(self.prompts, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False)
        _synchronise()
        return len(self.prompts) * NEW_TOKENS / (time.perf_counter() - began)

    def flops_per_token(self) -> float:
        """Training FLOPs per lexical token, over all steps so far."""
        return self.run.flops / self.run.plan.position(self.run.state.step).tokens


def measure(recipe: Recipe, baseline: Recipe, *, rounds: int = 5, steps: int = 2) -> dict[str, Any]:
    """Both recipes in turns; the first turn of each warms up and is not counted.

    Returns:
        `ours` and `baseline` (tokens per second as median, min and max; FLOPs per token; MFU; peak memory), and `ratio`
        (ours over the baseline's, turn by turn) for `training` and `generation`.
    """
    parallel = setup(recipe.train.device)
    contenders = {"ours": Contender(recipe, parallel), "baseline": Contender(baseline, parallel)}
    speeds: dict[str, dict[str, list[float]]] = {name: {"training": [], "generation": []} for name in contenders}
    for turn in range(rounds + 1):
        for name, contender in contenders.items():
            speed = {"training": contender.train(steps), "generation": contender.generate()}
            if turn > 0:
                for kind, value in speed.items():
                    speeds[name][kind].append(value)
    hardware = provenance.hardware(parallel.device)
    peak = peak_flops(hardware["name"])
    result: dict[str, Any] = {
        "hardware": hardware,
        "peak_flops": peak,
        "rounds": rounds,
        "steps_per_round": steps,
        "ratio": {
            kind: _spread([a / b for a, b in zip(speeds["ours"][kind], speeds["baseline"][kind])])
            for kind in ("training", "generation")
        },
    }
    for name, contender in contenders.items():
        training = _spread(speeds[name]["training"])
        flops = contender.flops_per_token()
        result[name] = {
            "recipe": contender.recipe.name,
            "parameters": contender.run.parameters,
            "precision": contender.recipe.train.precision,
            "training_tokens_per_second": training,
            "generation_tokens_per_second": _spread(speeds[name]["generation"]),
            "train_flops_per_token": flops,
            "mfu": training["median"] * flops / peak if peak else None,
            "peak_memory_bytes": _in_own_process(contender.recipe, steps),
        }
    return result


def bench(families: list[str], out: Path | None) -> dict[str, Any]:
    """Measures each family's `tiny` recipe against its baseline.

    Args:
        families: names; an empty list means all families whose `tiny` recipe has a baseline.
        out: a JSON file for the result.

    Raises:
        InputError: an unknown family, one without a `tiny` recipe that names a baseline, or a folder that is missing.
    """
    known = known_families()
    for name in families:
        if name not in known:
            raise InputError(f"no family is called {name!r}{nearest(name, known)}")
    check_place(out, "--out")
    pairs = {name: recipe for name in families or known if (recipe := _tiny(name)) is not None}
    if missing := [name for name in families if name not in pairs]:
        raise InputError(f"the family {missing[0]!r} has no tiny recipe with a baseline: remove it")
    measured = {}
    for name, recipe in pairs.items():
        assert recipe.baseline is not None
        measured[name] = measure(recipe, get_recipe(recipe.baseline))
    result = {"commit": provenance.commit(), "versions": provenance.versions(), "families": measured}
    if out is not None:
        write_json(out, result)
    return result


def _tiny(family: str) -> Recipe | None:
    recipes: list[Recipe] = load(known_families()[family].recipes)
    return next((recipe for recipe in recipes if recipe.name.endswith("/tiny") and recipe.baseline), None)


HEADER = ("model", "train tokens/s", "ratio", "generate tokens/s", "ratio", "FLOPs/token", "MFU", "peak memory")


def table(result: dict[str, Any]) -> list[list[str]]:
    """One row per contender: medians, and the range from the slowest to the fastest turn."""
    rows = []
    for measured in result["families"].values():
        for name in ("baseline", "ours"):
            contender, ratios = measured[name], measured["ratio"]
            training, generation = ("", "") if name == "baseline" else (ratios["training"], ratios["generation"])
            mfu = f"{contender['mfu']:.1%}" if contender["mfu"] is not None else "none"
            held = contender["peak_memory_bytes"]
            rows.append(
                [
                    contender["recipe"],
                    _cell(contender["training_tokens_per_second"], "{:,.0f}"),
                    _cell(training, "{:.2f}"),
                    _cell(contender["generation_tokens_per_second"], "{:,.0f}"),
                    _cell(generation, "{:.2f}"),
                    f"{contender['train_flops_per_token'] / 1e6:,.1f}M",
                    mfu,
                    "none" if held is None else f"{held / 2**20:,.0f} MiB",
                ]
            )
    return rows


def denominator(result: dict[str, Any]) -> str:
    """The denominator of MFU, in one line."""
    measured = next(iter(result["families"].values()), None)
    if measured is None:
        return "No family has a tiny recipe with a baseline."
    name, peak = measured["hardware"]["name"], measured["peak_flops"]
    return f"MFU of {name}: " + (
        f"relative to {peak / 1e12:,.0f} TFLOP/s in bfloat16" if peak else "none, because its peak is unknown"
    )


def _cell(values: dict[str, float] | str, form: str) -> str:
    if isinstance(values, str):
        return values
    median, low, high = (form.format(values[name]) for name in ("median", "min", "max"))
    return f"{median} ({low}-{high})"


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _in_own_process(recipe: Recipe, steps: int) -> int | None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(peak_memory, (recipe.to_dict(), steps))


def peak_memory(recipe: dict[str, Any], steps: int) -> int | None:
    """Peak bytes of a process that trains a few steps: allocated on the GPU, or resident with Python on a CPU."""
    parallel = setup(recipe["train"]["device"])
    Contender(Recipe.from_dict(recipe), parallel).train(steps)
    return memory.peak_memory(parallel.device)
