"""Made-up comparisons, as `compare.json` holds them, for tests of the report."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from mentalese.compare import compare as module
from mentalese.evaluation.statistics import paired_t_test, summary


def compare(*args: Any, train: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """`compare`, with another function in place of `loop.train`."""
    with patch("mentalese.training.loop.train", train):
        return module.compare(*args, **options)


HOSTILE = '</script><script>alert("1")</script><img src=x onerror=alert(2)> & "quoted"'


def run(name: str, final: float, *, seed: int = 0, steps: int = 500, cost: float = 1.0) -> dict[str, Any]:
    """A result like that of `train`, whose perplexity falls from 1,000 to `final`; `cost` is that of a step."""
    score = {
        "nll": math.log(final), "tokens": 4000, "bytes": 17000, "perplexity": final,
        "bits_per_byte": math.log2(final) * 4 / 17, "protocol": {"tokens": "lexical", "context": f"as {name} reads"},
    }  # fmt: skip
    curve = []
    for step in range(10, steps + 1, 10):
        point = {"step": step, "tokens": 100 * step, "flops": cost * 10**9 * step, "seconds": cost * step / 5}
        value = final * (1000 / final) ** (1 - step / steps)
        curve += [point | {"loss": math.log(value)}, *([point | {"validation_perplexity": value}] * (step % 50 == 0))]
    return {
        "parameters": {"total": 2_359_808, "non_embedding": 1_311_232}, "train_flops_per_token": 8.4e6 * cost,
        "tokens_per_second": 21000 / cost, "peak_memory_bytes": int(cost * 2**29), "test": score, "validation": score,
        "curve": curve, "seed": seed,
        "samples": [{"prompt": "The function", "text": f"The function of {name} {HOSTILE}"}],
        "steps": steps, "tokens": 100 * steps, "flops": cost * 10**9 * steps, "seconds": cost * steps / 5,
        "config": {"name": name}, "commit": "0123abc", "data_hash": "fedcba9876543210ff", "hardware": {"device": "cpu"},
        "versions": {"torch": "2.13.0"}, "command": "mentalese compare a <b>",
    }  # fmt: skip


def comparison(models: int = 2, seeds: int = 1) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for index in range(models):
        name = f"family{index}/tiny"
        cost = 1 + index % 5 / 2
        runs = [run(name, 100 - 2 * index + seed * (1 + index) / 10, seed=seed, cost=cost) for seed in range(seeds)]
        nll = [r["test"]["nll"] for r in runs]
        first = [r["test"]["nll"] for r in (rows[0]["runs"] if rows else runs)]
        rows.append({
            "name": name, "description": f"model number {index} <b>", "parameters": runs[0]["parameters"],
            "perplexity": summary([r["test"]["perplexity"] for r in runs]),
            "bits_per_byte": summary([r["test"]["bits_per_byte"] for r in runs]),
            **{key: summary([r[key] for r in runs]) for key in ("train_flops_per_token", "tokens_per_second")},
            "baseline": "family0/tiny" if index else None, "ratio": 1 - index / 50,
            "paired_test": dataclasses.asdict(paired_t_test(nll, first)) if index and seeds > 2 else None, "runs": runs,
            "commands": [f"mentalese train {name} --seed {seed} --out runs/seed-{seed}" for seed in range(seeds)],
        })  # fmt: skip
    return {
        "version": 1, "created": "2026-01-02T03:04:05+00:00", "source": "builtin:stdlib", "tokenizer": "bpe:4096",
        "rows": rows, "match": {"by": "tokens", "budget": 50000}, "seeds": seeds, "command": "mentalese compare a <b>",
    }  # fmt: skip


def questions(models: int = 2, seeds: int = 1) -> dict[str, Any]:
    """A comparison of accuracies, 0.5 for the first model and 0.1 more for each next one, at two stages."""
    compared = comparison(models, seeds)
    first: list[float] = []
    for index, row in enumerate(compared["rows"]):
        values = [0.5 + index / 10 + seed * (1 + index) / 100 for seed in range(seeds)]
        first = first or values
        for run, value in zip(row["runs"], values):
            score = {"nll": 1.0, "perplexity": 2.718, "accuracy": value, "exact_match": value, "f1": value + 0.05}
            run["test"] = score | {"questions": 500, "protocol": {"decoding": "greedy", "latents": index}}
            for point in run["curve"]:
                if "validation_perplexity" in point:
                    point |= {"validation_accuracy": value * point["step"] / 500, "stage": int(point["step"] > 250)}
        for name in ("perplexity", "bits_per_byte", "ratio"):
            del row[name]
        row["accuracy"], row["f1"] = summary(values), summary([value + 0.05 for value in values])
        row["difference"] = sum(values) / seeds - sum(first) / seeds
        row["paired_test"] = dataclasses.asdict(paired_t_test(values, first)) if index and seeds > 2 else None
    return compared
