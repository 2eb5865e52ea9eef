"""A recipe is a run as plain data: model, tokens, optimiser, length, curriculum and how it is evaluated.

Nothing here imports torch, so that recipes can be listed and edited at once. A recipe is immutable: use
`dataclasses.replace` or `recipe.override("optimizer.learning_rate=1e-3")`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
from dataclasses import MISSING, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from mentalese.data.config import AS_IT_IS, DataConfig, Detokenizer, EvaluationConfig
from mentalese.data.layouts import Layout, Packed, layout_class
from mentalese.errors import InputError, nearest, require
from mentalese.files import as_path
from mentalese.values import check_fields, shown

__all__ = [
    "AS_IT_IS",
    "LENGTHS",
    "Clock",
    "DataConfig",
    "Detokenizer",
    "EvaluationConfig",
    "OptimizerConfig",
    "Phase",
    "Recipe",
    "TrainConfig",
]

Clock = Literal["steps", "epochs", "tokens", "sentence_steps"]
LENGTHS = ("steps", "epochs", "tokens")
"""Fields of `TrainConfig` of which one sets a run's length."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its learning-rate schedule. Weight decay acts on matrices only (no biases, norms, gates, scalars).

    Attributes:
        learning_rate: the highest rate, at the end of the warm-up.
        betas: decay of AdamW's first and second moment.
        eps: added to the root of the second moment.
        weight_decay: AdamW's, decoupled from the gradient.
        schedule: of the learning rate after the warm-up.
        warmup: length of the linear warm-up: steps if it is 1 or more, else a fraction of the run.
        min_learning_rate_ratio: the schedule ends at this fraction of `learning_rate`, unless it is constant.
        max_grad_norm: gradients are clipped to this norm; `None`: they are not clipped.
    """

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: float = 0.02
    min_learning_rate_ratio: float = 0.1
    max_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        check_fields(self, "optimizer")
        require(self.learning_rate > 0, "optimizer.learning_rate", self.learning_rate, "set a positive number")
        require(self.eps > 0, "optimizer.eps", self.eps, "set a positive number")
        require(self.weight_decay >= 0, "optimizer.weight_decay", self.weight_decay, "set 0 or more")
        require(self.warmup >= 0, "optimizer.warmup", self.warmup, "set steps (1 or more) or a fraction (below 1)")
        require(all(0 <= b < 1 for b in self.betas), "optimizer.betas", self.betas, "set two numbers in [0, 1)")
        require(
            0 <= self.min_learning_rate_ratio <= 1,
            "optimizer.min_learning_rate_ratio",
            self.min_learning_rate_ratio,
            "set a number in [0, 1]",
        )
        if self.schedule == "constant" and self.min_learning_rate_ratio != type(self).min_learning_rate_ratio:
            raise InputError(
                f"optimizer.min_learning_rate_ratio is {self.min_learning_rate_ratio}: a constant schedule has no end; "
                "remove it, or set optimizer.schedule to cosine or linear"
            )
        require(
            self.max_grad_norm is None or self.max_grad_norm > 0,
            "optimizer.max_grad_norm",
            self.max_grad_norm,
            "set a positive number, or None to leave gradients alone",
        )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Length, start, precision, devices, and how often a run logs, validates and saves.

    Attributes:
        steps, epochs, tokens: the length of the run: set one of the three.
        schedule_share: the share of the learning rate's schedule, and of the phases' ramps, that the run covers; below
            1 the run is the beginning of a longer one, whose checkpoint a table reports (Latent Thought Models, Table
            1, the row LTM-Large).
        init: a saved model whose weights the run starts from, a folder or `hub:NAME`: one of the recipe's own class, or
            of the decoder inside it (`mentalese.models.grow.start_from`).
        lora_rank: train adapters of this rank on the linear maps of `init`, whose own weights stay as they are (LoRA,
            Hu et al., 2021; needs the extra `lora`). What the family adds to a decoder is trained in full, and so are
            the rows of its markers in embeddings and head. `None`: all weights are trained.
        lora_alpha: adapters are scaled by `lora_alpha / lora_rank`; `None`: twice the rank.
        lora_targets: names of the maps that get adapters, e.g. `q_proj v_proj`; empty: all linear maps but the head.
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
        early_stopping_min_delta: the least improvement that counts, in perplexity, or in accuracy (0 to 1) if that is
            `evaluation.metric`.
        checkpoint_every: steps between checkpoints; 0 keeps only the one that an interruption writes.
        keep_checkpoints: how many checkpoints are kept, the newest.
        trackers: any of `trackio`, `wandb`, `tensorboard`; `metrics.jsonl` is always written.
        seed: of the initial weights, the order of the data and all noise.
    """

    steps: int | None = None
    epochs: float | None = None
    tokens: int | None = None
    schedule_share: float = 1.0
    init: str | None = None
    lora_rank: int | None = None
    lora_alpha: int | None = None
    lora_targets: tuple[str, ...] = ()
    checkpointing: bool = False
    gradient_accumulation_steps: int = 1
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    parallel: Literal["ddp", "fsdp"] = "ddp"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    log_every: int = 10
    eval_every: int | None = None
    early_stopping_patience: int | None = None
    early_stopping_min_delta: float = 0.1
    checkpoint_every: int = 0
    keep_checkpoints: int = 2
    trackers: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "train")
        lengths = {"steps": self.steps, "epochs": self.epochs, "tokens": self.tokens}
        given = {name: value for name, value in lengths.items() if value is not None}
        require(len(given) == 1, "train.steps, train.epochs, train.tokens", given, "set exactly one of the three")
        for name, value in given.items():
            require(value > 0, f"train.{name}", value, "set a positive number")
        share = self.schedule_share
        require(0 < share <= 1, "train.schedule_share", share, "set a number above 0, at most 1")
        for name in ("gradient_accumulation_steps", "log_every", "keep_checkpoints"):
            require(getattr(self, name) >= 1, f"train.{name}", getattr(self, name), "set at least 1")
        self._check_lora()
        patience = self.early_stopping_patience
        require(patience is None or patience >= 1, "train.early_stopping_patience", patience, "set 1 or more, or None")
        delta = self.early_stopping_min_delta
        require(delta >= 0, "train.early_stopping_min_delta", delta, "set 0 or more")
        require(self.checkpoint_every >= 0, "train.checkpoint_every", self.checkpoint_every, "set 0 or more")
        require(self.eval_every is None or self.eval_every >= 1, "train.eval_every", self.eval_every, "set 1 or more")

    def _check_lora(self) -> None:
        rank, alpha = self.lora_rank, self.lora_alpha
        if rank is None:
            for name in ("lora_alpha", "lora_targets"):
                require(not getattr(self, name), f"train.{name}", getattr(self, name), "set train.lora_rank too")
            return
        require(rank >= 1, "train.lora_rank", rank, "set 1 or more, or None to train all weights")
        require(alpha is None or alpha > 0, "train.lora_alpha", alpha, "set a positive number")
        require(self.init is not None, "train.lora_rank", rank, "set train.init to the model that gets adapters")
        require(self.parallel == "ddp", "train.lora_rank", rank, "set train.parallel=ddp, which adapters need")


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A change in the curriculum: from `start` on (counted by `clock`), these settings apply.

    Phases are cumulative and independent: all whose start has passed apply, in their order, so that stream length can
    follow epochs while a dropout follows sentence steps. Each clock is a pure function of the step, so resuming needs
    no state.

    Attributes:
        start: when the phase begins, in units of `clock`; epochs and steps count from 0.
        layout: fields of the layout that change. They take effect at the first epoch that begins at or after `start`.
        model: settings that the model's `training_settings` names, e.g. `{"eos_weight": 0.05}`. A pair `(a, b)` is a
            linear ramp from the phase's start to the end of the run, or of the schedule that the run begins.
        reset_optimizer: forget the optimiser's moments when the phase begins.
    """

    start: float = 0
    clock: Clock = "steps"
    layout: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    reset_optimizer: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "phases")
        _check_data("phases.layout", self.layout)
        _check_data("phases.model", self.model)
        require(self.start >= 0, "phases.start", self.start, "set 0 or more")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that a run needs, as data.

    Attributes:
        name: `prefix/name`, e.g. `gpt2/tiny`.
        description: one line for `mentalese list`.
        model: `model_type` and the fields of that type's Hugging Face config; vocabulary size and special tokens are
            filled in from the tokenizer.
        layout: how documents become rows and batches, a class of `mentalese.data.layouts` or of a family.
        baseline: the recipe that this one is compared with at equal cost.
        paper: the table or figure whose setting this is, if there is one.
    """

    name: str
    description: str
    model: dict[str, Any]
    data: DataConfig = field(default_factory=DataConfig)
    layout: Layout = field(default_factory=Packed)
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    phases: tuple[Phase, ...] = ()
    baseline: str | None = None
    paper: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, "recipe")
        require(bool(self.name.strip("/. ")) and "\0" not in self.name, "recipe.name", self.name, "use prefix/name")
        _check_data("model", self.model)
        require("model_type" in self.model, "model", sorted(self.model), "name its model_type")
        kind = self.model["model_type"]
        require(isinstance(kind, str), "model.model_type", kind, "use the name of a type, e.g. 'gpt2'")
        changeable = self.layout.changeable
        for name in (name for phase in self.phases for name in phase.layout):
            if name not in changeable:
                raise InputError(
                    f"phases.layout is {name!r}: only {', '.join(changeable)} can change during a run"
                    f"{nearest(name, changeable)}"
                )
        for layout in self.layouts():
            layout.check_evaluation(self.evaluation)
        bounds = self.evaluation.max_documents, self.evaluation.max_test_documents
        if (seed := self.evaluation.documents_seed) is not None and bounds == (None, None):
            raise InputError(f"evaluation.documents_seed is {seed}: set evaluation.max_documents too")

    def layouts(self) -> list[Layout]:
        """The layouts at the start and after each phase, if all earlier ones have begun."""
        changes = (phase.layout for phase in self.phases)
        return list(accumulate(changes, lambda old, change: dataclasses.replace(old, **change), initial=self.layout))

    def to_dict(self) -> dict[str, Any]:
        """The recipe as JSON-ready data (tuples become lists)."""
        fields = dataclasses.asdict(self)
        fields["layout"] = {"kind": self.layout.kind, **fields["layout"]}
        return json.loads(json.dumps(fields))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Recipe:
        """Read what `to_dict` returned.

        Raises:
            InputError: a field or a layout that does not exist or is missing, or a value of another type.
        """
        require(isinstance(data, dict), "recipe", data, "use what Recipe.to_dict() returns")
        return _build(cls, data, "recipe")

    @classmethod
    def from_file(cls, path: str | Path) -> Recipe:
        """A recipe from a JSON, YAML or TOML file, see `mentalese.recipe_files`.

        Raises:
            InputError: the file cannot be read, or a field does not exist or has a wrong value.
        """
        return _recipe_files().from_file(as_path(path, "path"))

    def override(self, *settings: str) -> Recipe:
        """The recipe with other values: `override("optimizer.learning_rate=1e-3", "train.steps=100")`.

        Raises:
            InputError: a field does not exist or the value is not of its type.
        """
        return _recipe_files().override(self, *settings)

    def fingerprint(self) -> str:
        """A short hash of all that changes the run's result; equal recipes have equal fingerprints."""
        fields = self.to_dict()
        for name in ("description", "baseline", "paper"):
            del fields[name]
        for name in ("log_every", "checkpoint_every", "keep_checkpoints", "trackers", "device"):
            del fields["train"][name]
        text = json.dumps(fields, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _check_data(name: str, fields: dict[Any, Any]) -> None:
    """Raises `InputError` if fields cannot be written as JSON and read back."""
    for key in fields:
        require(isinstance(key, str), name, key, "use texts as the names of fields")
    try:
        json.dumps(fields, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InputError(f"{name} is {shown(fields)}: use finite numbers, texts, lists and dicts of them") from None


def _recipe_files() -> Any:
    """Imported on use: the module finds recipes by name and models by type, and so is in a layer above this one."""
    return importlib.import_module("mentalese.recipe_files")


_NESTED: dict[str, type] = {
    "data": DataConfig,
    "optimizer": OptimizerConfig,
    "train": TrainConfig,
    "evaluation": EvaluationConfig,
}


def _build(cls: type, data: dict[str, Any], where: str) -> Any:
    fields = {f.name: f for f in dataclasses.fields(cls)}
    values: dict[str, Any] = {}
    require(isinstance(data, dict), where, data, "use a dict of its fields")
    for name, value in data.items():
        if name not in fields:
            raise InputError(f"{where}.{name}: no such field{nearest(name, fields)}")
        if cls is Recipe and name in _NESTED and isinstance(value, dict):
            value = _build(_NESTED[name], value, name)
        elif cls is Recipe and name == "layout" and isinstance(value, dict):
            own = {field: setting for field, setting in value.items() if field != "kind"}
            value = _build(layout_class(value.get("kind")), own, name)
        elif cls is Recipe and name == "phases" and isinstance(value, list | tuple):
            value = tuple(_build(Phase, v, f"phases[{i}]") if isinstance(v, dict) else v for i, v in enumerate(value))
        elif isinstance(value, list):
            value = tuple(value)
        values[name] = value
    for name, about in fields.items():
        if name not in values and about.default is MISSING and about.default_factory is MISSING:
            raise InputError(f"{where}.{name} is missing: set it")
    return cls(**values)
