"""What the training loop costs over a bare `loss.backward(); optimizer.step()` on transformers' GPT-2.

    python benchmarks/loop_overhead.py [ROUNDS] [STEPS]

Both train the model of `gpt2/tiny` on the same batches, in turns. The bare loop has what any loop needs: the batch, the
loss, clipped gradients, AdamW. Ours adds the plan, seeds, FLOPs, schedules and logs. Prints tokens per
second of both (median, slowest-fastest turn) and their ratio turn by turn; the target is at least 0.97.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from measuring import ratios, spread
from mentalese import get_recipe
from mentalese.compare.bench import Contender
from mentalese.models.build import build_model
from mentalese.training.parallel import setup
from mentalese.training.step import build_optimizer


def main(rounds: int, steps: int) -> None:
    recipe = get_recipe("gpt2/tiny")
    loop = Contender(recipe, setup(recipe.train.device))
    plan = loop.run.plan
    model = build_model(recipe.model, loop.run.tokenizer, recipe.train.seed).to(loop.run.parallel.device).train()
    optimizer = build_optimizer(model.parameters(), recipe.optimizer)
    done = 0

    def bare() -> float:
        nonlocal done
        began = time.perf_counter()
        for step in range(done, done + steps):
            batch = {k: v.to(loop.run.parallel.device) for k, v in plan.batch(step).items()}
            model.training_loss(batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - began
        done += steps
        return (plan.position(done).tokens - plan.position(done - steps).tokens) / seconds

    turns: dict[str, Callable[[], float]] = {"loop": lambda: loop.train(steps), "bare": bare}
    speeds: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds + 1):
        for name in list(turns) if number % 2 else reversed(turns):  # neither is always first
            speed = turns[name]()
            if number > 0:
                speeds[name].append(speed)
    for name, values in speeds.items():
        print(f"{name}: {spread(values, ',.0f')} tokens/s")
    print(f"loop/bare: {spread(ratios(speeds, 'loop', 'bare'), '.3f')}")


if __name__ == "__main__":
    main(*(int(argument) for argument in (sys.argv[1:3] if len(sys.argv) == 3 else ("10", "3"))))
