"""Memory and time of the loss: in chunks against plain logits, each in a process of its own.

    python benchmarks/chunked_cross_entropy.py

Vocabulary 50,257, batch 8 x 1,024, width 256, float32, forward and backward. Memory is how much the process's peak is
above its memory before. Targets: under 12% of the plain one's memory at no more than 0.75 of its time.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor

from mentalese.nn.loss import linear_cross_entropy

TOKENS, WIDTH, VOCABULARY = 8 * 1024, 256, 50_257


def _plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(hidden @ weight.T, targets)


FORMS = {"plain": _plain, "chunked": linear_cross_entropy}


def _resident(name: str) -> int:
    """Bytes; `VmRSS` now or `VmHWM` at the peak (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def measure(form: str, rounds: int) -> tuple[int, float]:
    """Peak bytes above the start, and the median seconds of one forward and backward pass."""
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH).mul_(0.02).requires_grad_()
    targets = torch.randint(VOCABULARY, (TOKENS,))
    hidden.grad, weight.grad = torch.zeros_like(hidden), torch.zeros_like(weight)
    before, seconds = _resident("VmRSS"), []
    for _ in range(rounds):
        began = time.perf_counter()
        FORMS[form](hidden, weight, targets).backward()
        seconds.append(time.perf_counter() - began)
    return _resident("VmHWM") - before, statistics.median(seconds)


def main(rounds: int = 3) -> None:
    measured = {}
    for form in FORMS:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            measured[form] = pool.apply(measure, (form, rounds))
        memory, seconds = measured[form]
        print(f"{form}: {memory / 2**20:,.0f} MiB, {seconds:.2f} s")
    (plain_memory, plain_seconds), (memory, seconds) = measured["plain"], measured["chunked"]
    print(f"chunked/plain: memory {memory / plain_memory:.1%}, time {seconds / plain_seconds:.2f}")


if __name__ == "__main__":
    main()
