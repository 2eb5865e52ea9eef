"""The contract that every model keeps, so that one loop, one evaluation and one comparison serve all families.

A family brings a `LatentThoughtConfig` and a `LatentThoughtModel`. The least it must write is `forward` (Hugging
Face's), `final_hidden_states` and `forward_flops`; training loss and scoring follow from those, and a family whose
training hides more than one pass (latent steps, an inner optimisation, an auxiliary loss) overrides `training_loss`.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from huggingface_hub.dataclasses import type_validator
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

from mentalese.errors import InputError, nearest
from mentalese.nn.loss import IGNORED, linear_cross_entropy, linear_nll

_PIECE = 256  # tokens whose logits a trace makes at once
_LONGEST_PAGE = 2000  # tokens; a notebook shows a table of longer traces

Batch = dict[str, Any]
"""Flat token streams: `input_ids` and `labels` (-100 = not a target) [batch, length], `attention_mask` [batch, length]
where rows are padded, and whatever else a kind of batching brings (`question_lengths` [batch] for records)."""


def to_device(batch: Batch, device: str | torch.device) -> Batch:
    """The batch with its tensors on `device`."""
    return {k: v.to(device, non_blocking=True) if isinstance(v, Tensor) else v for k, v in batch.items()}


# Keywords that transformers itself hands to a config (loading, attention choice, classification heads).
_HANDED_BY_TRANSFORMERS = {
    "attn_implementation",
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "per_layer_config",
    "torch_dtype",
}


class LatentThoughtConfig(PreTrainedConfig):
    """Base of every family's config: typed fields, unknown fields refused, lists from JSON back to tuples.

    Subclasses declare fields as annotations and check them in `validate_architecture(self)`, raising `InputError`.
    """

    model_type = "latent_thought_base"
    vocab_size: int = 0
    hidden_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        fields = self.__dataclass_fields__
        for name in kwargs:
            if not name.startswith("_") and name not in _HANDED_BY_TRANSFORMERS and not hasattr(type(self), name):
                raise InputError(f"{self.model_type}.{name}: no such field{nearest(name, fields)}")
        for name in fields:
            value = getattr(self, name)
            if isinstance(value, list) and "tuple" in str(fields[name].type):
                setattr(self, name, tuple(value))
        super().__post_init__(**kwargs)
        self._check_types()
        self.validate_architecture()

    def _check_types(self) -> None:
        """transformers' `@strict` neither reads annotations that are strings nor takes 1 for a float."""
        checked: set[str] = set()
        for cls in type(self).__mro__[: type(self).__mro__.index(LatentThoughtConfig) + 1]:
            for name, expected in inspect.get_annotations(cls, eval_str=True).items():
                value = getattr(self, name)
                if name in checked:
                    continue
                checked.add(name)
                if expected is float and type(value) is int:
                    setattr(self, name, value := float(value))
                try:
                    type_validator(name, value, expected)
                except TypeError as error:
                    kind = expected.__name__ if isinstance(expected, type) else str(expected).replace("typing.", "")
                    raise InputError(f"{self.model_type}.{name} is {value!r}: give {kind}") from error

    def validate_architecture(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"{self.model_type}.hidden_size is {self.hidden_size}: give a multiple of num_attention_heads "
                f"({self.num_attention_heads})"
            )


