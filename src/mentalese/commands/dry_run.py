"""`mentalese train --dry-run`: the cost of a run, without starting it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mentalese.compare.compare import flops_per_token
from mentalese.data.batch import Batch, to_device
from mentalese.data.evaluation import evaluation_batches
from mentalese.data.store import TokenStore
from mentalese.evaluation.questions import answer_limit
from mentalese.recipe import EvaluationConfig, Recipe
from mentalese.training.log_buffer import LogBuffer
from mentalese.training.loop import Run
from mentalese.training.memory import LiveBytes, peak_memory
from mentalese.training.parallel import Parallel, setup, teardown
from mentalese.training.plan import Plan

WARM_UP, TIMED = 1, 3
SCORED_BATCHES = 64  # of a split, evenly spread, that evaluation is counted from
_ACTIVATIONS = 34
"""Bytes per token, layer and unit of width that 16-bit training keeps, without attention scores (Korthikanti et al.,
2022, section 4.1); float32 keeps twice as much."""
_KEPT = 2 / _ACTIVATIONS
"""The share of them that gradient checkpointing keeps, a layer's input; one layer at a time has all."""


def print_dry_run(recipe: Recipe, flops_per_second: float | None) -> None:
    """Print size, length, cost, memory and time of a run in one process, and write no run folder.

    Args:
        flops_per_second: the assumed speed of a machine; without it a few training steps are timed on this one, which
            needs enough memory.

    Raises:
        InputError: the same errors of the recipe or its data as in the run.
        FloatingPointError: the loss or a gradient of the first steps is not finite.
    """
    figures = estimate(recipe)
    speed, activations, peak = (flops_per_second, None, None) if flops_per_second else _measure(recipe)
    parameters, memory, evaluation = figures["parameters"], figures["memory"], figures["evaluation_flops"]
    seconds = (figures["flops"] + (evaluation or 0)) / speed
    rows = {
        "parameters": f"{parameters['total']:,} ({parameters['non_embedding']:,} without embeddings)",
        "trained": f"{parameters['trained']:,} of {parameters['total']:,}",
        "steps": f"{figures['steps']:,}",
        "tokens": f"{figures['tokens']:,} ({figures['tokens_per_step']:,.0f} per step)",
        "training FLOPs": f"{figures['flops']:.3g} ({figures['flops_per_token']:.3g} per token)",
        **figures["evaluation"],
        "evaluation FLOPs": "not counted: answers to questions" if evaluation is None else f"{evaluation:.3g}",
        "speed": f"{speed:.3g} FLOPs per second, {'as given' if flops_per_second else 'measured here in a few steps'}",
        "time": f"{seconds / 3600:,.2f} hours",
        "weights": _size(memory["weights"]),
        "gradients": _size(memory["gradients"]),
        "Adam's moments": _size(memory["adam"]),
        "activations": f"{_size(memory['activations'])} (estimated)",
        "memory in all": f"{_size(sum(memory.values()))} (estimated)",
    }
    if activations is not None:
        rows["activations"] += f", {_size(activations)} (measured here)"
    if peak is not None:
        rows["peak memory"] = f"{_size(peak)} (measured in these steps; on a CPU with Python and its libraries)"
    print(f"{recipe.name}: nothing is trained or written\n")
    for name, value in rows.items():
        print(f"{name.ljust(max(map(len, rows)))}  {value}")
    for remark in figures["remarks"]:
        print(f"\n{remark}")
    print(
        f"\nActivations are estimated as {_ACTIVATIONS} bytes x width x layers x tokens of a micro-batch, twice that in"
        "\nfloat32: a decoder that stores no attention scores (Korthikanti et al., 2022). A model of more FLOPs (forks,"
        "\nloops) is taken to keep as much more; small ones keep 0.4 to 2 times the estimate. The time is without"
        "\ncheckpoints and answers to questions; evaluation is taken to be as fast as training."
    )


