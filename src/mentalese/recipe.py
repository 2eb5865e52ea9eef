"""A recipe is a run as plain data: model, tokens, optimiser, length, curriculum and how it is evaluated.

Nothing here imports torch, so that recipes can be listed and edited at once. A recipe is immutable: use
`dataclasses.replace` or `recipe.override("optimizer.learning_rate=1e-3")`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from mentalese.errors import InputError, nearest

Clock = Literal["steps", "epochs", "tokens", "sentence_steps"]
LENGTHS = ("steps", "epochs", "tokens")
"""Fields of `TrainConfig` of which one gives a run's length."""
AS_IT_IS: dict[str, Any] = {"text_column": None, "detokenizer": None}
"""Of `DataConfig`, where another source takes the place of a recipe's: these say how its own text is read."""
Detokenizer = Literal["wikitext", "ptb", "lm1b", "lambada", "scientific_papers"]

WITH_MARKERS = ("sentences", "marked")
"""The kinds of `DataConfig.batching` whose text has its sentences between markers."""


_OF_RECORDS: dict[str, Any] = {"stage": 0, "removal": "steps", "uniform_prob": 0.0, "latents_per_step": None}
_OF_RECORDS |= {"latents": None}


def _require(condition: bool, name: str, value: object, remedy: str) -> None:
    if not condition:
        raise InputError(f"{name} is {value!r}: {remedy}")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which text, in which tokens, in which batches.

    Attributes:
        source: `builtin:NAME`, `file:PATH` (txt, jsonl, json or parquet, or a folder with train, validation and test
            files), `hub:NAME[@REVISION][:CONFIG[:SPLIT]]`, or a published set of questions: `gsm8k:PATH`,
            `gsm8k-aug:PATH`, `hotpotqa:PATH`, `clutrr:PATH`.
        text_column: the column that holds the text; found by itself where the file has only one candidate.
        detokenizer: the format of a tokenised set that is to be read as running text (`mentalese.data.detokenizers`):
            bytes, and so bits a byte, are of the running text. `None`: read as it is.
        tokenizer: `bpe:SIZE` (trained on the training split, seeded), a folder, or `hub:NAME`.
        sentences: how text is split: `sentencex`, `syntok`, `sat`, `fixed:N` (spans of N tokens) or `none`.
        min_sentence_tokens: shorter sentences are merged with the next one.
        max_sentence_tokens: longer sentences are cut, after punctuation where there is some.
        batching: `blocks` (documents joined and cut), `documents` (a block never crosses a document),
            `marked` (as blocks, with a marker before and after each sentence), `sentences` (streams of whole sentences
            with markers) or `records` (question, steps, answer: the question is given, the rest is to be said).
        train_tokens: train on the first whole documents that hold this many tokens; `None` takes all of them.
        sequence_length: tokens a block, markers included, or the most tokens a record may have.
        batch_size: blocks, documents or records an optimiser step, over all ranks and micro-batches.
        max_sentences: the most sentences a stream may have (Thought Gestalt's S).
        tokens_per_batch: lexical tokens an optimiser step for `sentences` batches, over all ranks.
        bucket_width: streams are grouped by their number of sentences in buckets of this width.
        stage: records are read without their first so many steps, and above `stages` without any (the curriculum of
            Coconut; phases raise it).
        stages: the last stage that leaves steps where there are more.
        removal: what a stage counts: `steps` (Coconut), or `tokens` of the steps (iCoT).
        removal_smoothing: iCoT's lambda: in training a record loses o more tokens with a probability proportional to
            exp(-lambda o); `None`: never.
        uniform_prob: the share of an epoch's records that are read at a stage drawn from 0 to `stages`.
        latents_per_step: latents between markers behind a record's question, for each stage up to `stages`; `None`:
            neither latents nor markers.
        latents: so many latents whatever the stage.
    """

    source: str = "builtin:stdlib"
    text_column: str | None = None
    detokenizer: Detokenizer | None = None
    tokenizer: str = "bpe:4096"
    sentences: str = "sentencex"
    min_sentence_tokens: int = 3
    max_sentence_tokens: int = 64
    batching: Literal["blocks", "documents", "marked", "sentences", "records"] = "blocks"
    train_tokens: int | None = None
    sequence_length: int = 256
    batch_size: int = 16
    max_sentences: int = 30
    tokens_per_batch: int = 4096
    bucket_width: int = 5
    stage: int = 0
    stages: int = 0
    removal: Literal["steps", "tokens"] = "steps"
    removal_smoothing: float | None = None
    uniform_prob: float = 0.0
    latents_per_step: int | None = None
    latents: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_sentences", "tokens_per_batch", "bucket_width", "min_sentence_tokens"):
            _require(getattr(self, name) >= 1, f"data.{name}", getattr(self, name), "give at least 1")
        train_tokens = self.train_tokens
        _require(
            train_tokens is None or train_tokens >= 1, "data.train_tokens", train_tokens, "give 1 or more, or None"
        )
        _require(self.sequence_length >= 2, "data.sequence_length", self.sequence_length, "give at least 2")
        _require(
            self.max_sentence_tokens > self.min_sentence_tokens,
            "data.max_sentence_tokens",
            self.max_sentence_tokens,
            f"give more than data.min_sentence_tokens ({self.min_sentence_tokens})",
        )
        for name in ("stage", "stages", "latents_per_step", "latents"):
            value = getattr(self, name)
            _require(value is None or value >= 0, f"data.{name}", value, "give 0 or more")
        _require(0 <= self.uniform_prob <= 1, "data.uniform_prob", self.uniform_prob, "give a number in [0, 1]")
        smoothing = self.removal_smoothing
        _require(smoothing is None or smoothing > 0, "data.removal_smoothing", smoothing, "give a positive number")
        asked = [name for name in _OF_RECORDS if getattr(self, name) != _OF_RECORDS[name]]
        if self.batching != "records" and asked:
            raise InputError(f"data.{asked[0]} is {getattr(self, asked[0])!r}: it needs data.batching 'records'")
        if smoothing is not None and self.removal != "tokens":
            raise InputError(f"data.removal_smoothing is {smoothing}: it needs data.removal 'tokens'")
        if self.uniform_prob and self.removal == "tokens":
            raise InputError(f"data.uniform_prob is {self.uniform_prob}: it draws stages of data.removal 'steps'")

    @property
    def has_latents(self) -> bool:
        """Whether records have markers behind the question, and perhaps latents between them."""
        return self.latents is not None or self.latents_per_step is not None

    def latents_at(self, stage: int) -> int:
        """Latents of a record that is read at this stage."""
        return min(stage, self.stages) * (self.latents_per_step or 0) if self.latents is None else self.latents


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its learning-rate schedule. Weight decay acts on matrices only (no biases, norms, gates, scalars).

    Attributes:
        learning_rate: the highest, at the end of the warm-up.
        betas: decay of AdamW's first and second moment.
        eps: added to the root of the second moment.
        weight_decay: AdamW's, decoupled from the gradient.
        schedule: of the learning rate after the warm-up.
        warmup: length of the linear warm-up; steps where it is at least 1, else a fraction of the run.
        min_learning_rate_ratio: the schedule ends at this fraction of `learning_rate`.
        max_grad_norm: gradients are clipped to this norm; `None` leaves them alone.
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
        _require(self.learning_rate > 0, "optimizer.learning_rate", self.learning_rate, "give a positive number")
        _require(self.eps > 0, "optimizer.eps", self.eps, "give a positive number")
        _require(self.weight_decay >= 0, "optimizer.weight_decay", self.weight_decay, "give 0 or more")
        _require(self.warmup >= 0, "optimizer.warmup", self.warmup, "give steps (1 or more) or a fraction (below 1)")
        _require(all(0 <= b < 1 for b in self.betas), "optimizer.betas", self.betas, "give two numbers in [0, 1)")
        _require(
            0 <= self.min_learning_rate_ratio <= 1,
            "optimizer.min_learning_rate_ratio",
            self.min_learning_rate_ratio,
            "give a number in [0, 1]",
        )
        _require(
            self.max_grad_norm is None or self.max_grad_norm > 0,
            "optimizer.max_grad_norm",
            self.max_grad_norm,
            "give a positive number, or None to leave gradients alone",
        )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long, how precise, how often, where to.

    Attributes:
        steps, epochs, tokens: the length of the run, in one of the three; the schedule's horizon is the same.
        init: a saved model whose weights the run starts from, a folder or `hub:NAME`: one of the recipe's own class, or
            of the decoder inside it (`mentalese.models.grow.start_from`).
        gradient_accumulation_steps: micro-batches an optimiser step and rank; the global batch stays the same.
        precision: `fp32`, or `bf16` autocast (weights and optimiser state stay float32).
        compile: train through `torch.compile`.
        parallel: `ddp` or `fsdp` (FSDP2), when launched by `torchrun`.
        device: `auto` takes CUDA, then MPS, then the CPU.
        log_every: steps between lines of `metrics.jsonl`.
        eval_every: steps between validations; `None` validates at the end of each epoch and of the run.
        early_stopping_patience: validations without an improvement of `early_stopping_min_delta` in perplexity (or in
            accuracy, from 0 to 1, where that is `evaluation.metric`) after which the run ends, if it has several stages
            at the last of them; `None` never ends early.
        early_stopping_min_delta: the least improvement that counts, see `early_stopping_patience`.
        checkpoint_every: steps between checkpoints; 0 keeps only the one that an interruption writes.
        keep_checkpoints: the newest N are kept.
        trackers: any of `trackio`, `wandb`, `tensorboard`; `metrics.jsonl` is always written.
        seed: of the initial weights, the order of the data and all noise.
    """

    steps: int | None = None
    epochs: float | None = None
    tokens: int | None = None
    init: str | None = None
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
        lengths = {"steps": self.steps, "epochs": self.epochs, "tokens": self.tokens}
        given = {name: value for name, value in lengths.items() if value is not None}
        _require(len(given) == 1, "train.steps, train.epochs, train.tokens", given, "give exactly one of the three")
        for name, value in given.items():
            _require(value > 0, f"train.{name}", value, "give a positive number")
        for name in ("gradient_accumulation_steps", "log_every", "keep_checkpoints"):
            _require(getattr(self, name) >= 1, f"train.{name}", getattr(self, name), "give at least 1")
        patience = self.early_stopping_patience
        _require(
            patience is None or patience >= 1, "train.early_stopping_patience", patience, "give 1 or more, or None"
        )
        delta = self.early_stopping_min_delta
        _require(delta >= 0, "train.early_stopping_min_delta", delta, "give 0 or more")
        _require(self.checkpoint_every >= 0, "train.checkpoint_every", self.checkpoint_every, "give 0 or more")
        _require(self.eval_every is None or self.eval_every >= 1, "train.eval_every", self.eval_every, "give 1 or more")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """The protocol of a perplexity, or of answers to questions; it is written beside every figure.

    Attributes:
        metric: what decides which model is the best and what `compare` is about. `accuracy` asks the questions of
            records at the stage that training is at, and the best model is the best of the last stage reached.
        answer_tokens: the most new tokens of an answer, steps included.
        tokens: `lexical` scores the text alone; `all` also scores the end of each document and, for models of
            sentences, the end of each sentence.
        context_length: tokens a model of blocks may look back on; `None` takes `data.sequence_length`. Models of
            sentences read whole documents.
        stride: new tokens scored a window; `None` takes half of `context_length`, of joined documents all but one. The
            first `context_length - stride` tokens of later windows are context only.
        joined: windows lie in the documents joined by their ends, as blocks do in training, instead of each in one
            document; with the stride that `None` takes they are blocks that share no more than one token.
        batch_size: windows or documents at once; results do not depend on it.
        max_documents: score only the first N documents of the split (validation during training).
        estimator: how the likelihood is found, for models that have several ways (`Contract.estimators`); `None` takes
            the model's own.
        sample_prompts, sample_tokens: prompts, and new tokens a prompt, of the samples in `result.json`; without
            prompts the openings of two test documents are continued, or two test questions are answered.
    """

    metric: Literal["perplexity", "accuracy"] = "perplexity"
    answer_tokens: int = 64
    tokens: Literal["lexical", "all"] = "lexical"
    context_length: int | None = None
    stride: int | None = None
    joined: bool = False
    batch_size: int = 16
    max_documents: int | None = None
    estimator: str | None = None
    sample_prompts: tuple[str, ...] = ()
    sample_tokens: int = 40

    def __post_init__(self) -> None:
        for name, least in (("context_length", 2), ("stride", 1), ("max_documents", 1)):
            value = getattr(self, name)
            _require(value is None or value >= least, f"evaluation.{name}", value, f"give at least {least}, or None")
        for name in ("batch_size", "sample_tokens", "answer_tokens"):
            _require(getattr(self, name) >= 1, f"evaluation.{name}", getattr(self, name), "give at least 1")
        if self.context_length is not None and self.stride is not None:
            _require(
                self.stride < self.context_length,
                "evaluation.stride",
                self.stride,
                f"give less than evaluation.context_length ({self.context_length})",
            )

    def documents(self, available: int) -> int:
        """How many of a split's documents are scored."""
        return min(available, self.max_documents or available)

    def window(self, data: DataConfig) -> tuple[int, int]:
        """Tokens a window for models of blocks, and how many of them are new.

        Raises:
            InputError: documents are to be joined for a model that does not read blocks.
        """
        if self.joined and data.batching not in ("blocks", "documents"):
            raise InputError(
                f"evaluation.joined is True: it needs data.batching 'blocks' or 'documents', here it is "
                f"{data.batching!r}"
            )
        length = self.context_length or data.sequence_length
        return length, self.stride or (length - 1 if self.joined else length // 2)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A change in the curriculum: from `start` on (counted by `clock`), these settings hold.

    Phases are cumulative and independent: all whose start has passed apply, in their order, so that stream length can
    follow epochs while a dropout follows sentence steps. Each clock is a pure function of the step, so resuming needs
    no state.

    Attributes:
        start: when the phase begins, in units of `clock`; epochs and steps count from 0.
        data: fields of `DataConfig` that change. They take effect at the first epoch that begins at or after `start`.
        model: keyword settings handed to `training_loss`, e.g. `{"eos_weight": 0.05}`. A pair `(a, b)` is a linear
            ramp from the phase's start to the end of the run.
        reset_optimizer: forget the optimiser's moments when the phase begins.
    """

    start: float = 0
    clock: Clock = "steps"
    data: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    reset_optimizer: bool = False

    def __post_init__(self) -> None:
        _require(self.start >= 0, "phases.start", self.start, "give 0 or more")
        known = {f.name for f in dataclasses.fields(DataConfig)}
        for name in self.data:
            _require(name in known, "phases.data", name, f"no such field of data{nearest(name, known)}")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that a run needs, as data.

    Attributes:
        name: `prefix/name`, e.g. `gpt2/tiny`.
        description: one line for `mentalese list`.
        model: `model_type` and the fields of that type's Hugging Face config; vocabulary size and special tokens are
            filled in from the tokenizer.
        baseline: the recipe that this one is compared with at equal cost.
        paper: the table or figure whose setting this is, where there is one.
    """

    name: str
    description: str
    model: dict[str, Any]
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig
    evaluation: EvaluationConfig = EvaluationConfig()
    phases: tuple[Phase, ...] = ()
    baseline: str | None = None
    paper: str | None = None

    def __post_init__(self) -> None:
        _require("model_type" in self.model, "model", sorted(self.model), "name its model_type")
        if self.evaluation.metric == "accuracy" and self.data.batching != "records":
            raise InputError("evaluation.metric is 'accuracy': it needs data.batching 'records'")
        self.evaluation.window(self.data)  # checks

    def readings(self) -> list[DataConfig]:
        """The data settings at the start and after each phase, where all earlier ones have begun."""
        changes = (phase.data for phase in self.phases)
        return list(accumulate(changes, lambda data, change: dataclasses.replace(data, **change), initial=self.data))

    def to_dict(self) -> dict[str, Any]:
        """The recipe as JSON-ready data (tuples become lists)."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Recipe:
        """The inverse of `to_dict`; raises `InputError` for a field that does not exist."""
        return _build(cls, data, "recipe")

    @classmethod
    def from_file(cls, path: str | Path) -> Recipe:
        """A recipe from a JSON, YAML or TOML file, see `mentalese.recipe_files`.

        Raises:
            InputError: the file cannot be read, or a field does not exist or has a wrong value.
        """
        return _recipe_files().from_file(Path(path))

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


def _recipe_files() -> Any:
    """The module knows recipes by name and models by type, and so is above this one."""
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
    for name, value in data.items():
        if name not in fields:
            raise InputError(f"{where}.{name}: no such field{nearest(name, fields)}")
        if cls is Recipe and name in _NESTED and isinstance(value, dict):
            value = _build(_NESTED[name], value, name)
        elif cls is Recipe and name == "phases":
            value = tuple(_build(Phase, v, f"phases[{i}]") if isinstance(v, dict) else v for i, v in enumerate(value))
        elif isinstance(value, list):
            value = tuple(value)
        values[name] = value
    return cls(**values)
