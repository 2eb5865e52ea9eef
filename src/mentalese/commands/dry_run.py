"""`mentalese train --dry-run`: the cost of a run, without starting it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mentalese.compare.compare import flops_per_token
from mentalese.data.batch import to_device
from mentalese.data.evaluation import evaluation_batches
from mentalese.recipe import EvaluationConfig, Recipe
from mentalese.training.loop import Run
from mentalese.training.memory import LiveBytes, peak_memory, release_free_memory
from mentalese.training.parallel import Parallel, setup, teardown

WARM_UP, TIMED = 1, 3
SCORED_BATCHES = 64  # of a split, evenly spread, that evaluation is counted from
_ACTIVATIONS = 34
"""Bytes per token, layer and unit of width that 16-bit training keeps, without attention scores (Korthikanti et al.,
2022, section 4.1); float32 keeps twice as much."""
_KEPT = 2 / _ACTIVATIONS
"""The share of them that gradient checkpointing keeps, a layer's input; one layer at a time has all."""
_NOTES = f"""
Activations are estimated as {_ACTIVATIONS} bytes x width x layers x tokens of a micro-batch, twice that in
float32: a decoder that stores no attention scores (Korthikanti et al., 2022). A model of more FLOPs (forks,
loops) is taken to keep as much more; small ones keep 0.4 to 2 times the estimate. The time is without
checkpoints and answers to questions; evaluation is taken to be as fast as training."""


@dataclass(frozen=True)
class Estimate:
    """The cost of a run in one process.

    Attributes:
        run: the run, without weights.
        flops: FLOPs of training, in total.
        evaluation_flops: FLOPs of all validations and the test; `None` for answers, which are not counted.
        memory: bytes of weights, gradients, Adam's moments and activations.
    """

    run: Run
    flops: float
    evaluation_flops: float | None
    memory: dict[str, float]


def print_dry_run(recipe: Recipe, flops_per_second: float | None) -> None:
    """Print size, length, cost, memory and time of a run in one process, and write no run folder.

    Args:
        flops_per_second: the assumed speed of a machine; without it a few training steps are timed on this one, which
            needs enough memory. With it no weights are read, so that a start from weights that do not fit is not found.

    Raises:
        InputError: the same errors of the recipe or its data as in the run, and without a speed of its first weights.
        FloatingPointError: the loss or a gradient of the first steps is not finite.
    """
    cost = estimate(recipe)
    parameters, plan, memory, evaluation = cost.run.parameters, cost.run.plan, cost.memory, cost.evaluation_flops
    speed, activations, peak, remarks = (
        (flops_per_second, None, None, plan.remarks()) if flops_per_second else _measure(recipe)
    )
    steps, tokens = plan.total_steps, plan.position(plan.total_steps).tokens
    seconds = (cost.flops + (evaluation or 0)) / speed
    rows = {
        "parameters": f"{parameters['total']:,} ({parameters['non_embedding']:,} without embeddings)",
        "trained": f"{parameters['trained']:,} of {parameters['total']:,}",
        "steps": f"{steps:,}",
        "tokens": f"{tokens:,} ({tokens / steps:,.0f} per step)",
        "training FLOPs": f"{cost.flops:.3g} ({cost.flops / tokens:.3g} per token)",
        "validations": f"{plan.validations():,}, each of {_scored(cost.run, 'validation', recipe.evaluation)}",
        "test": _scored(cost.run, "test", recipe.evaluation.of_test()),
        "evaluation FLOPs": "not counted: answers to questions" if evaluation is None else f"{evaluation:.3g}",
        "speed": f"{speed:.3g} FLOPs per second, {'as given' if flops_per_second else 'measured here in a few steps'}",
        "time": f"{seconds / 3600:,.2f} hours",
    } | {name: _size(count) for name, count in memory.items()}
    in_all, how = sum(memory.values()), "estimated"
    if activations is not None:
        in_all, how = in_all - memory["activations"] + activations, "with activations as measured here"
        rows["activations"] += f" (estimated), {_size(activations)} (measured here)"
    rows["memory in all"] = f"{_size(in_all)} ({how})"
    if peak is not None:
        rows["peak memory"] = (
            f"{_size(peak)} (measured in these steps and the longest ones; on a CPU with Python and its libraries)"
        )
    print(f"{recipe.name}: nothing is trained\n")
    for name, value in rows.items():
        print(f"{name.ljust(max(map(len, rows)))}  {value}")
    for remark in remarks:
        print(f"\n{remark}")
    print(_NOTES)