class ThoughtCache(Cache):
    """Keys and values by layer, and named states by row: what generation carries from token to token.

    `state[name]` is a tensor whose first dimension is the batch, so that beam search, repetition and selection of rows
    move keys, values and thoughts together. `seen_tokens` counts tokens of the *stream*; a model whose keys and values
    hold more (forks) or less (one sentence) than the stream keeps them in `state` and leaves the layers empty.
    """

    is_croppable = False
    is_compileable = False

    def __init__(self, num_hidden_layers: int = 0) -> None:
        super().__init__(layers=[DynamicLayer() for _ in range(num_hidden_layers)])
        self.state: dict[str, Tensor] = {}
        self.seen_tokens = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens of the stream read so far, left padding included, as `generate` counts them."""
        return self.seen_tokens

    def _move(self, select: Any) -> None:
        self.state = {name: select(value) for name, value in self.state.items()}

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        super().reorder_cache(beam_idx)
        self._move(lambda value: value.index_select(0, beam_idx.to(value.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._move(lambda value: value.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._move(lambda value: value[indices])

    def reset(self) -> None:
        super().reset()
        self.state = {}
        self.seen_tokens = 0

    def crop(self, tokens_to_remove: int) -> None:
        raise NotImplementedError(
            "a cache of thoughts cannot be cut back: assisted and prompt-lookup decoding are not supported"
        )


@dataclass
class LossOutput:
    """What a training step returns.

    Attributes:
        loss: scalar, the mean over the batch's targets.
        weight: what `loss` is a mean over (number of targets, or the sum of their weights). The loop weighs
            micro-batches and ranks by it, so that N ranks equal one.
        metrics: named scalars to log, each a mean over the batch as well; detached.
    """

    loss: Tensor
    weight: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Thought:
    """A latent vector and the half-open span of tokens `[start, end)` that it stands for.

    Attributes:
        label: what kind of thought it is, where a model has several.
        layer: the block that it belongs to.
        codes: its nearest codes, one a codebook.
        nearest: token ids and their probabilities where the vector is read by the output embedding, best first.
    """

    vector: Tensor
    start: int
    end: int
    label: str = ""
    layer: int | None = None
    codes: tuple[int, ...] = ()
    nearest: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Shown:
    """How a score, a link or a curve of a trace is shown, by its name.

    Attributes:
        title: for people; `{}` stands for what follows the dot, in a name that ends in one (`streams.` of `streams.3`).
        about: one sentence.
        unit: `nats`, `share`, `count` or another word; empty where there is none.
        along: what a curve's numbers follow: `layer`, `pass`, `step`, `chunk`, `stream`.
    """

    title: str
    about: str = ""
    unit: str = ""
    along: str = ""


SHOWN = {
    "surprise": Shown("surprise", "What the token cost: minus the log of the probability that it was given.", "nats"),
    "entropy": Shown("entropy", "How open the prediction of the token was, whatever came.", "nats"),
    "predicted": Shown("the likeliest next token", "What was expected most in each place, given the text before it."),
}
"""What every model's trace has."""


