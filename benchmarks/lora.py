"""Training with adapters, ours and PEFT's with transformers' Trainer, on the same batches of `smollm2/arithmetic-cot`.

    python benchmarks/lora.py [ROUNDS] [STEPS]

Needs `models:smollm2` (`make smollm2`). Prints the CPU time of both per step (median, fastest-slowest turn) and their
ratio turn by turn; both print losses of the same batches, which fall from turn to turn.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import peft
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainingArguments

from measuring import in_turns, print_times
from mentalese import get_recipe
from mentalese.models.checkpoints import load_model
from mentalese.training.loop import Run
from mentalese.training.parallel import setup


class Batches(IterableDataset[Any]):
    """The batches of a run."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __iter__(self) -> Any:
        for step in range(self.run.plan.total_steps):
            batch = self.run.plan.batch(step)
            yield {name: batch[name] for name in ("input_ids", "attention_mask", "labels") if name in batch}


def main(rounds: int, steps: int, folder: Path) -> None:
    recipe = get_recipe("smollm2/arithmetic-cot")
    train = recipe.train
    run = Run(recipe, folder / "ours", setup("cpu"), show=False)
    base: Any = load_model(str(train.init))[0]
    base.resize_token_embeddings(len(run.tokenizer))
    maps = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=train.lora_rank or 0, lora_alpha=2 * (train.lora_rank or 0), target_modules=maps
    )
    arguments = TrainingArguments(
        output_dir=str(folder / "theirs"), max_steps=steps, per_device_train_batch_size=1, learning_rate=1e-3,
        bf16=True, use_cpu=True, report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(peft.get_peft_model(base, config), arguments, lambda rows: rows[0], Batches(run))

    def ours() -> None:
        run.state.step = 0
        for _ in range(steps):
            run.one_step()
        print(f"ours, loss of the last step: {run.buffer.losses[-1]:.3f}")

    times = in_turns({"Trainer": trainer.train, "ours": ours}, rounds, time.process_time)
    print_times({name: [value / steps for value in values] for name, values in times.items()}, "Trainer")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(*(int(argument) for argument in (sys.argv[1:3] if len(sys.argv) == 3 else ("3", "4"))), Path(temporary))
