"""One training loop for every family.

    plan      a step is a number; the plan returns its tokens, its curriculum settings and the position in the run
    step      every micro-batch's mean loss, weighted by its targets, so that ranks and micro-batches equal one batch
    update    gradients scaled and clipped in one pass, fused AdamW
    watch     validation, best model, early stopping, checkpoints, signals, non-finite losses

The loop does not depend on the family that it trains. Randomness inside a step (dropout, noise) is seeded by (seed,
step, rank, micro-batch), so a resumed run equals an uninterrupted one bit for bit without any saved generator state.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mentalese import provenance
from mentalese.data.batch import to_device
from mentalese.data.store import TokenStore, prepare, report
from mentalese.errors import require
from mentalese.evaluation.answers import SplitResult
from mentalese.evaluation.metric import ACCURACY, METRICS
from mentalese.files import JsonObject, read_json, remove_remains, sealed, write_json, write_text
from mentalese.models.base import LossOutput
from mentalese.models.checkpoints import model_to_save, save_model, saved_about, text_facts
from mentalese.models.lora import merged_weights
from mentalese.models.saved import check_start, load
from mentalese.recipe import Recipe
from mentalese.screen import progress
from mentalese.training.checkpoint import Checkpointer
from mentalese.training.memory import (
    check_memory,
    forget_peak_memory,
    limit_kernel_cache,
    peak_memory,
    release_free_memory,
)
from mentalese.training.model_card import NAME as CARD
from mentalese.training.model_card import model_card
from mentalese.training.parallel import (
    Parallel,
    clip_and_scale,
    full_state_dict,
    gradient_shares,
    lacks_bf16,
    no_sync,
    setup,
    teardown,
    wrap,
)
from mentalese.training.plan import Plan, step_seed
from mentalese.training.run_folder import (
    RunResult,
    check_folder,
    check_inputs,
    claimed,
    finished_result,
    first_weights,
    learning_curve,
)
from mentalese.training.signals import Interrupted, stop_signals
from mentalese.training.start import outline, start
from mentalese.training.step import TrainStep, build_optimizer, learning_rate
from mentalese.training.tracking import Log, LogBuffer, Record, check_trackers, read_metrics, tracked
from mentalese.training.validation import Validation

RELEASE_SECONDS = 10.0  # between two returns of free memory to the system
ANSWERS = "answers.jsonl"  # for the questions of the test split


@dataclass
class State:
    """The part of a checkpoint beside tensors; everything else follows from the step.

    Attributes:
        stage: stage of the last validation; `best` and `best_nll` belong to it.
        best, best_nll: the recipe's metric and the likelihood at `best_step`.
        unfinished: answers of the validation at `best_step` that were cut at the limit of new tokens.
        to_beat: the metric that early stopping compares with.
        validation_due: the step's validation has not been made yet.
    """

    step: int = 0
    stage: int = 0
    best_step: int | None = None
    best: float | None = None
    best_nll: float | None = None
    unfinished: int = 0
    to_beat: float | None = None
    validations_without_gain: int = 0
    validation_due: bool = False
    flops: int = 0
    seconds: float = 0.0
    peak_memory: int | None = None


def train(recipe: Recipe, out: Path, *, resume: bool = False, show: bool = True) -> RunResult:
    """Train a recipe, evaluate its best model on the test split, and return the content of `result.json`.

    Args:
        out: the run's folder; gets `config.json`, `metrics.jsonl`, `checkpoints/`, `model/` and `result.json`.
        resume: continue from the newest checkpoint, if there is one; a finished run returns its result at once.
        show: show progress on standard error.

    Raises:
        InputError: the recipe, the data or the folder cannot be used; nothing has been written then.
        Interrupted: SIGINT or SIGTERM came; a checkpoint has been written.
        FloatingPointError: the loss or a gradient is not finite; the message names the step and its batch.
    """
    if resume and (finished := finished_result(recipe, out)) is not None:
        return finished
    check_folder(recipe, out, resume)
    parallel = setup(recipe.train.device)
    try:
        with torch.random.fork_rng(devices=[parallel.device] if parallel.device.type == "cuda" else []):
            return Run(recipe, out, parallel, show=show and parallel.is_main).run(resume)
    finally:
        teardown()


class Run:
    """A recipe with everything that its training needs; `run` trains it, `one_step` makes one training step.

    All errors of a recipe are raised here, before the weights are made. Without `weights`, a run can only be counted.

    Raises:
        InputError: the recipe or its data cannot be used, or training needs more memory than the device has.
    """

    def __init__(self, recipe: Recipe, out: Path, parallel: Parallel, *, show: bool, weights: bool = True) -> None:
        self.recipe, self.out, self.parallel, self.show = recipe, out, parallel, show
        check_trackers(recipe.train.trackers)
        asks, one = METRICS[recipe.evaluation.metric] is ACCURACY, parallel.world_size == 1
        remedy = "FSDP cannot generate answers, set ddp, use one process, or set evaluation.metric=perplexity"
        require(one or not asks or recipe.train.parallel == "ddp", "train.parallel", recipe.train.parallel, remedy)
        self.store, self.tokenizer = _prepare(recipe, parallel, show)
        self.plan = Plan(self.store.splits["train"], recipe, self.tokenizer, world_size=parallel.world_size)
        self.remarks = self.plan.remarks()  # builds every epoch, and so detects impossible phases
        if recipe.train.precision == "bf16" and lacks_bf16(parallel.device):
            self.remarks.append(
                "this CPU has no instructions for bfloat16: --train.precision fp32 is several times as fast"
            )
        for remark in self.remarks if show else ():
            print(f"{recipe.name}: {remark}", file=sys.stderr)
        check_start(recipe.data, recipe.train.adapter, recipe.train.init)
        self.first_weights = first_weights(recipe)
        self.model, self.parameters = outline(recipe, self.tokenizer)
        self.validation = Validation(self.plan, self.store, out)
        self.prompts, self.sample_tokens = self.validation.sample_prompts(self.model)
        self.validation.check(self.model, show)
        if weights:
            check_memory(self.model, recipe, parallel)
            limit_kernel_cache()
            self.model, self.parameters, whole = start(recipe, self.tokenizer, parallel)
            step = TrainStep(self.model)
            if recipe.train.compile:
                step.compile()
            self.step = wrap(step, parallel, recipe.train.parallel, whole)
            self.optimizer = build_optimizer(self.model.parameters(), recipe.optimizer)
        forget_peak_memory(parallel.device)
        self.released = time.perf_counter()  # the last time that free memory was returned
        self.flops = 0  # on this rank, since the last log line
        self.buffer = LogBuffer()
        self.log: Log = lambda record: None
        self.state = State()

    # -- the run ---------------------------------------------------------------------------------------------------

    def run(self, resume: bool) -> RunResult:
        with claimed(self.recipe, self.out, resume, self.parallel):
            self._begin(resume)
            with stop_signals() as self.signals:
                with ExitStack() as stack:
                    if self.parallel.is_main:
                        step, is_due = self.state.step, self.state.validation_due
                        self.log = stack.enter_context(tracked(self.recipe, self.out, step, validation_due=is_due))
                    stack.callback(self.checkpoints.wait)
                    self._steps()
                    self._note_memory()
                try:
                    with self.signals.at_once():
                        return self._finish()
                except Interrupted as stop:
                    self._stop(stop.signum)

    def _begin(self, resume: bool) -> None:
        """Write `config.json` and open the checkpoints; refuse a run of other data or that began from other weights."""
        path = self.out / "config.json"
        begun = resume and path.exists()
        if begun:
            meta = {name: self.store.meta[name] for name in ("source_fingerprint", "data_hash")}
            check_inputs(self.recipe, self.out, read_json(path), **meta)
        if self.parallel.is_main:
            remove_remains(self.out / "model")
            write_json(path, sealed(self._provenance() | {"recipe": self.recipe.to_dict()}))
        self.parallel.barrier()
        self.checkpoints = Checkpointer(self.out / "checkpoints", self.parallel, self.recipe.train.keep_checkpoints)
        if resume and self.checkpoints.latest() is not None:
            self.state = State(**self.checkpoints.load(self.model, self.optimizer))
            self.model.keep_settings(self.plan.settings(max(self.state.step - 1, 0)))
            records = read_metrics(self.out / "metrics.jsonl")
            validated = {record["step"] for record in records if "validation" in record}
            if saved_about(self.out).get("step") != self.state.best_step or self.state.best_step not in validated:
                # The model on disk is from after this checkpoint, or a power cut has taken the line of its validation:
                # the next validation saves it again.
                self.state.best_step = self.state.best = self.state.best_nll = None
        elif begun and self.show:
            print(f"{self.out} contains no checkpoint: its run begins again at step 0", file=sys.stderr)

    def _stop_together(self) -> None:
        """Raise `Interrupted` in all processes if one of them has received a signal."""
        if self.parallel.world_size > 1 and (signum := self.parallel.max(self.signals.first)):
            raise Interrupted(signum)

    def _stop(self, signum: int) -> NoReturn:
        """Write a checkpoint, unless the last one is of this step, and end the run."""
        if self.checkpoints.latest() != self.state.step:
            self._write_checkpoint()
        self.checkpoints.wait()
        goes_on = "--resume, or the same compare, suite or demo, goes on"
        raise Interrupted(signum, f"stopped at step {self.state.step}: {goes_on}")

    def _steps(self) -> None:
        total, state, last_stage = self.plan.total_steps, self.state, self.recipe.layouts()[-1].stage
        patience = self.recipe.train.early_stopping_patience or math.inf
        if state.validation_due:
            self._validate()
        with progress(f"Training {self.recipe.name}", total, start=state.step, show=self.show) as bar:
            while state.step < total:
                if state.stage == last_stage and state.validations_without_gain >= patience:
                    break
                self.one_step()
                state.validation_due = self.plan.is_validation(state.step)
                stop = self.parallel.max(self.signals.first)
                if self._is_logged(state.step) or stop:
                    note = self._log()
                    bar.update(state.step, note)
                    if self.parallel.device.type == "cpu" and time.perf_counter() > self.released + RELEASE_SECONDS:
                        release_free_memory()
                        self.released = time.perf_counter()
                if stop:
                    self._stop(stop)
                if state.validation_due:
                    self._validate()
                if self._is_checkpoint(state.step):
                    self._write_checkpoint()
        if state.best_step is None:  # nothing was left to train, and the model on disk is of another step
            self._validate()
        # Several processes cannot write a checkpoint while the first of them scores the test split.
        keeps = self.recipe.train.checkpoint_every > 0 or self.parallel.world_size > 1
        if keeps and self.checkpoints.latest() != state.step:
            self._write_checkpoint()

    def one_step(self) -> None:
        recipe, parallel, step = self.recipe, self.parallel, self.state.step
        self.buffer.start()
        self.step.train()
        if self.plan.reset_optimizer(step):
            self.optimizer.state.clear()
        position, settings = self.plan.position(step), self.plan.settings(step)
        rate = learning_rate(recipe.optimizer, step, self.plan.schedule_steps, position.progress)
        for group in self.optimizer.param_groups:
            group["lr"] = rate

        micros = recipe.train.gradient_accumulation_steps
        is_whole = micros == 1 and parallel.world_size == 1
        outputs: list[LossOutput] = []
        self.model.before_step(step_seed(recipe.train.seed, step, 0, 0))
        for micro in range(micros):
            batch = self.plan.batch(step, parallel.rank, parallel.world_size, micro)
            self.flops += self.model.training_flops(batch, **settings)
            torch.manual_seed(step_seed(recipe.train.seed, step, parallel.rank, micro))
            with no_sync(self.step, last=micro == micros - 1), self.autocast():
                output = self.step(to_device(batch, parallel.device), settings)
                # One process has the batch's mean loss; else sums are reduced and divided by the global weight below.
                (output.loss if is_whole else output.loss * output.weight).backward()
            outputs.append(output)
        scale: float | Tensor = 1.0
        loss, metrics = outputs[0].loss.detach(), outputs[0].metrics
        if not is_whole:
            scale, loss, metrics = self._mean(outputs)
        if self._is_logged(step + 1):
            shares = gradient_shares(self.model.gradient_groups())
            metrics = metrics | {f"gradient_share.{name}": share for name, share in shares.items()}
        norm = clip_and_scale(self.model.parameters(), scale=scale, max_norm=recipe.optimizer.max_grad_norm)
        self.optimizer.step()
        self.model.after_step()
        self.optimizer.zero_grad(set_to_none=True)
        self.buffer.add(step, rate, loss, norm, metrics)
        self.state.step += 1

    @torch.no_grad()
    def _mean(self, outputs: list[LossOutput]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the gradients' scale, and loss and metrics by target, of all ranks: one reduction, no other wait."""
        device, names = outputs[0].loss.device, list(outputs[0].metrics)
        each = [torch.stack([x.float().to(device) for x in (o.loss, *o.metrics.values())]) for o in outputs]
        weights = torch.stack([o.weight.float().to(device) for o in outputs])
        sums = torch.cat((weights.sum()[None], (torch.stack(each) * weights[:, None]).sum(0)))
        weight, *totals = self.parallel.sum(sums).unbind(0)
        scale = torch.where(weight > 0, 1 / weight, 0.0)
        loss, *means = (total * scale for total in totals)
        return self.parallel.world_size * scale, loss, dict(zip(names, means))

    def autocast(self) -> torch.autocast:
        enabled = self.recipe.train.precision == "bf16"
        return torch.autocast(self.parallel.device.type, dtype=torch.bfloat16, enabled=enabled)

    # -- watching ----------------------------------------------------------------------------------------------------

    def _log(self) -> str:
        """Log the buffer and empty it, and return a note; a loss that is not finite ends the run before it is saved."""
        buffer = self.buffer
        self.check_finite()
        seconds = time.perf_counter() - buffer.started
        position = self.plan.position(self.state.step)
        rate = (position.tokens - self.plan.position(buffer.steps[0]).tokens) / seconds
        self.state.seconds += seconds
        self.state.flops += int(self.parallel.sum(torch.tensor(self.flops, dtype=torch.float64)))
        self.flops = 0
        record: Record = {
            "step": self.state.step,
            "epoch": position.epoch,
            "tokens": position.tokens,
            "sentence_steps": position.sentence_steps,
            "loss": statistics.fmean(map(float, buffer.losses)),
            "learning_rate": buffer.learning_rate,
            "grad_norm": float(buffer.norms[-1]),
            "tokens_per_second": rate,
            "flops": self.state.flops,
            "seconds": self.state.seconds,
        } | buffer.means()
        self.log(record)
        self.buffer = LogBuffer()
        note = f"loss {record['loss']:.3f}"
        if "ntp" in record:
            note += f" (next token {record['ntp']:.3f})"
        if (best := self.state.best) is not None:
            note += f"  best {self.validation.metric.name} {self.validation.metric.format(best)}"
            note += f", {self.state.unfinished:,} unfinished" if self.state.unfinished else ""
        return f"{note}  {rate:,.0f} tokens/s"

    def check_finite(self) -> None:
        """Raise `FloatingPointError` if a loss or a gradients' norm since the last log line is not finite."""
        for step, *tensors in zip(self.buffer.steps, self.buffer.losses, self.buffer.norms):
            for name, value in zip(("loss", "gradients' norm"), map(float, tensors)):
                if not math.isfinite(value):
                    position = self.plan.position(step)
                    raise FloatingPointError(
                        f"the {name} is {value} at step {step} (epoch {position.epoch}, batch {position.index} of the "
                        f"epoch, data {self.store.meta['data_hash'][:12]}, seed {self.recipe.train.seed}): look at "
                        "this batch, lower optimizer.learning_rate or set optimizer.max_grad_norm"
                    )

    def _is_logged(self, step: int) -> bool:
        """Return True every `log_every` steps, and whenever a validation or a checkpoint is due."""
        return step % self.recipe.train.log_every == 0 or self.plan.is_validation(step) or self._is_checkpoint(step)

    def _is_checkpoint(self, step: int) -> bool:
        every = self.recipe.train.checkpoint_every
        return every > 0 and step % every == 0

    def _validate(self) -> None:
        """Validate, or stop at a signal with a checkpoint from which the validation is repeated."""
        before = dict(vars(self.state))
        try:
            # Each of several processes continues to a point at which all can stop, see `_stop_together`.
            with self.signals.at_once() if self.parallel.world_size == 1 else nullcontext():
                self._validated()
        except Interrupted as stop:
            vars(self.state).update(before, validation_due=True)
            self._stop(stop.signum)

    def _validated(self) -> None:
        state, metric, layout = self.state, self.validation.metric, self.plan.layout_after(self.state.step)
        # Every rank scores the whole split: sharded parameters need all ranks, and rank 0's result decides for all.
        with self.autocast():
            saved = self.validation.saved(self.model, layout)
            figure = self.validation.score("validation", saved, before_batch=self._stop_together)
        figure = self.parallel.broadcast_object(figure)
        if layout.stage != state.stage:  # the best of another stage does not count at this one
            state.stage, state.validations_without_gain = layout.stage, 0
            state.best_step = state.best = state.best_nll = state.to_beat = None
        value, nll = figure.value(metric), figure.scores.nll
        least = self.recipe.train.early_stopping_min_delta / (100 if metric is ACCURACY else 1)
        if state.to_beat is None or metric.better(value, state.to_beat, least):
            state.to_beat, state.validations_without_gain = value, 0
        else:
            state.validations_without_gain += 1
        likelier = metric is ACCURACY and value == state.best and nll < (state.best_nll or 0.0)
        if state.best is None or metric.better(value, state.best) or likelier:
            state.best, state.best_nll, state.best_step = value, nll, state.step
            state.unfinished = figure.unfinished
            self._save_model(figure)
        position = self.plan.position(state.step)
        self.log({"step": state.step, "tokens": position.tokens, "flops": state.flops, "validation": figure.to_dict()})
        state.validation_due = False

    # -- files -------------------------------------------------------------------------------------------------------

    def _provenance(self) -> dict[str, object]:
        return {
            "fingerprint": self.recipe.fingerprint(),
            "data_hash": self.store.meta["data_hash"],
            "source_fingerprint": self.store.meta["source_fingerprint"],
            **self.first_weights,
            "seed": self.recipe.train.seed,
            "commit": provenance.commit(),
            "hardware": provenance.hardware(self.parallel.device) | {"ranks": self.parallel.world_size},
            "versions": provenance.versions(),
            "command": provenance.command(),
        } | {name: self.store.meta[name] for name in ("left_out",) if name in self.store.meta}

    def _note_memory(self) -> None:
        """Note the peak of all processes that trained the run, one after the other."""
        if (peak := peak_memory(self.parallel.device)) is not None:
            self.state.peak_memory = max(peak, self.state.peak_memory or 0)

    def _write_checkpoint(self) -> None:
        self._note_memory()
        settings = self.plan.settings(max(self.state.step - 1, 0))
        about: JsonObject = {"recipe": self._recipe_now().to_dict(), "settings": settings}
        self.checkpoints.save(self.state.step, self.model, self.optimizer, dict(vars(self.state)), about)

    def _recipe_now(self) -> Recipe:
        """Return the recipe with the layout and the protocol of this step, by which its model is read."""
        layout = self.plan.layout_after(self.state.step)
        return dataclasses.replace(self.recipe, layout=layout, evaluation=self.validation.protocol(layout))

    def _save_model(self, figure: SplitResult) -> None:
        """Save the best model so far as `model/`, with this evaluation on its card."""
        model: PreTrainedModel = self.model
        sharded = self.parallel.world_size > 1 and self.recipe.train.parallel == "fsdp"
        adapted = self.model if self.recipe.train.lora_rank is not None else None
        weights = full_state_dict(self.model) if sharded else None
        if self.parallel.is_main:
            if adapted is not None:
                weights = merged_weights(adapted)
            if weights is not None:
                model = model_to_save(model.config, weights)
            about: JsonObject = {"recipe": self._recipe_now().to_dict(), "step": self.state.step}
            about |= text_facts(self.recipe, self.store.meta["source_fingerprint"])
            card = self._card(validation=figure.to_dict())
            save_model(self.out / "model", model, self.tokenizer, adapted=adapted, card=card, **about)
        self.parallel.barrier()

    def _card(self, **found: object) -> str:
        best = self.state.best_step or 0
        counts = {"parameters": self.parameters, "best_step": best, "tokens": self.plan.position(best).tokens}
        return model_card(self.recipe, counts | self._provenance() | found)

    def _finish(self) -> RunResult:
        """Score the best model on the test split and write `result.json`."""
        result: RunResult = {}
        if self.parallel.is_main:
            result = self._result()
            figures = {name: result[name] for name in ("validation", "test", "samples")}
            write_text(self.out / "model" / CARD, self._card(**figures))
            write_json(self.out / "result.json", sealed(result))
        return self.parallel.broadcast_object(result)

    def _result(self) -> RunResult:
        recipe, state = self.recipe, self.state
        # Samples continue a text, whatever its tokenizer's template.
        saved, bounded = load(self.out, self.parallel.device).as_text(), recipe.evaluation.of_test()
        saved = saved.scored_by(max_documents=bounded.max_documents, documents_seed=bounded.documents_seed)
        # In float32 whatever the run's precision, as `mentalese eval` scores.
        test = self.validation.score("test", saved, show=self.show, out=self.out / ANSWERS)
        # Greedy decoding makes a small model repeat itself, but an answer is its most certain text.
        sampling = {"do_sample": False} if self.validation.asks else {"do_sample": True, "top_p": 0.9}
        texts = saved.generate(self.prompts, max_new_tokens=self.sample_tokens, seed=recipe.train.seed, **sampling)
        records = read_metrics(self.out / "metrics.jsonl")
        tokens = self.plan.position(state.step).tokens
        best = next(r["validation"] for r in records if "validation" in r and r["step"] == state.best_step)
        return {
            "recipe": recipe.name,
            "parameters": self.parameters,
            "steps": state.step,
            "best_step": state.best_step,
            "tokens": tokens,
            **self.plan.text_read(),
            "flops": state.flops,
            "train_flops_per_token": state.flops / tokens,
            "seconds": state.seconds,
            "tokens_per_second": statistics.median(r["tokens_per_second"] for r in records if "loss" in r),
            **({} if state.peak_memory is None else {"peak_memory_bytes": state.peak_memory}),
            "validation": best,
            "test": test.to_dict(),
            "samples": [{"prompt": prompt, "text": text} for prompt, text in zip(self.prompts, texts)],
            "curve": learning_curve(records),
            "config": recipe.to_dict(),
        } | self._provenance()


def _prepare(recipe: Recipe, parallel: Parallel, show: bool) -> tuple[TokenStore, PreTrainedTokenizerBase]:
    """Return the token store: prepared by the main process, then opened by the others."""

    def ready() -> tuple[TokenStore, PreTrainedTokenizerBase]:
        return prepare(recipe.data, recipe.layout, show=show)

    prepared = parallel.on_main(ready) or ready()
    for line in report(prepared[0], sentences=recipe.layout.markers) if show else ():
        print(f"{recipe.data.source}: {line}", file=sys.stderr)
    return prepared