@dataclass
class ThoughtTrace:
    """What a model thought about one row of text; every family fills in what its paper looks at.

    Attributes:
        input_ids: [length].
        scores: name -> [length], one number a token, NaN where a token has none. Every model has `surprise` and (all
            but those that read in both directions) `entropy`, in nats, of what predicted the token.
        thoughts: latent vectors with the tokens each stands for, in order.
        links: name -> [len(thoughts), len(thoughts)], how much thought i read of thought j.
        curves: name -> [n], numbers along something else than tokens (gate by layer, ELBO by step).
        readings: name -> [length], the token ids that the model would write in the text's place; `predicted` is the
            likeliest next token.
        streams: columns of a table [m], a row for each candidate at each forking layer and for each stream at the end:
            `layer`, `token` (its place in the row), `parent` (the row of the table that it comes of, -1: none),
            `weight` (its score, 0 to 1), `kept` (bool, the selection kept it), `fork` (bool, it is a fork).
        tokens: the text of each token; empty where nobody knew the tokenizer.
        special: which of them are no text: markers, latents.
        vocabulary: the text of other ids, those of `readings` and `Thought.nearest`.
        model: the model type.
    """

    VERSION = 2

    input_ids: Tensor
    scores: dict[str, Tensor] = field(default_factory=dict)
    thoughts: list[Thought] = field(default_factory=list)
    links: dict[str, Tensor] = field(default_factory=dict)
    curves: dict[str, Tensor] = field(default_factory=dict)
    readings: dict[str, Tensor] = field(default_factory=dict)
    streams: dict[str, Tensor] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)
    special: list[bool] = field(default_factory=list)
    vocabulary: dict[int, str] = field(default_factory=dict)
    model: str = ""

    _GROUPS: ClassVar = ("scores", "links", "curves", "readings", "streams")

    def save(self, folder: str | Path) -> None:
        """Writes `trace.safetensors` and `trace.json` into `folder`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {"input_ids": self.input_ids}
        for group in self._GROUPS:
            tensors |= {f"{group}.{name}": value for name, value in getattr(self, group).items()}
        if self.thoughts:
            tensors["thoughts"] = torch.stack([thought.vector for thought in self.thoughts])
        save_file(
            {name: value.detach().cpu().contiguous() for name, value in tensors.items()}, folder / "trace.safetensors"
        )
        described = {name: getattr(self, name) for name in ("model", "tokens", "special", "vocabulary")}
        described["names"] = {group: list(getattr(self, group)) for group in self._GROUPS}  # in their order
        described["thoughts"] = [{k: v for k, v in vars(t).items() if k != "vector"} for t in self.thoughts]
        (folder / "trace.json").write_text(json.dumps({"version": self.VERSION} | described), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> ThoughtTrace:
        """The inverse of `save`; raises `InputError` where there is no trace, or one of another version."""
        folder = Path(folder)
        if not (folder / "trace.json").is_file():
            raise InputError(f"{folder} holds no trace (no trace.json): give a folder that `ThoughtTrace.save` wrote")
        described = json.loads((folder / "trace.json").read_text(encoding="utf-8"))
        if described.get("version") != cls.VERSION:
            raise InputError(
                f"{folder} holds a trace of version {described.get('version')!r}, this library reads {cls.VERSION}: "
                "make the trace again"
            )
        tensors = load_file(folder / "trace.safetensors")
        groups = {
            group: {name: tensors[f"{group}.{name}"] for name in names} for group, names in described["names"].items()
        }
        vectors: Any = tensors.get("thoughts", ())
        thoughts = []
        for vector, about in zip(vectors, described["thoughts"]):
            about["codes"], about["nearest"] = tuple(about["codes"]), tuple(map(tuple, about["nearest"]))
            thoughts.append(Thought(vector, **about))
        return cls(
            input_ids=tensors["input_ids"],
            thoughts=thoughts,
            tokens=described["tokens"],
            special=described["special"],
            vocabulary={int(token): text for token, text in described["vocabulary"].items()},
            model=described["model"],
            **groups,
        )

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row a token: `token` (its id, where no text is known), every score, and
        `thoughts`, the numbers of the thoughts that stand for it."""
        import pandas

        stand: list[list[int]] = [[] for _ in self.input_ids]
        for number, thought in enumerate(self.thoughts):
            for place in range(thought.start, thought.end):
                stand[place].append(number)
        scores = {name: values.float().cpu().numpy() for name, values in self.scores.items()}
        return pandas.DataFrame({"token": self.tokens or self.input_ids.tolist(), **scores, "thoughts": stand})

    def _repr_html_(self) -> str:
        """The page of the trace for notebooks; a table where it is too long for one, or its tokens have no text."""
        if not self.tokens or len(self.tokens) > _LONGEST_PAGE:
            return self.to_pandas()._repr_html_()
        from html import escape

        from mentalese.viewer import payload
        from mentalese.viewer.page import page

        inside = escape(page(payload([self])), quote=True)
        style = "width: 100%; height: 48rem; border: 0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{inside}"></iframe>'


@dataclass
class CausalLMOutputWithThoughts(CausalLMOutputWithPast):
    """Hugging Face's output, and one `ThoughtTrace` a row where `output_thoughts=True` was asked for."""

    thoughts: list[ThoughtTrace] | None = None


