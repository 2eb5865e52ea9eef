"""The interface of every model, so that one loop, one evaluation and one comparison serve all families.

A family brings a `LatentThoughtConfig` and a `LatentThoughtModel`, for which it writes `encode`, `fill` and
`forward_flops`. Hugging Face's `forward`, generation, the training loss and scores follow from these. A family whose
training hides more than one pass (latent steps, an inner optimisation, an auxiliary loss) overrides `training_loss`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mentalese.data.batch import Batch
from mentalese.errors import InputError, require
from mentalese.models.backbone import attention_width, layers_of, linear_weights, output_head_of
from mentalese.models.config import reads_later_tokens
from mentalese.models.trace import Knob, Shown, ThoughtTrace
from mentalese.nn.linear import matrix_or_module
from mentalese.nn.loss import IGNORED, linear_cross_entropy, linear_nll

ONE_PASS = ("exact", "causal")
"""Estimators by which one pass gives the likelihood of each token after only the tokens before it."""

_PIECE = 256  # tokens per chunk of a trace's logits
_HALVES = {"bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "pegasus", "plbart", "trocr"}
_MISREAD_PADDING = {"rwkv", "xlstm"} | _HALVES
"""Decoders of transformers that read padding as tokens, or count it in positions, as halves of translators do."""


@dataclass
class LossOutput:
    """The result of a training step.

    Attributes:
        loss: scalar, the mean over the batch's targets.
        weight: sum of the targets' weights, by which the loop adds micro-batches and ranks.
        metrics: named scalars to log, each a mean over the batch as well; detached.
        encoded: function that returns the `Encoded` that the loss was computed from, for its logits.
    """

    loss: Tensor
    weight: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)
    encoded: Callable[[], Any] | None = None


# For the type checker a model is one of transformers. At run time its class inherits this interface and such a class.
if TYPE_CHECKING:
    from mentalese.models.transformers_seam import TypedModel as _Module
else:
    _Module = object


class LanguageModel(_Module):
    """A causal LM of transformers with a training loss, scores, traces and costs.

    Families inherit it through `LatentThoughtModel`; models of transformers' own classes get it by `as_model`.

    Attributes:
        causal: logits of a position predict the next token and see nothing after it, so that a cache can be used.
        inner_gradients: the training step calls `autograd.grad` itself, so FSDP2 keeps parameters gathered.
        about_thoughts: a sentence about this model's thoughts for readers of a trace; empty if it has none.
        shown: contents of a trace by name, in addition to `SHOWN` or overriding it.
        step_seed: the seed of the training step; `None` outside `mentalese train`.
    """

    causal = True
    inner_gradients = False
    about_thoughts = ""
    shown: ClassVar[Mapping[str, Shown]] = {}
    step_seed: int | None = None

    @property
    def estimators(self) -> tuple[str, ...]:
        """The scoring rules that `token_nll(batch, estimator)` takes, the default first; `exact`: the likelihood."""
        return ("exact",)

    def knobs(self) -> list[Knob]:
        """Return the settings that change how much the model thinks at inference."""
        return []

    def chosen_estimator(self, name: str | None) -> str:
        """Return the estimator of this name; `None`: the default. Raises `InputError` if the model lacks it."""
        chosen = self.estimators[0] if name is None else name
        remedy = f"this model has {', '.join(self.estimators)}; use one of them"
        require(chosen in self.estimators, "evaluation.estimator", name, remedy)
        return chosen

    @property
    def shard_blocks(self) -> bool:
        """True if FSDP2 may shard each block by itself; not if a step uses a block's weights outside its forward."""
        return True

    def final_hidden_states(self, batch: Batch) -> Tensor:
        """Return [batch, length, hidden], from which the head computes logits; position t predicts token t + 1."""
        raise NotImplementedError(f"{type(self).__name__} needs final_hidden_states, or training_loss and token_nll")

    def forward_flops(self, batch: Batch) -> int:
        """Return the FLOPs of one forward pass over this batch without a cache, head included, as PyTorch counts them.

        A multiply-add is two FLOPs, masked attention scores count, and element-wise work counts nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} needs forward_flops")

    def training_flops(self, batch: Batch, **settings: Any) -> int:
        """Return the FLOPs of a training step on this batch; a plain model's backward pass costs two forward passes."""
        return 3 * self.forward_flops(batch)

    def scoring_flops(self, batch: Batch) -> int:
        """Return the FLOPs of scoring this batch by the first of `estimators`."""
        return self.forward_flops(batch)

    def compiled_parts(self) -> list[nn.Module] | None:
        """Return the modules for `torch.compile` to take, if a whole step changes shape with its batch; else `None`."""
        return None

    def compile_parts(self, **options: Any) -> bool:
        """Call `torch.compile` with `options` for each of `compiled_parts`, for all shapes; return True if any."""
        parts = self.compiled_parts()
        # One graph for each kind of block, mode and precision, and with transformers' caches for each layer; graphs
        # above the limit would silently run eagerly.
        limit = max(64, 8 * len(parts or ()))
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, limit)
        torch.fx.experimental._config.use_duck_shape = False  # equal numbers of rows and heads are a coincidence
        for part in parts or ():
            part.compile(**{"dynamic": True} | options)
        if options.get("mode") in ("reduce-overhead", "max-autotune"):
            # CUDA graphs of a step may overwrite outputs of the step before; unmarked, a step would be one layer.
            begin = torch.compiler.cudagraph_mark_step_begin
            begin()
            self.register_forward_pre_hook(lambda *_: begin())
        return parts is not None

    def gradient_groups(self) -> dict[str, list[list[nn.Parameter]]]:
        """Return the components whose shares of the gradient are logged: for each of their layers its parameters."""
        return {}

    def output_weight(self) -> Tensor:
        """Return the matrix of the language-model head [vocabulary, hidden], for its size; losses take `loss_head`."""
        weight = self.get_output_embeddings().weight
        assert isinstance(weight, Tensor)
        return weight

    def output_head(self) -> nn.Module:
        """Return the map from final hidden states [.., hidden] to logits [.., vocabulary]."""
        return self.get_output_embeddings()

    def loss_head(self) -> Tensor | nn.Module:
        """Return the output head as losses need it: its matrix, or the module if it computes more."""
        return matrix_or_module(self.output_head())

    def target_weights(self, batch: Batch, **settings: Any) -> Tensor | None:
        """Return the weights [batch, length] of `labels` in the training loss, or `None` if all count the same."""
        self.refuse(settings)
        return None

    def refuse(self, settings: Mapping[str, object]) -> None:
        """Raise `InputError` for settings of the training loss that this model does not have."""
        for name, value in settings.items():
            field = f"phases.model.{name}"
            raise InputError(f"{field} is {value!r}: {type(self).__name__} has no such training setting", field)

    def training_settings(self) -> dict[str, tuple[float, float]]:
        """Return the settings of `training_loss` that phases may change, each with its least and its largest value."""
        return {}

    def keep_settings(self, settings: Mapping[str, Any]) -> None:
        """Keep those settings of a step that scores and saved models use too: by default none."""

    def training_loss(self, batch: Batch, **settings: Any) -> LossOutput:
        """Return the mean next-token cross-entropy of a batch, in nats.

        Args:
            batch: see `Batch`; position t's state predicts `labels[:, t + 1]`.
            settings: this step's values of the recipe's `phases[].model`; an unknown one is refused.
        """
        weights = self.target_weights(batch, **settings)
        return LossOutput(*self.next_token_loss(self.final_hidden_states(batch), batch["labels"], weights))

    def before_step(self, seed: int) -> None:
        """Set the seed by which all ranks and micro-batches of a step draw values, such as the model's depth."""
        self.step_seed = seed

    def after_step(self) -> None:
        """Update parts that learn without a gradient, after each optimiser step, or each `forward` with labels."""
        self.step_seed = None

    def next_token_loss(self, hidden: Tensor, labels: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy in nats of labels [batch, length] under `weights` like them, and their sum."""
        labels = labels[:, 1:].reshape(-1)
        weights = None if weights is None else weights[:, 1:].reshape(-1)
        counted = (labels != IGNORED).to(torch.float32)
        weight = (counted if weights is None else counted * weights).sum()
        loss = linear_cross_entropy(hidden[:, :-1].flatten(0, 1), self.loss_head(), labels, target_weights=weights)
        return loss, weight

    @torch.no_grad()
    def token_nll(self, batch: Batch) -> Tensor:
        """Return the negative log-likelihood in nats of each label given the tokens before it, float32 [batch, length].

        Zero if the label is -100, and at position 0, which nothing precedes.
        """
        return self.next_token_nll(self.final_hidden_states(batch), batch["labels"])

    def nll_parts(self, batch: Batch, **scoring: Any) -> dict[str, Tensor]:
        """Return the terms whose sum is `token_nll(batch, **scoring)`, by name; a bound has more than one."""
        return {"nll": self.token_nll(batch, **scoring)}

    def scored_labels(self, batch: Batch, estimator: str) -> Tensor:
        """Return the labels [batch, length] that an estimator scores, without position 0; -100 elsewhere."""
        return nn.functional.pad(batch["labels"][:, 1:], (1, 0), value=IGNORED)

    def scoring_protocol(self, estimator: str) -> dict[str, object]:
        """Return the model's settings that a score by this estimator depends on, in words and numbers to publish."""
        return {}

    def continuation_scoring(self) -> dict[str, str]:
        """Return keywords of `token_nll` for choices after a known text, each read only after it is scored."""
        return {}

    def continuation_inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Return inputs of `forward` that predict a batch's labels, none of which may be read before its turn."""
        return {name: batch[name] for name in ("input_ids", "attention_mask")}

    def next_token_nll(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Return `token_nll` for final hidden states [batch, length, hidden]."""
        nll = linear_nll(hidden[:, :-1].flatten(0, 1), self.loss_head(), labels[:, 1:].reshape(-1))
        return nn.functional.pad(nll.view(labels.shape[0], -1), (1, 0))

    @torch.no_grad()
    def traces(self, batch: Batch, **options: Any) -> list[ThoughtTrace]:
        """Return a trace per row of a batch, with the contents that a model without thoughts has: `text_traces`.

        The only score of a model that reads in both directions is `surprisal`, which is then `token_nll`. Models with
        thoughts take `options`; others refuse them.
        """
        self._check_options(options, ())
        ids, mask = batch["input_ids"], batch.get("attention_mask")
        scored = follows(torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool())
        if self.causal:
            hidden, head = self.final_hidden_states(batch), self.output_head()
            return self.text_traces(ids, scored, lambda at: head(hidden[:, at]))
        nll = self.token_nll(batch | {"labels": ids.masked_fill(~scored, IGNORED)}).masked_fill(~scored, math.nan)
        return [self._new_trace(row, {"surprisal": values}) for row, values in zip(ids, nll)]

    def read_thoughts(self, trace: ThoughtTrace) -> list[int] | None:
        """Return the numbers of a trace's thoughts that the model reads, in the order in which it makes them.

        It is empty if what the model reads is not a vector of the trace, and `None` if it is decisions about tokens.
        """
        return [*range(len(trace.thoughts))]

    @staticmethod
    def _check_options(options: Mapping[str, object], known: Iterable[str]) -> None:
        for name, value in options.items():
            require(name in known, name, value, "this model has no thoughts that depend on it, remove it")

    @torch.no_grad()
    def text_traces(self, input_ids: Tensor, scored: Tensor, logits: Callable[[Tensor], Tensor]) -> list[ThoughtTrace]:
        """Return a trace per row with the scores of causal models: `surprisal` and `entropy` in nats, and `predicted`.

        Args:
            input_ids: [batch, length].
            scored: bool [batch, length], the tokens that the token before them predicts; scores of others are NaN.
            logits: function that returns the logits [batch, m, vocabulary] of the tokens in columns [m].
        """
        input_ids = input_ids.long()
        surprisal = torch.full(input_ids.shape, math.nan, device=input_ids.device)
        entropy, predicted = surprisal.clone(), input_ids.clone()
        size = max(1, _PIECE // len(input_ids))
        for start in range(0, input_ids.shape[1] - 1, size):
            at = torch.arange(start, min(start + size, input_ids.shape[1] - 1), device=input_ids.device)
            there, log_p = scored[:, at + 1], logits(at).float().log_softmax(-1)
            nll = -log_p.gather(-1, input_ids[:, at + 1, None])[..., 0]
            surprisal[:, at + 1] = nll.masked_fill(~there, math.nan)
            entropy[:, at + 1] = torch.special.entr(log_p.exp()).sum(-1).masked_fill(~there, math.nan)
            predicted[:, at + 1] = torch.where(there, log_p.argmax(-1), input_ids[:, at + 1])
        traces = []
        for row, ids in enumerate(input_ids):
            traces.append(self._new_trace(ids, {"surprisal": surprisal[row], "entropy": entropy[row]}))
            traces[-1].readings["predicted"] = predicted[row]
        return traces

    def _new_trace(self, ids: Tensor, scores: dict[str, Tensor]) -> ThoughtTrace:
        """Return a trace of this model with a row's scores."""
        control = getattr(self.config, "thought_control", None)
        return ThoughtTrace(ids, scores, model=self.config.model_type, control=control)


def follows(real: Tensor) -> Tensor:
    """Return bool [batch, length], true at tokens that are not padding and follow another such token."""
    return real & nn.functional.pad(real[:, :-1], (1, 0))


class DecoderLM(LanguageModel):
    """The interface for a causal LM of transformers."""

    defined_as: type[PreTrainedModel]  # the class of transformers

    def output_head(self) -> nn.Module:
        return output_head_of(self)

    def final_hidden_states(self, batch: Batch) -> Tensor:
        mask = batch.get("attention_mask")
        positions = None if mask is None else (mask.cumsum(1) - 1).clamp(min=0)
        ids = batch["input_ids"]
        # Without a mask, transformers would look for padding in the tokens and for several texts in the positions.
        mask = torch.ones_like(ids) if mask is None else mask
        output = self.base_model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
        return output.last_hidden_state

    def compiled_parts(self) -> list[nn.Module]:
        return layers_of(self)

    def forward_flops(self, batch: Batch) -> int:
        """Return the FLOPs of every linear map and of the head per token, and of attention over the full row."""
        rows, length = batch["input_ids"].shape
        return 2 * rows * length * (self._weights + 2 * length * attention_width(self.config))

    @cached_property
    def _weights(self) -> int:
        return linear_weights(self) + self.output_weight().numel()

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (self.defined_as,), self.__dict__


@cache
def _with_interface(kind: Any) -> type[DecoderLM]:
    """Return the subclass of a class of transformers that has the interface; to other tools it is the class itself."""
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind.__name__, (DecoderLM, kind), names | {"defined_as": kind})


def _restored(kind: Any) -> DecoderLM:
    """Return an empty model for `copy` and `pickle`, which do not find the subclass by its name."""
    extended = _with_interface(kind)
    return extended.__new__(extended)


def as_model(model: PreTrainedModel) -> LanguageModel:
    """Give a causal LM of transformers the interface, in place.

    Raises:
        InputError: its states depend on later tokens or on padding, or it has no output embedding.
    """
    if not isinstance(model, LanguageModel):
        name, model_type = type(model).__name__, model.config.model_type
        if model_type in _MISREAD_PADDING:
            raise InputError(f"{name} reads padding, which changes its texts in a batch: use another decoder")
        if reads_later_tokens(model.config):
            raise InputError(f"{name} reads later tokens, so that its scores are not likelihoods: use a decoder")
        output_head_of(model)
        kind: Any = type(model)
        model.__class__ = _with_interface(kind)
    return cast(LanguageModel, model)


def class_of(model: PreTrainedModel) -> type[PreTrainedModel]:
    """Return the class that transformers or a family defines for a model."""
    return model.defined_as if isinstance(model, DecoderLM) else type(model)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Set eval mode (no dropout) inside the block, and restore every module's mode after it."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def count_parameters(model: PreTrainedModel) -> dict[str, int]:
    """Return `total`, and `non_embedding` (the papers' N): without token and position tables, tied weights once."""
    head = model.get_output_embeddings()
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding) or m is head}
    parameters = {id(p): p.numel() for p in model.parameters()}
    return {
        "total": sum(parameters.values()),
        "non_embedding": sum(n for key, n in parameters.items() if key not in embeddings),
    }
