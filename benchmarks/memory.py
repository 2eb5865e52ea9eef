"""What a forward pass keeps for its gradient, per token, in each family at 124M parameters; then the peak of a batch.

    python benchmarks/memory.py

Measured on this machine on a short batch: what is kept grows with the tokens, at a given length. Weights, gradients and
Adam's moments, 16 bytes a parameter in float32, are added to it.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import torch

from gpu import FAMILIES, Setting, recipe_of
from mentalese.commands.dry_run import kept_bytes
from mentalese.data.layouts import SentenceStreams
from mentalese.recipe import DataConfig
from mentalese.training.loop import Run
from mentalese.training.parallel import Parallel

TOKENS = 8 * 1024  # of the batch that the table is about
VOCABULARY = 50_257  # GPT-2's, whose rows are added to the parameters
STATE = 16  # bytes a parameter: weight, gradient, two moments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=256, help="of the row that is measured")
    options = parser.parse_args()
    print("| | parameters | kept per token | with checkpointing | peak, 8 x 1,024 tokens | with checkpointing |")
    print("|---|---|---|---|---|---|")
    for family, name in FAMILIES.items():
        kept, parameters = [], 0
        for checkpointing in (False, True):
            run = _run(name, options.length, checkpointing)
            rows, width = run.model.output_weight().shape
            parameters = run.parameters["total"] + (VOCABULARY - rows) * width
            kept.append(kept_bytes(run) / run.plan.batch(0)["input_ids"].numel())
            del run
        peaks = [f"{(STATE * parameters + TOKENS * each) / 2**30:.1f} GiB" for each in kept]
        each = [f"{one / 2**10:,.0f} KiB" for one in kept]
        print(f"| {family} | {parameters / 1e6:.0f}M | {each[0]} | {each[1]} | {peaks[0]} | {peaks[1]} |", flush=True)


def _run(name: str, length: int, checkpointing: bool) -> Run:
    recipe = recipe_of(name, Setting("cpu", False, Path()))
    layout = recipe.layouts()[-1]
    if isinstance(layout, SentenceStreams):
        layout = dataclasses.replace(layout, tokens_per_batch=length)
    else:  # questions are as long as they are
        layout = dataclasses.replace(layout, batch_size=1, **({} if layout.questions else {"sequence_length": length}))
    data = recipe.data
    if not layout.questions:  # a small vocabulary is made sooner, and nothing that is kept depends on it
        data = dataclasses.replace(data, source=DataConfig().source, tokenizer="bpe:512")
    train = dataclasses.replace(recipe.train, checkpointing=checkpointing)
    model = recipe.model | ({"fast_steps": 1} if recipe.model["model_type"] == "ltm" else {})  # each frees what it kept
    recipe = dataclasses.replace(recipe, layout=layout, data=data, train=train, model=model)
    return Run(recipe, Path("runs/memory"), Parallel(0, 1, torch.device("cpu")), show=False)


if __name__ == "__main__":
    main()