class Contract:
    """Training, scoring and cost, in terms of final hidden states and the output embedding.

    Attributes:
        causal: logits of a position are of the next token and see nothing behind it, so that a cache is of use.
        shard_blocks: FSDP2 may shard each block by itself; not where a step uses a block's weights outside its forward.
        inner_gradients: the training step calls `autograd.grad` itself (an inner optimisation); FSDP2 then keeps
            parameters gathered until the step is over.
        estimators: the ways in which `token_nll` can score a text, its own way first; `exact` is the autoregressive
            likelihood. A family that has several takes `token_nll(batch, estimator)`.
        continuation_estimator: the one for labels that follow a given text and must not be read before they are
            scored (questions and choices); `None`: its own way is such a one.
        about_thoughts: a sentence for readers of a trace: what this model's thoughts are; empty where it has none.
        shown: what a trace holds by name, beside `SHOWN` or in its place.
    """

    causal = True
    shard_blocks = True
    inner_gradients = False
    estimators: tuple[str, ...] = ("exact",)
    continuation_estimator: str | None = None
    about_thoughts = ""
    shown: ClassVar[Mapping[str, Shown]] = {}

    def final_hidden_states(self, batch: Batch) -> Tensor:
        """[batch, length, hidden]: what the output embedding turns into logits; position t predicts token t + 1."""
        raise NotImplementedError(f"{type(self).__name__} needs final_hidden_states, or training_loss and token_nll")

    def forward_flops(self, batch: Batch) -> int:
        """FLOPs of one forward pass over this batch, head included, as PyTorch's FLOP counter counts them.

        A multiply-add is two FLOPs, attention scores count in full though half of them are masked, and element-wise
        work (norms, activations, softmax, embedding look-ups) counts nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} needs forward_flops")

    def get_output_embeddings(self) -> nn.Module:
        raise NotImplementedError(f"{type(self).__name__} needs get_output_embeddings")

    def training_flops(self, batch: Batch, **settings: Any) -> int:
        """FLOPs of one training step on this batch; the backward pass of a plain model costs two forward passes."""
        return 3 * self.forward_flops(batch)

    def compiled_parts(self) -> list[nn.Module] | None:
        """The modules for `torch.compile` to take, where a whole step changes shape with its batch; else `None`."""
        return None

    def gradient_groups(self) -> dict[str, list[list[nn.Parameter]]]:
        """Components whose shares of the gradient training logs: for each of a component's layers its parameters."""
        return {}

    def output_weight(self) -> Tensor:
        """[vocabulary, hidden], the matrix of the language-model head."""
        weight = self.get_output_embeddings().weight
        assert isinstance(weight, Tensor)
        return weight

    def target_weights(self, batch: Batch, **settings: Any) -> Tensor | None:
        """[batch, length] weights of `labels` in the training loss, or `None` where all count the same."""
        if settings:
            name = next(iter(settings))
            raise InputError(f"phases.model.{name}: {type(self).__name__} has no such training setting")
        return None

    def training_loss(self, batch: Batch, **settings: Any) -> LossOutput:
        """The mean next-token cross-entropy of a batch.

        Args:
            batch: see `Batch`; position t's state predicts `labels[:, t + 1]`.
            settings: this step's values of the recipe's `phases[].model`.
        """
        weights = self.target_weights(batch, **settings)
        return LossOutput(*self.next_token_loss(self.final_hidden_states(batch), batch["labels"], weights))

    def next_token_loss(self, hidden: Tensor, labels: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The weighted mean cross-entropy of `labels` [batch, length] under `hidden`, and the sum of the weights."""
        labels = labels[:, 1:].reshape(-1)
        weights = None if weights is None else weights[:, 1:].reshape(-1)
        counted = (labels != IGNORED).to(torch.float32)
        weight = (counted if weights is None else counted * weights).sum()
        loss = linear_cross_entropy(hidden[:, :-1].flatten(0, 1), self.output_weight(), labels, target_weights=weights)
        return loss, weight

    @torch.no_grad()
    def token_nll(self, batch: Batch) -> Tensor:
        """[batch, length] float32: negative log-likelihood in nats of each label given the tokens before it.

        Zero where `labels` is -100 and at position 0, which nothing precedes.
        """
        return self.next_token_nll(self.final_hidden_states(batch), batch["labels"])

    def nll_parts(self, batch: Batch, **scoring: Any) -> dict[str, Tensor]:
        """What `token_nll` is the sum of, by name, each [batch, length]: of a bound more than a likelihood.

        Args:
            scoring: keywords of `token_nll`.
        """
        return {"nll": self.token_nll(batch, **scoring)}

    def scored_labels(self, batch: Batch, estimator: str) -> Tensor:
        """The labels [batch, length] that an estimator scores, -100 elsewhere: all but those of position 0."""
        return nn.functional.pad(batch["labels"][:, 1:], (1, 0), value=IGNORED)

    def scoring_protocol(self, estimator: str) -> dict[str, Any]:
        """What else of the model a figure by this estimator depends on, in words and numbers to publish."""
        return {}

    def continuation_scoring(self) -> dict[str, str]:
        """Keywords of `token_nll` that score labels which follow a given text, see `continuation_estimator`."""
        return {} if self.continuation_estimator is None else {"estimator": self.continuation_estimator}

    def continuation_inputs(self, batch: Batch) -> dict[str, Tensor]:
        """What `forward` takes to predict a batch's labels, of which it may not read any before its turn."""
        return {name: batch[name] for name in ("input_ids", "attention_mask")}

    def next_token_nll(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """What `token_nll` gives, of final hidden states [batch, length, hidden]."""
        nll = linear_nll(hidden[:, :-1].flatten(0, 1), self.output_weight(), labels[:, 1:].reshape(-1))
        return nn.functional.pad(nll.view(labels.shape[0], -1), (1, 0))

    @torch.no_grad()
    def traces(self, batch: Batch, **options: Any) -> list[ThoughtTrace]:
        """A trace a row of a text, with what a model without thoughts has: `text_traces`.

        A model that reads in both directions has no prediction of its own for each token: its `surprise` is
        `token_nll`, and it has no more.

        Args:
            batch: `input_ids`, and `attention_mask` where rows are padded.
            options: of the thoughts, for models that have some.

        Raises:
            InputError: options that the model does not know.
        """
        self._check_options(options, ())
        ids, mask = batch["input_ids"], batch.get("attention_mask")
        scored = follows(torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool())
        if self.causal:
            hidden, head = self.final_hidden_states(batch), self.get_output_embeddings()
            return self.text_traces(ids, scored, lambda at: head(hidden[:, at]))
        nll = self.token_nll(batch | {"labels": ids.masked_fill(~scored, IGNORED)}).masked_fill(~scored, math.nan)
        return [ThoughtTrace(row, {"surprise": values}, model=self._model_type) for row, values in zip(ids, nll)]

    @staticmethod
    def _check_options(options: Mapping[str, Any], known: Iterable[str]) -> None:
        for name, value in options.items():
            if name not in known:
                raise InputError(f"{name} is {value}: this model has no thoughts that depend on it, leave it out")

    @torch.no_grad()
    def text_traces(self, input_ids: Tensor, scored: Tensor, logits: Callable[[Tensor], Tensor]) -> list[ThoughtTrace]:
        """A trace a row with what every causal model has: `surprise`, `entropy` and the reading `predicted`.

        Args:
            input_ids: [batch, length].
            scored: bool [batch, length], the tokens that the one before them predicts; others are NaN, and themselves
                in the reading.
            logits: those of the tokens in columns [m], [batch, m, vocabulary]; it is asked for a few at a time.
        """
        surprise = torch.full(input_ids.shape, math.nan, device=input_ids.device)
        entropy, predicted = surprise.clone(), input_ids.clone()
        size = max(1, _PIECE // len(input_ids))
        for start in range(0, input_ids.shape[1] - 1, size):
            at = torch.arange(start, min(start + size, input_ids.shape[1] - 1), device=input_ids.device)
            there, log_p = scored[:, at + 1], logits(at).float().log_softmax(-1)
            nll = -log_p.gather(-1, input_ids[:, at + 1, None])[..., 0]
            surprise[:, at + 1] = nll.masked_fill(~there, math.nan)
            entropy[:, at + 1] = torch.special.entr(log_p.exp()).sum(-1).masked_fill(~there, math.nan)
            predicted[:, at + 1] = torch.where(there, log_p.argmax(-1), input_ids[:, at + 1])
        return [
            ThoughtTrace(
                ids, {"surprise": surprise[row], "entropy": entropy[row]}, readings={"predicted": predicted[row]},
                model=self._model_type,
            )
            for row, ids in enumerate(input_ids)
        ]  # fmt: skip

    @property
    def _model_type(self) -> str:
        config: Any = getattr(self, "config", None)
        return config.model_type


def follows(real: Tensor) -> Tensor:
    """bool [batch, length]: the tokens, of those that are no padding, which stand behind another one."""
    return real & nn.functional.pad(real[:, :-1], (1, 0))


class ResidualLinear(nn.Linear):
    """A map whose output is added to the residual stream; it starts smaller the deeper the model (GPT-2).

    A class of its own, since transformers initialises no module that holds other modules only.
    """


class LatentThoughtModel(PreTrainedModel, Contract, GenerationMixin):
    """Base of every family's model: a Hugging Face causal LM that keeps the contract.

    A subclass sets `config_class`, builds its modules in `__init__` (`embed` and `lm_head` among them, ending in
    `self.post_init()`), gives every parameter that is not a plain linear, embedding or norm its rule in
    `_init_weights`, and keeps whatever generation needs between tokens in a `ThoughtCache`.
    """

    config_class = LatentThoughtConfig
    base_model_prefix = "model"
    _is_stateful = True
    _supports_sdpa = True
    cache_class: type[ThoughtCache] = ThoughtCache
    embed: nn.Embedding
    lm_head: nn.Linear

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, ResidualLinear):
            std = self.config.initializer_range / math.sqrt(2 * self.config.num_hidden_layers)
            init.normal_(module.weight, std=std)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embed = value

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head = new_embeddings

    def new_cache(self) -> ThoughtCache:
        """An empty cache for `generate`; families whose keys and values live in named states override it."""
        return ThoughtCache(self.config.num_hidden_layers)

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        if generation_config.use_cache is not False and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = self.new_cache()

    def traces(self, batch: Batch, **options: Any) -> list[ThoughtTrace]:
        """See `Contract.traces`; `options` are keywords of `forward`."""
        known = inspect.signature(self.forward).parameters
        if "output_thoughts" not in known:
            return super().traces(batch, **options)
        self._check_options(options, known)
        read = {name: batch[name] for name in ("input_ids", "attention_mask") if name in batch}
        with torch.no_grad():
            return self(**read, output_thoughts=True, logits_to_keep=1, **options).thoughts

    @staticmethod
    def real_tokens(input_ids: Tensor, attention_mask: Tensor | None, cache: ThoughtCache | None) -> Tensor:
        """bool [batch, length], which tokens of this call are no padding.

        Args:
            attention_mask: [batch, length or, with a cache, all tokens so far].

        Raises:
            InputError: a mask of another width.
        """
        if attention_mask is None:
            return torch.ones_like(input_ids, dtype=torch.bool)
        seen = input_ids.shape[1] + (0 if cache is None else cache.seen_tokens)
        if attention_mask.shape[1] != seen:
            raise InputError(
                f"attention_mask has {attention_mask.shape[1]} columns: give {seen}, one for each token read so far"
            )
        return attention_mask[:, -input_ids.shape[1] :].bool()

    @staticmethod
    def check_rows(real: Tensor) -> None:
        """Raises `InputError` where a row of `real` [batch, length] is padding alone."""
        empty = ~real.any(1)
        if bool(empty.any()):
            raise InputError(
                f"attention_mask[{int(empty.nonzero()[0])}] is 0 throughout: every row needs a token, leave it out"
            )

    def check_cache(self, cache: Any) -> Any:
        """The cache given to `forward`, refused where it is not one of ours."""
        if cache is not None and not isinstance(cache, self.cache_class):
            raise InputError(
                f"past_key_values is a {type(cache).__name__}: {type(self).__name__} needs a "
                f"{self.cache_class.__name__} "
                "(leave the argument out, or call model.new_cache())"
            )
        return cache


class TrainStep(nn.Module):
    """What DDP, FSDP2 and `torch.compile` wrap: one call is one micro-batch's loss, whatever passes it hides."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model

    def compile(self, **options: Any) -> None:
        """`torch.compile` for the step, or for the parts of it that the model names."""
        # A graph for each kind of block, mode and precision; what is over the limit would silently run eagerly.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
        parts = self.model.compiled_parts()
        if parts is None:
            super().compile(**options)
        for part in parts or ():
            part.compile(dynamic=True, **options)

    def forward(
        self, batch: Batch, settings: Mapping[str, Any] | None, scoring: Mapping[str, Any] | None = None
    ) -> LossOutput | dict[str, Tensor]:
        """The training loss under these settings; with `settings=None` the tokens' scores, `Contract.nll_parts`.

        Args:
            scoring: keywords of `token_nll`.
        """
        if settings is None:
            return self.model.nll_parts(batch, **(scoring or {}))
        return self.model.training_loss(batch, **settings)


def count_parameters(model: Any) -> dict[str, int]:
    """`total`, and `non_embedding` (the papers' N): without token and position tables, tied weights once."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    parameters = {id(p): p.numel() for p in model.parameters()}
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is not None:
        embeddings.add(id(head.weight))
    return {
        "total": sum(parameters.values()),
        "non_embedding": sum(n for key, n in parameters.items() if key not in embeddings),
    }
