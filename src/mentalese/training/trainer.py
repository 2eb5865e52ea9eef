"""`transformers.Trainer` on a recipe: Hugging Face's loop, callbacks and reporting; Mentalese's losses and batches."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset
from transformers import TrainerCallback, TrainingArguments

from mentalese.data.batch import Batch
from mentalese.data.store import prepare
from mentalese.errors import require
from mentalese.models.checkpoints import reading_tokenizer, text_facts, write_about
from mentalese.models.saved import check_start
from mentalese.models.transformers_seam import step_trainer, use_one_gpu
from mentalese.recipe import Recipe
from mentalese.recipe_files import open_recipe
from mentalese.training.parallel import clip_and_scale
from mentalese.training.plan import Plan, step_seed
from mentalese.training.start import start_model
from mentalese.training.step import TrainStep, build_optimizer, learning_rate

DECIDED = (
    "learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "lr_scheduler_type",
    "lr_scheduler_kwargs", "warmup_steps", "num_train_epochs", "max_steps", "per_device_train_batch_size",
    "gradient_accumulation_steps", "gradient_checkpointing", "torch_compile", "bf16", "fp16", "seed", "data_seed",
    "optim", "optim_args", "label_smoothing_factor", "neftune_noise_alpha", "ignore_data_skip", "fsdp", "deepspeed",
)  # fmt: skip
"""Arguments that are refused, because the recipe decides them or they do not apply: docs/training.md lists them."""


class MicroBatches(Dataset[Batch]):
    """All micro-batches of a run in the order of training; one after the other goes to each process in turn."""

    def __init__(self, plan: Plan, world_size: int) -> None:
        self.plan, self.world_size = plan, world_size
        self.micros = plan.recipe.train.gradient_accumulation_steps

    def __len__(self) -> int:
        return self.plan.total_steps * self.micros * self.world_size

    def __getitem__(self, index: int) -> Batch:
        number, rank = divmod(index, self.world_size)
        return self.plan.batch(number // self.micros, rank, self.world_size, number % self.micros)


class MentaleseTrainer(step_trainer()):  # type: ignore[misc]
    """Train a recipe as `mentalese train` does, by `transformers.Trainer`: equal batches, losses and updates.

    The recipe decides what is trained and how, `args` everything around it: places, logging, saving, reporting, the
    hub. What is saved opens by `mentalese.load` and by `from_pretrained`. Several processes train with DDP.

    Raises:
        InputError: the recipe or its data cannot be used, or something is set that docs/training.md lists as refused.
    """

    optimizer: Any

    def __init__(
        self, recipe: str | Path | Recipe, args: TrainingArguments, callbacks: list[TrainerCallback] | None = None
    ) -> None:
        self.recipe = recipe if isinstance(recipe, Recipe) else open_recipe(str(recipe))
        args = _checked(self.recipe, args)
        with args.main_process_first():
            store, tokenizer = prepare(self.recipe.data, self.recipe.layout)
        self.source_fingerprint: str = store.meta["source_fingerprint"]
        check_start(self.recipe.data, self.recipe.train.adapter, self.recipe.train.init)
        model, self.parameters = start_model(self.recipe, tokenizer)
        self.plan = Plan(store.splits["train"], self.recipe, tokenizer, world_size=args.world_size)
        args.max_steps = self.plan.total_steps
        self.step = TrainStep(model)
        if self.recipe.train.compile:
            self.step.compile()
        self.sums: list[tuple[Tensor, Tensor]] = []  # of the micro-batches since the last update: losses, weights
        optimizer = build_optimizer(model.parameters(), self.recipe.optimizer)
        super().__init__(
            *(model, args, lambda items: items[0], MicroBatches(self.plan, args.world_size)),
            processing_class=tokenizer,
            callbacks=callbacks,
            optimizers=(optimizer, LambdaLR(optimizer, self._share_of_rate)),
        )
        self.model_accepts_loss_kwargs = False  # losses are weighed here

    def train(self, *args: Any, **options: Any) -> Any:
        self.sums = []  # of an update that was interrupted
        return super().train(*args, **options)

    def _share_of_rate(self, step: int) -> float:
        config, progress = self.recipe.optimizer, self.plan.position(step).progress
        return learning_rate(config, step, self.plan.schedule_steps, progress) / config.learning_rate

    def trained_module(self) -> nn.Module:
        return self.step

    def training_step(self, model: nn.Module, inputs: Batch, num_items_in_batch: object = None) -> Tensor:
        """Add a micro-batch; after the last, divide gradients of the summed losses by the weights of all targets."""
        if not self.sums and self.plan.reset_optimizer(self.state.global_step):
            self.optimizer.state.clear()
        super().training_step(model, inputs)
        if not self.accelerator.sync_gradients:
            return torch.zeros((), device=self.args.device)
        loss, weight = (torch.stack(parts).sum() for parts in zip(*self.sums))
        self.sums = []
        total = self.accelerator.reduce(weight)
        scale = torch.where(total > 0, self.args.world_size / total, 0.0)
        clip_and_scale(model.parameters(), scale=scale, max_norm=None)
        self.step.model.after_step()
        return loss * scale  # `Trainer` logs the mean over processes

    def compute_loss(self, model: nn.Module, inputs: Batch, *_: object, **__: object) -> Tensor:
        """Return the sum of a micro-batch's losses, from the seed that `mentalese train` has for it."""
        step, seed = self.state.global_step, self.recipe.train.seed
        if not self.sums:
            self.step.model.before_step(step_seed(seed, step, 0, 0))
        torch.manual_seed(step_seed(seed, step, self.args.process_index, len(self.sums)))
        output = model(inputs, self.plan.settings(step))
        loss = output.loss * output.weight
        self.sums.append((loss.detach(), output.weight.detach()))
        return loss * self.current_gradient_accumulation_steps  # which `Trainer` divides by

    def save_model(self, output_dir: str | None = None, *args: object, **kwargs: object) -> None:
        super().save_model(output_dir, *args, **kwargs)
        if not self.args.should_save:
            return
        step, folder = self.state.global_step, Path(output_dir or self.args.output_dir)
        recipe = dataclasses.replace(self.recipe, layout=self.plan.layout_after(step))
        about = {"recipe": recipe.to_dict(), "step": step} | text_facts(recipe, self.source_fingerprint)
        reading_tokenizer(self.processing_class, self.model, about).save_pretrained(folder)
        write_about(folder, self.processing_class, about)