def estimate(recipe: Recipe) -> dict[str, Any]:
    """Return parameters, length, FLOPs and bytes of a run in one process.

    Returns:
        `parameters` (total, non_embedding, trained), `steps`, `tokens`, `tokens_per_step`, `flops` (training, in
        total), `flops_per_token`, `remarks` (see `Plan.remarks`), `evaluation` (number and data of evaluations, in
        words), `evaluation_flops` (of all validations and the test, in total; `None` for answers, which are not
        counted), and `memory`: bytes of weights, gradients, Adam's moments and activations.

    Raises:
        InputError: the recipe or its data are not valid.
    """
    run = Run(recipe, Path("dry-run"), Parallel(0, 1, 0, torch.device("cpu")), show=False, weights=False)
    plan, model, parameters = run.plan, run.model, run.parameters
    micro_batches = recipe.train.gradient_accumulation_steps
    tokens, per_token = plan.position(plan.total_steps).tokens, flops_per_token(model, plan, micro_batches)
    weight_bytes = 4 * sum(p.numel() for p in model.parameters())  # with adapters; always float32
    trained = 4 * parameters["trained"]
    layers = model.config.num_hidden_layers
    width = _ACTIVATIONS * (1 if recipe.train.precision == "bf16" else 2) * model.config.hidden_size
    batch, _ = largest_batch(plan)
    tokens_at_once, length = batch["input_ids"].numel(), batch["input_ids"].shape[1]
    attention = 2 * length * model.config.hidden_size * layers
    plain = 2 * tokens_at_once * (parameters["non_embedding"] + model.output_weight().numel() + attention)
    width *= tokens_at_once * max(1.0, model.forward_flops(batch) / plain)
    return {
        "parameters": parameters,
        "steps": plan.total_steps,
        "tokens": tokens,
        "tokens_per_step": tokens / plan.total_steps,
        "flops": per_token * tokens,
        "flops_per_token": per_token,
        "remarks": plan.remarks(),
        "evaluation": _evaluation(recipe, run.store, plan),
        "evaluation_flops": _evaluation_flops(run),
        "memory": {
            "weights": weight_bytes,
            "gradients": trained,
            "adam": 2 * trained,
            "activations": width * (layers if not recipe.train.checkpointing else 1 + _KEPT * layers),
        },
    }


def _evaluation(recipe: Recipe, store: TokenStore, plan: Plan) -> dict[str, str]:
    """Return the number of validations, and the documents or questions of each validation and of the test."""
    evaluation, what, limit = recipe.evaluation, "documents", ""
    if evaluation.metric == "accuracy":
        limits = (answer_limit(evaluation, layout, store.splits.values()) for layout in recipe.layouts())
        what, limit = "questions", f", at most {max(limits)} new tokens each"

    def count(split: str, evaluation: EvaluationConfig) -> str:
        available = len(store.splits[split].document_bytes)
        return f"{evaluation.documents(available):,} of {available:,} {what}{limit}"

    return {
        "validations": f"{plan.validations():,}, each of {count('validation', evaluation)}",
        "test": count("test", evaluation.of_test()),
    }


def _evaluation_flops(run: Run) -> float | None:
    """FLOPs of scoring the validation split as often as the run does, and the test split once; from some batches."""
    recipe, evaluation = run.recipe, run.recipe.evaluation
    if evaluation.metric == "accuracy":
        return None

    def scoring(split: str, evaluation: EvaluationConfig) -> float:
        rows = len(recipe.layout.evaluation_rows(run.store.splits[split], evaluation))
        every = max(1, rows // evaluation.batch_size // SCORED_BATCHES)
        flops = counted = 0
        for batch in evaluation_batches(run.store.splits[split], recipe.layout, evaluation, run.tokenizer, every=every):
            flops += run.model.scoring_flops(batch)
            counted += len(batch["input_ids"])
        return flops / max(counted, 1) * rows

    return run.plan.validations() * scoring("validation", evaluation) + scoring("test", evaluation.of_test())


def largest_batch(plan: Plan) -> tuple[Batch, int]:
    """Return the largest micro-batch of a run's first and last step, and its step: phases may make rows longer."""
    micro_batches = range(plan.recipe.train.gradient_accumulation_steps)
    steps = dict.fromkeys((0, plan.total_steps - 1))
    batches = [(plan.batch(step, 0, 1, micro), step) for step in steps for micro in micro_batches]
    return max(batches, key=lambda found: found[0]["input_ids"].numel())


def kept_bytes(run: Run) -> int:
    """Bytes that the forward pass of a run's largest micro-batch keeps for the backward pass, without weights."""
    run.step.train()
    run.model.before_step(0)
    largest, step = largest_batch(run.plan)
    batch = to_device(largest, run.parallel.device)
    inputs = [value for value in batch.values() if isinstance(value, Tensor)]
    with LiveBytes([*run.model.parameters(), *run.model.buffers(), *inputs]) as tensors, run.autocast():
        output = run.step(batch, run.plan.settings(step))
        live = tensors.live
    del output
    return live


def _measure(recipe: Recipe) -> tuple[float, int, int | None]:
    """Measure the recipe's first steps on this machine.

    Returns:
        FLOPs per second, the bytes that a forward pass keeps, and the peak memory in bytes.
    """
    parallel = setup(recipe.train.device)
    try:
        run = Run(recipe, Path("dry-run"), parallel, show=False)  # its folder is made when training starts
        activations, buffer = kept_bytes(run), LogBuffer()
        for step in range(min(WARM_UP + TIMED, run.plan.total_steps)):
            if step <= WARM_UP:
                _synchronise(parallel.device)
                began, flops = time.perf_counter(), run.flops
            run.one_step(buffer)
            run.state.step += 1
        _synchronise(parallel.device)
        seconds = time.perf_counter() - began
        run.check_finite(buffer)
        return (run.flops - flops) / seconds, activations, peak_memory(parallel.device)
    finally:
        teardown()


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _size(count: float) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"
