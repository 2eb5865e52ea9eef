"""Draws the learning curve of published runs: validation perplexity and training loss against tokens.

python results/plot.py OUT.svg RESULT.json [RESULT.json ...]      (needs matplotlib)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt


def main(out: str, *paths: str) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for path in paths:
        result = json.loads(Path(path).read_text())
        validations = [point for point in result["curve"] if "validation_perplexity" in point]
        losses = [point for point in result["curve"] if "loss" in point]
        left.plot(
            [point["tokens"] / 1e6 for point in validations],
            [point["validation_perplexity"] for point in validations],
            marker="o",
            markersize=3,
            label=f"{result['recipe']}, test {result['test']['perplexity']:.1f}",
        )
        right.plot([point["tokens"] / 1e6 for point in losses], [point["loss"] for point in losses], linewidth=1)
    left.set(yscale="log", xlabel="million training tokens", title="validation perplexity", ylim=(None, 1000))
    right.set(xlabel="million training tokens", title="training loss, nats a token", ylim=(None, 7.5))
    for formatter in (left.yaxis.set_major_formatter, left.yaxis.set_minor_formatter):
        formatter("{x:.0f}")
    left.legend(frameon=False)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    figure.savefig(out)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
