"""A recipe is a run as plain data: model, tokens, optimiser, length, curriculum and how it is evaluated.

A recipe is immutable: use `Recipe.replace`, or `mentalese.override(recipe, "optimizer.learning_rate=1e-3")`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import field
from itertools import accumulate
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Strict

from mentalese.data.config import DataConfig, EvaluationConfig
from mentalese.data.layouts import Layout, Packed, layout_of
from mentalese.errors import nearest, require
from mentalese.files import JsonObject, checksum
from mentalese.values import (
    NonNegative,
    NonNegativeNumber,
    Number,
    Positive,
    PositiveNumber,
    Share,
    Texts,
    checked,
    checked_dataclass,
)

Clock = Literal["steps", "epochs", "tokens", "sentence_steps"]
LENGTHS = ("steps", "epochs", "tokens")
"""Fields of `TrainConfig` of which one sets a run's length."""


def _written(fields: JsonObject) -> JsonObject:
    try:
        json.dumps(fields, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise ValueError("use finite numbers, texts, lists and dicts of them") from None
    return fields


Data = Annotated[JsonObject, AfterValidator(_written)]
Fields = JsonObject
"""Fields of a model's config, as JSON has them."""
Decay = Annotated[Number, Field(ge=0, lt=1)]


@checked_dataclass("optimizer")
class OptimizerConfig:
    """AdamW and its learning-rate schedule. Weight decay acts on matrices only (no biases, norms, gates, scalars).

    Attributes:
        learning_rate: the highest rate, at the end of the warm-up.
        betas: decay of AdamW's first and second moment.
        eps: added to the root of the second moment.
        weight_decay: AdamW's, decoupled from the gradient.
        schedule: course of the learning rate after the warm-up.
        warmup: length of the linear warm-up: steps if it is 1 or more, else a fraction of the run.
        min_learning_rate_ratio: the schedule ends at this fraction of `learning_rate`, unless it is constant.
        max_grad_norm: gradients are clipped to this norm; `None`: they are not clipped.
    """

    learning_rate: PositiveNumber = 1e-3
    betas: Annotated[tuple[Decay, Decay], Strict(False)] = (0.9, 0.95)
    eps: PositiveNumber = 1e-8
    weight_decay: NonNegativeNumber = 0.1
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: NonNegativeNumber = 0.02
    min_learning_rate_ratio: Share = 0.1
    max_grad_norm: PositiveNumber | None = 1.0

    def __post_init__(self) -> None:
        ratio = self.min_learning_rate_ratio
        has_end = self.schedule != "constant" or ratio == type(self).min_learning_rate_ratio
        remedy = "a constant schedule has no end; remove it, or set optimizer.schedule to cosine or linear"
        require(has_end, "optimizer.min_learning_rate_ratio", ratio, remedy)

    def warmup_steps(self, total_steps: int) -> int:
        """Return the length of the warm-up in steps, of a schedule of `total_steps`."""
        return math.ceil(self.warmup if self.warmup >= 1 else self.warmup * total_steps)


@checked_dataclass("train")
class TrainConfig:
    """Length, start, precision, devices, and how often a run logs, validates and saves.

    Attributes:
        steps, epochs, tokens: the length of the run: set one of the three.
        epoch_documents: documents of an epoch, about: documents are dealt in turn into parts of this size, which
            epochs read in turn. `None`: an epoch reads all documents.
        schedule_share: the share of the learning rate's schedule, and of the phases' ramps, that the run covers; below
            1 the run is the beginning of a longer one, whose checkpoint a table reports (Latent Thought Models, Table
            1, the row LTM-Large).
        init: a saved model whose weights the run starts from, a folder or `hub:NAME`: one of the recipe's own class, or
            of the decoder inside it (`mentalese.models.grow.start_from`).
        lora_rank: train adapters of this rank on the linear maps of `init`, whose weights stay fixed (LoRA, Hu et al.,
            2021; needs the extra `lora`). The family's additions to a decoder are trained in full, and so are the rows
            of its markers in embeddings and head. `None`: all weights are trained.
        lora_alpha: adapters are scaled by `lora_alpha / lora_rank`; `None`: twice the rank.
        lora_targets: names of the maps that get adapters, e.g. `q_proj v_proj`; empty: all linear maps but the head.
        adapter: a model that was trained with adapters of the same kind on the same `init`, a run's folder or
            `models:NAME`: they are trained further. Of another family it may be, if its decoder is the same.
        checkpointing: compute activations again in the backward pass instead of keeping them (gradient
            checkpointing): less memory, about a third more time.
        gradient_accumulation_steps: micro-batches per optimiser step and rank; the global batch stays the same.
        precision: `fp32`, or `bf16` autocast (weights and optimiser state stay float32).
        compile: train through `torch.compile`.
        parallel: `ddp` or `fsdp` (FSDP2), when launched by `torchrun`.
        device: `auto` takes CUDA, then MPS, then the CPU.
        log_every: steps between lines of `metrics.jsonl`.
        eval_every: steps between validations; `None` validates at the end of each epoch and of the run.
        early_stopping_patience: the run ends after this many validations without an improvement; a run with several
            stages only in the last one. `None`: it never ends early.
        early_stopping_min_delta: the least improvement that counts, in perplexity, or in points (percent) of accuracy
            if that is `evaluation.metric`.
        checkpoint_every: steps between checkpoints; 0 keeps only the one that an interruption writes.
        keep_checkpoints: number of newest checkpoints to keep.
        trackers: any of `trackio`, `wandb`, `tensorboard`; `metrics.jsonl` is always written.
        seed: seeds initial weights, data order and noise.
    """

    steps: Positive | None = None
    epochs: PositiveNumber | None = None
    tokens: Positive | None = None
    epoch_documents: Positive | None = None
    schedule_share: Annotated[PositiveNumber, Field(le=1)] = 1.0
    init: str | None = None
    lora_rank: Positive | None = None
    lora_alpha: Positive | None = None
    lora_targets: Texts = ()
    adapter: str | None = None
    checkpointing: bool = False
    gradient_accumulation_steps: Positive = 1
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    parallel: Literal["ddp", "fsdp"] = "ddp"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    log_every: Positive = 10
    eval_every: Positive | None = None
    early_stopping_patience: Positive | None = None
    early_stopping_min_delta: NonNegativeNumber = 0.1
    checkpoint_every: NonNegative = 0
    keep_checkpoints: Positive = 2
    trackers: Texts = ()
    seed: NonNegative = 0

    def __post_init__(self) -> None:
        lengths = {"steps": self.steps, "epochs": self.epochs, "tokens": self.tokens}
        limits = {name: value for name, value in lengths.items() if value is not None}
        require(len(limits) == 1, "train.steps, train.epochs, train.tokens", limits, "set exactly one of the three")
        if (rank := self.lora_rank) is not None:
            require(self.init is not None, "train.lora_rank", rank, "set train.init to the model that gets adapters")
            require(self.parallel == "ddp", "train.lora_rank", rank, "set train.parallel=ddp, which adapters need")
        else:
            for name in ("lora_alpha", "lora_targets", "adapter"):
                require(not getattr(self, name), f"train.{name}", getattr(self, name), "set train.lora_rank too")


@checked_dataclass("phases")
class Phase:
    """A change in the curriculum: from `start` on (counted by `clock`), these settings apply.

    Phases are cumulative and independent: all whose start has passed apply, in their order, so that stream length can
    follow epochs while a dropout follows sentence steps. Each clock is a pure function of the step, so resuming needs
    no state.

    Attributes:
        start: when the phase begins, in units of `clock`; epochs and steps count from 0.
        layout: fields of the layout that change. A phase with some begins at the first epoch that begins at or after
            `start`.
        model: settings that the model's `training_settings` names, e.g. `{"eos_weight": 0.05}`. A pair `(a, b)` is a
            linear ramp from the phase's start to the end of the run, or of the schedule that the run begins.
        reset_optimizer: forget the optimiser's moments when the phase begins.
    """

    start: NonNegativeNumber = 0
    clock: Clock = "steps"
    layout: Data = field(default_factory=dict)
    model: Data = field(default_factory=dict)
    reset_optimizer: bool = False


def _number(text: str) -> float:
    """Return a number of JSON, a whole one as an integer: the command line has 2.0 where a recipe has 2."""
    return int(number) if (number := float(text)).is_integer() else number


@checked_dataclass("recipe")
class Recipe:
    """Everything that a run needs, as data.

    Attributes:
        name: `prefix/name`, e.g. `gpt2/tiny`.
        description: one line for `mentalese list`.
        model: `model_type` and the fields of that type's Hugging Face config; vocabulary size and special tokens are
            filled in from the tokenizer.
        layout: the way from documents to rows and batches, a class of `mentalese.data.layouts` or of a family.
        baseline: the recipe that this one is compared with at equal cost.
        paper: the table or figure whose setting this is, if there is one.
    """

    name: str
    description: str
    model: Data
    data: DataConfig = field(default_factory=DataConfig)
    layout: Annotated[Layout, BeforeValidator(layout_of)] = field(default_factory=Packed)
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    phases: Annotated[tuple[Phase, ...], Strict(False)] = ()
    baseline: str | None = None
    paper: str | None = None

    def __post_init__(self) -> None:
        require(bool(self.name.strip("/. ")) and "\0" not in self.name, "recipe.name", self.name, "use prefix/name")
        require("model_type" in self.model, "model", sorted(self.model), "name its model_type")
        kind = self.model["model_type"]
        require(isinstance(kind, str), "model.model_type", kind, "use the name of a type, e.g. 'gpt2'")
        changeable = self.layout.changeable
        for name in (name for phase in self.phases for name in phase.layout):
            remedy = f"only {', '.join(changeable)} can change during a run{nearest(name, changeable)}"
            require(name in changeable, "phases.layout", name, remedy)
        for layout in self.layouts():
            layout.check_evaluation(self.evaluation)
        bounds = self.evaluation.max_documents, self.evaluation.max_test_documents
        seed = self.evaluation.documents_seed
        bounded = seed is None or bounds != (None, None)
        require(bounded, "evaluation.documents_seed", seed, "set evaluation.max_documents too")

    def replace(self, **changes: Any) -> Recipe:
        """Return the recipe with other fields; a dict changes only these fields of a part: `train={"epochs": 2}`."""
        for name, change in changes.items():
            if isinstance(change, dict):
                part = getattr(self, name)
                changes[name] = part | change if name == "model" else dataclasses.replace(part, **change)
        return dataclasses.replace(self, **changes)

    def layouts(self) -> list[Layout]:
        """Return the layouts at the start and after each phase, if all earlier ones have begun."""
        changes = (phase.layout for phase in self.phases)
        return list(accumulate(changes, lambda old, change: dataclasses.replace(old, **change), initial=self.layout))

    def to_dict(self) -> JsonObject:
        """Return the recipe as JSON-ready data (tuples become lists)."""
        fields = dataclasses.asdict(self)
        fields["layout"] = {"kind": self.layout.kind, **fields["layout"]}
        return json.loads(json.dumps(fields))

    @classmethod
    def from_dict(cls, data: JsonObject) -> Recipe:
        """Return the recipe from the result of `to_dict`; raise `InputError` that names a wrong or missing field."""
        require(isinstance(data, dict), "recipe", data, "use what Recipe.to_dict() returns")
        return checked("", cls, data, parse=True)

    def fingerprint(self) -> str:
        """Return a short hash of all that changes the run's result; equal recipes have equal fingerprints."""
        fields = self.to_dict()
        for name in ("description", "baseline", "paper"):
            del fields[name]
        for name in ("log_every", "checkpoint_every", "keep_checkpoints", "trackers", "device"):
            del fields["train"][name]
        return checksum(json.loads(json.dumps(fields), parse_float=_number))[:16]
