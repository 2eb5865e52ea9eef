"""What the benchmarks of this folder share: how figures are written, and the memory of a step."""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mentalese.training.memory import peak_memory


def spread(values: Sequence[float], form: str) -> str:
    """The median, and in brackets the least and the greatest."""
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def step_peak(step: Callable[[], Any]) -> tuple[int, int]:
    """Bytes: the most that this process has taken after a step, in all and over what it had before."""
    before = peak_memory(torch.device("cpu"))
    step()
    peak = peak_memory(torch.device("cpu"))
    return peak, peak - before


def print_peaks(measure: Callable[..., tuple[int, int]], cases: dict[str, tuple[Any, ...]]) -> None:
    """What `step_peak` says of each case, in a process of its own; ratios are to the first."""
    peaks: dict[str, tuple[int, int]] = {}
    first = next(iter(cases))
    for name, arguments in cases.items():
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peaks[name] = pool.apply(measure, arguments)
        whole, step = (f"{size / 2**20:,.0f} MiB" for size in peaks[name])
        ratios = [mine / plain for mine, plain in zip(peaks[name], peaks[first])]
        print(f"{name}: {whole} ({ratios[0]:.2f} x {first}), the step alone {step} ({ratios[1]:.2f} x)")