def _checked(recipe: Recipe, args: TrainingArguments) -> TrainingArguments:
    """Return the arguments with the recipe's values; raise `InputError` for refused ones."""
    plain, train = TrainingArguments(args.output_dir), recipe.train
    refused = [(f"args.{name}", getattr(args, name), getattr(plain, name)) for name in DECIDED]
    refused += [(f"train.{name}", getattr(train, name), None) for name in ("lora_rank", "early_stopping_patience")]
    refused += [("train.parallel", train.parallel, "ddp")] if args.world_size > 1 else []
    refused += [("train.device", train.device, args.device.type)] if train.device != "auto" else []
    for field, value, allowed in refused:
        remedy = f"MentaleseTrainer only trains with {allowed!r}, see docs/training.md"
        require(value == allowed, field, value, remedy)
    args = dataclasses.replace(
        args,
        per_device_train_batch_size=1,  # an item is a micro-batch
        gradient_accumulation_steps=train.gradient_accumulation_steps,
        max_grad_norm=recipe.optimizer.max_grad_norm or 0.0,
        bf16=train.precision == "bf16",
        seed=train.seed,
        remove_unused_columns=False,
        ddp_find_unused_parameters=True,  # as the loop does, see `parallel.wrap`
        ddp_broadcast_buffers=False,
    )
    use_one_gpu(args)  # several need a process each, by `torchrun`
    return args