def estimate(recipe: Recipe) -> Estimate:
    """Return the cost of a run.

    Raises:
        InputError: the recipe or its data are not valid.
    """
    run = Run(recipe, Path("dry-run"), Parallel(0, 1, torch.device("cpu")), show=False, weights=False)
    plan, model, train = run.plan, run.model, recipe.train
    per_token = flops_per_token(model, plan, train.gradient_accumulation_steps)
    layers, width = model.config.num_hidden_layers, model.config.hidden_size
    used_weights = run.parameters["non_embedding"] + model.output_weight().numel()
    layer_bytes = 0.0
    for batch in map(plan.batch, plan.longest_steps):
        tokens, length = batch["input_ids"].numel(), batch["input_ids"].shape[1]
        plain_flops = 2 * tokens * (used_weights + 2 * length * width * layers)
        plain_bytes = _ACTIVATIONS * (1 if train.precision == "bf16" else 2) * width * tokens
        layer_bytes = max(layer_bytes, plain_bytes * max(1.0, model.forward_flops(batch) / plain_flops))
    trained = 4 * run.parameters["trained"]
    memory = {
        "weights": 4.0 * sum(p.numel() for p in model.parameters()),  # with adapters; always float32
        "gradients": trained,
        "Adam's moments": 2 * trained,
        "activations": layer_bytes * (layers if not train.checkpointing else 1 + _KEPT * layers),
    }
    return Estimate(run, per_token * plan.position(plan.total_steps).tokens, _evaluation_flops(run), memory)


def _scored(run: Run, split: str, evaluation: EvaluationConfig) -> str:
    """Return the number of documents or questions of an evaluation, in words."""
    available = len(run.store.splits[split].document_bytes)
    count = f"{evaluation.documents(available):,} of {available:,}"
    if not run.validation.asks:
        return f"{count} documents"
    limit = max(run.validation.protocol(layout).answer_tokens for layout in run.recipe.layouts())
    return f"{count} questions, at most {limit} new tokens each"


def _evaluation_flops(run: Run) -> float | None:
    """Return FLOPs of all validations and the test, counted from some batches."""
    recipe, evaluation = run.recipe, run.recipe.evaluation
    if run.validation.asks:
        return None

    def scoring(split: str, evaluation: EvaluationConfig) -> float:
        scored = run.store.splits[split]
        scored = scored.first(evaluation.documents(len(scored.document_bytes)))
        rows = len(recipe.layout.evaluation_rows(scored, evaluation))
        every = max(1, rows // evaluation.batch_size // SCORED_BATCHES)
        flops = counted = 0
        for batch in evaluation_batches(run.store.splits[split], recipe.layout, evaluation, run.tokenizer, every=every):
            flops += run.model.scoring_flops(batch)
            counted += len(batch["input_ids"])
        return flops / max(counted, 1) * rows

    return run.plan.validations() * scoring("validation", evaluation) + scoring("test", evaluation.of_test())


def kept_bytes(run: Run) -> int:
    """Return bytes that a forward pass keeps for the backward pass, without weights: the most of the longest steps."""
    run.step.train()
    run.model.before_step(0)
    kept = []
    for step in run.plan.longest_steps:
        batch = to_device(run.plan.batch(step), run.parallel.device)
        inputs = [value for value in batch.values() if isinstance(value, Tensor)]
        with LiveBytes([*run.model.parameters(), *run.model.buffers(), *inputs]) as tensors, run.autocast():
            output = run.step(batch, run.plan.settings(step))
            kept.append(tensors.live)
        del output
    return max(kept)


def _measure(recipe: Recipe) -> tuple[float, int, int | None, list[str]]:
    """Measure the recipe's first steps, and the memory of its longest ones, on this machine.

    Returns:
        FLOPs per second, the bytes that a forward pass keeps, the peak memory in bytes, and remarks on the run.
    """
    parallel = setup(recipe.train.device)
    try:
        run = Run(recipe, Path("dry-run"), parallel, show=False)  # its folder is made when training starts
        activations = kept_bytes(run)
        for step in range(min(WARM_UP + TIMED, run.plan.total_steps)):
            if step <= WARM_UP:
                parallel.synchronize()
                began, flops = time.perf_counter(), run.flops
            run.one_step()
        parallel.synchronize()
        seconds, flops = time.perf_counter() - began, run.flops - flops
        for step in run.plan.longest_steps:
            release_free_memory()
            run.state.step = step
            run.one_step()
        run.check_finite()
        return flops / seconds, activations, peak_memory(parallel.device), run.remarks
    finally:
        teardown()


def _size(count: float) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"
