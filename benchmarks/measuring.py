"""What the benchmarks of this folder share: turns, clocks, the memory of a step, and how results are printed."""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from mentalese.training.memory import peak_memory


def spread(values: Sequence[float], form: str) -> str:
    """The median, and in brackets the minimum and the maximum."""
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def in_turns(
    contenders: Mapping[str, Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each contender in each round; one more round before them warms up."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, run in contenders.items():
            began = clock()
            run()
            if turn:
                times[name].append(clock() - began)
    return times


def ratios(times: Mapping[str, Sequence[float]], name: str, reference: str) -> list[float]:
    """A contender's times over the reference's, turn by turn."""
    return [ours / theirs for ours, theirs in zip(times[name], times[reference], strict=True)]


def print_times(times: Mapping[str, Sequence[float]], reference: str, notes: Mapping[str, str] | None = None) -> None:
    """Milliseconds and the ratio to the reference of each contender, and a note after them."""
    for name, values in times.items():
        milliseconds, ratio = spread([1000 * v for v in values], ".1f"), spread(ratios(times, name, reference), ".3f")
        print(f"{name}: {milliseconds} ms, {ratio} x {reference}{(notes or {}).get(name, '')}")


def timed_generation(
    model: Any, prompt: Tensor, new: int, change: Callable[[Tensor], Tensor] = lambda scores: scores
) -> tuple[Tensor, list[float]]:
    """Greedy text of exactly `new` tokens [rows, length + new], and the seconds between its tokens.

    Args:
        change: what becomes of a step's scores [rows, vocabulary].
    """
    ticks: list[float] = []

    def clock(input_ids: Tensor, scores: Tensor) -> Tensor:
        ticks.append(time.perf_counter())
        return change(scores)

    options: dict[str, Any] = {"do_sample": False, "min_new_tokens": new, "max_new_tokens": new, "pad_token_id": 0}
    text = model.generate(prompt, attention_mask=torch.ones_like(prompt), logits_processor=[clock], **options)
    return text, [after - before for before, after in pairwise(ticks)]


@torch.no_grad()
def whole_pass(model: Any, text: Tensor) -> float:
    """Seconds of a forward pass over text [rows, length] without a cache."""
    began = time.perf_counter()
    model(text, use_cache=False, logits_to_keep=1)
    return time.perf_counter() - began


def step_peak(step: Callable[[], Any]) -> tuple[int, int]:
    """Bytes: peak memory of this process after a step, and how much it grew in the step."""
    before = peak_memory(torch.device("cpu"))
    step()
    peak = peak_memory(torch.device("cpu"))
    return peak, peak - before


def print_peaks(measure: Callable[..., tuple[int, int]], cases: dict[str, tuple[Any, ...]]) -> None:
    """The `step_peak` of each case, in a process of its own; ratios are to the first."""
    peaks: dict[str, tuple[int, int]] = {}
    first = next(iter(cases))
    for name, arguments in cases.items():
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peaks[name] = pool.apply(measure, arguments)
        whole, step = (f"{size / 2**20:,.0f} MiB" for size in peaks[name])
        ratios = [mine / plain for mine, plain in zip(peaks[name], peaks[first])]
        print(f"{name}: {whole} ({ratios[0]:.2f} x {first}), the step alone {step} ({ratios[1]:.2f} x)")


def run_parts(about: str, parts: Mapping[str, Callable[[], None]]) -> None:
    """Runs the parts named on the command line; all of them without arguments."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    names = parser.parse_args().parts
    for name in names:
        if name not in parts:
            parser.error(f"{name}: use {', '.join(parts)}")
    for name in names or parts:
        parts[name]()
